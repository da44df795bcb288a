"""Linkability (Song 2020, section VI): which anonymous updates of different rounds come from the
same client.

Threat model: an honest-but-curious server that receives updates without their senders' names. It
has records of its own, like the clients' (its test set), on which it runs a federated learning
whose senders it knows.

Every method turns an update into a descriptor, and links by the distance of descriptors of unit
length. The paper's are learned by a siamese network on representatives, or on the updates
themselves; the others need no training, and tell how hard a federation is.
"""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Int, Num
from scipy import stats

from attacks.fit import MisfitWarning, UncheckedWarning
from attacks.users.siamese import check_several, partners
from jaxfl import Model, _check
from jaxfl.domains import Count, Key, Params, checked
from jaxfl.models import check_parameters

Array = jax.Array
FEWEST_PAIRS, LEAST_AREA, TURNED = 20, 0.55, 0.4
"""Pairs of either kind of which it can be told whether similarities tell them apart; the area under
the curve below which they do not, and below which they do the other way round. Pairs share updates,
so that no error of the area follows from their number."""
TINY, NEARLY_UNIT = 1e-6, 0.02
"""Length of a descriptor of an update of zeros, at most; and what rounding to 16 bits may change
of a unit."""


@checked
def updates_as_vectors(pseudo_gradient: Params) -> Num[Array, "... parameters"]:
    """Whole updates `[..., parameters]` of leaves `[rounds, participants, ...]`."""
    leaves = jax.tree.leaves(pseudo_gradient)
    if len({leaf.shape[:2] for leaf in leaves}) > 1:
        raise ValueError("pseudo_gradient must have leaves [rounds, participants, ...] alike")
    return jnp.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], -1)


@checked
def pooled_head(model: Model, pseudo_gradient: Params) -> Num[Array, "rounds participants weights"]:
    """The last layer's updates averaged over the image plane `[rounds, participants, channels x
    classes]`, as Song 2020's update-based attack has them. Raises `ValueError` if the model names
    no trunk."""
    kernel = _head(model, pseudo_gradient)["kernel"]
    return kernel.reshape(*kernel.shape[:2], -1, model.trunk.channels * kernel.shape[-1]).mean(2)  # type: ignore[union-attr]


@checked
def last_bias(model: Model, pseudo_gradient: Params) -> Num[Array, "rounds participants classes"]:
    """The last bias's updates `[rounds, participants, classes]`. Raises `ValueError` if the model
    names no trunk."""
    return _head(model, pseudo_gradient)["bias"]


def _head(model: Model, tree: Any) -> dict[str, Array]:
    if model.trunk is None:
        raise ValueError(
            "linkability by the last layer needs a model that names its trunk (see jaxfl.trunk_cnn)"
        )
    check_parameters(model, tree, "pseudo_gradient", 2)
    return tree[model.trunk.head]


@checked
def unit(
    descriptors: Num[Array, "rounds participants d"], centred: bool = False
) -> Num[Array, "rounds participants d"]:
    """Descriptors `[rounds, participants, d]` at unit length (Song 2020, section VI-B).

    Args:
      descriptors: one for each update.
      centred: take them less their round's mean first, which the model brings about and no client
        (not in the paper). It helps where clients are alike.
    """
    return _unit(jnp.asarray(descriptors), centred)


@functools.partial(jax.jit, static_argnums=1)
def _unit(descriptors: Array, centred: bool) -> Array:
    if centred:
        descriptors = descriptors - descriptors.mean(1, keepdims=True)
    # By the largest number first: squares of tiny ones vanish.
    largest = jnp.abs(descriptors).max(-1, keepdims=True)
    scaled = descriptors / jnp.where(largest > 0, largest, 1)
    return scaled / jnp.maximum(jnp.linalg.norm(scaled, axis=-1, keepdims=True), 1e-12)


def check_unit(**named: Any) -> None:
    """Raise `ValueError` unless all descriptors `[..., d]` are of unit length, or 0, or not
    finite: distances between others go by their lengths."""
    for name, descriptors in named.items():
        if _check.is_unseen(descriptors):
            continue
        lengths = np.linalg.norm(np.asarray(descriptors, np.float64), axis=-1)
        odd = np.isfinite(lengths) & (lengths > TINY) & (np.abs(lengths - 1) > NEARLY_UNIT)
        if odd.any():
            raise ValueError(
                f"{name} holds a descriptor of length {lengths[odd][0]:.3g}; they must be of unit "
                "length, as attacks.unit makes them"
            )


def similarity(a: Array, b: Array) -> Array:
    """`-|a - b|` of descriptors of unit length `[n, d]` and `[m, d]`: `[n, m]` (Song 2020,
    Eq. 10)."""
    return -jnp.sqrt(jnp.maximum(2 - 2 * jnp.matmul(a, b.T, precision="highest"), 0))


@checked
def pair_similarities(
    descriptors: Num[Array, "samples d"], identities: Int[Array, "samples"], key: Key, pairs: Count
) -> tuple[Array, Array]:
    """Similarity of random pairs `[pairs]`, half of them of one client, and whether they are
    `[pairs]`.

    Args:
      descriptors: of unit length `[samples, d]`.
      identities: their clients `[samples]`.
      key: draws the pairs.
      pairs: how many (static).

    Raises:
      ValueError: if there is not one client per sample, a client has one sample alone, all are of
        one, or descriptors are of another length.
    """
    _check.at_least(0, identities=identities)
    check_several(identities)
    check_unit(descriptors=descriptors)
    return _pair_similarities(descriptors, jnp.asarray(identities), key, pairs)


@functools.partial(jax.jit, static_argnums=3)
def _pair_similarities(
    descriptors: Array, identities: Array, key: Array, pairs: int
) -> tuple[Array, Array]:
    first_key, second_key = jax.random.split(key)
    first = jax.random.randint(first_key, (pairs,), 0, len(identities), jnp.int32)
    second = partners(second_key, identities, first)
    distance = jnp.linalg.norm(descriptors[first] - descriptors[second], axis=-1)
    return -distance, identities[first] == identities[second]


@checked
def fit_threshold(similarities: Num[Array, "pairs"], same: Bool[Array, "pairs"]) -> Num[Array, ""]:
    """The threshold above which pairs are best taken for one client's (a scalar): half way between
    two neighbours, or minus infinity, if it is best to call every pair one client's; NaN if a
    similarity is not finite.

    Args:
      similarities: of pairs `[pairs]`; the larger, the more alike.
      same: whether each is of one client `[pairs]`.

    Warns:
      MisfitWarning: if pairs of one client are less alike than others: these are distances, or the
        truths are of other pairs.
      UncheckedWarning: if they are no more alike than others, by some twenty pairs of either.
    """
    _warn_of_chance(similarities, same)
    return _fit_threshold(similarities, same)


def _warn_of_chance(similarities: Array, same: Array) -> None:
    if _check.is_unseen((similarities, same)):
        return
    values, truth = np.asarray(similarities), np.asarray(same)
    if not np.isfinite(values).all() or min(truth.sum(), (~truth).sum()) < FEWEST_PAIRS:
        return
    greater = stats.mannwhitneyu(values[truth], values[~truth]).statistic
    area = float(greater / (truth.sum() * (~truth).sum()))
    if area < TURNED:
        warnings.warn(
            "fit_threshold: pairs of one client are less alike than others: are similarities "
            "distances, or is `same` of other pairs?",
            MisfitWarning,
            stacklevel=4,
        )
    elif area < LEAST_AREA:
        warnings.warn(
            "fit_threshold: pairs of one client are no more alike than others, so that a threshold "
            "tells nothing; are identities those of these updates, in their order?",
            UncheckedWarning,
            stacklevel=4,
        )


@jax.jit
def _fit_threshold(similarities: Array, same: Array) -> Array:
    order = jnp.argsort(similarities)
    values, truth = similarities[order], same[order]
    right = jnp.cumsum(~truth) + truth.sum() - jnp.cumsum(truth)
    following = jnp.append(values[1:], jnp.inf)
    right = jnp.where(values < following, right, -1)  # equal pairs are judged alike
    best = jnp.argmax(right)
    between = jnp.where(
        jnp.isfinite(following[best]), (values[best] + following[best]) / 2, values[best]
    )
    threshold = jnp.where(right[best] >= truth.sum(), between, -jnp.inf)
    return jnp.where(jnp.isfinite(similarities).all(), threshold, jnp.nan)


@checked
def matching_accuracy(
    similarities: Num[Array, "pairs"], same: Bool[Array, "pairs"], threshold: Num[Array, ""]
) -> Num[Array, ""]:
    """How often pairs are judged rightly (Song 2020). A scalar; NaN if a similarity is not finite,
    or the threshold is NaN.

    Args:
      similarities: of pairs `[pairs]`.
      same: whether each is of one client `[pairs]`.
      threshold: above which they are taken for one client's; to come from the adversary's own
        federation (`fit_threshold`).

    Raises:
      ValueError: if there is not one truth per pair.
    """
    return _matching_accuracy(similarities, same, threshold)


@jax.jit
def _matching_accuracy(similarities: Array, same: Array, threshold: Array) -> Array:
    known = jnp.isfinite(similarities).all() & ~jnp.isnan(threshold)
    return jnp.where(known, ((similarities > threshold) == same).mean(), jnp.nan)


@checked
def link_precision(
    queries: Num[Array, "rounds participants d"],
    senders: Int[Array, "rounds participants"],
    galleries: Num[Array, "rounds gallery d"],
    gallery_senders: Int[Array, "rounds gallery"],
) -> Num[Array, ""]:
    """How often the nearest of a round's descriptors is of the same client (Song 2020's precision,
    rank 1). A scalar; NaN if a descriptor is not finite.

    Args:
      queries: descriptors of unit length `[rounds, participants, d]`.
      senders: whose they are, the truth `[rounds, participants]`.
      galleries: descriptors of unit length of what was sent the interval before each round
        `[rounds, gallery, d]`.
      gallery_senders: whose those are `[rounds, gallery]`.

    Raises:
      ValueError: if shapes do not go together, descriptors are of another length, or all
        galleries hold their own queries.
    """
    _check.at_least(0, senders=senders, gallery_senders=gallery_senders)
    check_unit(queries=queries, galleries=galleries)
    _check_two_intervals(queries, galleries)
    return _link_precision(queries, senders, galleries, gallery_senders)


def _check_two_intervals(queries: Any, galleries: Any) -> None:
    """Raise `ValueError` if all queries of all rounds stand in their galleries: each is nearest to
    itself. Descriptors of one number are 1 or -1, and stand there anyway."""
    if _check.is_unseen(queries, galleries) or np.shape(queries)[-1] == 1 or not np.size(queries):
        return
    for round_, gallery in zip(np.asarray(queries), np.asarray(galleries), strict=True):
        held = {row.tobytes() for row in gallery}
        if len(held) < len(gallery) or any(row.tobytes() not in held for row in round_):
            return
    raise ValueError(
        f"galleries of all {len(queries)} rounds hold all of the queries, of which each is nearest "
        "to itself; give what was sent the interval before"
    )


@jax.jit
def _link_precision(
    queries: Array, senders: Array, galleries: Array, gallery_senders: Array
) -> Array:
    def one(query: Array, sender: Array, gallery: Array, owners: Array) -> Array:
        return owners[similarity(query, gallery).argmax(1)] == sender

    finite = jnp.isfinite(queries).all() & jnp.isfinite(galleries).all()
    return jnp.where(
        finite, jax.vmap(one)(queries, senders, galleries, gallery_senders).mean(), jnp.nan
    )


@checked
def follow(
    descriptors: Num[Array, "rounds participants d"], *, votes: Count = 3, one_to_one: bool = False
) -> Int[Array, "rounds participants"]:
    """Name the senders of all rounds (Song 2020, Algorithm 2): each sample goes to the client whose
    last `votes` descriptors are most often the nearest; ties to the larger similarity. A round's
    samples are judged by what was there before it.

    Args:
      descriptors: of unit length `[rounds, participants, d]`; everyone takes part in every round.
      votes: K, how many descriptors of a client are kept (static).
      one_to_one: give every client one sample of each round, the sum of similarities being the
        largest (static).

    Returns:
      Names `[rounds, participants]`: places in the first round, whose order is arbitrary; -1 if a
        descriptor is not finite.

    Raises:
      ValueError: if `votes` is no positive integer, or descriptors have other axes or lengths.
    """
    check_unit(descriptors=descriptors)
    return _follow(descriptors, votes, one_to_one)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _follow(descriptors: Array, votes: int, one_to_one: bool) -> Array:
    participants = descriptors.shape[1]

    def round_(queues: Array, samples: Array) -> tuple[Array, Array]:
        alike = jax.vmap(lambda kept: similarity(samples, kept), in_axes=1, out_axes=-1)(
            queues
        )  # [samples, clients, votes]
        total = alike.mean(-1)
        if one_to_one:
            rows, columns = optax.assignment.hungarian_algorithm(-total)
            names = jnp.zeros(participants, columns.dtype).at[rows].set(columns)
        else:
            won = jax.nn.one_hot(alike.argmax(1), participants).sum(1)
            names = (won + total / 4).argmax(
                1
            )  # mean similarities lie in [-2, 0]: they decide among equal votes alone
        mine = jnp.where(
            names[None, :] == jnp.arange(participants)[:, None], total.T, -jnp.inf
        )  # [clients, samples]
        newest = samples[mine.argmax(1)]
        pushed = jnp.concatenate([queues[:, 1:], newest[:, None]], 1)
        return jnp.where(jnp.isfinite(mine.max(1))[:, None, None], pushed, queues), names

    queues = jnp.repeat(descriptors[0][:, None], votes, 1)
    _, names = jax.lax.scan(round_, queues, descriptors[1:])
    names = jnp.concatenate([jnp.arange(participants)[None], names])
    return jnp.where(jnp.isfinite(descriptors).all(), names, -1)


@checked
def follow_precision(
    names: Int[Array, "rounds participants"], senders: Int[Array, "rounds participants"]
) -> Num[Array, ""]:
    """How often a sample after the first round was given to the client that sent it. A scalar; NaN
    if no names were found.

    Args:
      names: from `follow` `[rounds, participants]`.
      senders: the truth, likewise.

    Raises:
      ValueError: if shapes differ, or not everyone sent once in each round.
    """
    _check.at_least(0, senders=senders)
    _check_everyone(senders)
    names = jnp.asarray(names)
    if not _check.is_unseen(names) and (np.asarray(names) >= names.shape[1]).any():
        raise ValueError(
            f"names holds {np.asarray(names).max()}; there are {names.shape[1]} places"
        )
    return _follow_precision(names, jnp.asarray(senders))


def _check_everyone(senders: Any) -> None:
    if _check.is_unseen(senders):
        return
    ordered = np.sort(np.asarray(senders), 1)
    for number, round_ in enumerate(ordered):
        if (round_ != ordered[0]).any() or (np.diff(round_) == 0).any():
            raise ValueError(
                f"senders[{number}] names the clients {round_.tolist()}; each must be there once "
                "in every round, as follow takes it (see cluster_updates)"
            )


@jax.jit
def _follow_precision(names: Array, senders: Array) -> Array:
    return jnp.where((names >= 0).all(), (senders[0][names[1:]] == senders[1:]).mean(), jnp.nan)
