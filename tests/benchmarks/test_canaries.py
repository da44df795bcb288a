"""Measured epsilons as rows, and the laws of their methods."""

import pytest

from benchmarks.harness.jobs import Job
from benchmarks.measurements import canaries
from benchmarks.scenarios.victims import private_training
from jaxfl import LocalTraining
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


def test_no_epsilon_is_promised_of_batches_that_are_not_drawn():
    """A record of theirs is in one known step of every pass."""
    training = LocalTraining(0.1, batch_size=8, shuffle=False)
    with pytest.raises(ValueError, match=r"training\.shuffle=False: private training"):
        private_training(training, 1.0, 40, 5)
    assert private_training(training, float("inf"), 40, 5) == training
