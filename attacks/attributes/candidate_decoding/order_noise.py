"""Noise of an update: what the unknown order of a client's records does, with what weight a record
enters and where on the way, and what private training and the upload add.

In units of the learning rate.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.factored_gradients import (
    FactoredGradients,
    gradient_changes,
)
from attacks.path import LocalPath, local_path, on_path
from jaxfl import LocalTraining, Model, Upload

Array = jax.Array


def _weights_in_batches(training: LocalTraining, records: int) -> tuple[Array, Array]:
    """With what weight a record enters an update if it is in a batch, `[epochs, batches]`, and its
    chance to be in one `[batches]`: the step's own weight over the batch's size, or over the
    nominal size under private training."""
    sizes = jnp.asarray(training.batch_sizes(records), float)
    steps = local_path(training, records).weights.reshape(training.epochs, -1)
    return steps / (sizes if training.privacy is None else sizes[0]), sizes / records


def batch_weights(training: LocalTraining, records: int) -> tuple[Array, Array]:
    """Mean and variance of the weight with which a record enters an update, over random orders."""
    weights, chances = _weights_in_batches(training, records)
    means = weights @ chances
    return means.sum(), jnp.maximum(weights**2 @ chances - means**2, 0.0).sum()


def noise_variance(training: LocalTraining, records: int) -> Array:
    """Variance per number of what differentially private training adds to an update, in units of
    the learning rate."""
    if training.privacy is None:
        return jnp.zeros(())
    sizes = training.batch_sizes(records)
    deviation = training.privacy.clip * training.privacy.noise_multiplier / sizes[0]
    return (local_path(training, records).weights ** 2).sum() * deviation**2


def upload_variance(training: LocalTraining, update: Any) -> Array:
    """Variance per number of the noise on an update as it was sent, in units of the learning
    rate."""
    numbers = ravel_pytree(update)[0]
    total = jnp.zeros(())
    for plugin in training.plugins:
        if isinstance(plugin, Upload):
            relative = jnp.asarray(plugin.noise_multiplier)
            # Without clipping the noise is in units of a norm that is seen with the noise.
            norm = ((numbers**2).sum() / (1 + relative**2 * len(numbers))) ** 0.5
            total += (relative * jnp.where(jnp.isfinite(plugin.clip), plugin.clip, norm)) ** 2
    return total / training.learning_rate**2


def place_covariance(training: LocalTraining, records: int, pieces: int = 1) -> Array:
    """Covariance `[pieces, pieces]` of what a record adds to an update per unit of its gradient's
    change on every piece of the path from the first to the last of all steps, from the path's
    centre: in every epoch it is in a batch of random place."""
    weights, chances = _weights_in_batches(training, records)
    path = local_path(training, records)
    last = jnp.where(path.places[-1] > 0, path.places[-1], 1)

    def passed(place: Array) -> Array:
        return jnp.clip(place[..., None] / last * pieces - jnp.arange(pieces), 0, 1)

    moved = passed(path.places) - passed(path.centre)
    added = weights[..., None] * moved.reshape(*weights.shape, pieces)
    means = jnp.einsum("ebk,b->ek", added, chances)
    return jnp.einsum("ebk,ebl,b->kl", added, added, chances) - means.T @ means


def piece_ends(received: Any, update: Any, path: LocalPath, pieces: int) -> list[Any]:
    """Models at the ends of equal pieces of the path from a client's first step to its last."""
    last = path.places[-1]
    return [on_path(received, update, last * piece / pieces) for piece in range(pieces + 1)]


def drift(
    model: Model, ends: Sequence[Any], x: Array, y: Array, depth: int | None = None
) -> FactoredGradients:
    """Changes `[pieces * records]` of gradients of records `x [records, ...]`, `y [records]` on
    every piece of a client's path, whose `ends` are models `[pieces + 1]`; `depth` as in
    `factored_gradients`."""
    changes = [gradient_changes(model, *pair, x, y, depth) for pair in itertools.pairwise(ends)]
    return FactoredGradients(
        jax.tree.map(lambda *a: jnp.concatenate(a), *(c.layers for c in changes)),
        changes[0].matrices,
    )


class OrderNoise(NamedTuple):
    """Rows of the noise, whose squares add to its covariance, by products.

    Attributes:
      candidates: with the candidates' gradients `[records, K, rows]`.
      expected: with the records' own `[records, rows]`.
      inner: with each other `[rows, rows]`.
      residual: with the residual `[rows]`.
      squares: sum of their squares, before what is common to them is taken off.
    """

    candidates: Array
    expected: Array
    inner: Array
    residual: Array
    squares: Array


def with_weights(
    noise: OrderNoise,
    gram: Array,
    along: Array,
    scores: Array,
    training: LocalTraining,
    spread: float | Array,
) -> OrderNoise:
    """Rows of the records' weights before those of a noise: every record's gradient, as the guess
    expects it.

    The weights of any one order sum to the same number, so that what all records share is no
    noise of theirs; `spread`, room for what the linearisation misses, is of every record on its
    own.

    Args:
      noise: other rows.
      gram: products of the candidates' gradients `[records, K, records, K]`.
      along: of these with the residual `[records, K]`.
      scores: `[records, K]`.
      training: the client's recipe.
      spread: as in `GLS`.
    """
    records = len(scores)
    mean, variance = batch_weights(training, records)
    free = spread * mean**2
    each, common = jnp.sqrt(free + variance * records / max(records - 1, 1)), jnp.sqrt(free)

    def scaled(rows: Array, axis: int) -> Array:
        return each * rows + (common - each) * rows.mean(axis, keepdims=True)

    across = jnp.einsum("nkml,ml->nkm", gram, scores)
    expected = jnp.einsum("nk,nkm->nm", scores, across)
    beside = scaled(noise.expected, 0)
    return OrderNoise(
        jnp.concatenate([scaled(across, 2), noise.candidates], 2),
        jnp.concatenate([scaled(expected, 1), noise.expected], 1),
        jnp.block([[scaled(scaled(expected, 1), 0), beside], [beside.T, noise.inner]]),
        jnp.concatenate([scaled((scores * along).sum(1), 0), noise.residual]),
        noise.squares + each**2 * jnp.trace(expected),
    )


def with_drift(
    noise: OrderNoise,
    moved: FactoredGradients,
    centre: FactoredGradients,
    along: Array,
    scores: Array,
    training: LocalTraining,
) -> OrderNoise:
    """Rows of the drift before those of a noise.

    Places in the order are dealt without repetition: their sum is fixed, and what drifts alike in
    all records is no noise.

    Args:
      noise: rows of simulated deviations.
      moved: expected changes `[pieces * records]` of the records' gradients, as by `drift`.
      centre: the candidates' gradients `[records * K]`.
      along: products of the changes with the residual and the deviations `[pieces * records, 1 +
        deviations]`.
      scores: `[records, K]`.
      training: the client's recipe.
    """
    records, changes = len(scores), moved.gram()
    covariance = (
        place_covariance(training, records, len(changes) // records) * records / max(records - 1, 1)
    )
    variances, directions = jnp.linalg.eigh(covariance)
    root = jnp.sqrt(jnp.maximum(variances, 0))[:, None] * directions.T

    def scaled(products: Array) -> Array:
        return jnp.einsum("kl,lnm->knm", root, products.reshape(len(root), records, -1)).reshape(
            products.shape
        )

    def centred(rows: Array) -> Array:
        pieces = rows.reshape(len(root), records, -1)
        return (pieces - pieces.mean(1, keepdims=True)).reshape(rows.shape)

    inner, along = scaled(scaled(changes).T), centred(scaled(along))
    candidates = centred(scaled(moved.inner(centre))).T.reshape(*scores.shape, -1)
    return OrderNoise(
        jnp.concatenate([candidates, noise.candidates], 2),
        jnp.concatenate([jnp.einsum("nk,nkm->nm", scores, candidates), noise.expected], 1),
        jnp.block([[centred(centred(inner).T), along[:, 1:]], [along[:, 1:].T, noise.inner]]),
        jnp.concatenate([along[:, 0], noise.residual]),
        noise.squares + jnp.trace(inner),
    )
