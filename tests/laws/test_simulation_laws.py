"""Invariances of the simulation: what must not change a number, and what the numbers must equal."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from jax.sharding import AxisType, PartitionSpec

from jaxfl import (
    DPSGD,
    Federated,
    HonestServer,
    IsolatingServer,
    LocalTraining,
    Mixup,
    Model,
    Record,
    Server,
    Upload,
    client_round,
    cross_entropy,
    local_update,
    mean_loss,
    mlp,
    simulate,
    stack_clients,
)
from tests.conftest import assert_same, compiled_as_by_users, largest_difference

MINIBATCH = LocalTraining(0.2, epochs=2, batch_size=8)


def run(world, clients=None, federated=None, **arguments):
    federated = federated or Federated(rounds=4, training=MINIBATCH)
    return simulate(
        world.model, world.params, clients or world.clients, world.key, federated, **arguments
    )


def test_order_of_clients_changes_nothing(world):
    shuffled = run(world, world.clients.take(jnp.array([2, 0, 1])))
    straight = run(world)
    assert_same(shuffled.params, straight.params, "the order of clients changes the model")
    for client in range(3):
        assert_same(
            shuffled.messages(client),
            straight.messages(client),
            "a client's messages depend on the order of clients",
        )


def test_a_client_has_messages_of_the_rounds_it_took_part_in_alone(world):
    federated = Federated(rounds=8, training=MINIBATCH, clients_per_round=2)
    transcript = run(world, federated=federated)
    present = np.asarray(transcript.participation)
    assert not present.all()
    for client in range(3):
        seen = transcript.messages(client)
        assert np.asarray(seen.rounds).tolist() == np.flatnonzero(present[:, client]).tolist()
        moved = jax.tree.leaves(jax.tree.map(lambda u: jnp.abs(u).max(), seen.pseudo_gradient))
        assert max(map(float, moved)) > 0, "a round of absence is among the messages"


def test_rounds_have_batch_orders_of_their_own(world):
    """The same model, received twice, comes back as two."""
    frozen = HonestServer(learning_rate=0.0)
    federated = Federated(rounds=2, training=LocalTraining(0.2, batch_size=8))
    seen = run(world, federated=federated, server=frozen).messages(0)
    first, second = (jax.tree.map(lambda a, t=t: a[t], seen.returned) for t in (0, 1))
    assert (
        largest_difference(*(jax.tree.map(lambda a, t=t: a[t], seen.received) for t in (0, 1))) == 0
    )
    assert largest_difference(first, second) > 1e-6, "rounds share a key"


@pytest.mark.parametrize("participants", [None, 2])
def test_order_of_clients_changes_nothing_with_partial_participation(world, participants):
    federated = Federated(rounds=5, training=MINIBATCH, clients_per_round=participants)
    straight, shuffled = (
        run(world, federated=federated),
        run(world, world.clients.take(jnp.array([1, 2, 0])), federated),
    )
    assert_same(
        shuffled.params, straight.params, "drawn participants depend on the order of clients"
    )


@pytest.mark.parametrize(
    "training",
    [
        MINIBATCH,
        LocalTraining(0.2, epochs=3),
        LocalTraining(0.01, batch_size=8, optimizer=optax.adam),
    ],
)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_padding_changes_nothing_whatever_it_holds(world, training, batch_norm):
    model = mlp(12, (16,), 3, batch_norm=batch_norm)
    world = dataclasses.replace(world, model=model, params=model.init(world.key))
    c = world.clients
    x = jnp.pad(
        jnp.where(c.mask[..., None], c.x, jnp.nan),
        ((0, 0), (0, 11), (0, 0)),
        constant_values=jnp.nan,
    )
    y = jnp.pad(jnp.where(c.mask, c.y, 99), ((0, 0), (0, 11)), constant_values=-7)
    padded = dataclasses.replace(c, x=x, y=y, mask=jnp.pad(c.mask, ((0, 0), (0, 11))))
    federated = Federated(rounds=3, training=training)
    # A bias that batch normalisation subtracts has a gradient of rounding errors alone, which Adam
    # makes steps of full length.
    train = compiled_as_by_users(lambda clients: run(world, clients, federated).params)
    assert_same(train(padded), train(c), "what padding holds enters the training")


@pytest.mark.parametrize("strategy", ["vmap", "map", 2, 7])
def test_strategy_changes_nothing(world, strategy):
    federated = Federated(rounds=4, training=MINIBATCH, strategy=strategy)
    assert_same(
        run(world, federated=federated).params, run(world).params, "the strategy changes the model"
    )


def test_a_client_alone_trains_as_beside_others(world):
    together = run(world).messages(1)
    first = jax.tree.map(lambda a: a[0], together.received)
    round_key = jax.random.split(jax.random.fold_in(world.key, 0))[0]
    x, y = world.records[1]
    alone = stack_clients([(x, y)], ids=[1]).client(0)
    returned = local_update(world.model, first, alone, jax.random.fold_in(round_key, 1), MINIBATCH)
    assert_same(
        returned,
        jax.tree.map(lambda a: a[0], together.returned),
        "a client trains otherwise beside others",
    )


def test_one_full_batch_step_is_the_gradient(world):
    federated = Federated(rounds=2, training=LocalTraining(0.3))
    messages = run(world, federated=federated).messages(0)
    x, y = map(jnp.asarray, world.records[0])
    for t in range(2):
        received = jax.tree.map(lambda a, t=t: a[t], messages.received)
        gradient = jax.grad(lambda p: mean_loss(world.model, p, x, y))(received)
        expected = jax.tree.map(lambda g: 0.3 * g, gradient)
        step = jax.tree.map(lambda a, t=t: a[t], messages.pseudo_gradient)
        assert_same(step, expected, "a full-batch step is no gradient step")


def test_fedavg_is_the_mean_weighted_by_records(world):
    transcript = run(world, federated=Federated(rounds=1, training=MINIBATCH))
    sizes = np.asarray([24, 17, 30])
    expected = jax.tree.map(
        lambda a: np.tensordot(sizes / sizes.sum(), a[0], 1), transcript.returned
    )
    assert_same(transcript.params, expected, "the mean is not weighted by records")


def test_server_optimizer_and_equal_weights(world):
    server = HonestServer(optax.sgd, 0.5, by_size=False)
    transcript = run(world, federated=Federated(rounds=1, training=MINIBATCH), server=server)
    expected = jax.tree.map(
        lambda w, a: 0.5 * w + 0.5 * a[0].mean(0), world.params, transcript.returned
    )
    assert_same(transcript.params, expected, "the server does not step half way to the plain mean")


def test_isolated_victim_trains_as_if_alone(world):
    federated = Federated(rounds=4, training=MINIBATCH)
    isolated = run(world, federated=federated, server=IsolatingServer(1))
    alone = run(world, world.clients.take(jnp.array([1])), federated)
    others = run(world, world.clients.take(jnp.array([0, 2])), federated)
    assert_same(isolated.messages(1), alone.messages(1), "the isolated victim sees others' updates")
    assert_same(isolated.params, others.params, "the victim's update reaches the others")


def test_sums_equal_the_sum_of_messages_and_nothing_else_is_kept(world):
    training = Federated(rounds=5, training=MINIBATCH, clients_per_round=2)
    kept = run(
        world,
        federated=dataclasses.replace(
            training, record=Record(clients=(), rounds=(1, 4), sums=True)
        ),
    )
    everything = run(world, federated=training)
    assert jax.tree.leaves(kept.returned)[0].shape[:2] == (2, 0)
    expected = jax.tree.map(lambda a: a[jnp.array([1, 4])], everything.aggregates().pseudo_gradient)
    assert_same(kept.aggregates().pseudo_gradient, expected, "sums are not of participants alone")


def test_anonymous_view_is_a_permutation_of_the_participants(world):
    transcript = run(world, federated=Federated(rounds=5, training=MINIBATCH, clients_per_round=2))
    view, truth = transcript.anonymous(jax.random.key(5))
    for t in range(5):
        senders = np.asarray(truth[t])
        assert set(senders) == set(np.flatnonzero(transcript.participation[t]))
        for place, client in enumerate(senders):
            mine = jax.tree.map(lambda a, t=t, place=place: a[t, place], view.returned)
            theirs = jax.tree.map(lambda a, t=t, client=client: a[t, client], transcript.returned)
            assert largest_difference(mine, theirs) == 0
    orders = {
        (seed, t, *map(int, senders))
        for seed in (6, 7)
        for t, senders in enumerate(run(world).anonymous(jax.random.key(seed))[1])
    }
    everyone = [order[2:] for order in orders]
    assert all(sorted(order) == [0, 1, 2] for order in everyone)
    assert len(set(everyone)) > 2, "messages come in one order: who sent them can be read from it"
    # The order in which messages are kept changes neither who is in the view nor the truth.
    turned = run(
        world,
        federated=Federated(5, MINIBATCH, clients_per_round=2, record=Record(clients=(2, 0, 1))),
    )
    view, truth = turned.anonymous(jax.random.key(5))
    for t in range(5):
        assert set(np.asarray(truth[t])) == set(np.flatnonzero(transcript.participation[t]))
        for place, client in enumerate(np.asarray(truth[t])):
            mine = jax.tree.map(lambda a, t=t, place=place: a[t, place], view.returned)
            theirs = jax.tree.map(lambda a, t=t, client=client: a[t, client], transcript.returned)
            assert largest_difference(mine, theirs) == 0


def test_a_model_of_plain_functions_works(world):
    def init(key):
        return {"w": 0.1 * jax.random.normal(key, (12, 3))}

    plain = Model(init, lambda params, x, *, key=None, mask=None: x @ params["w"], cross_entropy, 3)
    transcript = simulate(
        plain,
        plain.init(world.key),
        world.clients,
        world.key,
        Federated(rounds=30, training=MINIBATCH),
    )
    start, end = (
        mean_loss(plain, p, *map(jnp.asarray, world.records[0]))
        for p in (plain.init(world.key), transcript.params)
    )
    assert end < 0.8 * start


def test_gradient_through_the_simulation_matches_finite_differences(world):
    model = mlp(12, (16,), 3)

    def objective(x, rate):
        clients = dataclasses.replace(world.clients, x=x)
        federated = Federated(rounds=3, training=LocalTraining(rate, epochs=2, batch_size=10))
        end = simulate(model, world.params, clients, world.key, federated).params
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(end))

    with jax.enable_x64(True):
        x = world.clients.x.astype(jnp.float64)
        wide = dataclasses.replace(
            world, params=jax.tree.map(lambda a: a.astype(jnp.float64), world.params)
        )
        function = functools.partial(objective)
        world = wide
        direction = jax.random.normal(jax.random.key(3), x.shape, jnp.float64)
        tangent = jnp.vdot(jax.grad(function)(x, 0.1), direction)
        step = 1e-6
        difference = (function(x + step * direction, 0.1) - function(x - step * direction, 0.1)) / (
            2 * step
        )
        assert abs(tangent - difference) < 1e-5 * max(1, abs(difference))
        rate = jax.grad(function, argnums=1)(x, 0.1)
        difference = (function(x, 0.1 + step) - function(x, 0.1 - step)) / (2 * step)
        assert abs(rate - difference) < 1e-5 * max(1, abs(difference))


def test_sweeping_numbers_over_vmap_equals_single_runs(world):
    def end(rate):
        return run(
            world, federated=Federated(rounds=2, training=LocalTraining(rate, batch_size=8))
        ).params

    together = jax.vmap(end)(jnp.array([0.1, 0.3]))
    for i, rate in enumerate((0.1, 0.3)):
        assert_same(
            jax.tree.map(lambda a, i=i: a[i], together),
            end(rate),
            "a learning rate under vmap is another one",
        )


def test_memory_of_a_gradient_through_twenty_rounds_is_bounded():
    """Setting: 4 clients, MLP 100-256-256-256-10, 64 records, 20 rounds of 10 full-batch steps.
    Without checkpoints the gradient with respect to the clients' data holds 920 MiB."""
    model = mlp(100, (256, 256, 256), 10)
    key = jax.random.key(0)
    clients = stack_clients([(np.zeros((64, 100)), np.zeros(64, int))] * 4)
    federated = Federated(
        rounds=20,
        training=LocalTraining(0.1, epochs=10),
        strategy="vmap",
        record=Record(clients=()),
    )

    def objective(x, params):
        end = simulate(model, params, dataclasses.replace(clients, x=x), key, federated).params
        return sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(end))

    compiled = jax.jit(jax.value_and_grad(objective)).lower(clients.x, model.init(key)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 80 * 2**20


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jaxfl import *
rng = np.random.default_rng(0)
clients = stack_clients([(rng.normal(size=(20, 6)), rng.integers(0, 3, 20)) for _ in range(8)])
model = mlp(6, (8,), 3)
key = jax.random.key(0)
params = model.init(key)
training, record = LocalTraining(0.1, batch_size=8), Record(clients=(0,))
federated = Federated(rounds=3, training=training, strategy="vmap", record=record)
one = simulate(model, params, clients, key, federated)
mesh = jax.make_mesh((4,), ("clients",), axis_types=(AxisType.Auto,))
spread = jax.device_put(clients, NamedSharding(mesh, P("clients")))
params, key = jax.device_put((params, key), NamedSharding(mesh, P()))
four = simulate(model, params, spread, key, federated)
assert len(jax.devices()) == 4
pairs = zip(jax.tree.leaves(one.params), jax.tree.leaves(four.params))
print(max(float(jnp.abs(a - np.asarray(b)).max()) for a, b in pairs))
"""


def test_four_devices_equal_one():
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-6


def test_a_simulation_runs_inside_jit_vmap_and_grad(world):
    """Also where clients are no argument of the outer function but constants in it."""

    def distance(rate):
        federated = Federated(rounds=2, training=LocalTraining(rate, batch_size=8))
        run = simulate(world.model, world.params, world.clients, world.key, federated)
        return sum((a**2).sum() for a in jax.tree.leaves(run.params))

    rates = jnp.asarray([0.05, 0.1])
    together = jax.jit(jax.vmap(jax.grad(distance)))(rates)
    apart = jnp.stack([jax.grad(distance)(rate) for rate in rates])
    assert np.allclose(together, apart, rtol=1e-4)
    mesh = jax.make_mesh((1,), ("rates",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("rates")
    sharded = jax.shard_map(
        jax.vmap(jax.grad(distance)), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    assert np.allclose(jax.jit(sharded)(rates), apart, rtol=1e-4)


def test_64_bit_types_change_no_draw(world):
    """Who takes part, in which order records come, what noise is added, how senders are
    shuffled."""
    clients = jax.tree.map(np.asarray, world.clients)

    def ran():
        federated = Federated(
            rounds=3,
            training=LocalTraining(0.2, batch_size=8, plugins=(Mixup(), DPSGD(1.0, 0.5))),
            plugins=(Upload(noise_multiplier=0.1, clip=1.0, bits=8),),
            clients_per_round=2,
        )
        transcript = run(world, jax.tree.map(jnp.asarray, clients), federated)
        return transcript, transcript.anonymous(world.key)[1]

    plain, senders = ran()
    with jax.enable_x64(True):
        wide, same_senders = ran()
    assert np.array_equal(plain.participation, wide.participation)
    assert np.array_equal(senders, same_senders)
    assert_same(plain.params, wide.params, "a draw depends on 64-bit types")


@pytest.fixture
def compilations():
    """Names of what was compiled since, by JAX's own account."""
    seen = []

    def listen(event, seconds, **facts):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(facts.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


@struct.dataclass
class Doubling(HonestServer):
    """A server of as many numbers as the honest one, which sends each model twice as large."""

    def send(self, state, client_id):
        return jax.tree.map(lambda w: 2 * w, state.params)


def test_other_numbers_compile_nothing(world, compilations):
    def work(rate, victim):
        training, data = LocalTraining(rate, batch_size=8), world.clients.client(0)
        federated = Federated(2, training, plugins=(Upload(clip=rate),))
        for server in (HonestServer(learning_rate=rate), IsolatingServer(victim)):
            run(world, federated=federated, server=server)
        local_update(world.model, world.params, data, world.key, training)
        client_round(world.model, world.params, data, world.key, training, federated.plugins)

    work(0.1, 0)
    assert compilations
    compilations.clear()
    work(0.2, 1)
    assert not compilations


def test_servers_of_two_kinds_are_two_programs(world):
    plain, doubled = (
        run(world, federated=Federated(1, MINIBATCH), server=kind())
        for kind in (HonestServer, Doubling)
    )
    expected = jax.tree.map(lambda w: 2 * w, plain.received)
    assert_same(doubled.received, expected, "a server ran as another kind")


def test_a_servers_shapes_are_looked_at(world):
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class First(Server):
        step: float = 1.0

        def receive(self, state, returned, sizes, ids):
            return dataclasses.replace(state, params=returned)

    with pytest.raises(ValueError, match=r"First\.receive gave shapes"):
        run(world, server=First())
