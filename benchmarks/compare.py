"""Do two runs agree? `python -m benchmarks.compare OLD/results.csv NEW/results.csv`.

Rows are matched by suite, table, size, data, method, selection, metric and seed; of several such
rows (cells of a table) by their settings, and those that have no equal, as another version's may,
by their order. Rows agree if their statuses are equal and their values are within `--tolerance`.
Exit code 1 if some differ, or if a row has no partner in the other file.
"""

import csv
import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tyro

from benchmarks.harness.command_line import check_options, exit_code, run_command
from jaxfl.domains import NotNegativeFloat

PLACE = ("suite", "table", "size", "dataset", "method", "selection", "metric", "seed")
COMPARED = ("status", "value", "settings")


def read(path: Path) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Rows of a results.csv by place, in their order. Raises `ValueError` if the file is none."""
    rows: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    if not path.is_file():
        inside = "; name the results.csv in it" if path.is_dir() else ""
        raise ValueError(f"{path} is no file{inside}")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = {*PLACE, *COMPARED} - set(reader.fieldnames or ())
            if missing:
                raise csv.Error(
                    f"it has no column {min(missing)!r}, as a sweep's has (those of audits of "
                    "recorded runs are not compared)"
                )
            for row in reader:
                _check_row(row, reader.line_num)
                rows[tuple(row[name] for name in PLACE)].append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no results.csv: {error}") from error
    return rows


def _check_row(row: dict[str, str], line: int) -> None:
    """Raise `csv.Error` unless a row has all columns, and a number or nothing for its value."""
    if None in row or None in row.values():
        raise csv.Error(f"line {line} has other columns than the first; is the file whole?")
    try:
        float(row["value"] or 0)
    except ValueError:
        raise csv.Error(f"line {line} has the value {row['value']!r}, which is no number") from None


class Compared(NamedTuple):
    """Two runs.

    Attributes:
      differences: a line for every row that differs or has no partner.
      rows: of the run that has more.
      by_order: matched rows whose settings are not equal.
    """

    differences: list[str]
    rows: int
    by_order: int


def compared(old: Path, new: Path, tolerance: float) -> Compared:
    """Raises `ValueError` as `read`, and if neither run has a row."""
    before, after = read(old), read(new)
    rows = max(sum(map(len, run.values())) for run in (before, after))
    if not rows:
        raise ValueError(f"{old} and {new} hold no rows")
    lines, by_order = [], 0
    for place in dict.fromkeys([*before, *after]):
        first, second = before.get(place, []), after.get(place, [])
        if len(first) != len(second):
            lines.append(f"{' '.join(place)}: {len(first)} rows, then {len(second)}")
        for a, b in _pairs(first, second):
            by_order += a["settings"] != b["settings"]
            if a["status"] != b["status"] or not _close(a["value"], b["value"], tolerance):
                then = f"{a['value']} {a['status']} then {b['value']} {b['status']}"
                lines.append(f"{' '.join(place)}: {then} ({b['settings'][:200]})")
    return Compared(lines, rows, by_order)


def _pairs(
    first: Sequence[dict[str, str]], second: Sequence[dict[str, str]]
) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Rows of one place, side by side."""
    pairs, left, others = [], [], list(second)
    for row in first:
        equal = next((i for i, b in enumerate(others) if b["settings"] == row["settings"]), None)
        if equal is None:
            left.append(row)
        else:
            pairs.append((row, others.pop(equal)))
    return [*pairs, *zip(left, others, strict=False)]


def _close(a: str, b: str, tolerance: float) -> bool:
    if "" in (a, b):
        return a == b
    return math.isclose(float(a), float(b), rel_tol=tolerance, abs_tol=tolerance)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Compare two results.csv."""

    old: tyro.conf.Positional[Path]
    """File of the first run."""
    new: tyro.conf.Positional[Path]
    """File of the second run."""
    tolerance: NotNegativeFloat = 1e-6
    """Relative and absolute."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code, 1 if the files differ."""
    arguments = tyro.cli(Arguments, args=argv, prog="python -m benchmarks.compare")
    return exit_code(lambda: _answered(arguments), arguments)


def _answered(arguments: Arguments) -> int:
    check_options(arguments)
    lines, rows, by_order = compared(arguments.old, arguments.new, arguments.tolerance)
    note = f"; {by_order} have other settings, and were matched by their order" if by_order else ""
    print(*lines, f"{len(lines)} differences among {rows} rows{note}", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    run_command(main)
