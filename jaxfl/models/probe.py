"""What can be told of a model by trying it: properties that attacks and defences assume.

Functions are tried at random parameters, once for each model and shapes; inside `jit` too, since
shapes are all that they need.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl.models import DenseLayers, Model, inputs_and_errors

Array = jax.Array
ROWS = 4
"""Records that a model is tried on."""
CLOSE = 1e-3
"""Numbers of a trial that differ by less, relative to the largest, are equal but for rounding."""


def mixes_records(model: Model, params: Any, x: Any) -> bool:
    """Whether one record's output or loss depends on the others in its batch, as under batch
    normalisation: then its gradient is no one's own.

    Args:
      model: the model.
      params: its parameters, or their shapes and types.
      x: records `[records, ...]`, or their shape and type.
    """
    leaves, structure = jax.tree.flatten(_shapes(params))
    return _mixes(model, structure, tuple(leaves), x.shape[1:], jnp.dtype(x.dtype))


@functools.lru_cache(maxsize=256)
def _mixes(
    model: Model, structure: Any, leaves: tuple[Any, ...], shape: tuple[int, ...], dtype: Any
) -> bool:
    params = _drawn(structure.unflatten(leaves))
    x = np.random.default_rng(1).normal(size=(ROWS, *shape))
    others = np.concatenate([x[:1], 1 - x[1:]])

    def first(params: Any, x: Array) -> Any:
        outputs = model.apply(params, x)
        trained = model.apply(params, x, key=jax.random.key(0))
        of_first = jax.tree.map(lambda o: o[0], (outputs, trained))
        return of_first, [losses[0] for losses in _losses(model, outputs)]

    inputs = [each.astype(dtype) for each in (x, others)]
    tried = _compiled(first, params, inputs[0])
    outputs, losses = zip(*(tried(params, each) for each in inputs), strict=True)
    pairs = zip(*map(jax.tree.leaves, outputs), strict=True)
    alike = [_alike(*pair) for pair in zip(*losses, strict=True)]
    return not all(_alike(*pair) for pair in pairs) or (bool(alike) and not any(alike))


def _losses(model: Model, outputs: Any) -> list[Array]:
    """Losses `[records]` of outputs, with labels of every shape that they may have and that the
    loss takes: of a shape that is not the loss's, records are mixed by broadcasting alone."""
    like = jax.tree.leaves(outputs)[0]
    kind = float if model.classes is None else int
    taken = []
    for labels in (jnp.zeros(len(like), kind), jnp.full_like(like, 0.5)):
        try:
            losses = model.loss(outputs, labels)
        except Exception:  # anyone's loss, which refuses labels of another shape by any error
            continue
        taken += [losses] if jnp.shape(losses) == (len(like),) else []
    return taken


def draws_at_random(model: Model, params: Any, x: Any) -> bool:
    """Whether a model does anything at random in training, as under dropout; arguments as for
    `mixes_records`."""
    leaves, structure = jax.tree.flatten(_shapes(params))
    return _draws(model, structure, tuple(leaves), x.shape[1:], jnp.dtype(x.dtype))


@functools.lru_cache(maxsize=256)
def _draws(
    model: Model, structure: Any, leaves: tuple[Any, ...], shape: tuple[int, ...], dtype: Any
) -> bool:
    params = _drawn(structure.unflatten(leaves))
    x = np.random.default_rng(1).normal(size=(ROWS, *shape)).astype(dtype)

    def twice(params: Any, x: Array) -> Any:
        keys = jax.random.key(0), jax.random.key(1)
        return [jax.tree.leaves(model.apply(params, x, key=key)) for key in keys]

    pair = _compiled(twice, params, x)(params, x)
    return not all(_alike(*outputs) for outputs in zip(*pair, strict=True))


def layers_hold(layers: DenseLayers, params: Any, apply: Any, shape: tuple[int, ...]) -> bool:
    """Whether gradients by named dense layers are those by their parameters: not where a kernel is
    used in another way too.

    Args:
      layers: the named layers.
      params: the model's parameters, or their shapes and types.
      apply: `apply(params, x [batch, ...]) -> outputs`.
      shape: of a record.
    """
    params = _drawn(_shapes(params))
    drawn = np.random.default_rng(1).normal(size=(1, *shape)).astype(np.float32)

    def tried(params: Any, x: Array) -> tuple[Array, Array]:
        model = Model(lambda key: params, apply, _summed, layers=layers)
        inputs, errors = inputs_and_errors(model, params, jnp.asarray(x), jnp.zeros(1))
        whole = jax.grad(lambda p: apply(p, x).sum())(params)
        squares = jnp.zeros(())
        for name in layers.names:
            at = jnp.square(inputs[name]).sum() + ("bias" in layers.parameters(params, name))
            squares += at * jnp.square(errors[name]).sum()
        named = [layers.parameters(whole, name) for name in layers.names]
        return squares, optax.tree.norm(named, squared=True)

    program = _compiled(tried, params, drawn)
    for x in (drawn, np.abs(drawn)):  # a logarithm takes the second alone
        squares = [np.asarray(square) for square in program(params, x)]
        if np.isfinite(squares).all():
            return _alike(*squares)
    return False


def _summed(outputs: Array, y: Array) -> Array:
    return outputs.reshape(len(outputs), -1).sum(1)


def _compiled(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """A program that can be called where an outer `jit` traces, on host arrays."""
    return jax.jit(function).lower(*_shapes(arguments)).compile()


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def _drawn(shapes: Any) -> Any:
    """Random parameters: those of an initialisation may be zero where it matters."""
    rng = np.random.default_rng(0)

    def draw(leaf: Any) -> np.ndarray:
        width = leaf.shape[0] if leaf.shape else 1
        return (rng.normal(size=leaf.shape) * width**-0.5).astype(leaf.dtype)

    return jax.tree.map(draw, shapes)


def _alike(a: Any, b: Any) -> bool:
    a, b = (np.nan_to_num(np.asarray(value, np.float64)) for value in (a, b))
    largest = max(np.abs(a).max(), np.abs(b).max(), np.finfo(np.float32).tiny)
    return bool(np.abs(a - b).max() <= CLOSE * largest)
