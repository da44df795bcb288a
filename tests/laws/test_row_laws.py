"""Laws of rows, for every method of an experiment: no method is named here."""

import dataclasses

import pytest

from benchmarks.harness.jobs import Job
from tests.benchmarks.cells import all_methods, cell_of, outcomes_of

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
RECORDS = {"attack.orders": 4, "attack.passes": 1}
ATTACKS = {
    "pseudo_records": {"records": 4, "steps": 5, "finish": 5},
    "cos": {"attack.steps": 5},
    "network": {"fit_steps": 5, "search_steps": 5},
    "network_literal": {"fit_steps": 5, "search_steps": 5},
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


def values(jobs):
    return {(o.job.method, o.metric, o.selection): (o.value, o.status) for o in outcomes_of(jobs)}


@pytest.mark.parametrize(
    "cell",
    list(specimens()),
    ids=lambda cell: f"{cell.suite}-{cell.experiment.name}-{cell.dataset}",
)
def test_a_row_depends_on_its_seed_and_not_on_who_runs_beside_it(cell):
    jobs = all_methods(cell)
    together = values(jobs)
    assert {method for method, _, _ in together} == {job.method for job in jobs}
    alone = values(jobs[::-1][: len(jobs) // 2 or 1])
    assert alone == {place: together[place] for place in alone}
    again = values([Job(cell, jobs[-1].method, 0)])
    assert again == {place: together[place] for place in again}
