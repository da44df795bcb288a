"""Tabular data as arrays, with what an attack needs to know of each column."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Int, Num

from jaxfl import _check
from jaxfl.domains import Count, Index, Shape, check, checked
from jaxfl.schema import Listed, Measured, Schema, nearest, tied

Encoding = Literal["onehot", "scalar", "dummies"]


MOST_LISTED = 128
"""A whole number with more values than that is measured, not listed."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What numbers a numeric attribute has in its source, all records taken.

    Attributes:
      low, high: its range.
      whole: whether all are whole numbers.
      mean, deviation: a feature is (number - mean) / deviation.
    """

    low: float
    high: float
    whole: bool
    mean: float = 0.0
    deviation: float = 1.0

    @staticmethod
    def of(values: np.ndarray, standardize: bool) -> "Numbers":
        """Those of a column `[records]`."""
        mean, deviation = (values.mean(), values.std() or 1.0) if standardize else (0.0, 1.0)
        whole = bool((values == np.rint(values)).all())
        return Numbers(
            float(values.min()), float(values.max()), whole, float(mean), float(deviation)
        )

    def features(self, values: np.ndarray) -> np.ndarray:
        """Numbers as features."""
        return (values - self.mean) / self.deviation

    def values(self, features: np.ndarray) -> np.ndarray:
        """Features as numbers in the source's units, in float64."""
        return np.asarray(features, np.float64) * self.deviation + self.mean


@dataclasses.dataclass(frozen=True)
class Column:
    """An attribute as it appears in a record of features.

    Attributes:
      name: its name in the source.
      positions: where it stands among the features.
      categories: its possible values, as in the source; empty for a numeric attribute.
      values: `[K, len(positions)]`, what each category looks like at those positions; `[0, 1]` for
        a numeric attribute.
      numbers: of a numeric attribute; None for a categorical one.
    """

    name: str
    positions: tuple[Index, ...]
    categories: tuple[str, ...]
    values: np.ndarray
    numbers: Numbers | None = None

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        shape = len(self.categories), len(self.positions)
        _check.shape(shape, **{f"{name}.values": self.values})
        _check.finite(**{f"{name}.values": self.values})


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Records and labels. Host arrays; they reach the device when a run takes them.

    Attributes:
      name: the source.
      x: features `[records, ...]`, float32.
      y: labels `[records]`, int32 classes or float32 targets.
      columns: the attributes, in order; empty for images.
      classes: number of classes; None for regression.
      group: the client to which the source assigns each record `[records]`, or None.
      note: what a reader of results must know of this source (a stand-in, a subset), or "".
      sensitive: name of the attribute that an attack is to infer, or None.
    """

    name: str
    x: Num[np.ndarray, "records ..."]
    y: Num[np.ndarray, "records"]
    columns: tuple[Column, ...]
    classes: Count | None
    group: Int[np.ndarray, "records"] | None = None
    note: str = ""
    sensitive: str | None = None

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        _check.finite(**{f"{name}.x": self.x, f"{name}.y": self.y})
        if self.classes is not None:
            _check.labels(self.y, self.classes, name=f"{name}.y")
        for place, column in enumerate(self.columns):
            outside = [p for p in column.positions if p >= np.shape(self.x)[1]]
            if outside:
                raise ValueError(
                    f"{name}.columns[{place}].positions names feature {outside[0]}; {name}.x has "
                    f"{np.shape(self.x)[1]}"
                )

    def __len__(self) -> int:
        return len(self.x)

    def column(self, name: str | int) -> Column:
        """An attribute by name or 0-based number. Raises `ValueError` if there is none."""
        if isinstance(name, int):
            if not 0 <= name < len(self.columns):
                raise ValueError(
                    f"column={name} does not exist in {self.name}; attributes run from 0 to "
                    f"{len(self.columns) - 1}"
                )
            return self.columns[name]
        names = [c.name for c in self.columns]
        if name not in names:
            raise ValueError(
                f"column={name!r} does not exist in {self.name}; columns: {', '.join(names[:20])}"
            )
        return self.columns[names.index(name)]

    def values_of(self, name: str | int) -> np.ndarray:
        """The category index of every record in a categorical attribute `[records]`."""
        column = self.column(name)
        if not column.categories:
            raise ValueError(
                f"column={name!r} of {self.name} is numeric; only categorical attributes have "
                "values to infer"
            )
        return nearest(self.x[:, list(column.positions)], column.values)

    def schema(self) -> Schema:
        """What is public of this table: what each attribute can be, by its source. Columns that
        another one tells (a category and its number) are one attribute.

        Raises:
          ValueError: if the records are images, which have no attributes.
        """
        if not self.columns:
            raise ValueError(f"{self.name} has no columns: its records are no rows of a table")
        listed = [column for column in self.columns if column.categories]
        numeric = [column for column in self.columns if not column.categories]
        attributes = []
        for column in listed:
            told = _told(self.x, self.values_of(column.name), column, numeric)
            others = [other for other in numeric if other.name in told]
            numeric = [other for other in numeric if other.name not in told]
            attributes.append(_listed(column, told, others))
        measured = []
        for column in numeric:
            numbers = column.numbers
            assert numbers is not None
            if numbers.whole and 0 < numbers.high - numbers.low < MOST_LISTED:
                attributes.append(_counted(column, numbers))
            else:
                measured.append(_measured(column, numbers))
        return Schema(self.x.shape[1], tuple(attributes), tuple(measured))

    def prior(self, name: str | int, records: np.ndarray | None = None) -> np.ndarray:
        """Distribution of a categorical attribute `[K]` over all (or the given) records."""
        values = self.values_of(name)
        values = values if records is None else values[records]
        return np.bincount(values, minlength=len(self.column(name).categories)) / len(values)


@dataclasses.dataclass(frozen=True)
class Table:
    """A source before encoding: one number per attribute.

    Attributes:
      name: the source.
      values: `[records, attributes]`, the number itself or the index of the category.
      y: labels `[records]`.
      names: names of the attributes.
      categories: per attribute its categories, empty for numbers.
      classes: number of classes; None for regression.
      codes: per attribute the numbers that stand for its categories in a scalar coding; absent: 0,
        1, 2, ...
      group: client of each record, or None.
      note: see `Dataset`.
      standardize: whether numbers are brought to mean 0 and deviation 1.
      sensitive: name of the attribute that an attack is to infer, or None.
      shape: of an image `(height, width, channels)`; the values are then its pixels, and there are
        no attributes.
    """

    name: str
    values: Num[np.ndarray, "records attributes"]
    y: Num[np.ndarray, "records"]
    names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]
    classes: Count | None
    codes: tuple[float, ...] | None = None
    group: Int[np.ndarray, "records"] | None = None
    note: str = ""
    standardize: bool = True
    sensitive: str | None = None
    shape: Shape | None = None

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        _check.finite(**{f"{name}.values": self.values, f"{name}.y": self.y})
        if self.classes is not None:
            _check.labels(self.y, self.classes, name=f"{name}.y")
        if self.shape is None:
            count = np.shape(self.values)[1]
            for field in ("names", "categories"):
                if len(getattr(self, field)) != count:
                    raise ValueError(
                        f"{name}.{field} has {len(getattr(self, field))} entries; {name}.values "
                        f"has {count} attributes"
                    )


@checked
def encode(table: Table, encoding: Encoding = "onehot") -> Dataset:
    """Features of a table.

    Numbers are standardised by the mean and deviation of the whole source, in float64, if the table
    asks for it (constant ones become 0). An attribute of two categories is one column of 0 and 1.
    More categories become one column each ("onehot"), or one column that holds the category's code
    ("scalar"). With "dummies" two categories are two columns, too, as `pandas.get_dummies` does.

    Raises:
      ValueError: if most of a column's whole numbers are the same in float32.
    """
    if table.shape is not None:
        pixels, y = (
            table.values.reshape(-1, *table.shape).astype(np.float32),
            table.y.astype(np.int32),
        )
        return Dataset(table.name, pixels, y, (), table.classes, table.group, table.note)
    parts: list[np.ndarray] = []
    columns: list[Column] = []
    width = 0
    for j, (name, categories) in enumerate(zip(table.names, table.categories, strict=True)):
        raw = np.asarray(table.values[:, j], np.float64)
        looks = _looks(len(categories), encoding, table.codes)
        numbers = Numbers.of(raw, table.standardize) if looks is None else None
        part = numbers.features(raw)[:, None] if numbers else np.asarray(looks)[raw.astype(int)]
        if numbers is not None and numbers.whole:
            _check_told_apart(name, raw, part)
        positions = tuple(range(width, width + part.shape[1]))
        columns.append(
            Column(
                name,
                positions,
                categories,
                np.zeros((0, 1), np.float32) if looks is None else looks,
                numbers,
            )
        )
        parts.append(part)
        width += part.shape[1]
    x = np.concatenate(parts, axis=1, dtype=np.float32)
    label_type = np.float32 if table.classes is None else np.int32
    return Dataset(
        table.name,
        x,
        table.y.astype(label_type),
        tuple(columns),
        table.classes,
        table.group,
        table.note,
        table.sensitive,
    )


def _check_told_apart(name: str, raw: np.ndarray, part: np.ndarray) -> None:
    different, kept = len(np.unique(raw)), len(np.unique(part.astype(np.float32)))
    if kept < different / 2:
        raise ValueError(
            f"column {name!r} has {different} different whole numbers from {raw.min():.0f} to "
            f"{raw.max():.0f}, of which float32 keeps {kept}; leave the column out, or standardize"
        )


def resized(dataset: Dataset, size: tuple[int, int]) -> Dataset:
    """Images at another height and width, by area averages and linear interpolation.

    Raises:
      ValueError: if the records are no images, or the size is not positive.
    """
    if dataset.x.ndim != 4:
        raise ValueError(
            f"size={size} needs images; {dataset.name} has records of shape {dataset.x.shape[1:]}"
        )
    check("size", size, Shape)
    shape = (len(dataset), *size, dataset.x.shape[3])
    return dataclasses.replace(dataset, x=np.asarray(jax.image.resize(dataset.x, shape, "linear")))


def _looks(count: int, encoding: Encoding, codes: Sequence[float] | None) -> np.ndarray | None:
    """What each category looks like `[K, width]`; None for a number."""
    if count == 0:
        return None
    if encoding != "dummies" and (count <= 2 or encoding == "scalar"):
        return np.asarray(codes if codes is not None and count > 2 else range(count), np.float32)[
            :, None
        ]
    return np.eye(count, dtype=np.float32)


def _told(
    x: np.ndarray, places: np.ndarray, column: Column, numeric: Sequence[Column]
) -> dict[str, np.ndarray]:
    """Numeric columns that a category tells, of more than two that all occur: the number of each
    category `[K]`."""
    if len(np.unique(places)) < len(column.categories) or len(column.categories) <= 2:
        return {}
    looks = {other.name: tied(x, places, other.positions) for other in numeric}
    return {name: look for name, look in looks.items() if look is not None}


def _listed(column: Column, told: dict[str, np.ndarray], others: Sequence[Column]) -> Listed:
    positions = [p for other in others for p in other.positions]
    looks = np.concatenate([column.values, *told.values()], 1)
    numbers = [_numbers(other, told[other.name][:, 0]) for other in others]
    values: tuple[tuple[Any, ...], ...] = tuple(zip(column.categories, *numbers, strict=True))
    names = (column.name, *(other.name for other in others))
    return Listed(names, (*column.positions, *positions), looks, values)


def _numbers(column: Column, features: np.ndarray) -> list[float]:
    numbers = column.numbers
    assert numbers is not None
    values = features * numbers.deviation + numbers.mean
    return (np.rint(values) if numbers.whole else values).tolist()


def _counted(column: Column, numbers: Numbers) -> Listed:
    """A whole number of few values."""
    values = np.arange(numbers.low, numbers.high + 1)
    looks = numbers.features(values)[:, None].astype(np.float32)
    return Listed((column.name,), column.positions, looks, tuple((float(v),) for v in values))


def _measured(column: Column, numbers: Numbers) -> Measured:
    high = numbers.high if numbers.high > numbers.low else numbers.low + 1
    return Measured(
        column.name,
        column.positions[0],
        numbers.low,
        high,
        numbers.mean,
        numbers.deviation,
        numbers.whole,
    )
