"""What is left of a client's messages along directions that a wrong recipe follows."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks.attributes.candidate_decoding.alternatives import (
    alternatives,
    least_sure,
    records_of,
)
from attacks.attributes.candidate_decoding.explanation import Directions, as_wide, left_of
from attacks.attributes.candidate_decoding.simulated_client import (
    Guess,
    model_of_gradients,
    simulation_of,
)
from attacks.attributes.knowledge import Knowledge, Reconstruction
from attacks.precision import arithmetic
from jaxfl import LocalTraining, Messages, Model, mean_loss

Array = jax.Array


def left_along(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    answer: Reconstruction,
    training: LocalTraining,
    key: Array,
) -> np.ndarray:
    """What directions account for, of what no values of the unknowns explain: inner products of
    what is left of the messages and of the directions `[1 + directions] * 2`. Directions are the
    gradient of each array of the model alone, in the order of its leaves; the gradient of every
    class's records and that towards all classes alike, of a classifier; then the gradient, and the
    model. Arguments as for `judge`; not under `jit`."""
    training = as_wide(training, knowledge)
    chosen = answer.values, answer.scores, answer.labels
    with arithmetic(np.dtype(np.float64), messages, knowledge, chosen, key, training):
        return np.asarray(_left_along(model, messages, knowledge, chosen, training, key))


@functools.partial(jax.jit, static_argnames="model")
def _left_along(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    answer: Any,
    training: LocalTraining,
    key: Array,
) -> Array:
    each = alternatives(model, knowledge, answer)
    guess = Guess(model, records_of(each), training)
    model = model_of_gradients(model, training, guess.data.y)
    directions = _array_directions(guess, messages.model_shapes) + _class_directions(guess)
    with jax.default_matmul_precision("highest"):
        client = simulation_of(guess, messages.received, jnp.result_type(float))
        left = left_of(model, messages, client, each, least_sure(each), key, False, directions)
    kept = np.r_[0, -2 - len(directions) : 0]
    return left.after[np.ix_(kept, kept)]


def _array_directions(guess: Guess, shapes: Any) -> Directions:
    data = guess.data

    def of_array(place: int) -> Callable[[Any], Any]:
        def gradient(params: Any) -> Any:
            x = data.x.astype(jax.tree.leaves(params)[0].dtype)
            whole = jax.grad(lambda p: mean_loss(guess.model, p, x, data.y))(params)
            leaves, structure = jax.tree.flatten(whole)
            kept = [g if at == place else jnp.zeros_like(g) for at, g in enumerate(leaves)]
            return jax.tree.unflatten(structure, kept)

        return gradient

    return tuple(of_array(place) for place in range(len(jax.tree.leaves(shapes))))


def _class_directions(guess: Guess) -> Directions:
    model, (x, y) = guess.model, (guess.data.x, guess.data.y)
    classes = model.classes or 0

    def of_loss(loss: Callable[[Array], Array]) -> Callable[[Any], Any]:
        def total(params: Any) -> Array:
            dtype = jax.tree.leaves(params)[0].dtype
            return loss(model.apply(params, x.astype(dtype))).mean()

        return jax.grad(total)

    def of_class(label: int) -> Callable[[Any], Any]:
        return of_loss(lambda outputs: model.loss(outputs, y) * (y == label))

    def towards_all(outputs: Array) -> Array:
        return model.loss(outputs, jnp.full((len(y), classes), 1 / classes, outputs.dtype))

    every = tuple(of_class(label) for label in range(classes))
    return (*every, of_loss(towards_all)) if classes else ()
