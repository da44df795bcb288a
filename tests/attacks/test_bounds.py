"""Where equations hardly tell records apart, weights within their bounds may have one solution all
the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import (
    ClosedForm,
    Knowledge,
    SomeWrongWarning,
    Status,
    binary_column,
    candidate_records,
    closed_form,
)
from attacks.attributes.candidate_decoding.normal_equations import normal_equations, solve
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients
from tests.attacks.right_recipes import quietly

FEATURES, COLUMN, RATE = 6, 5, 0.1
MODEL = mlp(FEATURES, (), 2)  # the softmax regression


def client(records, rounds, seed=2):
    """A client of the softmax regression, what is known of it, and the truth."""
    rng, key = np.random.default_rng(seed), jax.random.key(0)
    x = rng.normal(size=(records, FEATURES)).astype(np.float32)
    x[:, COLUMN] = rng.random(records) < 0.5
    y = (x[:, : COLUMN + 1].sum(1) + rng.normal(size=records) > 1).astype(int)
    run = simulate(
        MODEL, MODEL.init(key), stack_clients([(x, y)]), key, Federated(rounds, LocalTraining(RATE))
    )
    erased = jnp.asarray(x).at[:, COLUMN].set(jnp.nan)
    return run.messages(0), Knowledge(erased, y, (binary_column(COLUMN),)), x[:, COLUMN]


def right(answer, truth):
    return float((np.asarray(answer.values[0]) == truth).mean())


def without_bounds(seen, known):
    """Values by least squares alone."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: a.astype(float), seen)
        x, y = candidate_records(MODEL, known)
        system = normal_equations(MODEL, wide, jnp.asarray(x, float), y, RATE)
        return np.asarray(solve(system, jnp.full(len(x), 0.5), 1e-12).unknowns) > 0.5


@pytest.mark.parametrize(
    ("records", "rounds", "unbounded"), [(40, 3, 0.8), (48, 8, 0.92), (48, 20, 0.96)]
)
def test_a_softmax_regression_is_read_from_few_rounds(records, rounds, unbounded):
    seen, known, truth = client(records, rounds)
    assert (without_bounds(seen, known) == truth).mean() == pytest.approx(unbounded, abs=0.05)
    answer = closed_form(MODEL, seen, known, settings=ClosedForm(RATE))
    assert right(answer, truth) == 1
    assert answer.status == Status.OK
    assert answer.fit.explained >= answer.fit.allowed


def test_what_is_resolved_within_bounds_is_read_within_bounds():
    """Three rounds hide a few values of 40 in one client, none in another."""
    read, expected = [], []
    for seed in range(10):
        seen, known, truth = client(40, 3, seed)
        answer = quietly(closed_form, MODEL, seen, known, settings=ClosedForm(RATE))
        read.append(right(answer, truth))
        expected.append((1 + float(answer.fit.resolved)) / 2)
    assert 0.85 < np.mean(read) < 0.97
    assert np.mean(expected) == pytest.approx(np.mean(read), abs=0.05)


def test_an_answer_that_falls_short_is_told():
    """Of 96 values, which hardly differ in what they do."""
    seen, known, truth = client(96, 20)
    with pytest.warns(SomeWrongWarning, match=r"closed_form: .* some of its values are wrong. It"):
        answer = closed_form(MODEL, seen, known, settings=ClosedForm(RATE))
    assert max(0.85, (without_bounds(seen, known) == truth).mean()) < right(answer, truth) < 1
    assert answer.status == Status.OK
    assert answer.fit.explained < answer.fit.allowed
    assert "some of its values are wrong" in answer.reason


def test_an_outer_jit_reads_within_bounds_too():
    seen, known, truth = client(48, 8)
    with jax.enable_x64(True):
        answer = jax.jit(lambda m, k: closed_form(MODEL, m, k, settings=ClosedForm(RATE)))(
            seen, known
        )
    assert right(answer, truth) == 1
