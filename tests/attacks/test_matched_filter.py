"""The matched filter of updates: its closed form, the likelihood ratio that it stands for, the
noise that it learns, and clients linked where privacy hides them from other descriptors; nobody is
linked who holds what others hold."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import (
    fit_filter_noise,
    link_precision,
    matched_filter,
    pair_similarities,
    unit,
    updates_as_vectors,
)
from attacks.fit import UncheckedWarning
from attacks.metrics import detection
from attacks.users.matched_filter import NOISES
from jaxfl import DPSGD, Federated, LocalTraining, mlp, simulate, stack_clients
from jaxfl.models import record_gradient

SCALES = np.asarray([5, 3, 1, 1, 0.5, 0.1])


@pytest.mark.parametrize("noise", [0.0, 0.3, 1e6])
def test_the_filter_is_the_covariances_root_over_the_noise(noise):
    rng = np.random.default_rng(3)
    gradients, vectors = rng.normal(size=(40, 6)) * SCALES, rng.normal(size=(4, 6))
    with jax.enable_x64(True):
        found = matched_filter(jnp.asarray(vectors), jnp.asarray(gradients), noise, 0.2)
    covariance = np.cov(gradients.T, bias=True)
    unit_of_noise = np.trace(covariance) / 6
    values, axes = np.linalg.eigh(covariance / unit_of_noise + 0.2 * np.eye(6))
    expected = vectors @ axes * (np.sqrt(values) * (1 + noise) / (values + noise)) @ axes.T
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_fewer_gradients_than_parameters_leave_the_ridge_outside():
    rng = np.random.default_rng(4)
    gradients = jnp.asarray(rng.normal(size=(3, 8)), jnp.float32)
    outside = np.linalg.svd(gradients - gradients.mean(0))[2][2:]
    found = matched_filter(jnp.asarray(outside), gradients, 2.0, 0.25)
    np.testing.assert_allclose(found, outside * 0.5 * 3 / 2.25, atol=1e-5)


def gaussian(rng, noise, clients=12, rounds=20, spread=0.3):
    """Updates as the model of the module's docstring has them, and gradients that show C."""
    width = 60
    roots = np.exp(-np.arange(width) / 8)
    mean = (roots**2).mean()
    means = np.sqrt(spread) * roots * rng.normal(size=(clients, width))
    senders = np.stack([rng.permutation(clients) for _ in range(rounds)])
    chance = roots * rng.normal(size=(rounds, clients, width))
    added = np.sqrt(noise * mean) * rng.normal(size=(rounds, clients, width))
    gradients = roots * rng.normal(size=(400, width))
    arrays = (means[senders] + chance + added, gradients)
    vectors, gradients = (jnp.asarray(a, jnp.float32) for a in arrays)
    return vectors, jnp.asarray(senders), gradients


def auc(vectors, senders, gradients, noise):
    found = unit(matched_filter(vectors, gradients, noise), centred=True)
    flat = found.reshape(-1, found.shape[-1])
    return detection(*pair_similarities(flat, senders.ravel(), jax.random.key(0), 4000)).auc


@pytest.mark.parametrize("noise", [0.01, 0.1, 1.0, 10.0])
def test_the_fitted_noise_is_the_true_one_and_tells_clients_apart_best(noise):
    own, clients = (gaussian(np.random.default_rng(seed), noise) for seed in (5, 6))
    fitted = float(fit_filter_noise(*own))
    assert abs(NOISES.index(pytest.approx(fitted)) - NOISES.index(noise)) <= 1
    reached = {other: auc(*clients, other) for other in (0.0, fitted, NOISES[-1])}
    assert reached[fitted] >= max(reached.values()) - 0.02
    assert reached[fitted] > min(reached.values()) + 0.05


def test_the_filter_is_the_likelihood_ratio_to_first_order():
    """Against Gaussian densities of pairs, with the true covariances."""
    rng = np.random.default_rng(7)
    roots, noise, apart = np.asarray([2.0, 1.0, 0.3]), 0.5, 1e-5
    gradients = np.concatenate([np.diag(roots), -np.diag(roots)]) * np.sqrt(3)  # C = diag(roots^2)
    pairs = rng.normal(size=(50, 2, 3))
    alone = roots**2 * (1 + apart) + noise
    together = (
        ((alone * (pairs**2).sum(1)) - 2 * apart * roots**2 * pairs.prod(1))
        / (alone**2 - (apart * roots**2) ** 2)
    ).sum(1) - ((pairs**2).sum(1) / alone).sum(1)
    expected = -together / 2 / apart
    with jax.enable_x64(True):
        unit_of_noise = (roots**2).sum() / 3
        filtered = matched_filter(
            jnp.asarray(pairs), jnp.asarray(gradients), noise / unit_of_noise, 1e-9
        ) / (1 + noise / unit_of_noise)
        product = np.asarray((filtered[:, 0] * filtered[:, 1]).sum(-1) / unit_of_noise)
    np.testing.assert_allclose(product, expected, rtol=1e-3, atol=1e-4)


def records(rng, count):
    x = rng.normal(size=(count, 16)) * np.linspace(3, 0.3, 16)
    return x.astype(np.float32), (x[:, 0] > 0) + 2 * (x[:, 1] > 0)


def federation(rng, model, training, same_records, key):
    clients = [records(rng, 36) for _ in range(8)]
    if same_records:
        clients = clients[:1] * 8
    start = model.init(jax.random.key(9))  # both federations begin with the same model
    run = simulate(model, start, stack_clients(clients), key, Federated(30, training))
    seen, senders = run.anonymous(jax.random.key(1))
    return seen.received, updates_as_vectors(seen.pseudo_gradient)[10:], senders[10:]


BATCHES = LocalTraining(0.05, batch_size=32)
PRIVATE = LocalTraining(0.05, batch_size=32, plugins=(DPSGD(1.0, 0.5),))


@pytest.mark.parametrize("same_records", [False, True])
@pytest.mark.parametrize("training", [BATCHES, PRIVATE], ids=["batches", "private"])
@pytest.mark.slow
def test_clients_are_linked_by_their_records_and_by_nothing_else(training, same_records):
    """Clients drawn alike, batches of 32 and of 4, or gradients that are clipped and noised."""
    rng = np.random.default_rng(6)
    model, keys = mlp(16, (12,), 4), jax.random.split(jax.random.key(0))
    received, mine, senders = federation(rng, model, training, same_records, keys[0])
    _, own, known = federation(rng, model, training, False, keys[1])
    x, y = (jnp.asarray(a) for a in records(rng, 300))
    models = jax.tree.map(lambda a: a[10 + jnp.arange(300) % 20], received)
    gradients = jax.vmap(lambda *at: record_gradient(model, *at))(models, x, y)

    def precision(vectors):
        found = unit(vectors, centred=True)
        return float(link_precision(found[3:], senders[3:], found[:-3], senders[:-3]))

    noise = fit_filter_noise(own, known, gradients)
    linked = precision(matched_filter(mine, gradients, noise))
    if same_records:
        assert abs(linked - 1 / 8) < 0.12
        return
    without, whitened = precision(mine), precision(matched_filter(mine, gradients, 0.0))
    assert linked > 0.9
    assert linked > without + (0.02 if training is PRIVATE else 0.15)
    assert linked > whitened + (0.3 if training is PRIVATE else -0.03)


def test_what_is_not_finite_fits_no_noise_and_one_client_is_refused():
    own, senders, gradients = gaussian(np.random.default_rng(8), 1.0)
    assert jnp.isnan(fit_filter_noise(own.at[0, 0, 0].set(jnp.nan), senders, gradients))
    with pytest.raises(ValueError, match="senders names 1 clients, each in 20 of 20"):
        fit_filter_noise(own, jnp.zeros_like(senders), gradients)
    with pytest.raises(ValueError, match="senders names 12 clients, each in 1 of 1"):
        fit_filter_noise(own[:1], senders[:1], gradients)
    with pytest.raises(ValueError, match=r"senders\[0\] names client \d 2 times"):
        fit_filter_noise(own, senders // 2, gradients)
    with pytest.raises(ValueError, match="senders has 1 participant a round"):
        fit_filter_noise(own[:, :1], senders[:, :1], gradients)
    with pytest.raises(ValueError, match="gradients is of 1 records"):
        matched_filter(own, gradients[:1], 1.0)


@pytest.mark.parametrize("seed", range(10))
def test_two_clients_of_two_rounds_fit_some_noise(seed):
    """Too few to choose well, which is said; a sweep goes on."""
    own, senders, gradients = gaussian(np.random.default_rng(seed), 1.0, clients=2, rounds=2)
    with pytest.warns(UncheckedWarning, match="orders of exchanged senders"):
        fitted = float(fit_filter_noise(own, senders, gradients))
    assert fitted in [pytest.approx(n) for n in NOISES]


def test_senders_of_other_updates_are_told():
    """Senders of which updates say nothing, or who are named in another order in every round."""
    told = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        own, senders, gradients = gaussian(rng, 1.0)
        others = jnp.asarray(rng.permuted(np.asarray(senders), axis=1))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fit_filter_noise(own, others, gradients)
        told += [warning.category for warning in said] == [UncheckedWarning]
    assert told >= 17  # of 20; by chance one of twenty exchanged orders is the best of them


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_the_size_of_numbers_fits_no_noise(size):
    own, senders, gradients = gaussian(np.random.default_rng(8), 1.0)
    fitted = fit_filter_noise(own, senders, gradients)
    assert fit_filter_noise(size * own, senders, size * gradients) == fitted
    filtered = matched_filter(own, gradients, fitted)
    other = matched_filter(own, size * gradients, fitted)
    np.testing.assert_allclose(other, filtered, atol=1e-4 * float(jnp.abs(filtered).max()))


def test_gradients_that_are_all_alike_leave_updates_their_directions():
    own, senders, gradients = gaussian(np.random.default_rng(8), 1.0)
    alike = jnp.broadcast_to(gradients[:1], gradients.shape)
    assert jnp.isfinite(fit_filter_noise(own, senders, alike))
    found = matched_filter(own, alike, 1.0)
    np.testing.assert_allclose(unit(found), unit(own), atol=1e-5)
