"""Representatives: what their objective says of the truth, what they recover, and what
they cannot."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import approx_fprime

from attacks import FitWarning, Virtual
from attacks.users import counts as counts_of
from attacks.users import representatives as rep
from jaxfl import Federated, LocalTraining, Messages, simulate, stack_clients, trunk_cnn

SHAPE, CLASSES, RATE = (8, 8, 1), 3, 0.05
MODEL = trunk_cnn(SHAPE, CLASSES, widths=(4, 6), strides=(2, 1))
SETTINGS = rep.Representing(images=6, tv_weight=0.0, virtual=Virtual(training=LocalTraining(RATE)))


@pytest.fixture(scope="module")
def federation():
    """Two clients, six pictures each, of one pattern per class; they hold classes 0, 1 and 1, 2."""
    rng = np.random.default_rng(0)
    patterns = rng.uniform(-0.8, 0.8, (CLASSES, *SHAPE))
    records = []
    for held in ((0, 0, 0, 1, 1, 1), (1, 1, 2, 2, 2, 2)):
        y = np.asarray(held)
        x = np.clip(patterns[y] + 0.1 * rng.normal(size=(6, *SHAPE)), -1, 1).astype(np.float32)
        records.append((x, y))
    run = simulate(
        MODEL,
        MODEL.init(jax.random.key(0)),
        stack_clients(records),
        jax.random.key(1),
        Federated(2, LocalTraining(RATE)),
    )
    return records, patterns, run


def test_the_truth_has_no_residual(federation):
    records, _, run = federation
    for client, (x, y) in enumerate(records):
        messages = run.messages(client)
        for t in range(2):
            received, observed = jax.tree.map(
                lambda a, t=t: a[t], (messages.received, messages.pseudo_gradient)
            )
            of = jax.jit(
                lambda x, w=received, u=observed, y=y: rep.objective(
                    MODEL, w, u, x, y, jax.random.key(0), SETTINGS
                )
            )
            assert of(jnp.asarray(x)) < 1e-4
            assert of(jnp.asarray(-x)) > 0.1


def test_a_free_scale_is_the_best_scale():
    a, b = jnp.asarray([1.0, 2.0, -1.0]), jnp.asarray([0.5, 1.0, 1.0])
    free = rep.residual({"w": a}, {"w": b}, "free")
    assert free == pytest.approx(
        min(float(rep.residual({"w": s * a}, {"w": b}, "known")) for s in np.linspace(0, 2, 2001))
    )
    assert rep.residual({"w": -b}, {"w": b}, "free") == pytest.approx(1)


def test_total_variation_is_the_papers():
    images = np.random.default_rng(0).normal(size=(2, 4, 5, 1))
    expected = sum(
        (
            (images[n, i, j + 1] - images[n, i, j]) ** 2
            + (images[n, i + 1, j] - images[n, i, j]) ** 2
        )
        ** 1.25
        for n in range(2)
        for i in range(3)
        for j in range(4)
    )
    assert rep.power_variation(jnp.asarray(images), 1.25) == pytest.approx(expected[0], rel=1e-5)
    flat = jax.grad(lambda x: rep.power_variation(x, 1.25))(jnp.zeros((1, 4, 4, 1)))
    assert (flat == 0).all()  # 0^1.25 has a slope


def test_the_objectives_gradient_is_that_of_finite_differences(federation):
    records, _, run = federation
    _, y = records[0]
    with jax.enable_x64(True):
        received, returned = jax.tree.map(
            lambda a: jnp.asarray(a, jnp.float64),
            jax.tree.map(lambda a: np.asarray(a)[0], (run.received, run.returned)),
        )
        observed = jax.tree.map(lambda w, v: w - v[0], received, returned)
        settings = dataclasses.replace(SETTINGS, tv_weight=0.01, images=2)

        @jax.jit
        def value(flat):
            images = flat.reshape(2, *SHAPE)
            return rep.objective(
                MODEL, received, observed, images, jnp.asarray(y[:2]), jax.random.key(0), settings
            )

        start = np.random.default_rng(1).normal(size=2 * 64) * 0.3
        numeric = approx_fprime(start, lambda v: float(value(jnp.asarray(v))), 1e-6)
        assert np.allclose(jax.grad(value)(jnp.asarray(start)), numeric, atol=1e-5)


@pytest.mark.parametrize("solver", ["adam", "lbfgsb"])
def test_one_image_is_recovered(solver):
    """Known label, random initial model: the self-test of every gradient inversion."""
    x = np.random.default_rng(3).uniform(-0.7, 0.7, (1, *SHAPE)).astype(np.float32)
    wide = trunk_cnn(SHAPE, CLASSES, widths=(12, 12), strides=(2, 1))
    run = simulate(
        wide,
        wide.init(jax.random.key(2)),
        stack_clients([(x, [1])]),
        jax.random.key(3),
        Federated(1, LocalTraining(RATE)),
    )
    settings = dataclasses.replace(
        SETTINGS, images=1, evaluations=600, learning_rate=0.05, solver=solver
    )
    found = rep.representatives(
        wide, run.messages(0), jnp.asarray([[1]]), jax.random.key(4), SHAPE, settings=settings
    )
    peak_to_noise = 10 * np.log10(4 / np.mean((found.x[0] - x) ** 2))
    assert peak_to_noise > 25
    assert found.value[0] == pytest.approx(np.nanmin(found.trace[0]))
    assert found.explained[0] > 0.99
    few = dataclasses.replace(settings, evaluations=7)
    found = rep.representatives(
        wide, run.messages(0), jnp.asarray([[1]]), jax.random.key(4), SHAPE, settings=few
    )
    assert np.isfinite(
        found.trace
    ).all()  # no more evaluations than there is room for, and no fewer
    assert found.value[0] == pytest.approx(np.min(found.trace[0]))
    lost = dataclasses.replace(
        run, returned=jax.tree.map(lambda a: a * jnp.nan, run.returned)
    ).messages(0)
    assert np.isnan(
        rep.representatives(
            wide, lost, jnp.asarray([[1]]), jax.random.key(4), SHAPE, settings=few
        ).x
    ).all()


def test_representatives_look_like_the_pictures_behind_an_update(federation):
    records, patterns, run = federation
    y = jnp.asarray(np.stack([r[1] for r in records]))
    settings = dataclasses.replace(SETTINGS, evaluations=200, tv_weight=1e-5)
    first = Messages(
        jax.tree.map(lambda a: jnp.stack([a[0]] * 2), run.received),
        jax.tree.map(lambda a: a[0], run.returned),
        jnp.zeros(2, int),
    )
    found = rep.representatives(MODEL, first, y, jax.random.key(5), SHAPE, settings=settings)
    vmapped = rep.representatives(
        MODEL, first, y, jax.random.key(5), SHAPE, settings=settings, strategy="vmap"
    )
    assert np.allclose(found.trace[:, :20], vmapped.trace[:, :20], atol=1e-3)

    def resemblance(images, labels):
        pairs = [
            (images[labels == k].mean(0).ravel(), patterns[k].ravel()) for k in np.unique(labels)
        ]
        return np.mean([np.corrcoef(a, b)[0, 1] for a, b in pairs])

    assert resemblance(np.asarray(found.x[0]), records[0][1]) > 0.5
    assert (found.explained > 0.9).all()
    # An update that has nothing to do with the pictures gives nothing that looks like them.
    noise = jax.tree.map(
        lambda w: w - 0.01 * jax.random.normal(jax.random.key(6), w.shape), first.received
    )
    blind = rep.representatives(
        MODEL,
        dataclasses.replace(first, returned=noise),
        y,
        jax.random.key(5),
        SHAPE,
        settings=settings,
    )
    assert abs(resemblance(np.asarray(blind.x[0]), records[0][1])) < 0.35


def test_images_that_account_for_nothing_are_told(federation):
    """Told a rate so high that any image's update is longer than the one that was seen."""
    records, _, run = federation
    first = run.messages(0)
    y = jnp.asarray(np.stack([(records[0][1] + 1) % CLASSES] * len(first)))
    fast = Virtual(training=LocalTraining(30 * RATE))
    settings = dataclasses.replace(SETTINGS, evaluations=5, virtual=fast)
    with pytest.warns(FitWarning, match="account for none of them") as told:
        found = rep.representatives(MODEL, first, y, jax.random.key(5), SHAPE, settings=settings)
    assert (found.explained <= 0).any()
    assert told[0].filename == __file__


def test_the_bias_tells_the_labels(federation):
    records, _, run = federation
    for client, (x, y) in enumerate(records):
        messages = run.messages(client)
        received, observed = jax.tree.map(
            lambda a: a[1], (messages.received, messages.pseudo_gradient)
        )
        probabilities = counts_of.class_probabilities(
            MODEL, received, jnp.asarray(x), jnp.asarray(y)
        )
        counts = counts_of.infer_counts(MODEL, observed, probabilities, 6, SETTINGS.virtual)
        assert counts.tolist() == np.bincount(y, minlength=CLASSES).tolist()
        assert counts_of.labels_of(counts, 6).tolist() == sorted(y.tolist())
        turned = jax.tree.map(lambda a: -10 * a, observed)
        with pytest.warns(FitWarning, match="fewer than none of a class"):
            counts_of.infer_counts(MODEL, turned, probabilities, 6, SETTINGS.virtual)


def test_the_scale_follows_from_the_clients_records(federation):
    """A client takes two steps a round whatever the number of images that are to stand for it."""
    records, _, _ = federation
    training = LocalTraining(0.005, batch_size=3)
    run = simulate(
        MODEL,
        MODEL.init(jax.random.key(0)),
        stack_clients(records),
        jax.random.key(1),
        Federated(1, training),
    )
    virtual = Virtual(training=training, records=6)
    assert virtual.scale(3) == pytest.approx(2 * 0.005)
    assert Virtual(training=training).scale(3) == pytest.approx(0.005)
    x, y = records[0]
    received, observed = jax.tree.map(
        lambda a: a[0], (run.messages(0).received, run.messages(0).pseudo_gradient)
    )
    probabilities = counts_of.class_probabilities(MODEL, received, jnp.asarray(x), jnp.asarray(y))
    assert counts_of.infer_counts(MODEL, observed, probabilities, 12, virtual).tolist() == [6, 6, 0]
    still = jax.tree.map(jnp.zeros_like, observed)
    assert (counts_of.infer_counts(MODEL, still, probabilities, 12, virtual) == -1).all()
    for odd, said in ((probabilities / 2, "must be non-negative and sum"), (jnp.eye(2), "shape")):
        with pytest.raises(ValueError, match=f"probabilities.*{said}"):
            counts_of.infer_counts(MODEL, observed, odd, 12, virtual)
    with pytest.raises(ValueError, match="records=6 needs kind='gradient'"):
        dataclasses.replace(virtual, kind="unrolled").check(3)


def test_counts_sum_to_the_number_of_images():
    for seed in range(20):
        shares = jax.random.normal(jax.random.key(seed), (7,))
        counts = counts_of.round_counts(shares, 30)
        assert counts.sum() == 30
        assert (counts >= 0).all()
        assert (counts[shares <= 0] == 0).all()
    assert counts_of.uniform_counts(30, 7).sum() == 30


def test_bad_input_is_named(federation):
    _, _, run = federation
    key, y = jax.random.key(0), jnp.zeros((2, 6), int)
    with pytest.raises(ValueError, match=r"y has shape \(2, 5\)"):
        rep.representatives(MODEL, run.messages(0), y[:, :5], key, SHAPE, settings=SETTINGS)
    with pytest.raises(
        ValueError,
        match=r"shape=\(9, 9, 1\) has records of shape \(9, 9, 1\), which the model does not take",
    ):
        rep.representatives(MODEL, run.messages(0), y, key, (9, 9, 1), settings=SETTINGS)
    with pytest.raises(ValueError, match="solver='sgd'"):
        rep.representatives(
            MODEL,
            run.messages(0),
            y,
            key,
            SHAPE,
            settings=dataclasses.replace(SETTINGS, solver="sgd"),
        )
    with pytest.raises(ValueError, match=r"low=1\.0 must lie below"):
        rep.representatives(
            MODEL, run.messages(0), y, key, SHAPE, settings=dataclasses.replace(SETTINGS, low=1.0)
        )
    with pytest.raises(ValueError, match="trunk"):
        counts_of.infer_counts(
            dataclasses.replace(MODEL, trunk=None), run.params, jnp.eye(3), 6, Virtual()
        )
