"""How much of an answer of least squares would be read again, of a client whose values are known.

Many records, few rounds or a small learning rate may leave what tells records apart below the
noise, while the records that are alike explain nearly all of the messages: then a wrong answer
explains as much as a right one. A parametric bootstrap (Efron and Tibshirani 1993, section 6.5)
tells: the client is simulated with the answer's values in another order, its models are rounded as
the messages were, what else is left is drawn, and the same least squares are asked for the values.
Noise that is only drawn says too little where models hardly move: their rounding repeats itself
from round to round, and much of it lies where the unknowns do.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from optax.tree import vdot

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.linear_problem import (
    LinearProblem,
    linear_problem,
    relative_weights,
)
from attacks.fit import equations
from attacks.fixed_draws import fixed_key
from jaxfl import Messages, Model

Array = jax.Array
Estimate = Callable[[LinearProblem, Array, Any], Array]
"""From the problem, unknowns and the noise in their equations to what least squares make of it."""
DRAWS = 4
"""Clients that are simulated."""
ANY = 0.1
"""Share of their records whose values are drawn from all: of an answer that names one value alone,
another order says nothing."""
NEAR = 1 / 8
"""Root mean square distance of weights from the values that they stand for, within which none is
unsure: the messages' own noise moved them no further."""


@dataclasses.dataclass(frozen=True)
class Client:
    """A client that takes one full-batch step a round, and what was seen of it.

    Attributes:
      model: its model (static).
      messages: as if at one rate.
      candidates: of its records `[records, K, ...]` and `[records, K]`.
      labels: `[records]`: values change places among records of one label; None among all.
      members: how many records it has, if the first candidate of each is absence (static).
      told: whether its rate is known (static); else its inverse is the last unknown.
      rate: of its steps `[]`.
      rates: of all rounds, or of each `[rounds]`.
      spacing: relative, of the numbers of its models `[]`.
    """

    model: Model
    messages: Messages
    candidates: tuple[Array, Array]
    labels: Any
    members: int | None
    told: bool
    rate: Array
    rates: Array
    spacing: Array

    def problem(self) -> LinearProblem:
        """Its least squares."""
        rate = self.rate if self.told else None
        return linear_problem(self.model, self.messages, *self.candidates, rate, self.members)

    def rounding(self, problem: LinearProblem, weights: Array) -> Any:
        """What it adds to the equations, if the client has such weights and each model that it
        received is the one that was recorded."""
        received, updates = self.messages.received, self.messages.pseudo_gradient
        unit = (self.members or len(weights)) / self.rate
        scales = jnp.sqrt(relative_weights(updates))
        gradient = problem.gradients(weights)
        relative = jnp.broadcast_to(self.rates / self.rate, len(self.messages))

        def rounded(model: Array, step: Array) -> Array:
            def one(model: Array, step: Array, scale: Array, relative: Array) -> Array:
                per_scale = jnp.where(scale > 0, relative / (unit * scale), 0)
                exact = model - per_scale * step
                error = exact - to_spacing(exact, self.spacing)
                return jnp.where(per_scale > 0, error / per_scale, 0)

            return jax.vmap(one)(model, step, scales, relative)

        return jax.tree.map(rounded, received, gradient)

    def repeats(self, problem: LinearProblem, solved: Array) -> Array:
        """Whether its rounding explains more of the messages than it leaves, beside unknowns that
        least squares solved; what was rounded before it was recorded is rounded at random."""
        records, count = self.candidates[1].shape
        weights = with_first(solved[: records * (count - 1)].reshape(records, -1))
        left = jax.tree.map(jnp.subtract, problem.target, problem.forward(solved))
        unsaid = jax.tree.map(jnp.subtract, left, self.rounding(problem, weights))
        return vdot(unsaid, unsaid) < vdot(left, left)

    def noise(self, errors: Any, deviation: Array, key: Array) -> Any:
        """Errors of rounding, and noise, so that both are as large as a deviation in every equation
        says."""
        updates = self.messages.pseudo_gradient
        count = equations(updates)
        more = jnp.sqrt(jnp.maximum(deviation**2 - vdot(errors, errors) / count, 0))
        leaves, structure = jax.tree.flatten(errors)
        keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))

        def with_noise(error: Array, update: Array, key: Array) -> Array:
            drawn = jax.random.normal(key, error.shape, error.dtype)
            return error + more * jnp.where(update == 0, 0, drawn)

        return jax.tree.map(with_noise, errors, updates, keys)


def read_again(
    client: Client,
    chosen: Array,
    solved: Array,
    deviation: Array,
    estimate: Estimate,
    nearest: Callable[[Array], Array],
) -> Array:
    """Share of the values that are read again, beyond chance, every value counting alike: between
    0, where they are guessed, and 1 `[]`; NaN where they cannot be solved.

    Args:
      client: who is simulated.
      chosen: the answer, weights of 0 and 1 of every candidate but the first `[weights]`.
      solved: all unknowns as least squares have them; those beside weights come last.
      deviation: of all noise in every equation `[]`.
      estimate: the least squares.
      nearest: from weights to the index of every record's candidate `[records]`.
    """
    count = client.candidates[1].shape[1]
    problem, answer = client.problem(), nearest(chosen)

    repeats = client.repeats(problem, solved)

    def drawn(key: Array) -> tuple[Array, Array]:
        value_key, noise_key = jax.random.split(key)
        values = reordered(answer, client.labels, count, value_key)
        weights = jax.nn.one_hot(values, count, dtype=chosen.dtype)
        errors = client.rounding(problem, weights)
        errors = jax.tree.map(lambda error: jnp.where(repeats, error, 0), errors)
        noise = client.noise(errors, deviation, noise_key)
        unknowns = solved.at[: len(chosen)].set(weights[:, 1:].reshape(-1))
        read = estimate(problem, unknowns, noise)[: len(chosen)]
        return values, jnp.where(jnp.isfinite(read).all(), nearest(read), -1)

    values, read = jax.lax.map(drawn, jax.random.split(fixed_key(), DRAWS))
    beyond = beyond_chance(values.reshape(-1), read.reshape(-1), count, chosen.dtype)
    return jnp.where((read < 0).any(), jnp.nan, beyond)


def reordered(values: Array, labels: Any, count: int, key: Array) -> Array:
    """Values of the records of a client like one that has these `[records]`: in another order
    within labels, or among all records if these are None, and `ANY` of them drawn from `count`."""
    order_key, any_key, value_key = jax.random.split(key, 3)
    values = values[_order(labels, len(values), order_key)]
    another = jax.random.uniform(any_key, values.shape, jnp.float32) < ANY
    drawn = jax.random.randint(value_key, values.shape, 0, count, values.dtype)
    return jnp.where(another, drawn, values)


def beyond_chance(values: Array, read: Array, count: int, dtype: Any) -> Array:
    """Share of the values that are read, every one of `count` alike: 0 for guesses, 1 for all."""
    hits = jnp.zeros(count, dtype).at[values].add(values == read)
    times = jnp.zeros(count, dtype).at[values].add(1)
    share = jnp.where(times > 0, hits / jnp.maximum(times, 1), 0).sum() / (times > 0).sum()
    return jnp.maximum((share - 1 / count) / (1 - 1 / count), 0)


def is_near(weights: Array, chosen: Array) -> Array:
    """Whether no weight is far from the answer, so that nothing need be simulated."""
    return ((weights - chosen) ** 2).mean() <= NEAR**2


def _order(labels: Any, records: int, key: Array) -> Array:
    """The records, at random within labels, or on either side of the labels' median if these are
    numbers."""
    at_random = jax.random.permutation(key, records)
    if labels is None:
        return at_random
    labels = jnp.asarray(labels)
    if jnp.issubdtype(labels.dtype, jnp.inexact):
        labels = labels > jnp.median(labels)
    places = jnp.argsort(labels, stable=True)
    return (
        jnp.zeros(records, int)
        .at[places]
        .set(at_random[jnp.argsort(labels[at_random], stable=True)])
    )


def to_spacing(numbers: Array, spacing: Array) -> Array:
    """To the nearest numbers of a relative spacing."""
    step = jnp.ldexp(spacing / 2, jnp.frexp(jnp.where(numbers != 0, numbers, 1))[1])
    return jnp.round(numbers / step) * step
