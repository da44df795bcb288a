"""A simulated client whose numbers are given: what `decode_numbers` reads of it says how far off
its answers are; what is left of messages beside it, whether these explain a client's.

Threat model: as of `attacks.attributes.candidate_decoding.numbers`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.alternatives import (
    MOST_UNKNOWNS,
    Alternatives,
    least_sure,
)
from attacks.attributes.candidate_decoding.client_rounding import client_rounding
from attacks.attributes.candidate_decoding.explanation import JUDGED, as_wide, left_of, verdict
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.attributes.candidate_decoding.simulated_client import (
    RUNS,
    Guess,
    Simulation,
    model_of_gradients,
    simulated_runs,
    simulation_of,
)
from attacks.attributes.knowledge import Knowledge, erase
from attacks.fit import Fit, energies, equations
from attacks.lapack import after
from attacks.precision import arithmetic, cast
from jaxfl import LocalTraining, Messages, Model, client_round, one_client
from jaxfl.plugins import overriding

Array = jax.Array
TRIAL = 2**32 - 2
"""The stream of the simulated client, apart from the attack's own."""
GRID = 9
"""Values across the bounds which, beside its own, say what a record could be: at most so many, and
as many as leave twice as many equations, and take all records at once."""


def bounds(knowledge: Knowledge) -> tuple[Array, Array]:
    """Between which the column's numbers lie."""
    ends = knowledge.columns[0].candidates[:, 0]
    return ends.min(), ends.max()


def with_numbers(knowledge: Knowledge, numbers: Array) -> Array:
    """Records with numbers `[records, candidates]` in the column's place `[records, candidates,
    features]`."""
    position, base = knowledge.columns[0].positions[0], erase(knowledge)
    numbers = numbers.astype(base.dtype)
    return jax.vmap(lambda each: base.at[:, position].set(each), 1, 1)(numbers)


class Trial(NamedTuple):
    """A simulated client whose numbers are known: what is told of these tells the attack's error.

    Attributes:
      messages: that it sends in reply to the models that the client received.
      numbers: of its records `[records]`.
      drawn: of which records they are drawn between the bounds `[records]`.
      key: of the attack on it.
    """

    messages: Messages
    numbers: Array
    drawn: Array
    key: Array


@functools.partial(jax.jit, static_argnames="model")
def tried_client(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    key: Array,
    training: LocalTraining,
    values: Array,
) -> Trial:
    """A client that computes in the messages' own type."""
    keys = jax.random.split(jax.random.fold_in(key, TRIAL), 4)
    lower, upper = bounds(knowledge)
    drawn = jax.random.permutation(keys[0], jnp.arange(len(values)) < (len(values) + 1) // 2)
    fresh = jax.random.uniform(keys[1], values.shape, values.dtype, lower, upper)
    numbers = jnp.where(drawn, fresh, values)
    kind = jax.tree.leaves(messages.received)[0].dtype
    x = with_numbers(knowledge, numbers[:, None])[:, 0]
    data = one_client(cast(x, kind), jnp.asarray(knowledge.y))
    training = cast(training, kind)

    def one_round(received_key: tuple[Any, Array]) -> Any:
        received, key = received_key
        return client_round(model, received, data, key, training)

    run_keys = jax.random.split(keys[2], len(messages))
    returned = jax.lax.map(one_round, (messages.received, run_keys))
    return Trial(dataclasses.replace(messages, returned=returned), numbers, drawn, keys[3])


@functools.partial(jax.jit, static_argnames="model")
def left_unexplained(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    values: Array,
    training: LocalTraining,
    key: Array,
) -> Array:
    """Energy of the messages, relative to each round's, beside the mean of a client with these
    numbers `[records]`; rounding at least."""
    x = with_numbers(knowledge, values[:, None])[:, 0]
    data = one_client(x, jnp.asarray(knowledge.y))
    client = simulation_of(Guess(model, data, training), messages.received, x.dtype)
    updates = jax.vmap(lambda tree: ravel_pytree(tree)[0])(messages.pseudo_gradient)

    def one_round(seen: tuple[Any, Array, Array]) -> Array:
        received, update, key = seen
        return jnp.square(update - client.runs(received, key).mean(0)).sum()

    keys = jax.random.split(key, len(messages))
    left = jax.lax.map(one_round, (messages.received, updates, keys))
    weights = relative_weights(messages.pseudo_gradient)
    return weights @ left + jnp.finfo(jnp.float32).eps ** 2


def fit_of_numbers(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    values: Array,
    training: LocalTraining,
    key: Array,
) -> Fit:
    """How well numbers `[records]` explain messages. The misfit is what a grid of numbers for every
    record leaves of the messages, over what it leaves of clients with these numbers, or of clients
    with any: gradients between two of the grid are not just those of a mean."""
    training, key = as_wide(training, knowledge), jax.random.fold_in(key, JUDGED)
    with arithmetic(np.dtype(np.float64), messages, knowledge, values, key, training):
        return cast(_fit(model, messages, knowledge, values, training, key), jnp.float32)


@functools.partial(jax.jit, static_argnames="model")
def _fit(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    values: Array,
    training: LocalTraining,
    key: Array,
) -> Fit:
    updates = messages.pseudo_gradient
    each = _alternatives(knowledge, values, sum(leaf.size for leaf in jax.tree.leaves(updates)))
    unsure, data = least_sure(each), one_client(each.x[:, 0], each.y[:, 0])
    noise = client_rounding(model, messages, training, (data.x, data.y), False)
    model_told, model = model, model_of_gradients(model, training, data.y)
    guess = Guess(model_told, data, training)
    dtype = jnp.result_type(float)
    client = simulation_of(guess, messages.received, dtype)
    lower, upper = bounds(knowledge)

    def of_any_numbers(received: Any, key: Array) -> Array:
        def run(key: Array) -> Array:
            keys = jax.random.split(key)
            numbers = jax.random.uniform(keys[0], values.shape, data.x.dtype, lower, upper)
            x = with_numbers(knowledge, numbers[:, None])[:, 0]
            drawn = guess._replace(data=dataclasses.replace(data, x=x))
            return simulated_runs(drawn, received, keys[1], 1)[0]

        return jax.lax.map(run, jax.random.split(key, RUNS))

    def seen_with(client: Simulation, each: Alternatives) -> Fit:
        left = left_of(model, messages, client, each, unsure, key, False)
        return verdict(left, noise, (energies(updates) > 0).sum(), False)

    with jax.default_matmul_precision("highest"):
        fit = seen_with(client, each)
        later = each._replace(x=after(each.x, fit.misfit))
        anyone = client._replace(runs=of_any_numbers, run_count=RUNS)
        misfit = jnp.minimum(fit.misfit, seen_with(anyone, later).misfit)
    plain = not overriding("batch", training.plugins)
    told = plain & (equations(updates) > len(unsure) * (each.x.shape[1] - 1))
    moved = (energies(updates) > 0).any()
    misfit = jnp.where(moved, jnp.where(told, misfit, jnp.nan), jnp.inf)
    return dataclasses.replace(fit, misfit=misfit)


def _alternatives(knowledge: Knowledge, values: Array, numbers: int) -> Alternatives:
    """What each record could be: as it is decoded, or others across the bounds; `numbers` in all
    messages."""
    lower, upper = bounds(knowledge)
    most = min(numbers // 2, MOST_UNKNOWNS) // len(values)
    count = int(np.clip(most, 2, GRID))
    others = jnp.broadcast_to(jnp.linspace(lower, upper, count), (len(values), count))
    x = with_numbers(knowledge, jnp.concatenate([values[:, None], others], 1))
    y = jnp.broadcast_to(jnp.asarray(knowledge.y)[:, None], x.shape[:2])
    sure = jnp.zeros(len(values), values.dtype)
    return Alternatives(x, y, jnp.zeros(len(values), jnp.int32), sure)
