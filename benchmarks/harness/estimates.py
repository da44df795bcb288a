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

from benchmarks.harness.engines import MOST_MAPPINGS
from benchmarks.harness.jobs import Group, Job

COLUMNS = (
    *("suite", "table", "size", "method"),
    *("seconds", "added_mib", "kept_mib", "kept_mappings", "device"),
)
PATH = Path(str(resources.files("benchmarks.harness").joinpath("seconds.csv")))


class Memory(NamedTuple):
    """What a computation (`Job.computation`) needs and leaves.

    Attributes:
      added_mib: the most while it goes on, above what the process held before.
      kept_mib: what the process holds on to afterwards: programs, and what is freed too late.
      kept_mappings: of memory, likewise.
    """

    added_mib: float
    kept_mib: float
    kept_mappings: float


class Estimate(NamedTuple):
    """What a job is expected to take.

    Attributes:
      seconds: of one unit, its share of simulation and compilation included.
      memory: of its computation; None where none was measured.
      measured: whether such jobs were measured.
      bound: whether they are known to take longer, or nothing is known.
    """

    seconds: float
    memory: Memory | None
    measured: bool
    bound: bool = False


@functools.cache
def _measured() -> dict[tuple[str, ...], tuple[float, Memory | None]]:
    rows = csv.DictReader(PATH.read_text(encoding="utf-8").splitlines())
    return {
        tuple(row[name] for name in COLUMNS[:4]): (
            float(row["seconds"]),
            Memory(*(float(row[n]) for n in Memory._fields)) if row["added_mib"] else None,
        )
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
        seconds, memories = zip(*(of_suite or alike).values(), strict=True)
        return Estimate(statistics.fmean(seconds), _mean(memories), False)
    return Estimate(*(smaller or (1.0, None)), False, True)


def peaks(groups: Iterable[Group], resident: float) -> list[float | None]:
    """The memory of a process at its most in each group, MiB: of groups that run one after the
    other, and keep their programs until those hold too many mappings.

    Args:
      groups: in order.
      resident: MiB that the process holds before.

    Returns:
      A number per group; None where some computation of it was never measured.
    """
    most: list[float | None] = []
    held, mappings = resident, 0.0
    for group in groups:
        memories = {job.computation: estimate(job).memory for job in group.jobs}.values()
        peak = held
        for memory in memories:
            if memory is None:
                continue
            if mappings > MOST_MAPPINGS:
                held, mappings = resident, 0.0
            peak = max(peak, held + memory.added_mib)
            held, mappings = held + memory.kept_mib, mappings + memory.kept_mappings
        most.append(None if None in memories else peak)
    return most


def refreshed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table's lines from rows of a store: means over their jobs."""
    jobs: dict[tuple[str, ...], dict[str, tuple[float, Memory | None, str]]] = {}
    for row in rows:
        if row["value"] is None or "wall_s" not in row["detail"]:
            continue
        place = tuple(row[name] for name in COLUMNS[:4])
        one = str((row["dataset"], row["seed"], row["settings"]))
        detail = row["detail"]
        known = set(Memory._fields) <= set(detail)
        memory = Memory(*(detail[name] for name in Memory._fields)) if known else None
        spent = detail["wall_s"], memory, row["device"]
        jobs.setdefault(place, {})[one] = spent
    return [
        {
            **dict(zip(COLUMNS[:4], place, strict=True)),
            "seconds": round(statistics.fmean(seconds for seconds, _, _ in spent.values()), 3),
            **_rounded(_mean(memory for _, memory, _ in spent.values())),
            "device": next(iter(spent.values()))[2],
        }
        for place, spent in sorted(jobs.items())
    ]


def _mean(memories: Iterable[Memory | None]) -> Memory | None:
    known = [memory for memory in memories if memory is not None]
    return Memory(*map(statistics.fmean, zip(*known, strict=True))) if known else None


def _rounded(memory: Memory | None) -> dict[str, int]:
    return {} if memory is None else {k: round(v) for k, v in memory._asdict().items()}


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
