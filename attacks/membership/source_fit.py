"""Do records, each held by one client, explain the clients' messages?

As for attributes (`attacks.attributes.candidate_decoding.explanation`): every client is simulated
on the records of its largest weights. What is left of its messages is compared with what is left of
these runs, both without the span of all records' gradients, to which wrong answers add. Records
that a client holds and nobody knows of, another model, or a recipe whose updates are no sums of
gradients leave more. So do shares below nothing or above all of a record, such as updates of the
other sign have, where no admissible ones explain the messages.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.constraints import minimize_quadratic
from attacks.attributes.candidate_decoding.explanation import (
    deviations,
    largest_of_more,
    span_of,
    verdict,
    without_span,
)
from attacks.attributes.candidate_decoding.factored_gradients import (
    factored_gradients,
    mean_lengths,
)
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.attributes.candidate_decoding.simulated_client import (
    Guess,
    runs_that_tell,
    simulated_runs,
)
from attacks.fit import FALSE_ALARMS, Fit, energies, equations, rounding
from attacks.path import local_path
from attacks.precision import arithmetic, cast
from jaxfl import ClientData, LocalTraining, Model
from jaxfl.models.probe import mixes_records
from jaxfl.plugins import overriding

Array = jax.Array
ITERATIONS = 64
"""Steps towards the admissible shares that leave least. Fewer prove less, and nothing wrong."""


class Seen(NamedTuple):
    """What clients were sent and what came of it.

    Attributes:
      received: models `[rounds, ...]`, the same for all clients.
      centres: of the clients' paths, on average `[rounds, ...]`.
      updates: `[rounds, clients, ...]`.
      spacings: of the numbers in which messages were recorded, relative `[clients]`.
    """

    received: Any
    centres: Any
    updates: Any
    spacings: Array


def judge_sources(
    model: Model,
    training: LocalTraining,
    seen: Seen,
    weights: Array,
    sizes: tuple[int, ...],
    records: tuple[Array, Array],
    key: Array,
) -> Fit:
    """How well records explain every client's messages; fields are `[clients]`.

    Args:
      model: the model (static).
      training: the clients' recipe.
      seen: all clients' messages.
      weights: decoded ones `[records, clients]`.
      sizes: records of each client.
      records: all of them `[records, ...]`, and their labels `[records]`.
      key: draws the orders of the runs.
    """
    with arithmetic(np.dtype(np.float64), seen, weights, records, key, training):
        fit = _judge_sources(model, training, seen, weights, sizes, records, key)
        return cast(fit, jnp.float32)


@functools.partial(jax.jit, static_argnames=("model", "sizes"))
def _judge_sources(
    model: Model,
    training: LocalTraining,
    seen: Seen,
    weights: Array,
    sizes: tuple[int, ...],
    records: tuple[Array, Array],
    key: Array,
) -> Fit:
    x, y = records
    first = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), seen.received)
    plain = not (mixes_records(model, first, x) or overriding("batch", training.plugins))
    lengths = training.learning_rate * mean_lengths(model, seen.received, x, y)
    with jax.default_matmul_precision("highest"):
        gram, along, inner, scale = _products(
            model, training, seen, clients_of(weights, sizes, records), records, key
        )
        span = span_of(gram, scale)

        def judged(
            own: Any,
            eps: Array,
            steps: Array,
            along: Array,
            inner: Array,
            limits: tuple[Array, Array],
        ) -> Fit:
            energy = relative_weights(seen.updates) * energies(own)
            rounded = rounding(seen.received, own, lengths, eps, steps)
            rounded = jnp.where(energy > 0, rounded * energy, 0).sum()
            left = without_span(span, along, inner)
            fit = verdict(left, rounded, energy.sum(), False)
            least = _least_admissible(gram, along[:, 0], inner[0, 0], limits)
            excess = least / (largest_of_more(jnp.diag(inner)[1:-2], FALSE_ALARMS / 4) + rounded)
            told = plain & (equations(own) > len(x))
            # A client that trains returns another model than it received.
            moved = (energy > 0).any()
            # Shares of records that are not among these are laid upon those that are.
            worst = jnp.maximum(fit.misfit, excess) if len(x) >= sum(sizes) else fit.misfit
            misfit = jnp.where(told, worst, jnp.nan)
            misfit = jnp.where(moved, misfit, jnp.inf)
            return Fit(fit.explained, fit.allowed, misfit)

        updates = jax.tree.map(lambda u: u.swapaxes(0, 1), seen.updates)
        steps = jnp.asarray([training.steps(size) for size in sizes])
        limits = _limits(training, weights, sizes)
        return jax.vmap(judged)(updates, seen.spacings, steps, along, inner, limits)


def _least_admissible(
    gram: Array, along: Array, square: Array, limits: tuple[Array, Array]
) -> Array:
    """What any shares of the records leave of a message at least, from below: a client holds a
    record, a part of its weight or nothing of it, and no negative or larger share.

    Args:
      gram: of the records' gradients `[records, records]`.
      along: of these with what is left of the message `[records]`.
      square: of what is left.
      limits: by how much each record's weight may change `[records]`, down and up.
    """
    low, high = limits
    step = minimize_quadratic(
        lambda step: gram @ step - along,
        jnp.zeros_like(along),
        lambda step: jnp.clip(step, low, high),
        jnp.abs(gram).sum(1).max(),
        ITERATIONS,
    )
    slope = 2 * (gram @ step - along)
    # A convex function lies above its tangent, whose least is at a corner.
    below = jnp.minimum(slope * (low - step), slope * (high - step)).sum()
    return square - 2 * step @ along + step @ gram @ step + below


def heaviest(weights: Array, sizes: Array) -> Array:
    """1 for so many records of each client, those of its largest weights, and 0 for the others
    `[records, clients]`."""
    ranks = jnp.argsort(jnp.argsort(-_apart(weights), axis=0), axis=0)
    return (ranks < sizes).astype(weights.dtype)


def _apart(weights: Array) -> Array:
    """Weights less half of the largest that another client has: most records are of one client, and
    one that two hold has more left than one that nobody does."""
    clients = weights.shape[1]
    if clients < 2:
        return weights
    two = jax.lax.top_k(weights, 2)[0]
    largest = weights == two[:, :1]
    return weights - jnp.where(largest, two[:, 1:], two[:, :1]) / 2


def _limits(training: LocalTraining, weights: Array, sizes: tuple[int, ...]) -> tuple[Array, Array]:
    """By how much the weight of each record may change from the guess `[clients, records]`, in
    steps of its gradient."""
    chosen = heaviest(weights, jnp.asarray(sizes)).T
    each = [training.learning_rate * local_path(training, size).total / size for size in sizes]
    unit = jnp.stack([jnp.asarray(one, weights.dtype) for one in each])[:, None]
    return -unit * chosen, unit * (1 - chosen)


def clients_of(weights: Array, sizes: tuple[int, ...], records: tuple[Array, Array]) -> ClientData:
    """Clients on the records of their largest weights, `[clients, ...]`."""
    most, count = min(max(sizes), len(weights)), jnp.asarray(sizes)
    places = jnp.argsort(-_apart(weights), axis=0)[:most].T
    mask = jnp.arange(most) < count[:, None]
    return ClientData(records[0][places], records[1][places], mask, jnp.arange(len(sizes)))


class _Products(NamedTuple):
    """Inner products, summed over rounds. A client's vectors are what is left of its message and of
    each run, and the model, which weight decay follows.

    Attributes:
      gram: of the records' gradients `[records, records]`.
      along: of these with each client's vectors `[clients, records, vectors]`.
      inner: of the vectors `[clients, vectors, vectors]`.
      scale: the gradients' mean square.
    """

    gram: Array
    along: Array
    inner: Array
    scale: Array


def _products(
    model: Model,
    training: LocalTraining,
    seen: Seen,
    clients: ClientData,
    records: tuple[Array, Array],
    key: Array,
) -> _Products:
    """Those of all rounds."""
    runs = runs_that_tell(model, training, seen.received, clients.x[0])
    x, y = cast(records, jnp.result_type(float))

    def of_client(received: Any, update: Any, data: ClientData, key: Array) -> Array:
        made = simulated_runs(Guess(model, data, training), received, key, runs)
        flat = ravel_pytree(received)[0]
        update, made, flat = cast((ravel_pytree(update)[0], made, flat), x.dtype)
        return jnp.stack([update - made.mean(0), *deviations(made), flat, flat])

    def add(total: Any, round_: Any) -> tuple[Any, None]:
        received, centre, updates, weight, key = round_
        keys = jax.random.split(key, len(clients.mask))
        vectors = jax.lax.map(lambda one: of_client(received, *one), (updates, clients, keys))
        centre = cast(centre, x.dtype)
        gradients, unravel = factored_gradients(model, centre, x, y), ravel_pytree(centre)[1]
        gram = gradients.gram()
        products = jax.vmap(lambda row: gradients.along(unravel(row)), out_axes=1)
        along = jax.lax.map(products, vectors)
        inner = vectors @ vectors.swapaxes(1, 2)
        these = _Products(gram, along, inner, jnp.trace(gram) / len(gram))
        return jax.tree.map(lambda t, p: t + weight * p, total, these), None

    relative = relative_weights(seen.updates)
    keys = jax.random.split(key, len(relative))
    rounds = seen.received, seen.centres, seen.updates, relative, keys
    n, count, rows = len(x), len(clients.mask), runs + 3
    shapes = (n, n), (count, n, rows), (count, rows, rows), ()
    zero = _Products(*[jnp.zeros(shape, x.dtype) for shape in shapes])
    return jax.lax.scan(add, zero, rounds)[0]
