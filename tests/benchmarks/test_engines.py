"""Groups of jobs: what is compiled once, what members share, and what runs side by side."""

import dataclasses
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.harness import engines
from benchmarks.harness.engines import run_members
from benchmarks.harness.jobs import Job, group
from benchmarks.harness.runner import run_safely
from benchmarks.harness.settings import replace
from benchmarks.harness.trees import take
from benchmarks.suites import SUITES
from tests.benchmarks.cells import cell_of, outcomes_of


@pytest.mark.very_slow
def test_eight_learning_rates_and_five_seeds_are_one_compilation():
    suite = SUITES["quick"]
    table = suite.table("learning_rate")
    groups = group(suite.jobs(table, "small", ("cos",), range(5), None))
    assert len(groups) == 1
    assert len(groups[0].jobs) == 40
    jobs = [Job(_short(job.cell), job.method, job.seed) for job in groups[0].jobs]
    engines._compile.cache_clear()
    outcomes = outcomes_of(jobs)
    assert len(outcomes) == 40
    assert engines._compile.cache_info().misses == 2  # the victims' training, and the attack
    rates = {
        o.job.settings["training.learning_rate"]: o.train_accuracy
        for o in outcomes
        if o.job.seed == 0
    }
    assert len(rates) == 8
    assert len(set(rates.values())) > 3


def _short(cell):
    given = dict(cell.method_settings)
    given["cos"] = replace(given["cos"], {"steps": 5})
    shorter = replace(cell.settings, {"rounds": 12})
    return dataclasses.replace(cell, settings=shorter, method_settings=tuple(sorted(given.items())))


SHORT = {"records": 20, "attribute": 0, "rounds": 6, "phases": ("pre2",)}


def breast_cancer(steps, **changed):
    """A cell of a few records and rounds."""
    changes = SHORT | {name.replace("__", "."): value for name, value in changed.items()}
    attacks = {"cos": {"steps": steps}}
    return cell_of("quick/attributes", changes, attacks, "breast_cancer")


@pytest.mark.very_slow
def test_members_of_a_group_do_not_depend_on_each_other():
    cell, other = breast_cancer(20), breast_cancer(20, attribute=5)
    together = outcomes_of([Job(c, "cos", s) for c in (cell, other) for s in (0, 1, 2)])
    alone = outcomes_of([Job(other, "cos", 1)])
    match = next(o for o in together if o.job == alone[0].job)
    assert match.value == alone[0].value
    assert match.detail["objective"] == pytest.approx(alone[0].detail["objective"], abs=1e-6)


TWO_DEVICES = """
import threading, types
import jax, numpy as np
from benchmarks.harness.engines import _side_by_side, local, once, run_members
assert jax.local_device_count() == 2
print(run_members(abs, np.arange(-5.0, 0, dtype=np.float32)).results.tolist())

def group(name, batched, alone=False):
    experiment = types.SimpleNamespace(batched=batched, alone=alone)
    return types.SimpleNamespace(name=name, experiment=experiment)

both = threading.Barrier(2, timeout=60)
asked = []

@once
def slow(name):
    asked.append(name)
    return name

def run(group):
    if group.name != "alone":
        both.wait()  # no group goes on without another
    slow("shared")
    members = run_members(abs, np.arange(-3.0, 0, dtype=np.float32)).results
    assert members.tolist() == [3.0, 2.0, 1.0]
    yield {d.id for d in (jax.numpy.ones(2) + 1).devices()} | {d.id for d in members.devices()}

few = [group("one", False), group("other", False)]
found = sorted((g.name, devices) for g, devices in _side_by_side(run, few))
assert found in ([("one", {0}), ("other", {1})], [("one", {1}), ("other", {0})]), found
found = list(_side_by_side(run, [group(str(i), False) for i in range(4)]))
assert sorted(g.name for g, _ in found) == list("0123"), found
assert {tuple(devices) for _, devices in found} == {(0,), (1,)}, found
assert asked == ["shared"]

def broken(group):
    yield from run(group)
    raise KeyError(group.name)

try:
    list(_side_by_side(broken, few))
except KeyError as error:
    print(error.args[0] in ("one", "other"))

def alone(group):
    yield group.name

mixed = [group("seed", False), group("batch", True), group("timed", False, alone=True)]
# On CPU as they come.
assert [found for _, found in local(alone, mixed)] == ["seed", "batch", "timed"]
jax.default_backend = lambda: "gpu"
assert [found for _, found in local(alone, mixed)] == ["batch", "timed", "seed"]
"""


def test_members_are_shared_by_devices_and_other_groups_run_side_by_side():
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split("\n") == ["[5.0, 4.0, 3.0, 2.0, 1.0]", "True", ""], done.stderr


@pytest.mark.very_slow
def test_cells_of_two_tables_that_differ_only_in_phases_are_measured_once():
    jobs, suite = [], SUITES["lyu2021"]
    for name in ("table7", "table8"):
        listed = suite.jobs(suite.table(name), "small", ("closed_form",), (0,), None)
        alike = (job for job in listed if job.cell.dataset == "purchase_like")
        jobs += [job for job in alike if job.cell.settings.records == 50]
    groups = group(jobs)
    assert len(groups) == 1
    assert len(jobs) == 12
    short = [
        Job(_short(job.cell), job.method, job.seed)
        for job in groups[0].jobs
        if "gap10" not in job.cell.settings.phases
    ]
    outcomes = outcomes_of(short)
    assert [o.job for o in outcomes] == short
    by_phase = {}
    for o in outcomes:
        by_phase.setdefault((o.job.cell.settings.attribute, o.detail["rounds_used"]), set()).add(
            (o.value, o.detail["objective"])
        )
    assert all(len(values) == 1 for values in by_phase.values())
    assert len(by_phase) == 8


@pytest.mark.slow
def test_rows_are_the_same_with_64_bit_types_on():
    cell = breast_cancer(20)
    jobs = [Job(cell, method, 0) for method in ("majority", "cos", "closed_form")]
    (group_of_jobs,) = group(jobs)
    rows = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            outcomes = [o for some in run_safely(group_of_jobs, None) for o in some]
            rows.append([(o.job, o.metric, o.value, o.status) for o in outcomes])
    assert rows[0] == rows[1]
    assert {status for *_, status in rows[0]} == {"ok"}


@pytest.mark.very_slow
def test_unused_settings_do_not_compile_again():
    others = ({}, {"training__batch_size": 5}, {"participants": 2})
    cells = [breast_cancer(5, **other) for other in others]
    engines._compile.cache_clear()
    for cell in cells:
        outcomes_of([Job(cell, "cos", 0)])
    assert engines._compile.cache_info().misses == 4  # three trainings, one attack


SHOWS_MAPPINGS = pytest.mark.skipif(
    not os.path.exists("/proc/self/maps") or jax.default_backend() != "cpu",
    reason="memory mappings as Linux shows them, which programs for a CPU hold",
)


@SHOWS_MAPPINGS
def test_programs_are_dropped_where_they_hold_too_many_mappings(monkeypatch):
    members = jnp.arange(4.0)
    engines._compile.cache_clear()
    first = engines.run_members(jnp.sin, members)
    assert engines.run_members(jnp.sin, members).compile_s < first.compile_s
    assert engines._compile.cache_info().currsize == 1
    monkeypatch.setattr(engines, "MOST_MAPPINGS", 0)
    for function in (jnp.cos, jnp.tan, jnp.sin):
        again = engines.run_members(function, members)
        assert engines._compile.cache_info().currsize == 1  # only the one that was needed
    assert np.array_equal(again.results, first.results)


@pytest.mark.slow
@SHOWS_MAPPINGS
def test_programs_compiled_outside_members_are_dropped_between_outcomes(monkeypatch):
    monkeypatch.setattr(engines, "MOST_MAPPINGS", 0)
    program = jax.jit(lambda x: x + 1)
    held = []

    def run(name):
        for _ in range(3):
            held.append(program._cache_size())
            program(0.0)
            yield name

    group = types.SimpleNamespace(experiment=types.SimpleNamespace(alone=False, batched=True))
    assert len(list(engines.local(run, [group, group]))) == 6
    assert held == [0] * 6


def test_an_entry_point_has_a_device_a_core_and_its_compilers_flags():
    """Which hold where nothing that they import has started JAX."""
    code = (
        "import os, benchmarks.sweep, benchmarks.audit, benchmarks.throughput, jax\n"
        "from benchmarks.harness.devices import SOON, UNTRIED, prepare_devices\n"
        "prepare_devices()\n"
        "late = SOON in os.environ['XLA_FLAGS']\n"
        "prepare_devices(soon=True)\n"
        "flags = os.environ['XLA_FLAGS']\n"
        "print(len(jax.devices()), os.cpu_count(), UNTRIED in flags, late, SOON in flags)"
    )
    environment = {name: v for name, v in os.environ.items() if "JAX" not in name}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    devices, cores, *flags = done.stdout.split()
    assert devices == cores, done.stderr
    assert flags == ["True", "False", "True"]


def test_results_of_64_bits_come_back_in_32():
    """Named float64, with a memory of float32, they would stop the next program."""

    def wide(x):
        return {"half": x / 2, "unknown": jnp.asarray(jnp.nan), "count": jnp.asarray(3)}

    done = run_members(wide, jnp.arange(4.0)[:, None], x64=True).results
    assert {name: str(a.dtype) for name, a in done.items()} == {
        "half": "float32",
        "unknown": "float32",
        "count": "int32",
    }
    first = jax.block_until_ready(take(done, 1))
    assert first["half"].tolist() == [0.5]
    assert np.isnan(first["unknown"])
