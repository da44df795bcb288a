"""Clients of any optimiser are read through their simulated training: Adam in batches, dropout; and
those of plain SGD as `gls` reads them."""

import dataclasses

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import (
    GLS,
    Knowledge,
    MisfitWarning,
    Status,
    UnrolledGLS,
    binary_column,
    diagnose,
    gls,
    gls_unrolled,
)
from attacks.attributes.candidate_decoding import candidate_records
from attacks.attributes.candidate_decoding.constraints import interior_point
from attacks.attributes.candidate_decoding.unrolled_client import UnrolledClient, _smooth
from jaxfl import (
    ClassWeights,
    Federated,
    LocalTraining,
    Mixup,
    cross_entropy,
    from_flax,
    mlp,
    simulate,
    stack_clients,
)

KEY = jax.random.key(0)
RECORDS, FEATURES, ROUNDS = 40, 10, 10
ADAM = LocalTraining(2e-3, 2, 8, optax.adam)
FEW = {"runs": 96, "tangents": 6, "passes": 2}


def records(seed):
    """Bits that nothing else tells, and labels that have nothing to do with them."""
    rng = np.random.default_rng(seed)
    x = (rng.random((RECORDS, FEATURES)) < 0.5).astype(np.float32)
    return x, rng.integers(0, 2, RECORDS)


class Dropped(flax.linen.Module):
    """A network whose hidden units are dropped in training."""

    @flax.linen.compact
    def __call__(self, x, train=False):
        hidden = flax.linen.relu(flax.linen.Dense(24)(x))
        hidden = flax.linen.Dropout(0.2, deterministic=not train)(hidden)
        return flax.linen.Dense(2)(hidden)


def client_of(training, model=None, seed=0):
    model = model or mlp(FEATURES, (24,), 2)
    run = simulate(
        model,
        model.init(KEY),
        stack_clients([records(seed), records(seed + 50)]),
        jax.random.key(seed),
        Federated(ROUNDS, training),
    )
    x, y = records(seed)
    x[:, 0] = np.nan
    return model, run, Knowledge(jnp.asarray(x), jnp.asarray(y), (binary_column(0, 0.5),))


def accuracy(answer, seed=0):
    return float((np.asarray(answer.values[0]) == records(seed)[0][:, 0]).mean())


VERY_SLOW = pytest.mark.very_slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [optax.adam, *(pytest.param(o, marks=VERY_SLOW) for o in (optax.rmsprop, optax.adamw))],
)
def test_clients_of_optimizers_that_are_not_linear_are_read_in_batches(optimizer):
    training = dataclasses.replace(ADAM, optimizer=optimizer)
    model, run, known = client_of(training)
    answer = gls_unrolled(model, run.messages(0), known, KEY, settings=UnrolledGLS(training, **FEW))
    assert accuracy(answer) >= 0.9
    assert answer.status == Status.OK
    assert 0 < float(answer.fit.explained) < 1


@pytest.mark.slow
def test_another_clients_messages_and_another_recipe_are_misfits():
    model, run, known = client_of(ADAM)
    for client, told in ((1, ADAM), (0, dataclasses.replace(ADAM, epochs=1))):
        with pytest.warns(MisfitWarning):
            answer = gls_unrolled(
                model, run.messages(client), known, KEY, settings=UnrolledGLS(told, **FEW)
            )
        assert answer.status == Status.MISFIT


@pytest.mark.very_slow
def test_a_diagnosis_simulates_the_told_recipe():
    model, run, known = client_of(ADAM)
    causes = []
    for training in (ADAM, dataclasses.replace(ADAM, epochs=1)):
        diagnosis = diagnose(model, run.messages(0), known, training)
        causes.append(diagnosis.findings[0].cause)
    assert causes == ["as told", "unknown records or model"]


@pytest.mark.very_slow
def test_dropout_is_in_the_simulation():
    model = from_flax(Dropped(), (FEATURES,), cross_entropy, 2)
    training = LocalTraining(0.1, 2, 8)
    model, run, known = client_of(training, model)
    answer = gls_unrolled(model, run.messages(0), known, KEY, settings=UnrolledGLS(training, **FEW))
    assert accuracy(answer) >= 0.9
    assert answer.status == Status.OK


@pytest.mark.very_slow
def test_clients_of_sgd_are_read_as_gls_reads_them():
    training = LocalTraining(0.1, 2, 8, plugins=(ClassWeights((1.0, 3.0)),))
    model, run, known = client_of(training)
    seen = model, run.messages(0), known, KEY
    ours = gls_unrolled(*seen, settings=UnrolledGLS(training, **FEW))
    theirs = gls(*seen, settings=GLS(training))
    assert (np.asarray(ours.values[0]) == np.asarray(theirs.values[0])).mean() > 0.9
    assert min(map(accuracy, (ours, theirs))) > 0.9


@pytest.mark.slow
def test_the_derivative_is_that_of_finite_differences():
    """Of a smooth client: of one step of SGD it is exact, and the same for all orders."""
    model, run, known = client_of(LocalTraining(0.1))
    x, _ = candidate_records(model, known)
    client = UnrolledClient(model, x, known.y, LocalTraining(0.1))
    received = jax.tree.map(lambda a: a[0], run.messages(0).received)
    weights = jnp.full(RECORDS, 0.5, jnp.float32)
    derivative = np.asarray(client.derivative(received, weights, KEY))
    for n in (0, 7):
        step = jnp.zeros(RECORDS).at[n].set(0.5)
        ends = [np.asarray(client.runs(received, weights + s, KEY, 1))[0] for s in (step, -step)]
        assert derivative[n] == pytest.approx(ends[0] - ends[1], abs=2e-6)


def test_a_parameter_that_nothing_moves_has_a_derivative():
    """The root in Adam's step has none at 0."""

    def moved(gradient):
        optimizer = _smooth(optax.adam)(0.1)
        updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
        return updates

    at, along = jnp.asarray([0.0, 1.0]), jnp.asarray([0.0, 1.0])
    updates, tangents = jax.jvp(moved, (at,), (along,))
    assert np.isfinite(np.asarray(tangents)).all()
    plain = optax.adam(0.1)
    same, _ = plain.update(at, plain.init(at), at)
    assert np.asarray(updates) == pytest.approx(np.asarray(same), rel=1e-6)


@pytest.mark.parametrize("condition", [10, 1e5, 1e10])
def test_an_interior_point_satisfies_its_optimality_conditions(condition):
    """However ill-conditioned the quadratic is."""
    records, others = 20, 2
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.normal(size=(records * others,) * 2))[0]
    gram = turned * np.geomspace(1, condition, records * others) @ turned.T
    right = gram @ rng.normal(size=records * others)
    with jax.enable_x64(True):
        weights = np.asarray(interior_point(jnp.asarray(gram), jnp.asarray(right), records))
    slope, weights = (gram @ weights - right).reshape(records, -1), weights.reshape(records, -1)
    left, tolerance = 1 - weights.sum(1), 1e-9 * np.abs(right).max()
    assert (weights > 0).all()
    assert (left > 0).all()
    # A multiplier of the sum, where it is at its bound; then slopes point into the constraints.
    held = np.maximum(-slope.min(1), 0)
    assert (held * left).max() < tolerance
    assert (weights * (slope + held[:, None])).max() < tolerance


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("spread", [0, 1, 2])
def test_an_interior_point_is_finite_on_any_scale(spread, others):
    """Of unknowns whose gradients differ by orders of magnitude, of few equations too."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(40 * others, 60)) * 10 ** rng.uniform(
            -spread, spread, (40 * others, 1)
        )
        truth = (np.arange(40 * others) % 3 == 0).astype(float)
        gram = rows @ rows.T
        with jax.enable_x64(True):
            inputs = jnp.asarray(gram), jnp.asarray(gram @ truth + rng.normal(size=len(truth)))
            weights = interior_point(*inputs, 40).reshape(40, others)
        assert (np.asarray(weights) > 0).all()
        assert (np.asarray(weights).sum(1) < 1 + 1e-9).all()


def test_what_it_cannot_simulate_is_named():
    model, run, known = client_of(LocalTraining(0.1))
    seen = model, run.messages(0), known, KEY
    mixed = LocalTraining(0.1, batch_size=8, plugins=(Mixup(),))
    with pytest.raises(ValueError, match=r"training\.plugins holds Mixup"):
        gls_unrolled(*seen, settings=UnrolledGLS(mixed))
    with pytest.raises(ValueError, match="runs=1 must be at least 2"):
        gls_unrolled(*seen, settings=UnrolledGLS(ADAM, runs=1))
    weighted = LocalTraining(0.1, batch_size=8, plugins=(ClassWeights((1.0, 3.0)),))
    unknown = dataclasses.replace(known, y=None)
    with pytest.raises(ValueError, match="y=None does not go with ClassWeights"):
        gls_unrolled(model, seen[1], unknown, KEY, settings=UnrolledGLS(weighted))
