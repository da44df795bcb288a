"""Directions that tell two classes of updates apart: Fisher's in closed form, logistic regression by SGD (paper 002, 5.2)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from jaxfl import Model, mean_loss

Array = jax.Array
LEAST_SEPARATION = 0.3
"""A feature is scaled as if its class means were at least so many deviations apart; less cannot be told from chance, and the
scale would be noise."""


def discriminant(centred: Array, change: Array, like: Any, shrinkage: float | Array) -> Array:
    """Fisher's direction `(S + shrinkage tr(S) I)^-1 change`, `S = centred' centred / n`, in the updates' own coordinates.

    There are fewer updates than parameters, and what is not seen of their covariance is taken from its form: of a layer it is
    nearly a Kronecker product (K-FAC), so that it is shrunk to its diagonal in the eigenbases of the layer's rows and columns
    (EKFAC: George et al. 2018, section 3) and not to that of single weights. Coordinates are standardised there; those that
    hardly vary by 0.1 % of the mean variance. Solved through the n x n Gram matrix.

    Args:
      centred: deviations from the class means `[n, parameters]`.
      change: difference of the class means `[parameters]`.
      like: the model's parameters, raveled as the updates are; only shapes count. A layer's eigenbases take the cube of its
        number of inputs.
      shrinkage: relative to the trace.
    """
    bases = eigenbases(centred, like)
    z, change = turned(centred, bases, like), turned(change, bases, like)
    variance = (z**2).mean(0)
    deviation = jnp.sqrt(variance + 0.001 * variance.mean() + jnp.finfo(variance.dtype).tiny)
    z, change = z / deviation, change / deviation
    gram = z @ z.T / len(z)
    ridge = shrinkage * jnp.trace(gram)
    factor = jax.scipy.linalg.cho_factor(gram + ridge * jnp.eye(len(z), dtype=z.dtype), lower=True)
    inside = z.T @ jax.scipy.linalg.cho_solve(factor, z @ change) / len(z)
    inverse = [(rows.T, columns.T) for rows, columns in bases]
    return turned((change - inside) / ridge / deviation, inverse, like)


def eigenbases(updates: Array, like: Any) -> list[tuple[Array, Array]]:
    """Of every leaf, eigenvectors of the second moments of its rows and of its columns: `[rows, rows]`, `[columns, columns]`.

    Columns are a layer's outputs; a bias has one column.

    Args:
      updates: `[n, parameters]`.
      like: see `discriminant`.
    """
    moments = [(jnp.einsum("nrc,nsc->rs", u, u), jnp.einsum("nrc,nrd->cd", u, u)) for u in _matrices(updates, like)]
    return [(jnp.linalg.eigh(rows)[1], jnp.linalg.eigh(columns)[1]) for rows, columns in moments]


def turned(updates: Array, bases: Sequence[tuple[Array, Array]], like: Any) -> Array:
    """Flat updates `[..., parameters]` with each leaf in coordinates of its bases; back by their transposes."""
    each = zip(_matrices(updates, like), bases, strict=True)
    leaves = [rows.T @ update @ columns for update, (rows, columns) in each]
    return jnp.concatenate([leaf.reshape(*updates.shape[:-1], -1) for leaf in leaves], axis=-1)


def _matrices(updates: Array, like: Any) -> list[Array]:
    """Flat updates `[..., parameters]` as leaves `[..., rows, columns]`."""
    leaves = jax.tree.leaves(like)
    split = jnp.split(updates, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=-1)
    columns = [leaf.shape[-1] if leaf.ndim > 1 else 1 for leaf in leaves]
    return [part.reshape(*part.shape[:-1], -1, width) for part, width in zip(split, columns, strict=True)]


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
