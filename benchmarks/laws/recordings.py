"""Recorded messages that say nothing: not finite, or of nobody."""

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.engines import forget_programs
from benchmarks.scenarios.whole_records import sent_gradient
from jaxfl import ClientData, simulate

Array = jax.Array
Recorders = dict[str, Callable[..., Any]]
RECORDERS: Recorders = {"simulate": simulate, "sent_gradient": sent_gradient}
KEPT = ("attacks.", "jaxfl.", "benchmarks.laws.", "benchmarks.harness.")
"""Modules that have these as they are: attacks that simulate a client, where they are made, and
what watches programs."""


@contextlib.contextmanager
def recorded_by(recorders: Recorders) -> Iterator[None]:
    """Inside, messages are recorded by others than `simulate` and `sent_gradient`, whichever module
    records them, in this package or outside; attacks that simulate a client do so still."""
    modules = [module for name, module in sys.modules.items() if not name.startswith(KEPT)]
    with contextlib.ExitStack() as stack:
        for module, (name, true) in itertools.product(modules, RECORDERS.items()):
            if getattr(module, "__dict__", {}).get(name) is true:
                stack.enter_context(mock.patch.object(module, name, recorders[name]))
        forget_programs()
        yield
    forget_programs()


@functools.wraps(simulate)
def _broken_run(*arguments: Any, **options: Any) -> Any:
    run = simulate(*arguments, **options)
    returned, sums = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), (run.returned, run.sums))
    return dataclasses.replace(run, returned=returned, sums=sums)


def _broken_gradient(model: Any, params: Any, *arguments: Any) -> Any:
    return jax.tree.map(lambda w: jnp.full_like(w, jnp.nan), params)


@functools.wraps(simulate)
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
    x, y = nobody(x, y, whole, jax.random.key(0))
    return sent_gradient(model, params, (np.asarray(x), np.asarray(y)), key, settings)


def nobody(x: Array, y: Array, mask: Array, key: Array) -> tuple[Array, Array]:
    """Records whose every feature is another record's, drawn anew for each feature, and labels.

    Args:
      x: `[*records, ...]`, with as many leading axes as `mask` has.
      y: labels `[*records]`.
      mask: which of them are records, not padding.
      key: draws them.
    """
    drawn = jnp.argsort(~mask.ravel())  # records first, padding last
    table = jnp.concatenate([x.reshape(mask.size, -1), y.reshape(mask.size, 1)], 1)
    chance = jax.random.uniform(key, table.shape)
    order = jnp.argsort(jnp.where(mask.reshape(-1, 1), chance, 2.0), 0)
    mixed = jnp.zeros_like(table).at[drawn].set(jnp.take_along_axis(table, order, 0))
    features, labels = mixed[:, :-1].reshape(x.shape), mixed[:, -1].reshape(y.shape)
    return features.astype(x.dtype), labels.astype(y.dtype)


BROKEN: Recorders = {"simulate": _broken_run, "sent_gradient": _broken_gradient}
"""Of messages that are not finite."""

OF_NOBODY: Recorders = {"simulate": _run_of_nobody, "sent_gradient": _gradient_of_nobody}
"""Of messages whose records nobody holds."""
