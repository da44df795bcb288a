"""Gradients by layers are those of `jax.grad`, and their products those of written gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.factored_gradients import (
    TILE,
    factored_gradients,
    gradient_changes,
    gradient_differences,
)
from jaxfl import mlp
from jaxfl.models import record_gradient

FEATURES = 6
NAMED = mlp(FEATURES, (5, 4), 3)
UNNAMED = dataclasses.replace(NAMED, layers=None)


def made_up(records, count=None, seed=0):
    """Parameters, and records or their candidates with labels."""
    shape = (records,) if count is None else (records, count)
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.normal(size=(*shape, FEATURES)), jnp.float32)
    return NAMED.init(jax.random.key(seed)), x, jnp.asarray(rng.integers(0, 3, shape))


@jax.jit
def written(params, x, y):
    """Gradients `[..., parameters]`."""
    each = jax.vmap(lambda x, y: record_gradient(NAMED, params, x, y))
    flat = each(x.reshape(-1, FEATURES), y.reshape(-1))
    return flat.reshape(*y.shape, -1)


@pytest.mark.parametrize("records", [7, 2 * TILE, 2 * TILE + 1, 3 * TILE + 100])
def test_gram_of_few_and_of_many_records(records):
    params, x, y = made_up(records)
    gram = jax.jit(lambda *at: factored_gradients(NAMED, *at).gram())(params, x, y)
    every = written(params, x, y)
    np.testing.assert_allclose(gram, every @ every.T, atol=1e-4 * float(jnp.abs(gram).max()))


@pytest.mark.parametrize("records", [7, 2 * TILE + 1])
def test_gram_of_sums_of_outer_products(records):
    """Changes between two models, which have two terms a layer."""
    first, x, y = made_up(records)
    last = jax.tree.map(lambda a: a + 0.1, first)
    gram = jax.jit(lambda *at: gradient_changes(NAMED, *at).gram())(first, last, x, y)
    every = written(last, x, y) - written(first, x, y)
    np.testing.assert_allclose(gram, every @ every.T, atol=1e-4 * float(jnp.abs(gram).max()))


@pytest.mark.parametrize("model", [NAMED, UNNAMED], ids=["named", "unnamed"])
@pytest.mark.parametrize("absence", [False, True])
@pytest.mark.parametrize("records", [5, pytest.param(TILE + 1, marks=pytest.mark.slow)])
def test_differences_from_the_first_candidate(model, absence, records):
    params, x, y = made_up(records, 3)

    @jax.jit
    def told(params, x, y):
        differences, base, length = gradient_differences(model, params, x, y, absence)
        along = differences.along(jax.tree.map(lambda a: a + 1, params))
        return differences.gram(), base, length, along

    gram, base, length, along = told(params, x, y)
    every = written(params, x, y)
    every = every.at[:, 0].set(0) if absence else every
    expected = (every[:, 1:] - every[:, :1]).reshape(2 * records, -1)
    size = float(jnp.abs(expected @ expected.T).max())
    np.testing.assert_allclose(gram, expected @ expected.T, atol=1e-4 * size)
    np.testing.assert_allclose(ravel_pytree(base)[0], every[:, 0].sum(0), atol=1e-3)
    np.testing.assert_allclose(length, np.linalg.norm(every[:, -1], axis=1).mean(), rtol=1e-5)
    target = ravel_pytree(params)[0] + 1
    np.testing.assert_allclose(along, expected @ target, atol=1e-3)


def test_gram_of_a_batch_is_that_of_each():
    params, x, y = made_up(2 * TILE + 1)
    models = jax.tree.map(lambda a: jnp.stack([a, a + 0.1]), params)

    @jax.jit
    def gram(params):
        return factored_gradients(NAMED, params, x, y).gram()

    together = jax.jit(jax.vmap(gram))(models)
    alone = jnp.stack([gram(params), gram(jax.tree.map(lambda a: a + 0.1, params))])
    np.testing.assert_allclose(together, alone, atol=1e-5 * float(jnp.abs(alone).max()))


@pytest.mark.slow
@pytest.mark.parametrize("records", [7, 2 * TILE + 1])
def test_models_may_be_wider_than_records(records):
    """As those recorded in 64 bits are, of records in 32."""
    with jax.enable_x64(True):
        params, x, y = made_up(records, 2)
        wide = jax.tree.map(lambda a: a.astype(jnp.float64), params)

        @jax.jit
        def told(wide, x, y):
            gram = factored_gradients(NAMED, wide, x[:, 0], y[:, 0]).gram()
            differences, base, _ = gradient_differences(NAMED, wide, x, y, False)
            return gram, differences.gram(), base

        gram, of_differences, base = told(wide, x, y)
        assert gram.dtype == of_differences.dtype == jnp.float64
        assert {leaf.dtype for leaf in jax.tree.leaves(base)} == {jnp.dtype(jnp.float64)}
