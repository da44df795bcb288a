"""Bad input: one line that names the argument, its value and the mend."""

import dataclasses
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax import sigmoid_binary_cross_entropy

from attacks import (
    Knowledge,
    UnknownColumn,
    binary_column,
    cos_matching,
    public_model,
)
from jaxfl import (
    Federated,
    IsolatingServer,
    Keep,
    LocalTraining,
    Messages,
    evaluate,
    linear,
    logistic,
    one_client,
    simulate,
    stack_clients,
)
from jaxfl.datasets import load, partitions

X, Y = np.zeros((5, 4), np.float32), np.array([0, 1, 2, 0, 1])


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no client"),
        ([(X[:0], Y[:0])], r"records\[0\]\[0\] has shape \(0, 4\), no records"),
        ([(X, Y[:3])], r"records\[0\]\[1\] has shape \(3,\); it needs one label for each of the 5"),
        (
            [(X, Y), (X[:, :2], Y)],
            r"records\[1\]\[0\] has records of shape \(2,\); client 0 has \(4,\)",
        ),
        (
            [(np.where(X == 0, np.nan, X), Y)],
            r"records\[0\]\[0\] holds 20 values that are not finite",
        ),
    ],
)
def test_clients(records, message):
    with pytest.raises(ValueError, match=message):
        stack_clients(records)


def test_repeated_ids_and_single_client():
    with pytest.raises(ValueError, match="distinct"):
        stack_clients([(X, Y), (X, Y)], ids=[1, 1])
    with pytest.raises(ValueError, match="not finite"):
        one_client(X + np.inf, Y)


@pytest.mark.parametrize(
    ("federated", "message"),
    [
        (
            Federated(training=LocalTraining(batch_size=100)),
            "batch_size=100 is larger than every client .largest: 30",
        ),
        (Federated(clients_per_round=9), "clients_per_round=9 exceeds the 3 clients"),
        (
            Federated(rounds=2, keep=Keep(rounds=(1, 1))),
            "keep.rounds=.1, 1. repeats an entry",
        ),
        (
            Federated(rounds=2, keep=Keep(rounds=[1, 1])),
            "keep.rounds=.1, 1. repeats an entry",
        ),
        (
            Federated(rounds=2, keep=Keep(rounds=(0, 5))),
            "names round 5; rounds run from 0 to 1",
        ),
        (Federated(keep=Keep(clients=(8,))), "names client 8"),
    ],
)
def test_federated(world, federated, message):
    with pytest.raises(ValueError, match=message):
        simulate(world.model, world.params, world.clients, world.key, federated)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: dataclasses.replace(c, y=c.y + 2),
            "clients.y holds the label",
        ),
        (
            lambda c: dataclasses.replace(c, x=c.x.at[0, 0, 0].set(jnp.nan)),
            "clients.x holds 1 values",
        ),
        (
            lambda c: dataclasses.replace(c, mask=c.mask.at[1].set(False)),
            "leaves client 1 without records",
        ),
        (lambda c: c.client(0), r"clients.mask has shape \(30,\)"),
        (lambda c: dataclasses.replace(c, x=c.x[:, :5]), "clients.x has shape"),
        (lambda c: dataclasses.replace(c, id=c.id * 0), "clients.id=.0, 0, 0. must be distinct"),
        (
            lambda c: dataclasses.replace(c, id=c.id - 1),
            "clients.id=.-1, 0, 1. must be distinct integers of at least 0",
        ),
        (
            lambda c: dataclasses.replace(c, mask=c.mask * 1.0),
            "clients.mask is of float32; it must be boolean",
        ),
    ],
)
def test_clients_at_simulate(world, change, message):
    with pytest.raises(ValueError, match=message):
        simulate(world.model, world.params, change(world.clients), world.key, Federated())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: dataclasses.replace(t, x=t.x[:, :5]), r"test.x has records of shape \(5,\)"),
        (lambda t: dataclasses.replace(t, y=t.y + 2), "test.y holds the label"),
        (lambda t: jax.tree.map(lambda a: a[None], t), "test=.*without client axis"),
    ],
)
def test_records_to_evaluate_on(world, change, message):
    with pytest.raises(ValueError, match=message):
        simulate(
            world.model,
            world.params,
            world.clients,
            world.key,
            Federated(),
            test=change(one_client(*world.records[0])),
        )


def test_public_models_erase_what_exists(world):
    x, _ = world.records[0]
    with pytest.raises(
        ValueError, match=r"positions=\[12\] names feature 12; features run from 0 to 11"
    ):
        public_model(x, x[:, 3].astype(int), x, [12], 2, world.key)
    with pytest.raises(ValueError, match="epochs=0"):
        public_model(x, x[:, 3].astype(int), x, [3], 2, world.key, epochs=0)


@pytest.fixture(scope="module")
def messages(world):
    return simulate(
        world.model, world.params, world.clients, world.key, Federated(rounds=2)
    ).messages(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": ()}, "names no unknown column"),
        ({"columns": (binary_column(12),)}, "names feature 12; features run from 0 to 11"),
        (
            {"columns": (UnknownColumn([3], [[0.0], [1.0]], [0.5, 0.4]),)},
            r"columns\[0\].prior=.* sums to 0.9",
        ),
        (
            {"columns": (UnknownColumn([3], [[0.0], [1.0]], [0.2, 0.3, 0.5]),)},
            r"columns\[0\].prior has shape \(3,\)",
        ),
        (
            {"columns": (UnknownColumn([3], [[0.0, 1.0]]),)},
            r"columns\[0\].candidates has shape \(1, 2\)",
        ),
        ({"columns": (UnknownColumn([3], [[1.0]]),)}, "needs at least 2"),
        ({"y": np.full(24, 3)}, "y holds the label 3; labels must be integers in 0..2"),
        ({"y": np.zeros(5, int)}, "with 24 records as in knowledge.x"),
        ({"x": np.zeros((24, 12, 1))}, "x has shape"),
        (
            {"x": np.zeros((24, 11))},
            r"x has records of shape \(11,\), which the model does not take",
        ),
        ({"y": np.full(24, np.nan)}, "y holds the label nan"),
        ({"y": np.full(24, 0.5)}, "y holds the label 0.5; labels must be integers"),
        (
            {"columns": (binary_column(3), binary_column(3))},
            r"columns name positions \[3, 3\], some of them twice",
        ),
        ({"x": np.full((24, 12), np.nan)}, "x holds"),
        ({"y": None, "label_prior": [0.5, 0.5]}, "label_prior has shape"),
    ],
)
def test_knowledge(world, messages, change, message):
    x, y = world.records[0]
    knowledge = dataclasses.replace(Knowledge(x, y, (binary_column(3, 0.4),)), **change)
    with pytest.raises(ValueError, match=message):
        cos_matching(world.model, messages, knowledge, world.key)


def test_no_settings_at_all(world, messages):
    x, y = world.records[0]
    knowledge = Knowledge(x, y, (binary_column(3, 0.4),))
    with pytest.raises(ValueError, match=r"settings=.. is empty"):
        cos_matching(world.model, messages, knowledge, world.key, settings=[])


def test_views(world):
    transcript = simulate(
        world.model,
        world.params,
        world.clients,
        world.key,
        Federated(rounds=3, keep=Keep(clients=(1,))),
    )
    with pytest.raises(ValueError, match=r"client=0 was not kept; kept: \[1\]"):
        transcript.messages(0)
    with pytest.raises(ValueError, match="names round 7"):
        transcript.messages(1, rounds=(0, 7))
    with pytest.raises(ValueError, match="names round 9, which is not held"):
        transcript.messages(1).select((9,))
    for view in (transcript.aggregates, lambda: transcript.anonymous(world.key)):
        with pytest.raises(ValueError, match=r"needs Keep\(clients='all'\)"):
            view()


def test_messages_from_outside(tmp_path, messages):
    with pytest.raises(ValueError, match="different tree structures"):
        Messages.from_arrays({"w": np.zeros((2, 3))}, {"v": np.zeros((2, 3))})
    with pytest.raises(ValueError, match=r"returned\['w'\] has shape \(2, 4\)"):
        Messages.from_arrays({"w": np.zeros((2, 3))}, {"w": np.zeros((2, 4))})
    with pytest.raises(ValueError, match="not finite"):
        Messages.from_arrays({"w": np.zeros((2, 3))}, {"w": np.full((2, 3), np.nan)})
    messages.save(tmp_path / "cut.npz")
    whole = (tmp_path / "cut.npz").read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:300] + bytes(50) + whole[350:]):
        (tmp_path / "cut.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match="is not a readable"):
            Messages.load(tmp_path / "cut.npz")
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"not an archive")
    with pytest.raises(ValueError, match=r"bad.npz' is not a readable .npz file"):
        Messages.load(bad)
    np.savez(bad, **{"received": np.zeros(2), "received/w": np.zeros(2)})
    with pytest.raises(ValueError, match="is not a readable"):
        Messages.load(bad)
    np.savez(bad, received=np.zeros(2))
    with pytest.raises(ValueError, match="messages need received, returned and rounds"):
        Messages.load(bad)
    messages.save(tmp_path / "good.npz")
    assert len(Messages.load(tmp_path / "good.npz")) == 2


def _declares_more(path):
    """An array whose header promises a thousand times what follows it."""
    np.save(path.with_suffix(".npy"), np.zeros(10))
    array = path.with_suffix(".npy").read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("received.npy", array.replace(b"'shape': (10,)", b"'shape': (99,)"))


def _encrypted(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("received.npy", b"0" * 100)
    data = bytearray(path.read_bytes())
    data[6] |= 1  # as if a password were needed
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)


def _grows(path):
    """A megabyte that says it is a gigabyte and more."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("received.npy", "w", force_zip64=True) as member,
    ):
        for _ in range(1100):
            member.write(bytes(2**20))


@pytest.mark.slow
@pytest.mark.parametrize("tampered", [_declares_more, _encrypted, _grows])
def test_tampered_files_are_refused_before_memory_is_taken(tmp_path, tampered):
    path = tmp_path / "messages.npz"
    tampered(path)
    with pytest.raises(ValueError, match="is not a readable"):
        Messages.load(path)


def test_messages_keep_their_precision_and_their_name(tmp_path, messages):
    with jax.enable_x64(True):
        exact = jax.tree.map(
            lambda a: jnp.asarray(a, jnp.float64) / 3, (messages.received, messages.returned)
        )
        wide = Messages(*exact, messages.rounds)
    wide.save(tmp_path / "victim")  # without a suffix
    again = Messages.load(tmp_path / "victim")
    for leaf, same in zip(jax.tree.leaves(wide), jax.tree.leaves(again), strict=True):
        assert leaf.dtype == same.dtype
        assert (np.asarray(leaf) == np.asarray(same)).all()


def test_shapes_that_would_broadcast_are_refused():
    clients = stack_clients([(X, np.ones((5, 1)))])
    model = linear(4)
    with pytest.raises(
        ValueError,
        match=r"clients.y has shape \(5, 1\), which the model's loss does not take .y has shape",
    ):
        simulate(model, model.init(jax.random.key(0)), clients, jax.random.key(0), Federated())
    clients = stack_clients([(X, np.full(5, np.nan))])
    with pytest.raises(ValueError, match=r"clients.y holds 5 values that are not finite"):
        simulate(model, model.init(jax.random.key(0)), clients, jax.random.key(0), Federated())


def test_other_refusals(world, messages):
    with pytest.raises(ValueError, match=r"server names clients \(99,\)"):
        simulate(
            world.model,
            world.params,
            world.clients,
            world.key,
            Federated(),
            server=IsolatingServer(99),
        )
    with pytest.raises(ValueError, match=r"rounds=\(\) is empty"):
        messages.select(())
    with pytest.raises(ValueError, match=r"keep\.clients=0 must be a sequence"):
        Keep(clients=0)
    with pytest.raises(ValueError, match=r"rounds has shape \(1,\)"):
        Messages.from_arrays({"w": np.zeros((2, 3))}, {"w": np.zeros((2, 3))}, rounds=[0])
    # A loss that takes integer labels alone.
    model = dataclasses.replace(
        logistic(12), loss=lambda outputs, y: sigmoid_binary_cross_entropy(outputs[..., 0], y)
    )
    run = simulate(
        model,
        model.init(world.key),
        stack_clients([(world.records[0][0], np.ones(24))]),
        world.key,
        Federated(),
    )
    with pytest.raises(ValueError, match="y=None, as probabilities, has shape"):
        cos_matching(
            model,
            run.messages(0),
            Knowledge(world.records[0][0], None, (binary_column(3),)),
            world.key,
        )


def test_a_diverged_model_is_not_scored(world):
    broken = jax.tree.map(lambda a: a * jnp.nan, world.params)
    assert np.isnan(evaluate(world.model, broken, world.clients.client(0)).accuracy)


def test_data():
    with pytest.raises(ValueError, match="name='nothing' is no data set; choose one of adult"):
        load("nothing")
    with pytest.raises(ValueError, match=r"target=\.\.\. is no option of adult"):
        load("adult", target="age")
    with pytest.raises(ValueError, match="needs target="):
        load("people.csv")
    data = load("breast_cancer")
    with pytest.raises(
        ValueError, match="column=30 does not exist in breast_cancer; attributes run from 0 to 29"
    ):
        data.column(30)
    with pytest.raises(ValueError, match="assigns no clients"):
        partitions.by_group(data)
    rng = np.random.default_rng(0)
    for call, message in (
        (lambda: partitions.iid(rng, 3, 4), "clients=4 exceeds the 3 records"),
        (lambda: partitions.by_sizes(rng, 3, [2, 2]), "sum to 4"),
        (lambda: partitions.by_sizes(rng, 3, [2, 0]), r"sizes\[1\]=0"),
        (lambda: partitions.by_classes(rng, data.y, 3, 5), "exceeds the 2 classes"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_traced_values_are_data(world):
    def final(x):
        clients = dataclasses.replace(world.clients, x=x)
        return simulate(world.model, world.params, clients, world.key, Federated()).params

    trained = jax.jit(final)(world.clients.x * jnp.nan)
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(trained))
