"""The floating-point type of one call, whether or not 64-bit types are switched on around it.

What rounding does elsewhere: `jaxfl.products` has accelerators multiply in full, `jaxfl.rounding`
tells models that are the same but for it, and `attacks.fit.rounding` says how much rounding may
leave of a right answer.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import _check

Array = jax.Array
Function = TypeVar("Function", bound=Callable[..., Any])


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


def in_type_here(function: Function) -> Function:
    """A `checked` attack that computes in the type that JAX computes in around it: what was
    recorded in float64 (`Messages.from_gradients`) is rounded to float32 where 64-bit types are
    off."""
    function.prepare = functools.partial(jax.tree.map, _in_type_here)  # type: ignore[attr-defined]
    return function


def _in_type_here(leaf: Any) -> Any:
    is_wide = isinstance(leaf, Array) and leaf.dtype == np.float64
    if not is_wide or jax.config.read("jax_enable_x64"):
        return leaf
    return leaf.astype(jnp.float32)
