"""Detectors of all rounds, the laws of their features, and what they see of sums (Kerkouche 2023,
5.2).

Threat model: as in `attacks.properties.detectors`.
"""

import warnings
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Int, Num

from attacks.fit import MisfitWarning
from attacks.properties.observations import Observations, check_known_of_features
from jaxfl import Aggregates, _check
from jaxfl.domains import checked

Array = jax.Array
OTHER_WAY = -0.5
"""Mean cosine between what a server subtracts from its model and a round's sum, below which the
sums have the other sign: the mean of updates gives 1, momentum and adaptive servers less."""
SAME_WAY, SAME_LENGTH = 0.999, 0.01
"""Least cosine and relative difference of lengths of the server's steps and sums that are one."""


@struct.dataclass
class Detectors:
    """One affine feature per round, `direction . pseudo_gradient + offset`, positive for updates
    with the property.

    Attributes:
      direction: `[rounds, parameters]`.
      offset: `[rounds]`.
      mean: of the feature without and with the property, on held-out shadows `[rounds, 2]`, and
        moved from the round that the detector is trained for to the round that uses it.
      variance: on held-out shadows `[rounds, 2]`.
      correlation: of one client's features between rounds, estimated from the detectors so far
        `[rounds]`.
      calibrated_on: held-out pairs.
      pool: number of disjoint clients that the calibrating records would make; shadows of all
        rounds are drawn from these.
      rate: fraction of clients that the adversary takes to have the property.
      detector_number: which detector a round uses `[rounds]`; several may share one, and the error
        of its calibration.
    """

    direction: Num[Array, "rounds parameters"]
    offset: Num[Array, "rounds"]
    mean: Num[Array, "rounds 2"]
    variance: Num[Array, "rounds 2"]
    correlation: Num[Array, "rounds"]
    calibrated_on: Num[Array, ""]
    pool: Num[Array, ""]
    rate: Num[Array, ""]
    detector_number: Int[Array, "rounds"]

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        check_known_of_features(name, self)
        _check.finite(**{f"{name}.direction": self.direction})


def repeat_correlation(features: Array) -> Array:
    """Correlation between rounds of the same clients' features, as estimated after each round
    `[rounds]`; in [0, 0.95].

    Products over squares of the same few clients, so that one unusual client does not decide. One
    round tells none: 0; the next estimates rest on few products, and are rough.

    Args:
      features: centred and of one scale `[rounds, clients]`.
    """
    squares = jnp.cumsum((features**2).sum(1))
    products = (jnp.cumsum(features, 0) ** 2).sum(1) - squares
    # Of a correlation of 1 nothing would be new in a round.
    return (
        jnp.clip(products / (jnp.maximum(jnp.arange(len(features)), 1) * squares), 0, 0.95)
        .at[0]
        .set(0)
    )


def overlap(mean: Array, variance: Array) -> np.ndarray:
    """Common area of the two classes' normal densities `[rounds]`, the paper's OVL, from `mean
    [rounds, 2]` and `variance [rounds, 2]`, positive. Host code."""
    classes = (
        map(NormalDist, m, d)
        for m, d in zip(np.asarray(mean).tolist(), np.sqrt(variance).tolist(), strict=True)
    )
    return np.asarray([without.overlap(with_) for without, with_ in classes])


@checked
def observe(aggregates: Aggregates, detectors: Detectors) -> Observations:
    """Features of the aggregates: of every round, the sum of its participants' (Kerkouche 2023, Eq.
    8).

    Warns:
      MisfitWarning: if the models that follow go the other way than the sums: these are probably
        `returned - received`; or if the models change by just what is called a sum of several
        clients: it is probably their mean, unless the server subtracts sums.

    Raises:
      ValueError: if rounds or parameters do not fit, two rounds have one sum (it is no news twice),
        or a sum of nobody is not 0.
    """
    for path, leaf in jax.tree.leaves_with_path(aggregates.pseudo_gradient):
        _check.finite(**{f"aggregates.pseudo_gradient{jax.tree_util.keystr(path)}": leaf})
    sums = jax.vmap(lambda tree: ravel_pytree(tree)[0])(aggregates.pseudo_gradient)
    if sums.shape != np.shape(detectors.direction):
        raise ValueError(
            f"detectors.direction has shape {np.shape(detectors.direction)}; the sums of "
            f"aggregates have {sums.shape}"
        )
    participation = jnp.asarray(aggregates.participation, sums.dtype)
    with jax.default_matmul_precision("highest"):
        features = (sums * detectors.direction).sum(1) + participation.sum(1) * detectors.offset
        # What every round's detector makes of every round's aggregate, without offsets: for
        # gradient disaggregation.
        cross = sums @ detectors.direction.T
    _check_of_someone(participation, sums)
    _check_no_copies(features, participation, sums)
    _warn_of_models(aggregates, sums)
    return Observations(
        features=features,
        participation=participation,
        mean=detectors.mean,
        variance=detectors.variance,
        correlation=detectors.correlation,
        calibrated_on=detectors.calibrated_on,
        pool=detectors.pool,
        cross=cross,
        offset=detectors.offset,
        rate=detectors.rate,
        detector_number=detectors.detector_number,
        rounds=aggregates.rounds,
        clients_per_round=aggregates.clients_per_round,
    )


def _warn_of_models(aggregates: Aggregates, sums: Array) -> None:
    """Warn if models of later rounds lie where sums `[rounds, parameters]` of the other sign lead:
    their law is then that of the clients without the property; or just where the sums lead, as
    means do, which are too small for any client's part."""
    if _check.is_unseen((aggregates, sums)):
        return
    steps, seen, taken = _followed(aggregates, sums)
    # Squares of what diverges leave the range of 32 bits; what has diverged says nothing.
    with np.errstate(invalid="ignore"):
        step_lengths, lengths = (np.linalg.norm(each, axis=1) for each in (steps, seen))
        cosines = (steps * seen).sum(1) / np.maximum(step_lengths * lengths, 1e-300)
    moved = (step_lengths * lengths > 0) & np.isfinite(step_lengths * lengths)
    if not moved.any():
        return
    if cosines[moved].mean() < OTHER_WAY:
        _warn(
            f"the models that follow lie against the sums (mean cosine {cosines[moved].mean():.2f})"
            ": aggregates.pseudo_gradient must be sums of received - returned, not of returned - "
            "received"
        )
    several = moved & (taken > 1)
    alike = np.abs(lengths[several] / step_lengths[several] - 1) < SAME_LENGTH
    if several.any() and (alike & (cosines[several] > SAME_WAY)).all():
        _warn(
            "the models that follow differ by just what aggregates.pseudo_gradient holds, though "
            "several clients took part: are these means? Attacks take sums; multiply by the number "
            "of participants, unless the server itself subtracts sums"
        )


def _followed(aggregates: Aggregates, sums: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By what the server's models change in rounds of which the next one is there, the sums of
    these `[rounds, parameters]`, and how many took part `[rounds]`."""
    rounds = np.asarray(aggregates.rounds)
    before, order = np.flatnonzero(np.isin(rounds + 1, rounds)), np.argsort(rounds)
    after = order[np.searchsorted(rounds[order], rounds[before] + 1)]
    flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])(aggregates.received)
    models, taken = np.asarray(flat, np.float64), np.asarray(aggregates.participation).sum(1)
    with np.errstate(invalid="ignore"):
        steps = models[before] - models[after]
    return steps, np.asarray(sums, np.float64)[before], taken[before]


def _warn(text: str) -> None:
    warnings.warn(f"observe: {text}", MisfitWarning, stacklevel=5)


def _check_of_someone(participation: Array, sums: Array) -> None:
    """Raise `ValueError` if a round in which nobody took part has a sum."""
    if _check.is_unseen((participation, sums)):
        return
    odd = ~np.asarray(participation).any(1) & np.asarray(sums).any(1)
    if odd.any():
        raise ValueError(
            f"aggregates.participation names nobody at the place {int(odd.argmax())}, whose sum is "
            "not 0: give who took part"
        )


def _check_no_copies(features: Array, participation: Array, sums: Array) -> None:
    """Raise `ValueError` if two rounds have the same participants and the same sum, which is not
    0."""
    if _check.is_unseen((features, participation, sums)):
        return
    rows = np.column_stack([np.asarray(features), np.asarray(participation)])
    _, first, place = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    for later, earlier in enumerate(first[place.ravel()]):
        if later != earlier and sums[later].any() and (sums[earlier] == sums[later]).all():
            raise ValueError(
                f"aggregates hold one sum twice, at the places {earlier} and {later}: give each "
                "round once"
            )
