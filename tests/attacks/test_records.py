"""Whole records: exactly those of the client, or a reason. No record that is called certified is
ever wrong, whatever the messages are."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import RecordSearch, Status, count_records, lies_in_span, reconstruct_records
from attacks.fit import UncheckedWarning
from jaxfl import (
    Federated,
    Keep,
    LocalTraining,
    Messages,
    cross_entropy,
    from_flax,
    mean_loss,
    mlp,
    simulate,
    stack_clients,
)
from jaxfl.datasets import Table, encode, load

KEY = jax.random.key(0)
STEP = LocalTraining(1.0)
FAST = RecordSearch(starts=64, passes=10)
HIDDEN = (48, 48)


def made_up(count=400, seed=0):
    """A table of two categories with their own number, a small whole number and a price."""
    rng = np.random.default_rng(seed)
    colour, size = rng.integers(0, 6, count), rng.integers(0, 4, count)
    values = np.stack(
        [
            *(colour, size, 10 * size + 5, rng.integers(0, 2, count)),
            *(rng.integers(18, 60, count), rng.integers(0, 9000, count)),
        ],
        1,
    )
    categories = tuple("abcdef"), ("S", "M", "L", "XL"), (), ("no", "yes"), (), ()
    names = "colour", "size", "width", "member", "age", "price"
    return encode(
        Table("made_up", values.astype(np.float32), rng.integers(0, 3, count), names, categories, 3)
    )


DATA = made_up()
SCHEMA = DATA.schema()
MODEL = mlp(DATA.x.shape[1], HIDDEN, 3)


@functools.partial(jax.jit, static_argnums=0)
def gradient(model, params, x, y):
    return jax.grad(lambda p: mean_loss(model, p, x, y))(params)


def gradients(model, params, x, y):
    """What a client sends that has these records, one round."""
    sent = gradient(model, params, x, y)
    return Messages.from_gradients(*jax.tree.map(lambda a: a[None], (params, sent)))


def client(count, seed=0):
    rows = np.random.default_rng(seed).choice(len(DATA), count, replace=False)
    return DATA.x[rows], DATA.y[rows]


def read(model, messages, training=STEP, settings=FAST):
    return reconstruct_records(model, messages, SCHEMA, training, KEY, settings=settings)


def wrong(answer, x, y):
    """How many records that are called certified the client does not have."""
    certified = answer.x[answer.certified], answer.y[answer.certified]
    return sum(
        not (np.isclose(x, record, atol=1e-3).all(1) & (y == label)).any()
        for record, label in zip(*certified, strict=True)
    )


def is_exactly(answer, x, y):
    order = np.lexsort(np.round(answer.x, 3).T)
    expected = np.lexsort(np.round(x, 3).T)
    return (
        answer.complete
        and len(answer) == len(x)
        and np.allclose(answer.x[order], x[expected], atol=1e-3)
        and (answer.y[order] == y[expected]).all()
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5, 16])
def test_all_records_are_read(count):
    x, y = client(count)
    answer = read(MODEL, gradients(MODEL, MODEL.init(KEY), x, y))
    assert is_exactly(answer, x, y), answer.reason
    assert answer.count == count
    assert (answer.copies == 1).all()
    assert answer.left < 1e-10


@pytest.mark.slow
def test_a_table_comes_in_its_own_units():
    x, y = client(12)
    answer = read(MODEL, gradients(MODEL, MODEL.init(KEY), x, y))
    table, truth = answer.table, SCHEMA.table(x.astype(float))
    assert set(table) == {"colour", "size", "width", "member", "age", "price"}
    rows = [
        sorted(zip(*(t[name].tolist() for name in sorted(t)), strict=True)) for t in (table, truth)
    ]
    assert rows[0] == rows[1]
    assert set(table["width"][table["size"] == "M"]) <= {15.0}
    assert (answer.precision < 0.5).all()


@pytest.mark.slow
def test_a_record_that_is_there_twice_counts_twice():
    x, y = client(8)
    x, y = np.concatenate([x, x[:2], x[:1]]), np.concatenate([y, y[:2], y[:1]])
    answer = read(MODEL, gradients(MODEL, MODEL.init(KEY), x, y))
    assert answer.count == 8
    assert answer.complete
    places = [np.isclose(answer.x, record, atol=1e-3).all(1).argmax() for record in x[:8]]
    assert answer.copies[places].tolist() == [3, 2] + [1] * 6


@pytest.mark.slow
def test_records_that_differ_in_one_column_are_two_records():
    x, y = client(6)
    member = SCHEMA.listed[[a.columns for a in SCHEMA.listed].index(("member",))].positions[0]
    twins = x[:3].copy()
    twins[:, member] = 1 - twins[:, member]
    x, y = np.concatenate([x, twins]), np.concatenate([y, y[:3]])
    answer = read(MODEL, gradients(MODEL, MODEL.init(KEY), x, y))
    assert is_exactly(answer, x, y), answer.reason


@pytest.mark.very_slow
def test_rounds_go_together_and_models_that_are_trained_are_read_too():
    x, y = client(16)
    params, received, sent = MODEL.init(KEY), [], []
    for _ in range(4):
        slope = jax.grad(lambda p: mean_loss(MODEL, p, x, y))(params)
        received, sent = [*received, params], [*sent, slope]
        params = jax.tree.map(lambda w, g: w - 0.5 * g, params, slope)
    stacked = [jax.tree.map(lambda *a: jnp.stack(a), *trees) for trees in (received, sent)]
    assert is_exactly(read(MODEL, Messages.from_gradients(*stacked)), x, y)
    last = [jax.tree.map(lambda a: a[-1:], tree) for tree in stacked]
    assert is_exactly(read(MODEL, Messages.from_gradients(*last)), x, y)


def test_models_that_were_returned_in_float32_are_read():
    x, y = client(8)
    params, rate = MODEL.init(KEY), 0.5
    slope = jax.grad(lambda p: mean_loss(MODEL, p, x, y))(params)
    returned = jax.tree.map(lambda w, g: w - rate * g, params, slope)
    messages = Messages.from_arrays(*jax.tree.map(lambda a: a[None], (params, returned)))
    assert is_exactly(read(MODEL, messages, LocalTraining(rate)), x, y)


def test_another_learning_rate_than_the_clients_is_told_and_the_records_read():
    x, y = client(10)
    answer = read(MODEL, gradients(MODEL, MODEL.init(KEY), x, y), LocalTraining(0.7))
    assert answer.status == Status.MISFIT
    assert "or training.learning_rate is not the client's" in answer.reason
    assert len(answer) == 10
    assert wrong(answer, x, y) == 0


def averaged(x, y, training):
    """What a client returns that takes several steps."""
    model = mlp(DATA.x.shape[1], (64,), 3)
    kept = Keep(clients="all")
    federated = Federated(1, training, keep=kept)
    run = simulate(model, model.init(KEY), stack_clients([(x, y)]), KEY, federated)
    return model, run.messages(0)


@pytest.mark.very_slow
def test_clients_that_take_several_steps_are_read():
    x, y = client(6)
    training = LocalTraining(0.1, epochs=2, batch_size=3)
    answer = read(*averaged(x, y, training), training)
    assert len(answer) >= 5
    assert answer.count == 6
    assert wrong(answer, x, y) == 0


def test_steps_of_another_model_certify_nothing():
    x, y = client(6)
    training = LocalTraining(0.1, epochs=2, batch_size=3)
    model, messages = averaged(x + 0.3, y, training)
    assert not read(model, messages, training).certified.any()


def test_one_hidden_layer_is_read():
    model = mlp(DATA.x.shape[1], (64,), 3)
    x, y = client(6)
    answer = read(model, gradients(model, model.init(KEY), x, y))
    assert is_exactly(answer, x, y), answer.reason


class Tanh(nn.Module):
    """Not one unit is ever 0."""

    @nn.compact
    def __call__(self, x):
        for width in HIDDEN:
            x = nn.tanh(nn.Dense(width)(x))
        return nn.Dense(3)(x)


@pytest.mark.very_slow
def test_units_need_not_be_zero():
    model = from_flax(Tanh(), (DATA.x.shape[1],), cross_entropy, 3)
    x, y = client(12)
    assert is_exactly(read(model, gradients(model, model.init(KEY), x, y)), x, y)


class Shifted(nn.Module):
    """Its first layer does not see a record as it is."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(48)(nn.relu(nn.Dense(48)(x + 1)))))


def test_a_model_that_changes_records_first_is_refused():
    model = from_flax(Shifted(), (DATA.x.shape[1],), cross_entropy, 3)
    x, y = client(5)
    messages = gradients(model, model.init(KEY), x, y)
    with pytest.raises(ValueError, match="changes a record before its first layer"):
        read(model, messages)


@pytest.mark.parametrize("noise", [1e-6, 1e-4, 1e-2, 1.0])
def test_noise_hides_records_but_makes_up_none(noise):
    x, y = client(10)
    exact = gradients(MODEL, MODEL.init(KEY), x, y)
    leaves, structure = jax.tree.flatten(exact.pseudo_gradient)
    size = noise * np.sqrt(np.mean([np.square(leaf).mean() for leaf in leaves]))
    rng = np.random.default_rng(0)
    noisy = [np.asarray(a) + size * rng.normal(size=a.shape) for a in leaves]
    messages = Messages.from_gradients(exact.received, structure.unflatten(noisy))
    answer = read(MODEL, messages)
    assert wrong(answer, x, y) == 0
    if noise >= 1e-2:
        assert not answer.certified.any()
        assert answer.status != Status.OK
    if noise <= 1e-6:
        assert answer.complete


def test_messages_of_nobody_hold_no_record():
    params = MODEL.init(KEY)
    rng = np.random.default_rng(0)
    sent = jax.tree.map(lambda a: rng.normal(size=(1, *a.shape)), params)
    received = jax.tree.map(lambda a: a[None], params)
    answer = read(MODEL, Messages.from_gradients(received, sent))
    assert answer.status == Status.FAILED
    assert len(answer) == answer.count == 0
    nothing = jax.tree.map(jnp.zeros_like, received)
    answer = read(MODEL, Messages.from_gradients(received, nothing))
    assert answer.status == Status.FAILED
    assert "nothing to read" in answer.reason


@pytest.mark.slow
def test_messages_of_another_model_or_of_no_table_certify_nothing():
    x, y = client(8)
    params = MODEL.init(KEY)
    sent = gradients(MODEL, params, x, y).pseudo_gradient
    other = jax.tree.map(lambda a: a[None], MODEL.init(jax.random.key(1)))
    assert not read(MODEL, Messages.from_gradients(other, sent)).certified.any()
    blurred = x + np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    assert not read(MODEL, gradients(MODEL, params, blurred, y)).certified.any()


def test_more_records_than_units_are_not_told():
    x, y = client(60)
    answer = read(MODEL, gradients(MODEL, MODEL.init(KEY), x, y))
    assert answer.status == Status.FAILED
    assert "do not tell how many records" in answer.reason


def test_spans_tell_the_number_of_records_and_whether_one_is_among_them():
    x, y = client(9)
    messages = gradients(MODEL, MODEL.init(KEY), x, y)
    assert count_records(MODEL, messages) == 9
    ends = (jax.tree.map(np.asarray, tree) for tree in (messages.received, messages.returned))
    signs = jax.tree.map(lambda w, v: w - 0.01 * np.sign(w - v), *ends)
    assert count_records(MODEL, messages.replace(returned=signs)) == 0  # as Adam's first step
    with pytest.warns(UncheckedWarning, match="any record may be the client's"):
        assert lies_in_span(MODEL, messages.replace(returned=signs), DATA.x[:50]).all()
    others = DATA.x[~np.isclose(DATA.x[:, None], x[None], atol=1e-3).all(-1).any(1)]
    assert lies_in_span(MODEL, messages, x).all()
    assert lies_in_span(MODEL, messages, others[:50]).mean() < 0.1


def test_the_same_key_gives_the_same_records():
    x, y = client(10)
    messages = gradients(MODEL, MODEL.init(KEY), x, y)
    first, second = read(MODEL, messages), read(MODEL, messages)
    for field in ("x", "y", "copies", "certified"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model": mlp(DATA.x.shape[1], HIDDEN, 3, batch_norm=True)}, "batch normalisation"),
        ({"model": mlp(DATA.x.shape[1], HIDDEN, 1, task="regression")}, "classes=None"),
        ({"model": mlp(DATA.x.shape[1], (8, 8), 3)}, "has shape"),
        ({"schema": made_up().schema().__class__(3, SCHEMA.listed[:1])}, "schema"),
        ({"training": LocalTraining(1.0, optimizer=optax.adam)}, "is not linear in gradients"),
        ({"key": 3}, "key"),
    ],
)
def test_bad_input_is_named(change, complaint):
    x, y = client(5)
    arguments = {"model": MODEL, "schema": SCHEMA, "training": STEP, "key": KEY} | change
    model = arguments["model"]
    given = MODEL if "shape" in complaint else model
    messages = gradients(given, given.init(KEY), x, y if given.classes else y.astype(np.float32))
    with pytest.raises(ValueError, match=complaint):
        reconstruct_records(
            model, messages, arguments["schema"], arguments["training"], arguments["key"]
        )


def test_a_schema_is_of_all_features():
    with pytest.raises(ValueError, match="belongs to one attribute"):
        dataclasses.replace(SCHEMA, listed=SCHEMA.listed[1:]).check_whole("schema")
    twice = dataclasses.replace(SCHEMA.measured[0], column="age")
    with pytest.raises(ValueError, match="twice"):
        dataclasses.replace(SCHEMA, measured=(twice,)).check_whole("schema")


@pytest.mark.very_slow
def test_all_fourteen_columns_of_adult_are_read(data_dir):
    data = load("adult", data_dir)
    rows = np.random.default_rng(0).choice(len(data), 16, replace=False)
    model = mlp(data.x.shape[1], (100, 100), 2)
    x, y = data.x[rows], data.y[rows]
    messages = gradients(model, model.init(KEY), x, y)
    answer = reconstruct_records(model, messages, data.schema(), STEP, KEY)
    assert is_exactly(answer, x, y), answer.reason
    truth = data.schema().table(x.astype(float))
    assert len(truth) == 14
    for name, values in truth.items():
        assert sorted(values.tolist()) == sorted(answer.table[name].tolist()), name
