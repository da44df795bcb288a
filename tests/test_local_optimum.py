"""Driouich 2022 and 2023 on linear least squares: what messages determine, and the bound that needs no truth."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.local_optimum import (
    Moments,
    infer_binary_attribute,
    infer_by_logistic,
    infer_in_box,
    local_moments,
    local_optimum,
    noisy_local_optimum,
    structured_moments,
)
from jaxfl import Federated, LocalTraining, Messages, linear, mlp, simulate, stack_clients


def trained(d, rounds, epochs=1, participants=5, dtype=jnp.float64, records=100, batch_size=None):
    """Client 0's records and messages among ten clients of linear regression with a binary first column."""
    with jax.enable_x64(dtype == jnp.float64):
        rng = np.random.default_rng(d)
        data = []
        for _ in range(10):
            x = rng.normal(size=(records, d))
            x[:, 0] = rng.random(records) < 0.4
            data.append((x, x @ rng.normal(size=d) + 0.3 * rng.normal(size=records)))
        model, key = linear(d), jax.random.key(0)
        params = jax.tree.map(lambda a: a.astype(dtype), model.init(key))
        training = LocalTraining(0.01, epochs, batch_size)
        federated = Federated(rounds=rounds, training=training, clients_per_round=participants)
        messages = simulate(model, params, stack_clients(data), key, federated).messages(0)
        return (*data[0], jax.tree.map(np.asarray, messages))


def optimum_of(x, y):
    return np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("d", [9, 53])
def test_the_optimum_and_the_moments_are_exact_where_clients_are_sampled(d, epochs):
    x, y, messages = trained(d, 400, epochs)
    found = local_optimum(messages)
    truth = optimum_of(x, y)
    assert found.identifiable
    assert found.reason == ""
    assert np.linalg.norm(found.params - truth) <= 1e-10 * np.linalg.norm(truth)
    moments = local_moments(found, epochs=epochs)
    full = np.c_[x, np.ones(len(x))]
    assert np.allclose(moments.second, full.T @ full / len(x), atol=1e-7)
    assert np.allclose(moments.cross, full.T @ y / len(x), atol=1e-7)
    assert moments.learning_rate == pytest.approx(0.01, rel=1e-7)
    inferred = infer_binary_attribute(x, y, 0, moments)
    assert inferred.prior == pytest.approx(x[:, 0].mean(), abs=1e-8)
    assert inferred.mse == pytest.approx(np.mean((full @ truth - y) ** 2), rel=1e-5)
    assert (inferred.values == x[:, 0]).mean() >= inferred.bound


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize(("d", "epochs"), [(9, 1), (53, 1), (53, 3)])
@pytest.mark.filterwarnings("ignore:messages are float32")
def test_a_deterministic_run_is_not_identified_and_says_so(d, epochs, dtype):
    x, y, messages = trained(d, 300, epochs, participants=None, dtype=dtype)
    found = local_optimum(messages)
    assert not found.identifiable
    assert "directions" in found.reason or "condition" in found.reason
    assert excess(x, y, found.params) < 0.99 * excess(x, y, last_returned(messages))
    with pytest.raises(ValueError, match="is not identified"):
        local_moments(found)


def excess(x, y, params):
    """Mean squared error above the optimum's."""
    full = np.c_[x, np.ones(len(x))].astype(float)
    return np.mean((full @ (params - optimum_of(x, y))) ** 2)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 40), st.integers(1, 40), st.floats(0.02, 0.98), st.sampled_from([1, 1, 1, 2, 5]))
def test_what_is_not_identified_is_never_worse_than_the_last_returned(seed, rounds, directions, step, epochs):
    """Any received models, in however few directions, ever nearer to each other; steps of up to half the stable length. In the
    metric of W, and in the client's loss, which for one step is the same."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 31))
    full = np.c_[rng.normal(size=(60, d)) * 10 ** rng.uniform(-1, 0.5, d), np.ones(60)]
    x, y = full[:, :-1], full @ rng.normal(size=d + 1) + rng.normal(size=60)
    path = rng.normal(size=(rounds, directions)) * 0.5 ** np.arange(rounds)[:, None] @ rng.normal(size=(directions, d + 1))
    received = rng.normal(size=d + 1) + path
    kept = np.linalg.matrix_power(np.eye(d + 1) - step * full.T @ full / np.linalg.norm(full, 2) ** 2, epochs)
    optimum = optimum_of(x, y)
    returned = optimum + (received - optimum) @ kept
    found, last = local_optimum(as_messages(received, returned)).params, returned[-1]
    distances = [away @ away - away @ kept @ away for away in (found - optimum, last - optimum)]
    assert distances[0] <= distances[1] * (1 + 1e-6)
    assert epochs > 1 or excess(x, y, found) <= excess(x, y, last) * (1 + 1e-6)


def test_the_answer_is_the_least_loss_along_what_was_received():
    """Written out with the client's records, of which the attack knows nothing."""
    rng = np.random.default_rng(0)
    full = np.c_[rng.normal(size=(60, 8)), np.ones(60)]
    y = full @ rng.normal(size=9) + rng.normal(size=60)
    received = rng.normal(size=9) + rng.normal(size=(12, 3)) @ rng.normal(size=(3, 9))
    returned = received - 2 * 0.01 * (received @ full.T - y) @ full / 60
    along = full @ (received[1:] - received[0]).T
    truth = returned[-1] + (received[1:] - received[0]).T @ np.linalg.lstsq(along, y - full @ returned[-1], rcond=None)[0]
    assert np.allclose(local_optimum(as_messages(received, returned)).params, truth, atol=1e-8)


def test_late_rounds_of_a_deterministic_run_are_refused_or_right():
    """Their condition number alone would pass, of updates that are small beside what rounding does to models."""
    refused = 0
    for seed in range(30):
        rng, d, m, theta, path = np.random.default_rng(seed), 4, 100, np.zeros(5), []
        data = [np.c_[rng.normal(size=(m, d)), np.ones(m)] for _ in range(10)]
        targets = [x @ rng.normal(size=d + 1) + rng.normal(size=m) for x in data]
        for _ in range(300):
            returned = [theta - 0.1 * x.T @ (x @ theta - y) / m for x, y in zip(data, targets, strict=True)]
            path.append((theta, returned[0]))
            theta = np.mean(returned, 0)
        truth = np.linalg.lstsq(data[0], targets[0], rcond=None)[0]
        for first in (0, 150):
            found = local_optimum(as_messages(*map(np.array, zip(*path[first:], strict=True))))
            assert not found.identifiable or np.linalg.norm(found.params - truth) < 1e-3 * np.linalg.norm(truth)
            assert first or found.identifiable
            refused += first > 0 and not found.identifiable
    assert refused > 20


def test_32_bit_messages_stored_in_64_are_found_out():
    _, _, messages = trained(4, 300, participants=None, dtype=jnp.float32)
    assert not local_optimum(
        jax.tree.map(lambda a: a.astype(np.float64) if a.dtype == np.float32 else a, messages)
    ).identifiable


@pytest.mark.parametrize("noise", [0, 1e-7])
@pytest.mark.parametrize("turned", [False, True])
def test_directions_in_which_nothing_moved_are_not_identified(noise, turned):
    """Features that tell nothing of each other, two of which the server never moves: all that updates do there is rounding, or
    little noise."""
    rng = np.random.default_rng(0)
    full = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 5), -1).reshape(-1, 5)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0] if turned else np.eye(6)
    full, y = np.c_[full, np.ones(32)] @ turn, rng.normal(size=32)
    received = (rng.normal(size=6) + np.pad(rng.normal(size=(20, 4)), ((0, 0), (0, 2)))) @ turn
    updates = 2 * 0.13 * (received @ full.T - y) @ full / 32 + noise * rng.normal(size=received.shape)
    found, optimum = local_optimum(as_messages(received, received - updates)), np.linalg.lstsq(full, y, rcond=None)[0]
    assert not found.identifiable
    losses = [np.mean((full @ (p - optimum)) ** 2) for p in (found.params, received[-1] - updates[-1])]
    assert losses[0] < losses[1]


def test_noise_alone_leaves_the_last_returned():
    _, _, messages = trained(9, 60, participants=None, batch_size=32)
    found = local_optimum(messages)
    assert np.allclose(found.params, last_returned(messages))
    rng = np.random.default_rng(0)
    received = np.tile(rng.normal(size=10), (5, 1))
    returned = received - 0.1 * rng.normal(size=10)
    assert np.array_equal(local_optimum(as_messages(received, returned)).params, returned[-1])


def test_the_noise_of_small_batches_is_not_taken_for_an_identified_optimum():
    """It moves updates in all directions, so that rank and condition number alone would pass."""
    _, _, messages = trained(9, 300, batch_size=32)
    found = local_optimum(messages)
    assert found.rank == 10
    assert found.condition < 1e3
    assert found.unexplained > 0.1
    assert not found.identifiable
    assert "noise" in found.reason
    assert local_optimum(trained(9, 300)[2]).unexplained < 1e-9
    with pytest.raises(ValueError, match="no full-batch steps"):
        local_moments(dataclasses.replace(found, inverse=-np.eye(10), identifiable=True))
    with pytest.raises(ValueError, match="is not identified"):
        local_moments(found)


@pytest.mark.parametrize("batch_size", [None, 32])
def test_rounds_that_fit_any_client_identify_none(batch_size):
    """Through d + 1 rounds goes an affine map, noise or not; one more tells."""
    _, _, messages = trained(9, 60, batch_size=batch_size)
    for rounds, known in ((11, False), (12, batch_size is None)):
        found = local_optimum(messages.select(messages.rounds[:: len(messages) // rounds][:rounds].tolist()))
        assert found.rank == 10
        assert np.isnan(found.unexplained) == (rounds == 11)
        assert found.identifiable == known
        assert rounds == 12 or "at least 12" in found.reason


def test_moments_that_are_not_exact_bound_nothing():
    x, y, messages = trained(4, 10, epochs=3)
    moments = structured_moments(messages, x, y, 0, 0.01, steps=3)
    assert np.isnan(infer_binary_attribute(x, y, 0, moments).bound)
    broken = dataclasses.replace(moments, cross=moments.cross * np.nan)
    for attack in (infer_binary_attribute, infer_by_logistic, infer_in_box):
        with pytest.raises(ValueError, match=r"moments\.cross holds"):
            attack(x, y, 0, broken)
    with pytest.raises(ValueError, match="params holds"):
        infer_binary_attribute(x, y, 0, moments, params=np.full(5, np.nan))


def test_impossible_moments_bound_nothing():
    x, y, _ = trained(4, 2)
    full = np.c_[x, np.ones(len(x))]
    second, cross = full.T @ full / len(x), full.T @ y / len(x)
    assert np.isfinite(infer_binary_attribute(x, y, 0, Moments(second, cross, 0.01)).bound)
    negative_rate, negative_error = second.copy(), cross * 3
    negative_rate[0, -1] = negative_rate[-1, 0] = -0.2
    for moments in (Moments(negative_rate, cross, 0.01), Moments(second, negative_error, 0.01)):
        for rule in ("rank", "threshold"):
            assert np.isnan(infer_binary_attribute(x, y, 0, moments, rule=rule).bound)


@pytest.mark.parametrize("d", [9, 53])
def test_two_messages_of_a_deterministic_run_are_enough_where_public_columns_are_known(d):
    x, y, messages = trained(d, 300, participants=None)
    hidden = x.copy()
    hidden[:, 0] = np.nan
    truth = optimum_of(x, y)
    for rounds in ([0, 1], list(range(0, 300, 10))):
        moments = structured_moments(messages.select(rounds), hidden, y, 0, 0.01)
        assert np.linalg.norm(moments.optimum - truth) <= 1e-9 * np.linalg.norm(truth)
        assert infer_binary_attribute(hidden, y, 0, moments).prior == pytest.approx(x[:, 0].mean(), abs=1e-8)
    with pytest.raises(ValueError, match="learning_rate=0"):
        structured_moments(messages, hidden, y, 0, 0)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 3), st.floats(0.05, 0.95), st.floats(-3, 3), st.floats(0, 1))
def test_any_model_keeps_the_threshold_rules_bound(seed, noise, rate, weight, distance):
    """Proposition 4 (Driouich 2023), for models at any distance from the optimum, from decoded moments alone."""
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


def test_the_hard_instance_needs_as_many_messages_as_parameters():
    """Proposition 2 (Driouich 2023): on its tridiagonal instance t rounds from zero reach t coordinates, whatever the server
    does with the others; and a client that lacks the last coordinate sends the same messages until then."""
    d, rate = 8, 1.0
    hessian, target = np.eye(d) - 0.5 * (np.eye(d, k=1) + np.eye(d, k=-1)), np.r_[0.5, np.zeros(d - 1)]
    assert np.allclose(hard_design(d).T @ hard_design(d), hessian)
    without = hessian.copy()
    without[-1] = without[:, -1] = 0
    theta = np.zeros(d)
    for t in range(d):
        assert (theta[t:] == 0).all()
        gradient, twin = 2 * (hessian @ theta - target) / d, 2 * (without @ theta - target) / d
        assert t == d - 1 or np.array_equal(gradient, twin)
        others = theta - rate * 2 * theta / d  # X = I, y = 0
        theta = (theta - rate * gradient + 9 * others) / 10
    assert theta[-1] != 0
    assert not np.array_equal(gradient, twin)


def hard_design(d):
    """Footnote 9 of Driouich 2023, transposed: it prints the factor L of H = L L', where X'X = H asks for X = L'."""
    return np.linalg.cholesky(np.eye(d) - 0.5 * (np.eye(d, k=1) + np.eye(d, k=-1))).T


def test_the_error_bound_of_noisy_updates_holds():
    """Proposition 3 (Driouich 2023), on received models that do not depend on the noise."""
    finite = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        d, rounds = 5, int(rng.integers(20, 3000))
        x = np.c_[rng.normal(size=(60, d)), np.ones(60)]
        y = x @ rng.normal(size=d + 1) + rng.normal(size=60)
        received = rng.normal(size=(rounds, d + 1))
        updates = 2 * 0.1 * (received @ x.T - y) @ x / 60 + 10 ** rng.uniform(-4, -1) * rng.normal(size=received.shape)
        found = noisy_local_optimum(as_messages(received, received - updates))
        finite += np.isfinite(found.error)
        assert np.linalg.norm(found.params - np.linalg.lstsq(x, y, rcond=None)[0]) <= found.error
    assert finite > 100


def last_returned(messages):
    layer = messages.returned["Dense_0"]
    return np.r_[layer["kernel"][-1, :, 0], layer["bias"][-1]]


def test_float32_messages_are_warned_about():
    _, _, messages = trained(9, 100, dtype=jnp.float32)
    with pytest.warns(UserWarning, match="float32"):
        local_optimum(messages)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0.01, 3), st.floats(0.05, 0.95), st.floats(-3, 3))
def test_accuracy_is_never_below_the_bound(seed, d, noise, rate, weight):
    """Proposition 3, on messages that a server could have: any received models, one full-batch step."""
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


def as_messages(received, returned):
    def tree(rows):
        return {"Dense_0": {"kernel": rows[:, :-1, None], "bias": rows[:, -1:]}}

    return Messages(tree(received), tree(returned), np.arange(len(received)))


def test_two_datasets_with_equal_messages():
    """Proposition 1 (Driouich 2022): X_p = [Z; Z], 1'y1 = 1'y2; the attribute marks the first or the second half."""
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
        both = [simulate(model, params, stack_clients([(x, y)]), key, federated).messages(0) for x in features]
        gaps = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), both[0].returned, both[1].returned)
    assert max(jax.tree.leaves(gaps)) < 1e-12
    received = rng.normal(size=(40, 6))
    accuracies = []
    for x, side in zip(features, sides, strict=True):
        full = np.c_[x, np.ones(40)]
        found = local_optimum(as_messages(received, received - 0.02 * (received @ full.T - y) @ full / 40))
        accuracies.append((infer_binary_attribute(x, y, 0, local_moments(found)).values == side).mean())
    assert sum(accuracies) == pytest.approx(1)


def client(seed, m=400, d=6):
    """A client whose attribute depends on its public columns, hardly on its target."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(m, d))
    x[:, 0] = rng.random(m) < 1 / (1 + np.exp(-3 * x[:, 1] + 2 * x[:, 2]))
    y = x @ rng.normal(size=d) * 0.3 + rng.normal(size=m)
    full = np.c_[x, np.ones(m)]
    received = rng.normal(size=(3 * (d + 1), d + 1))
    return x, y, local_optimum(as_messages(received, received - 0.02 * (received @ full.T - y) @ full / m))


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


def test_the_box_is_exact_where_columns_outnumber_records():
    x, y, optimum = client(1, m=30, d=28)
    found = infer_in_box(x, y, 0, local_moments(optimum))
    assert (found.values == x[:, 0]).all()
    x, y, optimum = client(2)
    found = infer_in_box(x, y, 0, local_moments(optimum))
    assert (found.values == x[:, 0]).mean() > max(x[:, 0].mean(), 1 - x[:, 0].mean())


def test_another_clients_moments_tell_nothing():
    gains = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, y, _ = client(seed)
        x[:, 0] = rng.random(len(x)) < 0.5  # independent of all else
        _, _, other = client(seed + 100)
        answers = [attack(x, y, 0, local_moments(other)) for attack in (infer_by_logistic, infer_in_box)]
        gains += [(answer.values == x[:, 0]).mean() - 0.5 for answer in answers]
    assert abs(np.mean(gains)) < 3 * 0.5 / np.sqrt(12 * 400)


def test_bad_input():
    model, key = mlp(3, (4,), 2), jax.random.key(0)
    x = np.zeros((5, 3), np.float32)
    run = simulate(model, model.init(key), stack_clients([(x, np.zeros(5, int))]), key, Federated(rounds=3))
    with pytest.raises(ValueError, match="must be of a linear model"):
        local_optimum(run.messages(0))
    rng = np.random.default_rng(0)
    received = rng.normal(size=(10, 4))
    with pytest.raises(ValueError, match="holds 1 rounds"):
        local_optimum(as_messages(received[:1], received[:1]))
