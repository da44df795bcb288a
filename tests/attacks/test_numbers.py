"""A numeric column of which bounds are known: `decode_numbers`."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import (
    GLS,
    FitWarning,
    Knowledge,
    MisfitWarning,
    NumberDecoding,
    Status,
    UnknownColumn,
    binary_column,
    decode_numbers,
)
from attacks.attributes.candidate_decoding import numbers as windows
from jaxfl import Federated, LocalTraining, Model, cross_entropy, mlp, simulate, stack_clients

FULL = LocalTraining(0.1)
BATCHES = LocalTraining(0.1, batch_size=8, epochs=2)
PLACE, LOWER, UPPER = 4, -2.0, 3.0
COLUMN = UnknownColumn(jnp.asarray([PLACE]), jnp.asarray([[LOWER], [UPPER]]))
RECORDS, FEATURES = 40, 12


def client(model, training, seed=0, rounds=10, numbers=None):
    """Its messages, what is known of its records, and its numbers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    x[:, ::2] = x[:, ::2] > 0
    x[:, PLACE] = np.clip(rng.normal(size=RECORDS), LOWER, UPPER) if numbers is None else numbers
    score = x[:, :6].sum(1) + rng.normal(size=RECORDS)
    y = (score > np.median(score)).astype(int)
    key = jax.random.key(seed)
    federated = Federated(rounds, training)
    run = simulate(model, model.init(key), stack_clients([(x, y)]), key, federated)
    numbers = x[:, PLACE].copy()
    x[:, PLACE] = np.nan
    return run.messages(0), Knowledge(x, y, (COLUMN,)), numbers


def rmse(answer, numbers):
    return float(np.sqrt(np.square(np.asarray(answer.values) - numbers).mean()))


def decoded(model, messages, knowledge, training, **settings):
    settings = NumberDecoding(training, **settings)
    return decode_numbers(model, messages, knowledge, jax.random.key(1), settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "activation", "most"),
    [
        pytest.param(FULL, "relu", 0.02, id="full batch"),
        pytest.param(FULL, "tanh", 0.02, id="tanh", marks=pytest.mark.very_slow),
        pytest.param(BATCHES, "relu", 0.2, id="batches", marks=pytest.mark.very_slow),
    ],
)
@pytest.mark.very_slow
def test_numbers_are_told_and_so_is_by_how_much_they_are_off(training, activation, most):
    model = mlp(FEATURES, (64,), 2, activation=activation)
    messages, knowledge, numbers = client(model, training)
    answer = decoded(model, messages, knowledge, training)
    assert answer.status == Status.OK
    assert np.asarray(answer.values).min() >= LOWER
    assert np.asarray(answer.values).max() <= UPPER
    assert rmse(answer, numbers) < most * numbers.std()
    assert rmse(answer, numbers) / 3 < answer.error < max(10 * rmse(answer, numbers), 0.05)


@pytest.mark.very_slow
def test_another_clients_messages_are_no_answer():
    model = mlp(FEATURES, (64,), 2)
    _, knowledge, numbers = client(model, BATCHES)
    messages, _, _ = client(model, BATCHES, seed=5)
    with pytest.warns(MisfitWarning):
        answer = decoded(model, messages, knowledge, BATCHES, passes=8)
    assert answer.status == Status.MISFIT
    assert rmse(answer, numbers) > 0.8 * numbers.std()


@pytest.mark.very_slow
def test_where_another_clients_messages_are_no_misfit_the_error_is_large():
    """Numbers may bend gradients to another client's."""
    model = mlp(FEATURES, (64,), 2)
    _, knowledge, numbers = client(model, FULL)
    messages, _, _ = client(model, FULL, seed=5)
    with pytest.warns(FitWarning):
        answer = decoded(model, messages, knowledge, FULL, passes=8)
    assert rmse(answer, numbers) > 0.8 * numbers.std()
    assert answer.error > numbers.std()


@pytest.mark.very_slow
def test_a_column_that_does_not_enter_the_model_is_said_to_be_unknown():
    inner = mlp(FEATURES, (16,), 2)

    def without_it(params, x, **rest):
        return inner.apply(params, x.at[:, PLACE].set(0), **rest)

    blind = Model(inner.init, without_it, cross_entropy, 2)
    messages, knowledge, _ = client(blind, FULL, rounds=3)
    answer = decoded(blind, messages, knowledge, FULL, passes=4)
    assert answer.error > (UPPER - LOWER) / 5
    assert np.allclose(answer.values, (LOWER + UPPER) / 2, atol=0.1)


@pytest.mark.slow
def test_what_stands_in_the_column_changes_nothing():
    model = mlp(FEATURES, (16,), 2)
    messages, knowledge, numbers = client(model, FULL, rounds=3)
    filled = np.array(knowledge.x)
    filled[:, PLACE] = numbers
    with pytest.warns(FitWarning):  # three passes leave much to be told
        erased, told = (
            decoded(model, messages, dataclasses.replace(knowledge, x=x), FULL, passes=3)
            for x in (knowledge.x, filled)
        )
    chex.assert_trees_all_equal(erased, told)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds", [pytest.param((LOWER, UPPER), marks=pytest.mark.very_slow), (-10.0, 0.3)]
)
@pytest.mark.very_slow
def test_numbers_heaped_on_a_bound_are_told_and_are_no_misfit(bounds):
    """Windows close at either bound, whatever rounding makes of its sum with their width."""
    heaped = np.where(np.arange(RECORDS) % 8, bounds[1], sum(bounds) / 2)
    model = mlp(FEATURES, (64,), 2)
    messages, knowledge, numbers = client(model, FULL, rounds=5, numbers=heaped)
    column = dataclasses.replace(COLUMN, candidates=jnp.asarray(bounds)[:, None])
    knowledge = dataclasses.replace(knowledge, columns=(column,))
    answer = decoded(model, messages, knowledge, FULL)
    assert answer.status == Status.OK
    assert answer.trace[-1] < 0.02 * (bounds[1] - bounds[0])
    assert rmse(answer, numbers) < 0.02 * (bounds[1] - bounds[0])


@pytest.mark.slow
def test_where_no_model_came_back_changed_nothing_is_told():
    model = mlp(FEATURES, (16,), 2)
    messages, knowledge, _ = client(model, FULL, rounds=2)
    messages = dataclasses.replace(messages, returned=messages.received)
    with pytest.warns(MisfitWarning, match="no returned model differs"):
        answer = decoded(model, messages, knowledge, FULL, nodes=3, passes=1)
    assert answer.status == Status.FAILED
    assert np.isnan(answer.error)


def test_messages_that_are_not_finite_are_no_answer():
    model = mlp(FEATURES, (16,), 2)
    messages, knowledge, _ = client(model, FULL, rounds=2)
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, messages.returned)
    messages = dataclasses.replace(messages, returned=broken)
    answer = decoded(model, messages, knowledge, FULL, nodes=3, passes=2)
    assert answer.status == Status.FAILED
    assert np.isnan(answer.values).all()


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({"columns": (COLUMN, binary_column(0))}, {}, "columns has 2 entries"),
        ({"y": None}, {}, "y=None: decode_numbers needs known labels"),
        (
            {"columns": (UnknownColumn(jnp.asarray([3, PLACE]), jnp.eye(2)),)},
            {},
            r"columns\[0\].positions has 2 features",
        ),
        (
            {"columns": (dataclasses.replace(COLUMN, candidates=1e8 + np.arange(2.0)[:, None]),)},
            {},
            "are one number in float32",
        ),
        ({}, {"nodes": 1}, "nodes=1: 1 of 40 records make 0 unknowns"),
        ({}, {"nodes": 300}, "nodes=300: 300 of 40 records make 11960 unknowns"),
        ({}, {"training": LocalTraining(0.1, optimizer=optax.adam)}, "optimizer"),
    ],
    ids=["two columns", "no labels", "wide", "no bounds", "one node", "too many nodes", "Adam"],
)
def test_what_it_cannot_take_is_named(change, settings, message):
    model = mlp(FEATURES, (16,), 2)
    messages, knowledge, _ = client(model, FULL, rounds=1)
    settings = NumberDecoding(**({"training": FULL} | settings))
    knowledge = dataclasses.replace(knowledge, **change)
    with pytest.raises(ValueError, match=message):
        decode_numbers(model, messages, knowledge, jax.random.key(0), settings=settings)


@pytest.mark.parametrize("broken", [9, 25])
def test_an_attempt_that_ends_in_no_numbers_does_not_count(broken, monkeypatch):
    model = mlp(FEATURES, (16,), 2)
    messages, knowledge, truth = client(model, FULL, rounds=2)

    def attempted(model, messages, knowledge, key, settings, nodes, passes):
        return jnp.asarray(truth if nodes != broken else np.nan * truth), jnp.zeros(passes)

    monkeypatch.setattr(windows, "_decode", attempted)
    looked = model, knowledge, GLS(FULL, orders=2), (9, 25), 3
    values, _, left = windows._closest(messages, jax.random.key(0), *looked)
    np.testing.assert_array_equal(values, jnp.asarray(truth))
    assert np.isfinite(left)
