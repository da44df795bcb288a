"""Columns of a table hidden: what is erased, what may have stood there, and what did."""

import jax
import numpy as np
import pytest

from attacks import closed_form, hide
from jaxfl import Federated, mlp, simulate, stack_clients
from jaxfl.datasets import encode, load
from jaxfl.datasets.dataset import Table

CATEGORIES = ("no", "yes"), ("N", "E", "S"), (), ()


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, 2, 60), rng.integers(0, 3, 60), rng.integers(20, 26, 60)]
    values = np.stack([*columns, rng.normal(size=60)], 1)
    names = "smoker", "region", "age", "income"
    return encode(Table("people", values, rng.integers(0, 2, 60), names, CATEGORIES, 2)), values


@pytest.mark.parametrize("column", ["smoker", "region", "age"])
def test_the_truth_is_among_the_candidates_and_nothing_else_is_erased(data, column):
    table, values = data
    rows = [5, 3, 40]
    hidden = hide(table.x[rows], table.y[rows], table.schema(), [column])
    known, (truth,) = hidden.knowledge, hidden.truth
    (unknown,) = known.columns
    positions = list(table.column(column).positions)
    assert np.asarray(unknown.positions).tolist() == positions
    assert np.isnan(np.asarray(known.x)[:, positions]).all()
    assert np.asarray(unknown.candidates)[truth] == pytest.approx(table.x[rows][:, positions])
    rest = np.delete(np.asarray(known.x), positions, 1)
    assert (rest == np.delete(table.x[rows], positions, 1)).all()
    assert (np.asarray(known.y) == table.y[rows]).all()
    written = values[rows, ("smoker", "region", "age").index(column)]
    assert (truth == written - (20 if column == "age" else 0)).all()


def test_priors_are_no_one_s_unless_granted(data):
    table, _ = data
    known = table.x[:9], table.y[:9], table.schema(), ["region", "smoker"]
    assert all(column.prior is None for column in hide(*known).knowledge.columns)
    priors = {"region": table.prior("region")}
    region, smoker = hide(*known, priors=priors).knowledge.columns
    assert np.asarray(region.prior) == pytest.approx(priors["region"])
    assert smoker.prior is None


def test_a_hidden_column_is_decoded():
    data, key = load("digits"), jax.random.key(0)
    x, y, model = data.x[:100], data.y[:100], mlp(64, (128,), 10)
    hidden = hide(x, y, data.schema(), ["pixel_2_4"])
    run = simulate(model, model.init(key), stack_clients([(x, y)]), key, Federated(rounds=5))
    answer = closed_form(model, run.messages(0), hidden.knowledge)
    assert (np.asarray(answer.values[0]) == hidden.truth[0]).all()


def test_columns_of_which_one_tells_the_other_are_hidden_together():
    codes = np.arange(60) % 3
    values = np.stack([codes, 10.0 * codes + codes**2, np.arange(60)], 1)
    names = "degree", "degree_number", "age"
    table = encode(Table("people", values, codes % 2, names, (("a", "b", "c"), (), ()), 2))
    known = hide(table.x, table.y, table.schema(), ["degree"]).knowledge
    assert np.isnan(np.asarray(known.x)).all(0).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["wealth"], "columns='wealth' does not exist"),
        (["income"], "columns='income' holds too many numbers"),
        (["smoker", "smoker"], "hides 'smoker' twice"),
        ([], "names no unknown column"),
    ],
)
def test_what_cannot_be_hidden_is_named(data, columns, said):
    table, _ = data
    with pytest.raises(ValueError, match=said):
        hide(table.x, table.y, table.schema(), columns)


def test_records_of_another_scaling_are_named(data):
    table, _ = data
    with pytest.raises(ValueError, match=r"x\[\d+\] holds .* for 'age', which is none"):
        hide(7 * table.x + 3, table.y, table.schema(), ["age"])


def test_priors_of_known_columns_are_named(data):
    table, _ = data
    with pytest.raises(ValueError, match="priors='smoker' is none of"):
        hide(table.x, table.y, table.schema(), ["region"], priors={"smoker": np.ones(2) / 2})
