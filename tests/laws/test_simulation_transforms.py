"""The simulation under transformations: gradients, batches, devices, types, compilations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import jaxfl
from benchmarks.laws.programs import compilations
from jaxfl import (
    DPSGD,
    Federated,
    HonestServer,
    IsolatingServer,
    Keep,
    LocalTraining,
    Mixup,
    Server,
    Upload,
    client_round,
    local_update,
    mlp,
    simulate,
    stack_clients,
)
from tests.conftest import assert_same
from tests.laws.test_simulation_laws import MINIBATCH, run


@pytest.mark.slow
def test_gradient_through_the_simulation_matches_finite_differences(world):
    model = mlp(12, (16,), 3)

    def function(x, rate):
        clients = dataclasses.replace(world.clients, x=x)
        federated = Federated(rounds=3, training=LocalTraining(rate, epochs=2, batch_size=10))
        start = jax.tree.map(lambda a: a.astype(x.dtype), world.params)
        end = simulate(model, start, clients, world.key, federated).params
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(end))

    with jax.enable_x64(True):
        x = world.clients.x.astype(jnp.float64)
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
        keep=Keep(clients=()),
    )

    def objective(x, params):
        end = simulate(model, params, dataclasses.replace(clients, x=x), key, federated).params
        return sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(end))

    compiled = jax.jit(jax.value_and_grad(objective)).lower(clients.x, model.init(key)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 80 * 2**20


@pytest.mark.slow
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


@pytest.mark.slow
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


PLUGINS = {
    "mixup": Mixup(),
    "DP-SGD": DPSGD(1.0, 0.5),
    "clip": Upload(clip=0.1),
    "noise": Upload(clip=1.0, noise_multiplier=0.5),
    "bits": Upload(bits=8),
}


@pytest.mark.parametrize("layers", [True, False])
@pytest.mark.parametrize("plugin", PLUGINS.values(), ids=PLUGINS)
def test_gradients_are_finite_through_padding_and_records_without_a_gradient(plugin, layers):
    """At zero weights a record of zeros has no gradient, nor has padding."""
    model, key = jaxfl.linear(4), jax.random.key(0)
    model = model if layers else dataclasses.replace(model, layers=None)
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    x[0] = 0
    clients = stack_clients([(x, np.r_[0.0, np.ones(7)]), (x[:3], np.zeros(3))])
    federated = Federated(2, LocalTraining(0.1), plugins=(plugin,))

    def end(params):
        run = simulate(model, params, clients, key, federated)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(run.params))

    start = jax.tree.map(jnp.zeros_like, model.init(key))
    value, slope = jax.value_and_grad(end)(start)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope)), "a gradient is NaN"


@struct.dataclass
class Doubling(HonestServer):
    """A server of as many numbers as the honest one, which sends each model twice as large."""

    def send(self, state, client_id):
        return jax.tree.map(lambda w: 2 * w, state.params)


def test_other_numbers_compile_nothing(world):
    def work(rate, victim):
        training, data = LocalTraining(rate, batch_size=8), world.clients.client(0)
        federated = Federated(2, training, plugins=(Upload(clip=rate),))
        for server in (HonestServer(learning_rate=rate), IsolatingServer(victim)):
            run(world, federated=federated, server=server)
        local_update(world.model, world.params, data, world.key, training)
        client_round(world.model, world.params, data, world.key, training, federated.plugins)

    with compilations() as first:
        work(0.1, 0)
    with compilations() as again:
        work(0.2, 1)
    assert first
    assert not again


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

    class Unregistered(Server):
        pass

    with pytest.raises(ValueError, match="server is a Unregistered, which is no pytree"):
        run(world, server=Unregistered())
