"""Whether the arrays of messages are meant in another order or orientation, or by a model of
another activation.

Threat model: as of `attacks.diagnosis.causes`, which asks.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from jaxfl import Messages, Model
from jaxfl.models.architectures import ACTIVATIONS

Array = jax.Array
MOST_LAYOUTS = 32
"""Orders of arrays that are tried."""


class Structure(NamedTuple):
    """A model and messages as they may be meant.

    Attributes:
      cause: of what kind it is.
      name: what it is called.
      model: the model.
      messages: in its layout.
    """

    cause: str
    name: str
    model: Model
    messages: Messages


def layouts(model: Model, messages: Messages) -> Iterator[Structure]:
    """Orders of arrays that shapes allow and people mistake: square matrices transposed, all
    together and one by one; two arrays of one shape in each other's place."""
    for name, change in itertools.islice(_layouts(messages.received), MOST_LAYOUTS):
        moved = dataclasses.replace(
            messages, received=change(messages.received), returned=change(messages.returned)
        )
        yield Structure("layout of arrays", name, model, moved)


def activations(model: Model, messages: Messages) -> Iterator[Structure]:
    """Every other activation between dense layers."""
    if model.layers is not None and len(model.layers.names) > 1:
        for name in ACTIVATIONS:
            meant = f"{name} between the layers"
            yield Structure("another activation", meant, _with_activation(model, name), messages)


def _layouts(tree: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What a layout is called, and what brings a tree of arrays `[rounds, ...]` into it."""
    with_path, _ = jax.tree.flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in with_path]
    shapes = [leaf.shape[1:] for _, leaf in with_path]
    square = [i for i, shape in enumerate(shapes) if len(shape) == 2 and shape[0] == shape[1] > 1]
    together = [tuple(square)] if len(square) > 1 else []
    for turned in [*together, *((i,) for i in square)]:
        shown = ", ".join(names[i] for i in turned)
        yield f"{shown} transposed", functools.partial(_transposed, turned)
    for a, b in itertools.combinations(range(len(shapes)), 2):
        if shapes[a] == shapes[b]:
            yield f"{names[a]} and {names[b]} exchanged", functools.partial(_exchanged, a, b)


def _transposed(places: tuple[int, ...], tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    turned = [leaf.swapaxes(1, 2) if i in places else leaf for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, turned)


def _exchanged(a: int, b: int, tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    leaves[a], leaves[b] = leaves[b], leaves[a]
    return jax.tree.unflatten(structure, leaves)


@functools.lru_cache(maxsize=64)
def _with_activation(model: Model, name: str) -> Model:
    """The model's dense layers with another activation between them; equal ones compile once."""
    layers, activation = model.layers, ACTIVATIONS[name]
    assert layers is not None

    def apply(params: Any, x: Array, *, key: Any = None, mask: Any = None) -> Array:
        for place, layer in enumerate(layers.names):
            at = layers.parameters(params, layer)
            x = (activation(x) if place else x) @ at["kernel"] + at.get("bias", 0)
        return x

    return dataclasses.replace(model, apply=apply, layers=None)
