"""Driouich 2022 and 2023: the binary attribute of linear least-squares clients, and the bound that
needs no truth."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import (
    Moments,
    infer_binary_attribute,
    infer_by_logistic,
    infer_in_box,
    local_moments,
    local_optimum,
    structured_moments,
)
from attacks.fit import MisfitWarning, UncheckedWarning
from attacks.local_models import attribute
from jaxfl import Federated, LocalTraining, linear, simulate, stack_clients
from tests.attacks.linear_clients import as_messages, optimum_of, trained


def test_moments_that_are_not_exact_bound_nothing():
    x, y, messages = trained(4, 10, epochs=3)
    with pytest.warns(MisfitWarning, match="steps=2, learning_rate"):
        moments = structured_moments(messages, x, y, 0, 0.01, steps=2)
    assert np.isnan(infer_binary_attribute(x, y, 0, moments).bound)
    broken = dataclasses.replace(moments, cross=moments.cross * np.nan)
    for attack in (infer_binary_attribute, infer_by_logistic, infer_in_box):
        with pytest.raises(ValueError, match=r"moments\.cross holds"):
            attack(x, y, 0, broken)
    with pytest.raises(ValueError, match="params holds"):
        infer_binary_attribute(x, y, 0, moments, params=np.full(5, np.nan))


@pytest.mark.parametrize("dtype", [jax.numpy.float64, jax.numpy.float32])
@pytest.mark.parametrize(("d", "steps"), [(4, 2), (4, 30), (12, 5)])
def test_moments_of_several_steps_are_exact(d, steps, dtype):
    x, y, messages = trained(d, 3, steps, participants=None, dtype=dtype)
    hidden = np.where(np.arange(d) == 0, np.nan, x)
    moments = structured_moments(messages, hidden, y, 0, 0.01, steps=steps)  # warnings are errors
    assert moments.exact
    full = np.c_[x, np.ones(len(x))]
    tolerance = 1e-9 if dtype == jax.numpy.float64 else 2e-3
    np.testing.assert_allclose(moments.second, full.T @ full / len(x), atol=tolerance)
    np.testing.assert_allclose(moments.cross, full.T @ y / len(x), atol=tolerance)
    decoded = infer_binary_attribute(hidden, y, 0, moments)
    assert 0 <= decoded.bound <= np.mean(decoded.values == x[:, 0])
    wrong = {"steps": steps + 1}, {"y": y[::-1]}, {"learning_rate": 0.02}, {"steps": 1}
    told = {"messages": messages, "x": hidden, "y": y, "attribute": 0, "learning_rate": 0.01}
    for mistake in wrong:
        with pytest.warns(MisfitWarning, match="structured_moments"):
            assert not structured_moments(**(told | {"steps": steps} | mistake)).exact


@pytest.mark.parametrize(("steps", "length", "weight"), [(5, 1.5, 1), (30, 0.5, 1), (2, 0.6, 1e-3)])
def test_moments_of_long_ways_are_exact(steps, length, weight):
    """Of steps as long as stability allows, of many, and of small weights of the attribute."""
    x, y, _ = trained(5, 2)
    full = np.c_[x, np.ones(len(x))]
    second, cross = full.T @ full / len(x), full.T @ y / len(x)
    rate = length / 2 / np.linalg.eigvalsh(second)[-1]
    received = np.random.default_rng(0).normal(size=(4, 6)) * np.r_[weight, np.ones(5)]
    returned = received
    for _ in range(steps):
        returned = returned - 2 * rate * (returned @ second - cross)
    moments = structured_moments(as_messages(received, returned), x, y, 0, rate, steps=steps)
    assert moments.exact  # and warnings are errors
    errors = np.abs(moments.second - second).max(), np.abs(moments.cross - cross).max()
    assert max(errors) <= moments.rounding < 1e-9


@pytest.mark.parametrize("steps", [3, 300])
def test_steps_that_no_moments_explain(steps):
    """Of a rate so high that every way leads far off."""
    x, y, messages = trained(4, 5, 3)
    with pytest.warns(MisfitWarning, match=f"steps={steps}, learning_rate=5.0"):
        assert not structured_moments(messages, x, y, 0, 5.0, steps=steps).exact


def test_impossible_moments_bound_nothing():
    x, y, _ = trained(4, 2)
    full = np.c_[x, np.ones(len(x))]
    second, cross = full.T @ full / len(x), full.T @ y / len(x)
    assert np.isfinite(infer_binary_attribute(x, y, 0, Moments(second, cross, 0.01)).bound)
    negative_rate, negative_error = second.copy(), cross.copy()
    negative_rate[0, -1] = negative_rate[-1, 0] = negative_rate[0, 0] = -0.2
    negative_error[0] += 100
    for moments in (Moments(negative_rate, cross, 0.01), Moments(second, negative_error, 0.01)):
        for rule in ("rank", "threshold"):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                assert np.isnan(infer_binary_attribute(x, y, 0, moments, rule=rule).bound)
            assert [w.category for w in told] in ([], [MisfitWarning])
    inexact = Moments(negative_rate, cross, 0.01, exact=False)
    with pytest.warns(MisfitWarning, match="which no column of 0 and 1 has"):
        infer_in_box(x, y, 0, inexact)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda x, y: (x, np.roll(y, 1)), "y has other mean products with x"),
        (lambda x, y: (x[::-1], y), "y has other mean products with x"),
        (lambda x, y: (x * [1, 3, 1, 1, 1], y), "the public columns have other mean products"),
        (lambda x, y: (x[:, [0, 2, 1, 3, 4]], y), "the public columns have other mean products"),
        (lambda x, y: (x[:50], y[:50]), "the public columns have other mean products"),
    ],
    ids=["y_in_another_order", "x_in_another_order", "another_unit", "columns_exchanged", "half"],
)
@pytest.mark.parametrize("attack", [infer_binary_attribute, infer_by_logistic, infer_in_box])
def test_nothing_is_proven_of_other_records_than_the_moments(attack, mistake, said):
    x, y, messages = trained(5, 60)
    moments = local_moments(local_optimum(messages))
    x, y = mistake(x, y)
    with pytest.warns(MisfitWarning, match=f"^{attack.__name__}: {said}"):
        assert np.isnan(attack(x, y, 0, moments).bound)


@pytest.mark.parametrize("rescaled", [lambda s: 2 * s - 1, lambda s: s / 2])
def test_an_attribute_that_is_not_0_or_1_is_said(rescaled):
    x, y, _ = trained(5, 2)
    x[:, 0] = rescaled(x[:, 0])
    full = np.c_[x, np.ones(len(x))]
    moments = Moments(full.T @ full / len(x), full.T @ y / len(x), 0.01)
    for attack in (infer_binary_attribute, infer_by_logistic, infer_in_box):
        with pytest.warns(MisfitWarning, match="one number of a column that is 0 or 1"):
            attack(x, y, 0, moments)


@pytest.mark.parametrize("d", [9, 53])
def test_two_messages_of_a_deterministic_run_are_enough_where_public_columns_are_known(d):
    x, y, messages = trained(d, 300, participants=None)
    hidden = x.copy()
    hidden[:, 0] = np.nan
    truth = optimum_of(x, y)
    for rounds in ([0, 1], list(range(0, 300, 10))):
        moments = structured_moments(messages.select(rounds), hidden, y, 0, 0.01)
        assert np.linalg.norm(moments.optimum - truth) <= 1e-9 * np.linalg.norm(truth)
        assert infer_binary_attribute(hidden, y, 0, moments).prior == pytest.approx(
            x[:, 0].mean(), abs=1e-8
        )
    with pytest.raises(ValueError, match="learning_rate=0"):
        structured_moments(messages, hidden, y, 0, 0)


def test_of_one_message_a_wrong_rate_tells_of_no_whole_number_of_records():
    x, y, messages = trained(9, 300, participants=None)
    one = messages.select([40])
    assert structured_moments(one, x, y, 0, 0.01).exact  # warnings are errors
    for rate in (0.008, 0.0095, 0.013):
        with pytest.warns(MisfitWarning, match="one message tells.* no whole number"):
            assert not structured_moments(one, x, y, 0, rate).exact

    def in_digits(kind):
        ends = [jax.tree.map(kind, tree) for tree in (one.received, one.returned)]
        return dataclasses.replace(one, received=ends[0], returned=ends[1])

    assert structured_moments(in_digits(np.float32), x, y, 0, 0.01).exact
    with pytest.warns(UncheckedWarning, match="of so few digits"):
        structured_moments(in_digits(np.float16), x, y, 0, 0.01)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 10**6),
    st.floats(0.01, 3),
    st.floats(0.05, 0.95),
    st.floats(-3, 3),
    st.floats(0, 1),
)
def test_any_model_keeps_the_threshold_rules_bound(seed, noise, rate, weight, distance):
    """Proposition 4 (Driouich 2023), for models at any distance from the optimum, from decoded
    moments alone."""
    rng = np.random.default_rng(seed)
    x = np.c_[rng.random(80) < rate, rng.normal(size=(80, 4))].astype(float)
    coefficients = np.r_[weight, rng.normal(size=5)]
    full = np.c_[x, np.ones(80)]
    y = full @ coefficients + noise * rng.normal(size=80)
    received = rng.normal(size=(4, 6))
    messages = as_messages(received, received - 2 * 0.01 * (received @ full.T - y) @ full / 80)
    moments = structured_moments(messages, x, y, 0, 0.01)
    model = coefficients + distance * rng.normal(size=6)
    for rule in ("threshold", "rank"):
        found = infer_binary_attribute(x, y, 0, moments, params=model, rule=rule)
        assert found.mse == pytest.approx(np.mean((full @ model - y) ** 2), rel=1e-6, abs=1e-9)
        assert (found.values == x[:, 0]).mean() >= found.bound - 1e-9


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 8),
    st.floats(0.01, 3),
    st.floats(0.05, 0.95),
    st.floats(-3, 3),
)
def test_accuracy_is_never_below_the_bound(seed, d, noise, rate, weight):
    """Proposition 3, on messages that a server could have: any received models, one full-batch
    step."""
    rng = np.random.default_rng(seed)
    m, p = 60, d + 1
    x = np.c_[rng.normal(size=(m, d)), np.ones(m)]
    x[:, 0] = rng.random(m) < rate
    coefficients = rng.normal(size=p)
    coefficients[0] = weight
    y = x @ coefficients + noise * rng.normal(size=m)
    received = rng.normal(size=(3 * p, p))
    returned = received - 2 * 0.01 * (received @ x.T - y) @ x / m
    if np.linalg.matrix_rank(x) < p:
        return
    found = local_optimum(as_messages(received, returned))
    inferred = infer_binary_attribute(x[:, :-1], y, 0, local_moments(found))
    assert (inferred.values == x[:, 0]).mean() >= inferred.bound - 1e-9
    assert inferred.prior == pytest.approx(x[:, 0].mean(), abs=1e-8)


def test_two_datasets_with_equal_messages():
    """Proposition 1 (Driouich 2022): X_p = [Z; Z], 1'y1 = 1'y2; the attribute marks the first or
    the second half."""
    rng = np.random.default_rng(0)
    z, y1 = rng.normal(size=(20, 4)), rng.normal(size=20)
    y2 = rng.normal(size=20)
    y2 += (y1 - y2).mean()
    ones, y = np.ones(20), np.r_[y1, y2]
    sides = [np.r_[ones, 0 * ones], np.r_[0 * ones, ones]]
    features = [np.c_[side, np.r_[z, z]] for side in sides]
    with jax.enable_x64(True):
        model, key = linear(5), jax.random.key(0)
        params = jax.tree.map(lambda a: a.astype(jnp.float64), model.init(key))
        federated = Federated(rounds=30, training=LocalTraining(0.05, epochs=2))
        both = [
            simulate(model, params, stack_clients([(x, y)]), key, federated).messages(0)
            for x in features
        ]
        gaps = jax.tree.map(
            lambda a, b: float(jnp.abs(a - b).max()), both[0].returned, both[1].returned
        )
    assert max(jax.tree.leaves(gaps)) < 1e-12
    received = rng.normal(size=(40, 6))
    accuracies = []
    for x, side in zip(features, sides, strict=True):
        full = np.c_[x, np.ones(40)]
        found = local_optimum(
            as_messages(received, received - 0.02 * (received @ full.T - y) @ full / 40)
        )
        accuracies.append(
            (infer_binary_attribute(x, y, 0, local_moments(found)).values == side).mean()
        )
    assert sum(accuracies) == pytest.approx(1)


def client(seed, m=400, d=6):
    """A client whose attribute depends on its public columns, hardly on its target."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(m, d))
    x[:, 0] = rng.random(m) < 1 / (1 + np.exp(-3 * x[:, 1] + 2 * x[:, 2]))
    y = x @ rng.normal(size=d) * 0.3 + rng.normal(size=m)
    full = np.c_[x, np.ones(m)]
    received = rng.normal(size=(3 * (d + 1), d + 1))
    return (
        x,
        y,
        local_optimum(as_messages(received, received - 0.02 * (received @ full.T - y) @ full / m)),
    )


def test_logistic_from_moments_is_the_regression_on_the_true_attribute():
    from sklearn.linear_model import LogisticRegression

    x, y, optimum = client(0)
    moments = local_moments(optimum)
    hidden = x.copy()
    hidden[:, 0] = np.nan
    found = infer_by_logistic(hidden, y, 0, moments)
    known = np.c_[x[:, 1:], y]
    truth = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(known, x[:, 0])
    assert np.allclose(found.scores, truth.decision_function(known), atol=1e-3)
    ranked = infer_binary_attribute(hidden, y, 0, moments)
    assert (found.values == x[:, 0]).mean() > (ranked.values == x[:, 0]).mean() + 0.1
    assert (found.values == x[:, 0]).mean() > max(x[:, 0].mean(), 1 - x[:, 0].mean())


@pytest.mark.filterwarnings("error")
def test_the_box_is_exact_where_columns_outnumber_records():
    x, y, optimum = client(1, m=30, d=28)
    found = infer_in_box(x, y, 0, local_moments(optimum))
    assert (found.values == x[:, 0]).all()
    _, _, other = client(101, m=30, d=28)
    with pytest.warns(MisfitWarning, match="no values have these moments"):
        infer_in_box(x, y, 0, with_attribute_of(local_moments(other), local_moments(optimum)))
    x, y, optimum = client(2)
    found = infer_in_box(x, y, 0, local_moments(optimum))
    assert (found.values == x[:, 0]).mean() > max(x[:, 0].mean(), 1 - x[:, 0].mean())


def with_attribute_of(other, moments):
    """Moments whose attribute is another client's."""
    second, cross = moments.second.copy(), moments.cross.copy()
    second[0], second[:, 0], cross[0] = other.second[0], other.second[:, 0], other.cross[0]
    return Moments(second, cross, moments.learning_rate)


@pytest.mark.slow
def test_another_clients_moments_tell_nothing():
    """And where no weights are the likeliest, that is said."""
    gains, said = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, y, optimum = client(seed)
        x[:, 0] = rng.random(len(x)) < 0.5  # independent of all else
        _, _, other = client(seed + 100)
        whole = local_moments(other)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", MisfitWarning)
            answers = [
                attack(x, y, 0, moments)
                for moments in (whole, with_attribute_of(whole, local_moments(optimum)))
                for attack in (infer_by_logistic, infer_in_box)
            ]
        said += [str(warning.message) for warning in told]
        gains += [(answer.values == x[:, 0]).mean() - 0.5 for answer in answers]
    assert sum("have other mean products than x" in text for text in said) == 12 * 2
    assert any("moments have no likeliest weights" in text for text in said)
    assert sum("no values have these moments" in text for text in said) > 5
    assert abs(np.mean(gains)) < 3 * 0.5 / np.sqrt(12 * 400)


@pytest.mark.parametrize("seed", range(4))
def test_dependent_columns_and_few_digits_cost_no_accuracy_and_no_truth(seed):
    """A one-hot attribute beside an intercept leaves the optimum open in a direction. Messages in
    float32 tell it from rounding by their own digits, and give what those in float64 give."""
    rng = np.random.default_rng(seed)
    onehot = np.eye(4)[rng.integers(0, 4, 200)]
    x = np.c_[rng.random(200) < 0.4, onehot, rng.normal(size=(200, 3))].astype(float)
    y = x @ rng.normal(size=8) + 0.3 * rng.normal(size=200)
    answers = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            model, key = linear(8), jax.random.key(seed)
            start = jax.tree.map(lambda a: a.astype(jax.numpy.result_type(float)), model.init(key))
            federated = Federated(12, LocalTraining(0.05))
            run = simulate(model, start, stack_clients([(x, y)]), key, federated)
            messages = jax.tree.map(np.asarray, run.messages(0))
        moments = structured_moments(messages, x, y, 0, 0.05)
        assert moments.determines(0)
        assert not moments.determines(1)
        answers.append(infer_binary_attribute(x, y, 0, moments))
        assert 0 <= answers[-1].bound <= np.mean(answers[-1].values == x[:, 0])
    assert np.mean(answers[0].values == answers[1].values) >= 0.99
    depends = structured_moments(messages, x, y, 1, 0.05)
    assert np.isnan(infer_binary_attribute(x, y, 1, depends).bound)


@pytest.mark.parametrize(("records", "weight", "scale"), [(200, 1e-3, 1.0), (20_000, 1.0, 30.0)])
def test_moments_say_whether_messages_are_of_the_rate(records, weight, scale):
    """Small weights of the attribute, and many records of long columns, are rounded more."""
    rng = np.random.default_rng(0)
    x = scale * rng.normal(size=(records, 6)).astype(np.float32)
    x[:, 0] = rng.random(records) < 0.4
    y = (x @ rng.normal(size=6) + rng.normal(size=records)).astype(np.float32)
    rate, model = 0.05 / scale**2, linear(6)
    params = jax.tree.map(lambda a: weight * a, model.init(jax.random.key(0)))
    clients = stack_clients([(x, y)])
    federated = Federated(5, LocalTraining(rate))
    run = simulate(model, params, clients, jax.random.key(1), federated)
    moments = structured_moments(run.messages(0), x, y, 0, rate)  # warnings are errors
    assert moments.exact
    with pytest.warns(MisfitWarning, match="times what rounding may") as told:
        assert not structured_moments(run.messages(0), x, y, 0, 1.05 * rate).exact
    assert told[0].filename == __file__


def test_weights_in_the_box_are_the_least_squares_ones():
    """As SciPy finds them, though no weights fulfil the equations; and where they do."""
    rng = np.random.default_rng(1)
    for records, columns in ((60, 30), (20, 30), (200, 15)):
        z = np.c_[rng.normal(size=(records, columns)), np.ones(records)].T / np.sqrt(records)
        truth = (rng.random(records) < 0.3).astype(float)
        for off in (0.0, 0.05):
            sums = z @ truth + off * rng.normal(size=columns + 1)
            prior = float(np.clip(sums[-1] / np.sqrt(records), 0, 1))
            stacked = np.r_[z, attribute.PULL * np.eye(records)]
            target = np.r_[sums, np.full(records, attribute.PULL * prior)]
            least = scipy.optimize.lsq_linear(stacked, target, (0, 1), "bvls", tol=1e-14)
            weights = attribute._in_box(z, sums, prior)
            left = ((stacked @ weights - target) ** 2).sum()
            assert left == pytest.approx(2 * least.cost, rel=1e-3)
