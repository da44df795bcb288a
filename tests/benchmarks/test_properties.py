"""The suite of Kerkouche 2023, end to end on made-up images, and its published curves."""

import dataclasses
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.harness.jobs import Job
from benchmarks.measurements import properties
from benchmarks.scenarios import sums
from benchmarks.suites import SUITES
from benchmarks.suites.grids import published_rows
from benchmarks.suites.specimens import specimen_of
from jaxfl import mlp
from jaxfl.datasets import Dataset
from tests.benchmarks.cells import cell_of, outcomes_of
from tests.laws.cases import cases

# At a learning rate of .05 inverting clients make training diverge, for detectors of every round
# too.
TINY = {
    "clients": 10,
    "positives": 2,
    "clients_per_round": 4,
    "rounds": 30,
    "records": 5,
    "training.batch_size": 5,
    "training.learning_rate": 0.02,
    "auxiliary": 200,
    "detectors.pairs": 20,
    "detectors.kind.gradients": 100,
    "detectors.every": 2,
    "property": "inversion",
    "factor": -1.0,
}


@pytest.fixture
def images(monkeypatch):
    """Ten classes, each a picture of its own with noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 500)
    x = rng.random((10, 28, 28, 1))[y] + 0.3 * rng.normal(size=(500, 28, 28, 1))
    data = Dataset("images", x.astype(np.float32), y.astype(np.int32), (), 10)
    monkeypatch.setattr(sums, "records_of", lambda name, data_dir: data)
    monkeypatch.setattr(sums, "TEST_RECORDS", 100)
    monkeypatch.setattr(
        sums, "model_of", lambda data, settings: mlp(784, (16,), 10)
    )  # compiles faster


def cells(*seen, **changes):
    return [cell_of("kerkouche2023/fig4", TINY | changes | {"seen": t}) for t in seen]


@pytest.mark.very_slow
def test_every_method_answers_for_every_number_of_rounds(images):
    names = [method.name for method in properties.EXPERIMENT.methods]
    methods = [m for m in names if not m.startswith("prolin")]  # which takes long to compile
    jobs = [Job(cell, method, 0) for method in methods for cell in cells(10, 30)]
    jobs += [Job(cell, "gibbs", 0) for cell in cells("mean")]
    outcomes = outcomes_of(jobs)
    found = {(o.job.method, o.job.cell.settings.seen, o.metric): o.value for o in outcomes}
    assert {(m, t) for m in methods[:-1] for t in (10, 30)} <= {
        key[:2] for key in found if key[2] == "f1"
    }
    assert found["gibbs", 30, "auc"] >= 0.9
    assert found["oracle", 30, "f1"] == max(found[m, 30, "f1"] for m in ("gibbs", "box"))
    assert all(o.selection == ("oracle" if o.job.method == "oracle" else "none") for o in outcomes)
    assert found["detector", 30, "separation"] > 1
    assert 0 <= found["detector", 30, "overlap"] <= 1
    assert found["gibbs", "mean", "auc"] >= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("law", cases(properties.EXPERIMENT))
def test_methods_obey(law):
    law()


def test_positive_clients_share_the_record_and_nobody_else_has_it(images):
    (cell,) = cells(10, property="membership")
    data = sums.records_of("images", None)
    for seed in range(3):
        member = sums.draw(data, cell.settings, seed)
        assert int(member.positives.sum()) == 2
        held = (np.asarray(member.x) == np.asarray(member.prop.target[0])).all((2, 3, 4))
        assert held.sum(1).tolist() == np.asarray(member.positives).astype(int).tolist()
        first, others = (
            np.asarray(member.x),
            [np.asarray(member.x_auxiliary), np.asarray(member.x_test)],
        )
        means = [set(a.reshape(-1, 784).mean(1).tolist()) for a in (first, *others)]
        assert not means[0] & means[1]
        assert not means[0] & means[2]
        assert not means[1] & means[2]


@pytest.mark.slow
def test_scores_that_are_not_finite_are_failures():
    cell = specimen_of(properties.EXPERIMENT, "ols")

    def run(view, settings):
        return jnp.full((len(view.seen), cell.settings.clients), jnp.nan)

    broken = dataclasses.replace(cell.experiment.method("ols"), run=run)
    experiment = dataclasses.replace(cell.experiment, methods=(broken,))
    outcomes = outcomes_of([Job(dataclasses.replace(cell, experiment=experiment), "ols", 0)])
    assert {o.metric for o in outcomes} == {"f1", "accuracy", "auc", "average_precision"}
    assert all(o.value is None and o.status == "diverged" for o in outcomes)


def test_too_few_records_are_named(images):
    (cell,) = cells(10, auxiliary=1000)
    with pytest.raises(ValueError, match="auxiliary=1000 exceed images"):
        outcomes_of([Job(cell, "box", 0)])


def test_every_published_value_belongs_to_a_cell():
    used, suite = set(), SUITES["kerkouche2023"]
    for table in suite.tables:
        for cell in table.cells("kerkouche2023", "paper", None):
            settings = cell.settings
            for method in table.methods:
                value = suite.published(cell, method, "f1")
                if settings.seen != "mean" and value is not None:
                    used.add((settings.property, settings.panel, method, settings.seen))
    assert len(used) == len(published_rows("kerkouche2023"))
    mean = suite.tables[0].cells("kerkouche2023", "paper", None)[0]
    assert mean.settings.seen == "mean"
    assert suite.published(mean, "prolin", "f1") == pytest.approx(0.955, abs=0.001)


TWO_DEVICES = """
import jax, jax.numpy as jnp
from benchmarks.harness.engines import run_members
from benchmarks.measurements.properties import EXPERIMENT
from benchmarks.measurements.properties.work import Decode
from tests.attacks.test_gibbs import observed
pairs = [observed(seed=seed)[0] for seed in range(2)]
observations = jax.tree.map(lambda *a: jnp.stack(a), *pairs)
inputs = observations, jnp.ones((2, 60)), jax.random.split(jax.random.key(0), 2)
assert jax.local_device_count() == 2
# Those without singular values, of which see `work.decoded`.
for method in ("box", "gibbs", "ridge"):
    how = EXPERIMENT.method(method)
    print(method, run_members(Decode(how, how.settings, (20, 60)), inputs).results.shape)
"""


@pytest.mark.very_slow
def test_decoders_of_two_seeds_run_on_two_devices_at_once():
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.count("(2, 2, 20)") == 3, done.stderr
