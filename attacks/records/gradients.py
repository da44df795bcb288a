"""A client's messages as gradients of dense layers."""

import jax
import numpy as np

from jaxfl import Messages, Model
from jaxfl.models import check_parameters
from jaxfl.schema import Schema


def check_dense(model: Model, messages: Messages) -> None:
    """Raise `ValueError` unless gradients of the model are sums of outer products over records, of
    which a hidden layer says more than labels."""
    check_parameters(model, messages.model_shapes, "messages")
    if model.layers is None:
        raise ValueError(
            "model has parameters outside dense layers, or mixes the records of a batch (batch "
            "normalisation?): its gradients are no sum of outer products"
        )
    if len(model.layers.names) < 2:
        raise ValueError(
            f"model has the one layer {model.layers.names[0]!r}; records need a hidden one"
        )


def check_readable(model: Model, messages: Messages, schema: Schema) -> None:
    """As `check_dense`; and unless the model is a classifier whose first layer takes the schema's
    records as they are."""
    check_dense(model, messages)
    layers = model.layers
    assert layers is not None
    if model.classes is None:
        raise ValueError("model has classes=None; labels of a regression cannot be enumerated")
    first = features_of(model, messages)
    if first != schema.features:
        raise ValueError(
            f"schema.features={schema.features}; the model's first layer takes {first}"
        )
    params = jax.tree.map(lambda a: np.asarray(a[0], np.float32), messages.received)
    tried = np.random.default_rng(0).normal(size=(1, first)).astype(np.float32)
    _, inputs = layers.forward(params, tried, {})
    if not np.array_equal(inputs[layers.names[0]], tried):
        raise ValueError(
            f"model changes a record before its first layer {layers.names[0]!r}, which must take "
            "it as it is"
        )


def dense_gradients(model: Model, messages: Messages, rate: float = 1.0) -> list[np.ndarray]:
    """What the client's model lost by every dense layer, over its learning rate: `[rounds, outputs,
    inputs]`, float64, the bias last among the inputs, if there is one."""
    layers = model.layers
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
