"""Order among calls of LAPACK.

On a CPU, a call on a batch splits it into tasks for the program's threads, and blocks its own
thread until they are done. If as many such calls run at once as there are threads, all block and
none works: two calls on two cores, as in Colab (jaxlib 0.10). `vmap` makes a batch of any call. A
call that needs another's result cannot run beside it, so calls that do not are given an order
(`benchmarks.harness.call_order` tells which have none).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array


def once(needed: Array, step: Callable[[Any], Any], begin: Any) -> Any:
    """What a step makes of `begin` where it is needed, else `begin`. It is a loop of one step at
    most: under `vmap` the step runs for all if one needs it, and for none if none does. It runs
    after what `begin` and `needed` are computed of."""

    def taken(state: tuple[Array, Any]) -> tuple[Array, Any]:
        return jnp.zeros((), bool), step(state[1])

    return jax.lax.while_loop(lambda state: state[0], taken, (needed, begin))[1]


def after(array: Array, *earlier: Array) -> Array:
    """The array, computed when all numbers of `earlier` are, if there are any; NaN if one of these
    is."""
    if not earlier:
        return array
    unknown = jnp.stack([jnp.isnan(one).any() for one in earlier]).any()
    return jnp.where(unknown, jnp.nan, array)
