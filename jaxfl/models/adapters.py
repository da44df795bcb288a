"""Flax linen modules as `Model`."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxfl.domains import Count, Shape, checked
from jaxfl.models import DenseLayers, Model, binary_cross_entropy, cross_entropy
from jaxfl.models.probe import layers_hold

Array = jax.Array


@checked
def from_flax(
    module: nn.Module,
    record_shape: Shape,
    loss: Callable[[Array, Array], Array],
    classes: Count | None = None,
) -> Model:
    """Wrap a Flax linen module. Equal arguments give the same `Model`, and compile nothing anew.

    Args:
      module: called as `module(x)`; if its `__call__` takes `mask` it is given the row mask; if it
        takes `train`, `training`, `is_train` or `is_training`, `key is not None`, and if it takes
        `deterministic`, `eval`, `evaluation` or `inference`, the opposite. Collections other than
        `params` (running statistics) start fresh at every call and are dropped after it, so batch
        normalisation must use the statistics of the batch.
      record_shape: shape of one record.
      loss: per-record loss, `loss(outputs, y) -> [batch]`.
      classes: number of classes for integer labels; None: as many as outputs, of `cross_entropy`,
        two, of `binary_cross_entropy`, and of any other loss none, as for regression.

    Raises:
      ValueError: if the module is no Flax module, or reads running averages in evaluation, which
        nobody keeps.
    """
    given = module, tuple(record_shape), loss, classes
    try:
        hash(given)
    except TypeError:  # a module that holds arrays
        return _wrapped.__wrapped__(*given)
    return _wrapped(*given)


@functools.lru_cache(maxsize=256)
def _wrapped(
    module: nn.Module,
    record_shape: tuple[int, ...],
    loss: Callable[[Array, Array], Array],
    classes: int | None,
) -> Model:
    accepted = inspect.signature(type(module).__call__).parameters

    def variables(key: Array) -> dict[str, Any]:
        return dict(module.init(key, jnp.zeros((1, *record_shape)), **_needed(accepted)))

    @jax.jit  # otherwise every shape of every layer is a program of its own
    def init(key: Array) -> Any:
        return variables(key)["params"]

    # The other collections hold constants (zeros and ones): shapes are enough to know whether there
    # are any.
    other = set(jax.eval_shape(variables, jax.random.key(0))) - {"params"}

    def apply(
        params: Any, x: Array, *, key: Array | None = None, mask: Array | None = None
    ) -> Array:
        arguments: dict[str, Any] = {"mask": mask} | _switches(key is not None)
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

    if other and any(name in accepted for name in _switches(True)):
        _check_statistics(module, record_shape, accepted, variables)
    if classes is None:
        classes = _classes_of(init, apply, record_shape, loss)
    layers, whole = _dense_layers(module, record_shape)
    return Model(init, apply, loss, classes, layers if whole else None, None if whole else layers)


def _classes_of(
    init: Any, apply: Any, record_shape: tuple[int, ...], loss: Callable[..., Array]
) -> int | None:
    if loss is binary_cross_entropy:
        return 2
    if loss is not cross_entropy:
        return None
    x = jax.ShapeDtypeStruct((1, *record_shape), jnp.float32)
    try:
        params = jax.eval_shape(init, jax.random.key(0))
        outputs = jax.eval_shape(functools.partial(apply, key=jax.random.key(1)), params, x)
        count = int(outputs.shape[-1])
    except (TypeError, ValueError, IndexError, flax.errors.FlaxError):
        return None  # what the module does not take is said where records are given
    if count < 2:
        raise ValueError(
            "loss=cross_entropy is of two outputs or more, and the module has one: nothing can be "
            "trained; use jaxfl.binary_cross_entropy"
        )
    return count


def _switches(train: bool) -> dict[str, bool]:
    """What modules call the switch between training and evaluation."""
    off = ("deterministic", "eval", "evaluation", "inference")
    on = dict.fromkeys(("train", "training", "is_train", "is_training"), train)
    return on | dict.fromkeys(off, not train)


def _needed(accepted: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """What a module's `__call__` has no default for, as in evaluation."""
    known = {"mask": None} | _switches(False)
    return {
        name: value
        for name, value in known.items()
        if name in accepted and accepted[name].default is inspect.Parameter.empty
    }


def _check_statistics(
    module: nn.Module, record_shape: tuple[int, ...], accepted: Any, variables: Any
) -> None:
    """Raise `ValueError` if evaluation leaves a collection as it is that training changes."""

    def after(train: bool) -> Any:
        given: dict[str, Any] = {
            name: on for name, on in _switches(train).items() if name in accepted
        }
        given = _needed(accepted) | given
        begun, x = variables(jax.random.key(0)), jnp.ones((2, *record_shape))
        rngs = {"dropout": jax.random.key(1)}
        _, state = module.apply(begun, x, rngs=rngs, mutable=list(begun), **given)
        state, begun = ({k: v for k, v in s.items() if k != "params"} for s in (state, begun))
        pairs = zip(*map(jax.tree.leaves, (state, begun)), strict=True)
        return jnp.stack([jnp.any(a != b) for a, b in pairs]).any()

    if jax.jit(lambda: after(True) & ~after(False))():
        raise ValueError(
            f"module={type(module).__name__} reads running averages in evaluation, which are not "
            "kept: normalise by the statistics of the batch (use_running_average=False)"
        )


def _dense_layers(
    module: nn.Module, record_shape: tuple[int, ...]
) -> tuple[DenseLayers | None, bool]:
    """The dense layers of a module, and whether all variables belong to them; None if it has too
    few that are used once, or behaves differently in training, as dropout does."""

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

    accepted = inspect.signature(type(module).__call__).parameters
    if _needed(accepted) or any(name in accepted for name in _switches(True)):
        return None, False
    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, *record_shape)))
    if set(variables) != {"params"}:
        return None, False
    order = _order(module, variables["params"], record_shape)
    names = tuple(name for name in order if order.count(name) == 1)
    layers = DenseLayers(names, forward, getattr(module, "takes_records", False))
    dense = sum(len(layers.parameters(variables["params"], name)) for name in names)
    whole = dense == len(jax.tree.leaves(variables))
    if not names or (not whole and len(names) < 2):  # an output layer among others tells nothing
        return None, False

    def apply(params: Any, x: Array) -> Array:
        return jnp.asarray(module.apply({"params": params}, x))

    try:
        held = layers_hold(layers, variables["params"], apply, record_shape)
    except (jax.errors.UnexpectedTracerError, TypeError):  # within a transformation of their own
        held = False
    return (layers, whole) if held else (None, False)


def _order(module: nn.Module, params: Any, record_shape: tuple[int, ...]) -> list[str]:
    """Dense layers in the order of evaluation, a layer as often as it is used."""
    order: list[str] = []

    def note(call: Callable[..., Array], arguments: Any, keywords: Any, context: Any) -> Array:
        if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
            # Several vectors of a record are as good as a layer used several times: its gradient is
            # no single outer product.
            single = arguments[0].shape[:-1] == (1,)
            order.extend(["/".join(context.module.path)] * (1 if single else 2))
        return call(*arguments, **keywords)

    def probe(params: Any, x: Array) -> Any:
        with nn.intercept_methods(note):
            return module.apply({"params": params}, x)

    jax.eval_shape(probe, params, jnp.zeros((1, *record_shape)))
    return order
