"""Who is named of those whose value is not their client's most common one: where nearly all have
the same value, accuracy says little of the few."""

from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
UNCOMMON = ("uncommon", "uncommon_named", "common_misnamed")
"""As in a row's `detail`: how many have an uncommon value, how many of them were named rightly, and
how many of the others wrongly."""
NULL_STATUS = "null_status"
"""In a row's `detail`, the status of the answer to another client's messages."""


def uncommon(values: Any, truth: Any, candidates: int) -> Array:
    """The three numbers of `UNCOMMON` `[3]`.

    Args:
      values: inferred `[records, columns]`, integers.
      truth: the same shape.
      candidates: values that a column may have, the most of all columns (static).
    """
    values, truth = jnp.asarray(values), jnp.asarray(truth)
    most = jax.nn.one_hot(truth, candidates).sum(0).argmax(-1)  # [columns]
    rare, right = truth != most, values == truth
    return jnp.stack([rare.sum(), (rare & right).sum(), (~rare & ~right).sum()])
