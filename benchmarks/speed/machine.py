"""What the machine can do: products of matrices and copies, measured beside what is compared with
them."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.runner import device_name
from jaxfl.products import full_precision

SIDES = {"cpu": 1024}
"""Rows of the matrices that are multiplied, by backend."""
ACCELERATOR_SIDE = 8192
COPIED = {"cpu": 1 << 26}
"""Bytes that are copied, by backend: more than caches hold."""
ACCELERATOR_COPIED = 1 << 31


class Limits(NamedTuple):
    """Limits of the default device.

    Attributes:
      device: its name.
      flops: operations per second of a product of square matrices, by type, in full precision.
      bandwidth: bytes per second of a copy, read and written.
    """

    device: str
    flops: dict[str, float]
    bandwidth: float

    def attainable(self, dtype: str, intensity: float) -> float:
        """Operations per second at so many operations per byte (the roofline)."""
        return min(self.flops[dtype], self.bandwidth * intensity)


def measure_limits(side: int | None = None, copied: int | None = None) -> Limits:
    """Best of several runs of each.

    Args:
      side: rows of the matrices; by default as the device asks for.
      copied: bytes of the copy; likewise.
    """
    backend = jax.default_backend()
    side = side or SIDES.get(backend, ACCELERATOR_SIDE)
    copied = copied or COPIED.get(backend, ACCELERATOR_COPIED)
    flops = {dtype: _products(side, dtype) for dtype in ("float32", "float64")}
    return Limits(device_name(), flops, _copy(copied))


def _products(side: int, dtype: str) -> float:
    with jax.enable_x64(dtype == "float64"), full_precision():
        # Random numbers: of zeros some devices are faster.
        a = jnp.asarray(np.random.default_rng(0).normal(size=(side, side)), dtype)
        return 2.0 * side**3 / _seconds(jax.jit(jnp.matmul), a, a)


def _copy(size: int) -> float:
    """Into the same memory: fresh memory costs a CPU more than the copy does."""
    held = [jnp.asarray(np.random.default_rng(0).random(size // 4), jnp.float32)]
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    def step() -> Any:
        held[0] = add(held[0])
        return held[0]

    return 2.0 * size / _seconds(step)


def _seconds(function: Callable[..., Any], *arguments: Any, repeats: int = 7) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - began)
    return min(times[1:])
