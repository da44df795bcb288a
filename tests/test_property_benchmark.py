"""The suite of Kerkouche 2023, end to end on made-up images, and its published curves."""

import dataclasses
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import property_experiment, report
from benchmarks.jobs import Job
from benchmarks.suites import kerkouche2023
from benchmarks.suites.grids import published_rows
from jaxfl import mlp
from jaxfl.datasets import Dataset

# At a learning rate of .05 inverting clients make training diverge, for detectors of every round
# too.
TINY = {
    "clients": 10,
    "positives": 2,
    "per_round": 4,
    "rounds": 30,
    "records": 5,
    "batch_size": 5,
    "learning_rate": 0.02,
}
TINY |= {
    "auxiliary": 200,
    "pairs": 20,
    "gradients": 100,
    "property": "inversion",
    "factor": -1.0,
    "every": 2,
}


@pytest.fixture
def images(monkeypatch):
    """Ten classes, each a picture of its own with noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 500)
    x = rng.random((10, 28, 28, 1))[y] + 0.3 * rng.normal(size=(500, 28, 28, 1))
    data = Dataset("images", x.astype(np.float32), y.astype(np.int32), (), 10)
    monkeypatch.setattr(property_experiment, "_load", lambda name, data_dir: data)
    monkeypatch.setattr(property_experiment, "TEST_RECORDS", 100)
    monkeypatch.setattr(
        property_experiment, "lenet", lambda name: mlp(784, (16,), 10)
    )  # compiles in less time


def cells(*seen):
    cell = kerkouche2023.TABLES[1].cells("small", None)[0]
    return [
        dataclasses.replace(
            cell, settings=tuple(sorted((dict(cell.settings) | TINY | {"seen": t}).items()))
        )
        for t in seen
    ]


def test_every_method_answers_for_every_number_of_rounds(images):
    methods = [
        m for m in property_experiment.METHODS if not m.startswith("prolin")
    ]  # which takes long to compile
    jobs = [Job(cell, method, 0) for method in methods for cell in cells(10, 30)]
    jobs += [Job(cell, "gibbs", 0) for cell in cells("mean")]
    outcomes = [o for some in property_experiment.run(jobs, None) for o in some]
    found = {(o.job.method, o.job.cell["seen"], o.metric): o.value for o in outcomes}
    assert {(m, t) for m in methods[:-1] for t in (10, 30)} <= {
        key[:2] for key in found if key[2] == "f1"
    }
    assert found["gibbs", 30, "auc"] >= 0.9
    assert found["oracle", 30, "f1"] == max(found[m, 30, "f1"] for m in property_experiment.OURS)
    assert all(o.selection == ("oracle" if o.job.method == "oracle" else "none") for o in outcomes)
    assert found["detector", 30, "separation"] > 1
    assert 0 <= found["detector", 30, "overlap"] <= 1
    assert found["gibbs", "mean", "auc"] >= 0.5
    assert all(
        set(o.detail) <= set(report.DERIVED) for o in outcomes
    )  # else a report would take them for settings


def test_positive_clients_share_the_record_and_nobody_else_has_it(images):
    cell = cells(10)[0]
    cell = dataclasses.replace(
        cell, settings=tuple(sorted((dict(cell.settings) | {"property": "membership"}).items()))
    )
    data = property_experiment._load("images", None)
    for seed in range(3):
        member = property_experiment.draw(data, cell, seed)
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


def test_scores_that_are_not_finite_are_failures(images, monkeypatch):
    monkeypatch.setattr(
        property_experiment, "least_squares", lambda o, t: jnp.full((len(t), 10), jnp.nan)
    )
    outcomes = [
        o for some in property_experiment.run([Job(cells(10)[0], "ols", 0)], None) for o in some
    ]
    assert {o.metric for o in outcomes} == {"f1", "auc", "average_precision"}
    assert all(o.value is None and o.status == "diverged" for o in outcomes)


def test_too_few_records_are_named(images):
    cell = cells(10)[0]
    cell = dataclasses.replace(
        cell, settings=tuple(sorted((dict(cell.settings) | {"auxiliary": 1000}).items()))
    )
    with pytest.raises(ValueError, match="auxiliary=1000 exceed images"):
        list(property_experiment.run([Job(cell, "box", 0)], None))


def test_every_published_value_belongs_to_a_cell():
    used = set()
    for table in kerkouche2023.TABLES:
        for cell in table.cells("paper", None):
            for method in table.methods:
                if (
                    cell["seen"] != "mean"
                    and kerkouche2023.published(cell, method, "f1") is not None
                ):
                    used.add((cell["property"], cell["panel"], method, cell["seen"]))
    assert len(used) == len(published_rows("kerkouche2023"))
    mean = next(
        cell for cell in kerkouche2023.TABLES[0].cells("paper", None) if cell["seen"] == "mean"
    )
    assert kerkouche2023.published(mean, "prolin", "f1") == pytest.approx(0.955, abs=0.001)


TWO_DEVICES = """
import jax, jax.numpy as jnp
from benchmarks.engines import run_members
from benchmarks.property_experiment import Decode
from tests.test_property_inference import observed
pairs = [observed(seed=seed)[0] for seed in range(2)]
inputs = jax.tree.map(lambda *a: jnp.stack(a), *pairs), jnp.ones((2, 60)), jax.random.split(jax.random.key(0), 2)
assert jax.local_device_count() == 2
for method in ("box", "gibbs", "ridge"):  # those without singular values, of which see `property_experiment.run`
    print(method, run_members(Decode(method, (20, 60)), inputs).results.shape)
"""


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
