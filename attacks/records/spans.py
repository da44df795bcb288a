"""What the gradient of a dense layer says of the records without knowing one: two spans.

The gradient by a dense layer's weights and bias is `G = sum_i errors_i [inputs_i, 1]'`, so that its
rows span the records' inputs to the layer, and its columns their errors. Rounding and noise blur
both; what they leave beyond the rank tells how much, and so how far from a span a right answer may
be.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

Array = jax.Array
MARGIN = 20.0
"""How far from a span, in units of what the noise leaves of a right record, one may be: right ones
are within 4 or so, others 1e4 and more away where messages have float32's noise."""
LEAST_GAP = 10.0
"""By which the last singular value of the records exceeds the first of the noise: below it, the
number of records is not told."""

MOST_NOISE = 1e-3
"""Relative to the largest singular value, above which what follows a gap is records, not noise."""
FLOOR, END = 1e-9, 1e-13
"""Singular values below the first, relative to the largest, are taken for equal; below the second,
for those of rows and columns that depend on each other."""

AMONG_NOISE = 3
"""Singular values of noise there must be: the last of records may lie far below the others."""


@struct.dataclass
class Span:
    """Rows and columns of a gradient `[outputs, inputs]`, padded with zeros to shapes that do not
    depend on the rank.

    Attributes:
      rows: orthonormal basis of the row space `[inputs, k]`, k = min(outputs, inputs).
      columns: of the column space `[outputs, k]`.
      inverse: inverse singular values `[k]`, 0 beyond the rank.
      beyond_rows: orthonormal complement of the row space `[inputs, inputs]`.
      beyond_columns: of the column space `[outputs, outputs]`.
      noise: standard deviation of an entry's error.
      free: how many dimensions the complements have, among inputs and outputs that are not 0 for
        all records `[2]`.
    """

    rows: Any
    columns: Any
    inverse: Any
    beyond_rows: Any
    beyond_columns: Any
    noise: Any
    free: Any

    @property
    def rank(self) -> int:
        """Rank of the gradient without its noise."""
        return int(np.count_nonzero(self.inverse))


def rank_of(values: np.ndarray, scale: float, most: int) -> tuple[int, float]:
    """Number of singular values above the noise: the last from which they fall by `LEAST_GAP`. A
    fall to the end of all values counts only if there is no other: rows and columns that depend on
    each other to the last bit make one in noise as well.

    Args:
      values: singular values, falling.
      scale: largest singular value of the whole message: rounding is relative to it.
      most: largest rank that is looked at.

    Returns:
      The rank, 0 if there is nothing but noise, and the ratio of the values on both sides of
      the gap; the widest there is where none is wide enough.
    """
    floored = np.maximum(np.append(values, 0.0), FLOOR * scale + np.finfo(float).tiny)
    gaps = (floored[:-1] / floored[1:])[: max(most, 0)]
    end = np.count_nonzero(values > END * scale)
    wide = np.flatnonzero((gaps >= LEAST_GAP) & (floored[1 : len(gaps) + 1] <= MOST_NOISE * scale))
    if not len(wide):
        return 0, float(gaps.max(initial=1.0))
    inside = wide[wide + 1 < end]
    place = inside[-1] if len(inside) else wide[-1]
    return int(place) + 1, float(gaps[place])


def scales_of(layer: np.ndarray) -> np.ndarray:
    """Largest singular value of each gradient `[rounds]`, of `[rounds, outputs, inputs]`."""
    return np.linalg.norm(np.nan_to_num(layer), 2, axis=(1, 2))


def told_by(layer: np.ndarray, scales: np.ndarray) -> tuple[int, float]:
    """The number of records by gradients `[rounds, outputs, inputs]` of a layer, and the gap in the
    singular values that tells it.

    Args:
      layer: what is left of the messages.
      scales: see `scales_of`, of the messages.
    """
    told = [(0, 1.0)]
    for gradient, scale in zip(layer, scales, strict=True):
        if not np.isfinite(gradient).all():
            continue
        values = np.linalg.svd(gradient, compute_uv=False)
        alive = min(int(np.count_nonzero(gradient.any(axis))) for axis in (0, 1))
        told.append(rank_of(values, scale, alive - AMONG_NOISE))
    return max(told, key=lambda pair: pair[1])


def span_of(gradient: np.ndarray, rank: int) -> Span:
    """The spans of a gradient `[outputs, inputs]` of a known rank."""
    left, values, right = np.linalg.svd(gradient, full_matrices=True)
    k = min(gradient.shape)
    rows, columns = right[:rank].T, left[:, :rank]
    inverse = np.zeros(k)
    np.divide(1, values[:rank], out=inverse[:rank], where=values[:rank] > 0)
    free = free_beyond(gradient, rank)
    noise = _noise(values, rank, free)
    return Span(
        _padded(rows, k),
        _padded(columns, k),
        inverse,
        _padded(right[rank:].T, gradient.shape[1]),
        _padded(left[:, rank:], gradient.shape[0]),
        noise,
        free.astype(float),
    )


def free_beyond(gradient: np.ndarray, rank: int) -> np.ndarray:
    """Dimensions beyond a rank `[2]`, among inputs and outputs that are not 0 for all records."""
    alive = np.asarray([np.any(gradient != 0, axis=a).sum() for a in (0, 1)])
    return np.maximum(alive - rank, 0)


def noise_beyond(gradients: np.ndarray, rank: int) -> float:
    """Standard deviation of an entry's error by what gradients `[rounds, outputs, inputs]` hold
    beyond a rank: the largest of the rounds; 0 where nothing is beyond."""
    values = np.linalg.svd(gradients, compute_uv=False)
    pairs = zip(values, gradients, strict=True)
    return max(float(_noise(v, rank, free_beyond(g, rank))) for v, g in pairs)


def _noise(values: np.ndarray, rank: int, free: np.ndarray) -> np.floating[Any]:
    return np.sqrt(np.square(values[rank:]).sum() / max(free.prod(), 1))


def energy(gradients: list[np.ndarray]) -> float:
    """Sum of the squares of all numbers."""
    return sum(float(np.square(layer).sum()) for layer in gradients)


def blurred(span: Span, blur: float) -> Span:
    """With so much more energy in one direction, of as many as half of those that are free."""
    free = np.maximum(np.min(span.free, axis=-1) / 2, 1)
    return dataclasses.replace(span, noise=np.sqrt(np.square(span.noise) + blur / free))


def _padded(basis: np.ndarray, width: int) -> np.ndarray:
    return np.pad(basis, ((0, 0), (0, width - basis.shape[1])))


def off_rows(span: Span, inputs: Array) -> Array:
    """How far an input `[inputs]`, its 1 for the bias included, is from the row space, in units of
    what the noise leaves of a right one (Wedin: the errors of the gradient, times the length of the
    combination of its rows that is the input)."""
    length = jnp.linalg.norm((inputs @ span.rows) * span.inverse)
    left = jnp.linalg.norm(inputs @ span.beyond_rows)
    return left / _expected(span.noise, length, span.free[0])


def off_columns(span: Span, errors: Array) -> Array:
    """The same for errors `[outputs]` and the column space."""
    length = jnp.linalg.norm((errors @ span.columns) * span.inverse)
    left = jnp.linalg.norm(errors @ span.beyond_columns)
    return left / _expected(span.noise, length, span.free[1])


def whole_of(span: Span, errors: Array, inputs: Array) -> tuple[Array, Array]:
    """1/w for the weight w with which `errors inputs'` is a part of the gradient, so that without
    it the rank is less by one (Wedderburn 1934): N for one of N records; 0 if it has no part. And
    its standard deviation by the noise."""
    row = (inputs @ span.rows) * span.inverse
    column = (errors @ span.columns) * span.inverse
    deviation = span.noise * jnp.linalg.norm(row) * jnp.linalg.norm(column)
    return row @ (errors @ span.columns), deviation


def _expected(noise: Array, length: Array, free: Array) -> Array:
    return jnp.maximum(noise * length * jnp.sqrt(free), jnp.finfo(length.dtype).tiny)
