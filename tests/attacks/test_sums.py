"""Which of two data sets a sum of updates holds: what is told is as sure as it is said to be."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from attacks import MisfitWarning, Status, SumTest, distinguish_in_sums
from jaxfl import (
    DPSGD,
    ClientData,
    Federated,
    Keep,
    LocalTraining,
    local_update,
    mlp,
    simulate,
    stack_clients,
)

FEATURES, RECORDS, CLIENTS, PER_ROUND, ROUNDS = 30, 8, 60, 9, 40
MODEL = mlp(FEATURES, (), 2)
TRAINING = LocalTraining(0.1)
RNG = np.random.default_rng(0)


def clients(count):
    x = RNG.normal(size=(count, RECORDS, FEATURES)).astype(np.float32)
    y = (x[..., 0] + RNG.normal(size=x.shape[:2]) > 0).astype(int)
    return stack_clients(list(zip(x, y, strict=True)))


HELD, OTHERS, FRESH = clients(CLIENTS), clients(300), clients(ROUNDS)
START = MODEL.init(jax.random.key(0))


@pytest.fixture(scope="module")
def games():
    """Sums of all rounds, and for each a participant's data set beside one that nobody has."""
    keep = Keep(clients=(), sums=True)
    federated = Federated(ROUNDS, TRAINING, clients_per_round=PER_ROUND, keep=keep)
    run = simulate(MODEL, START, HELD, jax.random.key(1), federated)
    aggregates = run.aggregates()
    asked = np.asarray([RNG.choice(np.flatnonzero(who)) for who in aggregates.participation])
    return aggregates, jax.tree.map(lambda a, b: jnp.stack([a, b], 1), FRESH, HELD.take(asked))


def told(aggregates, pairs, **changed):
    """Of every round, with its own data sets."""
    given = {"training": TRAINING, "settings": SumTest(draws=1)} | changed
    return distinguish_in_sums(MODEL, aggregates, pairs, OTHERS, jax.random.key(2), **given)


def test_rounds_are_told_as_often_as_their_distance_says(games):
    answer = told(*games)
    right, sure = answer.log_ratio > 0, stats.norm.cdf(answer.mu / 2)
    spread = np.sqrt((sure * (1 - sure)).sum())
    assert abs(right.sum() - sure.sum()) < 4 * spread
    assert 0.6 < sure.mean() < 0.99
    assert (answer.status == Status.OK).all()


def test_the_other_order_is_the_opposite_answer(games):
    aggregates, pairs = games
    answer = told(aggregates, pairs)
    other = told(aggregates, jax.tree.map(lambda a: a[:, ::-1], pairs))
    np.testing.assert_allclose(answer.log_ratio, -other.log_ratio, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(answer.mu, other.mu, rtol=1e-3)


def test_a_data_set_beside_itself_is_not_told(games):
    aggregates, pairs = games
    twice = jax.tree.map(lambda a: jnp.stack([a[:, 1], a[:, 1]], 1), pairs)
    answer = told(aggregates, twice)
    np.testing.assert_allclose(answer.log_ratio, 0, atol=1e-5)
    np.testing.assert_allclose(answer.mu, 0, atol=1e-5)


def test_sums_that_hold_neither_are_told_by_chance(games):
    aggregates, pairs = games
    strangers = clients(ROUNDS)
    neither = jax.tree.map(lambda a, b: jnp.stack([a[:, 0], b], 1), pairs, strangers)
    right = (told(aggregates, neither).log_ratio > 0).sum()
    assert abs(right - ROUNDS / 2) < 4 * np.sqrt(ROUNDS / 4)


def test_the_answer_is_that_of_covariances_inverted(games):
    aggregates, pairs = games
    first = jax.tree.map(lambda a: a[:1], aggregates)
    pair, key, settings = jax.tree.map(lambda a: a[0], pairs), jax.random.key(5), SumTest(draws=1)
    answer = distinguish_in_sums(
        MODEL, first, pair, OTHERS, key, training=TRAINING, settings=settings
    )
    received = jax.tree.map(lambda a: a[0], first.received)

    def sent(data: ClientData) -> np.ndarray:
        returned = local_update(MODEL, received, data, key, TRAINING)
        parts = jax.tree.leaves(jax.tree.map(jnp.subtract, received, returned))
        return np.concatenate([np.ravel(a) for a in parts]).astype(float)

    updates = np.stack([sent(OTHERS.client(c)) for c in range(300)])
    order = np.asarray(jax.random.permutation(jax.random.split(key, 3)[0], 300))
    fitting, judging = np.split(updates[order], 2)
    low, high = sent(pair.client(0)), sent(pair.client(1))
    covariance = np.cov(fitting.T)
    ridge = 0.1 * np.trace(covariance) / len(covariance)
    along = np.linalg.solve(covariance + ridge * np.eye(len(low)), high - low)
    count = PER_ROUND - 1
    noise = count * (judging @ along).var(ddof=1) * (1 + count / len(judging))
    total = np.concatenate([np.ravel(a[0]) for a in jax.tree.leaves(first.pseudo_gradient)])
    seen = (total - count * judging.mean(0) - (low + high) / 2) @ along
    gap = (high - low) @ along
    np.testing.assert_allclose(answer.mu[0], abs(gap) / np.sqrt(noise), rtol=1e-3)
    np.testing.assert_allclose(answer.log_ratio[0], gap * seen / noise, rtol=1e-2, atol=1e-2)


def test_noise_of_the_client_is_no_distance(games):
    """A data set beside itself: draws of its noise differ, and tell nothing."""
    noisy = dataclasses.replace(TRAINING, plugins=(DPSGD(1.0, 2.0),))
    keep = Keep(clients=(), sums=True)
    federated = Federated(ROUNDS, noisy, clients_per_round=PER_ROUND, keep=keep)
    run = simulate(MODEL, START, HELD, jax.random.key(1), federated)
    twice = jax.tree.map(lambda a: jnp.stack([a[:, 1], a[:, 1]], 1), games[1])
    answer = told(run.aggregates(), twice, training=noisy, settings=SumTest(draws=8))
    assert answer.mu.mean() < 0.3
    assert abs((answer.log_ratio > 0).sum() - ROUNDS / 2) < 4 * np.sqrt(ROUNDS / 4)


@pytest.mark.parametrize("draws", [1, 3])
def test_batches_vary_what_the_client_sends(games, draws):
    batches = dataclasses.replace(TRAINING, batch_size=2, epochs=2)
    keep = Keep(clients=(), sums=True)
    federated = Federated(ROUNDS, batches, clients_per_round=PER_ROUND, keep=keep)
    run = simulate(MODEL, START, HELD, jax.random.key(1), federated)
    answer = told(run.aggregates(), games[1], training=batches, settings=SumTest(draws=draws))
    right, sure = answer.log_ratio > 0, stats.norm.cdf(answer.mu / 2)
    assert abs(right.sum() - sure.sum()) < 4 * np.sqrt((sure * (1 - sure)).sum())


def test_sums_of_another_recipe_or_of_more_clients_are_misfits(games):
    aggregates, pairs = games
    with pytest.warns(MisfitWarning, match="of 40 rounds are of neither data set"):
        answer = told(aggregates, pairs, training=LocalTraining(0.02))
    assert (answer.status == Status.MISFIT).mean() > 0.9
    two = jnp.zeros_like(aggregates.participation).at[:, :2].set(True)
    with pytest.warns(MisfitWarning):
        fewer = told(dataclasses.replace(aggregates, participation=two), pairs)
    assert (fewer.status == Status.MISFIT).mean() > 0.9


WRONG = {
    "negated": lambda sums: -sums,
    "means": lambda sums: sums / PER_ROUND,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_sums_that_are_a_little_wrong_in_all_rounds_are_misfits(games, wrong):
    """Each round alone is within what the others' noise allows, in most."""
    aggregates, pairs = games
    sums = jax.tree.map(WRONG[wrong], aggregates.pseudo_gradient)
    with pytest.warns(MisfitWarning, match="of 40 rounds are of neither data set"):
        answer = told(dataclasses.replace(aggregates, pseudo_gradient=sums), pairs)
    assert (answer.status == Status.MISFIT).all()


def test_one_round_that_is_far_off_says_nothing_of_the_others(games):
    aggregates, pairs = games
    sums = jax.tree.map(lambda a: a.at[7].multiply(50), aggregates.pseudo_gradient)
    with pytest.warns(MisfitWarning, match="sums of 1 of 40 rounds") as warned:
        told(dataclasses.replace(aggregates, pseudo_gradient=sums), pairs)
    assert warned[0].filename == __file__


def test_own_clients_of_the_other_labels_are_misfits(games):
    aggregates, pairs = games
    flipped = dataclasses.replace(OTHERS, y=1 - OTHERS.y)
    with pytest.warns(MisfitWarning):
        answer = distinguish_in_sums(
            MODEL, aggregates, pairs, flipped, jax.random.key(2), training=TRAINING
        )
    assert (answer.status == Status.MISFIT).all()


@pytest.mark.filterwarnings("ignore::attacks.MisfitWarning")
def test_right_sums_are_seldom_misfits():
    """20 federations of everything new, of the fewest clients that the server may have: as many as
    are false alarms in one of a thousand such tests, at most."""
    keep, settings = Keep(clients=(), sums=True), SumTest(draws=2)
    federated = Federated(6, TRAINING, clients_per_round=PER_ROUND, keep=keep)
    alarms = 0
    for seed in range(20):
        key = jax.random.key(seed)
        held, others, fresh = clients(CLIENTS), clients(20), clients(6)
        aggregates = simulate(MODEL, START, held, key, federated).aggregates()
        asked = np.asarray([np.flatnonzero(who)[0] for who in aggregates.participation])
        pairs = jax.tree.map(lambda a, b: jnp.stack([a, b], 1), fresh, held.take(asked))
        answer = distinguish_in_sums(
            MODEL, aggregates, pairs, others, key, training=TRAINING, settings=settings
        )
        alarms += bool((answer.status == Status.MISFIT).any())
    assert alarms <= stats.binom.ppf(0.999, 20, 0.01)


def test_a_sum_of_one_is_refused(games):
    aggregates, pairs = games
    first = jax.tree.map(lambda a: a[:1], aggregates)
    alone = dataclasses.replace(
        first, participation=jnp.zeros_like(first.participation).at[0, 0].set(True)
    )
    pair, few = jax.tree.map(lambda a: a[0], pairs), OTHERS.take(np.arange(3))
    with pytest.raises(ValueError, match="participation: a round has 1 participants"):
        distinguish_in_sums(MODEL, alone, pair, OTHERS, jax.random.key(0), training=TRAINING)
    with pytest.raises(ValueError, match=r"others.mask has shape \(3, 8\)"):
        distinguish_in_sums(MODEL, first, pair, few, jax.random.key(0), training=TRAINING)
