"""Detectors of properties: affine features add up, and three ways to train one agree."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from attacks import (
    DetectorTraining,
    FirstOrder,
    Lda,
    Logistic,
    Property,
    gibbs,
    observe,
    ridge,
    train_detectors,
)
from attacks.metrics import ranking
from attacks.properties.detector_laws import overlap, repeat_correlation
from attacks.properties.detectors import halves
from attacks.properties.directions import record_gradients
from attacks.properties.shadows import shadow_updates
from jaxfl import (
    Behavior,
    Federated,
    Keep,
    LocalTraining,
    PerClient,
    client_round,
    clipped_sgd,
    lenet,
    local_update,
    mean_loss,
    mlp,
    one_client,
    simulate,
    stack_clients,
)
from tests.conftest import largest_difference

KEY = jax.random.key(0)
CLIENTS, RECORDS, ROUNDS, PER_ROUND = 12, 16, 40, 4
TRAINING = LocalTraining(0.02, epochs=2, batch_size=4)
POSITIVES = np.arange(CLIENTS) < 2


def drawn(rng, count):
    """Records of one distribution."""
    x = rng.normal(size=(count, 10)).astype(np.float32)
    return x, (x[:, 0] + 0.3 * rng.normal(size=count) > 0).astype(int)


@pytest.fixture(scope="module")
def auxiliary():
    return drawn(np.random.default_rng(1), 300)


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    model = mlp(10, (12,), 2)
    return model, model.init(KEY), [drawn(rng, RECORDS) for _ in range(CLIENTS)]


def trained(federation, behavior, records=None, keep="all"):
    model, params, own = federation
    federated = Federated(
        ROUNDS,
        TRAINING,
        plugins=() if behavior is None else (PerClient(behavior),),
        clients_per_round=PER_ROUND,
        keep=Keep(clients=keep, sums=True),
    )
    return simulate(model, params, stack_clients(records or own), KEY, federated)


KINDS = {"first_order": FirstOrder(gradients=200), "lda": Lda(), "logistic": Logistic(epochs=5)}


def detectors_of(federation, run, auxiliary, prop, kind="first_order", **changed):
    numbers = {"pairs": 40, "repeated": 10} | changed
    own = {name: numbers.pop(name) for name in ("gradients", "averaged") if name in numbers}
    return train_detectors(
        federation[0],
        run.aggregates().received,
        *map(jnp.asarray, auxiliary),
        prop,
        KEY,
        training=TRAINING,
        records=RECORDS,
        settings=DetectorTraining(dataclasses.replace(KINDS[kind], **own), **numbers),
    )


@pytest.mark.very_slow
@pytest.mark.parametrize("kind", ["first_order", "lda", "logistic"])
def test_inversion_is_found_through_sums(federation, auxiliary, kind):
    prop = Property(Behavior(update=-1.0), rate=2 / CLIENTS)
    run = trained(federation, prop.behavior.among(POSITIVES))
    pairs = 200 if kind == "logistic" else 40  # of which a fifth calibrate
    detectors = detectors_of(federation, run, auxiliary, prop, kind, pairs=pairs)
    observations = observe(run.aggregates(), detectors)
    assert observations.clients_per_round == PER_ROUND
    assert float(observations.pool) == float(detectors.pool)
    found = np.asarray(gibbs(observations, jnp.asarray([ROUNDS]), KEY))[0]
    assert ranking(found, POSITIVES, 0.5).auc == 1
    assert ranking(found, POSITIVES, 0.5).f1 == 1
    # Messages of honest clients hold no sign of it.
    run = trained(federation, None)
    honest = observe(
        run.aggregates(), detectors_of(federation, run, auxiliary, prop, kind, pairs=pairs)
    )
    assert np.asarray(gibbs(honest, jnp.asarray([ROUNDS]), KEY))[0].max() < 0.5


@pytest.mark.very_slow
def test_rounds_share_detectors_and_average_directions(federation, auxiliary):
    prop = Property(Behavior(update=-1.0), rate=2 / CLIENTS)
    run = trained(federation, prop.behavior.among(POSITIVES))
    each, shared, mean = (
        detectors_of(federation, run, auxiliary, prop, **changed)
        for changed in ({}, {"every": 4}, {"averaged": ROUNDS})
    )
    assert shared.direction.shape == each.direction.shape
    assert (np.asarray(shared.direction[4:8]) == np.asarray(shared.direction[4])).all()
    assert len(np.unique(np.asarray(shared.direction), axis=0)) == -(-ROUNDS // 4)
    assert shared.detector_number.tolist() == [t // 4 for t in range(ROUNDS)]
    unit = lambda a: np.asarray(a) / np.linalg.norm(a, axis=-1, keepdims=True)  # noqa: E731
    assert unit(mean.direction[0]) == pytest.approx(unit(each.direction[0]), abs=1e-5)
    cosines = lambda a: (unit(a.direction[1:]) * unit(a.direction[:-1])).sum(1)  # noqa: E731
    assert (1 - cosines(mean))[20:].max() < 0.1 * np.median(
        1 - cosines(each)
    )  # the more are averaged, the less one counts
    for detectors in (shared, mean):
        found = np.asarray(gibbs(observe(run.aggregates(), detectors), [ROUNDS], KEY))[0]
        assert ranking(found, POSITIVES, 0.5).f1 == 1


@pytest.mark.slow
def test_no_detector_looks_ahead(federation, auxiliary):
    prop = Property(Behavior(update=-1.0))
    received = trained(federation, None).aggregates().received
    other = jax.tree.map(lambda a: a.at[20:].multiply(-2), received)
    settings = DetectorTraining(
        FirstOrder(gradients=50, averaged=3), pairs=10, repeated=2, every=8, followed=50
    )
    found = [
        train_detectors(
            federation[0],
            models,
            *map(jnp.asarray, auxiliary),
            prop,
            KEY,
            training=TRAINING,
            records=RECORDS,
            settings=settings,
        )
        for models in (received, other)
    ]
    for name in ("direction", "offset", "mean", "variance", "correlation"):
        one, two = (np.asarray(getattr(detectors, name)) for detectors in found)
        assert (one[:20] == two[:20]).all()
        assert (one[24:] != two[24:]).any()


PLAIN = LocalTraining(0.1)
TARGET = jnp.full(10, 2.0), jnp.asarray(0)


@pytest.mark.parametrize(
    ("prop", "kind", "every"),
    [
        (Property(Behavior(update=-1.0)), FirstOrder(gradients=100), 8),
        (Property(Behavior(update=0.0)), FirstOrder(gradients=100), 7),
        (Property(Behavior(gradient=-1.0)), Lda(), 9),
        (Property(target=TARGET), FirstOrder(gradients=100), 8),
        (Property(target=TARGET), Logistic(epochs=2), 40),
    ],
)
def test_class_means_follow_the_model_between_rounds_of_one_detector(
    federation, auxiliary, prop, kind, every
):
    """To first order, which is exact for one step: by the difference of the mean gradients of both
    classes."""
    model, (x, y) = federation[0], map(jnp.asarray, auxiliary)
    received = trained(federation, None).aggregates().received
    settings = DetectorTraining(kind, 20, repeated=2, every=every, followed=len(x))
    found = train_detectors(
        model, received, x, y, prop, KEY, training=PLAIN, records=RECORDS, settings=settings
    )
    rows = halves(jax.random.split(KEY, 5)[0], len(x))[1]
    gradient = jax.grad(lambda p, x, y: mean_loss(model, p, x, y))

    def along(x, y):
        gradients = jax.vmap(lambda p: ravel_pytree(gradient(p, x, y))[0])(received)
        return (gradients * found.direction).sum(1)

    mean = with_ = along(x[rows], y[rows])
    if prop.target is not None:
        with_ = (mean * (RECORDS - 1) + along(*(a[None] for a in prop.target))) / RECORDS
    with_ *= prop.behavior.gradient * prop.behavior.update
    trained_for = np.arange(ROUNDS) // every * every
    means = found.mean - found.offset[:, None]  # of the direction alone
    moved = 0.1 * jnp.stack([mean - mean[trained_for], with_ - with_[trained_for]], 1)
    # The step is estimated, from halves of the shadows.
    assert means - means[trained_for] == pytest.approx(
        np.asarray(moved), rel=0.02, abs=0.02 * float(abs(moved).max())
    )
    assert float(abs(moved).max()) > 0.02 * float((found.mean[:, 1] - found.mean[:, 0]).max())
    assert found.mean.sum(1) == pytest.approx(np.asarray(found.mean.sum(1)[trained_for]), abs=1e-4)


@pytest.mark.slow
def test_means_are_those_of_clients_with_records_of_their_own(federation, auxiliary):
    """And not of the records that directions are made of: 150 gradients of 158 parameters leave
    little to chance."""
    prop = Property(Behavior(gradient=-1.0))
    received = jax.tree.map(lambda a: a[::8], trained(federation, None).aggregates().received)
    found = train_detectors(
        federation[0],
        received,
        *map(jnp.asarray, auxiliary),
        prop,
        KEY,
        training=TRAINING,
        records=RECORDS,
        settings=DetectorTraining(FirstOrder(gradients=150, shrinkage=2e-3), pairs=200, repeated=2),
    )
    x, y = map(jnp.asarray, drawn(np.random.default_rng(7), 200 * RECORDS))
    rows = jnp.arange(len(x)).reshape(200, RECORDS)
    assert float(found.pool) == pytest.approx(150 / RECORDS)
    for t in range(len(found.offset)):
        params = jax.tree.map(lambda a, t=t: a[t], received)
        nobody, keys = jnp.zeros(len(rows), bool), jax.random.split(KEY, len(rows))
        updates = shadow_updates(
            federation[0], params, rows, nobody, keys, Property(), x=x, y=y, training=TRAINING
        )
        away = (updates @ found.direction[t] + found.offset[t]).mean() - found.mean[t, 0]
        # The means of 150 records' clients vary by a third; those of the directions' own lie 2.6 to
        # 4.3 off.
        assert abs(away) < jnp.sqrt(found.variance[t, 0])


@pytest.mark.slow
def test_free_riders_have_laws_although_their_updates_do_not_vary(federation, auxiliary):
    prop = Property(Behavior(update=0.0), rate=2 / CLIENTS)
    run = trained(federation, prop.behavior.among(POSITIVES))
    detectors = detectors_of(federation, run, auxiliary, prop)
    assert (np.asarray(detectors.variance) > 0).all()
    weights = jnp.asarray(1 - overlap(detectors.mean, detectors.variance), jnp.float32)
    observations, seen = observe(run.aggregates(), detectors), jnp.asarray([ROUNDS])
    for scores in (gibbs(observations, seen, KEY), ridge(observations, seen, weights)):
        assert ranking(np.asarray(scores)[0], POSITIVES, 0.5).auc >= 0.9


def test_features_of_participants_add_up_to_the_aggregates(federation, auxiliary):
    run = trained(federation, None)
    detectors = detectors_of(federation, run, auxiliary, Property(Behavior(update=0.0)))
    updates = jax.tree.map(lambda w, v: w[:, None] - v, run.received, run.returned)
    flat = jax.vmap(jax.vmap(lambda tree: ravel_pytree(tree)[0]))(updates)
    features = jnp.einsum("tcd,td->tc", flat, detectors.direction) + detectors.offset[:, None]
    expected = (features * run.participation).sum(1)
    found = observe(run.aggregates(), detectors).features
    assert found == pytest.approx(np.asarray(expected), abs=1e-4 * float(jnp.abs(features).max()))
    assert found == pytest.approx(
        np.asarray(observe(trained(federation, None, keep=()).aggregates(), detectors).features)
    )


def test_membership_of_a_record_is_found_and_not_where_nobody_holds_it(federation, auxiliary):
    target = np.full(10, 2.0, np.float32), 0  # unlike the others, and wrongly labelled
    *_, own = federation
    holding = [
        (np.concatenate([target[0][None], x[1:]]), np.append(target[1], y[1:])) if has else (x, y)
        for has, (x, y) in zip(POSITIVES, own, strict=True)
    ]
    prop = Property(target=tuple(map(jnp.asarray, target)))
    run = trained(federation, None, holding)
    observations = observe(run.aggregates(), detectors_of(federation, run, auxiliary, prop))
    found = np.asarray(gibbs(observations, jnp.asarray([ROUNDS]), KEY))[0]
    assert ranking(found, POSITIVES, 0.5).f1 == 1
    without = trained(federation, None)
    observations = observe(without.aggregates(), detectors_of(federation, without, auxiliary, prop))
    assert np.asarray(gibbs(observations, jnp.asarray([ROUNDS]), KEY))[0].max() < 0.5


def test_behaviours_are_what_they_say(federation):
    model, params, own = federation
    data = one_client(*own[0])
    honest = local_update(model, params, data, KEY, TRAINING)
    done = {
        b: client_round(model, params, data, KEY, TRAINING, (Behavior(*b),))
        for b in ((1, 1), (-1, 1), (1, -0.5), (1, 0))
    }
    assert largest_difference(done[1, 1], honest) < 1e-6
    climbed = local_update(
        model, params, data, KEY, dataclasses.replace(TRAINING, learning_rate=-0.02)
    )
    assert largest_difference(done[-1, 1], climbed) < 1e-6
    assert float(mean_loss(model, done[-1, 1], data.x, data.y)) > float(
        mean_loss(model, params, data.x, data.y)
    )
    expected = jax.tree.map(lambda w, v: w - 0.5 * (v - w), params, honest)
    assert largest_difference(done[1, -0.5], expected) < 1e-6
    assert largest_difference(done[1, 0], params) == 0


def test_one_clients_behaviour_changes_no_other(federation):
    behavior = Behavior(update=-1.0).among(POSITIVES)
    honest, mixed = trained(federation, None), trained(federation, behavior)
    first = jax.tree.map(lambda a: a[0], (honest.returned, mixed.returned))
    for c in range(CLIENTS):
        pair = jax.tree.map(lambda a, c=c: a[c], first)
        same = largest_difference(*pair) < 1e-6
        assert same == (not (POSITIVES[c] and bool(honest.participation[0, c])))


def test_clipped_steps_are_short(federation):
    model, params, own = federation
    training = LocalTraining(1.0, optimizer=clipped_sgd(0.01))
    returned = local_update(model, params, one_client(*own[0]), KEY, training)
    moved = ravel_pytree(jax.tree.map(jnp.subtract, params, returned))[0]
    assert float(jnp.linalg.norm(moved)) == pytest.approx(0.01, rel=1e-4)
    assert clipped_sgd(0.01) is clipped_sgd(0.01)  # one program for equal settings


def test_shadows_are_clients(federation, auxiliary):
    model, params, _ = federation
    x, y = map(jnp.asarray, auxiliary)
    rows = jnp.arange(RECORDS)[None]
    prop = Property(Behavior(update=-1.0), (x[200], y[200]))
    who = jnp.ones(1, bool), jax.random.split(KEY, 1)
    found = shadow_updates(model, params, rows, *who, prop, x=x, y=y, training=TRAINING)[0]
    own = jnp.arange(RECORDS).at[0].set(200)
    returned = local_update(
        model, params, one_client(x[own], y[own]), jax.random.split(KEY, 1)[0], TRAINING
    )
    expected = -ravel_pytree(jax.tree.map(jnp.subtract, params, returned))[0]
    assert found == pytest.approx(np.asarray(expected), abs=1e-6)


@pytest.mark.slow
def test_record_gradients_average_to_the_gradient(federation, auxiliary):
    model, params, _ = federation
    x, y = map(jnp.asarray, auxiliary)
    each = record_gradients(model, params, x, y, KEY, batch=64)
    whole = ravel_pytree(jax.grad(lambda p: mean_loss(model, p, x, y))(params))[0]
    assert each.shape == (300, len(whole))
    assert each.mean(0) == pytest.approx(np.asarray(whole), abs=1e-6)


def test_correlation_of_repeated_clients():
    rng = np.random.default_rng(0)
    own, noise = rng.normal(size=400), rng.normal(size=(50, 400))
    features = jnp.asarray(np.sqrt(0.3) * own + np.sqrt(0.7) * noise)
    found = repeat_correlation(features)
    assert found[0] == 0  # one round tells nothing
    assert float(found[-1]) == pytest.approx(0.3, abs=0.05)
    assert np.allclose(
        repeat_correlation(features[:7]), found[:7], rtol=1e-5
    )  # nor do rounds to come
    assert float(repeat_correlation(jnp.asarray(noise))[-1]) < 0.01


def test_lenets_have_the_papers_numbers_of_parameters():
    for name, shape, expected in (("mnist", (28, 28, 1), 21_840), ("cifar10", (32, 32, 3), 62_006)):
        params = jax.eval_shape(lenet(name).init, KEY)
        assert sum(a.size for a in jax.tree.leaves(params)) == expected
        assert jax.eval_shape(lenet(name).apply, params, jnp.zeros((2, *shape))).shape == (2, 10)


def test_bad_settings_are_named(federation, auxiliary):
    run, inversion = trained(federation, None), Property(Behavior(update=-1.0))
    with pytest.raises(ValueError, match="pairs=0 must be"):
        detectors_of(federation, run, auxiliary, inversion, pairs=0)
    with pytest.raises(ValueError, match="pairs=1 must be at least 2"):
        detectors_of(federation, run, auxiliary, inversion, pairs=1)
    with pytest.raises(ValueError, match="pairs=2 leaves none"):
        detectors_of(federation, run, auxiliary, inversion, "lda", pairs=2)
    with pytest.raises(ValueError, match="records=16 need at least twice"):
        detectors_of(federation, run, tuple(a[:31] for a in auxiliary), inversion)
    with pytest.raises(ValueError, match="averaged=0 must be"):
        detectors_of(federation, run, auxiliary, inversion, averaged=0)
    with pytest.raises(ValueError, match="sets nobody apart"):
        detectors_of(federation, run, auxiliary, Property())
    with pytest.raises(ValueError, match=r"rate=1\.5 must be between"):
        detectors_of(federation, run, auxiliary, dataclasses.replace(inversion, rate=1.5))
    record = auxiliary[0][0]
    with pytest.raises(ValueError, match=r"prop\.target\[1\] holds the label"):
        detectors_of(federation, run, auxiliary, Property(target=(record, 99)))
    with pytest.raises(ValueError, match=r"prop\.target\[0\] holds .* not finite"):
        detectors_of(federation, run, auxiliary, Property(target=(record * np.nan, 0)))
    with pytest.raises(ValueError, match=r"y has shape \(299,\)"):
        detectors_of(federation, run, (auxiliary[0], auxiliary[1][:-1]), inversion)
    with pytest.raises(ValueError, match=r"Behavior.update has shape \(3,\)"):
        trained(federation, Behavior(update=jnp.ones(3)))
