"""How many values of an answer would be read the same if noise of a known covariance were drawn
again; see `attacks.attributes.candidate_decoding.read_again` for why, and where the client can be
simulated."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr

from attacks.attributes.candidate_decoding.alternatives import Alternatives

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


def resolved_alone(blocks: Array, each: Alternatives, deviation: Array) -> Array:
    """The most that noise leaves of an answer whose attack solves no least squares: the share of
    its values that would be read again if all other records' were known, and each could only be
    taken for the one that is most like it `[]`.

    Args:
      blocks: inner products of what a record's candidates but the first add to the messages, in
        units in which noise is `deviation` in every equation `[records, K - 1, K - 1]`.
      each: the records, with the answer.
      deviation: of the noise.
    """
    inner = jnp.pad(blocks, ((0, 0), (1, 0), (1, 0)))
    square = jnp.diagonal(inner, 0, 1, 2)
    chosen = each.chosen[:, None]
    of_answer = jnp.take_along_axis(square, chosen, 1)
    across = jnp.take_along_axis(inner, chosen[..., None], 1)[:, 0]
    distance = jnp.sqrt(jnp.maximum(square + of_answer - 2 * across, 0))
    same = _of_answer(each)
    tiny = jnp.finfo(distance.dtype).tiny
    otherwise = jnp.where(same, 0, ndtr(-distance / jnp.maximum(2 * deviation, tiny)))
    chance = 1 / (1 + jnp.maximum((~same).sum(1), 1)).astype(distance.dtype)
    return jnp.maximum((1 - otherwise.max(1) - chance) / (1 - chance), 0).mean()


def _of_answer(each: Alternatives) -> Array:
    """Which candidates are the answer `[records, K]`: where each unknown is changed alone, some
    change nothing."""
    features, chosen = each.x.reshape(*each.x.shape[:2], -1), each.chosen[:, None]
    same = features == jnp.take_along_axis(features, chosen[..., None], 1)
    return same.all(2) & (each.y == jnp.take_along_axis(each.y, chosen, 1))


def _drawn(factor: Array, draws: int) -> Array:
    """Noise is nobody's to choose: of the same answer the same is said every time."""
    return jax.random.normal(jax.random.key(0), (len(factor), draws), factor.dtype)


def _staying(estimates: Array, chosen: Array, nearest: Callable[[Array], Array]) -> Array:
    answers = jax.lax.map(nearest, estimates)
    by_chance = 1 / (len(chosen) // answers.shape[1] + 1)
    beyond = ((answers == nearest(chosen)).mean(dtype=chosen.dtype) - by_chance) / (1 - by_chance)
    return jnp.where(jnp.isfinite(estimates).all(), jnp.maximum(beyond, 0), jnp.nan)
