"""PROLIN: its constraints, its optimiser, and where it must fail."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import MisfitWarning, Prolin, gradient_votes, prolin
from attacks.metrics import ranking
from attacks.properties.prolin import LEAST_P, _likelihood_loss, _mtadam, _Rounds
from tests.attacks.test_gibbs import KEY, PER_ROUND, ROUNDS, observed


@pytest.mark.parametrize("objective", ["code", "paper"])
def test_prolin_agrees_with_its_constraints(objective):
    observations, truth = observed(separation=6.0)
    weights = jnp.ones(ROUNDS)
    settings = Prolin(objective, learning_rate=1e-2, iterations=20_000)
    answer = prolin(observations, jnp.asarray([40, ROUNDS]), weights, KEY, settings=settings)
    unmet = float((observations.features**2).sum())
    assert np.asarray(answer.losses)[:, 1].max() < 0.05 * unmet
    assert (np.asarray(answer.iterations) < 20_000).all()
    assert ranking(np.asarray(answer.p)[1], truth, 0.5).f1 >= 0.8
    blind = dataclasses.replace(observations, participation=observations.participation[::-1])
    with pytest.warns(MisfitWarning, match="no better than with other rounds' participants"):
        other = prolin(blind, jnp.asarray([ROUNDS]), weights, KEY, settings=settings)
    assert ranking(np.asarray(other.p)[0], truth, 0.5).f1 < 0.7


def test_slopes_of_the_papers_likelihood_are_finite_where_p_is_sure():
    rounds = _Rounds(
        who=jnp.asarray([[0, 1]]),
        there=jnp.ones((1, 2)),
        sums=jnp.zeros(1),
        mean=jnp.asarray([[0.0, 1.0]]),
        variance=jnp.ones((1, 2)),
        weights=jnp.ones(1),
        targets=jnp.zeros(2),
    )
    sure = jnp.asarray([0.0, 1.0])
    slopes = jax.grad(_likelihood_loss, 1)(jnp.asarray([[0.9, 0.1]]), sure, rounds, "paper")
    assert (np.abs(slopes) <= 1 / LEAST_P).all()
    assert float(slopes[0]) < 0 < float(slopes[1])  # both features speak against what p says


def test_who_took_part_in_no_round_has_the_assumed_rate():
    """By PROLIN, and by votes: nothing else is known, whatever is drawn."""
    observations, _ = observed(separation=6.0)
    participation = observations.participation.at[:, 3].set(0)
    told = dataclasses.replace(observations, participation=participation)
    seen, settings = jnp.asarray([0, 5]), Prolin(iterations=50)
    for key in jax.random.split(KEY, 2):
        p = prolin(told, seen, jnp.ones(ROUNDS), key, settings=settings).p
        assert np.allclose(p[0], observations.rate)
        assert np.allclose(p[1, 3], observations.rate)
    votes = gradient_votes(told, seen)
    assert np.allclose(votes[0], observations.rate)
    assert np.allclose(votes[1, 3], observations.rate)


@pytest.mark.filterwarnings("ignore::attacks.fit.MisfitWarning")
@pytest.mark.slow
def test_prolin_knows_that_only_participants_count():
    observations, _ = observed()
    fewer = observations.participation.at[::3].multiply(
        jnp.arange(observations.participation.shape[1]) % 2
    )
    observations = dataclasses.replace(observations, participation=fewer)
    known = dataclasses.replace(observations, clients_per_round=PER_ROUND)
    for objective in ("code", "paper"):
        settings = Prolin(objective, learning_rate=1e-2, iterations=200)
        answers = [
            prolin(each, [30, ROUNDS], jnp.ones(ROUNDS), KEY, settings=settings)
            for each in (observations, known)
        ]
        assert answers[1].losses == pytest.approx(np.asarray(answers[0].losses), rel=1e-3)
        assert answers[1].p == pytest.approx(np.asarray(answers[0].p), abs=1e-3)
        start = prolin(
            known,
            [30, ROUNDS],
            jnp.ones(ROUNDS),
            KEY,
            settings=Prolin(objective, learning_rate=1e-2, iterations=1),
        ).p
        assert float(abs(answers[1].p - start).max()) > 0.05
    with pytest.raises(
        ValueError,
        match="clients_per_round=4 must lie between the 5 who took part in one round and the 20 c",
    ):
        prolin(dataclasses.replace(observations, clients_per_round=4), [30], jnp.ones(ROUNDS), KEY)
    few = jax.jit(
        lambda o: prolin(dataclasses.replace(o, clients_per_round=4), [30], jnp.ones(ROUNDS), KEY).p
    )
    assert np.isnan(np.asarray(few(observations))).all()
    with pytest.raises(ValueError, match="clients_per_round=21 must lie"):
        prolin(dataclasses.replace(observations, clients_per_round=21), [30], jnp.ones(ROUNDS), KEY)


def test_losses_that_are_never_finite_have_no_answer():
    observations, _ = observed()
    lost = dataclasses.replace(observations, features=observations.features.at[0].set(jnp.nan))
    answer = jax.jit(  # where values are data, and no bad input
        lambda seen: prolin(seen, [ROUNDS], jnp.ones(ROUNDS), KEY, settings=Prolin(iterations=300))
    )(lost)
    assert np.isnan(answer.p).all()


def test_mtadam_is_adam_for_one_loss_and_balances_several():
    start, zero = jnp.asarray([1.0, -2.0]), (jnp.zeros(3), jnp.zeros((3, 2)), jnp.zeros((3, 2)))
    one = jnp.asarray([[0.5, -1.0], [0, 0], [0, 0]])
    moved, _ = _mtadam(start, one, zero, jnp.asarray(1), 1e-3)
    assert moved == pytest.approx(np.asarray([1 - 1e-3, -2 + 1e-3]), abs=1e-6)
    scaled = jnp.asarray([[1.0, 0], [0, 1000.0], [0, 0]])
    moved, _ = _mtadam(start, scaled, zero, jnp.asarray(1), 1e-3)
    assert moved == pytest.approx(np.asarray([1 - 1e-3, -2 - 1e-3]), abs=1e-6)


def test_bad_objective_is_named():
    with pytest.raises(ValueError, match="objective='other' must be one of"):
        prolin(observed()[0], jnp.asarray([3]), jnp.ones(ROUNDS), KEY, settings=Prolin("other"))  # type: ignore[arg-type]
