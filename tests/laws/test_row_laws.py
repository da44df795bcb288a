"""Laws of rows, for every method of an experiment: no method is named here."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from benchmarks.harness import engines
from benchmarks.harness.jobs import group
from benchmarks.harness.runner import run_safely
from benchmarks.measurements import generator_judges, generators, linkability
from benchmarks.scenarios import anonymous, federations, sums, victims
from jaxfl import simulate
from tests.benchmarks.cells import (
    TINY_GAME,
    TINY_LINKS,
    all_methods,
    cell_of,
    outcomes_of,
    pictures,
)

SHORT = {"attribute": 0, "records": 20, "rounds": 6, "phases": ("pre2",)}
FEW = {"steps": 5}
FEDERATION = {
    "hidden": (8,),
    "clients": 3,
    "records": 30,
    "training.batch_size": 15,
    "rounds": 12,
    "every": 1,
    "attacked": 2,
    "optimum_steps": 10,
    "zest_masks": 220,
    "zest_records": 2,
    "targets": 0,
}
LINEAR = {"records": 40, "clients": 3, "rounds": 40, "grid": ("30:10", "30:5")}
RECORDS = {"attack.orders": 4, "attack.passes": 1}
ATTACKS = {
    "pseudo_records": {"records": 4, "steps": 5, "finish": 5},
    "cos": {"attack.steps": 5},
    "network": {"fit_steps": 5, "search_steps": 5},
    "network_literal": {"fit_steps": 5, "search_steps": (5,)},
    "gls": RECORDS,
    "records": RECORDS,
}


def specimens():
    """A small cell of each experiment that runs on data of its own."""
    fewer = {"cos": FEW, "cos_unrolled": FEW, "l2_lbfgs": {"evaluations": 10}, "gls": {"orders": 8}}
    batches = SHORT | {"training.batch_size": 5}
    yield cell_of("quick/minibatch", batches, fewer)
    yield cell_of("quick/attributes", SHORT, fewer, "breast_cancer")
    stranger = cell_of("lyu2021/table11", SHORT | {"training.batch_size": None}, {"mixture": FEW})
    yield dataclasses.replace(stranger, dataset="breast_cancer")
    yield cell_of("driouich2023/table1", FEDERATION, ATTACKS, "leaf_milder")
    yield cell_of("lyu2021/table1")
    linear = cell_of("driouich2022/table1", LINEAR, {"cos": FEW, "l2_lbfgs": {"evaluations": 10}})
    yield dataclasses.replace(linear, dataset="leaf_milder")
    yield cell_of("song2020/table3", TINY_LINKS)
    yield cell_of("song2020/table4", TINY_GAME)


CELLS = pytest.mark.parametrize(
    "cell",
    list(specimens()),
    ids=lambda cell: f"{cell.suite}-{cell.experiment.name}-{cell.dataset}",
)


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    """Made-up pictures, and few of what is drawn from them."""
    for module, side in ((anonymous, 14), (generators, 28)):
        images = pictures(side)
        monkeypatch.setattr(module, "pictures", lambda name, data_dir, side, images=images: images)
    monkeypatch.setattr(linkability, "REFERENCES", 40)
    monkeypatch.setattr(linkability, "PAIRS", 50)
    monkeypatch.setattr(generator_judges, "STEPS", 10)
    monkeypatch.setattr(generators, "SAMPLES", 24)


@functools.wraps(simulate)
def spoilt(*arguments, **options):
    """A simulation whose recorded messages are not finite."""
    run = simulate(*arguments, **options)
    broken = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), (run.returned, run.sums))
    return dataclasses.replace(run, returned=broken[0], sums=broken[1])


def values(jobs):
    return {(o.job.method, o.metric, o.selection): (o.value, o.status) for o in outcomes_of(jobs)}


@CELLS
def test_a_row_depends_on_its_seed_and_not_on_who_runs_beside_it(cell):
    """The same seed gives the same row, and another compiles nothing."""
    jobs = all_methods(cell)
    together = values(jobs)
    assert {method for method, _, _ in together} == {job.method for job in jobs}
    alone = values(jobs[::-1][: len(jobs) // 2 or 1])
    assert alone == {place: together[place] for place in alone}
    programs = engines._compile.cache_info().misses
    another = values([dataclasses.replace(job, seed=1) for job in jobs])
    assert set(another) == set(together)
    assert engines._compile.cache_info().misses == programs, "another seed compiled again"


@CELLS
def test_messages_that_are_not_finite_give_no_score(cell, monkeypatch):
    """But for methods that look at none."""
    for module in (anonymous, federations, sums, victims, generators):
        monkeypatch.setattr(module, "simulate", spoilt)
    engines._compile.cache_clear()
    (together,) = group(all_methods(cell))
    outcomes = [o for some in run_safely(together, None) for o in some]
    engines._compile.cache_clear()
    scored = {(o.job.method, o.metric) for o in outcomes if o.status == "ok"}
    blind = {job.method for job in all_methods(cell) if not job.how.observes}
    assert {method for method, _ in scored} == blind, scored
