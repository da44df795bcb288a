"""How many values of an answer would be read the same if noise of a known covariance were drawn
again; see `attacks.attributes.candidate_decoding.read_again` for why, and where the client can be
simulated."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from attacks.attributes.candidate_decoding.alternatives import Alternatives
from attacks.attributes.candidate_decoding.candidates import with_first

Array = jax.Array
DRAWS = 16
"""Times that noise is drawn, for all records each time."""


def resolved(
    factor: Array, chosen: Array, deviation: float | Array, nearest: Callable[[Array], Array]
) -> Array:
    """Share of the values that stay as they are where least squares are solved again with other
    noise, between 0 for values that are drawn anew and 1 `[]`; NaN where they cannot be solved.

    Args:
      factor: lower Cholesky factor of the precision of weights, and of other unknowns after them,
        under noise of deviation 1; the estimate of a right answer varies by its inverse.
      chosen: the answer, weights of 0 and 1 of every candidate but the first `[weights]`.
      deviation: of the noise.
      nearest: from such weights to the index of every record's candidate `[records]`.
    """
    moved = jax.scipy.linalg.solve_triangular(factor, _drawn(factor, DRAWS), lower=True, trans="T")
    estimates = chosen + deviation * moved[: len(chosen)].T
    return _staying(estimates, chosen, nearest)


def resolved_beside(factor: Array, each: Alternatives, deviation: Array) -> Array:
    """The same of an answer whose attack solves no least squares, by those of its alternatives:
    `factor` and `deviation` as of `resolved`, of all records' weights in their order."""
    records, count = each.x.shape[:2]
    chosen = jax.nn.one_hot(each.chosen, count, dtype=factor.dtype)
    features = each.x.reshape(records, count, -1)
    of_answer = jnp.take_along_axis(features, each.chosen[:, None, None], 1)
    labels = jnp.take_along_axis(each.y, each.chosen[:, None], 1)
    # Where each unknown is changed alone, some change nothing: these are the answer too.
    again = (features == of_answer).all(2) & (each.y == labels) & (chosen == 0)

    def nearest(weights: Array) -> Array:
        told = jnp.where(again[:, 1:], 0, weights.reshape(records, -1))
        return jnp.where(again, -jnp.inf, with_first(told)).argmax(1)

    return resolved(factor, chosen[:, 1:].reshape(-1), deviation, nearest)


def _drawn(factor: Array, draws: int) -> Array:
    """Noise is nobody's to choose: of the same answer the same is said every time."""
    return jax.random.normal(jax.random.key(0), (len(factor), draws), factor.dtype)


def _staying(estimates: Array, chosen: Array, nearest: Callable[[Array], Array]) -> Array:
    answers = jax.lax.map(nearest, estimates)
    by_chance = 1 / (len(chosen) // answers.shape[1] + 1)
    beyond = ((answers == nearest(chosen)).mean(dtype=chosen.dtype) - by_chance) / (1 - by_chance)
    return jnp.where(jnp.isfinite(estimates).all(), jnp.maximum(beyond, 0), jnp.nan)
