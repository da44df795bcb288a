"""How long a job takes and what it holds, from rows that were measured before: `seconds.csv`.

`python -m benchmarks.speed.estimates` writes that table anew from folders of results.
"""

import csv
import functools
import statistics
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.jobs import Job

COLUMNS = ("suite", "table", "size", "method", "seconds", "peak_mib", "device")
PATH = Path(str(resources.files("benchmarks.harness").joinpath("seconds.csv")))


class Estimate(NamedTuple):
    """What a job is expected to take.

    Attributes:
      seconds: of one unit, its share of simulation and compilation included.
      peak_mib: largest memory of a process while it ran such jobs, in MiB.
      measured: whether such jobs were measured.
      bound: whether they are known to take longer, or nothing is known.
    """

    seconds: float
    peak_mib: float
    measured: bool
    bound: bool = False


@functools.cache
def _measured() -> dict[tuple[str, ...], tuple[float, float]]:
    rows = csv.DictReader(PATH.read_text(encoding="utf-8").splitlines())
    return {
        tuple(row[name] for name in COLUMNS[:4]): (float(row["seconds"]), float(row["peak_mib"]))
        for row in rows
    }


def estimate(job: Job) -> Estimate:
    """What a job's unit takes (`Job.unit`): by its table and method, else by its method in other
    tables of this size, of its suite if there are any. A paper's size that no table has measured
    takes longer than the small one, and what was never measured counts as a second."""
    suite, table, size, method = job.cell.suite, job.cell.table, job.cell.size, job.method
    known = _measured()
    if (suite, table, size, method) in known:
        return Estimate(*known[suite, table, size, method], True)
    alike = {key: value for key, value in known.items() if key[2:] == (size, method)}
    of_suite = {key: value for key, value in alike.items() if key[0] == suite}
    smaller = known.get((suite, table, "small", method))
    if alike:
        seconds, peak = map(statistics.fmean, zip(*(of_suite or alike).values(), strict=True))
        return Estimate(seconds, peak, False)
    return Estimate(*(smaller or (1.0, 0.0)), False, True)


def refreshed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table's lines from rows of a store: the mean of the seconds, and the least of the peaks.
    A process keeps programs of groups that ran before, which are none of a job's memory."""
    jobs: dict[tuple[str, ...], dict[str, tuple[float, float, str]]] = {}
    for row in rows:
        if row["value"] is None or "wall_s" not in row["detail"]:
            continue
        place = tuple(row[name] for name in COLUMNS[:4])
        one = str((row["dataset"], row["seed"], row["settings"]))
        spent = row["detail"]["wall_s"], row["detail"]["peak_mib"], row["device"]
        jobs.setdefault(place, {})[one] = spent
    return [
        {
            **dict(zip(COLUMNS[:4], place, strict=True)),
            "seconds": round(statistics.fmean(seconds for seconds, _, _ in spent.values()), 3),
            "peak_mib": round(min(peak for _, peak, _ in spent.values())),
            "device": next(iter(spent.values()))[2],
        }
        for place, spent in sorted(jobs.items())
    ]


def write(lines: Sequence[dict[str, Any]], path: Path = PATH) -> None:
    """Replace the table's lines of the tables that are measured anew; keep the others."""
    anew = {tuple(line[name] for name in COLUMNS[:4]) for line in lines}
    kept: list[dict[str, Any]] = []
    if path.is_file():
        old = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        kept = [row for row in old if tuple(row[name] for name in COLUMNS[:4]) not in anew]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        order = lambda row: [str(row[name]) for name in COLUMNS[:4]]  # noqa: E731
        writer.writerows(sorted([*kept, *lines], key=order))
