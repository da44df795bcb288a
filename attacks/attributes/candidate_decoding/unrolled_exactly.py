"""Decoding a client that draws nothing at random, by Gauss-Newton through its simulated training.

Threat model: that of `gls_unrolled`, of a client whose steps take all of its records, or batches
that are cut from them as they stand (`LocalTraining.shuffle`), in an order that the adversary
knows; whatever its optimiser.

Such a client's update is a function mu_t(w) of the candidates' weights w, which a right answer
explains but for rounding. With derivatives J_t, each pass minimises

    sum_t |u_t - mu_t(w) - J_t (v - w)|^2 / |u_t|^2

over weights v >= 0 of which every record's sum to 1. The next pass begins where the client's own
training leaves least of the messages: on the way from w to v, at the rounded v, or at the rounded v
with the values of those few records changed whose own change explains most. Weights of records that
are no records bend a path of many steps, and whole values do not. Those that leave least are the
answer.

Steps of SGD, with momentum and decay or without, are nearly linear in the weights. Those of Adam
have gradients' signs in them, so that the search may end short of its own recipe.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.candidates import (
    candidate_records,
    prior_weights,
    with_first,
)
from attacks.attributes.candidate_decoding.constraints import most_likely
from attacks.attributes.candidate_decoding.joint import told
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.attributes.candidate_decoding.unrolled_client import UnrolledClient
from attacks.attributes.knowledge import Knowledge, Reconstruction, answered, float_type
from attacks.fixed_draws import fixed_key
from attacks.precision import cast
from jaxfl import LocalTraining, Messages, Model

Array = jax.Array
PASSES, PASSES_OF_LINEAR = 12, 4
"""Linearisations; of steps that are linear in gradients one to three were enough."""
SHARES = (1.0, 0.5, 0.25)
"""How far of the way to the minimum the next pass may begin."""
TOGETHER = 8
"""Weights on which the client is simulated side by side."""
CLOSER = 2
"""Factor by which what is left differs by more than rounding."""
RIDGE = 1e-6
"""Pull towards the prior, relative to the mean curvature: what nothing tells keeps it."""


@functools.partial(jax.jit, static_argnames=("model", "linear", "dtype"))
def exactly_unrolled(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    training: LocalTraining,
    linear: bool,
    dtype: Any,
) -> Reconstruction:
    """The answer of `gls_unrolled` on such a client, whose steps are `linear` in gradients or not,
    of one unknown column, computed in `dtype`; `objective` and `trace` are parts of the updates'
    energy, mean over rounds, that the rounded answer and each pass leave."""
    narrow = float_type(messages.received)
    knowledge, training = cast((knowledge, training), narrow)
    x, y = candidate_records(model, knowledge)
    client = UnrolledClient(model, x, y if knowledge.y is None else knowledge.y, training)
    records, count = x.shape[:2]
    prior = prior_weights(model, knowledge, count).astype(dtype)
    updates = cast(messages.pseudo_gradient, dtype)
    scales = relative_weights(updates)
    flat = jax.vmap(lambda u: ravel_pytree(u)[0])(updates)
    rounds = cast(messages.received, narrow), flat, scales

    def left(weights: Array) -> Array:
        def of_round(seen: Any) -> Array:
            received, update, scale = seen
            rest = update - client.update(received, weights, fixed_key()).astype(dtype)
            return scale * rest @ rest

        return jax.lax.map(of_round, rounds).sum() / jnp.maximum((scales > 0).sum(), 1)

    def one_pass(at: Array, step: None) -> tuple[Array, Any]:
        gram, along = _quadratic(client, rounds, at)
        curvature = jnp.trace(gram) / len(gram)
        ridge = RIDGE * jnp.where(curvature > 0, curvature, 1)
        solution, (_, rounded) = most_likely(gram, along + gram @ at, prior, records, ridge, None)
        tried = at + jnp.asarray(SHARES, dtype)[:, None] * (solution - at)
        whole = jnp.concatenate([rounded[None], _changed(rounded, records, left)])
        tried = jnp.concatenate([whole, tried])
        leaves = jax.lax.map(left, tried, batch_size=TOGETHER)
        leaves = jnp.where(jnp.isfinite(leaves), leaves, jnp.inf)
        best, right = leaves.argmin(), leaves[: len(whole)].argmin()
        # Weights between values say how sure they are, unless others leave less.
        right = jnp.where(leaves[right] < leaves[0] / CLOSER, right, 0)
        answer = jnp.where(right == 0, solution, whole[right])
        return tried[best], (answer, leaves[best], leaves[right])

    with jax.default_matmul_precision("highest"):
        passes = PASSES_OF_LINEAR if linear else PASSES
        answers, trace, objectives = jax.lax.scan(one_pass, prior, length=passes)[1]
    # The last of those that leave least: what nothing tells keeps its prior there.
    least = jnp.where(objectives <= CLOSER * objectives.min(), jnp.arange(passes), 0).max()
    weights, objective = answers[least], objectives[least]
    values, labels, scores = told(knowledge, with_first(weights.reshape(records, -1)))
    failed = ~(jnp.isfinite(weights).all() & jnp.isfinite(objective))
    answer = answered(failed, (values,), (scores,), labels, objective=objective, trace=trace)
    return cast(answer, jnp.float32, jnp.int32)


def _changed(rounded: Array, records: int, left: Callable[[Array], Array]) -> Array:
    """Rounded weights `[unknowns]` with the values of those 1, 2, 4, ... records changed whose own
    change leaves least `[changes, unknowns]`."""
    each = rounded.reshape(records, -1)
    values = jnp.eye(each.shape[1], dtype=rounded.dtype)

    def changed(record: Array, place: Array) -> Array:
        # To its first value where it has that one.
        return jnp.where(each[record, place] > 0, 0, values[place])

    def left_of(record_place: tuple[Array, Array]) -> Array:
        return left(each.at[record_place[0]].set(changed(*record_place)).reshape(-1))

    places = jnp.unravel_index(jnp.arange(len(rounded)), each.shape)
    leaves = jax.lax.map(left_of, places, batch_size=TOGETHER).reshape(each.shape)
    leaves = jnp.where(jnp.isfinite(leaves), leaves, jnp.inf)
    best = jax.vmap(changed)(jnp.arange(records), leaves.argmin(1))
    rank = leaves.min(1).argsort().argsort()
    counts = 2 ** jnp.arange(max(records.bit_length() - 1, 1))
    taken = rank < counts[:, None]
    return jnp.where(taken[..., None], best, each).reshape(len(counts), -1)


def _quadratic(client: UnrolledClient, rounds: Any, weights: Array) -> tuple[Array, Array]:
    """Inner products of the derivatives `[unknowns, unknowns]`, and with what is left of the
    messages `[unknowns]`, of every round relative to its update's energy."""
    unknowns, dtype = len(weights), weights.dtype

    def add(total: tuple[Array, Array], seen: Any) -> tuple[tuple[Array, Array], None]:
        received, update, scale = seen
        rest = update - client.update(received, weights, fixed_key()).astype(dtype)
        derivative = client.derivative(received, weights, fixed_key()).astype(dtype)
        gram, along = total
        return (
            gram + scale * derivative @ derivative.T,
            along + scale * derivative @ rest,
        ), None

    zero = jnp.zeros((unknowns, unknowns), dtype), jnp.zeros(unknowns, dtype)
    return jax.lax.scan(add, zero, rounds)[0]
