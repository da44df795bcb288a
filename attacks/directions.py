"""Directions that tell two classes of updates apart: Fisher's in closed form, logistic regression by SGD (paper 002, 5.2)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxfl import Model, mean_loss

Array = jax.Array
LEAST_SEPARATION = 0.3
"""A feature is scaled as if its class means were at least so many deviations apart; less cannot be told from chance, and the
scale would be noise."""


def discriminant(centred: Array, change: Array, shrinkage: float | Array) -> Array:
    """Fisher's direction `(S + shrinkage tr(S) I)^-1 change` in standardised coordinates, `S = centred' centred / n`.

    Solved through the n x n Gram matrix. Coordinates that hardly vary are standardised by 1 % of the mean variance.

    Args:
      centred: deviations from the class means `[n, parameters]`.
      change: difference of the class means `[parameters]`.
      shrinkage: relative to the trace.
    """
    variance = (centred**2).mean(0)
    deviation = jnp.sqrt(variance + 0.01 * variance.mean() + jnp.finfo(variance.dtype).tiny)
    z, change = centred / deviation, change / deviation
    gram = z @ z.T / len(z)
    ridge = shrinkage * jnp.trace(gram)
    factor = jax.scipy.linalg.cho_factor(gram + ridge * jnp.eye(len(z), dtype=z.dtype), lower=True)
    inside = z.T @ jax.scipy.linalg.cho_solve(factor, z @ change) / len(z)
    return (change - inside) / ridge / deviation


def scaled(direction: Array, held_out: Sequence[Array]) -> tuple[Array, Array]:
    """A direction scaled, and an offset, such that the feature's class means on held-out updates are -1 and 1 (nearer, or
    reversed, where they cannot be told apart).

    Args:
      direction: `[parameters]`.
      held_out: updates without and with the property, each `[updates, parameters]`.

    Returns:
      The direction `[parameters]` and the offset `[]`.
    """
    low, high = (side @ direction for side in held_out)
    deviation = jnp.sqrt((low.var() + high.var()) / 2)
    apart = jnp.maximum(high.mean() - low.mean(), LEAST_SEPARATION * deviation + jnp.finfo(deviation.dtype).tiny)
    return direction * 2 / apart, -(high.mean() + low.mean()) / apart


def logistic(
    trained: Sequence[Array],
    held_out: Sequence[Array],
    key: Array,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float | Array,
) -> tuple[Array, Array]:
    """Logistic regression by SGD on standardised updates; the epoch that is best on held-out ones (authors' code).

    Args:
      trained: updates without and with the property, each `[updates, parameters]`.
      held_out: likewise, that choose the epoch.
      key: draws the start and the order of the updates.
      epochs, batch_size: static.
      learning_rate: of SGD.

    Returns:
      Direction `[parameters]` and offset of the log odds.
    """
    x = jnp.concatenate(trained)
    centre, deviation = x.mean(0), x.std(0) + 1e-7
    x = (x - centre) / deviation
    y = (jnp.arange(len(x)) >= len(trained[0])).astype(x.dtype)
    test = (jnp.concatenate(held_out) - centre) / deviation
    truth = jnp.arange(len(test)) >= len(held_out[0])
    batch_size = min(batch_size, len(x))
    start_key, key = jax.random.split(key)
    bound = x.shape[1] ** -0.5
    start = jax.random.uniform(start_key, (x.shape[1] + 1,), x.dtype, -bound, bound)

    def step(weights: Array, rows: Array) -> tuple[Array, None]:
        def loss(w: Array) -> Array:
            return optax.sigmoid_binary_cross_entropy(x[rows] @ w[:-1] + w[-1], y[rows]).mean()

        return weights - learning_rate * jax.grad(loss)(weights), None

    def epoch(carry: tuple[Array, Array, Array], key: Array) -> tuple[tuple[Array, Array, Array], None]:
        weights, best, most = carry
        order = jax.random.permutation(key, len(x))[: len(x) // batch_size * batch_size]
        weights, _ = jax.lax.scan(step, weights, order.reshape(-1, batch_size))
        right = ((test @ weights[:-1] + weights[-1] > 0) == truth).mean()
        return (weights, jnp.where(right > most, weights, best), jnp.maximum(right, most)), None

    (_, best, _), _ = jax.lax.scan(epoch, (start, start, jnp.zeros(())), jax.random.split(key, epochs))
    direction = best[:-1] / deviation
    return direction, best[-1] - direction @ centre


def record_gradients(model: Model, params: Any, x: Array, y: Array, key: Array, batch: int = 100) -> Array:
    """Gradients of single records `[records, parameters]`, dropout on."""

    def one(arguments: tuple[Array, Array, Array]) -> Array:
        x, y, key = arguments
        return ravel_pytree(jax.grad(lambda p: mean_loss(model, p, x[None], y[None], key=key))(params))[0]

    return jax.lax.map(one, (x, y, jax.random.split(key, len(x))), batch_size=min(batch, len(x)))
