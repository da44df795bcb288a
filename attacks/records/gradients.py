"""A client's messages as gradients of dense layers."""

import numpy as np

from jaxfl import Messages, Model
from jaxfl.models import check_parameters


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
