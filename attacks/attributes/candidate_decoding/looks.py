"""Further looks at an answer that does not explain a client's messages.

Gradients at the centre of a path of several steps are exact to first order alone, so that a few
wrong values leave more than rounding. Least squares on what is left moves the candidates' weights,
and the client is simulated on these.
"""

from typing import NamedTuple

import jax

from attacks.attributes.candidate_decoding.alternatives import Alternatives
from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.constraints import onto_simplex
from attacks.attributes.candidate_decoding.simulated_client import Guess, guess_of
from attacks.fit import Fit
from attacks.path import local_path
from jaxfl import ClassWeights, LocalTraining, Model

Array = jax.Array
LOOKS, CLOSER = 5, 2
"""Looks at an answer that least squares corrects, at most, and the factor by which each has to be
closer for another to be worth it."""


def is_judged_again(training: LocalTraining, records: int) -> bool:
    """Whether a correction may help: one step is linear in what is unknown; what plug-ins do to
    weighted records cannot be simulated again, but for weights of classes."""
    known = all(isinstance(plugin, ClassWeights) for plugin in training.plugins)
    return training.steps(records) > 1 and known


class Look(NamedTuple):
    """One look at messages after another, each on weights that the last one's least squares moved.

    Attributes:
      number: of the next look; the first is at the answer itself.
      weights: of the unsure records' candidates `[unsure, candidates]`.
      fit: of the answer, with the least misfit so far.
      is_closer: whether the last look was closer by a factor of `CLOSER` than those before.
    """

    number: Array
    weights: Array
    fit: Fit
    is_closer: Array


def looks_on(look: Look) -> Array:
    """Whether another look may help: there are looks left, and the last one was worth it."""
    worth_it = (look.fit.misfit > 1) & look.is_closer
    return (look.number == 0) | ((look.number <= LOOKS) & worth_it)


def moved_by(training: LocalTraining, records: int, weights: Array, step: Array) -> Array:
    """Weights of candidates that least squares has moved."""
    unit = training.learning_rate * local_path(training, records).total / records
    moved = weights[:, 1:] + step.reshape(len(weights), -1) / unit
    return with_first(onto_simplex(moved)).astype(weights.dtype)


def on_weights(
    model: Model,
    training: LocalTraining,
    each: Alternatives,
    labels: Array,
    unsure: Array,
    weights: Array,
) -> Guess:
    """The client on weighted candidates of its unsure records, and on the others' answers."""
    count = each.x.shape[1]
    sure = jax.nn.one_hot(each.chosen, count, dtype=each.x.dtype)
    scores = sure.at[unsure].set(weights)
    return guess_of(model, training, scores, each.x, labels, lambda: scores)
