"""Numbers fitted together: nearer the truth than one by one, right where a listed number was wrong,
and open where the noise does not tell."""

import dataclasses

import jax
import numpy as np
import pytest

from attacks.records import progress, reading, refinement
from attacks.records.acceptance import Passed
from attacks.records.gradients import dense_gradients
from attacks.records.spans import energy
from tests.attacks.test_records import FAST, KEY, MODEL, SCHEMA, client, gradients

NOISE = 1e-6
COUNT = 10
PRICE = SCHEMA.positions
(AGE,) = (position for column, position, _ in SCHEMA.counted if column == "age")


def noisy_task(noise=NOISE, count=COUNT):
    x, y = client(count)
    messages = gradients(MODEL, MODEL.init(KEY), x, y)
    params = jax.tree.map(lambda a: np.asarray(a, np.float64), messages.received)
    clean = dense_gradients(MODEL, messages, 1.0)
    rng = np.random.default_rng(1)
    sent = [layer + noise * rng.standard_normal(layer.shape) for layer in clean]
    return x.astype(float), y, progress.Task(MODEL, SCHEMA, params, sent, None, FAST)


def taken(x, y, deviation):
    size = len(x)
    return Passed(
        *(x, np.asarray(y), np.ones(size, int), np.ones(size, bool), ((),) * size),
        (np.zeros((0, SCHEMA.features)),) * size,
        np.full((size, len(SCHEMA.measured)), deviation),
    )


def fitted(task, records, noise=NOISE, rank=0):
    positions = (*SCHEMA.positions, *(position for _, position, _ in SCHEMA.counted))
    weights = np.full(len(records), 1 / COUNT)
    parts = refinement.Parts(MODEL, task.params, records.y, weights, positions)
    seen = refinement.Noisy(task.gradients, [noise] * len(task.gradients), rank)
    return refinement.fitted_together(parts, SCHEMA, seen, records)


def spoilt(x, by):
    """Records whose prices are off."""
    off = x.copy()
    off[:, PRICE] += by * np.random.default_rng(2).standard_normal((len(x), len(PRICE)))
    return off


def begun(task, ranks=None):
    nothing, none = Passed.none(SCHEMA), np.zeros((0, 1))
    ranks = ranks or progress.ranks_of(task, task.gradients)
    return progress.Reading(task.gradients, nothing, nothing, COUNT, 0.0, ranks, none)


@pytest.mark.parametrize("count", [COUNT, 6])
def test_numbers_come_back_together(count):
    """Whatever part of the records is taken: the rest is beyond the rank that is left."""
    x, y, task = noisy_task()
    records = taken(spoilt(x[:count], 3e-3), y[:count], 1e-3)
    more, left = fitted(task, records, rank=COUNT - count)
    before, after = (np.abs(r.x[:, PRICE] - x[:count][:, PRICE]).max() for r in (records, more))
    assert after < before / 5
    assert more.certified.all()
    off = np.abs(more.x[:, PRICE] - x[:count][:, PRICE])
    assert (off <= 5 * more.deviation + 1e-12).all()
    if count == COUNT:
        entries = sum(np.count_nonzero(layer) for layer in task.gradients)
        assert energy(left) < 2 * entries * NOISE**2


@pytest.mark.parametrize("noise", [2e-5, 1e-4])
def test_a_listed_number_that_is_wrong_is_mended(noise):
    x, y, task = noisy_task(noise)
    records = taken(spoilt(x, 1e-3), y, 1e-3)
    (gap,) = (gap for column, _, gap in SCHEMA.counted if column == "age")
    records.x[3, AGE] += gap
    more, _ = fitted(task, records, noise)
    np.testing.assert_allclose(more.x[:, AGE], x[:, AGE], atol=1e-9)


def test_a_listed_number_that_noise_hides_is_open():
    x, y, task = noisy_task(noise=3e-3)
    more, _ = fitted(task, taken(x, y, 1e-3), noise=3e-3)
    hidden = [columns for columns in more.open if "age" in columns]
    assert hidden
    assert not more.certified[[bool(columns) for columns in more.open]].any()


def test_what_does_not_explain_the_messages_is_left_alone():
    _, _, task = noisy_task()
    others, labels = client(COUNT, seed=9)
    records = taken(others.astype(float), labels, 1e-3)
    more, _ = fitted(task, records)
    np.testing.assert_array_equal(more.x, records.x)


def test_records_that_are_not_taken_are_not_certified(monkeypatch):
    """Two readings of one record: neither is taken, and neither is certified."""
    x, y, task = noisy_task(noise=1e-9)
    two = taken(x[[0, 0]], y[[0, 0]], 0.0)
    monkeypatch.setattr(reading, "_pass", lambda *arguments: (two, COUNT))
    after = reading._next(task, begun(task), 1, KEY)
    assert not len(after.taken)
    assert not after.opened.certified.any()


def test_more_records_than_weights_tell_are_a_contradiction():
    _, _, task = noisy_task()
    assert not begun(task, (COUNT,)).is_contradicted
    assert begun(task, (COUNT + 1,)).is_contradicted


def last_of(candidates, labels, kept):
    """Which of the candidates are named as all that is left, where `kept` records are."""
    x, y, task = noisy_task(noise=1e-9)
    task = dataclasses.replace(task, gradients=without_others(task, x, y, kept))
    before = dataclasses.replace(begun(task), noise=1e-13)
    evidence = progress.evidence_of(task, before, 1)
    passed = taken(candidates, labels, 0.0)
    return reading._last(task, before, evidence, passed, COUNT)


def without_others(task, x, y, kept):
    others = np.setdiff1d(np.arange(len(x)), kept)
    parts = refinement.Parts(MODEL, task.params, y[others], np.full(len(others), 1 / COUNT), (0,))
    return parts.without(task.gradients, x[others])


def test_what_is_left_names_its_records_among_more_than_there_are():
    x, y, _ = noisy_task(noise=1e-9)
    more, labels = client(2, seed=9)
    candidates = np.concatenate([x[:3], more.astype(float)])
    named = last_of(candidates, np.concatenate([y[:3], labels]), [0, 1, 2])
    assert named.tolist() == [True, True, True, False, False]


def test_where_one_of_them_lacks_none_are_named():
    x, y, _ = noisy_task(noise=1e-9)
    more, labels = client(2, seed=9)
    candidates = np.concatenate([x[:2], more.astype(float)])
    assert last_of(candidates, np.concatenate([y[:2], labels]), [0, 1, 2]) is None


def test_what_lowers_no_rank_is_not_taken(monkeypatch):
    """Even if it passed all tests that look at one record."""
    _, _, task = noisy_task(noise=1e-9)
    others, labels = client(1, seed=9)
    foreign = taken(others.astype(float), labels, 0.0)
    monkeypatch.setattr(reading, "_pass", lambda *arguments: (foreign, COUNT))
    monkeypatch.setattr(reading, "_each_alone", lambda *arguments: np.ones(1, bool))
    after = reading._next(task, begun(task), 1, KEY)
    assert not len(after.taken)
    assert not after.opened.certified.any()
    for left, gradient in zip(after.left, task.gradients, strict=True):
        np.testing.assert_array_equal(left, gradient)


def test_a_rank_that_noise_hides_is_one_less_for_each_record_taken():
    x, y, task = noisy_task(noise=1e-3)
    before = begun(task, (COUNT, COUNT))
    some = taken(x[1:], y[1:], 0.0)
    left = without_others(task, x, y, [0])
    assert progress.ranks_of(task, left) == (0, 0)
    assert progress.ranks_after(task, before, some, left) == (1, 1)


def test_a_rank_that_noise_hides_is_not_told_by_what_leaves_more_than_noise():
    _, _, task = noisy_task(noise=1e-3)
    before = begun(task, (COUNT, COUNT))
    others, labels = client(COUNT, seed=9)
    foreign = taken(others[1:].astype(float), labels[1:], 0.0)
    left = without_others(task, others.astype(float), labels, [0])
    assert progress.ranks_after(task, before, foreign, left) == (0, 0)
