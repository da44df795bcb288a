"""Several unknown columns, and labels, as one unknown: every combination of their values is a
candidate."""

import dataclasses
import functools
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from attacks.attributes.candidate_decoding.candidates import joint_column
from attacks.attributes.knowledge import Knowledge, Reconstruction, UnknownColumn

Array = jax.Array
Answer = TypeVar("Answer", bound=Reconstruction)
MOST_JOINT = 64
"""Combinations of several columns' values that are tried of each record."""


def joined(attack: str, knowledge: Knowledge) -> Knowledge:
    """Several columns as one, exactly, while their values together are few."""
    if len(knowledge.columns) == 1:
        return knowledge
    values = int(np.prod([len(column.candidates) for column in knowledge.columns]))
    if values > MOST_JOINT:
        raise ValueError(
            f"columns have {values} values together; {attack} takes {MOST_JOINT} at most. Use "
            "gauss_newton, which is not exact, or give fewer columns"
        )
    return dataclasses.replace(knowledge, columns=(joint_column(knowledge.columns),))


def apart(answer: Answer, columns: tuple[UnknownColumn, ...]) -> Answer:
    """The answer on a joint column as one on each."""
    counts = tuple(len(column.candidates) for column in columns)
    values, scores = _apart(answer.values[0], answer.scores[0], counts)
    return dataclasses.replace(answer, values=values, scores=scores)


@functools.partial(jax.jit, static_argnums=2)
def _apart(
    joint: Array, weights: Array, counts: tuple[int, ...]
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    values = [jnp.where(joint < 0, -1, v) for v in jnp.unravel_index(jnp.maximum(joint, 0), counts)]
    weights = weights.reshape(len(weights), *counts)
    axes = range(1, len(counts) + 1)
    scores = [weights.sum(tuple(a for a in axes if a != axis)) for axis in axes]
    return tuple(values), tuple(scores)


class Told(NamedTuple):
    """What the candidates' weights say of every record.

    Attributes:
      values: of the column `[records]`.
      labels: `[records]`, or None if they were known.
      scores: weights of the column's values `[records, K]`.
    """

    values: Array
    labels: Array | None
    scores: Array


def told(knowledge: Knowledge, scores: Array) -> Told:
    """Value and label of the candidate with the largest weight `[records, K]`, or `[records, K
    classes]` where labels are unknown."""
    best = scores.argmax(1)
    if knowledge.y is not None:
        return Told(best, None, scores)
    classes = scores.shape[1] // len(knowledge.columns[0].candidates)
    of_values = scores.reshape(len(scores), -1, classes).sum(2)
    return Told(best // classes, best % classes, of_values)
