"""Recorded messages that say nothing: not finite, or of nobody."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.engines import forget_programs
from benchmarks.scenarios.whole_records import sent_gradient
from jaxfl import ClientData, simulate
from jaxfl.watching import Watcher, watching

Array = jax.Array
Recorders = Mapping[Callable[..., Any], Callable[..., Any]]
"""What records messages, and what does so in its place."""


@contextlib.contextmanager
def recorded_by(recorders: Recorders) -> Iterator[list[str]]:
    """Inside, messages are recorded by others than `simulate` and `sent_gradient`, whoever calls
    these, in this package or outside. Gives the names of what recorded, which grow."""
    recorded: list[str] = []

    def call(function: Callable[..., Any], arguments: Any, named: Any) -> Any:
        recorded.append(function.__name__)
        return recorders[function](*arguments, **named)

    forget_programs()
    with watching(Watcher(recorders.__contains__, call, traced=True)):
        yield recorded
    forget_programs()


def _broken_run(*arguments: Any, **options: Any) -> Any:
    run = simulate(*arguments, **options)
    returned, sums = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), (run.returned, run.sums))
    return dataclasses.replace(run, returned=returned, sums=sums)


def _broken_gradient(model: Any, params: Any, *arguments: Any) -> Any:
    return jax.tree.map(lambda w: jnp.full_like(w, jnp.nan), params)


def _run_of_nobody(
    model: Any, params: Any, clients: ClientData, key: Array, *arguments: Any, **options: Any
) -> Any:
    """Messages are dealt to senders anew in every round."""
    record_key, deal_key = jax.random.split(jax.random.fold_in(key, 1))
    x, y = nobody(clients.x, clients.y, clients.mask, record_key)
    run = simulate(
        model, params, dataclasses.replace(clients, x=x, y=y), key, *arguments, **options
    )
    rounds, kept = len(run.rounds), len(run.clients)
    keys = jax.random.split(deal_key, rounds)
    deals = jax.vmap(lambda k: jax.random.permutation(k, kept))(keys)
    deal = jax.vmap(lambda sent, order: sent[order])
    returned = jax.tree.map(lambda a: deal(a, deals), run.returned)
    return dataclasses.replace(run, returned=returned)


def _gradient_of_nobody(
    model: Any, params: Any, records: tuple[np.ndarray, np.ndarray], key: Array, settings: Any
) -> Any:
    whole = jnp.ones(len(records[1]), bool)
    x, y = map(jnp.asarray, records)
    x, y = nobody(x, y, whole, jax.random.fold_in(key, 1))
    return sent_gradient(model, params, (np.asarray(x), np.asarray(y)), key, settings)


def nobody(x: Array, y: Array, mask: Array, key: Array) -> tuple[Array, Array]:
    """Records and labels whose every number is drawn anew, between the least and the largest of
    its column, of whole numbers a whole one: they have no client's frequencies either.

    Args:
      x: `[*records, ...]`, with as many leading axes as `mask` has.
      y: labels `[*records]`.
      mask: which of them are records, not padding.
      key: draws them.
    """
    table = jnp.concatenate([x.reshape(mask.size, -1), y.reshape(mask.size, 1)], 1)
    held = mask.reshape(-1, 1)
    low = jnp.where(held, table, jnp.inf).min(0)
    high = jnp.where(held, table, -jnp.inf).max(0)
    whole = jnp.where(held, table == jnp.floor(table), True).all(0)
    chance = jax.random.uniform(key, table.shape)
    drawn = low + jnp.where(whole, jnp.floor(chance * (high - low + 1)), chance * (high - low))
    features, labels = drawn[:, :-1].reshape(x.shape), drawn[:, -1].reshape(y.shape)
    return features.astype(x.dtype), labels.astype(y.dtype)


BROKEN: Recorders = {simulate: _broken_run, sent_gradient: _broken_gradient}
"""Recorders of messages that are not finite."""

OF_NOBODY: Recorders = {simulate: _run_of_nobody, sent_gradient: _gradient_of_nobody}
"""Recorders of messages whose records nobody holds."""
