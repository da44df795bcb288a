"""Decoding of clients that take many steps a round: better than the closed form, blind on another
client's messages."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from attacks import (
    GLS,
    ClosedForm,
    Knowledge,
    MisfitWarning,
    Status,
    UncheckedWarning,
    binary_column,
    candidate_records,
    closed_form,
    gls,
)
from attacks.attributes.candidate_decoding.factored_gradients import mean_gradients
from attacks.attributes.candidate_decoding.gls import KEPT
from attacks.attributes.candidate_decoding.gls_round import Client, Round, round_quadratic
from attacks.attributes.candidate_decoding.simulated_client import guess_of, simulated_path
from attacks.attributes.knowledge import check_knowledge
from attacks.metrics import majority_rate
from benchmarks.harness.intervals import accuracy_interval
from jaxfl import (
    DPSGD,
    Federated,
    LocalTraining,
    Mixup,
    Model,
    cross_entropy,
    mlp,
    simulate,
    stack_clients,
)
from tests.attacks.victims import KEY, ONE_HOT, D, N, explicit, make_victim

MINIBATCH = LocalTraining(0.2, batch_size=4)
SMALL = GLS(MINIBATCH, orders=48)
one_round = jax.jit(round_quadratic)


@pytest.mark.slow
def test_gls_beats_the_closed_form_on_minibatches():
    model = mlp(D, (64,), 3)
    simple, better = [], []
    for seed in range(3):
        x, y, truth, messages = make_victim(model, seed, rounds=10, training=MINIBATCH)
        known = Knowledge(x, y, (binary_column(6, 0.4),))
        better.append(
            (np.asarray(gls(model, messages, known, KEY, settings=SMALL).values[0]) == truth).mean()
        )
        with pytest.warns(MisfitWarning):
            full = closed_form(
                model, messages, known, settings=ClosedForm(0.2 * MINIBATCH.steps(N))
            )
        simple.append((np.asarray(full.values[0]) == truth).mean())
    assert np.mean(better) > 0.9
    assert np.mean(better) > np.mean(simple) + 0.05


@pytest.mark.very_slow
def test_gls_with_several_epochs_and_values_and_any_model():
    training = LocalTraining(0.1, epochs=2, batch_size=10)
    model = mlp(D, (64,), 3)
    x, y, truth, messages = make_victim(model, rounds=10, training=training, column=ONE_HOT)
    settings = GLS(training, orders=48)
    known = Knowledge(x, y, (ONE_HOT,))
    found, plain = (
        gls(m, messages, known, KEY, settings=settings) for m in (model, explicit(model))
    )
    assert (np.asarray(found.values[0]) == truth).mean() > 0.8
    assert (np.asarray(found.values[0]) == np.asarray(plain.values[0])).mean() > 0.95
    assert np.allclose(np.asarray(found.scores[0]).sum(1), 1, atol=1e-5)
    assert np.asarray(found.scores[0]).min() > -1e-5


@pytest.mark.slow
def test_gls_with_full_batches_has_no_noise_but_a_path():
    training = LocalTraining(0.3, epochs=10)
    model = mlp(D, (64,), 3)
    x, y, truth, messages = make_victim(model, rounds=5, training=training)
    found = gls(
        model,
        messages,
        Knowledge(x, y, (binary_column(6, 0.4),)),
        KEY,
        settings=GLS(training, orders=8),
    )
    assert (np.asarray(found.values[0]) == truth).all()


@pytest.mark.parametrize("privacy", [None, DPSGD(2.0, 0.0)])  # the median norm
def test_one_step_on_all_records_is_linear_in_the_weights_whatever_the_guess(privacy):
    """A guess of 0.3 says that 0.3 of the records are ones, not that a record is 0.3."""
    training, model = (
        LocalTraining(0.3, plugins=() if privacy is None else (privacy,)),
        mlp(D, (64,), 3),
    )
    x, y, truth, messages = make_victim(model, rounds=1, training=training, column=ONE_HOT)
    known = Knowledge(x, y, (ONE_HOT,))
    candidates, labels = candidate_records(model, check_knowledge(model, messages, known))
    received, update = (
        jax.tree.map(lambda a: a[0], tree) for tree in (messages.received, messages.pseudo_gradient)
    )
    exact = jax.nn.one_hot(truth, candidates.shape[1])
    for seed in range(2):
        guess = jnp.asarray(
            np.random.default_rng(seed).dirichlet(np.ones(candidates.shape[1]), N), jnp.float32
        )
        with jax.default_matmul_precision("highest"):
            settings = GLS(training, orders=2, floor=0.1)
            gram, right = one_round(
                Client(model, candidates, labels, settings), Round(received, update), guess, KEY
            )
        moved = np.asarray(gram @ (exact - guess)[:, 1:].reshape(-1))
        assert np.linalg.norm(right - moved) < 1e-3 * np.linalg.norm(moved)


@pytest.mark.very_slow
def test_gls_finds_the_same_whether_inner_products_are_kept_or_not(monkeypatch):
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model, rounds=3, training=MINIBATCH)
    known = Knowledge(x, y, (binary_column(6, 0.4),))
    found = []
    for limit in (KEPT, 0):
        monkeypatch.setattr(sys.modules[gls.__module__], "KEPT", limit)
        jax.clear_caches()
        found.append(gls(model, messages, known, KEY, settings=SMALL).scores[0])
    assert np.allclose(*found, atol=1e-3)


def test_gls_tells_records_apart_that_are_nearly_the_same():
    training, model = LocalTraining(0.1), mlp(D, (64,), 3)
    x, y, truth, _ = make_victim(model, rounds=1, training=training)
    x = x[:1] + 0.1 * (x - x[:1])
    filled = x.copy()
    filled[:, 6] = truth
    run = simulate(
        model,
        model.init(KEY),
        stack_clients([(filled, y)]),
        KEY,
        Federated(rounds=5, training=training),
    )
    found = gls(
        model,
        run.messages(0),
        Knowledge(x, y, (binary_column(6, 0.4),)),
        KEY,
        settings=GLS(training, orders=2),
    )
    assert (np.asarray(found.values[0]) == truth).all()


@pytest.mark.very_slow
def test_gls_averages_gradients_along_the_path_if_asked():
    model = mlp(D, (64,), 3)
    x, y, truth, messages = make_victim(model, 1, rounds=10, training=MINIBATCH)
    known = Knowledge(x, y, (binary_column(6, 0.4),))
    settings = dataclasses.replace(SMALL, points=3)
    along, plain = (
        gls(m, messages, known, KEY, settings=settings) for m in (model, explicit(model))
    )
    assert (np.asarray(along.values[0]) == truth).mean() > 0.9
    assert np.allclose(along.scores[0], plain.scores[0], atol=0.02)


@pytest.mark.parametrize(("batch_size", "one_epoch"), [(None, 1), (4, 7), (8, 4)])
def test_a_simulated_path_is_where_gradients_are_taken(batch_size, one_epoch):
    """After none of the batches to all but one: where all records are the same, the way tells the
    number of steps."""
    model = Model(
        lambda key: jnp.zeros(1), lambda p, x, **_: p + x[:, 0], lambda outputs, y: outputs, None
    )
    records, points, training = 28, 9, LocalTraining(1.0, 2, batch_size)
    x, y = np.zeros((records, 1, 1), np.float32), np.zeros((records, 1), int)
    guess = guess_of(
        model, training, jnp.ones((records, 1)), jnp.asarray(x), jnp.asarray(y), lambda: None
    )
    taken = -np.asarray(simulated_path(guess, jnp.zeros(1), KEY, points)).reshape(2, points)
    expected = np.floor((np.arange(points) + 0.5) / points * one_epoch)
    np.testing.assert_allclose(taken, np.stack([expected, expected + one_epoch]), atol=1e-6)
    assert expected.min() == 0
    assert expected.max() == one_epoch - 1


def test_mean_gradients_are_those_of_every_model_averaged():
    model = mlp(D, (16, 8), 3)
    models = jax.vmap(model.init)(jax.random.split(KEY, 3))
    x, y = jax.random.normal(KEY, (5, 2, D)), jnp.asarray([[0, 1], [2, 0], [1, 1], [0, 2], [2, 2]])

    def one(params, x, y):
        return ravel_pytree(
            jax.grad(lambda p: model.loss(model.apply(p, x[None]), y[None])[0])(params)
        )[0]

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


@pytest.mark.slow
def test_gls_knows_to_which_norm_gradients_were_clipped():
    """Clipping changes the weights of records; an adversary that knows the norm reads
    through it."""
    model = mlp(D, (64,), 3)
    training = LocalTraining(0.3, plugins=(DPSGD(0.15, 0.0),))
    x, y, truth, messages = make_victim(model, rounds=5, training=training)
    known = Knowledge(x, y, (binary_column(6, 0.4),))
    aware = gls(model, messages, known, KEY, settings=GLS(training, orders=4))
    with pytest.warns(MisfitWarning):
        unaware = gls(model, messages, known, KEY, settings=GLS(LocalTraining(0.3), orders=4))
    assert (np.asarray(aware.values[0]) == truth).mean() >= 0.95
    assert (np.asarray(aware.values[0]) == truth).mean() > (
        np.asarray(unaware.values[0]) == truth
    ).mean()
    training = LocalTraining(0.3, plugins=(DPSGD(2.0, 0.0),))  # half of the records are clipped
    messages = make_victim(model, rounds=5, training=training)[3]
    aware = gls(model, messages, known, KEY, settings=GLS(training, orders=4))
    with pytest.warns(MisfitWarning):
        unaware = gls(model, messages, known, KEY, settings=GLS(LocalTraining(0.3), orders=4))
    assert float(aware.objective) < 1e-3 * float(unaware.objective)


@pytest.mark.very_slow
def test_gls_knows_that_records_were_mixed():
    """Mixup hides who was paired; an adversary that knows of it reads more (0.75, else 0.69;
    majority 0.61) and fits better."""
    model, training = mlp(D, (64,), 3), LocalTraining(0.3, plugins=(Mixup(),))
    read, majorities = [], []
    for seed in range(3):
        x, y, truth, messages = make_victim(model, seed, rounds=20, training=training)
        known = Knowledge(x, y, (binary_column(6, 0.4),))
        both = [gls(model, messages, known, KEY, settings=GLS(training, orders=32))]
        plain = GLS(LocalTraining(0.3), orders=32)
        with pytest.warns(MisfitWarning):
            both.append(gls(model, messages, known, KEY, settings=plain))
        read.append([(np.asarray(found.values[0]) == truth).mean() for found in both])
        majorities.append(float(majority_rate(jnp.asarray(truth), 2)))
        assert float(both[0].objective) < float(both[1].objective)
    aware, unaware = np.mean(read, 0)
    assert aware > np.mean(majorities) + 0.08
    assert aware > unaware


@pytest.mark.parametrize("drift", [0, 1])
def test_another_optimiser_is_refused(drift):
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model)
    settings = GLS(LocalTraining(0.1, batch_size=4, optimizer=optax.adam), drift=drift)
    with pytest.raises(ValueError, match=r"optimizer=.*adam.* is not linear"):
        gls(model, messages, Knowledge(x, y, (binary_column(6, 0.4),)), KEY, settings=settings)


def test_labels_in_any_type_mean_the_same():
    """Under mixup a partner's label is averaged over: as a class, whatever its type."""
    model, training = mlp(D, (16,), 3), LocalTraining(0.3, plugins=(Mixup(),))
    x, y, _, messages = make_victim(model, rounds=3, training=training)
    of = [Knowledge(x, labels, (binary_column(6, 0.4),)) for labels in (y, y.astype(np.float32))]
    settings = GLS(training, orders=8)
    with pytest.warns(UncheckedWarning):
        found = [gls(model, messages, known, KEY, settings=settings).scores[0] for known in of]
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


@pytest.mark.slow
@pytest.mark.parametrize("drift", [0, pytest.param(1, marks=pytest.mark.very_slow)])
def test_gls_on_another_clients_messages_tells_nothing(drift):
    model = mlp(D, (64,), 3)
    scores, majorities = [], []
    for seed in range(6):
        x, y, truth, _ = make_victim(model, seed, training=MINIBATCH)
        wrong = make_victim(model, seed + 100, training=MINIBATCH)[3]
        settings = dataclasses.replace(SMALL, drift=drift)
        with pytest.warns(MisfitWarning):
            found = gls(
                model, wrong, Knowledge(x, y, (binary_column(6, 0.4),)), KEY, settings=settings
            )
        assert found.status == Status.MISFIT
        scores.append(float((np.asarray(found.values[0]) == truth).mean()))
        majorities.append(float(majority_rate(jnp.asarray(truth), 2)))
    assert accuracy_interval(scores, N).low <= np.mean(majorities)


@pytest.mark.very_slow  # a law asks the same of every attack
def test_gls_keeps_the_prior_of_a_column_that_does_not_enter_the_model():
    inner = mlp(D, (64,), 3)
    blind = Model(
        inner.init,
        lambda p, x, **rest: inner.apply(p, x.at[:, 4:12].set(0), **rest),
        cross_entropy,
        3,
    )
    x, y, _, messages = make_victim(blind, training=MINIBATCH)
    answer = gls(blind, messages, Knowledge(x, y, (binary_column(10, 0.3),)), KEY, settings=SMALL)
    assert (np.asarray(answer.values[0]) == 0).all()
    assert np.isfinite(answer.objective)
    assert answer.status == 0
