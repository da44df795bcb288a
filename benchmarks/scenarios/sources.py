"""The one cached loader of data sets."""

import dataclasses
from typing import Any

from benchmarks.harness.engines import once
from jaxfl.datasets import Dataset, load


@once
def _load(name: str, data_dir: str | None, options: tuple[tuple[str, Any], ...]) -> Dataset:
    return load(name, data_dir, **dict(options))


def source(name: str, data_dir: str | None, **options: Any) -> Dataset:
    """A data set, loaded once per name, folder and options (see `jaxfl.datasets.load`)."""
    return _load(name, data_dir, tuple(sorted(options.items())))


def classified(name: str, data_dir: str | None, **options: Any) -> Dataset:
    """A data set with classes. Raises `ValueError` if it has none."""
    data = source(name, data_dir, **options)
    if data.classes is None:
        raise ValueError(f"dataset={name!r} is a regression; this experiment needs classes")
    return data


@once
def pictures(name: str, data_dir: str | None, side: tuple[int, ...]) -> Dataset:
    """Images at so many pixels down and across, in [-1, 1]."""
    data = source(name, data_dir)
    data = data if data.x.shape[1:3] == side else source(name, data_dir, size=side)
    return dataclasses.replace(data, x=2 * data.x - 1)
