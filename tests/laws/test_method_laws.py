"""Laws of methods, generated from the tables of methods: no method is named here."""

import dataclasses
from pathlib import Path

import optax
import pytest

from benchmarks.harness.experiment import Method
from benchmarks.harness.jobs import Job
from benchmarks.measurements import attributes
from benchmarks.suites import SUITES, metrics_of
from jaxfl import LocalTraining, sgd
from tests.laws.cases import cases


@pytest.mark.parametrize("law", cases(attributes.EXPERIMENT))
def test_methods_obey(law):
    law()


def test_names_mean_one_thing():
    metrics_of(SUITES)  # raises where experiments differ
    for suite in SUITES.values():
        names = [table.name for table in suite.tables]
        assert len(set(names)) == len(names)


def test_every_method_has_a_row_somewhere():
    rows = {
        (table.experiment.name, name)
        for suite in SUITES.values()
        for table in suite.tables
        for name in table.methods
        if any(table.takes(cell, name) for cell in table.cells(suite.name, "small", None))
    }
    experiments = {t.experiment.name: t.experiment for s in SUITES.values() for t in s.tables}
    missing = {(e.name, m.name) for e in experiments.values() for m in e.methods} - rows
    assert not missing, f"add these to a table of a suite (benchmarks/suites): {sorted(missing)}"


def test_every_experiment_is_held_to_the_laws():
    text = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    for suite in SUITES.values():
        for table in suite.tables:
            room = table.experiment.run.__module__.split(".")[2]
            assert f"cases({room}.EXPERIMENT" in text, f"no test holds {room} to the laws"


def test_a_new_row_enters_a_table_of_a_suite_by_itself():
    tables = [table for suite in SUITES.values() for table in suite.tables]
    closed = {t.experiment.name for t in tables} - {
        t.experiment.name for t in tables if not t.listed
    }
    assert not closed, f"each table of {sorted(closed)} lists its methods by name"
    experiment = attributes.EXPERIMENT.with_methods(Method("new", "a guess"))
    (table,) = [t for t in tables if t.name == "attributes"]
    assert "new" in dataclasses.replace(table, experiment=experiment).methods


CELLS = [
    (suite.name, table.name, size)
    for suite in SUITES.values()
    for table in suite.tables
    for size in ("small", "paper")
]


@pytest.mark.parametrize("size", ["small", "paper"])
@pytest.mark.parametrize("suite", sorted({suite.name for suite in SUITES.values()}))
def test_no_two_jobs_of_a_suite_are_one(suite, size):
    """Rows are kept by the keys of jobs."""
    tables = SUITES[suite].tables
    jobs = [j for t in tables for j in SUITES[suite].jobs(t, size, tuple(t.methods), [0], None)]
    assert len({job.key for job in jobs}) == len(jobs)


def test_a_setting_that_says_where_a_row_stands_is_refused():
    settings = dataclasses.make_dataclass("Settings", [("table", str)], frozen=True)
    with pytest.raises(ValueError, match="a setting is called 'table'"):
        dataclasses.replace(attributes.EXPERIMENT, settings=settings)


@pytest.mark.parametrize(("suite", "table", "size"), CELLS, ids=lambda value: value)
def test_cells_are_of_their_experiment_and_refusals_are_kept(suite, table, size):
    cells = SUITES[suite].table(table).cells(suite, size, None)
    assert cells
    for name in SUITES[suite].table(table).methods:
        for cell in cells:
            reason = cell.experiment.method(name).refuses(cell.settings)
            if reason:
                with pytest.raises(ValueError, match="cannot run here"):
                    Job(cell, name, 0)
    named = {method for cell in cells for method, _ in cell.method_settings}
    assert named <= {method.name for method in cells[0].experiment.methods}


def test_a_row_says_the_settings_that_ran():
    """`gls` takes points on the path of plain SGD alone."""
    cell = SUITES["quick"].table("attributes").cells("quick", "small", None)[0]
    for optimizer, points in ((optax.sgd, 8), (sgd(momentum=0.9), 1)):
        training = LocalTraining(0.1, batch_size=8, optimizer=optimizer)
        settings = dataclasses.replace(cell.settings, training=training)
        job = Job(dataclasses.replace(cell, settings=settings, method_settings=()), "gls", 0)
        assert job.method_settings.points == job.settings["gls.points"] == points
        assert job.set_here.get("gls.points", 8) == points
