"""What each record could be, beside what an answer says of it."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks.attributes.candidate_decoding.candidates import candidate_records, joint_column
from attacks.attributes.knowledge import Knowledge, erase
from jaxfl import ClientData, Model

Array = jax.Array
MOST_UNKNOWNS = 4_000
"""Weights that least squares takes off; of more, those of the records that are least sure."""
MOST_JOINT = 16
"""Values of all unknowns of a record together, up to which every combination is a candidate; beyond
it, each unknown is changed alone."""


class Alternatives(NamedTuple):
    """What each record could be.

    Attributes:
      x: `[records, A, ...]`.
      y: `[records, A]`.
      chosen: place of the answer among these `[records]`.
      doubt: of each record's answer `[records]`.
    """

    x: Array
    y: Array
    chosen: Array
    doubt: Array


def alternatives(model: Model, knowledge: Knowledge, answer: Any) -> Alternatives:
    """Candidates of every record: combinations of its unknowns while these are few, else the answer
    and what differs from it in one unknown."""
    values, scores, labels = answer
    doubt = functools.reduce(jnp.maximum, [1 - s.max(1) for s in scores])
    counts = [len(column.candidates) for column in knowledge.columns]
    classes = 1 if labels is None else model.classes or 1
    if np.prod([*counts, classes]) <= MOST_JOINT or len(counts) == 1:
        joint = dataclasses.replace(knowledge, columns=(joint_column(knowledge.columns),))
        x, y = candidate_records(model, joint)
        chosen = jnp.zeros_like(values[0])
        for value, size in zip(values, counts, strict=True):
            chosen = chosen * size + value
        chosen = chosen if labels is None else chosen * classes + labels
        return Alternatives(x, y, chosen, doubt)
    x = erase(knowledge)
    y = jnp.asarray(knowledge.y if labels is None else labels)
    for column, value in zip(knowledge.columns, values, strict=True):
        x = x.at[:, column.positions].set(column.candidates[value])
    pairs = [(x, y)]
    for column in knowledge.columns:
        pairs += [(x.at[:, column.positions].set(v), y) for v in column.candidates]
    if labels is not None:
        pairs += [(x, jnp.full_like(y, label)) for label in range(classes)]
    every_x, every_y = (jnp.stack(a, 1) for a in zip(*pairs, strict=True))
    return Alternatives(every_x, every_y, jnp.zeros(len(x), jnp.int32), doubt)


def least_sure(each: Alternatives) -> Array:
    """Places of the records whose answers are least sure, as many as least squares takes."""
    count = each.x.shape[1]
    return jnp.argsort(-each.doubt)[: MOST_UNKNOWNS // max(count - 1, 1)]


def records_of(each: Alternatives) -> ClientData:
    """The client's records by the answer."""
    one = jax.vmap(lambda candidates, chosen: candidates[chosen])
    mask = jnp.ones(len(each.x), bool)
    return ClientData(one(each.x, each.chosen), one(each.y, each.chosen), mask, jnp.asarray(0))
