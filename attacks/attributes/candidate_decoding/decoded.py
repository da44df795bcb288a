"""From weights that least squares finds to one candidate per record, and what is said of them."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Num

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.joint import told
from attacks.attributes.candidate_decoding.shortlist import Shortlist, distances_from
from attacks.attributes.knowledge import Knowledge, Reconstruction
from attacks.fit import Status, contradicts_nothing, status_of
from jaxfl import _check

Array = jax.Array


@struct.dataclass
class Decoding(Reconstruction):
    """A `Reconstruction` with what least squares says about itself. Its `scores` are the weights s,
    which a good answer has near 0 and 1; neighbours on a shortlist share theirs.

    Attributes:
      condition: condition number of the normal equations (squared: that of the problem); NaN with
        "cg".
      residual: squared residual of the real-valued solution, relative to the right-hand side; what
        it may be is judged in `fit`.
      learning_rate: the given rate, or the one found; of every round `[rounds]`, if they differ.
      presence: sum of each record's weights `[records]`, near 1 for those that are the client's, or
        None if all are.
    """

    condition: Num[Array, ""]
    residual: Num[Array, ""]
    learning_rate: Num[Array, "..."]
    presence: Num[Array, "records"] | None


def needs_all(decoding: Decoding, knowledge: Knowledge, most: int) -> bool:
    """Whether values on a list do not explain the messages (their answer is unchecked), so that all
    values have to be asked; not under `jit`, nor where that is more than `most` unknowns."""
    unknowns = len(knowledge.x) * (len(knowledge.columns[0].candidates) - 1)
    if _check.is_unseen(decoding.status) or unknowns > most:
        return False
    unchecked = decoding.status == Status.UNCHECKED
    return bool(unchecked & contradicts_nothing(decoding.fit))


def judged_by_all(listed: Decoding, whole: Decoding) -> Decoding:
    """The better of two answers, of values on a list and of all, judged by what no values at all
    explain."""
    if whole.status == Status.FAILED or whole.objective < listed.objective:
        return whole
    fit = dataclasses.replace(listed.fit, misfit=whole.fit.misfit)
    failed = listed.status == Status.FAILED
    return dataclasses.replace(listed, fit=fit, status=status_of(failed, fit))


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


def nearest(weights: Array, precision: Array | None) -> Array:
    """The candidate of every record `[records]`; arguments as those of `decoded`."""
    if precision is None:
        return with_first(weights).argmax(1)
    corners = jnp.eye(weights.shape[1] + 1, dtype=weights.dtype)[None, :, 1:]
    return distances_from(weights, precision, corners).argmin(1)


def nearest_of(records: int, close: Array | None) -> Callable[[Array], Array]:
    """From weights `[unknowns]` to every record's candidate; `close` as the `precision` of
    `nearest`."""
    return lambda weights: nearest(weights.reshape(records, -1), close)


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
    best = nearest(weights, precision)
    rounded = jax.nn.one_hot(best, scores.shape[1], dtype=scores.dtype)
    chosen, presence = rounded[:, 1:].reshape(-1), None
    if absence:
        presence, scores = 1 - scores[:, 0], scores[:, 1:]
        rounded = jax.nn.one_hot(scores.argmax(1), scores.shape[1], dtype=scores.dtype)
    if listed is not None:
        scores, rounded = listed.whole(scores), listed.whole(rounded)
    values, labels, _ = told(knowledge, rounded)
    return Decoded(chosen, values, labels, told(knowledge, scores).scores, presence)
