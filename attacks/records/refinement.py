"""Numbers of the records taken, fitted anew to the messages together.

A record's numbers are fitted to the spans when it is found, one record at a time. What they are off
by stays in the messages, many times longer than their noise in one direction, and hides or spoils
the records that come after. All numbers together leave the least of the messages beyond the rank
that is left: variable projection (Golub and Pereyra 1973) on the parts `w e a'`, whose products are
those of short vectors. Listed numbers are fitted as if they were free too, and rounded. Where the
fit is nearer to another value, the record gets that value. Where another value is within reach of
the noise, the column is open.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks.records.acceptance import Passed, pieces, rounded, unsure_by, untold_numbers
from attacks.records.evidence import parts_of
from attacks.records.spans import MARGIN, free_beyond
from jaxfl import Model
from jaxfl.schema import Schema

Array = jax.Array
STEPS = 3
"""Gauss-Newton steps: within one pattern of active units errors and inputs are nearly linear."""


@dataclasses.dataclass(frozen=True)
class Equations:
    """Normal equations of one step, in units of the noise.

    Attributes:
      gram: `[fitted, fitted]`.
      slope: `[fitted]`.
      beyond: energy of what is left beyond the rank.
      free: number of dimensions that it has.
    """

    gram: np.ndarray
    slope: np.ndarray
    beyond: float
    free: int

    @functools.cached_property
    def covariance(self) -> np.ndarray:
        """Covariance of the numbers fitted, by white noise."""
        return np.asarray(np.linalg.pinv(self.gram, hermitian=True))

    @property
    def solution(self) -> np.ndarray:
        """How far the numbers are from fitting best."""
        return np.asarray(self.covariance @ self.slope)

    def __add__(self, other: "Equations") -> "Equations":
        fields = dataclasses.fields(self)
        return Equations(*(getattr(self, f.name) + getattr(other, f.name) for f in fields))


class Parts(NamedTuple):
    """The parts of some records of a client in its gradients, as functions of their numbers.

    Attributes:
      model: the model.
      params: models received, leaves `[rounds, ...]`.
      y: labels `[records]`.
      weights: of each `[records]`.
      positions: of the columns that may be fitted.
    """

    model: Model
    params: Any
    y: np.ndarray
    weights: np.ndarray
    positions: tuple[int, ...]

    def without(self, gradients: list[np.ndarray], x: np.ndarray) -> list[np.ndarray]:
        """The gradients less the parts of records `x [records, features]`."""
        return self._less(gradients, self._values(x))

    def _less(
        self, gradients: list[np.ndarray], values: list[tuple[np.ndarray, np.ndarray]]
    ) -> list[np.ndarray]:
        weighted = [(inputs, errors * self.weights[:, None]) for inputs, errors in values]
        return [
            gradient - np.swapaxes(errors, 1, 2) @ inputs
            for gradient, (inputs, errors) in zip(gradients, weighted, strict=True)
        ]

    def equations(self, noisy: "Noisy", x: np.ndarray, places: np.ndarray) -> Equations:
        """Equations of the numbers at flat `places` of `[records, positions]`, at records `x`."""
        records, columns = np.divmod(places, len(self.positions))
        size, weights = len(places), self.weights[records, None]
        summed = Equations(np.zeros((size, size)), np.zeros(size), 0.0, 0)
        values = self._values(x)
        lefts = self._less(noisy.gradients, values)
        layers = zip(lefts, noisy.noise, values, self._slopes(x), strict=True)
        for left, noise, (inputs, errors), (by_inputs, by_errors) in layers:
            for t in range(len(left)):
                pairs = [
                    (by_errors[columns, t, records] * weights, inputs[t, records]),
                    (errors[t, records] * weights, by_inputs[columns, t, records]),
                ]
                summed += _of_gradient(left[t], noise, noisy.rank, pairs)
        return summed

    def _values(self, x: np.ndarray) -> Any:
        """Inputs and errors `[rounds, records, width]` of every layer."""
        return self._of_records(lambda x, y: parts_of(self.model, self.params, x, y), x, 1)

    def _slopes(self, x: np.ndarray) -> Any:
        """Slopes of inputs and errors by each position `[positions, rounds, records, width]`."""

        def slopes(x: np.ndarray, y: np.ndarray) -> Any:
            return _slopes_of(self.model, self.params, x, y, self.positions)

        return self._of_records(slopes, x, 2)

    def _of_records(self, function: Callable[..., Any], x: np.ndarray, axis: int) -> Any:
        """What a function of `CHUNK` records gives of all, whose leaves have them along an axis."""

        def first(x: np.ndarray, y: np.ndarray) -> Any:
            return jax.tree.map(lambda a: np.moveaxis(a, axis, 0), function(x, y))

        with jax.enable_x64(True):
            gathered = pieces(first, x, self.y)
        return jax.tree.map(lambda a: np.moveaxis(a, 0, axis), gathered)


class Noisy(NamedTuple):
    """What numbers are fitted to.

    Attributes:
      gradients: `[rounds, outputs, inputs]` of each layer.
      noise: standard deviation of an entry's error, of each layer.
      rank: of what is left without the records.
    """

    gradients: list[np.ndarray]
    noise: list[float]
    rank: int


def fitted_together(
    parts: Parts, schema: Schema, noisy: Noisy, taken: Passed
) -> tuple[Passed, list[np.ndarray]]:
    """Records with all numbers fitted together that are not sure whole ones, and what is left of
    the gradients without them.

    Args:
      parts: of the records taken, by the schema's measured and counted columns.
      schema: of the table.
      noisy: what they are fitted to.
      taken: the records, as they were found.
    """
    size = len(schema.positions)
    unsure = unsure_by(schema, taken.deviation) > 0
    some = _free(unsure, parts, counted=False)
    every = _free(unsure, parts, counted=True)
    unfitted = taken, parts.without(noisy.gradients, taken.x)
    if not len(every):
        return unfitted
    x = _descended(parts, noisy, taken.x, some)
    at = parts.equations(noisy, x, every)
    if not at.beyond < MARGIN**2 * at.free:
        return unfitted
    for _ in range(STEPS):
        other = _snapped(schema, x, _filled(parts, x, every, at.solution)[:, size:])
        if np.array_equal(other, x):
            break
        other = _descended(parts, noisy, other, some)
        after = parts.equations(noisy, other, every)
        if not after.beyond < at.beyond:
            break
        x, at = other, after
    # Rounding is no white noise: numbers are no surer than when the records were found.
    spread = max(1.0, float(np.sqrt(at.beyond / at.free)))
    deviation, known = taken.deviation.copy(), np.isin(every, some)
    together = spread * _deviations(np.linalg.pinv(at.gram[np.ix_(known, known)], hermitian=True))
    deviation[unsure] = np.maximum(deviation[unsure], together)
    fitted = dataclasses.replace(taken, x=rounded(schema, x, deviation), deviation=deviation)
    reach = np.abs(at.solution) + MARGIN * spread * _deviations(at.covariance)
    opened = _opened(schema, fitted, _filled(parts, x, every, reach)[:, size:])
    return opened, parts.without(noisy.gradients, fitted.x)


def _opened(schema: Schema, taken: Passed, reach: np.ndarray) -> Passed:
    """No longer certified where a listed number may have another value, by its `reach [records,
    counted]`, or a measured one is not told."""
    gaps = np.asarray([gap for _, _, gap in schema.counted])
    loose = reach >= gaps / 2
    names = [column for column, _, _ in schema.counted]
    untold = untold_numbers(schema, taken.x, taken.deviation)
    return taken.opened(
        [
            {*numbers, *(n for n, row in zip(names, now, strict=True) if row)}
            for numbers, now in zip(untold, loose, strict=True)
        ]
    )


def _free(unsure: np.ndarray, parts: Parts, *, counted: bool) -> np.ndarray:
    """Flat places of `[records, positions]` that are fitted."""
    others = np.full((len(unsure), len(parts.positions) - unsure.shape[1]), counted)
    return np.flatnonzero(np.concatenate([unsure, others], axis=1))


def _descended(parts: Parts, noisy: Noisy, x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Records with the numbers at `places` fitted."""
    if not len(places):
        return x
    at = parts.equations(noisy, x, places)
    for _ in range(STEPS):
        moved = x.copy()
        moved[:, parts.positions] += _filled(parts, x, places, at.solution)
        after = parts.equations(noisy, moved, places)
        if not after.beyond < at.beyond:
            break
        x, at = moved, after
    return x


def _snapped(schema: Schema, x: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Records whose listed numbers have the values nearest to where they move `[records,
    counted]`."""
    positions = [position for _, position, _ in schema.counted]
    moved = x.copy()
    moved[:, positions] += moves
    return schema.records(schema.places(moved), x[:, schema.positions])


def _deviations(covariance: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(np.diag(covariance), 0))


def _filled(parts: Parts, x: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    filled = np.zeros((len(x), len(parts.positions)))
    filled.flat[places] = values
    return filled


def _of_gradient(
    gradient: np.ndarray, noise: float, rank: int, pairs: list[tuple[np.ndarray, np.ndarray]]
) -> Equations:
    """Equations of a gradient `[outputs, inputs]`, beyond its rank. The sum over `pairs` of errors
    and inputs `[fitted, width]` is the slope of the records' parts."""
    size = len(pairs[0][0])
    if min(gradient.shape) <= rank:
        return Equations(np.zeros((size, size)), np.zeros(size), 0.0, 0)
    left, values, right = np.linalg.svd(gradient / noise, full_matrices=False)
    columns, rows = left[:, :rank], right[:rank].T
    rest = gradient / noise - (columns * values[:rank]) @ rows.T
    errors = [(e - (e @ columns) @ columns.T) / noise for e, _ in pairs]
    inputs = [a - (a @ rows) @ rows.T for _, a in pairs]
    slope = sum(((e @ rest) * a).sum(1) for e, a in zip(errors, inputs, strict=True))
    both = list(itertools.product(zip(errors, inputs, strict=True), repeat=2))
    gram = sum((e @ f.T) * (a @ b.T) for (e, a), (f, b) in both)
    free = int(free_beyond(gradient, rank).prod())
    return Equations(np.asarray(gram), np.asarray(slope), float(np.square(rest).sum()), free)


@functools.partial(jax.jit, static_argnames=("model", "positions"))
def _slopes_of(
    model: Model, params: Any, x: Array, y: Array, positions: tuple[int, ...]
) -> list[tuple[Array, Array]]:
    """Slopes of `parts_of` by the columns at positions, leaves `[positions, ...]`."""

    def along(position: Array) -> list[tuple[Array, Array]]:
        direction = jnp.zeros_like(x).at[:, position].set(1)
        return jax.jvp(lambda x: parts_of(model, params, x, y), (x,), (direction,))[1]

    return jax.vmap(along)(jnp.asarray(positions))
