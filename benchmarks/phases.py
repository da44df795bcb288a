"""Which rounds an attack may use: sets of rounds by name, "phases" in Lyu 2021 (section 4.2)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl import Messages

PHASES = {
    "pre1": (0,),
    "pre2": (0, 1),
    "pre5": (0, 1, 2, 3, 4),
    "gap10": (9, 19, 29, 39, 49),
    "last5": (-5, -4, -3, -2, -1),
    "first20": tuple(range(20)),
    "first50": tuple(range(50)),
}
"""Sets of rounds (Lyu 2021, section 4.2, and two of our own), 0-based; negative ones count from the last."""


def rounds_of(name: str, rounds: int) -> tuple[int, ...]:
    """The rounds of a phase, or of several joined by "+", counted from 0.

    Raises:
      ValueError: on an unknown phase, or one that needs more rounds.
    """
    found = set()
    for part in name.split("+"):
        if part not in PHASES:
            raise ValueError(f"phases={part!r} is unknown; choose from {', '.join(PHASES)}")
        found |= {t if t >= 0 else rounds + t for t in PHASES[part]}
    if min(found) < 0 or max(found) >= rounds:
        raise ValueError(f"phases={name!r} needs more than rounds={rounds}")
    return tuple(sorted(found))


def over_phases(
    attack: Callable[[Messages], Any], messages: Messages, phases: tuple[tuple[int, ...], ...]
) -> Any:
    """`attack` on every phase `[phases]`; phases of equal length share one compiled loop."""
    results: list[Any] = [None] * len(phases)
    for length in {len(p) for p in phases}:
        same = [i for i, p in enumerate(phases) if len(p) == length]
        rows = jnp.asarray([phases[i] for i in same])
        found = jax.lax.map(lambda r: attack(jax.tree.map(lambda a: a[r], messages)), rows)
        for j, i in enumerate(same):
            results[i] = jax.tree.map(lambda a, j=j: a[j], found)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def take_rows(tree: Any, rows: Any) -> Any:
    """Index every leaf."""
    return jax.tree.map(lambda a: a[rows], tree)


def kept_rounds(phases: Sequence[str], rounds: int) -> tuple[int, ...]:
    """Rounds of the phases, and the last for evaluation."""
    return tuple(sorted({t for name in phases for t in rounds_of(name, rounds)} | {rounds - 1}))
