"""Records that no messages tell apart: they are equal in all that is known of them, and so are
their gradients. How many of them are a client's can be read, not which.
"""

import warnings
from typing import Any

import numpy as np
from jaxtyping import Int, Num

from attacks.fit import UncheckedWarning
from jaxfl import _check

NEAR = 0.25
"""To a whole number of records, as decoded weights of a group add up."""


def groups_alike(x: Any, y: Any) -> Int[np.ndarray, "records"]:
    """The group of equal records that each is of `[records]`.

    Args:
      x: what is known of the records `[records, ...]`.
      y: their labels `[records, ...]`.
    """
    known = np.c_[np.asarray(x).reshape(len(x), -1), np.asarray(y).reshape(len(y), -1)]
    return np.unique(known, axis=0, return_inverse=True)[1].reshape(-1)


def of_groups(
    weights: Num[np.ndarray, "records clients"], groups: Int[np.ndarray, "records"]
) -> Num[np.ndarray, "groups clients"]:
    """How many records of each group are each client's, by decoded weights."""
    return np.stack([np.bincount(groups, column) for column in np.asarray(weights).T], 1)


def warn_of_alike(attack: str, x: Any, y: Any, weights: Any) -> None:
    """Warn whoever called the attack, where values are no tracers, of groups of equal records of
    which some are one client's and others are not.

    Args:
      attack: what is called.
      x, y: as `groups_alike`.
      weights: how much of each record is each client's `[records, clients]`.
    """
    if _check.is_unseen(x, y, weights) or not np.isfinite(weights).all():
        return
    groups = groups_alike(x, y)
    sizes = np.bincount(groups)[:, None]
    held = of_groups(weights, groups)
    count = np.round(held)
    # Weights that add up to no number of records are noise, or clipped.
    parted = np.any((count > 0) & (count < sizes) & (abs(held - count) < NEAR), axis=1)
    if parted.any():
        places = np.flatnonzero(parted[groups])
        first = np.flatnonzero(groups == groups[places[0]])
        warnings.warn(
            f"{attack}: {len(places)} records are equal to others in all that is known (the first: "
            f"{', '.join(map(str, first[:4]))}), and some of them are a client's and some are not. "
            "Messages tell how many, not which: what is said of these is a guess",
            UncheckedWarning,
            stacklevel=4,
        )
