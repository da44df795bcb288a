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

from attacks.attributes.candidate_decoding.adam_bounds import (
    Gradients,
    Steps,
    inside,
    looked_at,
    steps_of,
)
from attacks.attributes.candidate_decoding.candidates import (
    candidate_records,
    prior_weights,
    with_first,
)
from attacks.attributes.candidate_decoding.corners import nearest_corner, restarted
from attacks.attributes.candidate_decoding.read_again import (
    beyond_chance,
    is_near,
    reordered,
)
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

Array = jax.Array
TRIES, TRIES_AGAIN = 60, 6
"""Searches that begin anew at most: of a client, and of one with values that are known."""
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
      may explain as much, if the rounds' models hardly differ (few rounds, a small rate or model):
      `fit.resolved` says how many, from a search for the values of a simulated client, which is
      made where some weights are unsure and takes about as long as the client's own.

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
    eps = precision(messages).astype(dtype)
    told = equations(messages.pseudo_gradient)
    messages, knowledge, settings = cast((messages, knowledge, settings), dtype)
    x, y = candidate_records(model, knowledge)
    start = prior_weights(model, knowledge, x.shape[1])
    with jax.default_matmul_precision("highest"):
        steps = steps_of(messages, settings.learning_rate, settings.weight_decay, eps)
        numbers = (x, y), steps, settings.epsilon, eps
        gradients, steps = looked_at(model, messages.received, *numbers)
        found, resolved = _searched(gradients, steps, start, knowledge.y, settings.iterations)
    misfit = jnp.where(
        told > len(start), jnp.minimum(found.left_by_weights, found.left) / LEFT, jnp.nan
    )
    fit = Fit(1 - found.left, jnp.asarray(1 - LEFT, dtype), misfit, resolved)
    finite = jnp.isfinite(found.scores).all() & jnp.isfinite(found.left)
    failed = ~(finite & (steps.rate > 0).all())
    answer = answered(
        failed, (found.values,), (found.scores,), objective=found.left, trace=jnp.zeros(0), fit=fit
    )
    return cast(answer, jnp.float32, jnp.int32)


class _Found(NamedTuple):
    """What a search ended with.

    Attributes:
      scores: weights within all bounds `[records, K]`.
      values: `[records]`.
      left_by_weights: share of the updates' energy that the weights leave.
      left: that the values leave.
    """

    scores: Array
    values: Array
    left_by_weights: Array
    left: Array


def _searched(
    gradients: Gradients, steps: Steps, start: Array, labels: Any, iterations: int
) -> tuple[_Found, Array]:
    """What the updates' bounds leave; and the share of the values that is read again of a client
    that has them in another order (`read_again`): 1 where no weight is unsure, NaN where it is not
    asked, because the values explain too little."""
    records, count = gradients.records, gradients.count

    def search(state: _Reading) -> _Reading:
        first = state.number == 0
        tries = jnp.where(first, TRIES, TRIES_AGAIN)
        found = _search(gradients, state.steps, start, iterations, tries)
        kept = jax.tree.map(functools.partial(jnp.where, first), found, state.found)
        others = reordered(found.values, labels, count, fixed_key())
        chosen = jax.nn.one_hot(found.values, count, dtype=start.dtype)
        near = is_near(found.scores, chosen, with_first(start.reshape(records, -1)))
        again = beyond_chance(state.truth, found.values, count, start.dtype)
        return _Reading(
            state.number + 1,
            gradients.steps(_weights(others, count, start.dtype), steps),
            others,
            kept,
            jnp.where(first, jnp.where(near, 1, jnp.nan), again),
            first & ~near & (found.left <= LEFT),
        )

    zero, scalar = jnp.zeros((), int), jnp.zeros((), start.dtype)
    scores, values = jnp.zeros((records, count), start.dtype), jnp.zeros(records, int)
    nothing = _Found(scores, values, scalar, scalar)
    begin = _Reading(zero, steps, values, nothing, scalar, zero == 0)
    # One program of a search, which takes long to compile.
    ended = jax.lax.while_loop(lambda state: state.again, search, begin)
    return ended.found, ended.resolved


class _Reading(NamedTuple):
    """Searches, the first of the client's updates.

    Attributes:
      number: of the next.
      steps: whose values it looks for.
      truth: these, but of the first.
      found: what the first one ended with.
      resolved: see `_searched`.
      again: whether there is a next.
    """

    number: Array
    steps: Steps
    truth: Array
    found: _Found
    resolved: Array
    again: Array


def _search(
    gradients: Gradients, steps: Steps, start: Array, iterations: int, tries: Array
) -> _Found:
    records, count, bounds = gradients.records, gradients.count, gradients.bounds(steps)
    every = inside(bounds, start, records, iterations)
    weights, scores = every[-1], with_first(every[-1].reshape(records, -1))
    begun = jax.vmap(lambda w: with_first(w.reshape(records, -1)).argmax(1))(every)
    ended, distances = jax.lax.map(lambda v: nearest_corner(bounds, v, count), begun)
    best, left = distances.argmin(), gradients.left(steps, weights)
    # Where no weights explain the updates, no corner does: nothing is searched for.
    height = jnp.where(left <= LEFT, distances[best], 0)
    values = restarted(bounds, ended[best], height, scores, tries)
    return _Found(scores, values, left, gradients.left(steps, _weights(values, count, start.dtype)))


def _weights(values: Array, count: int, dtype: Any) -> Array:
    return jax.nn.one_hot(values, count, dtype=dtype)[:, 1:].reshape(-1)
