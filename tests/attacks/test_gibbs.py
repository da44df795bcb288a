"""Decoders of sums of features against closed forms and enumeration, and where they must fail."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm
from sklearn.linear_model import Ridge

from attacks import (
    Gibbs,
    Observations,
    Prolin,
    box,
    gibbs,
    gradient_votes,
    identifiability,
    least_squares,
    prolin,
    ridge,
)
from attacks.metrics import ranking
from attacks.properties.best_in_box import box_and_quadratic
from attacks.properties.detector_laws import overlap
from attacks.properties.law_of_sums import DRIFTS, drift_evidence, likelihood
from attacks.properties.observations import until

KEY = jax.random.key(0)
CLIENTS, PER_ROUND, ROUNDS = 20, 5, 60


def observed(
    separation=4.0,
    seed=0,
    clients=CLIENTS,
    per_round=PER_ROUND,
    rounds=ROUNDS,
    positives=3,
    correlation=0.2,
):
    """Sums of normal features with class means -1 and 1, and who has the property."""
    rng = np.random.default_rng(seed)
    a = np.zeros((rounds, clients), np.float32)
    for row in a:
        row[rng.permutation(clients)[:per_round]] = 1
    truth = np.isin(np.arange(clients), rng.permutation(clients)[:positives])
    deviation = 2 / separation
    mean, variance = (
        np.tile([-1.0, 1.0], (rounds, 1)),
        np.tile([deviation**2, 1.5 * deviation**2], (rounds, 1)),
    )
    own = np.sqrt(correlation) * rng.normal(size=clients) + np.sqrt(1 - correlation) * rng.normal(
        size=(rounds, clients)
    )
    x = np.where(truth, 1 + np.sqrt(1.5) * deviation * own, -1 + deviation * own)
    known = mean, variance, np.full(rounds, correlation), 200, np.inf
    numbers = (a * x).sum(1), a, *known, np.zeros((rounds, rounds)), np.zeros(rounds), 0.1
    each = jnp.arange(rounds)
    return Observations(
        *(jnp.asarray(n, jnp.float32) for n in numbers), detector_number=each, rounds=each
    ), truth


def test_least_squares_and_ridge_are_those_of_numpy_and_scikit_learn():
    observations, _ = observed()
    a, b = np.asarray(observations.participation, float), np.asarray(observations.features, float)
    weights = np.linspace(0.2, 1, ROUNDS)
    seen = (5, 12, 30, ROUNDS)
    plain = np.asarray(least_squares(observations, jnp.asarray(seen)))
    regular = np.asarray(ridge(observations, jnp.asarray(seen), jnp.asarray(weights, jnp.float32)))
    for row, (t, answer) in enumerate(zip(seen, plain, strict=True)):
        assert answer == pytest.approx(np.linalg.lstsq(a[:t], b[:t], rcond=1e-6)[0], abs=2e-3)
        expected = (
            Ridge(alpha=5.0, fit_intercept=False).fit(a[:t], b[:t], sample_weight=weights[:t]).coef_
        )
        assert regular[row] == pytest.approx(expected, abs=1e-4)


def test_least_squares_is_worst_where_rounds_equal_clients():
    errors = []
    for seed in range(5):
        observations, truth = observed(seed=seed, rounds=100)
        found = np.asarray(least_squares(observations, jnp.asarray([10, CLIENTS, 60, 100])))
        errors.append(((found - np.where(truth, 1, -1)) ** 2).mean(1))
    few, equal, many, most = np.median(errors, 0)
    assert equal > 2 * many > 2 * most
    assert equal > few


def test_votes_over_reconstructed_gradients_need_no_gradients():
    rng = np.random.default_rng(0)
    observations, _ = observed()
    gradients = rng.normal(size=(ROUNDS, 7))  # sums over participants
    directions, offset = rng.normal(size=(ROUNDS, 7)), rng.normal(size=ROUNDS)
    observations = dataclasses.replace(
        observations,
        cross=jnp.asarray(gradients @ directions.T, jnp.float32),
        offset=jnp.asarray(offset, jnp.float32),
    )
    a = np.asarray(observations.participation, float)
    for t in (15, 40):
        clients = np.linalg.pinv(a[:t]) @ gradients[:t]
        expected = (clients @ directions[:t].T + offset[:t] > 0).mean(1)
        assert np.asarray(gradient_votes(observations, jnp.asarray([t])))[0] == pytest.approx(
            expected, abs=0.03
        )


def test_fixed_cohorts_are_not_identifiable():
    cohorts = np.repeat(np.eye(4), 5, axis=1)[np.arange(40) % 4]
    fixed = identifiability(jnp.asarray(cohorts), jnp.asarray([40]))
    assert fixed.rank.tolist() == [4]
    assert not np.asarray(fixed.resolved).any()
    assert np.isinf(np.asarray(fixed.variance)).all()
    drawn = identifiability(observed()[0].participation, jnp.asarray([10, 60]))
    assert drawn.rank.tolist() == [10, CLIENTS]
    assert not np.asarray(drawn.resolved)[0].any()
    assert np.asarray(drawn.resolved)[1].all()


@pytest.mark.filterwarnings("ignore::attacks.fit.MisfitWarning")
@pytest.mark.parametrize("decode", [box, lambda o, t: gibbs(o, t, KEY)], ids=["box", "gibbs"])
def test_decoders_find_who_has_the_property_and_nothing_where_there_is_no_signal(decode):
    scores, elsewhere = [], []
    for seed in range(5):
        observations, truth = observed(6.0, seed)
        scores.append(
            ranking(np.asarray(decode(observations, jnp.asarray([ROUNDS])))[0], truth, 0.5).f1
        )
        # Classes that do not differ: the assumed rate is all there is to say.
        none = dataclasses.replace(observations, mean=jnp.full((ROUNDS, 2), -1.0))
        blind = np.asarray(decode(none, jnp.asarray([ROUNDS])))[0]
        assert np.abs(blind - 0.1).max() < 0.05
        # Somebody else's rounds: no better than chance.
        rows = np.random.default_rng(seed).permutation(ROUNDS)
        wrong = dataclasses.replace(observations, participation=observations.participation[rows])
        elsewhere.append(ranking(np.asarray(decode(wrong, jnp.asarray([ROUNDS])))[0], truth, 0.5))
        assert elsewhere[-1].f1 < 0.7
    assert min(scores) == 1
    assert np.mean([found.f1 for found in elsewhere]) < 0.4
    assert np.mean([found.auc for found in elsewhere]) < 0.6


def test_posterior_is_that_of_enumeration():
    observations, _ = observed(separation=1.5, clients=8, per_round=3, rounds=12, positives=2)
    settings = Gibbs(chains=64, sweeps=1000)
    found = np.asarray(gibbs(observations, jnp.asarray([12]), KEY, settings=settings))[0]
    # Gibbs takes the variances from the box estimate, and so must the enumeration.
    _, (matrix, vector) = jax.tree.map(
        lambda a: np.asarray(a, float), box_and_quadratic(observations, jnp.asarray(12), 200)
    )
    every = np.asarray(list(itertools.product((0, 1), repeat=8)), float)
    log = (
        -0.5 * ((every @ matrix) * every).sum(1) + every @ vector + every.sum(1) * np.log(0.1 / 0.9)
    )
    weight = np.exp(log - log.max())
    assert found == pytest.approx(weight @ every / weight.sum(), abs=0.02)
    assert 0.05 < found.max() < 0.999  # a question that is not trivial


def test_likelihood_is_that_of_the_features_sum():
    observations, truth = observed(correlation=0.0)
    observations = dataclasses.replace(
        observations, calibrated_on=jnp.asarray(jnp.inf), pool=jnp.asarray(jnp.inf)
    )
    p = jnp.asarray(truth, jnp.float32)
    matrix, vector = likelihood(
        dataclasses.replace(observations, participation=observations.participation.astype(bool)), p
    )
    a = np.asarray(observations.participation, float)
    (m0, m1), (v0, v1) = (
        np.asarray(observations.mean.T, float),
        np.asarray(observations.variance.T, float),
    )
    variance = (a * np.where(truth, v1[:, None], v0[:, None])).sum(1)

    def log_density(q):
        mean = (a * (m0[:, None] + (m1 - m0)[:, None] * q)).sum(1)
        return -((np.asarray(observations.features) - mean) ** 2 / (2 * variance)).sum()

    q = np.random.default_rng(0).random(CLIENTS)
    quadratic = -0.5 * q @ np.asarray(matrix) @ q + np.asarray(vector) @ q
    assert quadratic == pytest.approx(log_density(q) - log_density(0 * q), rel=1e-4)


def irregular():
    """Every third round kept, ten of them to a detector, laws and numbers of participants that
    differ; and who has the property."""
    observations, truth = observed(correlation=0.4)
    rng = np.random.default_rng(1)
    a = np.asarray(observations.participation) * (rng.random((ROUNDS, CLIENTS)) < 0.8)
    a[:, 0] = 1
    scale = rng.uniform(0.5, 2, (ROUNDS, 1))
    observations = dataclasses.replace(
        observations,
        participation=jnp.asarray(a, jnp.float32),
        mean=jnp.asarray(observations.mean * scale, jnp.float32),
        variance=jnp.asarray(observations.variance * scale**2, jnp.float32),
        correlation=jnp.linspace(0.1, 0.6, ROUNDS),
        calibrated_on=jnp.asarray(50.0),
        pool=jnp.asarray(80.0),
        detector_number=jnp.arange(ROUNDS) // 10,
        rounds=3 * jnp.arange(ROUNDS) + 7,
    )
    return observations, truth


def moments(observations, seen, spread, drift):
    """Of the sums, written out in double precision: mean without anyone's property, what p adds,
    covariance."""
    a = np.asarray(observations.participation, float)[:seen]
    (m0, m1), (v0, v1) = (
        np.asarray(x.T, float)[:, :seen] for x in (observations.mean, observations.variance)
    )
    # Participants share their round's mean variance, a client's features correlate, the error of
    # mu0 counts for everyone in all rounds of a detector (in others for its records alone), and
    # what all clients' features have drifted by is a random walk.
    total = (a * (spread * v1[:, None] + (1 - spread) * v0[:, None])).sum(1)
    share, common = np.sqrt(total / a.sum(1)), a.sum(1) * np.sqrt(v0)
    steps = np.arange(1000) < np.asarray(observations.rounds)[:seen, None]
    number = np.asarray(observations.detector_number)[:seen]
    rho, same = float(observations.correlation[seen - 1]), number[:, None] == number
    shared = same / float(observations.calibrated_on) + np.where(same, 1, rho) / float(
        observations.pool
    )
    shared += drift**2 * steps @ steps.T.astype(float)
    covariance = (
        np.diag((1 - rho) * total)
        + rho * share[:, None] * (a @ a.T) * share
        + common[:, None] * shared * common
    )
    return a.sum(1) * m0, (m1 - m0)[:, None] * a, covariance


def test_likelihood_knows_that_features_are_alike_calibration_errs_and_features_drift():
    (observations, truth), seen, drift = irregular(), 25, 0.05
    matrix, vector = likelihood(
        until(observations, jnp.asarray(seen)), jnp.asarray(truth, jnp.float32), drift
    )
    mean, design, covariance = moments(observations, seen, truth.astype(float), drift)

    def log_density(q):
        return multivariate_normal(mean + design @ q, covariance).logpdf(
            np.asarray(observations.features)[:seen]
        )

    q = np.random.default_rng(0).random(CLIENTS)
    quadratic = -0.5 * q @ np.asarray(matrix) @ q + np.asarray(vector) @ q
    assert quadratic == pytest.approx(log_density(q) - log_density(0 * q), rel=1e-3)


def test_evidence_of_drift_is_the_density_of_the_sums():
    (observations, _), seen, drifts = irregular(), 25, (0.0, 0.02, 0.1, 0.4)
    found = np.asarray(drift_evidence(until(observations, jnp.asarray(seen)), jnp.asarray(drifts)))
    rate, expected = float(observations.rate), []
    for drift in drifts:
        mean, design, covariance = moments(observations, seen, np.full(CLIENTS, rate), drift)
        law = multivariate_normal(
            mean + rate * design.sum(1), covariance + rate * (1 - rate) * design @ design.T
        )
        expected.append(law.logpdf(np.asarray(observations.features)[:seen]))
    assert found - found[0] == pytest.approx(np.asarray(expected) - expected[0], rel=1e-3, abs=1e-2)


def test_drift_is_estimated_and_does_not_hide_who_has_the_property():
    """All clients' features move from the shadows': the sums say so, and tell clients apart as
    before."""
    still, drifting = [], []
    for seed in range(4):
        observations, truth = observed(6.0, seed)
        moved = jnp.asarray(
            np.linspace(0, 1.5, ROUNDS), jnp.float32
        )  # of a distance between classes of 2
        shifted = dataclasses.replace(
            observations, features=observations.features + PER_ROUND * moved
        )
        for found, each in ((still, observations), (drifting, shifted)):
            found.append(DRIFTS[int(drift_evidence(each, jnp.asarray(DRIFTS)).argmax())])
        for decode in (lambda o: box(o, [ROUNDS]), lambda o: gibbs(o, [ROUNDS], KEY)):
            assert ranking(np.asarray(decode(shifted))[0], truth, 0.5).f1 == 1
    assert max(still) < min(drifting)


def with_votes():
    """Observations whose aggregates every round's detector has looked at."""
    rng = np.random.default_rng(2)
    cross, offset = rng.normal(size=(ROUNDS, ROUNDS)), rng.normal(size=ROUNDS)
    return dataclasses.replace(
        observed()[0],
        cross=jnp.asarray(cross, jnp.float32),
        offset=jnp.asarray(offset, jnp.float32),
    )


DECODERS = {
    "ols": lambda o, seen: least_squares(o, seen),
    "ridge": lambda o, seen: ridge(o, seen, jnp.full(len(o.features), 0.7)),
    "baseline": lambda o, seen: gradient_votes(o, seen),
    "box": lambda o, seen: box(o, seen),
    "gibbs": lambda o, seen: gibbs(o, seen, KEY),
    "prolin": lambda o, seen: (
        prolin(o, seen, jnp.full(len(o.features), 0.7), KEY, settings=Prolin(iterations=100)).p
    ),
}


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
def test_rounds_that_are_not_seen_may_hold_anything(decode):
    observations = with_votes()
    seen = jnp.asarray([15, 40])
    expected = np.asarray(decode(observations, seen))
    assert np.isfinite(expected).all()
    assert (np.ptp(expected, 1) > 0).all()
    for value in (jnp.nan, 1e4):
        lost = {
            name: getattr(observations, name).at[40:].set(value)
            for name in ("features", "mean", "variance", "correlation", "cross", "offset")
        }
        lost["cross"] = lost["cross"].at[:, 40:].set(value)
        assert np.asarray(decode(dataclasses.replace(observations, **lost), seen)) == pytest.approx(
            expected, abs=1e-5
        )
    told = dataclasses.replace(observations, participation=observations.participation.astype(bool))
    assert np.asarray(decode(told, seen)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "name", [name for name in DECODERS if name != "baseline"]
)  # whose detectors vote in empty rounds too
def test_rounds_without_participants_say_nothing(name):
    observations, decode = observed()[0], DECODERS[name]
    empty = dataclasses.replace(
        observations,
        participation=observations.participation.at[40].set(0),
        features=observations.features.at[40].set(0),
    )
    expected = np.asarray(decode(observations, jnp.asarray([40])))
    assert np.asarray(decode(empty, jnp.asarray([41]))) == pytest.approx(expected, abs=1e-3)


def test_the_assumed_rate_is_the_prior():
    observations, _ = observed()
    none = dataclasses.replace(
        observations, mean=jnp.full((ROUNDS, 2), -1.0), rate=jnp.asarray(0.3)
    )
    assert np.abs(np.asarray(gibbs(none, [ROUNDS], KEY)) - 0.3).max() < 0.05
    assert np.abs(np.asarray(box(none, [ROUNDS])) - 0.3).max() < 0.05


def test_overlap_is_the_common_area_of_two_normal_densities():
    grid = np.linspace(-40, 40, 400_001)
    cases = [(0, 1, 1, 1), (0, 1, 0.5, 4), (-1, 1, 2, 2.0001), (0, 3, 1, 9), (1, -1, 1, 2)]
    found = overlap(
        jnp.asarray([[m0, m1] for m0, m1, _, _ in cases]),
        jnp.asarray([[v0, v1] for *_, v0, v1 in cases]),
    )
    for (m0, m1, v0, v1), area in zip(cases, found, strict=True):
        common = np.minimum(norm.pdf(grid, m0, v0**0.5), norm.pdf(grid, m1, v1**0.5))
        assert area == pytest.approx(np.trapezoid(common, grid), abs=1e-3)


def test_ranking_counts_as_defined():
    truth, scores = np.asarray([1, 1, 0, 0, 0]), np.asarray([0.9, 0.4, 0.6, 0.2, 0.1])
    found = ranking(scores, truth, 0.5)
    assert found.f1 == pytest.approx(0.5)
    assert found.auc == pytest.approx(5 / 6)
    assert found.brier == pytest.approx(np.mean([0.01, 0.36, 0.36, 0.04, 0.01]))
    assert np.isnan(ranking(np.asarray([np.nan, 0, 0, 0, 0]), truth, 0.5).f1)
    assert ranking(np.zeros(5), truth, 0.5).f1 == 0


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (lambda o: box(o, [ROUNDS + 1]), r"seen=\[61\] must be integers from 0 to 60"),
        (lambda o: gibbs(o, [-1], KEY), r"seen=\[-1\]"),
        (lambda o: least_squares(o, 5), r"seen has shape \(\)"),
        (lambda o: gradient_votes(o, [2.5]), r"seen=\[2\.5\]"),
        (lambda o: identifiability(o.participation, [61]), r"seen=\[61\]"),
        (lambda o: identifiability(o.participation, [3], 2.0), "tolerance=2.0"),
        (lambda o: box(o, [3], iterations=0), "iterations=0"),
        (lambda o: gibbs(o, [3], KEY, settings=Gibbs(chains=0)), "chains=0"),
        (lambda o: gibbs(o, [3], KEY, settings={}), r"settings=\{\} must be a Gibbs"),
        (lambda o: ridge(o, [3], jnp.ones(5)), r"weights has shape \(5,\)"),
        (lambda o: ridge(o, [3], jnp.full(ROUNDS, jnp.nan)), "weights holds 60 values"),
        (lambda o: ridge(o, [3], jnp.ones(ROUNDS), -1.0), "penalty=-1.0"),
        (
            lambda o: prolin(o, [3], jnp.ones(ROUNDS), KEY, settings=Prolin(patience=0)),
            "patience=0",
        ),
        (lambda o: box(dataclasses.replace(o, mean=o.mean[:3]), [3]), r"observations\.mean"),
    ],
)
def test_bad_input_of_decoders_is_named(decode, message):
    with pytest.raises(ValueError, match=message):
        decode(observed()[0])
