"""Which of two data sets sums hold, as rows, and the laws of its methods."""

import dataclasses
import math

import pytest

from benchmarks.harness.jobs import Job
from benchmarks.measurements import sum_games
from benchmarks.scenarios.sum_games import SumGamesSettings, draw
from tests.benchmarks.cells import cell_of, outcomes_of
from tests.laws.cases import cases

TINY = {
    **{
        "clients": 20,
        "references": 30,
        "rounds": 30,
        "records": 5,
        "clients_per_round": 3,
        "hidden": (4,),
    }
}


@pytest.mark.slow
@pytest.mark.parametrize("law", cases(sum_games.EXPERIMENT))
def test_methods_obey(law):
    law()


@pytest.mark.parametrize("table", ["client", "record"])
def test_the_likelihood_ratio_tells_more_than_chance(table):
    cell = cell_of(f"sums/{table}", TINY)
    cell = dataclasses.replace(cell, dataset="digits")
    rows = {o.metric: o for o in outcomes_of([Job(cell, "likelihood_ratio", 0)])}
    assert rows["distinguished"].value > (0.8 if table == "client" else 0.5)
    assert rows["distinguished"].chance == 0.5
    assert rows["epsilon_shown"].value < rows["epsilon_if_normal"].value


def test_a_record_apart_is_one_record():
    settings = SumGamesSettings(
        "record", clients=10, references=10, clients_per_round=3, records=4, rounds=6, hidden=()
    )
    pairs = draw("digits", settings, None, 0).view.candidates
    apart = (pairs.x[:, 0] != pairs.x[:, 1]).any(-1)
    assert apart.sum(1).tolist() == [1] * 6


@pytest.mark.parametrize("asked", ["client", "record"])
def test_nothing_but_records_and_labels_tells_two_data_sets_apart(asked):
    settings = SumGamesSettings(
        asked, clients=10, references=10, clients_per_round=3, records=4, rounds=6, hidden=()
    )
    pairs = draw("digits", settings, None, 0).view.candidates
    assert (pairs.id[:, 0] == pairs.id[:, 1]).all()
    assert (pairs.mask[:, 0] == pairs.mask[:, 1]).all()


def test_too_few_records_are_named():
    with pytest.raises(ValueError, match="rounds=100, need 10000 records; there are 1797"):
        draw("digits", SumGamesSettings(), None, 0)


def test_what_rounds_told_rightly_show():
    most = 1 - 0.05 ** (1 / 100)  # Clopper and Pearson, none wrong of 100
    assert math.isclose(sum_games.shown(100, 100), math.log((1 - 1e-5 - most) / most), rel_tol=1e-9)
    assert sum_games.shown(50, 100) == sum_games.shown(0, 100) == 0
