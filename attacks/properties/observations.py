"""What a server sees of sums over clients, and what these determine at all (Kerkouche 2023, section
4).

Threat model: as in `attacks.properties.detectors`: a server behind secure aggregation that knows
who took part in each round.

What the server sees of a round is the sum over its participants. Over many rounds with different
participants these sums are a linear system in what each client contributes, `b = A x + e`. All
functions answer for several numbers of observed rounds at once: the rounds before each entry of
`seen`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Int, Num

from jaxfl import _check
from jaxfl.domains import Count, Fraction, check, checked

Array = jax.Array


@struct.dataclass
class Observations:
    """Features of the observed aggregates, and what is known of such features
    (`attacks.properties.detector_laws.observe`).

    Attributes:
      features: sum of the participants' features `[rounds]`, the paper's b.
      participation: 1 (or True) for who took part `[rounds, clients]`, the paper's A.
      mean: of one client's feature, without and with the property `[rounds, 2]`.
      variance: likewise `[rounds, 2]`.
      correlation: of one client's features between rounds, as estimated after each `[rounds]`;
        decoders use the last.
      calibrated_on: shadow pairs behind `mean` and `variance` `[]`.
      pool: number of disjoint clients that the calibrating records would make; shadows of all
        rounds are drawn from these `[]`.
      cross: round j's detector, without offset, on round i's aggregate `[rounds i, rounds j]`.
      offset: of the detectors `[rounds]`.
      rate: fraction of clients that the adversary takes to have the property `[]`.
      detector_number: which detector a round's feature is by; several rounds may share one
        `[rounds]`.
      rounds: 0-based round numbers `[rounds]`.
      clients_per_round: no round has more participants; None if that is not known (static).
    """

    features: Num[Array, "rounds"]
    participation: Num[Array, "rounds clients"]
    mean: Num[Array, "rounds 2"]
    variance: Num[Array, "rounds 2"]
    correlation: Num[Array, "rounds"]
    calibrated_on: Num[Array, ""]
    pool: Num[Array, ""]
    cross: Num[Array, "rounds rounds"]
    offset: Num[Array, "rounds"]
    rate: Num[Array, ""]
    detector_number: Int[Array, "rounds"]
    rounds: Int[Array, "rounds"]
    clients_per_round: Count | None = struct.field(pytree_node=False, default=None)

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`. Features of rounds that nobody looks at may be anything."""
        _check.at_least(0, **{f"{name}.rounds": self.rounds})
        _check.different(**{f"{name}.rounds": self.rounds})
        _check.zeros_or_ones(**{f"{name}.participation": self.participation})
        self._check_participants(name)

    def _check_participants(self, name: str) -> None:
        """Raise `ValueError` where more clients took part in a round than may."""
        if self.clients_per_round is None:
            return
        seen, clients = not _check.is_unseen(self.participation), self.participation.shape[1]
        least = int(np.asarray(self.participation).sum(1).max(initial=1)) if seen else 1
        if not least <= self.clients_per_round <= clients:
            raise ValueError(
                f"{name}.clients_per_round={self.clients_per_round} must lie between the {least} "
                f"who took part in one round and the {clients} clients of {name}.participation"
            )


def check_known_of_features(name: str, known: Any, rounds: int | None = None) -> None:
    """Raise `ValueError` unless means, variances, correlations, offsets and rates of features are
    such, in so many of the rounds of `Observations` or detectors (all by default)."""
    check(f"{name}.rate", known.rate, Fraction)
    for field, holds, must in (
        ("mean", np.isfinite, "finite"),
        ("offset", np.isfinite, "finite"),
        ("variance", lambda v: (v > 0) & np.isfinite(v), "positive and finite"),
        ("correlation", lambda v: np.abs(v) <= 1, "between -1 and 1"),
        ("pool", lambda v: v > 0, "positive"),
        ("calibrated_on", lambda v: v >= 1, "at least 1"),
        ("detector_number", lambda v: v >= 0, "at least 0"),
    ):
        value = getattr(known, field)
        if not _check.is_unseen(value):
            seen = np.asarray(value)[:rounds] if np.ndim(value) else np.asarray(value)
            if not holds(seen).all():
                raise ValueError(f"{name}.{field} must be {must}; it holds {seen[~holds(seen)][0]}")


def check_observed(observations: Observations, seen: Any) -> Array:
    """`seen` as an array. Raises `ValueError` unless it is numbers of observed rounds `[prefixes]`,
    in which all that is known is finite."""
    seen = check_seen(seen, len(observations.features))
    if not _check.is_unseen(seen):
        rounds = int(np.asarray(seen).max())
        check_known_of_features("observations", observations, rounds)
        for field, value in (("features", observations.features), ("cross", observations.cross)):
            if not _check.is_unseen(value):
                used = np.asarray(value)[(slice(rounds),) * np.ndim(value)]
                _check.finite(**{f"observations.{field}": used})
    return seen


def check_seen(seen: Any, rounds: int) -> Array:
    """`seen` as an array. Raises `ValueError` unless it is integers `[prefixes]` from 0 to so many
    rounds."""
    if not _check.is_unseen(seen):
        values = np.asarray(seen)
        if (values < 0).any() or (values > rounds).any():
            raise ValueError(f"seen={values.tolist()} must be integers from 0 to {rounds} rounds")
    return jnp.asarray(seen)


def check_weights(weights: Any, rounds: int) -> None:
    """Raise `ValueError` unless rounds have finite weights of at least 0 `[rounds]`."""
    _check.shape((rounds,), weights=weights)
    _check.finite(weights=weights)
    _check.at_least(0, weights=weights)


def prefix(rounds: int, seen: Array) -> Array:
    """Which of the rounds are before `seen []`: `[rounds]`."""
    return jnp.arange(rounds) < seen


def until(observations: Observations, seen: Array) -> Observations:
    """The first rounds alone: in the others nobody takes part, and what was observed there, be it
    NaN, is gone; the correlation is the one estimated after the last that is kept. Participation
    gets the dtype of the features.

    Args:
      observations: see there.
      seen: how many rounds are kept `[]`.
    """
    inside = prefix(len(observations.features), seen)

    def kept(values: Array, otherwise: float = 0.0) -> Array:
        mask = inside.reshape(-1, *[1] * (jnp.ndim(values) - 1))
        return jnp.where(mask, jnp.asarray(values, observations.features.dtype), otherwise)

    return dataclasses.replace(
        observations,
        features=kept(observations.features),
        participation=kept(observations.participation),
        mean=kept(observations.mean),
        variance=kept(observations.variance, 1.0),
        correlation=jnp.where(
            inside,
            observations.correlation,
            jnp.where(seen > 0, observations.correlation[seen - 1], 0),
        ),
        cross=kept(kept(observations.cross).T).T,
        offset=kept(observations.offset),
    )


@struct.dataclass
class Identifiability:
    """What sums determine of each client's contribution.

    Attributes:
      rank: of the participation matrix `[prefixes]`.
      resolved: whether a client's contribution is determined by the sums at all `[prefixes,
      clients]`.
      variance: of its least-squares estimate, in units of one sum's `[prefixes, clients]`; infinite
      where not resolved.
    """

    rank: Array
    resolved: Array
    variance: Array


@checked
def identifiability(
    participation: Num[Array, "rounds clients"],
    seen: Int[Array, "prefixes"],
    tolerance: Fraction = 1e-3,
) -> Identifiability:
    """What the participation matrix `[rounds, clients]` lets anyone tell apart, whatever the
    method.

    Clients that only ever take part together (fixed cohorts: So et al. 2023) cannot be resolved.

    Args:
      participation: with what weight each client took part `[rounds, clients]`.
      seen: after how many rounds `[prefixes]`.
      tolerance: how far a client's entry in the diagonal of pinv(P) P, P being participation with
        columns of unit length, may lie below 1 for its contribution to count as determined.

    Raises:
      ValueError: if participation has other axes or is not finite, `seen` exceeds its rounds, or
        the tolerance does not lie between 0 and 1.
    """
    _check.shape((None, None), participation=participation)
    _check.finite(participation=participation)
    seen = check_seen(seen, len(participation))
    return _identifiability(jnp.asarray(participation), seen, tolerance)


@jax.jit
def _identifiability(
    participation: Array, seen: Array, tolerance: float | Array
) -> Identifiability:
    participation = jnp.asarray(participation, jnp.result_type(float))

    def one(t: Array) -> tuple[Array, Array, Array]:
        inside = participation * prefix(len(participation), t)[:, None]
        # Nothing that is told of a client depends on its unit, and digits go further in a fair one.
        lengths = jnp.linalg.norm(inside, axis=0)
        lengths = jnp.where(lengths > 0, lengths, 1)
        inverse = jnp.linalg.pinv(inside / lengths)
        diagonal = jnp.diag(inverse @ (inside / lengths))
        resolved = diagonal > 1 - tolerance
        variance = jnp.where(resolved, (inverse**2).sum(1) / lengths**2, jnp.inf)
        return jnp.round(diagonal.sum()).astype(int), resolved, variance

    with jax.default_matmul_precision("highest"):
        return Identifiability(*jax.vmap(one)(seen))
