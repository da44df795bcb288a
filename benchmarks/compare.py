"""Do two runs agree? `python -m benchmarks.compare OLD/results.csv NEW/results.csv`.

Rows are matched by suite, table, size, data, method, selection, metric and seed; of several such
rows (cells of a table) by their order. Rows agree if their statuses are equal and their values are
within `--tolerance`. Exit code 1 if some differ, or if a row has no partner in the other file.
"""

import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

import tyro

PLACE = ("suite", "table", "size", "dataset", "method", "selection", "metric", "seed")


def read(path: Path) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Rows of a results.csv by place, in their order."""
    rows: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows[tuple(row[name] for name in PLACE)].append(row)
    return rows


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


def main(old: Path, new: Path, /, tolerance: float = 1e-6) -> int:
    """Compare two results.csv.

    Args:
        old: of the first run.
        new: of the second.
        tolerance: relative and absolute.
    """
    for path in (old, new):
        if not path.is_file():
            print(f"error: {path} is no file", file=sys.stderr)
            return 2
    lines = differences(old, new, tolerance)
    rows = max(sum(map(len, read(path).values())) for path in (old, new))
    print(*lines, f"{len(lines)} differences among {rows} rows", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(tyro.cli(main, prog="python -m benchmarks.compare"))
