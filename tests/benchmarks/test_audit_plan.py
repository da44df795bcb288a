"""What an audit asks of a table, before anything runs."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.audits import plan
from benchmarks.audits.questions import QUESTIONS
from benchmarks.harness.jobs import Suite
from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.splits import held_out_rows
from jaxfl import LocalTraining

ROWS = 300


def suite_of(folder: Path, records: int = 50, **training: object) -> Suite:
    rng, path = np.random.default_rng(0), folder / "people.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "sex", "y"])
        rows.writerows([rng.normal(), "fm"[rng.integers(2)], rng.integers(2)] for _ in range(ROWS))
    recipe = LocalTraining(0.1, **training)  # type: ignore[arg-type]
    federation = plan.Federation(3, records, (8,), 3, recipe, (2.0,))
    return plan.suite_of(plan.Asked(str(path), "y", ("sex",)), federation)


def test_membership_is_asked_of_as_many_records_as_are_held_out(tmp_path: Path) -> None:
    cells = suite_of(tmp_path, batch_size=None).table("membership").cells("audit", "small", None)
    there = held_out_rows(classified(cells[0].dataset, None))
    assert there < 50
    assert {cell.settings.records for cell in cells} == {there}


def test_batches_as_large_as_clients_are_one_step(tmp_path: Path) -> None:
    for batch in (None, 50, 64):
        assert not plan.not_asked(suite_of(tmp_path, batch_size=batch), QUESTIONS[:4])
    said = plan.not_asked(suite_of(tmp_path, batch_size=16), QUESTIONS[:4])
    assert len(said) == 1
    assert said[0].startswith("Not asked: membership, which needs clients that take one step")


def test_batches_that_are_never_full_are_refused(tmp_path: Path) -> None:
    training = plan.victim_of(suite_of(tmp_path, batch_size=50, drop_last=True)).training
    assert (training.batch_size, training.drop_last) == (None, False)
    # Those held out to be told apart are fewer than a batch.
    alone = suite_of(tmp_path, batch_size=48, drop_last=True).table("membership")
    assert {cell.settings.records for cell in alone.cells("audit", "small", None)} == {40}
    with pytest.raises(ValueError, match="batch_size=64 leaves out all of a client's 50 records"):
        suite_of(tmp_path, batch_size=64, drop_last=True)


def test_what_is_left_of_a_table(tmp_path: Path) -> None:
    """Of 300 rows a third is the adversary's, and a fifth of the rest tests."""
    (cell, *_) = suite_of(tmp_path).table("attribute").cells("audit", "small", None)
    assert held_out_rows(classified(cell.dataset, None)) == 40
    assert dataclasses.asdict(cell.settings)["records"] == 50
