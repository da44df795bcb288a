"""A client's messages as gradients of dense layers."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attacks.fixed_draws import SEED
from attacks.records.spans import scales_of, told_by
from jaxfl import LocalTraining, Messages, Model
from jaxfl.models import DenseLayers, check_parameters
from jaxfl.schema import Schema

MOST_BATCHES = 64
"""Batches of an epoch that are looked for where the recipe decays weights."""


def dense_of(model: Model, messages: Messages) -> DenseLayers:
    """The dense layers whose gradients are sums of outer products over records: all of the model's,
    or those that come after others.

    Raises:
      ValueError: if there are none, or an output layer alone, which tells of labels and no more;
        if messages are of another model.
    """
    check_parameters(model, messages.model_shapes, "messages")
    layers = model.layers or model.tail
    if layers is None:
        raise ValueError(
            "model has no dense layers that take one vector of each record, or mixes the records "
            "of a batch (batch normalisation?): its gradients are no sum of outer products"
        )
    if len(layers.names) < 2:
        raise ValueError(
            f"model has the one dense layer {layers.names[0]!r}; records need a hidden one"
        )
    return layers


def check_readable(model: Model, messages: Messages, schema: Schema) -> None:
    """Raise `ValueError` unless the model is a classifier whose layers are all dense, and whose
    first one takes the schema's records as they are; see also `dense_of`."""
    layers = dense_of(model, messages)
    if model.layers is None:
        raise ValueError(
            f"model has parameters outside the dense layers {layers.names}; a record is looked for "
            "in the span of what the first layer takes, which must be the record"
        )
    if model.classes is None:
        raise ValueError("model has classes=None; labels of a regression cannot be enumerated")
    first = features_of(model, messages)
    if first != schema.features:
        raise ValueError(
            f"schema.features={schema.features}; the model's first layer takes {first}"
        )
    params = jax.tree.map(lambda a: np.asarray(a[0], np.float32), messages.received)
    tried = np.random.default_rng(SEED).normal(size=(1, first)).astype(np.float32)
    _, inputs = layers.forward(params, tried, {})
    if not np.array_equal(inputs[layers.names[0]], tried):
        raise ValueError(
            f"model changes a record before its first layer {layers.names[0]!r}, which must take "
            "it as it is"
        )


def gradients_of_rounds(
    model: Model, messages: Messages, training: LocalTraining
) -> list[np.ndarray]:
    """As `dense_gradients`: the gradient of each round's one step, or a weighted sum of those of
    its steps. Any optimiser whose updates are linear in gradients and parameters gives one.

    Of weight decay the models must lose what they would lose by it alone. How many steps that are,
    where a client trains in batches, is not known: those that leave the clearest rank.
    """
    rate = float(training.learning_rate)
    if training.optimizer is optax.sgd:
        return dense_gradients(model, messages, rate)
    several = training.epochs > 1 or training.batch_size is not None
    batches = 1 if training.batch_size is None else MOST_BATCHES
    with jax.enable_x64(True):
        received = jax.tree.map(lambda a: jnp.asarray(a, float), messages.received)
        after = _unled(training, received, training.epochs * batches)
        (step,) = _unled(training, jnp.zeros(1), 1, gradient=1.0)[0]
    unit = rate if several else -float(step)
    ends = range(training.epochs - 1, training.epochs * batches, training.epochs)
    decayed = [jax.tree.map(lambda a, end=end: np.asarray(a[end]), after) for end in ends]
    if all(np.array_equal(*pair) for pair in _pairs(decayed[-1], received)):
        decayed = decayed[:1]
    sums = [
        dense_gradients(model, dataclasses.replace(messages, received=start), unit)
        for start in decayed
    ]
    gaps = [told_by(layers[0], scales_of(layers[0]))[1] for layers in sums]
    return sums[int(np.argmax(gaps))]


def _unled(training: LocalTraining, params: Any, steps: int, gradient: float = 0.0) -> Any:
    """The models after each step in which all gradients are the same number, leaves `[steps,
    ...]`."""
    optimizer = training.optimizer(float(training.learning_rate))
    slope = jax.tree.map(lambda a: jnp.full_like(a, gradient), params)

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
        params, state = carry
        updates, state = optimizer.update(slope, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    return jax.lax.scan(step, (params, optimizer.init(params)), length=steps)[1]


def _pairs(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    return zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)


def dense_gradients(model: Model, messages: Messages, rate: float = 1.0) -> list[np.ndarray]:
    """What the client's model lost by every dense layer, over its learning rate: `[rounds, outputs,
    inputs]`, float64, the bias last among the inputs, if there is one."""
    layers = model.layers or model.tail
    assert layers is not None

    def of(layer: str) -> np.ndarray:
        received, returned = (
            layers.parameters(tree, layer) for tree in (messages.received, messages.returned)
        )
        parts = {
            name: np.asarray(received[name], np.float64) - np.asarray(returned[name], np.float64)
            for name in received
        }
        bias = [parts["bias"][..., None]] if "bias" in parts else []
        return np.concatenate([parts["kernel"].transpose(0, 2, 1), *bias], -1) / rate

    return [of(name) for name in layers.names]


def looked_at(layers: int) -> int:
    """The layer of so many whose spans are looked at: the second, whose inputs keep full rank, if
    it is no output layer."""
    return min(layers - 2, 1)


def features_of(model: Model, messages: Messages) -> int:
    """How many features the first layer takes."""
    layers = model.layers
    assert layers is not None
    return int(layers.parameters(messages.model_shapes, layers.names[0])["kernel"].shape[0])
