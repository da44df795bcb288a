"""Which array of a recording is which parameter of a model: by names, else by order and shapes."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from jaxfl import _check
from jaxfl.domains import checked
from jaxfl.models import Model
from jaxfl.recordings.arrays import UNNAMED, natural

BUFFERS = re.compile(r"(^|[./_])(running_mean|running_var|num_batches_tracked|moving_\w+)$")
"""What frameworks save beside parameters."""
ROLES = {
    **dict.fromkeys(("weight", "kernel", "w", "embedding", "scale", "gamma"), "weight"),
    **dict.fromkeys(("bias", "b", "beta", "offset"), "bias"),
}
"""What a parameter is in its layer, by the names that frameworks give it."""
AS_TORCH, AS_JAX = "weight", ("kernel", "w")
Shape = tuple[int, ...]
Change = Literal["", "transposed", "transposed, channels last"]


class OtherModelError(ValueError):
    """Arrays are those of another model, whatever their names and order."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """Where one array goes.

    Attributes:
      name: of the array.
      shape: of the array.
      path: of the parameter, as "Dense_0/kernel".
      parameter: shape of the parameter.
      change: what is done to the array: nothing; "transposed", for weights `[outputs, inputs, ...]`
        become kernels `[..., inputs, outputs]`; and "channels last" where a dense layer reads
        flattened images, which PyTorch lays out channel by channel.
      channels: of those images, else 0.
    """

    name: str
    shape: Shape
    path: str
    parameter: Shape
    change: Change = ""
    channels: int = 0

    def __str__(self) -> str:
        same = f"{self.name} {self.shape} -> {self.path} {self.parameter}"
        return f"{same}, {self.change}" if self.change else same

    def value(self, array: np.ndarray) -> np.ndarray:
        """The parameter."""
        if not self.change:
            return array
        if self.channels:
            array = array.reshape(len(array), self.channels, -1).swapaxes(1, 2)
            array = array.reshape(len(array), -1)
        return np.ascontiguousarray(np.moveaxis(array, (0, 1), (-1, -2)))


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which array of a recording is which parameter.

    Attributes:
      placed: one entry for every parameter.
      dropped: names of arrays that are no parameters: running statistics.
      tree: the model's parameters, with paths for leaves.
    """

    placed: tuple[Placed, ...]
    dropped: tuple[str, ...]
    tree: Any = dataclasses.field(repr=False)

    def __str__(self) -> str:
        dropped = [f"dropped: {', '.join(self.dropped)}"] if self.dropped else []
        return "\n".join([*map(str, self.placed), *dropped])

    def params(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """The model's parameters, as NumPy's arrays of the recording's precision.

        Raises:
          ValueError: if arrays have other names or shapes than those that the layout is of, or hold
            values that are quantised or not finite.
        """
        known = {p.name for p in self.placed} | set(self.dropped)
        if set(arrays) != known:
            odd = sorted(set(arrays) ^ known)[0]
            there = "is missing" if odd in known else "was not there before"
            raise ValueError(f"array {odd!r} {there}: this is another model's file")
        for p in self.placed:
            array = np.asarray(arrays[p.name])
            if array.shape != p.shape:
                raise ValueError(f"array {p.name!r} has shape {array.shape}, before {p.shape}")
            _check.unquantised(f"array {p.name!r}", array)
            if not np.isfinite(array).all():
                raise ValueError(f"array {p.name!r} holds values that are not finite")
        values = {p.path: p.value(np.asarray(arrays[p.name])) for p in self.placed}
        return jax.tree.map(values.__getitem__, self.tree)


@checked
def layout_of(
    model: Model,
    arrays: Mapping[str, Any],
    layers: Mapping[str, str] | None = None,
    transposed: bool | None = None,
) -> Layout:
    """Which array is which parameter of a model.

    Arrays that are named as the model's own parameters ("Dense_0/kernel" or "Dense_0.kernel") are
    these. Others are taken layer by layer in their order, if shapes allow it; else by shapes, if
    these leave no choice. Unnamed ones ("arr_0", ...) are the model's in its order, weight before
    bias.

    Args:
      model: the model.
      arrays: of one model, or their shapes, in the order of its layers.
      layers: the model's layer for a recording's, `{"fc1": "Dense_0"}`, where it is not to be
        found: all of them, or those in doubt.
      transposed: whether weights are `[outputs, inputs, ...]`, as PyTorch's; by default what shapes
        say or, if every weight is square, names: "weight" is, "kernel" and "w" are not.

    Raises:
      ValueError: if arrays are not those of the model, or it is open which is which.
    """
    shapes = {name: _shape_of(a) for name, a in arrays.items()}
    tree, wanted = _parameters(model)
    dropped = tuple(name for name in shapes if BUFFERS.search(name) and name not in wanted)
    kept = {name: shape for name, shape in shapes.items() if name not in dropped}
    named = {name.replace(".", "/"): name for name in kept}
    if set(named) == set(wanted):
        pairs = {named[path]: path for path in wanted}
    else:
        pairs = _pairs(_layers(_named_as(kept, wanted)), _layers(_split_all(wanted)), layers or {})
    turned = _is_transposed(pairs, kept, wanted, transposed)
    return Layout(tuple(_placed(pairs, kept, wanted, turned)), dropped, tree)


def _shape_of(array: Any) -> Shape:
    is_shape = isinstance(array, tuple) and all(isinstance(n, int) for n in array)
    return array if is_shape else tuple(np.shape(array))


def _parameters(model: Model) -> tuple[Any, dict[str, Shape]]:
    """A model's parameters with paths for leaves, and their shapes in the order of its layers."""
    params = model.init(jax.random.key(0))

    def path_of(path: Any, _: Any) -> str:
        return jax.tree_util.keystr(path, simple=True, separator="/")

    shapes = {name: np.shape(leaf) for name, leaf in _leaves(params, "")}
    return jax.tree.map_with_path(path_of, params), shapes


def _leaves(tree: Any, above: str) -> Iterator[tuple[str, Any]]:
    """Leaves in the order in which they were made, which `jax.tree` forgets; weights first."""
    if isinstance(tree, Mapping):
        for name in sorted(tree, key=lambda name: ROLES.get(name) == "bias"):
            yield from _leaves(tree[name], f"{above}{name}/")
        return
    for path, leaf in jax.tree.leaves_with_path(tree):
        inner = jax.tree_util.keystr(path, simple=True, separator="/")
        yield f"{above}{inner}".rstrip("/"), leaf


@dataclasses.dataclass(frozen=True)
class _Layer:
    """One layer: by roles of its arrays, their names and shapes."""

    name: str
    names: dict[str, str]
    shapes: dict[str, Shape]

    def fits(self, layer: "_Layer") -> bool:
        """Whether it may be that layer of the model."""
        alike = self.shapes.keys() == layer.shapes.keys()
        return alike and all(
            layer.shapes[role] in (shape, _turned(shape)) for role, shape in self.shapes.items()
        )


def _turned(shape: Shape) -> Shape:
    """Shape of a kernel `[..., inputs, outputs]`, for a weight `[outputs, inputs, ...]`."""
    return (*shape[2:], *shape[1::-1]) if len(shape) > 1 else shape


Named = dict[str, tuple[str, str, Shape]]
"""By name of an array: its layer, its role there, its shape."""


def _split_all(shapes: Mapping[str, Shape]) -> Named:
    def split(name: str) -> tuple[str, str]:
        layer, _, last = name.replace(".", "/").rpartition("/")
        return layer, ROLES.get(last, last)

    return {name: (*split(name), shape) for name, shape in shapes.items()}


def _named_as(kept: dict[str, Shape], wanted: dict[str, Shape]) -> Named:
    """Layers of arrays by their names; those without have the model's."""
    if not all(UNNAMED.fullmatch(name) for name in kept):
        return _split_all(kept)
    if len(kept) != len(wanted):
        raise ValueError(
            f"arrays holds {len(kept)} without names, the model has {len(wanted)} parameters: "
            "give names, those of running statistics too"
        )
    pairs = zip(kept.items(), _split_all(wanted).values(), strict=True)
    return {name: (layer, role, shape) for (name, shape), (layer, role, _) in pairs}


def _layers(named: Named) -> list[_Layer]:
    layers: dict[str, _Layer] = {}
    for name, (layer, role, shape) in named.items():
        member = layers.setdefault(layer, _Layer(layer, {}, {}))
        member.names[role], member.shapes[role] = name, shape
    return list(layers.values())


def _pairs(given: list[_Layer], wanted: list[_Layer], told: Mapping[str, str]) -> dict[str, str]:
    """The path of the parameter that each array is."""
    for names, side in ((told, given), (told.values(), wanted)):
        odd = set(names) - {layer.name for layer in side}
        if odd:
            raise ValueError(f"layers names {min(odd)!r}; there are {_names(side)}")
    if len(given) != len(wanted):
        raise OtherModelError(
            f"arrays are of {len(given)} layers ({_names(given)}); the model has {len(wanted)} "
            f"({_names(wanted)})"
        )
    by_name = {layer.name: layer for layer in wanted}
    left = [layer for layer in wanted if layer.name not in told.values()]
    open_layers = [layer for layer in given if layer.name not in told]
    matched = [(layer, by_name[told[layer.name]]) for layer in given if layer.name in told]
    matched += _matched(open_layers, left)
    for layer, other in matched:
        if not layer.fits(other):
            raise ValueError(f"layer {_told(layer)} cannot be the model's {_told(other)}")
    return {
        layer.names[role]: other.names[role] for layer, other in matched for role in layer.names
    }


def _names(layers: Sequence[_Layer]) -> str:
    return ", ".join(layer.name for layer in layers)


def _told(layer: _Layer) -> str:
    return f"{layer.name} {' '.join(f'{role} {shape}' for role, shape in layer.shapes.items())}"


def _matched(given: list[_Layer], wanted: list[_Layer]) -> list[tuple[_Layer, _Layer]]:
    """Layers in order, if they fit; else those that alone fit each other."""
    if all(layer.fits(other) for layer, other in zip(given, wanted, strict=True)):
        _check_order(given, wanted)
        return list(zip(given, wanted, strict=True))
    pairs = []
    for layer in given:
        fitting = [other for other in wanted if layer.fits(other)]
        if len(fitting) != 1:
            has = f"which has {'; '.join(map(_told, wanted))}"
            if not fitting:
                raise OtherModelError(f"layer {_told(layer)} is none of the model's, {has}")
            raise ValueError(
                f"layer {_told(layer)} may be each of {_names(fitting)} of the model, {has}: say "
                "which by layers={...}"
            )
        pairs.append((layer, fitting[0]))
    for (layer, place), (other, taken) in itertools.combinations(pairs, 2):
        if place is taken:
            raise ValueError(
                f"layers {layer.name!r} and {other.name!r} both fit {place.name!r} of the model "
                "alone: they are of another model, or say which is which by layers={...}"
            )
    return pairs


def _check_order(given: list[_Layer], wanted: list[_Layer]) -> None:
    """Raise `ValueError` if layers of equal shapes stand in the order of their names, which may not
    be that of the model (safetensors sorts them), unless numbers alone tell the names apart."""
    for layer, other in itertools.combinations(given, 2):
        swapped = layer.fits(wanted[given.index(other)]) and other.fits(wanted[given.index(layer)])
        sorted_names = natural(layer.name) < natural(other.name)
        numbered = re.sub(r"\d+", "", layer.name) == re.sub(r"\d+", "", other.name)
        if swapped and sorted_names and not numbered:
            raise ValueError(
                f"layers {layer.name!r} and {other.name!r} have equal shapes, and it is open which "
                f"comes first: say by layers={{...}} which is {wanted[given.index(layer)].name!r}"
            )


def _is_transposed(
    pairs: dict[str, str],
    shapes: dict[str, Shape],
    wanted: dict[str, Shape],
    told: bool | None,
) -> bool:
    """Whether weights are `[outputs, inputs, ...]`."""
    weights = {n: path for n, path in pairs.items() if len(shapes[n]) > 1 and _turns(path)}
    ways = [
        turned
        for turned in ((False, True) if told is None else (told,))
        if all(
            (_turned(shapes[name]) if turned else shapes[name]) == wanted[path]
            for name, path in weights.items()
        )
    ]
    if not ways:
        shown = "; ".join(f"{n} {shapes[n]}, {path} {wanted[path]}" for n, path in weights.items())
        raise ValueError(f"transposed={told} does not bring weights to the model's shapes: {shown}")
    if len(ways) == 1 or not weights:
        return ways[0]
    kinds = {_last(name) for name in weights}
    if kinds == {AS_TORCH} or kinds <= set(AS_JAX):
        return kinds == {AS_TORCH}
    raise ValueError(
        f"transposed=None leaves open whether {min(weights)!r} is [outputs, inputs]: every weight "
        "is square; say True (PyTorch) or False"
    )


def _last(name: str) -> str:
    return re.split("[./]", name)[-1]


def _turns(path: str) -> bool:
    """Whether frameworks disagree about a weight's axes: about tables of embeddings they do not."""
    return _last(path) != "embedding"


def _placed(
    pairs: dict[str, str], shapes: dict[str, Shape], wanted: dict[str, Shape], turned: bool
) -> Iterator[Placed]:
    """Places in the order of the model. The first dense layer after convolutions reads their
    flattened images."""
    names, channels = {path: name for name, path in pairs.items()}, 0
    for path, shape in wanted.items():
        name, flattened = names[path], 0
        change: Change = ""
        if turned and len(shape) > 1 and _turns(path):
            change = "transposed"
            if len(shape) == 2 and channels and shape[0] > channels and shape[0] % channels == 0:
                change, flattened = "transposed, channels last", channels
        channels = shape[-1] if len(shape) > 2 else 0 if len(shape) == 2 else channels
        yield Placed(name, shapes[name], path, shape, change, flattened)
