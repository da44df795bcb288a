"""Sets that need no files: scikit-learn's bundled ones and two generators."""

import dataclasses

import numpy as np

from jaxfl.datasets.dataset import Table

BINARY = ("0", "1")


def breast_cancer() -> Table:
    """Wisconsin diagnostic breast cancer: 569 records, 2 classes. Each of the 30 measurements is
    cut at its median into low and high, so that there is something categorical to infer."""
    from sklearn.datasets import load_breast_cancer

    source = load_breast_cancer()
    values = (source.data > np.median(source.data, axis=0)).astype(np.float32)
    names = tuple(str(n) for n in source.feature_names)
    return Table(
        "breast_cancer",
        values,
        source.target,
        names,
        (("low", "high"),) * 30,
        2,
        note="measurements cut at their medians",
    )


def diabetes() -> Table:
    """Diabetes progression: 442 records, 9 numbers and the sex column as a binary attribute; the
    target is standardised."""
    from sklearn.datasets import load_diabetes

    source = load_diabetes(scaled=False)
    sex = source.feature_names.index("sex")
    values = source.data.astype(np.float32)
    values[:, sex] -= values[:, sex].min()
    categories = tuple(("1", "2") if j == sex else () for j in range(values.shape[1]))
    y = (source.target - source.target.mean()) / source.target.std()
    return Table("diabetes", values, y, tuple(source.feature_names), categories, None)


def digits() -> Table:
    """Handwritten digits: 1,797 records of 8x8 pixels, cut at half intensity into black and white,
    10 classes."""
    from sklearn.datasets import load_digits

    source = load_digits()
    names = tuple(f"pixel_{i // 8}_{i % 8}" for i in range(64))
    return Table(
        "digits", (source.data > 7.5).astype(np.float32), source.target, names, (BINARY,) * 64, 10
    )


def leaf_synthetic(  # noqa: PLR0913 - the recipe's own parameters
    clients: int = 10,
    records: int = 500,
    features: int = 100,
    classes: int = 5,
    clusters: int = 5,
    seed: int = 931231,
    attribute: bool = False,
    spread: float = 1.0,
    noise: float = 0.1,
) -> Table:
    """LEAF's synthetic generator (Caldas et al. 2018, `data/synthetic`), by its recipe.

    Q ~ N(0, 1) of shape (d+1, C, S); Sigma = diag((i+1)^-1.2); a cluster's mean is N(l, I) with l ~
    N(0, 1). A client draws a cluster, B ~ N(0, 1), v ~ N(B, I), x ~ N(v, Sigma), u ~ N(mean, 0.01
    I), w = Q u, and labels argmax(softmax([1, x] w + N(0, 0.01))). `seed=931231` is LEAF's own; the
    order of draws is ours.

    Args:
      clients: number of clients; each record's client is its `group`.
      records: records per client, the same for all (Driouich 2023 uses 2,000; LEAF draws sizes from
        a log-normal).
      features: d.
      classes: C.
      clusters: S, drawn uniformly.
      seed: of the generator.
      attribute: plant a binary attribute, which Driouich 2023 leaves open: x_0 becomes 1 where it
        exceeds its client's median, before labels are drawn, so that it matters and is balanced.
      spread: scales v. By LEAF's recipe (1) many clients hold nearly one class; with 0.1 and
        `noise=1` none does.
      noise: deviation of the noise on the logits, 0.1 in LEAF.
    """
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(features + 1, classes, clusters))
    deviation = np.arange(1, features + 1) ** -0.6  # square root of the diagonal of Sigma
    means = rng.normal(rng.normal(size=(clusters, 1)), 1, (clusters, clusters))
    xs, ys = [], []
    for _ in range(clients):
        cluster = rng.integers(clusters)
        center = spread * rng.normal(rng.normal(), 1, features)
        x = rng.normal(center, deviation, (records, features))
        if attribute:
            x[:, 0] = x[:, 0] > np.median(x[:, 0])
        w = q @ rng.normal(means[cluster], 0.1)
        # softmax is monotonous: the argmax of the logits is the argmax of the probabilities
        ys.append((w[0] + x @ w[1:] + rng.normal(0, noise, (records, classes))).argmax(1))
        xs.append(x)
    return Table(
        "leaf_synthetic",
        np.concatenate(xs).astype(np.float32),
        np.concatenate(ys),
        tuple(f"x{j}" for j in range(features)),
        ((BINARY if attribute else ()), *[()] * (features - 1)),
        classes,
        group=np.repeat(np.arange(clients), records),
        standardize=False,
        sensitive="x0" if attribute else None,
    )


PURCHASE_MARGINALS = {130: 0.241, 595: 0.326}
"""Minority rates of columns 130 and 595 of Purchase-100, from the variances printed in Lyu 2021,
Table 1."""


def purchase_like(records: int = 20_000, seed: int = 0) -> Table:
    """A stand-in for Purchase-100: 600 binary columns in 100 latent classes, 13 % ones overall.

    Each class has its own rates: a column's rate is shifted on the logit scale by N(0, 1.5) per
    class. The marginals of columns 130 and 595 are those of the real file (see
    `PURCHASE_MARGINALS`), exactly up to rounding.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(100, size=records)
    base = np.log(0.07 / 0.93) + rng.normal(0, 0.7, 600)
    logits = base + rng.normal(0, 1.5, (100, 600))
    uniform = rng.random((records, 600))
    x = (uniform < 1 / (1 + np.exp(-logits[y]))).astype(np.float32)
    for column, rate in PURCHASE_MARGINALS.items():
        # The records whose draw lies deepest below their class's rate become the ones.
        depth = logits[y, column] - np.log(uniform[:, column] / (1 - uniform[:, column]))
        x[:, column] = depth >= np.sort(depth)[-round(rate * records)]
    names = tuple(f"product_{j}" for j in range(600))
    note = "synthetic stand-in for Purchase-100"
    return Table("purchase_like", x, y, names, (BINARY,) * 600, 100, note=note)


def purchase2_like(records: int = 20_000, seed: int = 0) -> Table:
    """`purchase_like` with two classes: 2-means of its 600 columns, seeded, as Purchase-100's own
    classes are clusters."""
    from sklearn.cluster import KMeans

    table = purchase_like(records, seed)
    y = KMeans(2, n_init=3, random_state=seed).fit_predict(table.values)
    return dataclasses.replace(table, name="purchase2_like", y=y, classes=2)


def pictures_like(
    records: int = 5000, size: tuple[int, int] = (28, 28), clients: int = 10, seed: int = 0
) -> Table:
    """A stand-in for pictures of digits: each of ten classes is one smooth random picture, its
    records are that with noise, and clients hold records of all classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(10, size=records)
    waves = [np.cos(np.pi * np.outer(np.arange(4), np.arange(n) + 0.5) / n) for n in size]
    smooth = np.einsum("kab,ah,bw->khw", rng.normal(size=(10, 4, 4)), *waves)
    noisy = smooth[y] + 0.5 * rng.normal(size=(records, *size))
    pixels = (1 / (1 + np.exp(-noisy))).astype(np.float32).reshape(records, -1)
    group = rng.integers(clients, size=records)
    return Table(
        "pictures_like", pixels, y, (), (), 10, group=group, shape=(*size, 1),
        note="made-up pictures",
    )  # fmt: skip


TABLES = {
    "breast_cancer": breast_cancer,
    "diabetes": diabetes,
    "digits": digits,
    "leaf_synthetic": leaf_synthetic,
    "pictures_like": pictures_like,
    "purchase_like": purchase_like,
    "purchase2_like": purchase2_like,
}
