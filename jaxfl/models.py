"""Models as three pure functions, so that a simulation and an attack can differentiate through
them.

`Model(init, apply, loss)` is the whole contract: any JAX library's model enters by giving the three
functions, and Flax modules through `from_flax`; `jaxfl.architectures` has those of the papers.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class DenseLayers:
    """A model all of whose parameters belong to dense layers, so that gradients of single records
    are outer products.

    Attributes:
      names: the layers in order of evaluation, as paths in the parameters ("Dense_0",
        "Block_0/Dense_1"). The parameters there are `kernel [inputs, outputs]` and perhaps `bias
        [outputs]`.
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
        return functools.reduce(lambda tree, part: tree[part], name.split("/"), params)


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
      trunk: the convolutions before the last layer, for attacks that describe images by them; None
        if there are none.
    """

    init: Callable[[Array], Any]
    apply: Callable[..., Array]
    loss: Callable[[Array, Array], Array]
    classes: int | None = None
    layers: DenseLayers | None = None
    trunk: Trunk | None = None


def mean_loss(
    model: Model,
    params: Any,
    x: Array,
    y: Array,
    *,
    key: Array | None = None,
    mask: Array | None = None,
) -> Array:
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
        outputs = jax.eval_shape(model.apply, params, x)
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


def cross_entropy(outputs: Array, y: Array) -> Array:
    """Softmax cross-entropy `[batch]` of logits `[batch, classes]`; `y` holds integer labels
    `[batch]` or class probabilities `[batch, classes]` (soft labels, as needed where an adversary
    does not know them)."""
    if y.ndim == outputs.ndim:
        return optax.softmax_cross_entropy(outputs, y)
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y.astype(jnp.int32))


def binary_cross_entropy(outputs: Array, y: Array) -> Array:
    """Sigmoid cross-entropy `[batch]` of one logit `[batch, 1]`; `y [batch]` lies in [0, 1], or is
    two class probabilities `[batch, 2]`."""
    return optax.sigmoid_binary_cross_entropy(
        outputs[..., 0], y[..., 1] if y.ndim == outputs.ndim else y
    )


def log_probabilities(outputs: Array) -> Array:
    """Log probabilities of the classes `[..., classes]` from a classifier's outputs `[...,
    classes]`, or from one logit `[..., 1]` of the second of two."""
    if outputs.shape[-1] > 1:
        return jax.nn.log_softmax(outputs)
    return jnp.concatenate([jax.nn.log_sigmoid(-outputs), jax.nn.log_sigmoid(outputs)], -1)


def squared_error(outputs: Array, y: Array) -> Array:
    """Squared error `[batch]` of predictions `[batch, 1]` against `y [batch]`, without the factor
    1/2 (Driouich 2022, 2023)."""
    return jnp.square(outputs[..., 0] - y)


def from_flax(
    module: nn.Module,
    record_shape: tuple[int, ...],
    loss: Callable[[Array, Array], Array],
    classes: int | None = None,
) -> Model:
    """Wrap a Flax linen module.

    Args:
      module: called as `module(x)`; if its `__call__` takes `mask` it is given the row mask, if it
        takes `train` it is given `key is not None`. Collections other than `params` (running
        statistics) start fresh at every call and are dropped after it, so batch normalisation must
        use the statistics of the batch.
      record_shape: shape of one record.
      loss: per-record loss, `loss(outputs, y) -> [batch]`.
      classes: number of classes for integer labels; None for regression.
    """
    accepted = inspect.signature(type(module).__call__).parameters

    def variables(key: Array) -> dict[str, Any]:
        return dict(module.init(key, jnp.zeros((1, *record_shape))))

    def init(key: Array) -> Any:
        return variables(key)["params"]

    # The other collections hold constants (zeros and ones): shapes are enough to know whether there
    # are any.
    other = set(jax.eval_shape(variables, jax.random.key(0))) - {"params"}

    def apply(
        params: Any, x: Array, *, key: Array | None = None, mask: Array | None = None
    ) -> Array:
        arguments: dict[str, Any] = {"mask": mask, "train": key is not None}
        state = (
            {
                name: value
                for name, value in variables(jax.random.key(0)).items()
                if name != "params"
            }
            if other
            else {}
        )
        outputs, _ = module.apply(
            {"params": params, **state},
            x,
            rngs=None if key is None else {"dropout": key},
            mutable=list(other),
            **{name: value for name, value in arguments.items() if name in accepted},
        )
        return outputs

    return Model(init, apply, loss, classes, _dense_layers(module, record_shape))


def _dense_layers(module: nn.Module, record_shape: tuple[int, ...]) -> DenseLayers | None:
    """The dense layers of a module whose variables all belong to them; None if there are others, or
    if it behaves differently in training, as dropout does."""

    def forward(
        params: Any, x: Array, offsets: dict[str, Array], first: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        inputs: dict[str, Array] = {}

        def intercept(
            call: Callable[..., Array], arguments: Any, keywords: Any, context: Any
        ) -> Array:
            output = call(*arguments, **keywords)
            if not isinstance(context.module, nn.Dense) or context.method_name != "__call__":
                return output
            name = "/".join(context.module.path)
            output = first if first is not None and not inputs else output
            inputs[name] = arguments[0]
            return output + offsets[name] if name in offsets else output

        with nn.intercept_methods(intercept):
            outputs = module.apply({"params": params}, x)
        return jnp.asarray(outputs), inputs

    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, *record_shape)))
    if (
        set(variables) != {"params"}
        or "train" in inspect.signature(type(module).__call__).parameters
    ):
        return None
    order: list[str] = []  # of evaluation, a layer as often as it is used

    def note(call: Callable[..., Array], arguments: Any, keywords: Any, context: Any) -> Array:
        if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
            # An input of more axes is as good as a layer used several times: its gradient is no
            # single outer product.
            order.extend(["/".join(context.module.path)] * (1 if arguments[0].ndim == 2 else 2))
        return call(*arguments, **keywords)

    def probe(params: Any, x: Array) -> Any:
        with nn.intercept_methods(note):
            return module.apply({"params": params}, x)

    jax.eval_shape(probe, variables["params"], jnp.zeros((1, *record_shape)))
    if len(set(order)) < len(order):
        return None
    layers = DenseLayers(tuple(order), forward, getattr(module, "takes_records", False))
    dense = sum(len(layers.parameters(variables["params"], name)) for name in order)
    return layers if dense == len(jax.tree.leaves(variables)) else None
