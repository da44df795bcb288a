"""Are two models the same but for the rounding of their numbers?"""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

SPACINGS = 2
"""By how many of its own spacings a number may differ: each model is rounded once."""
NEARLY_ALL = 0.99
"""Share of an array's numbers of which that holds; sums that cancel leave more, in units of the
largest."""


def same_but_rounding(pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Whether the arrays of every pair are the same, each number to `SPACINGS` of itself, or, for a
    few numbers, of the array's largest. What is not finite is never the same."""
    return all(_same(np.asarray(one), np.asarray(other)) for one, other in pairs)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    eps = max(float(jnp.finfo(array.dtype).eps) for array in (one, other))
    a, b = (array.astype(np.float64) for array in (one, other))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    sizes, apart = np.maximum(np.abs(a), np.abs(b)), np.abs(a - b)
    near = apart <= SPACINGS * eps * sizes
    rest = apart <= SPACINGS * eps * sizes.max(initial=0.0)
    return bool(rest.all() and (near.size == 0 or near.mean() >= NEARLY_ALL))
