"""Whole records as a measurement: what counts as read, and the laws of rows."""

import jax
import numpy as np
import pytest

from benchmarks.harness.jobs import Job
from benchmarks.measurements import whole_records
from benchmarks.measurements.whole_records import METHODS, Guess, scored
from benchmarks.scenarios.whole_records import WholeRecordsSettings, draw
from jaxfl import DPSGD, LocalTraining, Upload
from tests.benchmarks.cells import cell_of, outcomes_of
from tests.conftest import assert_same
from tests.laws.cases import cases

FEW = {
    "match_records": {"steps": 20, "restarts": 1},
    "reconstruct_records": {"starts": 64, "passes": 6},
}
SMALL = {"records": 6, "hidden": (40, 40)}
CELL = cell_of("records/binary", SMALL, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("law", cases(whole_records.EXPERIMENT))
def test_methods_obey(law):
    law()


def rows(changes, method="reconstruct_records"):
    cell = cell_of("records/binary", SMALL | changes, FEW)
    return {o.metric: o for o in outcomes_of([Job(cell, method, 0)])}


@pytest.mark.slow
def test_what_is_certain_is_right_and_what_is_hidden_is_not_read():
    clear = rows({})
    assert clear["complete"].value == 1
    assert clear["certified"].value == 1
    assert clear["certified_wrong"].value == 0
    hidden = rows({"upload": Upload(noise_multiplier=1.0)})
    assert hidden["complete"].value == hidden["certified"].value == 0
    assert hidden["certified_wrong"].value == 0


def test_a_model_that_is_returned_is_read_as_a_gradient_is():
    training = LocalTraining(1.0)
    assert rows({"sends": "model", "training": training})["complete"].value == 1


@pytest.mark.parametrize("sends", ["gradient", "model"])
def test_a_sum_of_clients_is_read_as_one_client_is(sends):
    """Secure aggregation leaves what one client with the records of all would send."""
    training = LocalTraining(1.0)
    of_three = {"records": 2, "clients": 3, "sends": sends, "training": training}
    assert rows(of_three)["complete"].value == 1
    alone, summed = (
        draw("breast_cancer", WholeRecordsSettings(hidden=(40, 40), **changes), None, 0)
        for changes in ({"records": 6, "sends": sends, "training": training}, of_three)
    )
    with jax.enable_x64(True):
        assert_same(
            alone.view.messages, summed.view.messages, "the mean of clients is not that of one"
        )


def test_too_many_records_are_refused_by_name():
    settings = WholeRecordsSettings(300, clients=2)
    with pytest.raises(ValueError, match="records=300 of clients=2 leave no others of the 569"):
        draw("breast_cancer", settings, None, 0)


def test_private_training_is_what_is_sent():
    private = LocalTraining(1.0, plugins=(DPSGD(1.0, 1.0),))
    assert rows({"training": private})["certified"].value == 0


@pytest.fixture(scope="module")
def victim():
    return draw("breast_cancer", WholeRecordsSettings(6, (8, 8)), None, 0)


def guess(victim, x, y, certified=False, opened=()):
    measured = np.zeros((len(x), len(victim.view.schema.measured)))
    return Guess(x, y, np.full(len(x), certified), [opened] * len(x), measured)


def test_the_truth_is_complete_in_any_order(victim):
    scores = scored(victim, guess(victim, victim.x[::-1].astype(float), victim.y[::-1], True))
    assert scores["complete"] == scores["records_exact"] == scores["column_accuracy"] == 1
    assert scores["certified_wrong"] == 0


def test_half_of_the_truth_is_half(victim):
    scores = scored(victim, guess(victim, victim.x[:3].astype(float), victim.y[:3]))
    assert scores["complete"] == 0
    assert scores["records_exact"] == scores["column_accuracy"] == 0.5


def test_records_beside_the_truth_cost_precision(victim):
    x, y = (np.concatenate([a, 1 - a[:3]]) for a in (victim.x.astype(float), victim.y))
    scores = scored(victim, guess(victim, x, y))
    assert scores["records_exact"] == 1
    assert scores["precision"] == pytest.approx(6 / 9)
    assert scores["complete"] == 0


@pytest.mark.parametrize("name", ["public", "marginals"])
def test_guesses_are_drawn_anew_for_every_seed(victim, name):
    method = next(m for m in METHODS if m.name == name)
    first, again, other = (
        method.run(victim.view._replace(key=jax.random.key(seed)), None) for seed in (0, 0, 1)
    )
    assert_same(first.x, again.x, "one seed draws one guess")
    assert not np.array_equal(first.x, other.x)


def test_a_label_is_of_no_column_of_its_guess(victim):
    """Where a column is the label, other records' columns say nothing of the label drawn."""
    x, y = victim.view.public
    named = victim.view._replace(public=(np.repeat(y[:, None], x.shape[1], 1), y), records=400)
    marginals = next(m for m in METHODS if m.name == "marginals").run(named, None)
    agree = (marginals.x == marginals.y[:, None]).mean(0)
    assert agree == pytest.approx((y.mean() ** 2 + (1 - y.mean()) ** 2), abs=0.1)


def test_a_wrong_column_costs_its_record_unless_it_is_called_open(victim):
    x = victim.x.astype(float)
    x[:, 0] = 1 - x[:, 0]
    name = victim.view.schema.columns[0]
    scores = scored(victim, guess(victim, x, victim.y, True))
    assert scores["records_exact"] == 0
    assert scores["certified_wrong"] >= 1
    assert scores["column_accuracy"] == pytest.approx(29 / 30, abs=1e-3)
    assert scored(victim, guess(victim, x, victim.y, opened=(name,)))["records_but_open"] == 1


def test_a_wrong_label_is_a_wrong_record(victim):
    scores = scored(victim, guess(victim, victim.x.astype(float), 1 - victim.y))
    assert scores["records_exact"] == 0


def test_nothing_guessed_is_nothing_read(victim):
    empty = victim.x[:0].astype(float), victim.y[:0]
    assert set(scored(victim, guess(victim, *empty)).values()) == {0.0}


def test_combinations_of_records_whose_categories_cancel_are_counted():
    """Two people of equal categories are such a combination; with answers of yes and no alone it is
    as many records as their span lacks."""
    victim = draw("breast_cancer", WholeRecordsSettings(records=6), None, 0)
    assert victim.cancelling == 6 - np.linalg.matrix_rank(np.c_[victim.x, np.ones(6)])
    twice = victim._replace(x=victim.x[[0, 1, 2, 3, 4, 4]])
    assert twice.cancelling == victim.cancelling + 1
