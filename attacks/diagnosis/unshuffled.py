"""Whether a client's batches are cut from its records as they stand, and not drawn.

Threat model: as of `attacks.diagnosis.causes`, which asks.
"""

import dataclasses
import functools
import math
import warnings
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.alternatives import alternatives, records_of
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.attributes.candidate_decoding.simulated_client import (
    RUNS,
    Guess,
    runs_that_tell,
    simulated_runs,
)
from attacks.attributes.candidate_decoding.unrolled import UnrolledGLS, gls_unrolled
from attacks.attributes.knowledge import Knowledge, Reconstruction
from attacks.fit import FitWarning, Status
from attacks.fixed_draws import fixed_key
from attacks.precision import arithmetic
from jaxfl import ClassWeights, LocalTraining, Messages, Model

Array = jax.Array
MOST = 2**28
"""Numbers of a round's derivatives, up to which such a client is read."""
CLOSER = 2
"""Factor by which batches in order leave less than the mean of drawn ones does, if they are the
client's: one order is twice as far from another as from the mean."""


def read_in_order(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    answer: Reconstruction,
    training: LocalTraining,
) -> Reconstruction | None:
    """What `gls_unrolled` reads of a client whose batches are not drawn, or None if they are, or
    nothing says that they are not.

    Args:
      answer: of an attack that was told that batches are drawn, on all of `knowledge`.
      training: the recipe that it was told.
    """
    known = all(isinstance(plugin, ClassWeights) for plugin in training.plugins)
    known &= knowledge.y is not None or not training.plugins
    if not known or not training.draws_batches(len(knowledge.x)):
        return None
    if _derivatives(model, messages, knowledge) > MOST:
        return None
    chosen = answer.values, answer.scores, answer.labels
    with arithmetic(np.dtype(np.float64), messages, knowledge, chosen, training):
        in_order, drawn = _left(model, messages, knowledge, chosen, training)
    if not in_order < drawn / CLOSER:
        return None
    settings = UnrolledGLS(dataclasses.replace(training, shuffle=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        read = gls_unrolled(model, messages, knowledge, fixed_key(), settings=settings)
    return read if read.status == Status.OK else None


def _derivatives(model: Model, messages: Messages, knowledge: Knowledge) -> int:
    """How many numbers the derivatives of an update by all unknowns have, and those of records."""
    values = math.prod(len(column.candidates) for column in knowledge.columns)
    values *= 1 if knowledge.y is not None else model.classes or 1
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(messages.model_shapes))
    return len(knowledge.x) * (values - 1) * (parameters + knowledge.x.size * values)


@functools.partial(jax.jit, static_argnames="model")
def _left(
    model: Model, messages: Messages, knowledge: Knowledge, chosen: Any, training: LocalTraining
) -> tuple[Array, Array]:
    """Energy that batches in order leave of the messages on an answer, and the mean of drawn ones,
    of each round relative to its update's."""
    data = records_of(alternatives(model, knowledge, chosen))
    in_order = dataclasses.replace(training, shuffle=False)
    runs = runs_that_tell(model, in_order, messages.received, data.x)
    updates = messages.pseudo_gradient

    def of(training: LocalTraining, runs: int) -> Array:
        def left(received_update: tuple[Any, Any]) -> Array:
            received, update = received_update
            simulated = simulated_runs(Guess(model, data, training), received, fixed_key(), runs)
            return ((ravel_pytree(update)[0] - simulated.mean(0)) ** 2).sum()

        squares = jax.lax.map(left, (messages.received, updates))
        return relative_weights(updates) @ squares

    return of(in_order, runs), of(training, RUNS)
