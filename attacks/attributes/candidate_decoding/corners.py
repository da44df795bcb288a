"""Values of records that bring sums of their gradients within bounds: a search among the corners of
the set of weights."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attacks.fixed_draws import fixed_key

Array = jax.Array
PER_UNKNOWN = 60
"""Bounds for every unknown that changes are judged by."""
PAIRED = 16
"""Changes, the best alone, that are tried with every other one."""
SHAKEN = 0.2
"""Share of records whose values are drawn anew where no change helps."""
INSIDE, LEAST = 1e-3, 0.02
"""Distance that is within all bounds, and the least weight by which a value is drawn."""
FINE = 0.1
"""Distance that counts as one, in units of what records change in a number."""


class Bounds(NamedTuple):
    """Bounds on `jacobian @ weights + base`, each a number of some round's gradient, times its
    sign.

    Attributes:
      jacobian: `[bounds, unknowns]`.
      base: `[bounds]`.
      low: `[bounds]`.
      high: `[bounds]`; infinity where nothing is known.
      reach: what a record's candidates change `[bounds]`.
    """

    jacobian: Array
    base: Array
    low: Array
    high: Array
    reach: Array

    @property
    def width(self) -> Array:
        """Distance that is within rounding `[bounds]`; of bounds from below alone, their size."""
        narrow = jnp.isfinite(self.high)
        return jnp.where(narrow, (self.high - self.low) / 2, jnp.abs(self.low))

    @property
    def tiny(self) -> float:
        """A positive number below all others."""
        return float(jnp.finfo(self.base.dtype).tiny) ** 0.5


def nearest_corner(bounds: Bounds, values: Array, count: int) -> tuple[Array, Array]:
    """Values of the records `[records]`, one or two at a time changed until no change brings the
    numbers nearer to their bounds; and how far these are from them.

    Args:
      bounds: of weights of all values but the first, of every record.
      values: where to begin, integers.
      count: values that a record may have (static).
    """
    every = max(1, len(bounds.base) // (PER_UNKNOWN * bounds.jacobian.shape[1]))
    seen = jax.tree.map(lambda a: a[::every], bounds)
    columns = jnp.pad(
        seen.jacobian.reshape(len(seen.base), len(values), count - 1), ((0, 0), (0, 0), (1, 0))
    )
    unit = jnp.maximum(seen.width, FINE * seen.reach) + seen.tiny
    search = _Search(seen, columns, unit, 4 * len(values))
    ended = jax.lax.while_loop(
        lambda state: state.steps < search.most, search.change, search.begin(values)
    )
    return ended.values, ended.height


def restarted(
    bounds: Bounds, values: Array, height: Array, weights: Array, tries: int | Array
) -> Array:
    """A nearer corner than one where no change of one or two records helps (iterated local search,
    Lourenço et al. 2003): some records' values are drawn anew, the search begins again from there,
    and the nearest corner stays, until one is within all bounds.

    Args:
      bounds: of weights of all values but the first, of every record.
      values: where no change helps, integers `[records]`.
      height: how far that is from the bounds.
      weights: within the bounds `[records, K]`, by which values are drawn.
      tries: searches that begin anew at most.
    """
    records, count = weights.shape
    likely = jnp.log(jnp.clip(weights, LEAST, 1))

    def again(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        values, height, tried = state
        which, what = jax.random.split(jax.random.fold_in(fixed_key(), tried))
        drawn = jax.random.categorical(what, likely).astype(values.dtype)
        moved = jax.random.uniform(which, (records,)) < SHAKEN
        ended, reached = nearest_corner(bounds, jnp.where(moved, drawn, values), count)
        better = reached < height
        return jnp.where(better, ended, values), jnp.where(better, reached, height), tried + 1

    return jax.lax.while_loop(
        lambda state: (state[1] > INSIDE) & (state[2] < tries),
        again,
        (values, height, jnp.asarray(0)),
    )[0]


class _State(NamedTuple):
    """Values `[records]`, the numbers that they make, how far these are from their bounds, and
    changes made; as many as there may be if there is none left."""

    values: Array
    gradient: Array
    height: Array
    steps: Array


@dataclasses.dataclass(frozen=True)
class _Search:
    """Changes of one record's or two records' values.

    Attributes:
      bounds: those that are looked at.
      columns: what each value of each record adds to a number `[bounds, records, K]`.
      unit: distances that count as one `[bounds]`.
      most: changes at most.
    """

    bounds: Bounds
    columns: Array
    unit: Array
    most: int

    def begin(self, values: Array) -> _State:
        """Before the first change."""
        gradient = self.made(values)
        return _State(values, gradient, self.distance(gradient), jnp.asarray(0))

    def made(self, values: Array) -> Array:
        """The numbers that values make."""
        places = jnp.arange(len(values))
        return self.bounds.base + self.columns[:, places, values].sum(1)

    def distance(self, gradient: Array) -> Array:
        """From all bounds together, of numbers `[bounds, ...]`."""
        shape = (-1, *[1] * (gradient.ndim - 1))
        low, high, unit = (a.reshape(shape) for a in (self.bounds.low, self.bounds.high, self.unit))
        return jnp.abs((gradient - jnp.clip(gradient, low, high)) / unit).sum(0)

    def each(self, gradient: Array, values: Array) -> Array:
        """Distances after the change of every record to every value `[records, K]`."""
        present = self.columns[:, jnp.arange(len(values)), values][:, :, None]
        return self.distance(gradient[:, None, None] + self.columns - present)

    def pair(self, gradient: Array, values: Array, alone: Array) -> tuple[Array, Array]:
        """The best two changes at once, of which one is among the best alone."""
        count = self.columns.shape[2]
        _, best = jax.lax.top_k(-alone.reshape(-1), min(PAIRED, alone.size))

        def beside(change: Array) -> tuple[Array, Array]:
            record, value = change // count, change % count
            gained = self.columns[:, record, value] - self.columns[:, record, values[record]]
            both = self.each(gradient + gained, values.at[record].set(value))
            both = both.at[record].set(jnp.inf)
            return both.min(), both.argmin()

        heights, others = jax.lax.map(beside, best)
        first = heights.argmin()
        return heights[first], jnp.stack([best[first], others[first]])

    def change(self, state: _State) -> _State:
        """The best change of one record, or of two if none alone helps."""
        values, gradient, height, steps = state
        count, alone = self.columns.shape[2], self.each(gradient, values)
        single = alone.min(), jnp.repeat(alone.argmin(), 2)
        better, changes = jax.lax.cond(
            single[0] < height, lambda: single, lambda: self.pair(gradient, values, alone)
        )
        changed = values.at[changes // count].set(changes % count)
        after = _State(changed, self.made(changed), better, steps + 1)
        stays = state._replace(steps=jnp.asarray(self.most))
        return jax.tree.map(lambda a, b: jnp.where(better < height, a, b), after, stays)
