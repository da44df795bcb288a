"""Which of two data sets is a client's, told by a sum of updates (membership inference, MIA, behind
secure aggregation).

Threat model: an honest-but-curious server that sees the model of a round and the sum of its
participants' updates, and knows how many took part. It has records of its own, dealt to clients
like the participants, and two data sets, of which one is a participant's: with a record in question
or without, or this client's and another's.

To the sum, the others' updates are noise. Many of them are nearly normal together, so that a sum is
a Gaussian mechanism for what one client sends (Ngo et al., Secure Aggregation is Not Private
Against Membership Inference Attacks, ECML PKDD 2024): what it tells of two
updates is their distance in the metric of that noise, which grows with the number of parameters.
"""

import dataclasses
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Int, Num

from attacks.fit import FALSE_ALARMS, MisfitWarning, Status, chi_square_deviations
from jaxfl import Aggregates, ClientData, LocalTraining, Model, _check, client_round
from jaxfl.clients import check_records_of_one
from jaxfl.domains import Count, Key, NotNegative, checked
from jaxfl.models import check_parameters
from jaxfl.parallel import map_clients, strategy_here
from jaxfl.training import in_arrays

Array = jax.Array
ROUNDED = 1e-6
"""Part of a covariance's largest number that float32 leaves where the covariance is 0."""
FAR = 4.0
"""Deviations beyond which a sum is of neither data set: a normal number exceeds them once in 16,000
rounds."""
FAR_TOGETHER = float(scipy.stats.norm.ppf(1 - FALSE_ALARMS / 4))
"""The same of what the sums of all rounds leave on average, in two ways, on either side. How far
these sums depend on each other is not known: the average of normal numbers varies no more than one
of them."""
LEAST = 20
"""Clients of the server's own: half make a direction, and half have a variance, which of fewer is
no estimate."""


@struct.dataclass
class SumTest:
    """Settings of `distinguish_in_sums`.

    Attributes:
      ridge: added to the covariance of the server's own clients' updates, in units of the mean of
        its eigenvalues that are not 0; at least what float32 leaves. A large one (1e6) compares
        updates as if all their numbers were independent and varied alike.
      draws: how often a data set's update is simulated for the direction, and as often for what is
        compared, of which the mean counts: batches and noise vary it (static). Of one draw it is
        not known by how much.
    """

    ridge: NotNegative = 0.1
    draws: Count = struct.field(pytree_node=False, default=4)


@struct.dataclass
class SumsTold:
    """What each sum tells.

    Attributes:
      log_ratio: logarithm of the likelihood of the second data set against the first `[rounds]`;
        above 0 where the sum speaks for the second.
      mu: how far apart both are, in deviations of the sum's noise `[rounds]`: the `mu` of Gaussian
        differential privacy for these two. The likelier one is the right one in Phi(mu / 2) of
        rounds.
      status: a `Status` `[rounds]`: FAILED where numbers are not finite; MISFIT where the sum is
        `FAR` from what either data set allows, or all rounds' sums are on average
        `FAR_TOGETHER`, in length or along the update that clients send on average: they are not
        of this model, recipe or number of participants, or the others are not like the server's
        own.
    """

    log_ratio: Num[Array, "rounds"]
    mu: Num[Array, "rounds"]
    status: Int[Array, "rounds"]


@checked
def distinguish_in_sums(
    model: Model,
    aggregates: Aggregates,
    candidates: ClientData,
    others: ClientData,
    key: Key,
    *,
    training: LocalTraining,
    settings: SumTest | None = None,
) -> SumsTold:
    """Which of two data sets a participant trained on, by the sum of each round (Ngo et al. 2024).
    The ratio is each round's alone: the same others in several rounds are no fresh noise.

    Half of the server's own clients say in which direction the two are to be compared, the
    discriminant `(C + ridge)^-1 (u_2 - u_1)` of their covariance C; the other half say how the
    others' sum varies along it, and what it is on average. So the noise is never estimated on the
    clients to which a direction was fitted, in more parameters than there are clients. Nor are the
    two compared on the draws of batches and noise to which it was fitted. Means and variances are
    taken for true, but for the error of the others' mean.

    Args:
      model: the model (static).
      aggregates: sums of the rounds in which the client took part.
      candidates: the two data sets `[2, records, ...]`, or two for each round `[rounds, 2, records,
        ...]`.
      others: clients of the server's own, like those that took part `[clients, records, ...]`; at
        least 20.
      key: draws halves, and what clients draw.
      training: the clients' recipe, its plug-ins included; those of a federation are not simulated.
      settings: see `SumTest`.

    Warns:
      MisfitWarning: if sums of some rounds are of neither data set.

    Raises:
      ValueError: if `candidates` are not two, `others` fewer than 20, one has no record, data
        do not fit the model, or a round has a single participant: its sum is a message.
    """
    settings = settings or SumTest()
    check_parameters(model, aggregates.received, "aggregates.received", 1)
    check_parameters(model, aggregates.pseudo_gradient, "aggregates.pseudo_gradient", 1)
    first = jax.tree.map(lambda a: a[0], aggregates.received)
    _check_clients(model, first, candidates, others, len(aggregates.rounds))
    taken = aggregates.participation.sum(1)
    if not _check.is_unseen(taken) and (taken < 2).any():
        raise ValueError(
            f"aggregates.participation: a round has {int(taken.min())} participants; a sum of one "
            "is its message (see decode_sources)"
        )
    training, settings = in_arrays(training), jax.tree.map(jnp.asarray, settings)
    told, surprises = _distinguish(model, aggregates, candidates, others, key, training, settings)
    told = told.replace(status=_judged(told.status, surprises))
    _warn_of_misfits(told.status)
    return told


def _check_clients(
    model: Model, params: Any, candidates: ClientData, others: ClientData, rounds: int
) -> None:
    *leading, _ = candidates.mask.shape
    if leading not in ([2], [rounds, 2]):
        raise ValueError(
            f"candidates.mask has shape {candidates.mask.shape}; it must be [2, records] or "
            f"[{rounds} rounds, 2, records]"
        )
    *leading, _ = others.mask.shape
    if len(leading) != 1 or leading[0] < LEAST:
        raise ValueError(
            f"others.mask has shape {others.mask.shape}; it must be [clients, records], of at "
            f"least {LEAST} clients"
        )
    for name, data in (("candidates", candidates), ("others", others)):
        axes = data.mask.ndim
        x, y, mask = (a.reshape(-1, *a.shape[axes:]) for a in (data.x, data.y, data.mask))
        if not _check.is_unseen(data.mask) and not np.asarray(data.mask).any(-1).all():
            raise ValueError(f"{name}.mask has a client without records")
        together = ClientData(x, y, mask, jnp.asarray(0))
        check_records_of_one(model, params, together, name)


def _warn_of_misfits(status: Array) -> None:
    misfits = 0 if _check.is_unseen(status) else int((status == Status.MISFIT).sum())
    if misfits:
        warnings.warn(
            f"distinguish_in_sums: sums of {misfits} of {len(status)} rounds are of neither data "
            "set: the sums, the model, the recipe, the number of participants or the server's own "
            "clients are not what was told; what is told of these rounds means nothing",
            MisfitWarning,
            stacklevel=4,
        )


def _judged(status: Array, surprises: Array) -> Array:
    """Status of each round by how far the sums are from either data set `[rounds, 2]`."""
    finite = status == Status.OK
    # One round that is far off says nothing of the others.
    near = jnp.clip(surprises, -FAR, FAR)
    together = jnp.abs(near.mean(0, where=finite[:, None])) > FAR_TOGETHER
    misfit = (jnp.abs(surprises) > FAR).any(1) | together.any()
    return jnp.where(finite & misfit, Status.MISFIT, status)


@functools.partial(jax.jit, static_argnames="model")
def _distinguish(
    model: Model,
    aggregates: Aggregates,
    candidates: ClientData,
    others: ClientData,
    key: Array,
    training: LocalTraining,
    settings: SumTest,
) -> tuple[SumsTold, Array]:
    """What is told, FAILED or OK, and the surprises of each round `[rounds, 2]`."""
    order_key, own_key, drawn_key = jax.random.split(key, 3)
    clients = len(others.mask)
    order = jax.random.permutation(order_key, clients)
    keys = jax.random.split(own_key, clients)
    fitting_keys, drawn_keys = jax.random.split(drawn_key, (2, 2, settings.draws))

    def of_round(known: tuple[Any, Any, Array, ClientData]) -> tuple[SumsTold, Array]:
        received, total, taken, two = known

        def sent(arguments: tuple[ClientData, Array]) -> Array:
            data, key = arguments
            returned = client_round(model, received, data, key, training)
            return ravel_pytree(jax.tree.map(jnp.subtract, received, returned))[0]

        def sent_by_two(data: ClientData, keys: Array) -> Array:
            return jax.vmap(lambda key: sent((data, key)))(keys)

        fitting, judging = jnp.split(
            map_clients(sent, (others, keys), strategy_here())[order], [clients // 2]
        )
        pair = jax.vmap(sent_by_two)(two, drawn_keys)  # [2, draws, parameters]
        first, second = jax.vmap(sent_by_two)(two, fitting_keys).mean(1)
        direction = _discriminant(fitting, second - first, settings.ridge)
        beside = _Beside(judging, taken - 1)
        seen = ravel_pytree(total)[0]
        log_ratio, mu = _compared(beside.along(direction), pair @ direction, seen @ direction)
        usual = _discriminant(fitting, fitting.mean(0), settings.ridge)
        surprises = (
            beside.surprise(pair, seen),
            beside.along(usual).departure(pair @ usual, seen @ usual),
        )
        finite = jnp.isfinite(log_ratio) & jnp.isfinite(mu)
        status = jnp.where(finite, Status.OK, Status.FAILED)
        log_ratio, mu = (jnp.where(finite, a, jnp.nan) for a in (log_ratio, mu))
        return SumsTold(log_ratio, mu, status.astype(int)), jnp.stack(surprises)

    taken = aggregates.participation.sum(1)
    if candidates.mask.ndim == 2:
        each = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(taken), *a.shape)), candidates)
    else:
        each = candidates
    return jax.lax.map(of_round, (aggregates.received, aggregates.pseudo_gradient, taken, each))


def _discriminant(updates: Array, difference: Array, ridge: float | Array) -> Array:
    """`(C + r I)^-1 difference`, up to a factor, for the covariance C of updates
    `[clients, parameters]`."""
    unit = jnp.maximum(jnp.abs(updates).max(), jnp.finfo(updates.dtype).tiny)
    centred = (updates - updates.mean(0)) / unit
    products = centred @ centred.T
    values = min(len(updates) - 1, updates.shape[1])
    added = jnp.maximum(ridge * jnp.trace(products) / values, ROUNDED * products.max())
    inner = jnp.eye(len(updates)) + products / added
    pull = jax.scipy.linalg.solve(inner, centred @ difference, assume_a="pos")
    return difference - centred.T @ pull / added


@dataclasses.dataclass(frozen=True)
class _Beside:
    """Those who are in a sum beside the client, as the server's own clients are.

    Attributes:
      updates: of the server's own clients, in all directions `[clients, parameters]` or along one
        `[clients]`.
      count: how many are beside the client.
    """

    updates: Array
    count: Array

    def along(self, direction: Array) -> "_Beside":
        return _Beside(self.updates @ direction, self.count)

    @property
    def mean(self) -> Array:
        """Mean of the others' sum."""
        return self.count * self.updates.mean(0)

    @property
    def factor(self) -> Array:
        """What their sum's variance is in units of a client's, its mean being an estimate."""
        return self.count * (1 + self.count / len(self.updates))

    @property
    def variance(self) -> Array:
        """Variance of the others' sum along one direction."""
        return self.factor * self.updates.var(0, ddof=1)

    def departure(self, pair: Array, total: Array) -> Array:
        """By how many deviations a sum `[]` departs along one direction from what is likely for
        it, with the data set `[2, draws]` that explains it better: Student's t, of which Wallace
        (1959) makes a nearly normal number."""
        draws, freedom = pair.shape[1], len(self.updates) - 1
        drawn = pair.var(1, ddof=1).mean() * (1 + 1 / draws) if draws > 1 else 0.0
        left = total - self.mean - pair.mean(1)
        left = left[jnp.argmin(jnp.abs(left))]
        least = jnp.finfo(total.dtype).tiny
        t_squared = jnp.square(left) / jnp.maximum(self.variance + drawn, least)
        length = jnp.sqrt(freedom * jnp.log1p(t_squared / freedom))
        return jnp.sign(left) * length * (8 * freedom + 1) / (8 * freedom + 3)

    def surprise(self, pair: Array, total: Array) -> Array:
        """In how many deviations a sum `[parameters]` leaves what is likely for it, with the data
        set `[2, draws, parameters]` that explains it better: its squared distance from the mean is
        nearly a chi-square of as many degrees of freedom as the others' covariance has
        (Satterthwaite)."""
        centred = self.updates - self.updates.mean(0)
        unit = jnp.maximum(jnp.abs(centred).max(), jnp.finfo(centred.dtype).tiny)
        products = (centred / unit) @ (centred / unit).T
        freedom = jnp.trace(products) ** 2 / (products**2).sum()
        spread = self.factor * jnp.trace(products) / (len(centred) - 1)
        residuals, draws = (pair - pair.mean(1, keepdims=True)) / unit, pair.shape[1]
        spread += (residuals**2).sum() / 2 / max(draws - 1, 1) * (1 + 1 / draws)
        left = ((total - self.mean - pair.mean(1)) / unit) ** 2
        return chi_square_deviations(left.sum(-1).min() / spread, freedom)


def _compared(beside: _Beside, pair: Array, total: Array) -> tuple[Array, Array]:
    """Log-likelihood ratio and `mu` of one round, along one direction: both data sets' updates `[2,
    draws]` and the sum `[]`."""
    draws = pair.shape[1]
    variance = pair.var(1, ddof=1).mean() * (1 + 1 / draws) if draws > 1 else 0.0
    first, second = pair.mean(1)
    gap = second - first
    noise = jnp.where(gap == 0, 1.0, beside.variance + variance)
    log_ratio = gap * (total - beside.mean - (first + second) / 2) / noise
    return log_ratio, jnp.maximum(gap, 0) / jnp.sqrt(noise)
