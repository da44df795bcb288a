"""Clients hold pictures; the server has some of its own (Song 2020): models, and representatives of
what clients hold, which several attacks begin with."""

import dataclasses

import jax

from attacks import Representatives, Representing, labels_of, represent
from jaxfl import Model, trunk_cnn
from jaxfl.datasets import Dataset
from jaxfl.parallel import map_clients, strategy_here

Array = jax.Array


def strides(side: int) -> tuple[int, int, int, int]:
    """Strides of the shared model's convolutions, for images of so many pixels down (Song 2020,
    Tables I, II)."""
    return (2, 1, 2, 1) if side <= 28 else (2, 2, 2, 1)


def shared_model(data: Dataset, widths: tuple[int, ...], more: int = 0) -> Model:
    """The shared classifier, with so many classes more than there are."""
    shape = data.x.shape[1:]
    return trunk_cnn(shape, (data.classes or 0) + more, widths=widths, strides=strides(shape[0]))


@dataclasses.dataclass(frozen=True)
class Represent:
    """Representatives of all participants of one round.

    Attributes:
      model: the shared model.
      shape: of an image.
      settings: of the search.
    """

    model: Model
    shape: tuple[int, ...]
    settings: Representing

    def __call__(self, inputs: tuple[Array, Array, Array, Array]) -> Representatives:
        """Representatives of a round's participants, from the round's model, updates, counts of
        classes and keys."""
        received, gradients, counts, keys = inputs

        def one(arguments: tuple[Array, Array, Array]) -> Representatives:
            observed, n, key = arguments
            y = labels_of(n, self.settings.images)
            return represent(self.model, received, observed, y, key, self.shape, self.settings)

        return map_clients(one, (gradients, counts, keys), strategy_here())
