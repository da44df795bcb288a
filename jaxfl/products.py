"""Precision of products of matrices, and of convolutions."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax


def full_precision() -> AbstractContextManager[Any]:
    """Products of float32 numbers are made in float32 inside, unless
    `jax.default_matmul_precision` says otherwise outside.

    Accelerators' own default is less: TensorFloat-32 keeps ten bits of each factor, bfloat16 seven.
    A client that trains so sends numbers that are wrong in the fourth digit, and an attack that
    computes so calls every message a misfit.
    """
    chosen = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return nullcontext() if chosen is not None else jax.default_matmul_precision("highest")
