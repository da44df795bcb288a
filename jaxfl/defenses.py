"""What a client may do to its update before it sends it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl import _check

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Upload:
    """How an update is sent: clipped, then noised, then quantised. All numbers are traced.

    Attributes:
      clip: largest L2 norm of an update; longer ones are scaled to it. Infinity leaves them as they are.
      noise_multiplier: standard deviation of the Gaussian noise on every number, in units of the norm the update has after
        clipping or, if `clip` is finite, of `clip`, as in differential privacy (Abadi et al. 2016).
      bits: bits per number: every array is rounded at random, without bias, to one of 2^bits values between plus and minus
        its largest (Alistarh et al. 2017, per array). 0 leaves numbers as they are.
    """

    clip: float | Array = float("inf")
    noise_multiplier: float | Array = 0.0
    bits: int | Array = 0

    def check(self) -> None:
        """Raise `ValueError` on numbers out of range."""
        for name, value in dataclasses.asdict(self).items():
            if not _check.is_traced(value) and not float(value) >= 0:
                raise ValueError(f"{name}={value!r} must not be negative")
        if not _check.is_traced(self.clip) and float(self.clip) == 0:
            raise ValueError("clip=0 sends nothing; give a positive norm")


def protect(update: Any, key: Array, upload: Upload) -> Any:
    """An update as it is sent.

    Args:
      update: a pytree of floating-point arrays.
      key: draws noise and rounding.
      upload: see `Upload`.
    """
    leaves, structure = jax.tree.flatten(update)
    norm = jnp.sqrt(sum((leaf**2).sum() for leaf in leaves))
    factor = jnp.minimum(1, upload.clip / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    deviation = upload.noise_multiplier * jnp.where(jnp.isfinite(upload.clip), upload.clip, norm)
    sent = []
    for leaf, leaf_key in zip(leaves, jax.random.split(key, len(leaves)), strict=True):
        noise_key, rounding_key = jax.random.split(leaf_key)
        noised = factor * leaf + deviation * jax.random.normal(noise_key, leaf.shape, leaf.dtype)
        sent.append(jnp.where(upload.bits > 0, _rounded(noised, rounding_key, upload.bits), noised))
    return jax.tree.unflatten(structure, sent)


def _rounded(values: Array, key: Array, bits: int | Array) -> Array:
    largest = jnp.abs(values).max()
    step = jnp.maximum(2 * largest / (2.0 ** jnp.maximum(bits, 1) - 1), jnp.finfo(values.dtype).tiny)
    places = (values + largest) / step + jax.random.uniform(key, values.shape, values.dtype)
    return (jnp.floor(places) * step - largest).astype(values.dtype)
