"""PROLIN: which clients have a property, by the paper's relaxed maximum likelihood (Kerkouche 2023,
5.2.4 and appendix A).

Threat model: as in `attacks.properties.detectors`. Unknown are everyone's feature in every round he
took part in, and p, the probability that he has the property. Features of those who did not take
part appear in no loss.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Int, Num

from attacks.properties.best_in_box import ITERATIONS, boxes
from attacks.properties.exchanges import warn_of_exchanged_rounds
from attacks.properties.least_squares import ridge
from attacks.properties.observations import (
    Observations,
    check_observed,
    check_weights,
    prefix,
    until,
)
from attacks.properties.surprise import warn_of_surprise
from jaxfl import _check
from jaxfl.domains import Count, Key, NotNegative, Positive, checked

Array = jax.Array
Objective = Literal["paper", "code"]
PROGRESS = 1e-5
"""By which the sum of three losses of order 1 has to fall, or a step is idle."""
MEAN, SQUARE, LEAST_DEVIATION = 0.9, 0.999, 1e-8
"""Decay of Adam's moments and the least divisor (Kingma and Ba 2015); MTAdam's norms decay as the
first (Malkiel and Wolf 2021)."""
NO_SLOPE = 1e-10
"""A loss of a smaller gradient is not scaled to the first one's: nothing pulls there."""
LEAST_P = 0.01
"""The least probability inside the paper's logarithm, whose slope is then 1 / LEAST_P at most. At 0
it would have no finite slope, and MTAdam's second moments would never let p move again.
On synthetic sums .001, .03 and .1 give F1 of the same size."""


@struct.dataclass
class Prolin:
    """Settings of `prolin`.

    Attributes:
      objective: "paper", a client's features are all of one law or all of the other, log
        likelihood; or "code", the authors': every feature is a mixture of its own, log(1 + density)
        (static).
      penalty: of the ridge estimate that the second constraint refers to, the paper's lambda.
      learning_rate: of MTAdam.
      iterations: at most (static).
      patience: it stops after so many iterations without progress (static).
    """

    objective: Objective = struct.field(pytree_node=False, default="code")
    penalty: NotNegative = 5.0
    learning_rate: Positive = 1e-3
    iterations: Count = struct.field(pytree_node=False, default=200_000)
    patience: Count = struct.field(pytree_node=False, default=100)


@struct.dataclass
class ProlinAnswer:
    """The answer of `prolin`.

    Attributes:
      p: probability of the property `[prefixes, clients]`, the assumed rate of a client that took
        part in none of the rounds; NaN if the losses were never finite, or more clients took part
        in a round than `Observations.clients_per_round`.
      iterations: used `[prefixes]`.
      losses: L1, L2, L3 at the answer `[prefixes, 3]`.
    """

    p: Array
    iterations: Array
    losses: Array


@checked
def prolin(
    observations: Observations,
    seen: Int[Array, "prefixes"],
    weights: Num[Array, "rounds"],
    key: Key,
    *,
    settings: Prolin | None = None,
) -> ProlinAnswer:
    """Everyone's features and p, by three balanced losses.

    L1 is minus the likelihood of features x and p; L2 asks that a round's features add up to what
    was seen; L3 that a client's mean feature is the ridge estimate's. MTAdam (Malkiel, Wolf 2021)
    scales their gradients to a common norm.

    Args:
      observations: see there. Time and memory grow with its `clients_per_round`, or with the number
        of clients if that is None.
      seen: how many rounds are used `[prefixes]`.
      weights: of the rounds `[rounds]`, 1 - OVL.
      key: where x and p start, uniform in [0, 1].
      settings: see `Prolin`.

    Warns:
      MisfitWarning: if the sums contradict any answer, by the p of `box` (`attacks.surprise`); this
        one need not explain them as well. And where it is sure of a client, as `box`.

    Raises:
      ValueError: as `ridge`; if a setting is out of range, `observations.clients_per_round` exceeds
        the clients, or more clients than that took part in a round (where participation is traced,
        p is NaN instead).
    """
    settings = settings or Prolin()
    seen = check_observed(observations, seen)
    check_weights(weights, len(observations.features))
    answer = _prolin(observations, seen, jnp.asarray(weights), key, settings)
    if not _check.is_unseen((observations, seen)):
        # Its own p need not explain the sums: three losses are balanced.
        warn_of_surprise("prolin", observations, seen, boxes(observations, seen, ITERATIONS))
        warn_of_exchanged_rounds("prolin", observations, seen, answer.p)
    return answer


@jax.jit
def _prolin(
    observations: Observations, seen: Array, weights: Array, key: Array, settings: Prolin
) -> ProlinAnswer:
    targets = ridge(observations, seen, weights, settings.penalty)
    participation = observations.participation

    def one(arguments: tuple[Array, Array, Array]) -> ProlinAnswer:
        t, targets, key = arguments
        known = until(observations, t)
        there, who = jax.lax.top_k(
            known.participation, observations.clients_per_round or participation.shape[1]
        )
        counted = jnp.where(prefix(len(weights), t), weights, 0)
        rounds = _Rounds(who, there, known.features, known.mean, known.variance, counted, targets)
        x_key, p_key = jax.random.split(key)
        x = jax.random.uniform(x_key, participation.shape, known.features.dtype)
        x = jnp.where((there.sum(1) == known.participation.sum(1)).all(), x, jnp.nan)
        p = jax.random.uniform(p_key, participation.shape[1:], known.features.dtype)
        answer = _descend(rounds, (jnp.take_along_axis(x, who, 1), p), settings)
        # Nothing pulls at the p of who never took part: it would stay where it was drawn.
        absent = (known.participation == 0).all(0) & jnp.isfinite(answer.p)
        return dataclasses.replace(answer, p=jnp.where(absent, known.rate, answer.p))

    return jax.lax.map(one, (seen, targets, jax.random.split(key, len(seen))))


class _Rounds(NamedTuple):
    """What losses are made of.

    Attributes:
      who: clients that take part `[rounds, clients per round]`.
      there: 1, or 0 where there are fewer `[rounds, clients per round]`.
      sums: of features `[rounds]`.
      mean, variance: of features without and with the property `[rounds, 2]`.
      weights: of the rounds `[rounds]`.
      targets: mean feature of each client `[clients]`.
    """

    who: Array
    there: Array
    sums: Array
    mean: Array
    variance: Array
    weights: Array
    targets: Array

    def of_clients(self, features: Array) -> Array:
        """Sums `[clients]` of features `[rounds, clients per round]`."""
        return jnp.zeros_like(self.targets).at[self.who].add(features)

    def log_density(self, x: Array, law: int) -> Array:
        """Log density of features `[rounds, clients per round]`, without (0) or with (1) the
        property."""
        return jax.scipy.stats.norm.logpdf(
            x, self.mean[:, law, None], jnp.sqrt(self.variance[:, law, None])
        )


def _likelihood_loss(x: Array, p: Array, rounds: _Rounds, objective: Objective) -> Array:
    """L1: minus the log likelihood of all features x under p, of the paper (5.2, and Appendix A on
    mixtures of a client's features) or of its code."""
    without, with_ = rounds.log_density(x, 0), rounds.log_density(x, 1)
    if objective == "code":
        each = p[rounds.who]
        return -jnp.log1p(
            rounds.there * (each * jnp.exp(with_) + (1 - each) * jnp.exp(without))
        ).sum()
    mixed = [
        jnp.log(q) + rounds.of_clients(rounds.there * law)
        for q, law in ((_inner(p), with_), (_inner(1 - p), without))
    ]
    return -jnp.logaddexp(*mixed).sum()


def _inner(p: Array) -> Array:
    """p between `LEAST_P` and 1 - `LEAST_P`."""
    return LEAST_P + (1 - 2 * LEAST_P) * p


def _sum_loss(x: Array, rounds: _Rounds) -> Array:
    """L2: the first constraint of 5.2, features of a round add up to what its sum says."""
    return (rounds.weights * (rounds.sums - (rounds.there * x).sum(1)) ** 2).sum()


def _mean_loss(x: Array, rounds: _Rounds) -> Array:
    """L3: the second constraint of 5.2, a client's features have the mean of its ridge estimate
    (Eq. 10)."""
    return (rounds.of_clients(rounds.there * (x - rounds.targets[rounds.who])) ** 2).sum()


def _losses(
    free: tuple[Array, Array], rounds: _Rounds, objective: Objective
) -> tuple[Array, tuple[Array, Array]]:
    """L1, L2, L3 `[3]`, and their gradients `[3, ...]` for features and p, which is in the first
    alone."""
    x, p = free
    first, (x_first, p_first) = jax.value_and_grad(_likelihood_loss, (0, 1))(
        x, p, rounds, objective
    )
    second, x_second = jax.value_and_grad(_sum_loss)(x, rounds)
    third, x_third = jax.value_and_grad(_mean_loss)(x, rounds)
    none = jnp.zeros_like(p)
    return jnp.stack([first, second, third]), (
        jnp.stack([x_first, x_second, x_third]),
        jnp.stack([p_first, none, none]),
    )


class _State(NamedTuple):
    free: tuple[Array, Array]
    moments: tuple[Any, ...]
    step: Array
    idle: Array
    least: Array
    best: Array
    losses: Array


def _descend(rounds: _Rounds, free: tuple[Array, Array], settings: Prolin) -> ProlinAnswer:
    """From features and p `free` until there is no progress; p where the sum of losses
    was least."""

    def go_on(state: _State) -> Array:
        return (state.step < settings.iterations) & (state.idle < settings.patience)

    def step(state: _State) -> _State:
        now, slopes = _losses(state.free, rounds, settings.objective)
        total = now.sum()
        better = total < state.least - PROGRESS
        # A loss that is not finite yet (features far from both laws) pulls nowhere.
        slopes = jax.tree.map(lambda g: jnp.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0), slopes)
        (x, x_moments), (p, p_moments) = (
            _mtadam(u, g, m, state.step + 1, settings.learning_rate)
            for u, g, m in zip(state.free, slopes, state.moments, strict=True)
        )
        return _State(
            free=(x, jnp.clip(p, 0, 1)),
            moments=(x_moments, p_moments),
            step=state.step + 1,
            idle=jnp.where(better, 0, state.idle + 1),
            least=jnp.where(better, total, state.least),
            best=jnp.where(better, state.free[1], state.best),
            losses=jnp.where(better, now, state.losses),
        )

    zero = jnp.zeros(3, rounds.sums.dtype)
    start = _State(
        free=free,
        moments=tuple((zero, *[jnp.zeros((3, *u.shape), u.dtype)] * 2) for u in free),
        step=jnp.asarray(0),
        idle=jnp.asarray(0),
        least=jnp.asarray(jnp.inf, zero.dtype),
        best=jnp.full_like(free[1], jnp.nan),
        losses=zero,
    )
    end = jax.lax.while_loop(go_on, step, start)
    return ProlinAnswer(end.best, end.step, end.losses)


def _mtadam(
    u: Array, slopes: Array, moments: Any, step: Array, rate: float | Array
) -> tuple[Array, Any]:
    """One step of MTAdam for one array, from the three losses' gradients `[3, ...]`: each is scaled
    to the first one's running norm, has moments of its own, and all are divided by the largest of
    their deviations."""
    norms, first, second = moments
    wide = (-1, *[1] * u.ndim)
    size = jnp.sqrt((slopes**2).sum(tuple(range(1, slopes.ndim))))
    norms = jnp.where(step == 1, size, MEAN * norms + (1 - MEAN) * size)
    large = norms > NO_SLOPE
    anchor = norms[jnp.argmax(large)]
    slopes *= jnp.where(large, anchor / jnp.where(large, norms, 1), 1).reshape(wide)
    first = MEAN * first + (1 - MEAN) * slopes
    second = SQUARE * second + (1 - SQUARE) * slopes**2
    deviation = jnp.sqrt(second / (1 - SQUARE**step)).max(0) + LEAST_DEVIATION
    return u - rate * first.sum(0) / (1 - MEAN**step) / deviation, (norms, first, second)
