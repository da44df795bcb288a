"""Driouich 2022 and 2023 on linear least squares: what messages determine."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import (
    MisfitWarning,
    infer_binary_attribute,
    local_moments,
    local_optimum,
    noisy_local_optimum,
)
from jaxfl import Federated, mlp, simulate, stack_clients
from tests.attacks.linear_clients import as_messages, optimum_of, trained


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


def test_messages_of_no_descent_are_of_no_optimum():
    """Received and returned exchanged, another map of models: affine maps they are."""
    x, y, _ = trained(4, 2)
    full, models = np.c_[x, np.ones(len(x))], [np.zeros(5)]
    for _ in range(30):
        models.append(models[-1] - 0.1 * full.T @ (full @ models[-1] - y) / len(x))
    models = np.stack(models)
    right = as_messages(models[:-1], models[1:])
    assert local_optimum(right).identifiable
    assert np.isfinite(noisy_local_optimum(right).error)
    turned = as_messages(models, models - models @ (np.eye(5) + np.eye(5, k=1) - np.eye(5, k=-1)))
    exchanged = as_messages(models[1:], models[:-1])
    for wrong in (turned, exchanged):
        decoded = local_optimum(wrong)
        assert not decoded.identifiable
        assert "no gradient descent" in decoded.reason
        with pytest.warns(MisfitWarning, match="no gradient descent"):
            assert noisy_local_optimum(wrong).error == np.inf


def excess(x, y, params):
    """Mean squared error above the optimum's."""
    full = np.c_[x, np.ones(len(x))].astype(float)
    return np.mean((full @ (params - optimum_of(x, y))) ** 2)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(3, 40),
    st.integers(1, 40),
    st.floats(0.02, 0.98),
    st.sampled_from([1, 1, 1, 2, 5]),
)
def test_what_is_not_identified_is_never_worse_than_the_last_returned(
    seed, rounds, directions, step, epochs
):
    """Any received models, in however few directions, ever nearer to each other; steps of up to
    half the stable length. In the metric of W, and in the client's loss, which for one step is the
    same."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 31))
    full = np.c_[rng.normal(size=(60, d)) * 10 ** rng.uniform(-1, 0.5, d), np.ones(60)]
    x, y = full[:, :-1], full @ rng.normal(size=d + 1) + rng.normal(size=60)
    path = (
        rng.normal(size=(rounds, directions))
        * 0.5 ** np.arange(rounds)[:, None]
        @ rng.normal(size=(directions, d + 1))
    )
    received = rng.normal(size=d + 1) + path
    kept = np.linalg.matrix_power(
        np.eye(d + 1) - step * full.T @ full / np.linalg.norm(full, 2) ** 2, epochs
    )
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
    truth = (
        returned[-1]
        + (received[1:] - received[0]).T
        @ np.linalg.lstsq(along, y - full @ returned[-1], rcond=None)[0]
    )
    assert np.allclose(local_optimum(as_messages(received, returned)).params, truth, atol=1e-8)


def test_late_rounds_of_a_deterministic_run_are_refused_or_right():
    """Their condition number alone would pass, of updates that are small beside what rounding does
    to models. From the first round on all are told, but where what is lost is the limit to two
    digits: there it is the processor's sums that decide."""
    refused = 0
    for seed in range(30):
        rng, d, m, theta, path = np.random.default_rng(seed), 4, 100, np.zeros(5), []
        data = [np.c_[rng.normal(size=(m, d)), np.ones(m)] for _ in range(10)]
        targets = [x @ rng.normal(size=d + 1) + rng.normal(size=m) for x in data]
        for _ in range(300):
            returned = [
                theta - 0.1 * x.T @ (x @ theta - y) / m for x, y in zip(data, targets, strict=True)
            ]
            path.append((theta, returned[0]))
            theta = np.mean(returned, 0)
        truth = np.linalg.lstsq(data[0], targets[0], rcond=None)[0]
        for first in (0, 150):
            found = local_optimum(as_messages(*map(np.array, zip(*path[first:], strict=True))))
            assert not found.identifiable or np.linalg.norm(
                found.params - truth
            ) < 1e-3 * np.linalg.norm(truth)
            assert first or found.identifiable or "1.0e-04 of the least" in found.reason
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
    """Features that tell nothing of each other, two of which the server never moves: all that
    updates do there is rounding, or little noise."""
    rng = np.random.default_rng(0)
    full = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 5), -1).reshape(-1, 5)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0] if turned else np.eye(6)
    full, y = np.c_[full, np.ones(32)] @ turn, rng.normal(size=32)
    received = (rng.normal(size=6) + np.pad(rng.normal(size=(20, 4)), ((0, 0), (0, 2)))) @ turn
    updates = 2 * 0.13 * (received @ full.T - y) @ full / 32 + noise * rng.normal(
        size=received.shape
    )
    found, optimum = (
        local_optimum(as_messages(received, received - updates)),
        np.linalg.lstsq(full, y, rcond=None)[0],
    )
    assert not found.identifiable
    losses = [
        np.mean((full @ (p - optimum)) ** 2) for p in (found.params, received[-1] - updates[-1])
    ]
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
        found = local_optimum(
            messages.select(messages.rounds[:: len(messages) // rounds][:rounds].tolist())
        )
        assert found.rank == 10
        assert np.isnan(found.unexplained) == (rounds == 11)
        assert found.identifiable == known
        assert rounds == 12 or "at least 12" in found.reason


def test_the_hard_instance_needs_as_many_messages_as_parameters():
    """Proposition 2 (Driouich 2023): on its tridiagonal instance t rounds from zero reach t
    coordinates, whatever the server does with the others; and a client that lacks the last
    coordinate sends the same messages until then."""
    d, rate = 8, 1.0
    hessian, target = (
        np.eye(d) - 0.5 * (np.eye(d, k=1) + np.eye(d, k=-1)),
        np.r_[0.5, np.zeros(d - 1)],
    )
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
    """Footnote 9 of Driouich 2023, transposed: it prints the factor L of H = L L', where X'X = H
    asks for X = L'."""
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
        updates = 2 * 0.1 * (received @ x.T - y) @ x / 60 + 10 ** rng.uniform(-4, -1) * rng.normal(
            size=received.shape
        )
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


def test_bad_input():
    model, key = mlp(3, (4,), 2), jax.random.key(0)
    x = np.zeros((5, 3), np.float32)
    run = simulate(
        model, model.init(key), stack_clients([(x, np.zeros(5, int))]), key, Federated(rounds=3)
    )
    with pytest.raises(ValueError, match="must be of a linear model"):
        local_optimum(run.messages(0))
    rng = np.random.default_rng(0)
    received = rng.normal(size=(10, 4))
    with pytest.raises(ValueError, match="holds 1 rounds"):
        local_optimum(as_messages(received[:1], received[:1]))
