"""Errors alone tell records apart: directions that all but one are orthogonal to."""

import dataclasses

import jax
import numpy as np
import pytest

from attacks.records import averaged, isolation, progress, reading
from attacks.records.acceptance import Passed
from attacks.records.gradients import dense_gradients
from attacks.records.spans import span_of
from jaxfl import (
    Federated,
    Keep,
    LocalTraining,
    Messages,
    Upload,
    mean_loss,
    mlp,
    simulate,
    stack_clients,
)
from jaxfl.datasets import Table, encode
from jaxfl.schema import Schema

KEY = jax.random.key(0)
WIDTH = 64


def made_up(count=300):
    """A table of two categories, a whole number and a price, in two classes."""
    rng = np.random.default_rng(0)
    values = np.stack(
        [
            *(rng.integers(0, 12, count), rng.integers(0, 8, count), rng.integers(0, 9, count)),
            *(rng.integers(18, 60, count), rng.integers(0, 9000, count)),
        ],
        1,
    )
    categories = tuple("abcdefghijkl"), tuple("ABCDEFGH"), tuple("123456789"), (), ()
    names = "colour", "size", "shape", "age", "price"
    labels = rng.integers(0, 2, count)
    return encode(Table("made_up", values.astype(np.float32), labels, names, categories, 2))


DATA = made_up()
FEATURES = DATA.x.shape[1]
MODEL = mlp(FEATURES, (WIDTH,), 2)


def client(seed, count, training, plugins=()):
    """Records, and messages of a client that has them."""
    rows = np.random.default_rng(seed).choice(len(DATA), count, replace=False)
    x, y = DATA.x[rows], DATA.y[rows]
    federated = Federated(1, training, plugins, keep=Keep(clients="all"))
    start = MODEL.init(jax.random.key(seed))
    run = simulate(MODEL, start, stack_clients([(x, y)]), jax.random.key(seed), federated)
    return x, y, run.messages(0)


def full_batch(seed, count):
    """Its exact gradient."""
    rows = np.random.default_rng(seed).choice(len(DATA), count, replace=False)
    x, y = DATA.x[rows], DATA.y[rows]
    params = MODEL.init(jax.random.key(seed))
    sent = jax.grad(lambda p: mean_loss(MODEL, p, x, y))(params)
    messages = Messages.from_gradients(*jax.tree.map(lambda a: a[None], (params, sent)))
    return x, y, messages


def task_of(messages, rate, several):
    gradients = dense_gradients(MODEL, messages, rate)
    ends = (
        jax.tree.map(lambda a: np.asarray(a, np.float64), tree)
        for tree in (messages.received, messages.returned)
    )
    params, returned = ends
    returned, gradients = (returned, gradients[:1]) if several else (None, gradients)
    settings = progress.RecordSearch()
    return progress.Task(MODEL, DATA.schema(), params, gradients, returned, settings)


def slopes(task):
    first = (
        None if tree is None else jax.tree.map(lambda a: a[0], tree)
        for tree in (task.params, task.returned)
    )
    return isolation.slopes_of(task.model, *first)


BATCHES = LocalTraining(0.05, batch_size=4, epochs=3)


@pytest.mark.parametrize("several", [False, True])
def test_every_edge_is_orthogonal_to_all_records_but_one(several):
    x, _, messages = client(0, 12, BATCHES) if several else full_batch(0, 12)
    task = task_of(messages, 0.05 if several else 1.0, several)
    gradient = task.gradients[0][0]
    rng = np.random.default_rng(0)
    inputs = np.c_[x, np.ones(len(x))].astype(np.float64)
    span = span_of(gradient, 12)
    found = isolation.edges(gradient, 12, slopes(task), rng, 200, one_step=not several)
    directions = isolation.distinct(gradient, isolation.proven(gradient, span, found))
    assert len(directions) > 5
    used = isolation.isolated(gradient, span, directions[: isolation.MOST_USED])
    count = int(np.any(used.directions != 0, axis=1).sum())
    assert count > 5
    with jax.enable_x64(True):
        off = np.abs([isolation.off_directions(used, one) for one in inputs])[:, :count]
    own = off.argmax(0)
    assert len(set(own)) == count  # a record each
    assert off[own, np.arange(count)].min() > 1e3
    off[own, np.arange(count)] = 0
    assert off.max() < reading.MARGIN


def test_the_span_without_isolated_records_holds_the_others_alone():
    x, _, messages = full_batch(1, 10)
    task = task_of(messages, 1.0, several=False)
    gradient = task.gradients[0][0]
    rng = np.random.default_rng(0)
    found = isolation.edges(gradient, 10, slopes(task), rng, 200, one_step=True)
    whole = span_of(gradient, 10)
    used = isolation.isolated(gradient, whole, isolation.proven(gradient, whole, found)[:1])
    inputs = np.c_[x, np.ones(len(x))].astype(np.float64)
    own = np.abs(inputs @ used.directions[0]).argmax()
    rows = np.asarray(whole.rows)[:, :10]
    span = span_of(isolation.orthogonal_part(gradient, rows, used), 9)
    outside = np.linalg.norm(inputs @ span.beyond_rows, axis=1) / np.linalg.norm(inputs, axis=1)
    assert outside[own] > 1e-3
    assert np.delete(outside, own).max() < 1e-4


def test_noise_isolates_nothing():
    """Also of a message whose records are hidden by noise."""
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=(WIDTH, 12)) @ rng.normal(size=(12, FEATURES + 1))
    found = isolation.edges(gradient, 12, rng.normal(size=WIDTH), rng, 50, one_step=False)
    assert not len(isolation.proven(gradient, span_of(gradient, 12), found))
    _, _, messages = client(0, 12, LocalTraining(1.0), (Upload(noise_multiplier=0.01),))
    task = task_of(messages, 1.0, several=False)
    gradient = task.gradients[0][0]
    found = isolation.edges(gradient, 12, slopes(task), rng, 50, one_step=True)
    assert not len(isolation.proven(gradient, span_of(gradient, 12), found))


@pytest.mark.parametrize("count", [8, 12, 20])
def test_an_edge_of_several_records_is_not_proven(count):
    """Nor is a direction whose record was taken out still one of the rest."""
    x, _, messages = client(3, count, BATCHES)
    task = task_of(messages, 0.05, several=True)
    gradient = task.gradients[0][0]
    inputs = np.c_[x, np.ones(len(x))].astype(np.float64)
    alone = np.linalg.pinv(inputs)  # of each record the direction that isolates it
    pairs = [alone[:, i] + alone[:, j] for i in range(count) for j in range(i)]
    span = span_of(gradient, count)
    assert not len(isolation.proven(gradient, span, np.stack(pairs)))
    kept = isolation.proven(gradient, span, alone.T)
    assert len(kept) > count / 2
    owners = np.abs(inputs @ kept.T).argmax(0)
    left = gradient - np.outer(gradient @ alone[:, owners[0]], inputs[owners[0]])
    rest = isolation.of_the_rest(gradient, left, kept)
    assert np.array_equal(np.abs(inputs @ rest.T).argmax(0), owners[1:])


def test_other_models_have_no_such_edges():
    for model in (mlp(4, (8, 8), 2), mlp(4, (8,), 3)):
        params = model.init(KEY)
        assert isolation.slopes_of(model, params, None) is None


def _off_idle(seed):
    x, y, messages = client(seed, 10, BATCHES)
    task = task_of(messages, 0.05, several=True)
    ranks = progress.ranks_of(task, task.gradients)
    nothing = Passed.none(task.schema)
    none = np.zeros((0, task.gradients[0].shape[-1]))
    read = progress.Reading(task.gradients, nothing, nothing, 1, 0.0, ranks, none)
    evidence = progress.evidence_of(task, read, 0)
    with jax.enable_x64(True):
        off = averaged.off_idle(MODEL, evidence, np.asarray(x, np.float64))
    return ranks, np.asarray(off)[np.arange(len(y)), y]


@pytest.mark.slow
def test_a_unit_that_was_active_on_the_way_alone_hides_no_record(monkeypatch):
    """Its record has a small error there, though the unit is idle at both ends of the way."""
    offs = np.concatenate([off for ranks, off in map(_off_idle, range(12)) if ranks == (10,)])
    assert len(offs) > 60
    assert (offs < reading.MARGIN).mean() > 0.99
    monkeypatch.setattr(averaged, "DETOURS", 0)
    jax.clear_caches()
    without = np.concatenate([off for ranks, off in map(_off_idle, range(12)) if ranks == (10,)])
    monkeypatch.undo()
    jax.clear_caches()
    assert (without < reading.MARGIN).mean() < (offs < reading.MARGIN).mean()


def test_two_readings_of_one_record_are_not_both_certified():
    x, y, messages = full_batch(2, 6)
    task = task_of(messages, 1.0, several=False)
    schema: Schema = task.schema
    ranks, nothing = progress.ranks_of(task, task.gradients), Passed.none(schema)
    none = np.zeros((0, task.gradients[0].shape[-1]))
    read = progress.Reading(task.gradients, nothing, nothing, 6, 1e-16, ranks, none)
    evidence = progress.evidence_of(task, read, 0)
    places = schema.places(x[:3].astype(float))
    places[2] = places[1]
    places[2, -1] += 1  # a year older
    numbers = x[[0, 1, 1]][:, schema.positions].astype(float)
    measured = np.zeros((3, len(schema.measured)))
    passed = Passed(
        schema.records(places, numbers),
        y[[0, 1, 1]],
        np.ones(3, int),
        np.ones(3, bool),
        ((),) * 3,
        (np.zeros((0, schema.features)),) * 3,
        measured,
    )
    apart = reading._each_alone(task, read, evidence, passed, 6)
    assert apart.tolist() == [True, True, False]
    one = dataclasses.replace(passed, certified=np.asarray([True, True, False]))
    assert reading._each_alone(task, read, evidence, one, 6).tolist() == [True, True, False]
