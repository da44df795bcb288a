"""Tabular data as arrays, with what an attack needs to know of each column."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax
import numpy as np
from jaxtyping import Int, Num

from jaxfl import _check
from jaxfl.domains import Count, Index, Shape, check, checked

Encoding = Literal["onehot", "scalar"]


@dataclasses.dataclass(frozen=True)
class Column:
    """An attribute as it appears in a record of features.

    Attributes:
      name: its name in the source.
      positions: where it stands among the features.
      categories: its possible values, as in the source; empty for a numeric attribute.
      values: `[K, len(positions)]`, what each category looks like at those positions; `[0, 1]` for
        a numeric attribute.
    """

    name: str
    positions: tuple[Index, ...]
    categories: tuple[str, ...]
    values: np.ndarray

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
        distance = np.abs(self.x[:, None, list(column.positions)] - column.values[None]).sum(-1)
        return distance.argmin(1)

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

    Numbers are standardised by the mean and deviation of the whole source, if the table asks for it
    (constant ones become 0). An attribute of two categories is one column of 0 and 1. More
    categories become one column each ("onehot"), or one column that holds the category's code
    ("scalar").
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
        raw = table.values[:, j]
        looks = _looks(len(categories), encoding, table.codes)
        numbers = _standardised(raw) if table.standardize else raw
        part = numbers[:, None] if looks is None else looks[raw.astype(int)]
        positions = tuple(range(width, width + part.shape[1]))
        columns.append(
            Column(
                name,
                positions,
                categories,
                np.zeros((0, 1), np.float32) if looks is None else looks,
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
    if count <= 2 or encoding == "scalar":
        return np.asarray(codes if codes is not None and count > 2 else range(count), np.float32)[
            :, None
        ]
    return np.eye(count, dtype=np.float32)


def _standardised(values: np.ndarray) -> np.ndarray:
    deviation = values.std()
    return (values - values.mean()) / (deviation if deviation > 0 else 1)
