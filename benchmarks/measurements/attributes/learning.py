"""What methods that learn have learned on public records."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import fit_public_model
from benchmarks.harness.engines import Compiled, once, run_members
from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.splits import public_rows
from benchmarks.scenarios.streams import Stream, stream

Array = jax.Array


class Public(NamedTuple):
    """Records that the adversary knows whole.

    Attributes:
      x: `[public, features]`.
      y: their labels `[public]`.
      values: of the attribute `[public]`.
      key: of what is random in learning.
      positions: where the attribute stands `[width]`.
    """

    x: Array
    y: Array
    values: Array
    key: Array
    positions: Array


@dataclasses.dataclass(frozen=True)
class Learns:
    """How a method learns on a seed's public records. These do not depend on the victim, so that
    all cells share what is learned.

    Attributes:
      rule: from how many values the attribute has, and the records, to what is learned.
    """

    rule: Callable[[int, Public], Any]

    @once
    def __call__(
        self,
        name: str,
        data_dir: str | None,
        encoding: str,
        attribute: int,
        seeds: tuple[int, ...],
        count: int,
    ) -> Compiled:
        """What is learned with every seed `[seeds]`."""
        data = classified(name, data_dir, encoding=encoding)
        column, values = data.column(attribute), data.values_of(attribute)
        rows = np.stack([public_rows(data, seed)[:count] for seed in seeds])
        keys = jnp.stack([stream(jax.random.key(seed), Stream.ATTACK) for seed in seeds])
        x, y, known = (jnp.asarray(a[rows]) for a in (data.x, data.y, values))
        positions = jnp.tile(jnp.asarray(column.positions), (len(seeds), 1))
        rule = Rule(self.rule, len(column.values))
        return run_members(rule, Public(x, y, known, keys, positions))


@dataclasses.dataclass(frozen=True)
class Rule:
    """Learns on public records; see `Learns`."""

    rule: Any
    values: int

    def __call__(self, public: Public) -> Any:
        """What is learned on them."""
        return self.rule(self.values, public)


def fitted(values: int, public: Public) -> Any:
    """A rule: a model that names the attribute."""
    return fit_public_model(public.x, public.values, public.positions, values, public.key)


def as_they_are(values: int, public: Public) -> Any:
    """A rule: the records themselves."""
    return public.x, public.y
