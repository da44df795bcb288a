"""Laws of rows, for experiments whose own tests do not call them."""

import dataclasses

import pytest

from tests.benchmarks.cells import cell_of
from tests.laws.rows import LAWS

SHORT = {"attribute": 0, "records": 20, "rounds": 6, "phases": ("pre2",)}
FEW = {"steps": 5}
SEVERAL_STEPS = ("majority", "cos_unrolled", "gls")
"""Of a client of batches; the other methods have a cell of their own."""
LINEAR = {"records": 40, "clients": 3, "rounds": 40, "grid": ("30:10", "30:5")}


def specimens():
    """A small cell of each experiment that runs on data of its own."""
    fewer = {"cos": FEW, "cos_unrolled": FEW, "l2_lbfgs": {"evaluations": 10}, "gls": {"orders": 8}}
    batches = SHORT | {"training.batch_size": 5}
    yield cell_of("quick/minibatch", batches, fewer)
    yield cell_of("quick/attributes", SHORT, fewer, "breast_cancer")
    stranger = cell_of("lyu2021/table11", SHORT | {"training.batch_size": None}, {"mixture": FEW})
    yield dataclasses.replace(stranger, dataset="breast_cancer")
    yield cell_of("lyu2021/table1")
    linear = cell_of("driouich2022/table1", LINEAR, {"cos": FEW, "l2_lbfgs": {"evaluations": 10}})
    yield dataclasses.replace(linear, dataset="leaf_milder")


def name_of(cell):
    return f"{cell.suite}-{cell.experiment.name}-{cell.dataset}"


SHORTER = ("breast_cancer", "purchase_like")
"""Data of cells whose laws take some twenty seconds."""
CELLS = pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell,
            id=name_of(cell),
            marks=pytest.mark.slow if cell.dataset in SHORTER else pytest.mark.very_slow,
        )
        for cell in specimens()
    ],
)


@CELLS
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_rows_obey(law, cell, monkeypatch):
    batches = cell.table == "minibatch"
    law(cell, monkeypatch, SEVERAL_STEPS if batches else None)
