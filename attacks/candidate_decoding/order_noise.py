"""What the unknown order of a client's records does to its update: with what weight a record enters, and where on the way.

In units of the learning rate, for K local steps on N records.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks.candidate_decoding.candidates import FactoredGradients, gradient_changes
from jaxfl import LocalTraining, Model

Array = jax.Array


def _batch_sizes(training: LocalTraining, records: int) -> list[int]:
    """Of one epoch; the last batch holds what is left."""
    size = min(training.batch_size or records, records)
    return [size] * (records // size) + [records % size] * (records % size > 0)


def batch_weights(training: LocalTraining, records: int) -> tuple[float, float]:
    """Mean and variance of the weight with which a record enters an update, over random orders: 1 / (its batch's size) in
    every epoch."""
    sizes = _batch_sizes(training, records)
    variance = sum(1 / b for b in sizes) / records - (len(sizes) / records) ** 2
    return training.epochs * len(sizes) / records, training.epochs * max(variance, 0.0)


def noise_variance(training: LocalTraining, records: int) -> Array:
    """Variance per number of what differentially private training adds to an update, in units of the learning rate."""
    if training.privacy is None:
        return jnp.zeros(())
    sizes = _batch_sizes(training, records)
    deviation = training.privacy.clip * training.privacy.noise_multiplier
    return jnp.asarray(training.epochs * sum(1 / b**2 for b in sizes) * deviation**2)


def place_covariance(training: LocalTraining, records: int, pieces: int = 1) -> np.ndarray:
    """Covariance `[pieces, pieces]` of what a record adds to an update per unit of its gradient's change on every piece of the
    path from the first to the last of all steps, from the path's middle: in every epoch it is in a batch of random place."""
    sizes, steps = np.asarray(_batch_sizes(training, records)), training.steps(records)
    place = np.arange(steps).reshape(training.epochs, -1, 1) / max(steps - 1, 1)
    passed = np.clip(place * pieces - np.arange(pieces), 0, 1) - np.clip(pieces / 2 - np.arange(pieces), 0, 1)
    mean = passed.sum(1) / records
    return np.einsum("ebk,ebl,b->kl", passed, passed, 1 / sizes) / records - mean.T @ mean


def on_path(received: Any, update: Any, fraction: float) -> Any:
    """The model that a client with a straight path has after a fraction of its steps."""
    return jax.tree.map(lambda w, u: w - fraction * u, received, update)


def drift(
    model: Model, received: Any, update: Any, x: Array, y: Array, steps: int, pieces: int, first: int | None = None
) -> FactoredGradients:
    """Changes `[pieces * records]` of gradients of records `x [records, ...]`, `y [records]` on every piece of the path from a
    client's first step to its last; `first` as in `factored_gradients`."""
    ends = [on_path(received, update, piece / pieces * (steps - 1) / steps) for piece in range(pieces + 1)]
    changes = [gradient_changes(model, *pair, x, y, first) for pair in itertools.pairwise(ends)]
    return FactoredGradients(jax.tree.map(lambda *a: jnp.concatenate(a), *(c.layers for c in changes)), changes[0].matrices)
