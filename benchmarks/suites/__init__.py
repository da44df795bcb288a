"""Suites: one file per paper, its tables as grids. `SUITES[name]` lists a suite's tables
in order."""

from collections.abc import Mapping

from benchmarks.harness.experiment import Metric
from benchmarks.harness.jobs import Suite
from benchmarks.suites import (
    canaries,
    driouich2022,
    driouich2023,
    frontier,
    kerkouche2023,
    lyu2021,
    numbers,
    quick,
    records,
    song2020,
    sums,
)
from benchmarks.suites.grids import strays

_PAPERS = (quick, lyu2021, driouich2022, driouich2023, kerkouche2023, song2020)
_BEYOND = (frontier, records, canaries, sums, numbers)
SUITES: dict[str, Suite] = {paper.SUITE.name: paper.SUITE for paper in (*_PAPERS, *_BEYOND)}


def metrics_of(suites: Mapping[str, Suite]) -> dict[str, Metric]:
    """All metrics by name.

    Raises:
      ValueError: if experiments mean different things by one name.
    """
    metrics: dict[str, Metric] = {}
    for experiment in (table.experiment for suite in suites.values() for table in suite.tables):
        for metric in experiment.metrics:
            known = metrics.setdefault(metric.name, metric)
            if known.proportion != metric.proportion:
                raise ValueError(f"metric={metric.name!r} is a proportion in one experiment alone")
    return metrics


METRICS = metrics_of(SUITES)
for _suite in SUITES.values():
    for _row in strays(_suite):
        raise ValueError(f"{_suite.name}_published.csv names what does not exist: {_row}")
