"""What a client may do to its update before it sends it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl import _check

Array = jax.Array

MOST_BITS = 16
"""Beyond, steps are too fine for float32 to round at random."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Upload:
    """How an update is sent: clipped, then noised, then quantised. All numbers are traced.

    Attributes:
      clip: largest L2 norm of an update; longer ones are scaled to it. Infinity leaves them as they are.
      noise_multiplier: standard deviation of the Gaussian noise on every number, in units of the norm the update has after
        clipping or, if `clip` is finite, of `clip`, as in differential privacy (Abadi et al. 2016).
      bits: bits per number: every array is rounded at random, without bias, to one of 2^bits values between plus and minus
        its largest (Alistarh et al. 2017, per array). At most 16; 0 leaves numbers as they are.
    """

    clip: float | Array = float("inf")
    noise_multiplier: float | Array = 0.0
    bits: int | Array = 0

    def check(self) -> None:
        """Raise `ValueError` on numbers out of range."""
        clip, noise, bits = self.clip, self.noise_multiplier, self.bits
        if not _check.is_traced(clip) and not float(clip) > 0:
            raise ValueError(f"clip={clip!r} must be a positive norm, or infinity for none")
        if not _check.is_traced(noise) and not 0 <= float(noise) < float("inf"):
            raise ValueError(f"noise_multiplier={noise!r} must be finite and not negative")
        if not _check.is_traced(bits) and float(bits) not in range(MOST_BITS + 1):
            raise ValueError(f"bits={bits!r} must be an integer from 0 (off) to {MOST_BITS}")


def protect(update: Any, key: Array, upload: Upload) -> Any:
    """An update as it is sent.

    Args:
      update: a pytree of floating-point arrays.
      key: draws noise and rounding.
      upload: see `Upload`.
    """
    leaves, structure = jax.tree.flatten(update)
    square = sum((leaf**2).sum() for leaf in leaves)
    norm = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)  # differentiable at 0
    long = norm > upload.clip
    factor = jnp.where(long, jnp.where(long, upload.clip, 1) / jnp.where(long, norm, 1), 1)
    deviation = upload.noise_multiplier * jnp.where(jnp.isfinite(upload.clip), upload.clip, norm)
    sent = []
    for leaf, leaf_key in zip(leaves, jax.random.split(key, len(leaves)), strict=True):
        noise_key, rounding_key = jax.random.split(leaf_key)
        noised = factor * leaf + deviation * jax.random.normal(noise_key, leaf.shape, leaf.dtype)
        sent.append(jnp.where(upload.bits > 0, _rounded(noised, rounding_key, upload.bits), noised))
    return jax.tree.unflatten(structure, sent)


def _rounded(values: Array, key: Array, bits: int | Array) -> Array:
    largest = jnp.abs(values).max()
    steps = 2.0 ** jnp.maximum(bits, 1) - 1
    step = jnp.maximum(2 * largest / steps, jnp.finfo(values.dtype).tiny)
    places = jnp.floor((values + largest) / step + jax.random.uniform(key, values.shape, values.dtype))
    return (jnp.minimum(places, steps) * step - largest).astype(values.dtype)
