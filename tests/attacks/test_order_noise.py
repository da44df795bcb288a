"""What hides records in updates of many steps: their order, the drift of their gradients, privacy's
noise."""

import dataclasses
import operator
import warnings
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from attacks import GLS, FitWarning, Knowledge, Status, binary_column, gls
from attacks.attributes.candidate_decoding.factored_gradients import (
    factored_gradients,
    gradient_changes,
)
from attacks.attributes.candidate_decoding.gls_round import Client, Round, round_quadratic
from attacks.attributes.candidate_decoding.order_noise import (
    batch_weights,
    noise_variance,
    place_covariance,
    upload_variance,
)
from attacks.attributes.candidate_decoding.simulated_client import guess_of, simulated
from attacks.attributes.candidate_decoding.whitening import _positive
from jaxfl import (
    DPSGD,
    Federated,
    LocalTraining,
    Mixup,
    Upload,
    local_update,
    mlp,
    one_client,
    simulate,
    stack_clients,
)
from tests.attacks.victims import KEY, D, explicit, make_victim
from tests.attacks.wrong_recipes import client

one_round = jax.jit(round_quadratic)


@pytest.mark.slow
def test_the_noise_of_private_training_is_as_long_as_it_is_drawn():
    training = LocalTraining(0.5, 2, 4, plugins=(DPSGD(0.3, 2.0),))
    model, records = mlp(D, (8,), 3), 10  # batches of 4, 4 and 2
    x, y, _, _ = make_victim(model)
    data, params = one_client(x[:records], y[:records]), model.init(KEY)
    quiet = dataclasses.replace(training, plugins=(DPSGD(0.3, 0.0),))

    @jax.jit
    def noise(key):
        noisy, plain = (
            ravel_pytree(local_update(model, params, data, key, t))[0] for t in (training, quiet)
        )
        return (noisy - plain) / training.learning_rate

    # A first step's noise moves what later ones follow, which adds less than the bound leaves.
    drawn = jax.vmap(noise)(jax.random.split(KEY, 200))
    assert float((drawn**2).mean()) == pytest.approx(
        float(noise_variance(training, records)), rel=0.05
    )


@pytest.mark.parametrize("clip", [100.0, float("inf")])
def test_the_noise_of_an_upload_is_as_long_as_it_is_drawn(clip):
    """In units of a norm that no update has, and in those of the update's own."""
    training = LocalTraining(0.5, plugins=(Upload(clip, 0.03 if clip < jnp.inf else 2.0),))
    update = {"kernel": jax.random.normal(KEY, (40, 30)), "bias": jnp.ones(30)}
    sent = jax.vmap(lambda key: training.plugins[0].send(update, key))(jax.random.split(KEY, 20))
    drawn = jax.vmap(lambda tree: ravel_pytree(tree)[0])(sent) - ravel_pytree(update)[0]
    told = jax.vmap(lambda tree: upload_variance(training, tree))(sent)
    measured = float((drawn**2).mean()) / training.learning_rate**2
    assert float(told.mean()) == pytest.approx(measured, rel=0.05)
    assert float(upload_variance(LocalTraining(0.5), update)) == 0
    assert float(upload_variance(LocalTraining(0.5, plugins=(Upload(1e30, 0.0),)), update)) == 0


@pytest.mark.slow
def test_noise_that_is_told_is_no_misfit():
    sent = (Upload(1e6, 1e-3 / 1e6),)
    model, messages, known, truth = client("right", LocalTraining(0.1), 0, plugins=sent)
    answers = {}
    for told in (sent, ()):
        settings = GLS(LocalTraining(0.1, plugins=told), orders=8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            answers[told] = gls(model, messages, known, KEY, settings=settings)
    right = {told: float((each.values[0] == truth).mean()) for told, each in answers.items()}
    assert [answers[told].status for told in (sent, ())] == [Status.OK, Status.MISFIT]
    assert min(right.values()) > 0.6
    rounded = GLS(LocalTraining(0.1, plugins=(Upload(bits=8),)))
    with pytest.raises(ValueError, match="Upload without bits alone"):
        gls(model, messages, known, KEY, settings=rounded)


def test_records_weights_in_random_batches():
    """Mean and variance over orders of 1 / (size of a record's batch), summed over epochs."""
    rng = np.random.default_rng(0)
    for records, size, epochs in ((10, 4, 1), (9, 3, 2), (7, None, 3), (11, 5, 2)):
        width = size or records
        sizes = np.asarray([min(width, records - i // width * width) for i in range(records)])
        drawn = sum(
            1 / sizes[rng.permuted(np.tile(np.arange(records), (20_000, 1)), axis=1)[:, 0]]
            for _ in range(epochs)
        )
        mean, variance = map(float, batch_weights(LocalTraining(0.1, epochs, size), records))
        assert drawn.mean() == pytest.approx(mean, rel=0.02)
        assert drawn.var() == pytest.approx(variance, rel=0.05, abs=1e-12)


def test_variance_of_a_records_place():
    """Of a record's place among the steps of each epoch, in units of the way from the first of all
    steps to the last, times its weight; over random orders."""
    rng = np.random.default_rng(0)
    for records, size, epochs in (
        (12, 4, 1),
        (12, 4, 3),
        (10, 4, 1),
        (10, 4, 3),
        (9, 4, 2),
        (7, None, 3),
    ):
        training, width = LocalTraining(0.1, epochs, size), size or records
        batch = (
            rng.permuted(np.tile(np.arange(records), (epochs, 40_000, 1)), axis=2)[..., 0] // width
        )
        steps = training.steps(records)
        place = (batch + np.arange(epochs)[:, None] * (steps // epochs)) / max(steps - 1, 1)
        weight = 1 / np.minimum(width, records - batch * width)
        drawn = ((place - 0.5) * weight).sum(0)
        assert drawn.var() == pytest.approx(
            float(place_covariance(training, records)[0, 0]), rel=0.03, abs=1e-12
        )
        ends = np.linspace(0, 1, 4)  # of three pieces
        passed = [
            np.interp(place, [low, high], [0, 1]) - np.interp(0.5, [low, high], [0, 1])
            for low, high in pairwise(ends)
        ]
        drawn = np.stack([(p * weight).sum(0) for p in passed])
        found = np.asarray(place_covariance(training, records, 3))
        assert np.allclose(found, np.cov(drawn), atol=0.03 * np.trace(found) + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_changes_of_gradients(named):
    """Against gradients written out by another program, at models far apart; a derivative, where
    they are close."""
    model = mlp(D, (16, 8), 3)
    x, y, _, messages = make_victim(model)
    first, last = (jax.tree.map(operator.itemgetter(t), messages.received) for t in (0, 2))
    named_model = model if named else explicit(model)

    def gradient(params, x, y):
        return ravel_pytree(
            jax.grad(lambda p: model.loss(model.apply(p, x[None]), y[None]).sum())(params)
        )[0]

    every = jax.jit(jax.vmap(gradient, (None, 0, 0)))
    written = np.asarray(every(last, x, y) - every(first, x, y), np.float64)
    with jax.default_matmul_precision("highest"):
        changes, own = (
            gradient_changes(named_model, first, last, x, y),
            factored_gradients(named_model, first, x, y),
        )
        assert np.allclose(
            changes.inner(changes), written @ written.T, atol=1e-5 * (written**2).sum(1).max()
        )
        across = written @ np.asarray(every(first, x, y), np.float64).T
        assert np.allclose(changes.inner(own), across, atol=1e-4 * np.abs(across).max())
        assert np.allclose(
            changes.along(last), written @ np.asarray(ravel_pytree(last)[0]), atol=1e-4
        )
        small = jax.tree.map(lambda a, b: 1e-3 * (b - a), first, last)
        near = gradient_changes(named_model, first, jax.tree.map(jnp.add, first, small), x, y)
    along = jax.jit(
        jax.vmap(lambda x, y: jax.jvp(lambda p: gradient(p, x, y), (first,), (small,))[1])
    )
    derivative = np.asarray(along(x, y), np.float64)
    limit = 0.02 if named else 0.1  # rounding, of which written gradients have more
    difference = np.asarray(near.inner(near)) - derivative @ derivative.T
    assert np.linalg.norm(difference) < limit * np.linalg.norm(derivative @ derivative.T)


@pytest.mark.parametrize(
    ("records", "pieces", "layers"), [(6, 1, None), (6, 1, 1), (6, 2, None), (5, 1, None)]
)
def test_drift_is_a_row_of_noise_per_record(records, pieces, layers):
    """A round's quadratic and slope from a covariance written out, parameters by parameters; with a
    short last batch, too."""
    training, model = LocalTraining(0.5, 2, 2), mlp(D, (4,), 3)
    settings = GLS(training, orders=3, drift=pieces, floor=0.05, spread=0.02, layers=layers)
    rng = np.random.default_rng(0)
    x, y = (
        rng.normal(size=(records, 2, D)).astype(np.float32),
        np.repeat(rng.integers(0, 3, (records, 1)), 2, 1),
    )

    def vector(tree):
        return ravel_pytree(tree if layers is None else tree["Dense_0"])[0]

    params = model.init(KEY)
    update = jax.tree.map(lambda a: 0.3 * jax.random.normal(KEY, a.shape), params)
    ones = rng.uniform(0.1, 0.9, records)
    scores = jnp.asarray(np.stack([1 - ones, ones], 1), jnp.float32)
    with jax.default_matmul_precision("highest"):
        client = Client(model, jnp.asarray(x), jnp.asarray(y), settings)
        found = one_round(client, Round(params, update), scores, KEY)
        guess = guess_of(model, training, scores, client.x, client.y, lambda: None)
        runs = jax.jit(lambda key: simulated(guess, params, key, 3))(jax.random.split(KEY)[0])
        together = jnp.concatenate([runs[0][None], runs[1]])
        unravel = ravel_pytree(params)[1]
        mean, *deviations = np.asarray(
            jax.vmap(lambda run: vector(unravel(run)))(together), np.float64
        )
        deviations = np.stack(deviations)

    def gradients(at):
        def one(x, y):
            return vector(
                jax.grad(lambda p: model.loss(model.apply(p, x[None]), y[None]).sum())(at)
            )

        return np.asarray(
            jax.jit(jax.vmap(jax.vmap(one)))(x, y), np.float64
        )  # [records, 2, parameters]

    def moved(fraction):
        return jax.tree.map(lambda w, u: w - fraction * u, params, update)

    centre, ends = (
        gradients(moved(5 / 12)),
        [gradients(moved(5 / 6 * p / pieces)) for p in range(pieces + 1)],
    )  # six steps
    s, weight = np.asarray(scores, np.float64), 2 * 3 / records
    own = np.einsum("nk,nkp->np", s, centre)
    passed = np.asarray(
        [[np.clip(i / 5 * pieces - p, 0, 1) for p in range(pieces)] for i in range(6)]
    )
    in_batch = np.resize([1 / 2, 1 / 2, 1 / 2 if records == 6 else 1], 6)[
        :, None
    ]  # a record's weight where it is in it
    chance = np.resize([2, 2, 2 if records == 6 else 1], 3)[:, None] / records
    passed = passed - [np.clip(pieces / 2 - p, 0, 1) for p in range(pieces)]
    among = np.zeros((pieces, pieces))
    for e in (slice(0, 3), slice(3, 6)):
        placed = in_batch[e] * passed[e]
        among += (chance * placed).T @ placed - np.outer(
            (chance * placed).sum(0), (chance * placed).sum(0)
        )
    weights = 2 * ((chance * in_batch[:3] ** 2).sum() - (3 / records) ** 2)
    changes = np.stack(
        [np.einsum("nk,nkp->np", s, after - before) for before, after in pairwise(ends)]
    )
    once = (
        (np.eye(records) - 1 / records) * records / (records - 1)
    )  # places and weights are dealt without repetition
    drift = np.einsum("kl,knp,nm,lmq->pq", among, changes, once, changes)
    covariance = (
        own.T @ (0.02 * weight**2 * np.eye(records) + weights * once) @ own
        + deviations.T @ deviations
        + drift
    )
    covariance += 0.05 * np.trace(covariance) / records * np.eye(len(covariance))
    jacobian = weight * (centre[:, 1] - centre[:, 0])
    white = np.linalg.solve(covariance, jacobian.T)
    residual = np.asarray(vector(update), np.float64) / 0.5 - mean
    assert np.allclose(found[0], jacobian @ white, atol=2e-3 * np.abs(jacobian @ white).max())
    assert np.allclose(found[1], residual @ white, atol=2e-3 * np.abs(residual @ white).max())


def test_a_covariance_that_rounding_made_indefinite():
    inner = jnp.diag(jnp.asarray([1.0, 0.5, -1e-3]))
    floor, factor = _positive(inner, jnp.asarray(1e-4))
    assert floor == pytest.approx(1.6e-3)
    assert np.allclose(factor @ factor.T, inner + floor * jnp.eye(3), atol=1e-6)
    assert _positive(inner, jnp.asarray(0.01))[0] == pytest.approx(0.01)
    assert np.isnan(
        _positive(inner * jnp.nan, jnp.asarray(1e-4))[1]
    ).any()  # which is left for the caller to say


@pytest.mark.very_slow
def test_drift_tells_records_apart_that_are_nearly_alike():
    """Of one class and hardly different: what tells a bit is small beside the noise of orders, of
    which eight runs say little."""
    training, model, read = LocalTraining(0.2, batch_size=15), mlp(D, (128,), 3), []
    for seed in range(4):
        rng, key = np.random.default_rng(seed), jax.random.key(seed)
        x = (rng.normal(size=D) + 0.1 * rng.normal(size=(60, D))).astype(np.float32)
        truth = rng.integers(0, 2, 60)
        x[:, 6], y = truth, np.ones(60, int)
        federated = Federated(rounds=5, training=training)
        messages = simulate(
            model, model.init(key), stack_clients([(x, y)]), key, federated
        ).messages(0)
        known = Knowledge(x, y, (binary_column(6, 0.5),))
        of = ({"drift": 0}, {"drift": 1, "floor": 3e-3}, {"drift": 1}, {"drift": 1, "layers": 1})
        found = [
            gls(model, messages, known, KEY, settings=GLS(training, orders=8, **each))
            for each in of
        ]
        read.append([(np.asarray(each.values[0]) == truth).mean() for each in found])
    without, drift, least, first_layer = np.mean(read, 0)
    assert drift > 0.95
    assert least > 0.95
    assert first_layer > 0.95
    assert drift > without + 0.05


@pytest.mark.parametrize(("points", "plugins"), [(2, ()), (1, (Mixup(),)), (1, (DPSGD(1.0, 0.1),))])
def test_drift_is_for_plain_training(points, plugins):
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model)
    training = LocalTraining(0.1, batch_size=4, plugins=plugins)
    settings = GLS(training, points=points, drift=1)
    with pytest.raises(ValueError, match="drift=1"):
        gls(model, messages, Knowledge(x, y, (binary_column(6, 0.4),)), KEY, settings=settings)
