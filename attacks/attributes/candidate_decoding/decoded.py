"""From weights that least squares finds to one candidate per record."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.joint import told
from attacks.attributes.candidate_decoding.shortlist import Shortlist, distances_from
from attacks.attributes.knowledge import Knowledge

Array = jax.Array


class Decoded(NamedTuple):
    """Weights rounded to one candidate per record, and the values they stand for.

    Attributes:
      rounded: weights of the chosen candidates, 0 or 1, but the first `[unknowns]`.
      values: per record.
      labels: per record, if they were unknown.
      scores: weights of the values `[records, K]`.
      presence: sum of a record's weights, if not all are the client's.
    """

    rounded: Array
    values: Array
    labels: Array | None
    scores: Array
    presence: Array | None


def decoded(
    knowledge: Knowledge,
    weights: Array,
    precision: Array | None,
    listed: Shortlist | None,
    absence: bool,
) -> Decoded:
    """One candidate per record.

    Args:
      knowledge: what is known.
      weights: of all candidates but the first `[records, K - 1]`, of a shortlist if there is one.
      precision: of these `[records, K - 1, K - 1]`: the candidate nearest to them is chosen, which
        of many alike need not have the largest weight; None where the largest weight decides.
      listed: the shortlist.
      absence: whether the first candidate is absence.
    """
    scores = with_first(weights)
    best = scores.argmax(1)
    if precision is not None:
        corners = jnp.eye(scores.shape[1], dtype=scores.dtype)[None, :, 1:]
        best = distances_from(weights, precision, corners).argmin(1)
    rounded = jax.nn.one_hot(best, scores.shape[1], dtype=scores.dtype)
    chosen, presence = rounded[:, 1:].reshape(-1), None
    if absence:
        presence, scores, rounded = 1 - scores[:, 0], scores[:, 1:], rounded[:, 1:]
        best = scores.argmax(1)
        rounded = jax.nn.one_hot(best, scores.shape[1], dtype=scores.dtype)
    if listed is not None:
        scores, rounded = listed.whole(scores), listed.whole(rounded)
    values, labels, _ = told(knowledge, rounded)
    return Decoded(chosen, values, labels, told(knowledge, scores).scores, presence)
