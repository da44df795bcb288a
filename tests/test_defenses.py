"""What clients do to their updates: norms, deviations, unbiased rounding, and the same run without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfl
from jaxfl import Federated, Upload, protect, simulate
from tests.conftest import largest_difference

KEY = jax.random.key(4)
UPDATE = {"a": jax.random.normal(KEY, (50, 40)), "b": 0.1 * jax.random.normal(jax.random.key(5), (40,))}


def norm(tree):
    return float(jnp.sqrt(sum((a**2).sum() for a in jax.tree.leaves(tree))))


def test_clipping_shortens_long_updates_only():
    assert norm(protect(UPDATE, KEY, Upload(clip=1.0))) == pytest.approx(1.0, rel=1e-5)
    assert largest_difference(protect(UPDATE, KEY, Upload(clip=1e6)), UPDATE) == 0
    direction = jnp.vdot(protect(UPDATE, KEY, Upload(clip=1.0))["a"], UPDATE["a"])
    assert direction == pytest.approx(norm({"a": UPDATE["a"]}) ** 2 / norm(UPDATE), rel=1e-5)


@pytest.mark.parametrize("upload", [Upload(clip=2.0, noise_multiplier=0.5), Upload(noise_multiplier=0.5)])
def test_noise_has_the_stated_deviation(upload):
    quiet = protect(UPDATE, KEY, Upload(clip=upload.clip))
    unit = 2.0 if np.isfinite(upload.clip) else norm(UPDATE)
    noise = jax.tree.map(jnp.subtract, protect(UPDATE, KEY, upload), quiet)["a"]
    assert float(noise.std()) == pytest.approx(0.5 * unit, rel=0.1)
    assert abs(float(noise.mean())) < 0.05 * unit


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_rounding_is_unbiased_and_takes_two_to_the_bits_values(bits):
    sent = jax.vmap(lambda k: protect(UPDATE, k, Upload(bits=bits)))(jax.random.split(KEY, 400))
    assert len(np.unique(np.round(np.asarray(sent["a"]), 5))) <= 2**bits
    largest = float(jnp.abs(UPDATE["a"]).max())
    step = 2 * largest / (2**bits - 1)
    assert jnp.abs(sent["a"] - UPDATE["a"]).max() <= step * 1.001
    assert jnp.abs(sent["a"].mean(0) - UPDATE["a"]).max() < 4.5 * step / 2 / np.sqrt(400)


def test_a_run_without_effect_is_the_plain_run_and_a_noisy_one_is_not(world):
    def run(upload):
        federated = Federated(rounds=3, upload=upload)
        return simulate(world.model, world.params, world.clients, world.key, federated)

    plain, empty, noisy = run(None), run(Upload()), run(Upload(noise_multiplier=0.1))
    assert largest_difference(plain.params, empty.params) < 1e-6
    assert largest_difference(plain.params, noisy.params) > 1e-4
    one, other = (
        jax.tree.map(jnp.subtract, m.returned, run(None).messages(c).returned) for c in (0, 1) for m in [noisy.messages(c)]
    )
    assert largest_difference(one, other) > 1e-4  # clients draw their own noise


@pytest.mark.parametrize("upload", [Upload(), Upload(noise_multiplier=0.1), Upload(clip=0.01)])
def test_gradients_pass_through_what_is_sent(world, upload):
    def loss(rate):
        federated = Federated(rounds=2, training=jaxfl.LocalTraining(rate), upload=upload)
        params = simulate(world.model, world.params, world.clients, world.key, federated).params
        return sum((a**2).sum() for a in jax.tree.leaves(params))

    slope = jax.grad(loss)(0.1)
    numeric = (loss(0.101) - loss(0.099)) / 0.002
    assert slope == pytest.approx(float(numeric), rel=0.05, abs=1e-3)
    assert jnp.isfinite(jax.grad(lambda u: protect(u, KEY, upload)["a"].sum())(jax.tree.map(jnp.zeros_like, UPDATE))["a"]).all()


def test_the_finest_rounding_stays_within_the_largest():
    sent = jax.vmap(lambda k: protect({"a": jnp.array([1.0, 0.5, -1.0])}, k, Upload(bits=16))["a"])(jax.random.split(KEY, 5000))
    assert jnp.abs(sent).max() <= 1.0


def test_bad_numbers():
    x = jnp.zeros((3, 2))
    clients = jaxfl.stack_clients([(x, jnp.zeros(3, int))])
    model = jaxfl.mlp(2, (), 2)
    for upload, message in (
        (Upload(clip=0), "clip=0 must be a positive norm"),
        (Upload(noise_multiplier=-1.0), r"noise_multiplier=-1\.0 must be finite"),
        (Upload(noise_multiplier=float("inf")), "noise_multiplier=inf must be finite"),
        (Upload(bits=2.5), r"bits=2\.5 must be an integer from 0"),
        (Upload(bits=24), "bits=24 must be an integer from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            simulate(model, model.init(KEY), clients, KEY, Federated(upload=upload))
