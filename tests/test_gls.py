"""Decoding of clients that take many steps a round: better than the closed form, blind on another client's messages."""

import dataclasses
import functools
import operator
import sys
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from attacks.attribute_reconstruction import Knowledge, binary_column, check_knowledge
from attacks.candidate_decoding import GLS, ClosedForm, closed_form, gls
from attacks.candidate_decoding.candidates import candidate_records, factored_gradients, gradient_changes, mean_gradients
from attacks.candidate_decoding.gls import KEPT, _one_round, _positive, _Round
from attacks.candidate_decoding.order_noise import batch_weights, noise_variance, place_covariance
from attacks.candidate_decoding.simulated_client import guess_of, simulated, simulated_path
from attacks.metrics import accuracy_interval, majority_rate
from jaxfl import (
    DPSGD,
    Federated,
    LocalTraining,
    Model,
    cross_entropy,
    local_update,
    mlp,
    one_client,
    simulate,
    stack_clients,
)
from tests.victims import KEY, ONE_HOT, D, N, explicit, make_victim

MINIBATCH = LocalTraining(0.2, batch_size=4)
SMALL = GLS(MINIBATCH, orders=48)
one_round = jax.jit(_one_round, static_argnums=0)


def test_gls_beats_the_closed_form_on_minibatches():
    model = mlp(D, (64,), 3)
    simple, better = [], []
    for seed in range(3):
        x, y, truth, messages = make_victim(model, seed, rounds=10, training=MINIBATCH)
        known = Knowledge(x, y, (binary_column(6, 0.4),))
        better.append((np.asarray(gls(model, messages, known, KEY, settings=SMALL).values[0]) == truth).mean())
        full = closed_form(model, messages, known, settings=ClosedForm(0.2 * MINIBATCH.steps(N))).reconstruction
        simple.append((np.asarray(full.values[0]) == truth).mean())
    assert np.mean(better) > 0.9
    assert np.mean(better) > np.mean(simple) + 0.05


def test_gls_with_several_epochs_and_values_and_any_model():
    training = LocalTraining(0.1, epochs=2, batch_size=10)
    model = mlp(D, (64,), 3)
    x, y, truth, messages = make_victim(model, rounds=10, training=training, column=ONE_HOT)
    settings = GLS(training, orders=48)
    known = Knowledge(x, y, (ONE_HOT,))
    found, plain = (gls(m, messages, known, KEY, settings=settings) for m in (model, explicit(model)))
    assert (np.asarray(found.values[0]) == truth).mean() > 0.8
    assert (np.asarray(found.values[0]) == np.asarray(plain.values[0])).mean() > 0.95
    assert np.allclose(np.asarray(found.scores[0]).sum(1), 1, atol=1e-5)
    assert np.asarray(found.scores[0]).min() > -1e-5


def test_gls_with_full_batches_has_no_noise_but_a_path():
    training = LocalTraining(0.3, epochs=10)
    model = mlp(D, (64,), 3)
    x, y, truth, messages = make_victim(model, rounds=5, training=training)
    found = gls(model, messages, Knowledge(x, y, (binary_column(6, 0.4),)), KEY, settings=GLS(training, orders=8))
    assert (np.asarray(found.values[0]) == truth).all()


@pytest.mark.parametrize("privacy", [None, DPSGD(2.0, 0.0)])  # the median norm
def test_one_step_on_all_records_is_linear_in_the_weights_whatever_the_guess(privacy):
    """A guess of 0.3 says that 0.3 of the records are ones, not that a record is 0.3."""
    training, model = LocalTraining(0.3, privacy=privacy), mlp(D, (64,), 3)
    x, y, truth, messages = make_victim(model, rounds=1, training=training, column=ONE_HOT)
    known = Knowledge(x, y, (ONE_HOT,))
    candidates, labels = candidate_records(model, check_knowledge(model, messages, known))
    received, update = (jax.tree.map(lambda a: a[0], tree) for tree in (messages.received, messages.pseudo_gradient))
    exact = jax.nn.one_hot(truth, candidates.shape[1])
    for seed in range(2):
        guess = jnp.asarray(np.random.default_rng(seed).dirichlet(np.ones(candidates.shape[1]), N), jnp.float32)
        with jax.default_matmul_precision("highest"):
            settings = GLS(training, orders=2, floor=0.1)
            gram, right = one_round(model, _Round(received, update), guess, candidates, labels, KEY, settings)
        moved = np.asarray(gram @ (exact - guess)[:, 1:].reshape(-1))
        assert np.linalg.norm(right - moved) < 1e-3 * np.linalg.norm(moved)


def test_gls_finds_the_same_whether_inner_products_are_kept_or_not(monkeypatch):
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model, rounds=3, training=MINIBATCH)
    known = Knowledge(x, y, (binary_column(6, 0.4),))
    found = []
    for limit in (KEPT, 0):
        monkeypatch.setattr(sys.modules[_one_round.__module__], "KEPT", limit)
        jax.clear_caches()
        found.append(gls(model, messages, known, KEY, settings=SMALL).scores[0])
    assert np.allclose(*found, atol=1e-3)


def test_gls_tells_records_apart_that_are_nearly_the_same():
    training, model = LocalTraining(0.1), mlp(D, (64,), 3)
    x, y, truth, _ = make_victim(model, rounds=1, training=training)
    x = x[:1] + 0.1 * (x - x[:1])
    filled = x.copy()
    filled[:, 6] = truth
    run = simulate(model, model.init(KEY), stack_clients([(filled, y)]), KEY, Federated(rounds=5, training=training))
    found = gls(model, run.messages(0), Knowledge(x, y, (binary_column(6, 0.4),)), KEY, settings=GLS(training, orders=2))
    assert (np.asarray(found.values[0]) == truth).all()


def test_gls_averages_gradients_along_the_path_if_asked():
    model = mlp(D, (64,), 3)
    x, y, truth, messages = make_victim(model, 1, rounds=10, training=MINIBATCH)
    known = Knowledge(x, y, (binary_column(6, 0.4),))
    settings = dataclasses.replace(SMALL, points=3)
    along, plain = (gls(m, messages, known, KEY, settings=settings) for m in (model, explicit(model)))
    assert (np.asarray(along.values[0]) == truth).mean() > 0.9
    assert np.allclose(along.scores[0], plain.scores[0], atol=0.02)


@pytest.mark.parametrize(("batch_size", "one_epoch"), [(None, 1), (4, 7), (8, 4)])
def test_a_simulated_path_is_where_gradients_are_taken(batch_size, one_epoch):
    """After none of the batches to all but one: where all records are the same, the way tells the number of steps."""
    model = Model(lambda key: jnp.zeros(1), lambda p, x, **_: p + x[:, 0], lambda outputs, y: outputs, None)
    records, points, training = 28, 9, LocalTraining(1.0, 2, batch_size)
    x, y = np.zeros((records, 1, 1), np.float32), np.zeros((records, 1), int)
    guess = guess_of(model, training, jnp.ones((records, 1)), jnp.asarray(x), jnp.asarray(y), lambda: None)
    taken = -np.asarray(simulated_path(guess, jnp.zeros(1), KEY, points)).reshape(2, points)
    expected = np.floor((np.arange(points) + 0.5) / points * one_epoch)
    np.testing.assert_allclose(taken, np.stack([expected, expected + one_epoch]), atol=1e-6)
    assert expected.min() == 0
    assert expected.max() == one_epoch - 1


def test_the_noise_of_private_training_is_as_long_as_it_is_drawn():
    training = LocalTraining(0.5, 2, 4, privacy=DPSGD(0.3, 2.0))
    model, records = mlp(D, (8,), 3), 10  # batches of 4, 4 and 2
    x, y, _, _ = make_victim(model)
    data, params = one_client(x[:records], y[:records]), model.init(KEY)
    quiet = dataclasses.replace(training, privacy=DPSGD(0.3, 0.0))

    @jax.jit
    def noise(key):
        noisy, plain = (ravel_pytree(local_update(model, params, data, key, t))[0] for t in (training, quiet))
        return (noisy - plain) / training.learning_rate

    # A first step's noise moves what later ones follow, which adds less than the bound leaves.
    drawn = jax.vmap(noise)(jax.random.split(KEY, 200))
    assert float((drawn**2).mean()) == pytest.approx(float(noise_variance(training, records)), rel=0.05)


def test_mean_gradients_are_those_of_every_model_averaged():
    model = mlp(D, (16, 8), 3)
    models = jax.vmap(model.init)(jax.random.split(KEY, 3))
    x, y = jax.random.normal(KEY, (5, 2, D)), jnp.asarray([[0, 1], [2, 0], [1, 1], [0, 2], [2, 2]])

    def one(params, x, y):
        return ravel_pytree(jax.grad(lambda p: model.loss(model.apply(p, x[None]), y[None])[0])(params))[0]

    target = model.init(jax.random.key(1))
    every = jax.jit(jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None)))
    each = every(models, x.reshape(10, D), y.reshape(10)).mean(0)

    @functools.partial(jax.jit, static_argnums=0)
    def found(model, models, x, y):
        gram, project = mean_gradients(model, models, x, y)
        return gram, project(target)

    for m in (model, explicit(model)):
        gram, along = found(m, models, x, y)
        np.testing.assert_allclose(gram, each @ each.T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(along, each @ ravel_pytree(target)[0], rtol=1e-4, atol=1e-5)


def test_gls_knows_to_which_norm_gradients_were_clipped():
    """Clipping changes the weights of records; an adversary that knows the norm reads through it."""
    model = mlp(D, (64,), 3)
    training = LocalTraining(0.3, privacy=DPSGD(0.15, 0.0))
    x, y, truth, messages = make_victim(model, rounds=5, training=training)
    known = Knowledge(x, y, (binary_column(6, 0.4),))
    aware, unaware = (gls(model, messages, known, KEY, settings=GLS(t, orders=4)) for t in (training, LocalTraining(0.3)))
    assert (np.asarray(aware.values[0]) == truth).mean() >= 0.95
    assert (np.asarray(aware.values[0]) == truth).mean() > (np.asarray(unaware.values[0]) == truth).mean()
    training = LocalTraining(0.3, privacy=DPSGD(2.0, 0.0))  # half of the records are clipped
    messages = make_victim(model, rounds=5, training=training)[3]
    aware, unaware = (gls(model, messages, known, KEY, settings=GLS(t, orders=4)) for t in (training, LocalTraining(0.3)))
    assert float(aware.objective) < 1e-3 * float(unaware.objective)


def test_gls_knows_that_records_were_mixed():
    """Mixup hides who was paired; an adversary that knows of it reads more (0.75, else 0.69; majority 0.61) and fits better."""
    model, training = mlp(D, (64,), 3), LocalTraining(0.3, mixup=True)
    read, majorities = [], []
    for seed in range(3):
        x, y, truth, messages = make_victim(model, seed, rounds=20, training=training)
        known = Knowledge(x, y, (binary_column(6, 0.4),))
        both = [gls(model, messages, known, KEY, settings=GLS(t, orders=32)) for t in (training, LocalTraining(0.3))]
        read.append([(np.asarray(found.values[0]) == truth).mean() for found in both])
        majorities.append(float(majority_rate(jnp.asarray(truth), 2)))
        assert float(both[0].objective) < float(both[1].objective)
    aware, unaware = np.mean(read, 0)
    assert aware > np.mean(majorities) + 0.08
    assert aware > unaware


def test_records_weights_in_random_batches():
    """Mean and variance over orders of 1 / (size of a record's batch), summed over epochs."""
    rng = np.random.default_rng(0)
    for records, size, epochs in ((10, 4, 1), (9, 3, 2), (7, None, 3), (11, 5, 2)):
        width = size or records
        sizes = np.asarray([min(width, records - i // width * width) for i in range(records)])
        drawn = sum(1 / sizes[rng.permuted(np.tile(np.arange(records), (20_000, 1)), axis=1)[:, 0]] for _ in range(epochs))
        mean, variance = batch_weights(LocalTraining(0.1, epochs, size), records)
        assert drawn.mean() == pytest.approx(mean, rel=0.02)
        assert drawn.var() == pytest.approx(variance, rel=0.05, abs=1e-12)


def test_variance_of_a_records_place():
    """Of a record's place among the steps of each epoch, in units of the way from the first of all steps to the last, times its
    weight; over random orders."""
    rng = np.random.default_rng(0)
    for records, size, epochs in ((12, 4, 1), (12, 4, 3), (10, 4, 1), (10, 4, 3), (9, 4, 2), (7, None, 3)):
        training, width = LocalTraining(0.1, epochs, size), size or records
        batch = rng.permuted(np.tile(np.arange(records), (epochs, 40_000, 1)), axis=2)[..., 0] // width
        steps = training.steps(records)
        place = (batch + np.arange(epochs)[:, None] * (steps // epochs)) / max(steps - 1, 1)
        weight = 1 / np.minimum(width, records - batch * width)
        drawn = ((place - 0.5) * weight).sum(0)
        assert drawn.var() == pytest.approx(place_covariance(training, records)[0, 0], rel=0.03, abs=1e-12)
        ends = np.linspace(0, 1, 4)  # of three pieces
        passed = [np.interp(place, [low, high], [0, 1]) - np.interp(0.5, [low, high], [0, 1]) for low, high in pairwise(ends)]
        drawn = np.stack([(p * weight).sum(0) for p in passed])
        found = place_covariance(training, records, 3)
        assert np.allclose(found, np.cov(drawn), atol=0.03 * np.trace(found) + 1e-12)


@pytest.mark.parametrize("named", [True, False])
def test_changes_of_gradients(named):
    """Against gradients written out by another program, at models far apart; a derivative, where they are close."""
    model = mlp(D, (16, 8), 3)
    x, y, _, messages = make_victim(model)
    first, last = (jax.tree.map(operator.itemgetter(t), messages.received) for t in (0, 2))
    named_model = model if named else explicit(model)

    def gradient(params, x, y):
        return ravel_pytree(jax.grad(lambda p: model.loss(model.apply(p, x[None]), y[None]).sum())(params))[0]

    every = jax.jit(jax.vmap(gradient, (None, 0, 0)))
    written = np.asarray(every(last, x, y) - every(first, x, y), np.float64)
    with jax.default_matmul_precision("highest"):
        changes, own = gradient_changes(named_model, first, last, x, y), factored_gradients(named_model, first, x, y)
        assert np.allclose(changes.inner(changes), written @ written.T, atol=1e-5 * (written**2).sum(1).max())
        across = written @ np.asarray(every(first, x, y), np.float64).T
        assert np.allclose(changes.inner(own), across, atol=1e-4 * np.abs(across).max())
        assert np.allclose(changes.along(last), written @ np.asarray(ravel_pytree(last)[0]), atol=1e-4)
        small = jax.tree.map(lambda a, b: 1e-3 * (b - a), first, last)
        near = gradient_changes(named_model, first, jax.tree.map(jnp.add, first, small), x, y)
    along = jax.jit(jax.vmap(lambda x, y: jax.jvp(lambda p: gradient(p, x, y), (first,), (small,))[1]))
    derivative = np.asarray(along(x, y), np.float64)
    limit = 0.02 if named else 0.1  # rounding, of which written gradients have more
    difference = np.asarray(near.inner(near)) - derivative @ derivative.T
    assert np.linalg.norm(difference) < limit * np.linalg.norm(derivative @ derivative.T)


@pytest.mark.parametrize(("records", "pieces", "layers"), [(6, 1, None), (6, 1, 1), (6, 2, None), (5, 1, None)])
def test_drift_is_a_row_of_noise_per_record(records, pieces, layers):
    """A round's quadratic and slope from a covariance written out, parameters by parameters; with a short last batch, too."""
    training, model = LocalTraining(0.5, 2, 2), mlp(D, (4,), 3)
    settings = GLS(training, orders=3, drift=pieces, floor=0.05, spread=0.02, layers=layers)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(records, 2, D)).astype(np.float32), np.repeat(rng.integers(0, 3, (records, 1)), 2, 1)

    def vector(tree):
        return ravel_pytree(tree if layers is None else tree["Dense_0"])[0]

    params = model.init(KEY)
    update = jax.tree.map(lambda a: 0.3 * jax.random.normal(KEY, a.shape), params)
    ones = rng.uniform(0.1, 0.9, records)
    scores = jnp.asarray(np.stack([1 - ones, ones], 1), jnp.float32)
    with jax.default_matmul_precision("highest"):
        found = one_round(model, _Round(params, update), scores, jnp.asarray(x), jnp.asarray(y), KEY, settings)
        guess = guess_of(model, training, scores, jnp.asarray(x), jnp.asarray(y), lambda: None)
        runs = jax.jit(lambda key: simulated(guess, params, key, 3))(jax.random.split(KEY)[0])
        together = jnp.concatenate([runs[0][None], runs[1]])
        unravel = ravel_pytree(params)[1]
        mean, *deviations = np.asarray(jax.vmap(lambda run: vector(unravel(run)))(together), np.float64)
        deviations = np.stack(deviations)

    def gradients(at):
        def one(x, y):
            return vector(jax.grad(lambda p: model.loss(model.apply(p, x[None]), y[None]).sum())(at))

        return np.asarray(jax.jit(jax.vmap(jax.vmap(one)))(x, y), np.float64)  # [records, 2, parameters]

    def moved(fraction):
        return jax.tree.map(lambda w, u: w - fraction * u, params, update)

    centre, ends = gradients(moved(5 / 12)), [gradients(moved(5 / 6 * p / pieces)) for p in range(pieces + 1)]  # six steps
    s, weight = np.asarray(scores, np.float64), 2 * 3 / records
    own = np.einsum("nk,nkp->np", s, centre)
    passed = np.asarray([[np.clip(i / 5 * pieces - p, 0, 1) for p in range(pieces)] for i in range(6)])
    in_batch = np.resize([1 / 2, 1 / 2, 1 / 2 if records == 6 else 1], 6)[:, None]  # a record's weight where it is in it
    chance = np.resize([2, 2, 2 if records == 6 else 1], 3)[:, None] / records
    passed = passed - [np.clip(pieces / 2 - p, 0, 1) for p in range(pieces)]
    among = np.zeros((pieces, pieces))
    for e in (slice(0, 3), slice(3, 6)):
        placed = in_batch[e] * passed[e]
        among += (chance * placed).T @ placed - np.outer((chance * placed).sum(0), (chance * placed).sum(0))
    weights = 2 * ((chance * in_batch[:3] ** 2).sum() - (3 / records) ** 2)
    changes = np.stack([np.einsum("nk,nkp->np", s, after - before) for before, after in pairwise(ends)])
    once = (np.eye(records) - 1 / records) * records / (records - 1)  # places and weights are dealt without repetition
    drift = np.einsum("kl,knp,nm,lmq->pq", among, changes, once, changes)
    covariance = own.T @ (0.02 * weight**2 * np.eye(records) + weights * once) @ own + deviations.T @ deviations + drift
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
    assert np.isnan(_positive(inner * jnp.nan, jnp.asarray(1e-4))[1]).any()  # which is left for the caller to say


def test_drift_tells_records_apart_that_are_nearly_alike():
    """Of one class and hardly different: what tells a bit is small beside the noise of orders, of which eight runs say
    little."""
    training, model, read = LocalTraining(0.2, batch_size=15), mlp(D, (128,), 3), []
    for seed in range(4):
        rng, key = np.random.default_rng(seed), jax.random.key(seed)
        x = (rng.normal(size=D) + 0.1 * rng.normal(size=(60, D))).astype(np.float32)
        truth = rng.integers(0, 2, 60)
        x[:, 6], y = truth, np.ones(60, int)
        federated = Federated(rounds=5, training=training)
        messages = simulate(model, model.init(key), stack_clients([(x, y)]), key, federated).messages(0)
        known = Knowledge(x, y, (binary_column(6, 0.5),))
        of = ({"drift": 0}, {"drift": 1, "floor": 3e-3}, {"drift": 1}, {"drift": 1, "layers": 1})
        found = [gls(model, messages, known, KEY, settings=GLS(training, orders=8, **each)) for each in of]
        read.append([(np.asarray(each.values[0]) == truth).mean() for each in found])
    without, drift, least, first_layer = np.mean(read, 0)
    assert drift > 0.95
    assert least > 0.95
    assert first_layer > 0.95
    assert drift > without + 0.05


@pytest.mark.parametrize("changed", [{"points": 2}, {"mixup": True}, {"privacy": DPSGD(1.0, 0.1)}])
def test_drift_is_for_plain_training(changed):
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model)
    training = LocalTraining(0.1, batch_size=4, **{name: value for name, value in changed.items() if name != "points"})
    settings = GLS(training, points=changed.get("points", 1), drift=1)
    with pytest.raises(ValueError, match="drift=1"):
        gls(model, messages, Knowledge(x, y, (binary_column(6, 0.4),)), KEY, settings=settings)


@pytest.mark.parametrize("drift", [0, 1])
def test_another_optimiser_is_refused(drift):
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model)
    settings = GLS(LocalTraining(0.1, batch_size=4, optimizer=optax.adam), drift=drift)
    with pytest.raises(ValueError, match=r"optimizer=.*adam.* is not optax\.sgd"):
        gls(model, messages, Knowledge(x, y, (binary_column(6, 0.4),)), KEY, settings=settings)


def test_labels_in_any_type_mean_the_same():
    """Under mixup a partner's label is averaged over: as a class, whatever its type."""
    model, training = mlp(D, (16,), 3), LocalTraining(0.3, mixup=True)
    x, y, _, messages = make_victim(model, rounds=3, training=training)
    of = [Knowledge(x, labels, (binary_column(6, 0.4),)) for labels in (y, y.astype(np.float32))]
    found = [gls(model, messages, known, KEY, settings=GLS(training, orders=8)).scores[0] for known in of]
    assert np.allclose(*found, atol=1e-5)


def test_layers_are_dense_and_named():
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model)
    known = Knowledge(x, y, (binary_column(6, 0.4),))
    for m, changed, message in (
        (explicit(model), {"layers": 1}, "the model's 0 named dense layers"),
        (model, {"layers": 3}, "layers=3 does not go with points=1 and the model's 2 "),
        (model, {"layers": 1, "points": 2}, "points=2"),
        (model, {"layers": 0}, "layers=0 must be"),
    ):
        with pytest.raises(ValueError, match=message):
            gls(m, messages, known, KEY, settings=GLS(MINIBATCH, **changed))


@pytest.mark.parametrize("drift", [0, 1])
def test_gls_on_another_clients_messages_tells_nothing(drift):
    model = mlp(D, (64,), 3)
    scores, majorities = [], []
    for seed in range(6):
        x, y, truth, _ = make_victim(model, seed, training=MINIBATCH)
        wrong = make_victim(model, seed + 100, training=MINIBATCH)[3]
        found = gls(
            model, wrong, Knowledge(x, y, (binary_column(6, 0.4),)), KEY, settings=dataclasses.replace(SMALL, drift=drift)
        )
        assert found.status == 0
        scores.append(float((np.asarray(found.values[0]) == truth).mean()))
        majorities.append(float(majority_rate(jnp.asarray(truth), 2)))
    assert accuracy_interval(scores, N).low <= np.mean(majorities)


def test_gls_keeps_the_prior_of_a_column_that_does_not_enter_the_model():
    inner = mlp(D, (64,), 3)
    blind = Model(inner.init, lambda p, x, **rest: inner.apply(p, x.at[:, 4:12].set(0), **rest), cross_entropy, 3)
    x, y, _, messages = make_victim(blind, training=MINIBATCH)
    answer = gls(blind, messages, Knowledge(x, y, (binary_column(10, 0.3),)), KEY, settings=SMALL)
    assert (np.asarray(answer.values[0]) == 0).all()
    assert np.isfinite(answer.objective)
    assert answer.status == 0
