"""Whole records of tables with more columns than the search has equations, and of clients whose
optimiser is linear but not plain."""

import functools

import jax
import numpy as np
import optax
import pytest

from attacks import match_records, reconstruct_records
from attacks.records import matching
from attacks.records.acceptance import total_of
from attacks.records.evidence import Findings
from attacks.records.spans import span_of
from attacks.records.vertices import vertices
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients
from jaxfl.datasets import Table, encode, load
from jaxfl.datasets.embedded import BINARY
from tests.attacks.test_records import (
    KEY,
    STEP,
    averaged,
    client,
    gradients,
    is_exactly,
    read,
    wrong,
)

COLUMNS = 90


def answers(count, seed=0):
    """A table of answers of yes and no, a fifth of them yes."""
    rng = np.random.default_rng(seed)
    values = (rng.random((count, COLUMNS)) < 0.2).astype(np.float32)
    names = tuple(f"q{j}" for j in range(COLUMNS))
    kinds = (BINARY,) * COLUMNS
    return encode(Table("answers", values, rng.integers(0, 4, count), names, kinds, 4))


DATA = answers(300)
SCHEMA = DATA.schema()


def answer_of(model, messages):
    return reconstruct_records(model, messages, SCHEMA, STEP, KEY)


def test_matching_takes_one_program_however_many_columns_there_are(monkeypatch):
    """Operations of a column each were compiled for half an hour where there are hundreds."""
    sizes, whole = [], matching._match

    def traced(model, *given):
        sizes.append(len(str(jax.make_jaxpr(functools.partial(whole, model))(*given))))
        raise InterruptedError

    monkeypatch.setattr(matching, "_match", traced)
    for columns in (10, COLUMNS):
        model = mlp(columns, (8,), 4)
        seen = gradients(model, model.init(KEY), DATA.x[:4, :columns], DATA.y[:4])
        names = tuple(f"q{j}" for j in range(columns))
        kinds = (BINARY,) * columns
        table = Table("some", DATA.x[:, :columns], DATA.y, names, kinds, 4)
        with pytest.raises(InterruptedError):
            match_records(model, seen, encode(table).schema(), 4, STEP, KEY)
    assert sizes[1] < 1.5 * sizes[0]


@pytest.mark.parametrize("hidden", [(64,), (48, 48)])
def test_wide_tables_are_read(hidden):
    model, x, y = mlp(COLUMNS, hidden, 4), DATA.x[:14], DATA.y[:14]
    answer = answer_of(model, gradients(model, model.init(KEY), x, y))
    assert is_exactly(answer, x, y), answer.reason


def test_records_of_no_such_table_certify_nothing():
    model, x, y = mlp(COLUMNS, (64,), 4), DATA.x[:14], DATA.y[:14]
    blurred = x + np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    answer = answer_of(model, gradients(model, model.init(KEY), blurred, y))
    assert answer.count == 14
    assert not answer.certified.any()


def test_vertices_are_records_of_the_span_and_others_have_none():
    mine, rng = DATA.x[:8], np.random.default_rng(0)
    inputs = np.concatenate([mine, np.ones((8, 1))], 1)
    places, _ = vertices(SCHEMA, span_of(rng.normal(size=(20, 8)) @ inputs, 8), rng)
    ends = SCHEMA.records(places, np.zeros((len(places), 0)))
    hits = (ends[:, None] == mine[None]).all(-1)
    assert hits.any(0).sum() >= 6
    strangers = (ends[:, None] == DATA.x[None, 8:]).all(-1)
    assert not strangers.any()


def test_the_number_of_records_is_that_of_few_copies():
    """A large number has a part for nearly any weight, so that wrong records would pass with it."""

    def of(wholes):
        whole = np.asarray(wholes, float)[:, None, None]
        zeros = np.zeros(len(whole))
        offs = np.ones((len(whole), 1))
        deviation = np.full_like(whole, 0.02)
        return Findings(zeros, zeros, zeros, zeros, offs, whole, deviation, zeros)

    wrong = [10.634, 21.339, 26.698, 32.062]
    assert total_of(of([16.0] * 12 + wrong), 16) == 16
    assert total_of(of([11 / 3, 11 / 2] + [11.0] * 6), 8) == 11
    assert total_of(of([11 / 2] * 5 + [11.0]), 6) == 11


def decayed(rate, momentum=None):
    return optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(rate, momentum))


OPTIMIZERS = {
    "momentum": functools.partial(optax.sgd, momentum=0.9),
    "nesterov": functools.partial(optax.sgd, momentum=0.9, nesterov=True),
    "decay": decayed,
    "both": functools.partial(decayed, momentum=0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_of_any_linear_optimizer_is_a_gradient(name):
    x, y = client(6)
    training = LocalTraining(0.3, optimizer=OPTIMIZERS[name])
    answer = read(*averaged(x, y, training), training)
    assert is_exactly(answer, x, y), answer.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ["momentum", "both"])
def test_several_steps_of_any_linear_optimizer_are_read(name):
    x, y = client(6)
    training = LocalTraining(0.05, epochs=2, batch_size=3, optimizer=OPTIMIZERS[name])
    model, messages = averaged(x, y, training)
    answer = read(model, messages, training)
    assert answer.count == 6
    assert len(answer) >= 5
    assert wrong(answer, x, y) == 0


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("seed", "training"),
    [(0, LocalTraining(0.1, batch_size=4)), (1, LocalTraining(0.1, epochs=2))],
    ids=["batches", "epochs"],
)
def test_combinations_of_a_few_answers_are_not_certified(seed, training):
    """a - b + c is a record of the schema as well, and lies in the span: of several steps it passes
    all tests of the first layer. Until all records are found, nothing is certain."""
    data = load("breast_cancer")
    rows = np.random.default_rng(seed).permutation(len(data.x))[:12]
    x, y, key = data.x[rows], data.y[rows], jax.random.key(seed)
    model, federated = mlp(30, (32, 32), 2), Federated(3, training)
    run = simulate(model, model.init(key), stack_clients([(x, y)]), key, federated)
    schema, key = data.schema(), jax.random.key(1)
    answer = reconstruct_records(model, run.messages(0), schema, training, key)
    held = np.asarray([(x == row).all(1).any() for row in answer.x])
    assert held.all() or not answer.certified.any()
    assert (answer.count == len(answer)) or "none is certified before all are" in answer.reason


def test_decay_that_is_not_told_is_no_record():
    """Weights that shrink are of full rank: nothing is told of how many records there are."""
    x, y = client(6)
    model, messages = averaged(x, y, LocalTraining(0.3, optimizer=decayed))
    answer = read(model, messages, LocalTraining(0.3))
    assert not answer.certified.any()
    assert "do not tell how many records" in answer.reason
