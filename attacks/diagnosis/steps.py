"""Which steps a client takes, if it takes several: epochs, batches, momentum.

Threat model: as of `attacks.diagnosis.causes`, which asks.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from attacks.path import local_path
from jaxfl import LocalTraining, Model, Plugin, sgd
from jaxfl.domains import Number

Array = jax.Array
MOMENTA = (0.9, 0.5, 0.95, 0.99)
"""What people who use momentum set, the most frequent first."""
SIZES = (8, 16, 32, 64, 128, 256)
"""Sizes of batches that people use, beside simple parts of the records."""
MOST_EPOCHS = 20
"""Over the records, in one round."""
ALIKE, BLURRED = 0.15, 0.4
"""By how much of itself a path may be longer or shorter than a recipe's: gradients change along it;
and the records of a batch are not all."""
UNLIKE = 1.25
"""By how much weights of classes differ."""


@struct.dataclass
class Otherwise(Plugin):
    """Another loss than the model's, or weight decay. Numbers are traced, so that all clients of a
    model share one program.

    Attributes:
      decay: of the model, so much is added to each gradient.
      smoothing: share of each loss that is towards all classes alike.
      weights: of records by their class.
    """

    decay: Number
    smoothing: Number
    weights: tuple[Number, ...]

    def step_gradient(
        self, model: Model, params: Any, x: Array, y: Array, mask: Array, key: Array
    ) -> Any:
        """See `jaxfl.Plugin`."""
        classes = len(self.weights)
        alike = jnp.full((len(y), classes), 1 / classes, x.dtype)

        def loss(params: Any) -> Array:
            outputs = model.apply(params, x, key=key, mask=mask)
            losses = model.loss(outputs, y)
            losses += self.smoothing * (model.loss(outputs, alike) - losses)
            losses *= jnp.stack(self.weights)[y.astype(int)]
            return jnp.where(mask, losses, 0).sum() / jnp.maximum(mask.sum(), 1)

        return jax.tree.map(lambda g, p: g + self.decay * p, jax.grad(loss)(params), params)


def means(plugin: Otherwise, cause: str) -> bool:
    """Whether numbers say what their cause means: weights that are alike are another rate."""
    if cause == "class weights":
        return bool(0 < min(plugin.weights) < max(plugin.weights) / UNLIKE)
    return bool(max(plugin.decay, plugin.smoothing) > 0)


def moved(plugin: Otherwise, cause: str, more: list[float]) -> Otherwise:
    """With so much more of a cause."""
    if cause == "weight decay":
        return dataclasses.replace(plugin, decay=plugin.decay + more[0])
    if cause == "label smoothing":
        return dataclasses.replace(plugin, smoothing=plugin.smoothing + more[0])
    weights = tuple(w + m for w, m in zip(plugin.weights, more, strict=True))
    return dataclasses.replace(plugin, weights=weights)


def shown(plugin: Otherwise, cause: str) -> str:
    """The numbers of a cause."""
    numbers = {"weight decay": (plugin.decay,), "label smoothing": (plugin.smoothing,)}
    return ", ".join(f"{number:.2g}" for number in numbers.get(cause, plugin.weights))


def recipes(
    training: LocalTraining, records: int, steps: float
) -> Iterator[tuple[str, str, LocalTraining]]:
    """Recipes of as long a path, about in the order of the noise that they make, the least first:
    of what kind they are, what they are called, and they themselves.

    Args:
      training: what was told; the learning rate is the client's, but for the last recipe.
      records: of the client.
      steps: length of its path, in steps of that rate along the first gradient.
    """
    told, training = training, dataclasses.replace(training, optimizer=optax.sgd)
    plain = functools.partial(
        dataclasses.replace, training, batch_size=None, drop_last=False, shuffle=True
    )
    for epochs in _near(steps, 1, ALIKE):
        yield "epochs", f"{epochs} full-batch steps", plain(epochs=epochs)
    for count, momentum in _with_momentum(steps, ALIKE):
        heavy = plain(epochs=count, optimizer=sgd(momentum))
        yield "momentum", f"{count} full-batch steps with momentum {momentum}", heavy
    sizes = {*SIZES, records // 2, records // 3, records // 4, training.batch_size or 0}
    divided = [
        plain(batch_size=size, drop_last=drop_last)
        for size in sizes
        if 0 < size < records
        for drop_last in ((False, True) if records % size else (False,))
    ]
    for batches in sorted(divided, key=lambda each: _noise_of(each, records)):
        yield from _of_batches(batches, training, records, steps)
    if told.batch_size is not None:
        yield from _of_told_batches(told, records, steps)


def _noise_of(batches: LocalTraining, records: int) -> tuple[float, float]:
    """What orders recipes by their noise: how much the weights of records in an epoch differ, which
    those of equal batches do not; then how small batches are."""
    sizes = np.asarray(batches.batch_sizes(records), float)
    left_out = records - sizes.sum()
    mean = len(sizes) / records
    spread = (sizes * (1 / sizes - mean) ** 2).sum() + left_out * mean**2
    return round(float(spread / mean**2), 9), 1 / sizes[0]


def _of_batches(
    batches: LocalTraining, told: LocalTraining, records: int, steps: float
) -> Iterator[tuple[str, str, LocalTraining]]:
    """As many epochs as come nearest."""
    size, each = batches.batch_size, len(batches.batch_sizes(records))
    dropped = ", the last left out" if batches.drop_last else ""
    as_told = (size, batches.drop_last) == (told.batch_size, told.drop_last)
    for epochs in _near(steps, each, BLURRED):
        often = "once" if epochs == 1 else f"{epochs} times"
        if epochs <= MOST_EPOCHS:
            recipe = dataclasses.replace(batches, epochs=epochs)
            name = f"batches of {size}{dropped}, {often} over the records"
            yield "epochs" if as_told else "batches", name, recipe


def _of_told_batches(
    training: LocalTraining, records: int, steps: float
) -> Iterator[tuple[str, str, LocalTraining]]:
    """Batches as they were told, with momentum, or at another rate."""
    batches = len(training.batch_sizes(records))
    for count, momentum in _with_momentum(steps, BLURRED):
        if count % batches == 0:
            epochs, optimizer = count // batches, sgd(momentum)
            heavy = dataclasses.replace(training, epochs=epochs, optimizer=optimizer)
            yield "momentum", f"momentum {momentum}, {epochs} epochs", heavy
    rate = float(training.learning_rate) * steps / float(local_path(training, records).total)
    faster = dataclasses.replace(training, learning_rate=rate)
    yield "learning rate", f"the rate {rate:.4g}", faster


def _with_momentum(steps: float, tolerance: float) -> list[tuple[int, float]]:
    """How many steps with which momentum go as far as so many without."""
    return [
        (count, momentum)
        for momentum in MOMENTA
        for count in range(2, 50)
        if abs(_length(count, momentum) - steps) < tolerance * steps
    ]


def _length(count: int, momentum: float) -> float:
    """Length of a path of so many steps along one gradient, in steps without momentum."""
    return sum((1 - momentum**j) / (1 - momentum) for j in range(1, count + 1))


def _near(steps: float, each: int, tolerance: float) -> list[int]:
    """The number of epochs of so many steps each that comes nearest, if it comes near."""
    epochs = max(round(steps / each), 1)
    near = abs(epochs * each - steps) < tolerance * steps and epochs * each > 1
    return [epochs] if near else []
