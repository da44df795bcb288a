"""Directions that tell two classes of updates apart: Fisher's in closed form, logistic regression
(Kerkouche 2023, 5.2)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attacks.lapack import after
from attacks.properties.detector_training import Logistic
from jaxfl import Model
from jaxfl.models import record_gradient

Array = jax.Array
LEAST_SEPARATION = 0.3
"""A feature is scaled as if its class means were at least so many deviations apart; less cannot be
told from chance, and the scale would be noise."""
WIDEST = 2048
"""Rows or columns of a layer whose eigenbasis is looked for: it costs their square in memory, and
their cube in time."""


def discriminant(centred: Array, change: Array, like: Any, shrinkage: float | Array) -> Array:
    """Fisher's direction `((1 - a) S + a Q D Q')^-1 change`, `S = centred' centred / n`, from fewer
    updates than parameters.

    The covariance of a layer's gradients is nearly a Kronecker product of one of its inputs and one
    of its outputs (K-FAC). `Q` holds, layer by layer, the eigenbases of the second moments of rows
    and of columns (as Shampoo), `D` the variances of the updates' coordinates there (as EKFAC:
    George et al. 2018, section 3), and 0.1 % of their mean. Eigenbases suit the updates that they
    are made of, whose variances there spread too far; so `D` is that of each half of the updates in
    the other half's eigenbases, the mean of both, by rank. Solved through the n x n Gram matrix.

    Args:
      centred: deviations from the class means `[n, parameters]`, two at least; those that belong
        together side by side.
      change: difference of the class means `[parameters]`.
      like: the model's parameters, raveled as the updates are; only shapes count. The last axis of
        a leaf is its columns, all others its rows; a vector is one column.
      shrinkage: `a`, neither 0 nor 1.
    """
    n, least = len(centred), 0.001 * (centred**2).mean() + jnp.finfo(centred.dtype).tiny
    leaves = zip(_matrices(centred, like), _matrices(change, like), strict=True)
    layers: list[_Layer] = []
    for updates, leaf in leaves:
        earlier = [basis for layer in layers for basis in layer.bases if basis is not None]
        layers.append(_standardised(updates, leaf, least, earlier[-1:]))
    gram = sum(layer.updates @ layer.updates.T for layer in layers) + n * shrinkage / (
        1 - shrinkage
    ) * jnp.eye(n)
    factor = jax.scipy.linalg.cho_factor(gram, lower=True)
    inside = jax.scipy.linalg.cho_solve(
        factor, sum(layer.updates @ layer.change for layer in layers)
    )
    outside = [(layer.change - layer.updates.T @ inside) / shrinkage for layer in layers]
    return jnp.concatenate(
        [layer.back(direction) for layer, direction in zip(layers, outside, strict=True)]
    )


_Bases = tuple[Array | None, Array | None]


class _Layer(NamedTuple):
    """Standardised coordinates `[n, size]` of updates and `[size]` of a change, the eigenbases that
    they are in, and their deviations `[rows, columns]`."""

    updates: Array
    change: Array
    bases: _Bases
    deviation: Array

    def back(self, direction: Array) -> Array:
        """A direction on these coordinates `[size]` as one on the layer's `[size]`."""
        return _turned(
            direction.reshape(self.deviation.shape) / self.deviation, self.bases, back=True
        ).ravel()


def _standardised(updates: Array, change: Array, least: Array, earlier: Sequence[Array]) -> _Layer:
    """Standardised layer, from its updates `[n, rows, columns]`, a change `[rows, columns]` and the
    least variance `[]`. It is computed after the last eigenbasis of earlier layers."""
    first, second = updates[: len(updates) // 2], updates[len(updates) // 2 :]
    moments = [_moments(half) for half in (first, second)]
    moments.append(jax.tree.map(jnp.add, *moments))
    *halves, bases = _eigenbases(moments, earlier)
    crossed = [
        (_turned(one, other) ** 2).mean(0)
        for one, other in zip((second, first), halves, strict=True)
    ]
    deviation = jnp.sqrt((crossed[0] + crossed[1]) / 2 + least)
    coordinates = (_turned(updates, bases) / deviation).reshape(len(updates), -1)
    return _Layer(coordinates, (_turned(change, bases) / deviation).ravel(), bases, deviation)


def _moments(updates: Array) -> _Bases:
    """Second moments `[rows, rows]` and `[columns, columns]` of `[n, rows, columns]`, times their
    number; None for a side longer than `WIDEST`, which keeps its coordinates."""

    def along(axis: int) -> Array | None:
        if updates.shape[axis] > WIDEST:
            return None
        vectors = jnp.moveaxis(updates, axis, -1).reshape(-1, updates.shape[axis])
        return vectors.T @ vectors

    return along(1), along(2)


def _eigenbases(moments: list[_Bases], earlier: Sequence[Array]) -> list[_Bases]:
    """Their eigenvectors, by eigenvalue; one after the other, and after those of `earlier` (see
    `attacks.lapack`)."""
    leaves, structure = jax.tree.flatten(moments)
    bases: list[Array] = []
    for moment in leaves:
        bases.append(jnp.linalg.eigh(after(moment, *(bases[-1:] or earlier)))[1])
    turned: list[_Bases] = jax.tree.unflatten(structure, bases)
    return turned


def _turned(updates: Array, bases: _Bases, *, back: bool = False) -> Array:
    """Updates `[..., rows, columns]` in coordinates of these bases, or back from them."""
    for axis, basis in zip((-2, -1), bases, strict=True):
        if basis is not None:
            updates = jnp.moveaxis(jnp.tensordot(updates, basis, (axis, int(back))), -1, axis)
    return updates


def _matrices(updates: Array, like: Any) -> list[Array]:
    """Flat updates `[..., parameters]` as leaves `[..., rows, columns]`."""
    leaves = jax.tree.leaves(like)
    split = jnp.split(updates, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=-1)
    columns = [leaf.shape[-1] if leaf.ndim > 1 else 1 for leaf in leaves]
    return [
        part.reshape(*part.shape[:-1], -1, width)
        for part, width in zip(split, columns, strict=True)
    ]


def scaled(direction: Array, held_out: Sequence[Array]) -> tuple[Array, Array]:
    """A direction scaled, and an offset, such that the feature's class means on held-out updates
    are -1 and 1 (nearer, or reversed, where they cannot be told apart).

    Args:
      direction: `[parameters]`.
      held_out: updates without and with the property, each `[updates, parameters]`.

    Returns:
      The direction `[parameters]` and the offset `[]`.
    """
    low, high = (side @ direction for side in held_out)
    deviation = jnp.sqrt((low.var() + high.var()) / 2)
    apart = jnp.maximum(
        high.mean() - low.mean(), LEAST_SEPARATION * deviation + jnp.finfo(deviation.dtype).tiny
    )
    return direction * 2 / apart, -(high.mean() + low.mean()) / apart


def logistic(
    trained: Sequence[Array],
    held_out: Sequence[Array],
    key: Array,
    settings: Logistic,
) -> tuple[Array, Array]:
    """Logistic regression by SGD on standardised updates; the epoch that is best on held-out ones
    (authors' code).

    Args:
      trained: updates without and with the property, each `[updates, parameters]`.
      held_out: likewise, that choose the epoch.
      key: draws the start and the order of the updates.
      settings: of the detector.

    Returns:
      Direction `[parameters]` and offset of the log odds.
    """
    x = jnp.concatenate(trained)
    centre, deviation = x.mean(0), x.std(0) + 1e-7
    x = (x - centre) / deviation
    y = (jnp.arange(len(x)) >= len(trained[0])).astype(x.dtype)
    test = (jnp.concatenate(held_out) - centre) / deviation
    truth = jnp.arange(len(test)) >= len(held_out[0])
    batch_size = min(settings.batch_size, len(x))
    start_key, key = jax.random.split(key)
    bound = x.shape[1] ** -0.5
    start = jax.random.uniform(start_key, (x.shape[1] + 1,), x.dtype, -bound, bound)

    def step(weights: Array, rows: Array) -> tuple[Array, None]:
        def loss(w: Array) -> Array:
            return optax.sigmoid_binary_cross_entropy(x[rows] @ w[:-1] + w[-1], y[rows]).mean()

        return weights - settings.learning_rate * jax.grad(loss)(weights), None

    def epoch(
        carry: tuple[Array, Array, Array], key: Array
    ) -> tuple[tuple[Array, Array, Array], None]:
        weights, best, most = carry
        order = jax.random.permutation(key, len(x))[: len(x) // batch_size * batch_size]
        weights, _ = jax.lax.scan(step, weights, order.reshape(-1, batch_size))
        right = ((test @ weights[:-1] + weights[-1] > 0) == truth).mean()
        return (weights, jnp.where(right > most, weights, best), jnp.maximum(right, most)), None

    (_, best, _), _ = jax.lax.scan(
        epoch, (start, start, jnp.zeros(())), jax.random.split(key, settings.epochs)
    )
    direction = best[:-1] / deviation
    return direction, best[-1] - direction @ centre


def record_gradients(
    model: Model, params: Any, x: Array, y: Array, key: Array, batch: int = 100
) -> Array:
    """Gradients of single records `[records, parameters]`, dropout on."""

    def one(arguments: tuple[Array, Array, Array]) -> Array:
        x, y, key = arguments
        return record_gradient(model, params, x, y, key=key)

    return jax.lax.map(one, (x, y, jax.random.split(key, len(x))), batch_size=min(batch, len(x)))
