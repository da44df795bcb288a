"""What suites share: products of settings, and the published numbers beside them."""

import csv
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

from benchmarks.harness.jobs import Cell, Suite

Facts = Callable[[Cell, str, str], dict[str, str]]
Published = Callable[[Cell, str, str], float | None]


def product(varied: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the values that each setting takes."""
    return [
        dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())
    ]


@functools.cache
def published_rows(suite: str) -> tuple[dict[str, str], ...]:
    """Rows of `<suite>_published.csv`, by column; none if there is no such file."""
    path = resources.files("benchmarks.suites").joinpath(f"{suite}_published.csv")
    if not path.is_file():
        return ()
    return tuple(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def published_by(suite: str, facts: Facts) -> Published:
    """The published number of the first row whose entries are a cell's facts; an empty entry fits
    any."""

    def published(cell: Cell, method: str, metric: str) -> float | None:
        known = {"table": cell.table, "dataset": cell.dataset, "method": method, "metric": metric}
        known |= facts(cell, method, metric)
        for row in published_rows(suite):
            if all(not row[key] or row[key] == known[key] for key in row if key != "value"):
                return float(row["value"])
        return None

    return published


def strays(suite: Suite) -> Iterator[str]:
    """Published rows that name a table, method or metric which does not exist."""
    for row in published_rows(suite.name):
        tables = [t for t in suite.tables if row.get("table") in (None, "", t.name)]
        fits = [
            table
            for table in tables
            if row.get("method") in (None, "", *table.methods)
            and row.get("metric") in (None, "", *(m.name for m in table.experiment.metrics))
        ]
        if not fits:
            yield str(row)
