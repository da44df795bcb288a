"""Clients that draw nothing at random are read exactly: batches that are cut from records as they
stand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import (
    GLS,
    Knowledge,
    MisfitWarning,
    Status,
    UncheckedWarning,
    UnknownColumn,
    UnrolledGLS,
    binary_column,
    closed_form,
    decode_sources,
    diagnose,
    gls,
    gls_unrolled,
)
from attacks.diagnosis.advice import DRAWN, IN_ORDER
from jaxfl import ClassWeights, LocalTraining, Model, cross_entropy, mlp, sgd
from tests.attacks.victims import D, N, make_victim

KEY = jax.random.key(0)
UNSHUFFLED = LocalTraining(0.1, batch_size=7, shuffle=False)
WEIGHTED = dataclasses.replace(UNSHUFFLED, epochs=3, plugins=(ClassWeights((1.0, 3.0, 1.0)),))
SGD = [
    UNSHUFFLED,
    dataclasses.replace(UNSHUFFLED, epochs=2, optimizer=sgd(0.9, 0.01), drop_last=True),
]
ADAM = LocalTraining(0.01, 2, 8, optax.adam, shuffle=False)


def known_of(x, y, *columns):
    return Knowledge(jnp.asarray(x), jnp.asarray(y), columns)


def read(training, messages, known, model):
    return gls_unrolled(model, messages, known, KEY, settings=UnrolledGLS(training))


@pytest.mark.parametrize(
    "training",
    [*SGD, pytest.param(WEIGHTED, marks=pytest.mark.slow)],
    ids=["plain", "momentum", "class weights"],
)
@pytest.mark.very_slow
def test_two_rounds_say_every_value(training):
    """But for those of records that `drop_last` leaves out."""
    model = mlp(D, (16,), 3)
    x, y, truth, messages = make_victim(model, rounds=2, training=training)
    answer = read(training, messages, known_of(x, y, binary_column(6)), model)
    taken = N // 7 * 7 if training.drop_last else N
    assert (np.asarray(answer.values[0]) == truth)[:taken].all()
    assert np.allclose(np.asarray(answer.scores[0])[taken:], 0.5, atol=1e-3)
    assert answer.status == Status.OK
    assert float(answer.objective) < 1e-9


@pytest.mark.very_slow
def test_several_columns_and_labels_are_read_together():
    model = mlp(D, (16,), 3)
    x, y, truth, messages = make_victim(model, rounds=6, training=UNSHUFFLED)
    columns = binary_column(6), binary_column(10, 0.4)
    known = dataclasses.replace(known_of(x, y, *columns), y=None)
    answer = read(UNSHUFFLED, messages, known, model)
    assert (np.asarray(answer.values[0]) == truth).all()
    assert (np.asarray(answer.values[1]) == x[:, 10]).all()
    assert (np.asarray(answer.labels) == y).all()
    assert answer.status == Status.OK


@pytest.mark.slow
def test_other_messages_are_misfits():
    """Another client's, and those of batches that were drawn."""
    model = mlp(D, (16,), 3)
    x, y, _, _ = make_victim(model, training=UNSHUFFLED)
    drawn = dataclasses.replace(UNSHUFFLED, shuffle=True)
    for seed, training in ((1, UNSHUFFLED), (0, drawn)):
        messages = make_victim(model, seed, training=training)[3]
        with pytest.warns(MisfitWarning):
            answer = read(UNSHUFFLED, messages, known_of(x, y, binary_column(6)), model)
        assert answer.status == Status.MISFIT


@pytest.mark.slow
def test_steps_of_adam_are_read_or_unchecked():
    """Its search may end short, so that nothing is called a misfit."""
    model = mlp(D, (16,), 3)
    x, y, truth, messages = make_victim(model, rounds=4, training=ADAM)
    known = known_of(x, y, binary_column(6))
    answer = read(ADAM, messages, known, model)
    assert (np.asarray(answer.values[0]) == truth).all()
    assert answer.status == Status.OK
    with pytest.warns(UncheckedWarning):
        wrong = read(ADAM, make_victim(model, 1, rounds=4, training=ADAM)[3], known, model)
    assert wrong.status == Status.UNCHECKED


@pytest.mark.slow
def test_a_column_that_does_not_enter_the_model_keeps_its_prior():
    inner = mlp(D, (16,), 3)

    def apply(params, x, **rest):
        return inner.apply(params, x.at[:, 6].set(0), **rest)

    blind = Model(inner.init, apply, cross_entropy, 3)
    x, y, _, messages = make_victim(blind, training=UNSHUFFLED)
    with pytest.warns(UncheckedWarning, match="gls_unrolled: noise and rounding"):
        answer = read(UNSHUFFLED, messages, known_of(x, y, binary_column(6, 0.3)), blind)
    assert np.allclose(answer.scores[0], [0.7, 0.3], atol=1e-3)
    assert answer.fit.resolved < 1e-3


@pytest.mark.slow
def test_one_batch_of_all_records_is_read_as_in_closed_form():
    whole = LocalTraining(0.1)
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model, training=whole)
    known = known_of(x, y, binary_column(6))
    ours, theirs = read(whole, messages, known, model), closed_form(model, messages, known)
    assert (np.asarray(ours.values[0]) == np.asarray(theirs.values[0])).all()
    assert ours.status == theirs.status == Status.OK


@pytest.mark.slow
def test_several_full_batch_steps_of_adam_are_read():
    """Of a column of three values."""
    training = LocalTraining(0.01, 3, None, optax.adam)
    model, column = mlp(D, (16,), 3), UnknownColumn([5], np.asarray([[1.0], [2], [3]]))
    x, y, truth, messages = make_victim(model, rounds=4, column=column, training=training)
    answer = read(training, messages, known_of(x, y, column), model)
    assert (np.asarray(answer.values[0]) == truth).all()
    assert answer.status == Status.OK


@pytest.mark.parametrize(
    ("trained", "told", "cause", "attack"),
    [
        pytest.param(False, True, IN_ORDER, "gls_unrolled", marks=pytest.mark.slow),
        pytest.param(False, False, "as told", "gls_unrolled", marks=pytest.mark.very_slow),
        pytest.param(True, False, DRAWN, "gls", marks=pytest.mark.very_slow),
    ],
)
@pytest.mark.very_slow
def test_a_diagnosis_says_whether_batches_are_drawn(trained, told, cause, attack):
    model = mlp(D, (16,), 3)
    recipes = [dataclasses.replace(UNSHUFFLED, shuffle=each) for each in (trained, told)]
    x, y, _, messages = make_victim(model, rounds=4, training=recipes[0])
    answer = diagnose(model, messages, known_of(x, y, binary_column(6)), recipes[1])
    assert answer.findings[0].cause == cause
    assert f"`{attack}`" in answer.attack


def test_sources_are_decoded_of_clients_that_draw_their_batches():
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model, rounds=1, training=UNSHUFFLED)
    with pytest.raises(ValueError, match=r"training\.shuffle=False: decode_sources"):
        decode_sources(model, 2 * [messages], [20, 20], x, y, KEY, training=UNSHUFFLED)


def test_gls_is_for_batches_that_are_drawn():
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model, rounds=1, training=UNSHUFFLED)
    known = known_of(x, y, binary_column(6))
    with pytest.raises(ValueError, match=r"training\.shuffle=False cuts the same batches of 7"):
        gls(model, messages, known, KEY, settings=GLS(UNSHUFFLED))
