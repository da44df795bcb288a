"""The type of a model, and losses.

`Model(init, apply, loss)` is the whole contract: any JAX library's model enters by giving the three
functions, and Flax modules through `jaxfl.from_flax`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Num

from jaxfl import _check
from jaxfl.domains import Key, Params, Share, checked

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class DenseLayers:
    """Dense layers of a model, each of which takes one vector of every record: gradients of single
    records by their parameters are outer products.

    Attributes:
      names: the layers in order of evaluation, as paths in the parameters ("Dense_0",
        "Block_0/Dense_1"; "" of a model that is one layer). The parameters there are
        `kernel [inputs, outputs]` and perhaps `bias [outputs]`.
      forward: `forward(params, x, offsets, first=None) -> outputs, inputs`: evaluates the model
        with `offsets[name] [batch, outputs]` added to each layer's output (and the first layer's
        output replaced by `first`, if given), and returns each layer's input `inputs[name] [batch,
        inputs]` beside the outputs.
      takes_records: True if the first layer's input is the record itself, feature by feature.
    """

    names: tuple[str, ...]
    forward: Callable[..., tuple[Array, dict[str, Array]]]
    takes_records: bool = False

    def parameters(self, params: Any, name: str) -> dict[str, Array]:
        """The parameters (or any tree of that structure) of one layer: `kernel`, perhaps `bias`."""
        path = name.split("/") if name else ()
        return functools.reduce(lambda tree, part: tree[part], path, params)


@dataclasses.dataclass(frozen=True)
class Trunk:
    """The part of a classifier before its last, dense layer.

    Attributes:
      features: `features(params, x [batch, ...]) -> [batch, height, width, channels]`, what the
        last layer takes, unflattened.
      channels: how many there are.
      head: the last layer, as a key of the parameters: `kernel [height x width x channels,
        classes]` and `bias [classes]`.
    """

    features: Callable[[Any, Array], Array]
    channels: int
    head: str


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as pure functions.

    Attributes:
      init: `init(key) -> params`, any pytree of floating arrays.
      apply: `apply(params, x [batch, ...], *, key=None, mask=None) -> outputs [batch, ...]`.
        `key=None` turns dropout off. Normalisation uses the statistics of the rows of this batch
        where `mask [batch]` is True and keeps no running averages, so that nothing private is
        stored.
      loss: `loss(outputs, y) -> [batch]`, one value per record.
      classes: number of classes for integer labels; None for regression.
      layers: the dense layers, if all parameters belong to some and no operation mixes records;
        otherwise None. Attacks that use it are faster; those that need it say so.
      tail: the dense layers among others, as after convolutions or embeddings, if there are two or
        more: their gradients are sums of outer products, and nothing is said of the other
        parameters, nor of whether records of a batch are mixed. None where `layers` has all, where
        one of them is used in another way too, and under dropout or running statistics.
      trunk: the convolutions before the last layer, for attacks that describe images by them; None
        if there are none.
    """

    MADE_BY: ClassVar[str] = ", as jaxfl.mlp makes, or jaxfl.from_flax of a module of one's own"

    init: Callable[[Array], Any]
    apply: Callable[..., Array]
    loss: Callable[[Array, Array], Array]
    classes: int | None = None
    layers: DenseLayers | None = None
    tail: DenseLayers | None = None
    trunk: Trunk | None = None


@checked
def mean_loss(
    model: Model,
    params: Params,
    x: Num[Array, "records ..."],
    y: Num[Array, "records ..."],
    *,
    key: Key | None = None,
    mask: Num[Array, "records"] | None = None,
) -> Num[Array, ""]:
    """Mean of the per-record loss over the rows where `mask` is True (all rows if None).

    Args:
      model: the model (static).
      params: its parameters.
      x: inputs `[batch, ...]`; rows where `mask` is False may hold anything, NaN included.
      y: labels `[batch, ...]`.
      key: randomness of dropout; None turns it off.
      mask: boolean `[batch]`.

    Returns:
      A scalar; 0 if no row is selected.
    """
    check_parameters(model, params)
    check_records(model, params, jnp.asarray(x), jnp.asarray(y))
    if model.classes is not None and mask is None and jnp.ndim(y) == 1:
        _check.labels(y, model.classes)
    if mask is None:
        return model.loss(model.apply(params, x, key=key), y).mean()
    # Zeroing the inputs, and not only the loss, keeps NaN out of the gradient (0 * NaN is NaN).
    x, y = zero_rows(x, mask), zero_rows(y, mask)
    losses = model.loss(model.apply(params, x, key=key, mask=mask), y)
    return jnp.where(mask, losses, 0).sum() / jnp.maximum(mask.sum(), 1)


def record_gradient(
    model: Model, params: Any, x: Array, y: Array, *, key: Array | None = None
) -> Array:
    """Gradient of the loss of one record `x [...]`, `y []`, as a vector `[parameters]`; `key` as in
    `mean_loss`."""
    return ravel_pytree(jax.grad(lambda p: mean_loss(model, p, x[None], y[None], key=key))(params))[
        0
    ]


def inputs_and_errors(
    model: Model, params: Any, x: Array, y: Array
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Input and error (derivative of the record's loss by the layer's output) of every dense layer,
    `[batch, width]`.

    A record's gradient by the layer's kernel is the outer product of the two, by its bias the
    error.
    """
    layers = model.layers
    assert layers is not None
    widths = {name: layers.parameters(params, name)["kernel"].shape[-1] for name in layers.names}
    zero = {name: jnp.zeros((len(x), width), x.dtype) for name, width in widths.items()}

    def total(offsets: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        outputs, inputs = layers.forward(params, x, offsets)
        return model.loss(outputs, y).sum(), inputs

    errors, inputs = jax.grad(total, has_aux=True)(zero)
    return inputs, errors


def check_records(
    model: Model, params: Any, x: Any, y: Any, *, x_name: str = "x", y_name: str = "y"
) -> None:
    """Raise `ValueError` unless the model takes records `x [records, ...]` and its loss labels `y
    [records, ...]`; shapes only, so traced arrays are checked too."""
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (params, x, y))
    leaves, structure = jax.tree.flatten(shapes)
    error = _shape_error(model, structure, tuple(leaves), x_name, y_name)
    if error:
        raise ValueError(error)


def check_labelled(
    model: Model, params: Any, x: Any, y: Any, *, x_name: str = "x", y_name: str = "y"
) -> None:
    """Raise `ValueError` unless records are finite and a model takes them with their labels, which
    are among its classes if there is one for each record. Shapes alone of what is traced."""
    check_records(model, params, x, y, x_name=x_name, y_name=y_name)
    _check.finite(**{x_name: x, y_name: y})
    if model.classes is not None and np.ndim(y) == 1:
        _check.labels(y, model.classes, name=y_name)


def check_parameters(model: Model, params: Any, name: str = "params", axes: int = 0) -> None:
    """Raise `ValueError` unless parameters, or their shapes, are those that `model.init` makes: in
    names, number and shapes, after so many leading axes, which are the same of all."""
    if len({np.shape(leaf)[:axes] for leaf in jax.tree.leaves(params)}) > 1:
        raise ValueError(f"{name} has leaves whose first {axes} axes differ in length")
    wanted, given = _initial_shapes(model), _leaf_shapes(params, axes)
    if wanted == given:
        return
    told = [f"{place} is missing" for place in wanted if place not in given]
    told += [f"{place} is none of the model's" for place in given if place not in wanted]
    for place, shape in wanted.items():
        there = given.get(place, shape)
        if there != shape:
            mend = "; transpose it" if there == shape[::-1] else ""
            told.append(f"{place} has shape {there}, the model's has {shape}{mend}")
    raise ValueError(f"{name} are not parameters of this model: {'; '.join(told[:3])}")


@functools.lru_cache(maxsize=256)
def _initial_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    return _leaf_shapes(jax.eval_shape(model.init, jax.random.key(0)))


def _leaf_shapes(tree: Any, axes: int = 0) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path): tuple(np.shape(leaf)[axes:]) for path, leaf in leaves}


def check_record_shape(model: Model, params: Any, **named: tuple[int, ...]) -> None:
    """Raise `ValueError` unless the model takes records of every named shape. `params` may be
    shapes."""
    for name, shape in named.items():
        one = (
            jax.ShapeDtypeStruct((1, *shape), jnp.result_type(float)),
            jax.ShapeDtypeStruct((1,), jnp.int32),
        )
        check_records(model, params, *one, x_name=f"{name}={tuple(shape)}")


@functools.lru_cache(maxsize=256)  # tracing a model takes milliseconds, attacks may take less
def _shape_error(
    model: Model, structure: Any, leaves: tuple[Any, ...], x_name: str, y_name: str
) -> str:
    params, x, y = structure.unflatten(leaves)
    try:
        apply = functools.partial(model.apply, key=jax.random.key(0))
        outputs = jax.eval_shape(apply, params, x)
    except (TypeError, ValueError, flax.errors.FlaxError) as error:
        reason = str(error).splitlines()[0]
        return (
            f"{x_name} has records of shape {x.shape[1:]}, which the model does not take ({reason})"
        )
    try:
        shape = jax.eval_shape(model.loss, outputs, y).shape
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        return f"{y_name} has shape {y.shape}, which the model's loss does not take ({reason})"
    if shape != x.shape[:1]:
        return (
            f"{y_name} has shape {y.shape}; with it the model's loss has shape {shape}, "
            f"not one value for each of {x.shape[0]} records"
        )
    return ""


def zero_rows(array: Array, mask: Array) -> Array:
    """`array [batch, ...]` with the rows where `mask [batch]` is False set to zero."""
    return jnp.where(
        mask.reshape(mask.shape + (1,) * (array.ndim - mask.ndim)),
        array,
        jnp.zeros((), array.dtype),
    )


def _soft_labels(y: Array, classes: int) -> None:
    if y.shape[-1] != classes:
        raise ValueError(
            f"y has shape {y.shape}, taken for probabilities of {classes} classes of outputs; "
            "class numbers must have shape (records,)"
        )


def _hard_labels(y: Array, outputs: Array) -> None:
    if y.shape != outputs.shape[:-1]:
        raise ValueError(
            f"y has shape {y.shape}; labels must have shape {outputs.shape[:-1]}, one for each "
            "record of outputs"
        )


@checked
def cross_entropy(outputs: Num[Array, "... classes"], y: Array) -> Num[Array, "..."]:
    """Softmax cross-entropy `[batch]` of logits `[batch, classes]`; `y` holds integer labels
    `[batch]` or class probabilities `[batch, classes]` (soft labels, as needed where an adversary
    does not know them).

    Raises:
      ValueError: at trace time, if `y` has the shape of neither.
    """
    if y.ndim == outputs.ndim:
        _soft_labels(y, outputs.shape[-1])
        return optax.softmax_cross_entropy(outputs, y)
    _hard_labels(y, outputs)
    _check.labels(y, outputs.shape[-1], name="y, beside outputs,")
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y.astype(jnp.int32))


@checked
def binary_cross_entropy(outputs: Num[Array, "... 1"], y: Array) -> Num[Array, "..."]:
    """Sigmoid cross-entropy `[batch]` of one logit `[batch, 1]`; `y [batch]` lies in [0, 1], or is
    two class probabilities `[batch, 2]`.

    Raises:
      ValueError: at trace time, if `y` has the shape of neither.
    """
    if y.ndim == outputs.ndim:
        _soft_labels(y, 2)
    else:
        _hard_labels(y, outputs)
        _check.within(0, 1, y=y)
    return optax.sigmoid_binary_cross_entropy(
        outputs[..., 0], y[..., 1] if y.ndim == outputs.ndim else y
    )


@checked
@functools.cache
def label_smoothing(model: Model, share: Share) -> Model:
    """The model whose clients smooth labels: its loss is (1 - share) loss(outputs, y) + share
    loss(outputs, all classes alike), as `torch.nn.CrossEntropyLoss(label_smoothing=share)` has it.

    Args:
      model: a classifier whose loss takes class probabilities too, as `cross_entropy` and
        `binary_cross_entropy` do (static).
      share: of each loss that is towards all classes alike.

    Raises:
      ValueError: if the model is no classifier.
    """
    if model.classes is None:
        raise ValueError(f"share={share!r} smooths labels of classes; the model has none")
    classes = model.classes

    def loss(outputs: Array, y: Array) -> Array:
        alike = jnp.full((*outputs.shape[:-1], classes), 1 / classes, outputs.dtype)
        return (1 - share) * model.loss(outputs, y) + share * model.loss(outputs, alike)

    return dataclasses.replace(model, loss=loss)


def log_probabilities(outputs: Array) -> Array:
    """Log probabilities of the classes `[..., classes]` from a classifier's outputs `[...,
    classes]`, or from one logit `[..., 1]` of the second of two."""
    if outputs.shape[-1] > 1:
        return jax.nn.log_softmax(outputs)
    return jnp.concatenate([jax.nn.log_sigmoid(-outputs), jax.nn.log_sigmoid(outputs)], -1)


@checked
def squared_error(outputs: Num[Array, "... 1"], y: Array) -> Num[Array, "..."]:
    """Squared error `[batch]` of predictions `[batch, 1]` against `y [batch]`, without the factor
    1/2 (Driouich 2022, 2023).

    Raises:
      ValueError: at trace time, if `y` has another shape: it would be broadcast.
    """
    _hard_labels(y, outputs)
    return jnp.square(outputs[..., 0] - y)
