"""A shortlist of the values of a numeric column, for every record.

The gradient of a record changes little from one of many values to the next, so that least squares
over all of them is slow, and what it says of neighbours is mostly noise. But the gradients of a few
values nearly span those of all: each value's gradient is a combination of theirs. So least squares
for the weights of a few, with their covariance, says how far from the answer every value is. The
nearest are the next few, and so on: values are looked at from far apart to close together.

Distances are those of the weights' covariance, which is large along what neighbours differ in.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.factored_gradients import factored_gradients
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.attributes.candidate_decoding.normal_equations import (
    covariance,
    normal_equations,
    precisions,
    solve_small,
)
from attacks.attributes.knowledge import Knowledge
from jaxfl import Messages, Model, _check

Array = jax.Array
LISTED, PASSES, MANY = 12, 3, 16
"""Values on a list; how often it is drawn up; and as many values need none."""
INEXACT = 1e-13
"""Error of inner products of a record's gradients, relative to the trace of all."""


class Shortlist(NamedTuple):
    """Candidates that are looked at.

    Attributes:
      places: of each record's, among all `[records, listed]`.
      candidates: how many there are of each.
    """

    places: Array
    candidates: int

    def of(self, every: Array) -> Array:
        """Those on the list `[records, listed, ...]`, of all `[records, K, ...]`."""
        return every[jnp.arange(len(every))[:, None], self.places]

    def prior(self, prior: Array) -> Array:
        """Prior weights of all listed candidates but each record's first, from those of all but the
        first."""
        listed = self.of(with_first(prior.reshape(len(self.places), -1)))
        total = listed.sum(1, keepdims=True)
        some = total > 0  # a value that the prior rules out may be listed
        shares = jnp.where(some, listed / jnp.where(some, total, 1), 1 / LISTED)
        return shares[:, 1:].reshape(-1)

    def whole(self, listed: Array) -> Array:
        """Numbers of all candidates `[records, K]`, 0 for those that are not listed."""
        rows = jnp.arange(len(listed))[:, None]
        return (
            jnp.zeros((len(listed), self.candidates), listed.dtype)
            .at[rows, self.places]
            .set(listed)
        )


def is_needed(model: Model, knowledge: Knowledge, most: int) -> bool:
    """Whether a column has many values along one feature, no two alike where that can be seen, and
    least squares for those on a list has `most` unknowns at most."""
    values = knowledge.columns[0].candidates
    numeric = values.shape[1] == 1 and len(values) > MANY
    if numeric and not _check.is_unseen(values):
        numeric = len(np.unique(np.asarray(values))) == len(values)
    fits = len(knowledge.x) * (LISTED - 1) <= most
    return numeric and fits and knowledge.y is not None and model.layers is not None


def shortlist(
    model: Model,
    messages: Messages,
    candidates: tuple[Array, Array],
    values: Array,
    rate: float | Array | None,
    by_round: bool,
    ridge: float | Array,
) -> Shortlist:
    """The candidates `x [records, K, features]`, `y [records, K]`, of values `[K]`, that are
    nearest to what least squares says; other arguments as for `normal_equations` and `solve`."""
    x, y = candidates
    records, count = y.shape
    inner = _own_products(model, messages, x, y)
    far = jnp.round(jnp.linspace(0, count - 1, LISTED)).astype(jnp.int32)
    far = jnp.argsort(values)[far].astype(jnp.int32)

    def again(places: Array, _: Any) -> tuple[Array, None]:
        listed = Shortlist(places, count)
        system = normal_equations(
            model, messages, listed.of(x), listed.of(y), rate, by_round=by_round
        )
        extra = len(system.right) - records * (LISTED - 1)
        start = jnp.full(len(system.right) - extra, 1 / LISTED, x.dtype)
        start = jnp.concatenate([start, jnp.zeros(extra, x.dtype)])
        spread = covariance(system, ridge)
        unknowns = start + spread @ (system.right - system.gram @ start)
        weights = unknowns[: records * (LISTED - 1)].reshape(records, -1)
        close = precisions(spread, records, LISTED - 1)
        distances = distances_from(weights, close, _combined(inner, places))
        nearest = jnp.argsort(distances, axis=1)[:, :LISTED]
        return nearest.astype(jnp.int32), None

    first = jnp.broadcast_to(far, (records, LISTED))
    places, _ = jax.lax.scan(again, first, length=PASSES)
    return Shortlist(places, count)


def distances_from(weights: Array, precision: Array, points: Array) -> Array:
    """Squared distances `[records, points]` of points `[records or 1, points, k]` from weights
    `[records, k]`, by their precision `[records, k, k]`."""
    apart = points - weights[:, None]
    return jnp.einsum("npi,nij,npj->np", apart, precision, apart)


def _own_products(model: Model, messages: Messages, x: Array, y: Array) -> Array:
    """Inner products of the gradients of each record's candidates `[records, K, K]`, over all
    rounds."""
    records, count = y.shape

    def add(total: Array, seen: tuple[Any, Array]) -> tuple[Array, None]:
        received, weight = seen
        gradients = factored_gradients(model, received, x.reshape(-1, x.shape[-1]), y.reshape(-1))

        def products(a: Array) -> Array:
            a = a.reshape(records, count, -1)
            return jnp.einsum("nka,nla->nkl", a, a)

        layers = [products(a) * products(b) for ((a, b),) in gradients.layers]
        return total + weight * functools.reduce(jnp.add, layers), None

    zero = jnp.zeros((records, count, count), x.dtype)
    weights = relative_weights(messages.pseudo_gradient)
    return jax.lax.scan(add, zero, (messages.received, weights))[0]


def _combined(inner: Array, places: Array) -> Array:
    """Every candidate's gradient less the first listed one's, as the nearest combination of the
    other listed ones less it `[records, K, listed - 1]`."""

    def take(products: Array, axis: int, which: Array) -> Array:
        return jnp.take_along_axis(products, jnp.expand_dims(which, 3 - axis), axis)

    first, others = places[:, :1], places[:, 1:]
    apart = inner - take(inner, 1, first)
    apart = apart - take(apart, 2, first)
    theirs = take(apart, 1, others)
    ours = take(theirs, 2, others)
    ridge = INEXACT * jnp.trace(ours, axis1=1, axis2=2)[:, None, None]
    ours = ours + ridge * jnp.eye(ours.shape[1], dtype=ours.dtype)
    return solve_small(ours, theirs).swapaxes(1, 2)
