"""Several columns at once: `gauss_newton`, and `closed_form` on their combinations."""

import jax.numpy as jnp
import numpy as np
import pytest

from attacks import (
    GaussNewton,
    Knowledge,
    MisfitWarning,
    Status,
    UncheckedWarning,
    binary_column,
    closed_form,
    gauss_newton,
)
from attacks.metrics import majority_rate
from benchmarks.harness.intervals import accuracy_interval
from jaxfl import (
    LocalTraining,
    Model,
    cross_entropy,
    mlp,
)
from tests.attacks.victims import ONE_HOT, D, N, make_victim

PLAIN = LocalTraining(0.1)


SEVERAL = (ONE_HOT, binary_column(10, 0.4), binary_column(11))


def several_truths(x):
    return [x[:, 4:8].argmax(1), x[:, 10], x[:, 11]]


@pytest.mark.very_slow
def test_gauss_newton_finds_several_columns_of_any_coding():
    model = mlp(D, (128,), 3)
    x, y, _, messages = make_victim(model, column=ONE_HOT, rounds=10)
    found = gauss_newton(model, messages, Knowledge(x, y, SEVERAL), settings=GaussNewton(0.1))
    for values, truth in zip(found.values, several_truths(x), strict=True):
        assert (np.asarray(values) == truth).all()
    assert found.objective < 1e-6
    assert all(
        np.asarray(s).min() > -1e-5 and np.allclose(s.sum(1), 1, atol=1e-5) for s in found.scores
    )


@pytest.mark.very_slow
def test_gauss_newton_on_another_clients_messages_tells_nothing():
    model = mlp(D, (64,), 3)
    scores, majorities = [], []
    for seed in range(8):
        x, y, _, _ = make_victim(model, seed, column=ONE_HOT)
        wrong = make_victim(model, seed + 100, column=ONE_HOT)[3]
        with pytest.warns(MisfitWarning):
            found = gauss_newton(model, wrong, Knowledge(x, y, SEVERAL), settings=GaussNewton(0.1))
        assert found.status == Status.MISFIT
        right = zip(found.values, several_truths(x), strict=True)
        scores.append(np.mean([(np.asarray(values) == truth).mean() for values, truth in right]))
        majorities.append(
            np.mean([majority_rate(jnp.asarray(t.astype(int)), 4) for t in several_truths(x)])
        )
    assert accuracy_interval(scores, 3 * N).low <= np.mean(majorities)


@pytest.mark.slow
def test_columns_that_do_not_enter_the_model_keep_their_prior():
    inner = mlp(D, (64,), 3)
    blind = Model(
        inner.init,
        lambda p, x, **rest: inner.apply(p, x.at[:, 4:12].set(0), **rest),
        cross_entropy,
        3,
    )
    x, y, _, messages = make_victim(blind, column=ONE_HOT)
    known = Knowledge(x, y, (binary_column(10, 0.3),))
    with pytest.warns(UncheckedWarning, match="gauss_newton: noise and rounding"):
        found = gauss_newton(blind, messages, known, settings=GaussNewton(0.1))
    assert np.allclose(found.scores[0], [0.7, 0.3])
    assert found.fit.resolved < 1e-3


def test_several_columns_are_read_together_exactly():
    """By the product of their values; another order of columns changes nothing."""
    model = mlp(D, (64,), 3)
    x, y, _, messages = make_victim(model, rounds=8)
    known = x.copy()
    known[:, [6, 7, 11]] = np.nan
    columns = binary_column(6, 0.4), binary_column(7), binary_column(11, 0.5)
    for order in ((0, 1, 2), (2, 0, 1)):
        chosen = tuple(columns[i] for i in order)
        answer = closed_form(model, messages, Knowledge(known, y, chosen))
        for column, values, scores in zip(chosen, answer.values, answer.scores, strict=True):
            assert (np.asarray(values) == x[:, int(column.positions[0])]).all()
            assert np.allclose(np.asarray(scores).sum(1), 1, atol=1e-4)
        assert answer.fit.explained >= answer.fit.allowed
    many = tuple(binary_column(i) for i in range(7))
    with pytest.raises(ValueError, match="columns have 128 values together"):
        closed_form(model, messages, Knowledge(x, y, many))
