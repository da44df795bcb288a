"""The one cached loader of data sets, and of the user's own table, which goes by a name that says
all that its reading depends on: `people.csv?target=income&sensitive=sex&sha256=...`."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from benchmarks.harness.engines import once
from jaxfl.datasets import Dataset, load

SHOWN = 16
"""Digits of a file's checksum in its name."""
READ: dict[str, Callable[[list[str]], Any]] = {
    "drop": tuple,
    "max_categories": lambda values: int(values[0]),
}
"""How options become values; others are texts."""


def own_table(path: str, **options: str | int | tuple[str, ...]) -> str:
    """The name of a table of one's own, of its content and options of `jaxfl.datasets.read_csv`:
    results of another content are other results.

    Raises:
      FileNotFoundError: if there is no such file.
    """
    given = {name: value for name, value in options.items() if value}
    return f"{path}?{urlencode(given | {'sha256': _checksum(path)}, doseq=True, safe='/,')}"


def _checksum(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:SHOWN]


@once
def _load(name: str, data_dir: str | None, options: tuple[tuple[str, Any], ...]) -> Dataset:
    path, _, query = name.partition("?")
    asked: dict[str, Any] = parse_qs(query)
    known = asked.pop("sha256", [""])[0]
    if known and known != _checksum(path):
        raise ValueError(f"{path} has changed since its name {name!r} was made; start anew")
    asked = {k: READ.get(k, lambda values: values[0])(v) for k, v in asked.items()}
    return load(path, data_dir, **asked, **dict(options))


def source(name: str, data_dir: str | None, **options: Any) -> Dataset:
    """A data set, loaded once per name, folder and options (see `jaxfl.datasets.load`)."""
    return _load(name, data_dir, tuple(sorted(options.items())))


def classified(name: str, data_dir: str | None, **options: Any) -> Dataset:
    """A data set with classes. Raises `ValueError` if it has none."""
    data = source(name, data_dir, **options)
    if data.classes is None:
        path, _, query = name.partition("?")
        target = parse_qs(query).get("target", [""])[0]
        what = f"target={target!r} of {path}" if target else f"dataset={name!r}"
        raise ValueError(f"{what} is a regression: its target holds numbers, and classes are asked")
    return data


@once
def pictures(name: str, data_dir: str | None, side: tuple[int, ...]) -> Dataset:
    """Images at so many pixels down and across, in [-1, 1]."""
    data = source(name, data_dir)
    data = data if data.x.shape[1:3] == side else source(name, data_dir, size=side)
    return dataclasses.replace(data, x=2 * data.x - 1)
