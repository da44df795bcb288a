"""Full-batch clients whose rate is another in every round: updates that are clipped, schedules."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.tree import vdot

from attacks import (
    ClosedForm,
    Knowledge,
    MisfitWarning,
    Status,
    UncheckedWarning,
    binary_column,
    closed_form,
    diagnose,
)
from jaxfl import Federated, LocalTraining, Upload, logistic, simulate, stack_clients
from tests.attacks.wrong_recipes import client

ROUNDS, RATE = 8, 0.1
BY_ROUND = ClosedForm(by_round=True)


def shrunk(messages, factors):
    """The messages with updates times a factor for each round."""
    returned = jax.tree.map(
        lambda w, v: w - jax.vmap(jnp.multiply)(jnp.asarray(factors, w.dtype), w - v),
        messages.received,
        messages.returned,
    )
    return dataclasses.replace(messages, returned=returned)


def right(answer, truth):
    return (np.asarray(answer.values[0]) == truth).mean()


@pytest.mark.parametrize("solver", ["direct", "cg"])
def test_a_schedule_of_rates_is_found(solver):
    model, messages, known, truth = client("right", LocalTraining(RATE), 0, rounds=ROUNDS)
    factors = np.random.default_rng(0).uniform(0.2, 1, ROUNDS)
    messages = shrunk(messages, factors)
    answer = closed_form(
        model, messages, known, settings=dataclasses.replace(BY_ROUND, solver=solver)
    )
    assert right(answer, truth) == 1
    assert answer.status == Status.OK
    assert np.allclose(answer.learning_rate, RATE * factors, rtol=1e-4)
    with pytest.warns(MisfitWarning):
        assert right(closed_form(model, messages, known), truth) < 0.8


def test_a_round_that_changed_nothing_has_no_rate():
    model, messages, known, truth = client("right", LocalTraining(RATE), 0, rounds=ROUNDS)
    answer = closed_form(model, shrunk(messages, [1, 0.5, 0] + [1] * 5), known, settings=BY_ROUND)
    assert right(answer, truth) == 1
    assert answer.learning_rate[2] == 0
    assert answer.status == Status.OK


def test_what_no_rates_explain_is_a_misfit():
    """A round that goes uphill, and another client's messages, which tell nothing."""
    model, messages, known, truth = client("right", LocalTraining(RATE), 0, rounds=ROUNDS)
    with pytest.warns(MisfitWarning):
        uphill = closed_form(model, shrunk(messages, [1, -1] + [1] * 6), known, settings=BY_ROUND)
    assert uphill.status == Status.MISFIT
    other = client("right", LocalTraining(RATE), 1, rounds=ROUNDS)[1]
    with pytest.warns(MisfitWarning):
        wrong = closed_form(model, other, known, settings=BY_ROUND)
    assert wrong.status == Status.MISFIT
    assert right(wrong, truth) < 0.7


@pytest.mark.parametrize("changes", [{"learning_rate": 0.1}, {"members": 40}])
def test_rates_by_round_are_unknown_rates_of_whole_clients(changes):
    model, messages, known, _ = client("right", LocalTraining(RATE), 0, rounds=2)
    settings = ClosedForm(changes.get("learning_rate"), by_round=True)
    with pytest.raises(ValueError, match="by_round=True does not go with"):
        closed_form(model, messages, known, members=changes.get("members"), settings=settings)


@pytest.mark.parametrize(("place", "cause"), [(2, "clipped"), (-2, "another rate in every round")])
def test_a_clipped_client_is_diagnosed_and_read(place, cause):
    """Clipped in most rounds, which lengths tell, or in few."""
    told = LocalTraining(RATE)
    plain = client("right", told, 0, rounds=ROUNDS)[1].pseudo_gradient
    bound = float(jnp.sort(jnp.sqrt(jax.vmap(vdot)(plain, plain)))[place])
    sends = (Upload(clip=bound),)
    model, messages, known, truth = client("right", told, 0, rounds=ROUNDS, plugins=sends)
    diagnosis = diagnose(model, messages, known, told)
    assert diagnosis.findings[0].cause == cause
    assert "by_round=True" in diagnosis.attack
    assert right(closed_form(model, messages, known, settings=BY_ROUND), truth) == 1


@pytest.mark.parametrize("rounds", [2, 3])
def test_rates_are_unknowns_too(rounds):
    """A client in batches, whose messages hold no more equations than there are weights and rates:
    these contradict nothing, and that is said."""
    model, rng = logistic(8), np.random.default_rng(0)
    for records in (9 * rounds - rounds, 9 * rounds - 1):
        x = rng.normal(size=(records, 8)).astype(np.float32)
        x[:, 4] = x[:, 4] > 0
        y = (x[:, :3].sum(1) > 0).astype(int)
        training, key = LocalTraining(0.3, 2, 4), jax.random.key(records)
        run = simulate(
            model, model.init(key), stack_clients([(x, y)]), key, Federated(rounds, training)
        )
        known = Knowledge(x, y, (binary_column(4, 0.5),))
        with pytest.warns((UncheckedWarning, MisfitWarning)):
            answer = closed_form(model, run.messages(0), known, settings=BY_ROUND)
        assert answer.status in (Status.UNCHECKED, Status.MISFIT)
