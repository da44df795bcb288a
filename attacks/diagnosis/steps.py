"""Which steps a client takes, if it takes several: epochs, batches, momentum.

Threat model: as of `attacks.diagnosis.causes`, which asks.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import jax
import optax

from jaxfl import LocalTraining

Array = jax.Array
MOMENTUM = 0.9
"""What nearly everyone who uses momentum sets."""
SIZES = (8, 16, 32, 64, 128, 256)
"""Of batches that people use, beside simple parts of the records."""
ALIKE, BLURRED = 0.15, 0.4
"""By how much of itself a path may be longer or shorter than a recipe's: gradients change along it;
and the records of a batch are not all."""


def sgd_with_momentum(learning_rate: float | Array) -> optax.GradientTransformation:
    """The optimiser of clients that use momentum."""
    return optax.sgd(learning_rate, momentum=MOMENTUM)


def recipes(
    training: LocalTraining, records: int, steps: float
) -> Iterator[tuple[str, str, LocalTraining]]:
    """Recipes of several steps, the tightest first: of what kind they are, what they are called,
    and they themselves.

    Args:
      training: one full-batch step, whose learning rate is the client's.
      records: of the client.
      steps: length of its path, in steps of that rate along the first gradient.
    """
    change = functools.partial(dataclasses.replace, training)
    for epochs in _near(steps, 1, ALIKE):
        yield "epochs", f"{epochs} full-batch steps", change(epochs=epochs)
    for count in range(2, 50):
        length = sum((1 - MOMENTUM**j) / (1 - MOMENTUM) for j in range(1, count + 1))
        if abs(length - steps) < ALIKE * steps:
            heavy = change(epochs=count, optimizer=sgd_with_momentum)
            yield "momentum", f"{count} full-batch steps with momentum {MOMENTUM}", heavy
    sizes = {*SIZES, records // 2, records // 3, records // 4}
    for size in sorted(size for size in sizes if 0 < size < records):
        for drop_last in (False, True) if records % size else (False,):
            batches = records // size if drop_last else math.ceil(records / size)
            for epochs in _near(steps, batches, BLURRED):
                dropped = ", the last left out" if drop_last else ""
                often = "once" if epochs == 1 else f"{epochs} times"
                recipe = change(epochs=epochs, batch_size=size, drop_last=drop_last)
                yield "batches", f"batches of {size}{dropped}, {often} over the records", recipe


def _near(steps: float, each: int, tolerance: float) -> list[int]:
    """The number of epochs of so many steps each that comes nearest, if it comes near."""
    epochs = max(round(steps / each), 1)
    near = abs(epochs * each - steps) < tolerance * steps and epochs * each > 1
    return [epochs] if near else []
