"""Order among calls of LAPACK.

On a CPU such a call on a batch shares the batch out over the threads that run the program, and
waits for them. As many calls at once as there are threads wait for each other for ever (jaxlib
0.10): two where there are two cores, as in Colab. `vmap` makes a batch of any call. So calls that
do not need each other's answers are given an order (`benchmarks.harness.lapack` tells which have
none).
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def after(array: Array, *earlier: Array) -> Array:
    """The array, computed when all numbers of `earlier` are; NaN if one of these is."""
    unknown = jnp.stack([jnp.isnan(one).any() for one in earlier]).any()
    return jnp.where(unknown, jnp.nan, array)
