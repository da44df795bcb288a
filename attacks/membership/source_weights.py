"""Weights of records in clients' updates, by ridge regression on the records' gradients.

To first order at the centres of the clients' paths. What that misses of several long steps is
simulated: a client that holds the records of the largest weights, trained by its recipe, leaves of
its update what is wrong with that guess, which is decoded in turn (Gauss and Newton's way). Where
clients trained in batches fewer records were named rightly so (46 of 100 for 48 in an audit of
Adult).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.factored_gradients import factored_gradients
from attacks.attributes.candidate_decoding.simulated_client import Guess, simulated_runs
from attacks.membership.source_fit import Seen, clients_of, heaviest
from jaxfl import ClientData, LocalTraining, Model

Array = jax.Array
RESOLVED = 0.8
"""Share of a weight that the ridge leaves on average, at least, where weights are judged by it."""


@functools.partial(jax.jit, static_argnames=("model", "sizes", "passes"))
def decoded_weights(  # noqa: PLR0913 - what was seen, what is known, and how clients train
    model: Model,
    training: LocalTraining,
    seen: Seen,
    sizes: tuple[int, ...],
    records: tuple[Array, Array],
    ridge: Array,
    key: Array,
    passes: int,
) -> tuple[Array, Array, Array]:
    """Weights of records in every client's updates.

    Args:
      model: the model (static).
      training: the clients' recipe.
      seen: all clients' messages.
      sizes: records of each client (static).
      records: all of them `[records, ...]`, and their labels `[records]`.
      ridge: relative to the Gram matrix's mean diagonal.
      key: draws the orders of simulated runs.
      passes: how often guesses are simulated (static).

    Returns:
      Whether weights are not finite; the weights `[records, clients]`, times the clients' sizes;
      and how large those of each client's records are to what they should be `[clients]`, by least
      squares, 1 where that is not known: the ridge lowers both.
    """
    x, y = records
    count = jnp.asarray(sizes)
    rates = training.learning_rate * jnp.asarray([training.steps(size) for size in sizes])

    def add(total: tuple[Array, Array], one: Any) -> tuple[tuple[Array, Array], Array]:
        centre, pulls = one
        gradients = factored_gradients(model, centre, x, y)
        gram = gradients.gram()
        right = jax.lax.map(gradients.along, pulls).T / rates  # [records, clients]
        scale = 1 / jnp.trace(gram)  # rounds count alike: early ones would drown the others
        return (total[0] + scale * gram, total[1] + scale * right), scale

    start = jnp.zeros((len(x), len(x))), jnp.zeros((len(x), len(sizes)))
    with jax.default_matmul_precision("highest"):
        (gram, right), scales = jax.lax.scan(add, start, (seen.centres, seen.updates))
        pull = ridge * jnp.trace(gram) / len(x)
        factor = jax.scipy.linalg.cho_factor(gram + pull * jnp.eye(len(x)), lower=True)
        solved = jax.scipy.linalg.cho_solve(factor, jnp.concatenate([right, jnp.eye(len(x))], 1))
        weights, inverse = solved[:, : len(sizes)] * count, solved[:, len(sizes) :]

        def refine(carry: tuple[Array, Array, Array], _: None) -> tuple[Any, None]:
            weights, best, least = carry
            missed, left = _missed(model, training, seen, weights, sizes, records, scales, key)
            better = left <= least
            best, least = jnp.where(better, weights, best), jnp.minimum(left, least)
            sides = missed / rates + gram @ (heaviest(weights, count) / count)
            refined = jax.scipy.linalg.cho_solve(factor, sides) * count
            # A simulation that diverged says nothing of its client.
            refined = jnp.where(jnp.isfinite(refined).all(0), refined, weights)
            return (refined, best, least), None

        if passes:
            least = jnp.asarray(jnp.inf)
            (weights, best, least), _ = jax.lax.scan(
                refine, (weights, weights, least), length=passes
            )
            _, left = _missed(model, training, seen, weights, sizes, records, scales, key)
            weights = jnp.where(left <= least, weights, best)
        chosen = heaviest(weights, count)
        wanted = chosen - pull * inverse @ chosen
        # Where records cannot be told apart, the heaviest ones are any.
        kept = 1 - pull * jnp.trace(inverse) / len(x)
        levels = (weights * wanted).sum(0) / (wanted**2).sum(0)
        levels = jnp.where(kept > RESOLVED, levels, 1)
    return ~jnp.isfinite(weights).all(), weights, levels


def _missed(  # noqa: PLR0913 - what is seen, whose weights are tried, and how clients train
    model: Model,
    training: LocalTraining,
    seen: Seen,
    weights: Array,
    sizes: tuple[int, ...],
    records: tuple[Array, Array],
    scales: Array,
    key: Array,
) -> tuple[Array, Array]:
    """What clients that hold the records of the largest weights leave of the updates: along the
    records' gradients `[records, clients]`; and its share of their energy, at most all of it, the
    mean over clients `[]`."""
    (x, y), clients = records, clients_of(weights, sizes, records)

    def add(total: tuple[Array, Array], round_: Any) -> tuple[tuple[Array, Array], None]:
        received, centre, updates, scale, key = round_

        def left_of(arguments: tuple[Any, ClientData, Array]) -> Array:
            update, data, key = arguments
            (made,) = simulated_runs(Guess(model, data, training), received, key, 1)
            return ravel_pytree(update)[0] - made

        keys = jax.random.split(key, len(sizes))
        left = jax.lax.map(left_of, (updates, clients, keys))
        gradients, unravel = factored_gradients(model, centre, x, y), ravel_pytree(centre)[1]
        along = jax.lax.map(lambda row: gradients.along(unravel(row)), left).T
        whole = jax.lax.map(lambda update: (ravel_pytree(update)[0] ** 2).sum(), updates)
        energies = jnp.stack([(left**2).sum(1), whole])
        return (total[0] + scale * along, total[1] + scale * energies), None

    start = jnp.zeros((len(x), len(sizes))), jnp.zeros((2, len(sizes)))
    keys = jax.random.split(key, len(scales))
    rounds = seen.received, seen.centres, seen.updates, scales, keys
    (along, (left, whole)), _ = jax.lax.scan(add, start, rounds)
    share = jnp.where(left < whole, left / whole, 1.0)
    return along, share.mean()
