"""What is public about a table: its attributes, what each can be, and how it looks among a record's
features. Nothing of any record."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Num

from jaxfl import _check
from jaxfl.domains import Count, Index


@dataclasses.dataclass(frozen=True)
class Listed:
    """Attributes whose values can be listed: a category, a small whole number, or several columns
    of the table of which one tells the others.

    Attributes:
      columns: their names in the table, at least one.
      positions: where they stand among a record's features.
      looks: `[K, len(positions)]`, what each of K values looks like there.
      values: `[K][columns]`, what it is in the table: a category's name, or a number.
    """

    columns: tuple[str, ...]
    positions: tuple[Index, ...]
    looks: Num[np.ndarray, "values positions"]
    values: tuple[tuple[Any, ...], ...]

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        _check.shape((len(self.values), len(self.positions)), **{f"{name}.looks": self.looks})
        _check.finite(**{f"{name}.looks": self.looks})
        if len(self.values) < 2:
            raise ValueError(
                f"{name}.values={self.values} lists {len(self.values)} values; an attribute needs "
                "at least 2"
            )
        odd = [value for value in self.values if len(value) != len(self.columns)]
        if odd:
            raise ValueError(
                f"{name}.values has an entry {odd[0]}; each needs one number or name for each of "
                f"the columns {self.columns}"
            )


@dataclasses.dataclass(frozen=True)
class Measured:
    """A numeric attribute with too many values to list.

    Attributes:
      column: its name in the table.
      position: where it stands among a record's features.
      low, high: its range in the table.
      mean, deviation: a feature is (the table's value - mean) / deviation.
      whole: whether it takes whole numbers alone.
    """

    column: str
    position: Index
    low: float
    high: float
    mean: float = 0.0
    deviation: float = 1.0
    whole: bool = False

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        if not self.low < self.high:
            raise ValueError(f"{name}.low={self.low} must lie below high={self.high}")
        if not self.deviation > 0:
            raise ValueError(f"{name}.deviation={self.deviation} must be above 0")

    def feature(self, value: Any) -> Any:
        """What a value of the table looks like."""
        return (value - self.mean) / self.deviation

    def value(self, feature: Any) -> Any:
        """What a feature stands for in the table."""
        return feature * self.deviation + self.mean


@dataclasses.dataclass(frozen=True)
class Schema:
    """All attributes of a table.

    Attributes:
      features: how many a record has.
      listed: attributes whose values can be listed.
      measured: the others.
    """

    features: Count
    listed: tuple[Listed, ...]
    measured: tuple[Measured, ...] = ()

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        for kind in ("listed", "measured"):
            for place, attribute in enumerate(getattr(self, kind)):
                attribute.check_whole(f"{name}.{kind}[{place}]")
        places = [p for a in self.listed for p in a.positions] + self.positions
        if sorted(places) != list(range(self.features)):
            raise ValueError(
                f"{name} names the positions {sorted(places)[:20]}; every one of "
                f"features={self.features} belongs to one attribute"
            )
        names = self.columns
        twice = [column for column in names if names.count(column) > 1]
        if twice:
            raise ValueError(f"{name} names the column {twice[0]!r} twice")

    @property
    def positions(self) -> list[int]:
        """Positions of the measured attributes."""
        return [attribute.position for attribute in self.measured]

    @property
    def counted(self) -> list[tuple[str, int, float]]:
        """Listed numbers: column, position and the least distance of two values as features."""
        numbers = [a for a in self.listed if len(a.positions) == 1 and len(a.values) > 2]
        gaps = [float(np.diff(np.sort(a.looks[:, 0])).min()) for a in numbers]
        return [(a.columns[0], a.positions[0], g) for a, g in zip(numbers, gaps, strict=True)]

    @property
    def columns(self) -> list[str]:
        """Names in the table, listed ones first."""
        listed = [column for attribute in self.listed for column in attribute.columns]
        return listed + [attribute.column for attribute in self.measured]

    def records(
        self,
        places: Int[np.ndarray, "records listed"],
        numbers: Num[np.ndarray, "records measured"],
    ) -> Num[np.ndarray, "records features"]:
        """Records, float64, of which a listed attribute has the value at a place, and a measured
        one a feature."""
        x = np.zeros((len(places), self.features))
        for j, attribute in enumerate(self.listed):
            x[:, list(attribute.positions)] = attribute.looks[places[:, j]]
        x[:, self.positions] = numbers
        return x

    def places(self, x: Num[np.ndarray, "records features"]) -> Int[np.ndarray, "records listed"]:
        """Which value each record has of every listed attribute: the nearest."""
        places = [nearest(x[:, list(a.positions)], a.looks) for a in self.listed]
        return np.stack(places, 1) if places else np.zeros((len(x), 0), int)

    def table(self, x: Num[np.ndarray, "records features"]) -> Mapping[str, np.ndarray]:
        """Records as columns of the table, in its own units: what `pandas.DataFrame` takes."""
        places = self.places(x)
        columns: dict[str, np.ndarray] = {}
        for j, listed in enumerate(self.listed):
            for k, name in enumerate(listed.columns):
                values = np.asarray([value[k] for value in listed.values])
                columns[name] = values[places[:, j]]
        for measured in self.measured:
            values = measured.value(x[:, measured.position])
            columns[measured.column] = np.rint(values) if measured.whole else values
        return columns


def nearest(
    features: Num[np.ndarray, "records width"], looks: Num[np.ndarray, "values width"]
) -> Int[np.ndarray, "records"]:
    """Which value's look is nearest to each record's features, by the sum of differences."""
    return np.argmin([np.abs(features - look).sum(1) for look in looks], axis=0)


def tied(x: np.ndarray, places: np.ndarray, positions: Sequence[int]) -> np.ndarray | None:
    """What other features look like where a listed attribute has each of its values `[K,
    features]`, or None if it does not tell them.

    Args:
      x: records `[records, features]`.
      places: the attribute's value of each record `[records]`.
      positions: the other features.
    """
    others = x[:, list(positions)]
    _, first, inverse = np.unique(places, return_index=True, return_inverse=True)
    return others[first] if np.array_equal(others[first][inverse], others) else None
