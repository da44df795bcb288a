"""What the spans of a client's messages tell at once, without looking for any record.

Threat model: as in `attacks.records.reconstruction`.
"""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Num

from attacks.fit import UncheckedWarning
from attacks.records.gradients import dense_gradients, dense_of, looked_at
from attacks.records.spans import MARGIN, off_rows, scales_of, span_of, told_by
from jaxfl import Messages, Model, _check
from jaxfl.domains import checked
from jaxfl.models import check_record_shape
from jaxfl.models.probe import mixes_records

Array = jax.Array
TOGETHER = 256
"""Records that go through a model at once."""
SIGNS = 1.5
"""Kurtosis of numbers of one size: of signs it is 1, of uniform numbers 1.8, of gradients more."""


@checked
def count_records(model: Model, messages: Messages) -> int:
    """How many different records a client has: the rank of the layer whose inputs keep it, in the
    round that tells most clearly. Whatever the client's step size is.

    Args:
      model: a classifier with a dense layer before its output layer; there may be convolutions or
        embeddings before that (static).
      messages: of a client that takes one full-batch step of plain SGD a round, and sends all of
        it: what top-k sparsification leaves is of another rank.

    Returns:
      Their number; 0 if the messages do not tell: there are as many records as units, noise hides
      them, or changes are signs, as a step of Adam makes them.

    Raises:
      ValueError: if the model has no such layer, or messages are of another model.
    """
    dense_of(model, messages)
    gradients = dense_gradients(model, messages)
    # Which of several layers among others has traces of all records is not known beforehand.
    sequence = model.layers is not None
    looked = [gradients[looked_at(len(gradients))]] if sequence else gradients[:-1]
    return max(0 if _are_signs(g) else told_by(g, scales_of(g))[0] for g in looked)


def _are_signs(gradients: np.ndarray) -> bool:
    """Whether nearly all numbers that moved did so by one size."""
    moved = gradients[np.isfinite(gradients) & (gradients != 0)]
    moved = moved / np.abs(moved).max(initial=1e-300)
    return bool(len(moved)) and float((moved**4).mean() / (moved**2).mean() ** 2) < SIGNS


@checked
def lies_in_span(
    model: Model, messages: Messages, x: Num[np.ndarray, "records ..."]
) -> Bool[np.ndarray, "records"]:
    """Whether records may be the client's, whatever their labels: by the span of what the first
    dense layer takes, one projection each.

    Where that is the record itself, rounds count together, and it holds for any number of local
    steps of plain SGD. Where other layers come before, a record must lie in the span of a round, by
    the dense layer that tells of the most records, and the client takes one full-batch step a
    round.

    Args:
      model: as of `count_records` (static).
      messages: the client's.
      x: records to judge.

    Returns:
      True for every record of the client, but, where other layers come before, those of which no
      round has a trace above the noise; for others too if what the layer takes of them is a
      combination of what it takes of records, as it is for all of a client with more records than
      the layer has inputs, or if messages tell nothing.

    Warns:
      UncheckedWarning: if messages tell nothing, as those of clients of Adam or with weight decay.

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
    gradients = dense_gradients(model, messages)[:-1]
    if model.layers is not None:
        first = gradients[0].reshape(-1, gradients[0].shape[-1])
        inputs = _inputs_of(
            model, layers.names[0], messages.select([int(messages.rounds[0])]), records
        )
        rank = _rank(first)
        _warn_of_nothing(rank)
        return _may_lie_in(first, inputs[0], rank)
    ranks = np.asarray([[_rank(g) for g in layer] for layer in gradients])
    _warn_of_nothing(int(ranks.max()))
    if not ranks.any():
        return np.ones(len(records), bool)
    place = int(ranks.max(1).argmax())
    inputs = _inputs_of(model, layers.names[place], messages, records)
    told = [r for r, rank in enumerate(ranks[place]) if rank]
    each = [_may_lie_in(gradients[place][r], inputs[r], ranks[place][r]) for r in told]
    return np.any(each, axis=0)


def _warn_of_nothing(rank: int) -> None:
    if not rank:
        warnings.warn(
            "lies_in_span: messages tell of no record's inputs, so that any record may be the "
            "client's: its gradients are not sums over records (Adam, weight decay, noise?), or it "
            "has more records than the layer has inputs",
            UncheckedWarning,
            stacklevel=4,
        )


def _inputs_of(model: Model, layer: str, messages: Messages, records: np.ndarray) -> np.ndarray:
    """What a dense layer takes of records in every round, its 1 for the bias included `[rounds,
    records, inputs]`, float64."""
    with jax.enable_x64(True):
        received = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), messages.received)
        inputs = np.asarray(_layer_inputs(model, layer, received, jnp.asarray(records)))
    layers = model.layers or model.tail
    assert layers is not None
    bias = int("bias" in layers.parameters(messages.model_shapes, layer))
    return np.concatenate([inputs, np.ones((*inputs.shape[:2], bias))], -1)


@functools.partial(jax.jit, static_argnames=("model", "layer"))
def _layer_inputs(model: Model, layer: str, received: Any, x: Array) -> Array:
    layers = model.layers or model.tail
    assert layers is not None
    forward = layers.forward

    def of_round(params: Any) -> Array:
        def one(record: Array) -> Array:
            return forward(params, record[None], {})[1][layer][0]

        return jax.lax.map(one, x, batch_size=TOGETHER)

    return jax.lax.map(of_round, received)


def _rank(gradient: np.ndarray) -> int:
    """How many records a gradient's rows `[..., inputs]` tell of, 0 if none; rows that are not
    finite tell nothing."""
    rows = gradient[np.isfinite(gradient).all(-1)]
    return told_by(rows[None], scales_of(rows[None]))[0] if rows.any() else 0


def _may_lie_in(gradient: np.ndarray, inputs: np.ndarray, rank: int) -> np.ndarray:
    """Whether inputs `[records, inputs]` lie in the span of a gradient's rows `[..., inputs]` of a
    rank, or that is 0."""
    if not rank:
        return np.ones(len(inputs), bool)
    rows = gradient[np.isfinite(gradient).all(-1)]
    with jax.enable_x64(True):
        off = jax.vmap(off_rows, (None, 0))(span_of(rows, rank), jnp.asarray(inputs))
    return np.asarray(off) <= MARGIN
