"""Numbers as rows, and the laws of their methods."""

import dataclasses

import pytest

from benchmarks.harness.jobs import Job
from benchmarks.measurements import numbers
from tests.benchmarks.cells import cell_of, outcomes_of
from tests.laws.cases import cases


@pytest.mark.slow
@pytest.mark.parametrize("law", cases(numbers.EXPERIMENT))
def test_methods_obey(law):
    law()


@pytest.mark.very_slow
def test_messages_tell_numbers_to_a_fraction_of_what_guesses_are_off():
    cell = cell_of("numbers/full", {"records": 30, "hidden": (32,)})
    jobs = [Job(cell, method.name, 0) for method in numbers.METHODS]
    rows = {(o.job.method, o.metric): o for o in outcomes_of(jobs)}
    decoded = rows["decode_numbers", "rmse"]
    for guess in ("mean", "imputation"):
        assert decoded.value < rows[guess, "rmse"].value / 4
    assert decoded.value < 4 * decoded.detail["expected_rmse"] < 4 * rows["mean", "rmse"].value
    told = rows["decode_numbers", "told"]
    assert told.value > 0.8 > max(told.imputation, told.majority, told.null)


def test_a_categorical_attribute_is_refused():
    cell = cell_of("numbers/full", {"attribute": 0})
    cell = dataclasses.replace(cell, dataset="purchase_like")
    with pytest.raises(ValueError, match="attribute=0 of purchase_like is categorical"):
        outcomes_of([Job(cell, "mean", 0)])
