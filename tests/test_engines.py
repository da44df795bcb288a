"""Groups of jobs: what is compiled once, what members share, and what runs side by side."""

import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import attribute_experiment, engines
from benchmarks.jobs import Cell, Job, expand, group
from benchmarks.suites import SUITES
from benchmarks.suites.lyu2021 import settings


def test_eight_learning_rates_and_five_seeds_are_one_compilation():
    table = next(t for t in SUITES["quick"] if t.name == "learning_rate")
    groups = group(
        (table, job) for job in expand("quick", table, "small", ("cos",), range(5), None)
    )
    assert len(groups) == 1
    assert len(groups[0].jobs) == 40
    jobs = [Job(_short(job.cell), job.method, job.seed) for job in groups[0].jobs]
    engines._compile.cache_clear()
    outcomes = [o for batch in table.run(jobs, None) for o in batch]
    assert len(outcomes) == 40
    assert engines._compile.cache_info().misses == 2  # the victims' training, and the attack
    rates = {o.job.cell["learning_rate"]: o.train_accuracy for o in outcomes if o.job.seed == 0}
    assert len(rates) == 8
    assert len(set(rates.values())) > 3


def _short(cell):
    shorter = dict(cell.settings) | {"rounds": 12, "steps": 5}
    return Cell(cell.suite, cell.table, cell.size, cell.dataset, tuple(sorted(shorter.items())))


def test_members_of_a_group_do_not_depend_on_each_other():
    cell = Cell(
        "quick",
        "t",
        "small",
        "breast_cancer",
        settings(records=20, attribute=0, rounds=6, phases="pre2", steps=20),
    )
    other = Cell(
        "quick",
        "t",
        "small",
        "breast_cancer",
        settings(records=20, attribute=5, rounds=6, phases="pre2", steps=20),
    )
    together = next(
        iter(
            attribute_experiment.run(
                [Job(c, "cos", s) for c in (cell, other) for s in (0, 1, 2)], None
            )
        )
    )
    alone = next(iter(attribute_experiment.run([Job(other, "cos", 1)], None)))
    match = next(o for o in together if o.job == alone[0].job)
    assert match.value == alone[0].value
    assert match.detail["objective"] == pytest.approx(alone[0].detail["objective"], abs=1e-6)


TWO_DEVICES = """
import threading, types
import jax, numpy as np
from benchmarks.engines import _side_by_side, local, once, run_members
assert jax.local_device_count() == 2
print(run_members(abs, np.arange(-5.0, 0, dtype=np.float32)).results.tolist())

def group(name, batched, alone=False):
    return types.SimpleNamespace(name=name, batched=batched, alone=alone)

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
assert [found for _, found in local(alone, mixed)] == ["seed", "batch", "timed"]  # on CPU as they come
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


def test_cells_of_two_tables_that_differ_only_in_phases_are_measured_once():
    jobs = []
    for table in (t for t in SUITES["lyu2021"] if t.name in ("table7", "table8")):
        found = expand("lyu2021", table, "small", ("closed_form",), (0,), None)
        jobs += [
            (table, job)
            for job in found
            if job.cell["records"] == 50 and job.cell.dataset == "purchase_like"
        ]
    groups = group(jobs)
    assert len(groups) == 1
    assert len(jobs) == 12
    short = [
        Job(_short(job.cell), job.method, job.seed)
        for job in groups[0].jobs
        if "gap10" not in job.cell["phases"]
    ]
    outcomes = [o for batch in groups[0].tables[0].run(short, None) for o in batch]
    assert [o.job for o in outcomes] == short
    by_phase = {}
    for o in outcomes:
        by_phase.setdefault((o.job.cell["attribute"], o.detail["rounds_used"]), set()).add(
            (o.value, o.detail["objective"])
        )
    assert all(len(values) == 1 for values in by_phase.values())
    assert len(by_phase) == 8


def test_unused_settings_do_not_compile_again():
    cells = [
        Cell(
            "s",
            name,
            "small",
            "breast_cancer",
            settings(records=20, attribute=0, rounds=6, phases="pre2", steps=5, **other),
        )
        for name, other in (("a", {}), ("b", {"batch_size": 5}), ("c", {"participants": 2}))
    ]
    engines._compile.cache_clear()
    for cell in cells:
        list(attribute_experiment.run([Job(cell, "cos", 0)], None))
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

    group = types.SimpleNamespace(alone=False, batched=True)
    assert len(list(engines.local(run, [group, group]))) == 6
    assert held == [0] * 6
