"""How many values of an answer would be read the same if its noise were drawn again.

Many records, few rounds or a small learning rate may leave what tells records apart below the
noise, while the records that are alike explain nearly all of the messages: then a wrong answer
explains as much as a right one.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Array = jax.Array
DRAWS, BOUNDED_DRAWS = 16, 4
"""Times that noise is drawn, for all records each time; the latter where an answer within bounds
takes many factors."""


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


def resolved_within(
    solve: Callable[[Array], Array],
    gram: Array,
    factor: Array,
    chosen: Array,
    deviation: Array,
    nearest: Callable[[Array], Array],
) -> Array:
    """The same of least squares within bounds: `solve` gives weights for the right-hand side of
    their normal equations, whose matrix is `gram`. Other arguments as those of `resolved`."""
    drawn = jnp.tril(factor) @ _drawn(factor, BOUNDED_DRAWS)
    noisy = gram @ chosen + deviation * drawn.T
    return _staying(jax.lax.map(solve, noisy), chosen, nearest)


def _drawn(factor: Array, draws: int) -> Array:
    """Noise is nobody's to choose: of the same answer the same is said every time."""
    return jax.random.normal(jax.random.key(0), (len(factor), draws), factor.dtype)


def _staying(estimates: Array, chosen: Array, nearest: Callable[[Array], Array]) -> Array:
    answers = jax.lax.map(nearest, estimates)
    by_chance = 1 / (len(chosen) // answers.shape[1] + 1)
    beyond = ((answers == nearest(chosen)).mean(dtype=chosen.dtype) - by_chance) / (1 - by_chance)
    return jnp.where(jnp.isfinite(estimates).all(), jnp.maximum(beyond, 0), jnp.nan)
