"""What suites share: products of settings, and the published numbers beside them."""

import csv
import functools
import itertools
from collections.abc import Sequence
from importlib import resources

from benchmarks.jobs import Cell, Value


def product(varied: dict[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Every combination of the values that each setting takes."""
    return [
        dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())
    ]


@functools.cache
def published_rows(suite: str) -> tuple[dict[str, str], ...]:
    """Rows of `<suite>_published.csv`, by column."""
    text = (
        resources.files("benchmarks.suites")
        .joinpath(f"{suite}_published.csv")
        .read_text(encoding="utf-8")
    )
    return tuple(csv.DictReader(text.splitlines()))


def everywhere(cell: Cell, method: str) -> bool:
    """All methods of a table make sense in all its cells."""
    return True
