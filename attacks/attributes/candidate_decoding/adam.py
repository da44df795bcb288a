"""Decoding clients of Adam: every number of an update bounds a sum of candidates' gradients.

Threat model: that of `closed_form`, of a client that takes one full-batch step of Adam a round,
whose moments begin anew in every round, as an optimiser's do that a client makes when it is asked
to train.

After one step from moments of zero, the bias corrections leave of Adam (Kingma, Ba 2015, Algorithm
1)

    u_j = rate g_j / (|g_j| + epsilon):

its decay rates drop out. That is no sum over records, which is why least squares read nothing in
it; but every u_j names the sign of g_j, and a number within whose rounding |g_j| lies:

    |g_j| = epsilon r_j / (1 - r_j),    r_j = |u_j| / rate.

Where |g_j| is much larger than epsilon, r_j is 1 to within rounding, and the bound is from below
alone; small gradients are known to some digits. The gradient is linear in the candidates' weights
(`closed_form`), so that these lie in a convex set: the intervals of all numbers of all rounds. A
point of it is found by Gauss-Newton steps on the squared distances from the intervals, from a
coarse measure of distance to a fine one. Of the values that its weights stand for, one record's or
two records' are then changed as long as that brings all numbers nearer to their intervals, and some
are drawn anew where no change does: the set may be wide, but hardly ever holds two corners. The
rate need not be known: it is the largest |u_j|.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.dtypes import canonicalize_dtype
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.candidates import (
    candidate_records,
    prior_weights,
    with_first,
)
from attacks.attributes.candidate_decoding.corners import Bounds, nearest_corner, restarted
from attacks.attributes.knowledge import (
    Knowledge,
    Reconstruction,
    answered,
    check_apart,
    check_knowledge,
    check_one_column,
    warn_of_unchanged,
)
from attacks.fit import Fit, equations, precision, warn_of_fit
from attacks.fixed_draws import fixed_key
from attacks.precision import arithmetic, cast, floating
from jaxfl import Messages, Model
from jaxfl.domains import Count, NotNegative, Positive, checked
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
LEFT = 1e-3
"""Share of the updates' energy that a right answer may leave: numbers near 0 turn their sign."""


@struct.dataclass
class AdamDecoding:
    """Settings of `decode_adam`.

    Attributes:
      epsilon: the client's, which stands beside the square root (1e-8 in PyTorch and optax).
      weight_decay: of AdamW, decoupled: each step takes `learning_rate * weight_decay` of the model
        off. Then the rate has to be known.
      learning_rate: the client's rate, needed with `weight_decay` alone.
      iterations: Gauss-Newton steps for each measure of distance, at most (static).
    """

    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    learning_rate: Positive | None = None
    iterations: Count = struct.field(pytree_node=False, default=50)


@checked
def decode_adam(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    *,
    settings: AdamDecoding | None = None,
    dtype: Any = jnp.float64,
) -> Reconstruction:
    """Reconstruct an unknown column from updates of a client that takes one full-batch step of Adam
    or AdamW a round.

    What it draws comes from a fixed key (`attacks.fixed_draws`).

    Args:
      model: the model that was trained (static).
      messages: the client's, in the rounds to be used.
      knowledge: what is known; one column is not, labels are.
      settings: see `AdamDecoding`.
      dtype: as for `closed_form`.

    Returns:
      A `Reconstruction`; `scores` are the weights within all bounds, from which the search for
      `values` starts: a record whose weights are far from 0 and 1 is unsure. Its `fit` compares the
      updates with those that the weights would make: beyond `LEFT` of their energy they are a
      misfit, such as those of several steps, or of moments that are kept between rounds. Where
      `fit.explained` is below `fit.allowed`, some values are wrong. Where it is not, other values
      may explain as much, if the rounds' models hardly differ (few rounds, a small rate or model).

    Raises:
      ValueError: as `closed_form`; if more or less than one column is unknown, or labels are; or if
        `weight_decay` is given without `learning_rate`.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_apart("decode_adam", model, messages, knowledge)
    check_one_column("decode_adam", knowledge)
    settings, dtype = settings or AdamDecoding(), floating(dtype)
    if settings.learning_rate is None and not _is_zero(settings.weight_decay):
        raise ValueError(
            f"learning_rate=None with weight_decay={settings.weight_decay!r}: what decays is the "
            "rate times that; give both"
        )
    with arithmetic(dtype, messages, knowledge, settings):
        answer = _decode_adam(model, messages, knowledge, settings, canonicalize_dtype(dtype))
    warn_of_unchanged("decode_adam", messages)
    warn_of_fit("decode_adam", answer.status, answer.fit)
    return answer


def _is_zero(number: Any) -> bool:
    return isinstance(number, (int, float)) and number == 0


@functools.partial(jax.jit, static_argnames=("model", "dtype"))
def _decode_adam(
    model: Model, messages: Messages, knowledge: Knowledge, settings: AdamDecoding, dtype: Any
) -> Reconstruction:
    eps = precision(messages)
    told = equations(messages.pseudo_gradient)
    messages, knowledge, settings = cast((messages, knowledge, settings), dtype)
    x, y = candidate_records(model, knowledge)
    start = prior_weights(model, knowledge, x.shape[1])
    with jax.default_matmul_precision("highest"):
        steps = _steps(messages, settings, eps)
        bounds, seen = _bounds(model, messages, (x, y), steps, settings, eps)
        every = _inside(bounds, start, len(x), settings.iterations)
        weights, scores = every[-1], with_first(every[-1].reshape(len(x), -1))
        begun = jax.vmap(lambda w: with_first(w.reshape(len(x), -1)).argmax(1))(every)
        ended, distances = jax.lax.map(lambda v: nearest_corner(bounds, v, x.shape[1]), begun)
        best, left = distances.argmin(), _left(bounds, seen, weights, settings.epsilon)
        # Where no weights explain the updates, no corner does: nothing is searched for.
        height = jnp.where(left <= LEFT, distances[best], 0)
        values = restarted(bounds, ended[best], height, scores)
        chosen = jax.nn.one_hot(values, x.shape[1], dtype=dtype)[:, 1:].reshape(-1)
        answer_left = _left(bounds, seen, chosen, settings.epsilon)
    misfit = jnp.where(told > len(start), jnp.minimum(left, answer_left) / LEFT, jnp.nan)
    fit = Fit(1 - answer_left, jnp.asarray(1 - LEFT, dtype), misfit)
    failed = ~(jnp.isfinite(weights).all() & jnp.isfinite(answer_left) & (steps.rate > 0).all())
    answer = answered(
        failed, (values,), (scores,), objective=answer_left, trace=jnp.zeros(0), fit=fit
    )
    return cast(answer, jnp.float32, jnp.int32)


class _Steps(NamedTuple):
    """Updates in units of the rate.

    Attributes:
      ratio: `[rounds, parameters]`, between -1 and 1 but for rounding.
      rounding: of these, likewise.
      rate: of every round `[rounds]`.
    """

    ratio: Array
    rounding: Array
    rate: Array


def _steps(messages: Messages, settings: AdamDecoding, eps: Array) -> _Steps:
    flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])
    received, returned = flat(messages.received), flat(messages.returned)
    half = eps / 2 * jnp.maximum(jnp.abs(received), jnp.abs(returned))
    updates = received - returned
    if settings.learning_rate is not None:
        updates = updates - settings.learning_rate * settings.weight_decay * received
    # The number that is surest to be a whole step: the largest, its own rounding taken off.
    best = (jnp.abs(updates) - half).argmax(1)[:, None]
    largest, its_half = (jnp.take_along_axis(a, best, 1) for a in (jnp.abs(updates), half))
    safe = jnp.where(largest > 0, largest, 1)
    return _Steps(updates / safe, (half + its_half) / safe + ROUNDED * eps, largest[:, 0])


def _bounds(
    model: Model,
    messages: Messages,
    candidates: tuple[Array, Array],
    steps: _Steps,
    settings: AdamDecoding,
    eps: Array,
) -> tuple[Bounds, Array]:
    """Bounds, of every round as many, and `|u| / rate` of the same numbers."""
    records, unknowns = len(candidates[0]), candidates[0].shape[0] * (candidates[0].shape[1] - 1)
    rounds, count = steps.ratio.shape
    kept = max(1, min(count, int(min(EACH * unknowns, MOST / unknowns)) // rounds))
    places = jax.random.permutation(fixed_key(), count)[:kept]

    def of_round(step: tuple[Any, Array, Array]) -> tuple[Bounds, Array]:
        received, ratio, rounding = step
        jacobian, base = _difference_jacobian(model, received, *candidates)
        sign = jnp.where(ratio < 0, -1, 1)[places]
        size, slack = jnp.abs(ratio)[places], rounding[places]
        jacobian, base = (
            jacobian[:, places].T / records * sign[:, None],
            base[places] / records * sign,
        )
        reach = jnp.sqrt((jacobian**2).sum(1))
        blur = ROUNDED * eps * (jnp.abs(base) + reach)
        low = _gradient(size - slack, settings.epsilon) - blur
        high = _gradient(size + slack, settings.epsilon) + blur
        return Bounds(jacobian, base, low, high, reach), size

    every = jax.lax.map(of_round, (messages.received, steps.ratio, steps.rounding))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), every)


def _difference_jacobian(model: Model, params: Any, x: Array, y: Array) -> tuple[Array, Array]:
    """Gradient differences of the other candidates from the first `[unknowns, parameters]`, and the
    sum of the first ones' gradients `[parameters]`."""
    every = jax.vmap(jax.vmap(lambda x, y: record_gradient(model, params, x, y)))(x, y)
    return (every[:, 1:] - every[:, :1]).reshape(-1, every.shape[-1]), every[:, 0].sum(0)


def _gradient(ratio: Array, epsilon: float | Array) -> Array:
    """The gradient that makes a step of so much of the rate; infinite from a whole one on. What is
    below 0 by rounding alone turns the sign."""
    size = jnp.abs(ratio)
    whole = size >= 1
    return jnp.sign(ratio) * jnp.where(
        whole, jnp.inf, epsilon * size / jnp.where(whole, 1, 1 - size)
    )


def _left(bounds: Bounds, seen: Array, weights: Array, epsilon: float | Array) -> Array:
    """Share of the updates' energy that weights do not explain."""
    gradient = bounds.jacobian @ weights + bounds.base
    made = gradient / (jnp.abs(gradient) + epsilon)
    return ((made - seen) ** 2).sum() / (seen**2).sum()


class _Descent(NamedTuple):
    """Gauss-Newton steps under way."""

    weights: Array
    damping: Array
    height: Array
    settled: Array
    taken: Array


def _inside(bounds: Bounds, start: Array, records: int, iterations: int) -> Array:
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
