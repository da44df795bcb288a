"""The floating-point type of one call, whether or not 64-bit types are switched on around it."""

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import _check

Array = jax.Array


def floating(dtype: Any) -> np.dtype:
    """What an argument `dtype` names, however it is spelled.

    Raises:
      ValueError: if that is neither float32 nor float64.
    """
    try:
        named = np.dtype(dtype)
    except TypeError:
        named = np.dtype(object)
    if named not in (np.float32, np.float64):
        raise ValueError(f"dtype={dtype!r} must be float32 or float64")
    return named


def arithmetic(dtype: np.dtype, *inputs: Any) -> AbstractContextManager[Any]:
    """Switches 64-bit types on if `dtype` asks for them, off otherwise; leaves them as they are
    inside an outer `jit`."""
    is_on: bool = jax.config.read("jax_enable_x64")
    return jax.enable_x64(is_on if _check.is_unseen(*inputs) else dtype == np.float64)


def cast(tree: Any, floating: Any, integer: Any = None) -> Any:
    """Floating leaves in another type; integer ones too, if a type is given."""

    def one(a: Any) -> Array:
        a = jnp.asarray(a)
        if jnp.issubdtype(a.dtype, jnp.floating):
            return a.astype(floating)
        return (
            a if integer is None or not jnp.issubdtype(a.dtype, jnp.integer) else a.astype(integer)
        )

    return jax.tree.map(one, tree)
