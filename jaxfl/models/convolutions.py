"""Convolutions of images as products of matrices."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def convolve(
    x: Array, kernel: Array, stride: int = 1, padding: Literal["VALID", "SAME"] = "VALID"
) -> Array:
    """Convolution of images `[batch, height, width, channels]` with `kernel [size, size, channels,
    features]`.

    As a product with the image's patches: kernels that differ between clients, and derivatives of
    derivatives, are several times faster that way on CPUs, and far more on a GPU, where JAX's own
    becomes a convolution in groups (docs/results/speed.md).
    """
    size = kernel.shape[0]
    margins = jax.lax.padtype_to_pads(x.shape[1:3], (size, size), (stride, stride), padding)
    x = jnp.pad(x, ((0, 0), *margins, (0, 0)))
    height, width = ((length - size) // stride * stride + 1 for length in x.shape[1:3])
    # Columns, then rows: 2 * size pieces, which compile and run faster than size * size.
    x = jnp.concatenate([x[:, :, j : j + width : stride] for j in range(size)], -1)
    x = jnp.concatenate([x[:, i : i + height : stride] for i in range(size)], -1)
    return x @ kernel.reshape(-1, kernel.shape[-1])


def convolve_transposed(
    x: Array, kernel: Array, stride: int = 1, padding: Literal["VALID", "SAME"] = "VALID"
) -> Array:
    """`jax.lax.conv_transpose` of images `[batch, height, width, channels]` with `kernel [size,
    size, channels, features]`.

    As one convolution of the small image for all places that a pixel's results have within
    a stride: no zeros between pixels are multiplied, and loops and derivatives cost no more than
    elsewhere.
    """
    size, features = kernel.shape[0], kernel.shape[-1]
    if padding == "VALID" and x.shape[1] * x.shape[2] < size * size:
        return _place_results(x, kernel, stride)
    reach = max(size - stride, 0)
    if padding == "VALID":
        before, lengths = (
            size - 1,
            tuple((length - 1) * stride + size + max(stride - size, 0) for length in x.shape[1:3]),
        )
    else:
        before = size - 1 if stride > size - 1 else -(-(reach + 2 * stride - 2) // 2)
        lengths = tuple(length * stride for length in x.shape[1:3])
    # The result at m * stride + p takes pixel m + d with the kernel's entry d * stride + before -
    # p, where there is one.
    taps = np.arange(-(before // stride), (size - 1 - before + stride - 1) // stride + 1)
    entry = taps[:, None] * stride + before - np.arange(stride)
    there = jnp.asarray((entry >= 0) & (entry < size), x.dtype)
    entry = entry.clip(0, size - 1)
    spread = (
        kernel[entry][:, :, entry] * there[:, :, None, None, None, None] * there[:, :, None, None]
    )  # [d, p, d, p, c, f]
    small = spread.transpose(0, 2, 4, 1, 3, 5).reshape(len(taps), len(taps), x.shape[-1], -1)
    count = [-(-length // stride) for length in lengths]
    margins = [
        (int(-taps[0]), int(n - 1 + taps[-1] - (length - 1)))
        for n, length in zip(count, x.shape[1:3], strict=True)
    ]
    zero = jnp.zeros((), x.dtype)
    wide = jax.lax.pad(x, zero, [(0, 0, 0), *((low, high, 0) for low, high in margins), (0, 0, 0)])
    results = convolve(wide, small).reshape(len(x), *count, stride, stride, features)
    image = results.transpose(0, 1, 3, 2, 4, 5).reshape(
        len(x), count[0] * stride, count[1] * stride, features
    )
    return image[:, : lengths[0], : lengths[1]]


def _place_results(x: Array, kernel: Array, stride: int) -> Array:
    """A transposed convolution without padding, pixel by pixel: for images of fewer pixels than the
    kernel has entries."""
    size, (height, width) = kernel.shape[0], x.shape[1:3]
    products = jnp.einsum("bhwc,ijcf->bhwijf", x, kernel[::-1, ::-1])
    sides = [(length - 1) * stride + max(size, stride) for length in (height, width)]

    def place(i: int, j: int) -> Array:
        edges = [
            (at * stride, side - size - at * stride, 0)
            for at, side in zip((i, j), sides, strict=True)
        ]
        return jax.lax.pad(
            products[:, i, j], jnp.zeros((), products.dtype), [(0, 0, 0), *edges, (0, 0, 0)]
        )

    return functools.reduce(jnp.add, [place(i, j) for i in range(height) for j in range(width)])
