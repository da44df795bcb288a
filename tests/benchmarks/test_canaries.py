"""Measured epsilons as rows, and the laws of their methods."""

import pytest

from benchmarks.harness.jobs import Job
from benchmarks.measurements import canaries
from tests.benchmarks.cells import cell_of, outcomes_of
from tests.laws.cases import cases

CELL = cell_of("canaries/full", {"records": 40, "rounds": 4, "epsilon": 10.0})


@pytest.mark.slow
@pytest.mark.parametrize("law", cases(canaries.EXPERIMENT))
def test_methods_obey(law):
    law()


@pytest.mark.slow
def test_messages_show_most_of_what_full_batches_promise():
    jobs = [Job(CELL, method, 0) for method in ("promised", "canaries")]
    rows = {(o.job.method, o.metric): o.value for o in outcomes_of(jobs)}
    assert rows["promised", "epsilon"] == 10
    assert 7 < rows["canaries", "epsilon_bound"] < 10
    assert rows["canaries", "epsilon_bound"] < rows["canaries", "epsilon"]
