"""Clients with one model: what an absent client is recorded to have returned is what was sent.

Threat model: as of the attack that asks.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks.fit import FitWarning


def warn_of_shared_models(attack: str, name: str, models: Any, axes: int) -> None:
    """Warn if some clients have one model: what an absent client is recorded to have returned."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(models)]
    sums = jnp.stack([leaf.reshape(*leaf.shape[:axes], -1).sum(-1) for leaf in leaves])
    rounds = np.asarray(sums).reshape(len(sums), -1, sums.shape[-1]).transpose(1, 2, 0)
    shared = []
    for number, clients in enumerate(rounds):
        _, groups = np.unique(clients, axis=0, return_inverse=True)
        alike = [np.flatnonzero(groups.ravel() == g) for g in range(groups.max() + 1)]
        where = (number,) if axes > 1 else ()
        shared += [(number, c[0], len(c)) for c in alike if len(c) > 1 and _same(leaves, where, c)]
    if shared:
        number, place, count = shared[0]
        of_round = f" in row {number} and in {len(shared) - 1} others" if axes > 1 else ""
        warnings.warn(
            f"{attack}: {name} holds one model for {count} clients (the first: {place}){of_round}. "
            "Were they absent? What was sent to them is not theirs, and records are named after "
            "them all the same: give the clients and rounds that took part alone",
            FitWarning,
            stacklevel=5,
        )


def _same(leaves: list[Any], where: tuple[int, ...], clients: np.ndarray) -> bool:
    """Whether clients, whose sums are the same, have the same numbers."""
    first, *others = (tuple(leaf[(*where, c)] for leaf in leaves) for c in clients)
    pairs = [pair for other in others for pair in zip(first, other, strict=True)]
    return all(bool((a == b).all()) for a, b in pairs)
