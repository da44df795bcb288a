"""What the unknown order of a client's records does to its update: with what weight a record enters, and where on the way.

In units of the learning rate, for K local steps on N records.
"""

from typing import Any

import jax
import jax.numpy as jnp

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


def place_variance(training: LocalTraining, records: int) -> float:
    """Variance of what a record adds to an update per unit of its gradient's change between the first and the last of all
    steps, from the middle: in every epoch it is in a batch of random place."""
    sizes, steps = _batch_sizes(training, records), training.steps(records)
    total = 0.0
    for epoch in range(training.epochs):
        places = [(epoch * len(sizes) + i - (steps - 1) / 2) / max(steps - 1, 1) for i in range(len(sizes))]
        total += sum(p**2 / b for p, b in zip(places, sizes, strict=True)) / records - (sum(places) / records) ** 2
    return max(total, 0.0)


def on_path(received: Any, update: Any, fraction: float) -> Any:
    """The model that a client with a straight path has after a fraction of its steps."""
    return jax.tree.map(lambda w, u: w - fraction * u, received, update)


def drift(
    model: Model, received: Any, update: Any, x: Array, y: Array, steps: int, first: int | None = None
) -> FactoredGradients:
    """Changes of gradients of records `x [records, ...]`, `y [records]` while a client's model moves, from its first step to
    its last; `first` as in `factored_gradients`."""
    return gradient_changes(model, received, on_path(received, update, (steps - 1) / steps), x, y, first)
