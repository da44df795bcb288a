"""Do two runs agree? `python -m benchmarks.compare OLD/results.csv NEW/results.csv`.

Rows are matched by suite, table, size, data, method, selection, metric and seed; of several such
rows (cells of a table) by their order. Rows agree if their statuses are equal and their values are
within `--tolerance`. Exit code 1 if some differ, or if a row has no partner in the other file.
"""

import csv
import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

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
                raise csv.Error(f"it has no column {min(missing)!r}")
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


def differences(old: Path, new: Path, tolerance: float) -> list[str]:
    """A line for every row that differs or has no partner."""
    before, after = read(old), read(new)
    lines = []
    for place in dict.fromkeys([*before, *after]):
        first, second = before.get(place, []), after.get(place, [])
        if len(first) != len(second):
            lines.append(f"{' '.join(place)}: {len(first)} rows, then {len(second)}")
        for a, b in zip(first, second, strict=False):
            if a["status"] != b["status"] or not _close(a["value"], b["value"], tolerance):
                then = f"{a['value']} {a['status']} then {b['value']} {b['status']}"
                lines.append(f"{' '.join(place)}: {then} ({b['settings'][:200]})")
    return lines


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
    old, new = arguments.old, arguments.new
    lines = differences(old, new, arguments.tolerance)
    rows = max(sum(map(len, read(path).values())) for path in (old, new))
    print(*lines, f"{len(lines)} differences among {rows} rows", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    run_command(main)
