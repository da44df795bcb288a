"""What rounding may leave of a client's messages, of an answer on all of its records that is right.

Threat model: as of the attacks that ask.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from attacks.attributes.candidate_decoding.factored_gradients import mean_lengths
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.fit import energies, precision, rounding
from attacks.path import is_linear, local_path
from jaxfl import DPSGD, ClassWeights, ClientData, LocalTraining, Messages, Model, mean_loss
from jaxfl.models.probe import draws_at_random

Array = jax.Array
CORRECTED = 1e-3
"""1 minus the share of the second moment that Adam keeps: so much is left of two numbers near 1, of
which float32 keeps seven digits, in its correction of the first step."""


def client_rounding(
    model: Model,
    messages: Messages,
    training: LocalTraining,
    records: tuple[Array, Array],
    free_scale: bool,
) -> Array:
    """What rounding may leave of a right answer, of all rounds together."""
    received, updates = messages.received, messages.pseudo_gradient
    eps, steps = precision(messages), training.steps(len(records[1]))
    lengths = training.learning_rate * mean_lengths(model, received, *records)
    if free_scale:
        times = _times_as_long(model, messages, training, records)
        # Runs of a lower rate are lost in the rounding of models first.
        narrow = jnp.asarray(jnp.finfo(records[0].dtype).eps, eps.dtype)
        shorter = jax.tree.map(lambda u: jnp.stack([u, jax.vmap(jnp.divide)(u, times)]), updates)
        cases = shorter, jnp.stack([times * lengths, lengths]), jnp.stack([eps, narrow])
        noise = jax.vmap(functools.partial(rounding, received, steps=steps))(*cases).sum(0)
    else:
        noise = rounding(received, updates, lengths, eps, steps)
        if not is_linear(training.optimizer, messages.model_shapes):
            noise += (jnp.finfo(jnp.float32).eps / CORRECTED) ** 2
    return jnp.where(jnp.isfinite(noise), noise, 0).sum()


def effect_of_one(
    model: Model, messages: Messages, training: LocalTraining, data: ClientData, free_scale: bool
) -> Array | None:
    """What one record adds to an update, in its gradient `[]`; None where it is not the same in
    every run, or the optimiser is not linear, or a plug-in may change what is sent."""
    records, shapes = len(data.mask), messages.model_shapes
    at_random = training.draws_batches(records) or draws_at_random(model, shapes, data.x)
    known = all(isinstance(plugin, ClassWeights | DPSGD) for plugin in training.plugins)
    if at_random or not known or not is_linear(training.optimizer, shapes):
        return None
    effect = training.learning_rate * local_path(training, records).total / records
    if free_scale:
        times = _times_as_long(model, messages, training, (data.x, data.y))
        # Rounds count by their updates' energy, as inner products of gradients do.
        weights = relative_weights(messages.pseudo_gradient)
        effect *= jnp.sqrt((weights * times**2).sum() / jnp.maximum(weights.sum(), 1e-30))
    return effect


def _times_as_long(
    model: Model, messages: Messages, training: LocalTraining, records: tuple[Array, Array]
) -> Array:
    """How many times as long updates are as one of the recipe's rate would be `[rounds]`; 1 in
    rounds without an update."""

    def slope(params: Any) -> Array:
        return optax.tree.norm(jax.grad(lambda w: mean_loss(model, w, *records))(params))

    steps = training.learning_rate * local_path(training, len(records[1])).total
    expected = steps * jax.vmap(slope)(messages.received)
    least = jnp.finfo(expected.dtype).tiny
    times = jnp.sqrt(energies(messages.pseudo_gradient)) / jnp.maximum(expected, least)
    return jnp.where(times > 0, times, 1)
