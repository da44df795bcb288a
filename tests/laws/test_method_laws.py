"""Laws of methods, generated from the tables of methods: no method is named here."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.harness.experiment import Method, no_run
from benchmarks.harness.jobs import Job
from benchmarks.harness.programs import reduced_products
from benchmarks.measurements import attributes, properties
from benchmarks.suites import SUITES, metrics_of
from tests.attacks.test_gibbs import observed
from tests.laws.attribute_methods import Trial, laws_of
from tests.laws.lowering import lowers

TRIALS = {}
CASES = [(m, law) for m in attributes.METHODS for law in laws_of(m)]


@pytest.mark.parametrize(
    ("method", "law"), CASES, ids=[f"{method.name}-{law}" for method, law in CASES]
)
def test_attribute_methods_obey(method, law):
    trial = TRIALS.setdefault(method.name, Trial.of(method))
    laws_of(method)[law](trial)


DECODERS = [m for m in properties.METHODS if m.run is not no_run]


@pytest.fixture(scope="module")
def sight():
    observations, positives = observed(seed=3)
    return properties.Sight(
        observations, jnp.ones(len(observations.rounds)), jnp.asarray([20, 60]), jax.random.key(0)
    ), np.asarray(positives)


@pytest.mark.slow
@pytest.mark.parametrize("method", DECODERS, ids=lambda method: method.name)
def test_decoders_of_sums_obey(method, sight):
    """Same key, same answer; as many scores as clients; what is not finite gives no score; it is
    lowered for accelerators."""
    view, positives = sight
    run = jax.jit(lambda s: method.run(s, method.settings))
    traced = run.trace(view)
    assert not reduced_products(traced.jaxpr)
    lowers(traced)
    scores = np.asarray(run(view))
    assert scores.shape == (2, len(positives))
    assert np.array_equal(scores, np.asarray(run(view)))
    broken = jax.tree.map(
        lambda a: jnp.full_like(a, jnp.nan) if jnp.issubdtype(a.dtype, jnp.inexact) else a,
        view.observations,
    )
    spoilt = properties.Sight(broken, view.weights, view.seen, view.key)
    assert not np.isfinite(np.asarray(run(spoilt))).any()


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
    named = {method for cell in cells for method, _ in cell.attacks}
    assert named <= {method.name for method in cells[0].experiment.methods}
