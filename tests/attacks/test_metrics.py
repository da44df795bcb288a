"""Explanations of models and their likeness (Zest)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks.metrics import explain, zest_masks, zest_similarity
from jaxfl import mlp

KEY = jax.random.key(0)


def test_a_linear_models_explanation_is_what_each_segment_adds():
    rng = np.random.default_rng(0)
    weights, x = (
        rng.normal(size=(5, 2)).astype(np.float32),
        rng.normal(size=(3, 5)).astype(np.float32),
    )
    segments = np.array([0, 1, 1, 2, 3])  # the second and third entry belong together
    masks = zest_masks(KEY, 4, 60)
    assert masks[0].all()
    assert 0.4 < np.asarray(masks[1:]).mean() < 0.6
    found = explain(lambda rows: rows @ weights, jnp.asarray(x), segments, masks, jnp.zeros(5))
    each = x[:, :, None] * weights
    assert np.allclose(
        found, np.stack([each[:, 0], each[:, 1] + each[:, 2], each[:, 3], each[:, 4]], 1), atol=1e-4
    )


def test_what_is_masked_is_filled():
    """Where records are what fills them nothing depends on masks: but for the constant, no segment
    explains anything."""
    fill = jnp.arange(4.0)
    masks = zest_masks(KEY, 4, 40)
    found = explain(lambda rows: rows - fill, fill[None], np.arange(4), masks, fill)
    assert jnp.abs(found).max() < 1e-5


def test_likeness_falls_from_one_for_the_same_model_to_none_for_another():
    model = mlp(20, (32,), 3)
    params, x = model.init(KEY), jax.random.normal(KEY, (8, 20))
    masks = zest_masks(KEY, 20, 200)

    def explained(params):
        return explain(
            lambda rows: model.apply(params, rows), x, np.arange(20), masks, jnp.zeros(20)
        )

    def moved(distance):
        noise = [
            jax.random.normal(k, a.shape)
            for k, a in zip(jax.random.split(KEY, 4), jax.tree.leaves(params), strict=True)
        ]
        noise = jax.tree.unflatten(jax.tree.structure(params), noise)
        return jax.tree.map(lambda a, e: a + distance * a.std() * e, params, noise)

    own = explained(params)
    near, far = (float(zest_similarity(own, explained(moved(distance)))) for distance in (0.1, 1.0))
    other = abs(float(zest_similarity(own, explained(model.init(jax.random.key(5))))))
    assert float(zest_similarity(own, own)) == pytest.approx(1, abs=1e-5)
    assert 1 > near > far > other
    assert other < 0.3


def test_too_few_masks():
    with pytest.raises(ValueError, match="masks has 7 rows for 4 segments"):
        explain(
            lambda rows: rows, jnp.ones((1, 4)), np.arange(4), zest_masks(KEY, 4, 7), jnp.zeros(4)
        )
