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
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.linear_problem import (
    LinearProblem,
    linear_problem,
    relative_weights,
)
from attacks.fit import rows
from attacks.fixed_draws import fixed_key
from jaxfl import Messages, Model

Array = jax.Array
DRAWS = 4
"""Clients that are simulated."""
ANY = 0.1
"""Share of their records whose values are drawn from all: of an answer that names one value alone,
another order says nothing."""
NEAR = 1 / 4
"""Share of the way from where least squares begin to the values that weights stand for, that is
left of every record's way where none is unsure: the messages' own noise moved them no further."""


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
      rate: at which the messages are as if all steps were `[]`.
      rates: of its steps, one or of every round `[rounds]`.
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

    def rounding(self, made: Array) -> Array:
        """What it adds to the equations `[rounds, numbers]` if all gradients together are `made`
        `[rounds, numbers]`, divided as the problem's, and each model that the client received is
        the one that was recorded."""
        step = (self._step * self.rates / self.rate)[:, None]
        exact = rows(self.messages.received) - step * made
        error = exact - to_spacing(exact, self.spacing)
        return jnp.where(step > 0, error / jnp.where(step > 0, step, 1), 0)

    def repeats(self, made: Array) -> Array:
        """Whether rounding explains more of the messages than it leaves `[]`, beside gradients as
        least squares have them `[rounds, numbers]`; what was rounded before it was recorded is
        rounded at random."""
        step, updates = self._step[:, None], rows(self.messages.pseudo_gradient)
        left = jnp.where(step > 0, updates / jnp.where(step > 0, step, 1) - made, 0)
        return ((left - self.rounding(made)) ** 2).sum() < (left**2).sum()

    def noise(self, errors: Array, deviation: Array, key: Array) -> Array:
        """Errors of rounding, and noise, so that both are as large as a deviation in every equation
        says; the first and what is returned `[rounds, numbers]`."""
        told = rows(self.messages.pseudo_gradient) != 0
        more = jnp.sqrt(jnp.maximum(deviation**2 - (errors**2).sum() / told.sum(), 0))
        # Of variance 1: sums of so many numbers are normal, whatever they are of.
        drawn = jax.random.uniform(key, errors.shape, jnp.float32, -(3**0.5), 3**0.5)
        return errors + more * jnp.where(told, drawn, 0)

    @property
    def _step(self) -> Array:
        """An update's numbers in units of the problem's `[rounds]`; 0 of rounds that say
        nothing."""
        scales = jnp.sqrt(relative_weights(self.messages.pseudo_gradient))
        averaged = self.members or len(self.candidates[0])
        return jnp.where(scales > 0, self.rate / averaged / jnp.where(scales > 0, scales, 1), 0)


def read_again(
    client: Client,
    chosen: Array,
    solved: Array,
    deviation: Array,
    estimate: Callable[[Array, Array], Array],
    nearest: Callable[[Array], Array],
) -> Array:
    """Share of the values that are read again, beyond chance, every value counting alike: between
    0, where they are guessed, and 1 `[]`; NaN where they cannot be solved.

    Args:
      client: who is simulated.
      chosen: the answer, weights of 0 and 1 of every candidate but the first `[weights]`.
      solved: all unknowns as least squares have them; those beside weights come last.
      deviation: of all noise in every equation `[]`.
      estimate: what least squares make of unknowns, beside what noise adds to the right-hand side
        of the normal equations.
      nearest: from weights to the index of every record's candidate `[records]`.
    """
    records, count = client.candidates[1].shape
    keys = jax.random.split(fixed_key(), (2, 1 + DRAWS))
    answer, problem = nearest(chosen), client.problem()
    values = jax.vmap(lambda key: reordered(answer, client.labels, count, key))(keys[0, 1:])
    weights = jax.nn.one_hot(values, count, dtype=chosen.dtype)
    begun = with_first(solved[: len(chosen)].reshape(records, -1))
    unravel = ravel_pytree(jax.tree.map(lambda a: a[0], client.messages.received))[1]

    def read(repeats: Array, drawn: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        number, weights, key = drawn
        made = rows(problem.gradients(weights))
        repeats = jnp.where(number == 0, client.repeats(made), repeats)
        errors = jnp.where(repeats, client.rounding(made), 0)
        in_shape = jax.vmap(unravel)(client.noise(errors, deviation, key))
        truth = solved.at[: len(chosen)].set(weights[:, 1:].reshape(-1))
        named = estimate(truth, problem.backward(in_shape))[: len(chosen)]
        return repeats, jnp.where(jnp.isfinite(named).all(), nearest(named), -1)

    # The first is what least squares found: one program of gradients, which takes long to compile.
    drawn = jnp.arange(1 + DRAWS), jnp.concatenate([begun[None], weights]), keys[1]
    named = jax.lax.scan(read, jnp.zeros((), bool), drawn)[1][1:]
    beyond = beyond_chance(values.reshape(-1), named.reshape(-1), count, chosen.dtype)
    return jnp.where((named < 0).any(), jnp.nan, beyond)


def reordered(values: Array, labels: Any, count: int, key: Array) -> Array:
    """Values of the records of a client like one that has these `[records]`: in another order
    within labels, or among all records if these are None, and `ANY` of them drawn from `count`."""
    order, at_random = jax.random.uniform(key, (2, len(values)), jnp.float32)
    groups = jnp.zeros_like(order) if labels is None else _groups(jnp.asarray(labels))
    within = jnp.zeros_like(values).at[groups.argsort()].set(values[(groups + order).argsort()])
    drawn = jnp.floor(at_random / ANY * count).astype(values.dtype)
    return jnp.where(at_random < ANY, jnp.minimum(drawn, count - 1), within)


def beyond_chance(values: Array, read: Array, count: int, dtype: Any) -> Array:
    """Share of the values `[...]` that are read, every one of `count` that occurs alike: 0 where
    one is always read, 1 for all `[]`."""
    hits = jnp.zeros(count, dtype).at[values].add(values == read)
    times = jnp.zeros(count, dtype).at[values].add(1)
    occurring = (times > 0).sum()
    share = jnp.where(times > 0, hits / jnp.maximum(times, 1), 0).sum() / occurring
    chance = 1 / jnp.maximum(occurring, 2).astype(dtype)
    return jnp.maximum((share - chance) / (1 - chance), 0)


def is_near(weights: Array, chosen: Array, start: Array) -> Array:
    """Whether no record's weights are far from the answer `[]`, so that nothing need be simulated;
    all `[records, candidates]`. What nothing tells stays at the start, however near that is."""
    left, whole = (jnp.abs(a - chosen).max(1) for a in (weights, start))
    return (left <= NEAR * whole).all()


def _groups(labels: Array) -> Array:
    """Whole numbers, one for each label; labels that are numbers are told apart by their mean."""
    if jnp.issubdtype(labels.dtype, jnp.inexact):
        labels = labels > labels.mean()
    return 2 * labels.astype(jnp.float32)


def to_spacing(numbers: Array, spacing: Array) -> Array:
    """To the nearest numbers of a relative spacing."""
    step = jnp.ldexp(spacing / 2, jnp.frexp(jnp.where(numbers != 0, numbers, 1))[1])
    return jnp.round(numbers / step) * step
