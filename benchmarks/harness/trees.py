"""Trees of arrays put together and taken apart, each time by one program: an accelerator takes
longer to compile one for every leaf than for all of them."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MOST_AT_ONCE = 64
"""Trees that are stacked by one program: of 512 trees of 25 leaves it compiles for 42 s."""


def take(tree: Any, rows: Any) -> Any:
    """Index every leaf: by an integer, integers or a slice, or by several of them, one an axis.
    What is on the host stays there."""
    if all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(tree)):
        return jax.tree.map(lambda leaf: leaf[rows], tree)
    each = rows if isinstance(rows, tuple) else (rows,)
    slices = tuple((r.start, r.stop, r.step) if isinstance(r, slice) else None for r in each)
    numbers = tuple(None if isinstance(r, slice) else _numbers(r) for r in each)
    return _take(tree, numbers, slices)


def _numbers(rows: Any) -> Any:
    return np.asarray(rows) if isinstance(rows, list | range) else rows


@functools.partial(jax.jit, static_argnums=2)
def _take(tree: Any, numbers: tuple[Any, ...], slices: tuple[Any, ...]) -> Any:
    pairs = zip(numbers, slices, strict=True)
    index = tuple(rows if part is None else slice(*part) for rows, part in pairs)
    return jax.tree.map(lambda leaf: leaf[index], tree)


def stack(trees: Iterable[Any]) -> Any:
    """Trees of one structure as one, along a new first axis."""
    given = tuple(trees)
    return _program(given) if len(given) <= MOST_AT_ONCE else _stacked(given)


def _stacked(trees: tuple[Any, ...]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


_program = jax.jit(_stacked)


@jax.jit
def join(first: Any, second: Any) -> Any:
    """Two trees as one, along the first axis of each leaf."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)


@functools.partial(jax.jit, static_argnums=1)
def lengthened(tree: Any, more: int) -> Any:
    """With the last row of every leaf `more` times again."""
    return jax.tree.map(lambda a: jnp.concatenate([a, jnp.repeat(a[-1:], more, 0)]), tree)
