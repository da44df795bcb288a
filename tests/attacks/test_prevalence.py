"""Clients of whose records many have an attribute: shadows hold as many as is said, sums tell who
they are, and nothing is told where the attribute is of no records in particular."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from attacks import (
    DetectorTraining,
    FirstOrder,
    Lda,
    Prevalence,
    Property,
    gibbs,
    observe,
    train_detectors,
)
from attacks.metrics import ranking
from attacks.properties.detectors import draw_clients, halves
from attacks.properties.shadows import first_order_updates
from jaxfl import Federated, LocalTraining, mean_loss, mlp, simulate, stack_clients

KEY = jax.random.key(0)
CLIENTS, RECORDS, ROUNDS, PER_ROUND, FEATURES = 12, 40, 24, 4, 6
WITHOUT, WITH = 0.2, 0.7
TRAINING = LocalTraining(0.1, batch_size=10)
POSITIVES = np.arange(CLIENTS) % 3 == 0
SETTINGS = DetectorTraining(FirstOrder(), pairs=60, repeated=10)


def drawn(rng, carries):
    """Records of which some have an attribute, a feature of 1 that nothing else depends on."""
    x = rng.normal(size=(len(carries), FEATURES)).astype(np.float32)
    x[:, 0] = carries
    return x, (x[:, 1] + 0.3 * rng.normal(size=len(x)) > 0).astype(int)


@pytest.fixture(scope="module")
def auxiliary():
    rng = np.random.default_rng(1)
    return drawn(rng, rng.random(600) < 0.4)


@pytest.fixture(scope="module")
def model():
    return mlp(FEATURES, (8,), 2)


def sums_of(model, shares, seed=0):
    rng = np.random.default_rng(seed)
    held = [drawn(rng, rng.random(RECORDS) < share) for share in shares]
    federated = Federated(ROUNDS, TRAINING, clients_per_round=PER_ROUND)
    return simulate(model, model.init(KEY), stack_clients(held), KEY, federated).aggregates()


def detectors_of(model, sums, auxiliary, carriers, settings=SETTINGS, training=TRAINING):
    prop = Property(rate=POSITIVES.mean(), prevalence=Prevalence(carriers, WITHOUT, WITH))
    x, y = map(jnp.asarray, auxiliary)
    return train_detectors(
        model,
        sums.received,
        x,
        y,
        prop,
        KEY,
        training=training,
        records=RECORDS,
        settings=settings,
    )


@pytest.mark.very_slow
@pytest.mark.parametrize("kind", [FirstOrder(), Lda()])
def test_who_holds_many_is_found_through_sums_and_not_where_all_hold_as_many(
    model, auxiliary, kind
):
    settings = DetectorTraining(kind, pairs=120, repeated=10)

    def told(shares, seed):
        sums = sums_of(model, shares, seed)
        found = detectors_of(model, sums, auxiliary, auxiliary[0][:, 0], settings)
        return np.asarray(gibbs(observe(sums, found), jnp.asarray([ROUNDS]), KEY))[0]

    apart = [told(np.where(POSITIVES, WITH, WITHOUT), seed) for seed in range(3)]
    assert np.mean([ranking(scores, POSITIVES, 0.5).auc for scores in apart]) > 0.95
    assert max(told(np.full(CLIENTS, WITHOUT), seed).max() for seed in range(3)) < 0.9


@pytest.mark.slow
def test_an_attribute_that_no_feature_shows_separates_nothing(model, auxiliary):
    sums = sums_of(model, np.where(POSITIVES, WITH, WITHOUT))
    shuffled = np.random.default_rng(2).permutation(auxiliary[0][:, 0])
    apart = {}
    for name, carriers in (("real", auxiliary[0][:, 0]), ("shuffled", shuffled)):
        found = detectors_of(model, sums, auxiliary, carriers)
        means, deviation = np.asarray(found.mean), np.sqrt(np.asarray(found.variance).mean(1))
        apart[name] = (means[:, 1] - means[:, 0]) / deviation
    assert np.median(apart["shuffled"]) < 1
    assert np.median(apart["real"]) > 3


def test_shadows_hold_as_many_as_is_said_and_differ_in_no_more_records():
    carriers, rows = np.arange(300) % 3 == 0, np.arange(50, 290)
    prevalence = Prevalence(carriers, WITHOUT, WITH)
    sides = draw_clients(KEY, jnp.asarray(rows), RECORDS, 400, prevalence)
    without, with_property = map(np.asarray, sides)
    for side, share in ((without, WITHOUT), (with_property, WITH)):
        assert np.isin(side, rows).all()
        counts = carriers[side].sum(1)
        # Each record has it with that chance, independently.
        assert counts.mean() == pytest.approx(share * RECORDS, abs=4 * np.sqrt(counts.var() / 400))
        assert counts.var() == pytest.approx(share * (1 - share) * RECORDS, rel=0.3)
        assert all(len(np.unique(row)) == RECORDS for row in side)
    more = carriers[with_property].sum(1) - carriers[without].sum(1)
    common = [len(np.intersect1d(*pair)) for pair in zip(without, with_property, strict=True)]
    assert common == (RECORDS - more).tolist()


def test_a_record_comes_twice_only_where_there_are_too_few_of_its_kind():
    carriers = np.arange(60) < 5
    prevalence = Prevalence(carriers, 0.1, 0.9)
    _, with_property = draw_clients(KEY, jnp.arange(60), RECORDS, 50, prevalence)
    for row in np.asarray(with_property):
        mine = row[carriers[row]]
        assert len(np.unique(mine)) == min(len(mine), 5)
        others = row[~carriers[row]]
        assert len(np.unique(others)) == len(others)


def test_weights_are_those_of_expected_shares():
    carriers = np.arange(30) % 3 == 0
    rows = jnp.asarray([0, 1, 2, 3, 4, 7, 8, 9])
    for weights, share in zip(
        Prevalence(carriers, WITHOUT, WITH).weights(rows), (WITHOUT, WITH), strict=True
    ):
        assert float(weights.sum()) == pytest.approx(1)
        assert float(weights @ carriers[np.asarray(rows)]) == pytest.approx(share)


@pytest.mark.slow
def test_class_means_follow_the_model_between_rounds_of_one_detector(model, auxiliary):
    """One full-batch step is what first order says: the mean gradient of each class's records."""
    sums, plain, every = sums_of(model, np.full(CLIENTS, WITHOUT)), LocalTraining(0.1), 8
    settings = DetectorTraining(
        FirstOrder(), 60, repeated=2, every=every, followed=len(auxiliary[0])
    )
    carriers = auxiliary[0][:, 0]
    found = detectors_of(model, sums, auxiliary, carriers, settings, plain)
    x, y = map(jnp.asarray, auxiliary)
    rows = halves(jax.random.split(KEY, 5)[0], len(x))[1]
    gradients = jax.vmap(
        lambda p: jax.vmap(
            lambda x, y: ravel_pytree(jax.grad(lambda q: mean_loss(model, q, x[None], y[None]))(p))[
                0
            ]
        )(x[rows], y[rows])
    )(sums.received)
    prevalence = Prevalence(carriers, WITHOUT, WITH)
    means = tuple(
        jnp.einsum("n,tnd,td->t", w, gradients, found.direction) for w in prevalence.weights(rows)
    )
    expected = 0.1 * jnp.stack(first_order_updates(means, None, Property(), RECORDS), 1)
    trained_for = np.arange(ROUNDS) // every * every
    moved = expected - expected[trained_for]
    alone = found.mean - found.offset[:, None]
    assert alone - alone[trained_for] == pytest.approx(
        np.asarray(moved), abs=0.15 * float(abs(moved).max())
    )
    assert float(abs(moved).max()) > 0.05


def test_what_sets_nobody_apart_is_named(model, auxiliary):
    sums = sums_of(model, np.full(CLIENTS, WITHOUT))
    with pytest.raises(ValueError, match=r"carriers is 1\.0 for all auxiliary records"):
        detectors_of(model, sums, auxiliary, np.ones(600))
    with pytest.raises(ValueError, match=r"carriers has shape \(3,\)"):
        detectors_of(model, sums, auxiliary, np.arange(3) > 1)
    x, y = map(jnp.asarray, auxiliary)
    for shares, said in (((0.3, 0.3), "sets nobody apart"), ((0.3, 1.5), "between 0 and 1")):
        prop = Property(prevalence=Prevalence(auxiliary[0][:, 0], *shares))
        with pytest.raises(ValueError, match=said):
            train_detectors(
                model, sums.received, x, y, prop, KEY, training=TRAINING, records=RECORDS
            )
