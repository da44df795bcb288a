"""What messages say of a client is named first."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import ClosedForm, Knowledge, MisfitWarning, binary_column, closed_form, diagnose
from jaxfl import (
    DPSGD,
    Federated,
    LocalTraining,
    Upload,
    cross_entropy,
    from_flax,
    mlp,
    sgd,
    simulate,
)
from jaxfl.clients import stack_clients
from tests.attacks.wrong_recipes import FEATURES, RATE, Act, client, records

FIRST = {
    "right": "as told",
    "batches": "batches",
    "epochs": "epochs",
    "momentum": "momentum",
    "drop_last": "batches",
    "adam": "Adam",
    "decay": "weight decay",
    "weights": "class weights",
    "smoothing": "label smoothing",
    "rate": "learning rate",
    "half": "unknown records or model",
    "topk": "sparsified",
    "noise": "noise",
    "bits": "quantised",
}
KEY = jax.random.key(0)


LONG = ("batches", "epochs", "half", "drop_last", "momentum")
KINDS = [pytest.param(kind, marks=pytest.mark.very_slow if kind in LONG else ()) for kind in FIRST]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_cause_is_named_first(kind):
    told = LocalTraining(RATE)
    model, messages, known, _ = client(kind, told, 3)
    diagnosis = diagnose(model, messages, known, told)
    assert diagnosis.findings[0].cause == FIRST[kind]
    assert (diagnosis.fit.misfit < 1) == (kind == "right")
    assert FIRST[kind] in str(diagnosis)


@pytest.mark.very_slow
@pytest.mark.parametrize("kind", ["decay", "smoothing", "epochs"])
def test_the_cause_is_named_first_where_batches_were_told(kind):
    told = LocalTraining(RATE, batch_size=16, epochs=2)
    model, messages, known, _ = client(kind, told, 0)
    assert diagnose(model, messages, known, told).findings[0].cause == FIRST[kind]


@pytest.mark.very_slow
def test_numbers_are_told_as_they_are():
    for kind, said in (
        ("decay", "0.01 of it a step"),
        ("rate", "the rate is 0.2, not 0.1"),
        ("epochs", "2.97 steps of rate 0.1 go; 3 full-batch steps would explain them"),
        ("batches", "batches of 40, once over the records"),
        ("momentum", "2 full-batch steps with momentum 0.9"),
        ("topk", "10% of the numbers changed"),
        ("bits", "8.0 bits"),
    ):
        told = LocalTraining(RATE)
        model, messages, known, _ = client(kind, told, 0)
        assert said in diagnose(model, messages, known, told).findings[0].evidence


@pytest.mark.slow
def by_layer(first, second):
    """SGD whose rate is another in each layer, as optimisers with groups of parameters have it."""

    def optimizer(rate):
        layers = {"Dense_0": optax.sgd(first * rate), "Dense_1": optax.sgd(second * rate)}
        return optax.multi_transform(
            layers, lambda tree: jax.tree.map_with_path(lambda path, _: path[0].key, tree)
        )

    return optimizer


def of_optimizer(optimizer, rate=RATE):
    """Model, messages and knowledge of a client that is told plain SGD."""
    x, y = records(3)
    model = mlp(FEATURES, (32,), 2)
    training = LocalTraining(rate, optimizer=optimizer)
    run = simulate(
        model, model.init(KEY), stack_clients([(x, y)]), KEY, Federated(8, training=training)
    )
    hidden = jnp.asarray(x).at[:, 4].set(jnp.nan)
    return model, run.messages(0), Knowledge(hidden, y, (binary_column(4),))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "rate", "cause", "evidence"),
    [
        (by_layer(1, 0.3), RATE, "a rate for every array", "Dense_1/kernel 0.0"),
        (by_layer(0, 1), RATE, "arrays that are not trained", "Dense_0/kernel never changed"),
        (by_layer(1, 0), RATE, "arrays that are not trained", "Dense_1/kernel never changed"),
        (optax.sign_sgd, 0.01, "signs", "of one size"),
        pytest.param(
            *(optax.adagrad, 0.01, "learning rate", "of what is left"), marks=pytest.mark.very_slow
        ),
    ],
)
def test_other_optimisers_are_named(optimizer, rate, cause, evidence):
    model, messages, known = of_optimizer(optimizer, rate)
    first = diagnose(model, messages, known, LocalTraining(RATE)).findings[0]
    assert first.cause == cause
    assert evidence in first.evidence


@pytest.mark.very_slow
def test_steps_are_not_told_where_the_rate_is_not():
    model, messages, known, _ = client("batches", LocalTraining(RATE), 0)
    answer = diagnose(model, messages, known)
    assert answer.findings[0].cause == "no full-batch step"
    assert "training=LocalTraining(rate)" in answer.attack
    right = client("right", LocalTraining(RATE), 0)
    assert diagnose(*right[:3]).findings[0].cause == "as told"


def test_numbers_alone_tell_some_causes():
    """Without any knowledge of the records."""
    for kind in ("adam", "topk", "bits"):
        model, messages, _, _ = client(kind, LocalTraining(RATE), 1)
        assert [f.cause for f in diagnose(model, messages).findings] == [FIRST[kind]]
    for kind in ("right", "batches", "decay", "noise"):
        model, messages, _, _ = client(kind, LocalTraining(RATE), 1)
        assert diagnose(model, messages).findings == ()


def test_half_precision_clipping_and_no_training():
    model, messages, _, _ = client("right", LocalTraining(RATE), 0)

    def halved(tree):
        return jax.tree.map(lambda a: a.astype(jnp.bfloat16).astype(a.dtype), tree)

    rounded = dataclasses.replace(
        messages, received=halved(messages.received), returned=halved(messages.returned)
    )
    assert diagnose(model, rounded).findings[0].cause == "half precision"
    same = dataclasses.replace(messages, returned=messages.received)
    assert diagnose(model, same).findings[0].cause == "nothing came back changed"
    early = jax.tree.map(lambda a, b: a.at[:2].set(b[:2]), messages.returned, messages.received)
    idle = dataclasses.replace(messages, returned=early)
    assert diagnose(model, idle).findings[0].cause == "no training"
    _, clipped, _, _ = client("right", LocalTraining(RATE), 0, plugins=(Upload(clip=1e-2),))
    assert [f.cause for f in diagnose(model, clipped).findings] == ["clipped"]


@pytest.mark.very_slow
def test_another_activation_is_tried():
    x, y = records(0)
    tanh = from_flax(Act((32,), 2, jnp.tanh), (FEATURES,), cross_entropy, 2)
    run = simulate(tanh, tanh.init(KEY), stack_clients([(x, y)]), KEY, Federated(3))
    relu = from_flax(Act((32,), 2, jax.nn.relu), (FEATURES,), cross_entropy, 2)
    known = Knowledge(x, y, (binary_column(4),))
    finding = diagnose(relu, run.messages(0), known, LocalTraining(0.1)).findings[0]
    assert finding.cause == "another activation"
    assert finding.evidence.startswith("tanh")


def _with_arrays(messages, change):
    """What is read where arrays were laid out by another convention."""
    return dataclasses.replace(
        messages, received=change(messages.received), returned=change(messages.returned)
    )


def _transposed(tree):
    return jax.tree.map(lambda a: a.swapaxes(1, 2) if a.shape[1:] == (16, 16) else a, tree)


def _exchanged(tree):
    return (
        tree
        | {"Dense_0": tree["Dense_0"] | {"bias": tree["Dense_1"]["bias"]}}
        | {"Dense_1": tree["Dense_1"] | {"bias": tree["Dense_0"]["bias"]}}
    )


@pytest.mark.very_slow
@pytest.mark.parametrize(
    "told",
    [
        LocalTraining(RATE),
        LocalTraining(RATE, batch_size=16),
    ],
)
def test_arrays_in_another_layout_are_named(told):
    """A square kernel transposed, and biases of one shape in each other's place."""
    model, messages, known, _ = client("right", told, 0, hidden=(16, 16))
    for change, said in (
        (_transposed, "Dense_0/kernel, Dense_1/kernel transposed"),
        (_exchanged, "Dense_0/bias and Dense_1/bias exchanged"),
    ):
        finding = diagnose(model, _with_arrays(messages, change), known, told).findings[0]
        assert finding.cause == "layout of arrays"
        assert finding.evidence.startswith(said)


@pytest.mark.very_slow
@pytest.mark.parametrize("momentum", [0.5, 0.95])
def test_other_momenta_are_named(momentum):
    x, y = records(0)
    told = LocalTraining(RATE)
    trained = dataclasses.replace(told, epochs=3, optimizer=sgd(momentum))
    model = mlp(FEATURES, (32,), 2)
    run = simulate(model, model.init(KEY), stack_clients([(x, y)]), KEY, Federated(4, trained))
    finding = diagnose(model, run.messages(0), Knowledge(x, y, (binary_column(4),)), told)
    assert f"3 full-batch steps with momentum {momentum}" in finding.findings[0].evidence


def _ten_bits(a):
    """As TensorFloat-32 keeps them of each factor."""
    return jax.lax.reduce_precision(a, 8, 10)


@jax.custom_vjp
def _reduced(a, b):
    return _ten_bits(a) @ _ten_bits(b)


_reduced.defvjp(
    lambda a, b: (_reduced(a, b), (a, b)),
    lambda kept, g: (
        _ten_bits(g) @ _ten_bits(kept[1]).T,
        _ten_bits(kept[0]).T @ _ten_bits(g),
    ),
)


@pytest.mark.slow
def test_clients_whose_products_keep_ten_bits_are_read_and_named():
    """As accelerators train where nothing is said."""
    x, y = records(0)
    model = mlp(FEATURES, (32,), 2)

    def apply(params, x, *, key=None, mask=None):
        for place, name in enumerate(model.layers.names):
            layer = model.layers.parameters(params, name)
            x = _reduced(jax.nn.relu(x) if place else x, layer["kernel"]) + layer["bias"]
        return x

    device = dataclasses.replace(model, apply=apply, layers=None)
    federated = Federated(8, LocalTraining(RATE))
    run = simulate(device, model.init(KEY), stack_clients([(x, y)]), KEY, federated)
    known = Knowledge(x, y, (binary_column(4, 0.5),))
    with pytest.warns(MisfitWarning):
        decoded = closed_form(model, run.messages(0), known, settings=ClosedForm(RATE))
    assert np.array_equal(decoded.values[0], x[:, 4])
    diagnosis = diagnose(model, run.messages(0), known, LocalTraining(RATE))
    assert diagnosis.findings[0].cause == "noise"
    assert "TensorFloat-32" in diagnosis.findings[0].evidence


def test_bad_input_is_named():
    model, messages, known, _ = client("right", LocalTraining(RATE), 0, rounds=2)
    with pytest.raises(ValueError, match="training='sgd' must be a LocalTraining"):
        diagnose(model, messages, known, "sgd")
    with pytest.raises(ValueError, match="are not parameters of this model"):
        diagnose(mlp(FEATURES, (8,), 2), messages, known)
    with pytest.raises(ValueError, match="knowledge"):
        diagnose(model, messages, np.zeros(3))


@pytest.mark.slow
def test_what_cannot_be_judged_is_not_called_right():
    """As many unknowns as equations: anything fits."""
    told = LocalTraining(RATE)
    model, messages, known, _ = client("decay", told, 0, hidden=(1,), rounds=1)
    diagnosis = diagnose(model, messages, known, told)
    assert np.isnan(diagnosis.fit.misfit)
    assert [finding.cause for finding in diagnosis.findings] == ["cannot be judged"]


def test_what_noise_covers_is_not_called_right():
    told = LocalTraining(RATE, plugins=(DPSGD(1.0, 20.0),))
    model, messages, known, _ = client("right", told, 0)
    diagnosis = diagnose(model, messages, known, told)
    assert diagnosis.fit.allowed < 0
    assert diagnosis.findings[0].cause == "cannot be judged"
    assert "as large as the messages" in diagnosis.findings[0].evidence


def test_a_rate_that_nobody_told_is_no_cause():
    model, messages, known, _ = client("rate", LocalTraining(RATE), 0)
    assert diagnose(model, messages, known).findings[0].cause == "as told"
    assert (
        diagnose(model, messages, known, LocalTraining(RATE)).findings[0].cause == "learning rate"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "the recipe explains the messages"),
        pytest.param(
            *({"optimizer": sgd(0.5)}, "full-batch steps with momentum 0.5"),
            marks=pytest.mark.very_slow,
        ),
        pytest.param(
            *({"optimizer": optax.sgd, "epochs": 6}, "6 full-batch steps explains"),
            marks=pytest.mark.very_slow,
        ),
        pytest.param({"learning_rate": 2 * RATE}, "the rate 0.2", marks=pytest.mark.very_slow),
    ],
)
def test_a_client_told_momentum_is_diagnosed(changes, said):
    x, y = records(0)
    told = LocalTraining(RATE, epochs=3, optimizer=sgd(0.9))
    trained = dataclasses.replace(told, **changes)
    model = mlp(FEATURES, (32,), 2)
    run = simulate(model, model.init(KEY), stack_clients([(x, y)]), KEY, Federated(4, trained))
    answer = diagnose(model, run.messages(0), Knowledge(x, y, (binary_column(4),)), told)
    assert any(said in each.evidence for each in answer.findings), answer
