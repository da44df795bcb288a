"""Invariances of the simulation: what must not change a number, and what the numbers must equal."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.harness.programs import host_calls, reduced_products
from jaxfl import (
    Federated,
    HonestServer,
    IsolatingServer,
    Keep,
    LocalTraining,
    Model,
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


def test_batches_that_are_not_shuffled_are_cut_from_records_as_they_stand(world):
    """In every epoch and round; padding has no part in it."""
    training = LocalTraining(0.2, epochs=2, batch_size=8, shuffle=False)
    messages = run(world, federated=Federated(rounds=2, training=training)).messages(1)
    x, y = map(jnp.asarray, world.records[1])
    for t in (0, 1):
        params, returned = (
            jax.tree.map(lambda a, t=t: a[t], tree)
            for tree in (messages.received, messages.returned)
        )
        for start in 2 * [0, 8, 16]:
            batch = x[start : start + 8], y[start : start + 8]
            slope = jax.grad(lambda p, batch=batch: mean_loss(world.model, p, *batch))(params)
            params = jax.tree.map(lambda p, g: p - 0.2 * g, params, slope)
        assert_same(params, returned, "another batch was taken", 1e-5)


def test_clients_have_batch_orders_of_their_own(world):
    """Clients of the same records come back as two models."""
    twins = stack_clients([world.records[0], world.records[0]])
    federated = Federated(rounds=1, training=LocalTraining(0.2, batch_size=8))
    transcript = run(world, twins, federated)
    first, second = (transcript.messages(client).returned for client in (0, 1))
    assert largest_difference(first, second) > 1e-6, "clients share a key"


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


def test_products_are_made_in_full_precision_unless_asked_otherwise(world):
    """TensorFloat-32, which accelerators take where nothing is said, is wrong in the fourth
    digit."""

    def trained(params, x):
        clients = dataclasses.replace(world.clients, x=x)
        return simulate(
            world.model, params, clients, world.key, Federated(training=MINIBATCH)
        ).params

    arrays = world.params, world.clients.x
    assert not reduced_products(jax.make_jaxpr(trained)(*arrays))
    assert not host_calls(jax.make_jaxpr(trained)(*arrays))
    with jax.default_matmul_precision("tensorfloat32"):
        assert reduced_products(jax.make_jaxpr(trained)(*arrays))


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
        federated=dataclasses.replace(training, keep=Keep(clients=(), rounds=(1, 4), sums=True)),
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
        federated=Federated(5, MINIBATCH, clients_per_round=2, keep=Keep(clients=(2, 0, 1))),
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
