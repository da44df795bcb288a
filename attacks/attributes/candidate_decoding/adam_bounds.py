"""What an update of Adam says of a client's gradient: bounds on its numbers; and the weights within
them. See `attacks.attributes.candidate_decoding.adam`."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.corners import Bounds
from attacks.attributes.candidate_decoding.read_again import to_spacing
from attacks.fixed_draws import fixed_key
from jaxfl import Messages, Model
from jaxfl.models import record_gradient

Array = jax.Array
COARSE_TO_FINE = (1.0, 0.1, 1e-2, 1e-3, 1e-4)
"""Distances that count as one, in units of what a record's candidates change in a number."""
EACH, MOST = 250, 4e7
"""Bounds that are looked at for every unknown, and numbers that their Jacobian may hold."""
RIDGE, CONSTRAINT = 1e-5, 1e3
"""How much the prior counts, and weights below 0, beside a distance of one."""
SETTLED, STUCK = 1e-4, 1e8
"""Share of the distances by which a last step lowers them, and damping under which none does."""
ROUNDED = 8
"""Roundings, in units of the precision, of a ratio, and of a sum over records."""


class Steps(NamedTuple):
    """Updates in units of the rate.

    Attributes:
      ratio: `[rounds, parameters]`, between -1 and 1 but for rounding.
      rounding: of these, likewise.
      rate: of every round `[rounds]`.
      begin: the models before them, decayed `[rounds, parameters]`.
    """

    ratio: Array
    rounding: Array
    rate: Array
    begin: Array


def steps_of(
    messages: Messages, rate: float | Array | None, decay: float | Array, eps: Array
) -> Steps:
    """A client's steps; its rate is known if its weights decay."""
    flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])
    received, returned = flat(messages.received), flat(messages.returned)
    half = eps / 2 * jnp.maximum(jnp.abs(received), jnp.abs(returned))
    begin = received
    if rate is not None:
        begin = received - rate * decay * received
    updates = begin - returned
    # The number that is surest to be a whole step: the largest, its own rounding taken off.
    best = (jnp.abs(updates) - half).argmax(1)[:, None]
    largest, its_half = (jnp.take_along_axis(a, best, 1) for a in (jnp.abs(updates), half))
    safe = jnp.where(largest > 0, largest, 1)
    rounding = (half + its_half) / safe + ROUNDED * eps
    return Steps(updates / safe, rounding, largest[:, 0], begin)


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Some numbers of every round's gradient, as they depend on weights.

    Attributes:
      jacobian: on the weights of all candidates but the first `[rounds, numbers, unknowns]`.
      base: of the first candidates `[rounds, numbers]`.
      records: of the client (static).
      epsilon: of its optimiser.
      eps: relative spacing of the numbers of its models.
    """

    jacobian: Array
    base: Array
    records: int
    epsilon: float | Array
    eps: Array

    @property
    def count(self) -> int:
        """Candidates of a record."""
        return self.jacobian.shape[2] // self.records + 1

    def bounds(self, steps: Steps) -> Bounds:
        """What steps say of them."""
        sign, size = jnp.where(steps.ratio < 0, -1, 1), jnp.abs(steps.ratio)
        jacobian, base = self.jacobian * sign[..., None], self.base * sign
        reach = jnp.sqrt((jacobian**2).sum(2))
        blur = ROUNDED * self.eps * (jnp.abs(base) + reach)
        low = gradient_of(size - steps.rounding, self.epsilon) - blur
        high = gradient_of(size + steps.rounding, self.epsilon) + blur
        every = Bounds(jacobian, base, low, high, reach)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), every)

    def ratios(self, weights: Array) -> Array:
        """Steps in units of the rate `[rounds, numbers]` of a client of such weights."""
        gradient = self.jacobian @ weights + self.base
        return gradient / (jnp.abs(gradient) + self.epsilon)

    def steps(self, weights: Array, like: Steps) -> Steps:
        """Its steps, from the same models as others, and rounded as they were."""
        rate = like.rate[:, None]
        returned = to_spacing(like.begin - rate * self.ratios(weights), self.eps)
        safe = jnp.where(rate > 0, rate, 1)
        return like._replace(ratio=(like.begin - returned) / safe)

    def left(self, steps: Steps, weights: Array) -> Array:
        """Share of the steps' energy that weights do not explain."""
        return ((self.ratios(weights) - steps.ratio) ** 2).sum() / (steps.ratio**2).sum()


def looked_at(
    model: Model,
    received: Any,
    candidates: tuple[Array, Array],
    steps: Steps,
    epsilon: float | Array,
    eps: Array,
) -> tuple[Gradients, Steps]:
    """As many numbers of every round as are looked at, from the models that were received."""
    records, unknowns = len(candidates[0]), candidates[0].shape[0] * (candidates[0].shape[1] - 1)
    rounds, count = steps.ratio.shape
    kept = max(1, min(count, int(min(EACH * unknowns, MOST / unknowns)) // rounds))
    places = jax.random.permutation(fixed_key(), count)[:kept]

    def of_round(received: Any) -> tuple[Array, Array]:
        jacobian, base = _difference_jacobian(model, received, *candidates)
        return jacobian[:, places].T / records, base[places] / records

    jacobian, base = jax.lax.map(of_round, received)
    ratio, rounding, begin = (a[:, places] for a in (steps.ratio, steps.rounding, steps.begin))
    gradients = Gradients(jacobian, base, records, epsilon, eps)
    return gradients, Steps(ratio, rounding, steps.rate, begin)


def _difference_jacobian(model: Model, params: Any, x: Array, y: Array) -> tuple[Array, Array]:
    """Gradient differences of the other candidates from the first `[unknowns, parameters]`, and the
    sum of the first ones' gradients `[parameters]`."""
    every = jax.vmap(jax.vmap(lambda x, y: record_gradient(model, params, x, y)))(x, y)
    return (every[:, 1:] - every[:, :1]).reshape(-1, every.shape[-1]), every[:, 0].sum(0)


def gradient_of(ratio: Array, epsilon: float | Array) -> Array:
    """The gradient that makes a step of so much of the rate; infinite from a whole one on. What is
    below 0 by rounding alone turns the sign."""
    size = jnp.abs(ratio)
    whole = size >= 1
    return jnp.sign(ratio) * jnp.where(
        whole, jnp.inf, epsilon * size / jnp.where(whole, 1, 1 - size)
    )


class _Descent(NamedTuple):
    """Gauss-Newton steps under way."""

    weights: Array
    damping: Array
    height: Array
    settled: Array
    taken: Array


def inside(bounds: Bounds, start: Array, records: int, iterations: int) -> Array:
    """Weights within all bounds, as near to the prior as that allows, the last of `[measures,
    unknowns]`; before it what coarser measures of distance give."""
    floor, tiny = bounds.width, bounds.tiny
    whole = jax.jacobian(lambda w: with_first(w.reshape(records, -1)).reshape(-1))(start)
    first = with_first(jnp.zeros((records, len(start) // records), start.dtype)).reshape(-1)

    def distances(weights: Array, unit: Array) -> tuple[Array, Array, Array]:
        gradient = bounds.jacobian @ weights + bounds.base
        outside = gradient - jnp.clip(gradient, bounds.low, bounds.high)
        negative = jnp.minimum(whole @ weights + first, 0)
        scaled = outside / unit
        pulled = RIDGE * ((weights - start) ** 2).sum()
        return (scaled**2).sum() + CONSTRAINT * (negative**2).sum() + pulled, scaled, negative

    def step(state: _Descent, unit: Array) -> _Descent:
        weights, damping, height, _, taken = state
        _, scaled, negative = distances(weights, unit)
        rows = jnp.where(scaled != 0, 1 / unit, 0)[:, None] * bounds.jacobian
        active = jnp.where(negative < 0, CONSTRAINT, 0)[:, None] * whole
        curvature = rows.T @ rows + whole.T @ active + RIDGE * jnp.eye(len(weights))
        slope = rows.T @ scaled + CONSTRAINT * whole.T @ negative + RIDGE * (weights - start)
        damped = curvature + damping * jnp.diag(jnp.diag(curvature))
        moved = weights - jax.scipy.linalg.solve(damped, slope, assume_a="pos")
        lower = distances(moved, unit)[0]
        better = lower <= height
        damping = jnp.clip(jnp.where(better, damping / 10, damping * 10), 1e-12, STUCK)
        settled = (better & (lower > (1 - SETTLED) * height)) | (damping >= STUCK)
        weights, height = (jnp.where(better, a, b) for a, b in ((moved, weights), (lower, height)))
        return _Descent(weights, damping, height, settled, taken + 1)

    def level(weights: Array, share: Array) -> tuple[Array, Array]:
        unit = jnp.maximum(floor, share * bounds.reach) + tiny
        one = jnp.ones((), weights.dtype)
        begun = _Descent(weights, 1e-6 * one, distances(weights, unit)[0], one < 0, jnp.asarray(0))
        ended = jax.lax.while_loop(
            lambda s: (s.taken < iterations) & ~s.settled, lambda s: step(s, unit), begun
        )
        return ended.weights, ended.weights

    return jax.lax.scan(level, start, jnp.asarray(COARSE_TO_FINE, start.dtype))[1]
