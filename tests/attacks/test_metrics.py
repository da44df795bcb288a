"""Scores in closed form; explanations of models and their likeness (Zest)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks.metrics import (
    accuracy,
    detection,
    explain,
    majority_rate,
    ranking,
    zest_masks,
    zest_similarity,
)
from jaxfl import mlp

KEY = jax.random.key(0)


def test_accuracy_counts_exact_values_and_nothing_where_an_attack_failed():
    truth = jnp.asarray([0, 2, 1, 1])
    assert accuracy(jnp.asarray([0, 2, 0, 1]), truth) == 0.75
    assert np.isnan(accuracy(jnp.full(4, -1), truth))


@pytest.mark.parametrize("truth", [[1, 1, 0], [0, 0, 1], [2, 0, 2]])
def test_majority_is_the_most_frequent_value_whichever_it_is(truth):
    assert majority_rate(jnp.asarray(truth), 3) == pytest.approx(2 / 3)


def test_ranking_of_few_positives_by_hand():
    scores, truth = np.asarray([0.9, 0.8, 0.3, 0.1]), np.asarray([True, False, True, False])
    found = ranking(scores, truth, 0.5)
    assert found.f1 == pytest.approx(0.5)  # one of two named, one of two found
    assert found.auc == pytest.approx(3 / 4)  # pairs in order
    assert found.average_precision == pytest.approx((1 + 2 / 3) / 2)
    assert found.brier == pytest.approx((0.01 + 0.64 + 0.49 + 0.01) / 4)
    assert np.isnan(ranking(3 * scores, truth, 0.5).brier)  # no probabilities
    assert np.isnan(jax.tree.leaves(ranking(np.full(4, np.nan), truth, 0.5))).all()


def test_detection_at_a_rate_of_false_alarms_by_hand():
    truth = np.arange(8) < 4
    scores = np.asarray([0.9, 0.8, 0.4, 0.3, 0.7, 0.2, 0.1, 0.0])
    assert detection(scores, truth).tpr == 0.5  # none of the four may be taken for positive
    assert detection(scores, truth, fpr=0.25).tpr == 1
    assert detection(scores, truth).auc == pytest.approx(14 / 16)
    assert np.isnan(jax.tree.leaves(detection(np.full(8, np.inf), truth))).all()


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


def test_scores_check_what_they_compare():
    values = np.zeros(30, int)
    with pytest.raises(ValueError, match=r"truth has shape .30, 1. and values .30,."):
        accuracy(values, values[:, None])
    with pytest.raises(ValueError, match="truth holds the label 2"):
        majority_rate(np.array([0, 1, 2, 2, 2]), 2)
    for score in (lambda s, t: detection(s, t), lambda s, t: ranking(s, t, 0.5)):
        with pytest.raises(ValueError, match=r"truth holds .True. alone"):
            score(np.ones(3), np.ones(3, bool))
        with pytest.raises(ValueError, match=r"4 (records|clients) as in scores"):
            score(np.ones(4), np.array([True, False, True]))
