"""What the spans of a client's messages tell at once, without looking for any record.

Threat model: as in `attacks.records.reconstruction`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Num

from attacks.records.gradients import dense_gradients, dense_of, looked_at
from attacks.records.spans import MARGIN, off_rows, scales_of, span_of, told_by
from jaxfl import Messages, Model, _check
from jaxfl.domains import checked
from jaxfl.models import DenseLayers, check_record_shape
from jaxfl.models.probe import mixes_records

Array = jax.Array


@checked
def count_records(model: Model, messages: Messages) -> int:
    """How many different records a client has: the rank of the layer whose inputs keep it, in the
    round that tells most clearly. Whatever the client's step size is.

    Args:
      model: a classifier with a dense layer before its output layer; there may be convolutions or
        embeddings before that (static).
      messages: of a client that takes one full-batch step a round.

    Returns:
      Their number; 0 if the messages do not tell: there are as many records as units, or noise
      hides them.

    Raises:
      ValueError: if the model has no such layer, or messages are of another model.
    """
    dense_of(model, messages)
    gradients = dense_gradients(model, messages)
    layer = gradients[looked_at(len(gradients))]
    count, _ = told_by(layer, scales_of(layer))
    return count


@checked
def lies_in_span(
    model: Model, messages: Messages, x: Num[np.ndarray, "records ..."]
) -> Bool[np.ndarray, "records"]:
    """Whether records may be the client's, whatever their labels: by the span of what the first
    dense layer takes, one projection each.

    Where that is the record itself, rounds count together, and it holds for any number of local
    steps of plain SGD. Where other layers come before, a record must lie in every round's own span,
    and the client takes one full-batch step a round.

    Args:
      model: as of `count_records` (static).
      messages: the client's.
      x: records to judge.

    Returns:
      True for every record of the client; for others too if what the layer takes of them is a
      combination of what it takes of records, as it is for all of a client with more records than
      the layer has inputs, or if messages tell nothing.

    Raises:
      ValueError: as `count_records`; if the model does not take such records, or mixes those of a
        batch.
    """
    layers = dense_of(model, messages)
    records = np.asarray(x, np.float64)
    check_record_shape(model, messages.model_shapes, x=records.shape[1:])
    _check.finite(x=records)
    if model.layers is None and mixes_records(model, messages.model_shapes, records):
        raise ValueError(
            "model mixes the records of a batch (batch normalisation?): what its dense layer takes "
            "of a record depends on the others"
        )
    first = dense_gradients(model, messages)[0]
    inputs = _first_inputs(layers, messages, records)
    with_bias = np.ones((*inputs.shape[:2], first.shape[-1] - inputs.shape[-1]))
    inputs = np.concatenate([inputs, with_bias], -1)
    if model.layers is not None:
        first, inputs = first.reshape(1, -1, first.shape[-1]), inputs[:1]
    return np.all([_may_lie_in(g, i) for g, i in zip(first, inputs, strict=True)], axis=0)


def _first_inputs(layers: DenseLayers, messages: Messages, records: np.ndarray) -> np.ndarray:
    """What the first of some layers takes of records in every round `[rounds, records, inputs]`,
    float64."""
    with jax.enable_x64(True):
        received = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), messages.received)
        x = jnp.asarray(records)

        def of(params: Any) -> Array:
            return layers.forward(params, x, {})[1][layers.names[0]]

        return np.asarray(jax.jit(lambda models: jax.lax.map(of, models))(received), np.float64)


def _may_lie_in(gradient: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Whether inputs `[records, inputs]` lie in the span of a gradient's rows `[..., inputs]`, or
    it tells none; rows that are not finite tell nothing."""
    rows = gradient[np.isfinite(gradient).all(-1)]
    rank, _ = told_by(rows[None], scales_of(rows[None])) if rows.any() else (0, 1.0)
    if not rank:
        return np.ones(len(inputs), bool)
    with jax.enable_x64(True):
        off = jax.vmap(off_rows, (None, 0))(span_of(rows, rank), jnp.asarray(inputs))
    return np.asarray(off) <= MARGIN
