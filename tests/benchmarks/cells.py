"""Cells of suites, made small enough to run in seconds."""

import dataclasses

from benchmarks.harness.jobs import Job
from benchmarks.harness.settings import replace
from benchmarks.suites import SUITES


def cell_of(name, changes=None, method_settings=None, dataset=None, size="small"):
    """The first cell of a table ("song2020/table3"), or the first of a data set, with other
    settings: flat names to values; method_settings: method to flat names to values."""
    suite, _, table = name.partition("/")
    cells = SUITES[suite].table(table).cells(suite, size, None)
    cell = next(c for c in cells if dataset in (None, c.dataset))
    given = dict(cell.method_settings)
    for method, changed in (method_settings or {}).items():
        base = given.get(method, cell.experiment.method(method).settings)
        given[method] = replace(base, changed)
    return dataclasses.replace(
        cell,
        settings=replace(cell.settings, changes or {}),
        method_settings=tuple(sorted(given.items())),
    )


def outcomes_of(jobs, data_dir=None):
    """All outcomes of jobs of one group."""
    return [o for some in jobs[0].cell.experiment.run(jobs, data_dir) for o in some]


def all_methods(cell, names=None):
    """A job for each method that takes a cell."""
    methods = [m for m in cell.experiment.methods if not m.refuses(cell.settings)]
    return [Job(cell, m.name, 0) for m in methods if names is None or m.name in names]
