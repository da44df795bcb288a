"""mGAN-AI: invisible when passive, leaving the others alone when active, learning identities only
where there are any."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import gan_attack
from attacks.metrics import classifier_score
from attacks.users import generative, generators, mgan
from jaxfl import (
    Federated,
    IsolatingServer,
    Keep,
    LocalTraining,
    mlp,
    one_client,
    simulate,
    stack_clients,
    trunk_cnn,
)
from tests.conftest import assert_same, compiled_as_by_users, largest_difference

SHAPE, CLASSES = (16, 16, 1), 2
MODEL = trunk_cnn(SHAPE, CLASSES, widths=(4, 8), strides=(2, 2))
SETTINGS = generative.Adversarial(width=16, batch_size=20, learning_rate=5e-3, most_epochs=2)
RATE = 0.05


@pytest.fixture(scope="module")
def federation():
    """Three clients with two patterns; the first one's pictures are negatives."""
    rng = np.random.default_rng(0)
    patterns = np.where(rng.random((CLASSES, *SHAPE)) < 0.5, -0.7, 0.7)
    records = []
    for client in range(3):
        y = np.arange(20) % 2
        sign = -1 if client == 0 else 1
        records.append(
            (
                np.clip(sign * patterns[y] + 0.1 * rng.normal(size=(20, *SHAPE)), -1, 1).astype(
                    np.float32
                ),
                y,
            )
        )
    y = np.arange(60) % 2
    auxiliary = one_client(
        np.clip(patterns[y] + 0.1 * rng.normal(size=(60, *SHAPE)), -1, 1).astype(np.float32), y
    )
    return patterns, stack_clients(records), auxiliary


def federated(rounds, **kept):
    return Federated(rounds, LocalTraining(RATE), keep=Keep(**kept))


def judged(state, x):
    networks = state.networks
    return generative.judge(MODEL, networks.shared, networks.real, networks.identity, x)


def new_game(auxiliary):
    make = generators.generator(SHAPE, CLASSES, SETTINGS.width)
    game = generative.Game(MODEL, make, auxiliary.x, auxiliary.y, jnp.full(CLASSES, 0.5), SETTINGS)
    return game, generative.begin(game, MODEL.init(jax.random.key(0)), jax.random.key(1))


@pytest.mark.parametrize(
    ("shape", "width"), [((28, 28, 1), 384), ((64, 64, 1), 512), ((32, 32, 3), 16)]
)
def test_generators_have_the_papers_shapes(shape, width):
    make = generators.generator(shape, 10, width)
    inputs = jnp.zeros((2, generators.NOISE)), jnp.zeros(2, int), jnp.zeros(2, int)
    params = jax.eval_shape(make.init, jax.random.key(0), *inputs)["params"]
    out, _ = jax.eval_shape(
        lambda p: make.apply({"params": p}, *inputs, mutable=["batch_stats"]), params
    )
    assert out.shape == (2, *shape)
    side = 3 if shape[0] == 28 else shape[0] // 16
    assert params["Dense_0"]["kernel"].shape == (100, side * side * width)
    assert params["Embed_0"]["embedding"].shape == (10, 100)


@pytest.mark.very_slow
def test_both_steps_go_down_their_own_loss(federation):
    _, clients, auxiliary = federation
    game, state = new_game(auxiliary)
    victim, others = clients.x[0], clients.x[1:].reshape(-1, *SHAPE)

    def repeated(step, state, times, key):
        after = jax.jit(
            lambda s: jax.lax.fori_loop(
                0, times, lambda i, s: step(s, jax.random.fold_in(key, i)), s
            )
        )
        return after(state)

    def discriminator_step(state, key):
        return generative.discriminator_step(game, state, key, (victim, others))

    def generator_step(state, key):
        return generative.generator_step(game, state, key, True)

    after = repeated(discriminator_step, state, 60, jax.random.key(2))
    fakes = generators.generate(
        game.make, state.networks.generator, auxiliary.y[:20], auxiliary.y[:20], jax.random.key(3)
    )
    assert judged(after, auxiliary.x).real.mean() > judged(after, fakes).real.mean() + 1
    assert judged(after, victim).identity.mean() > judged(after, others).identity.mean() + 1
    assert (
        largest_difference(after.networks.generator, state.networks.generator) == 0
    )  # the discriminator's step is its own
    made = repeated(generator_step, after, 40, jax.random.key(4))
    assert largest_difference(made.networks.shared, after.networks.shared) == 0
    labels, identity = jnp.arange(40) % 2, (jnp.arange(40) // 2) % 2

    def real(s):
        return judged(
            after,
            generators.generate(
                game.make, s.networks.generator, labels, identity, jax.random.key(5)
            ),
        ).real.mean()

    assert real(made) > real(after)


@pytest.mark.slow
def test_what_is_generated_for_the_victim_can_be_told_from_what_is_the_victims(federation):
    _, clients, auxiliary = federation
    game, state = new_game(auxiliary)
    images = clients.x[0], clients.x[1:].reshape(-1, *SHAPE)
    alike = images[0], images[0]

    @jax.jit
    def better(weight, identified):
        doubting = dataclasses.replace(
            game, settings=dataclasses.replace(SETTINGS, adversarial_identity_weight=weight)
        )
        keys = jax.random.split(jax.random.key(2), 60)
        return jax.lax.scan(
            lambda s, key: (generative.discriminator_step(doubting, s, key, identified), None),
            state,
            keys,
        )[0]

    def identity(state, x):
        return float(judged(state, x).identity.mean())

    labels, wanted = jnp.arange(80) % 2, jnp.arange(80) // 40
    made = generators.generate(
        game.make, state.networks.generator, labels, wanted, jax.random.key(3)
    )[40:]
    believing, doubting, blind = better(0.0, images), better(1.0, images), better(1.0, alike)
    assert identity(doubting, images[0]) > 1
    assert identity(doubting, images[1]) < -1
    assert (
        identity(doubting, made) < min(identity(believing, made), identity(doubting, images[0])) - 1
    )
    # Where the victim's images are the others' too there is nothing to say of them, though
    # imitations are known.
    assert abs(identity(blind, images[0])) < 0.5
    assert identity(blind, made) < -1


def test_only_what_was_made_for_the_victim_counts_as_imitated():
    logits, made_for = jnp.asarray([2.0, -1.0, 0.5, 3.0]), jnp.asarray([1, 0, 1, 0])
    loss, slope = jax.value_and_grad(generative._not_the_victims)(logits, made_for)
    assert loss == pytest.approx(np.log1p(np.exp([2.0, 0.5])).mean(), rel=1e-6)
    assert np.allclose(slope, [0.5 / (1 + np.exp(-2.0)), 0, 0.5 / (1 + np.exp(-0.5)), 0], atol=1e-6)
    assert generative._not_the_victims(logits, jnp.zeros(4)) == 0


@pytest.mark.very_slow
def test_the_passive_attack_learns_the_victims_identity_and_changes_nothing(federation):
    patterns, clients, auxiliary = federation
    start, key = MODEL.init(jax.random.key(0)), jax.random.key(1)
    run = simulate(MODEL, start, clients, key, federated(60))
    before = jax.tree.map(np.array, (run.received, run.returned))
    victim = jnp.broadcast_to(clients.x[0], (60, *clients.x[0].shape))
    others = jnp.broadcast_to(clients.x[1:].reshape(-1, *SHAPE), (60, 40, *SHAPE))
    found = mgan.mgan_passive(
        MODEL, run.messages(0), victim, others, auxiliary, jax.random.key(2), settings=SETTINGS
    )
    assert found.realness.shape == found.agreement.shape == (60,)

    def brightness(networks, identity):
        """Correlation of what is generated with the others' patterns: the victim's are their
        negatives."""
        labels = jnp.arange(80) % 2
        mixed = jnp.repeat(jnp.asarray([0, 1]), 40)
        images = generators.generate(
            found.make, networks.generator, labels, mixed, jax.random.key(3)
        )
        chosen = np.asarray(mixed) == identity
        pairs = zip(np.asarray(images)[chosen], np.asarray(labels)[chosen], strict=True)
        return np.mean([np.corrcoef(x.ravel(), patterns[k].ravel())[0, 1] for x, k in pairs])

    told_apart = brightness(found.networks, 0) - brightness(found.networks, 1)
    assert told_apart > 0.08
    # Where the victim's representatives are those of the others, there is no identity to learn.
    seen = run.messages(0), others[:, :20], others, auxiliary
    blind = mgan.mgan_passive(MODEL, *seen, jax.random.key(2), settings=SETTINGS)
    assert brightness(blind.networks, 0) - brightness(blind.networks, 1) < told_apart / 2
    # The attack writes to nothing that it reads, and what is recorded for it changes nothing.
    assert largest_difference(before, (run.received, run.returned)) == 0

    def train(settings):
        return compiled_as_by_users(
            lambda everyone: simulate(MODEL, start, everyone, key, settings)
        )(clients)

    watched, unwatched = train(federated(60)), train(federated(60, clients=()))
    assert largest_difference(watched.params, unwatched.params) == 0
    assert largest_difference(watched.received, unwatched.received) == 0


@pytest.mark.very_slow
def test_the_active_attack_leaves_the_others_to_themselves(federation):
    _, clients, auxiliary = federation
    server = mgan.mgan_server(MODEL, 0, auxiliary, jax.random.key(2), settings=SETTINGS)
    start, key = MODEL.init(jax.random.key(0)), jax.random.key(1)
    run = simulate(MODEL, start, clients, key, federated(3), server=server)
    apart = simulate(MODEL, start, clients, key, federated(3), server=IsolatingServer(0))
    assert_same(run.params, apart.params, "others train as beside an isolating server")
    own = run.private
    assert int(own.t) == int(own.victim_rounds) == 3
    assert 0 < float(own.realness) < 1
    assert 0 <= float(own.agreement) <= 1
    # The discriminator has taken steps after the victim's own, and what it has become the victim
    # gets next.
    last = jax.tree.map(lambda a: a[-1], run.messages(0).returned)
    assert largest_difference(own.state.networks.shared, last) > 0
    early = simulate(
        MODEL, start, clients, key, federated(1), server=server
    ).private.state.networks.shared
    assert largest_difference(early, jax.tree.map(lambda a: a[1], run.messages(0).received)) < 1e-6


@pytest.mark.slow
def test_a_client_attacks_through_its_message_alone(federation):
    _, clients, _ = federation
    more = trunk_cnn(SHAPE, CLASSES + 1, widths=(4, 8), strides=(2, 2))
    start, key = more.init(jax.random.key(0)), jax.random.key(1)
    mine = clients.client(2)

    def attacked(rate):
        server = gan_attack(
            more, 2, 1, mine, LocalTraining(rate), jax.random.key(2), settings=SETTINGS
        )
        return simulate(more, start, clients, key, federated(2), server=server)

    still = attacked(0.0)  # an attacker whose message says nothing: a third of the others' step
    honest = simulate(more, start, clients, key, federated(2))
    first = jax.tree.map(lambda a: a[0], honest.returned)
    expected = jax.tree.map(lambda w, v: (w + v[0] + v[1]) / 3, start, first)
    sent = jax.tree.map(lambda a: a[1], still.received)
    assert largest_difference(expected, sent) < 1e-6
    assert largest_difference(attacked(RATE).params, still.params) > 0
    # Padding is nobody's record.
    rows = jnp.arange(20) < 14
    params = []
    for padding in (0.5, jnp.nan):
        padded = dataclasses.replace(
            mine, x=jnp.where(rows[:, None, None, None], mine.x, padding), mask=rows
        )
        server = gan_attack(
            more, 2, 1, padded, LocalTraining(RATE), jax.random.key(2), settings=SETTINGS
        )
        params.append(simulate(more, start, clients, key, federated(2), server=server).params)
    assert largest_difference(*params) == 0
    with pytest.raises(ValueError, match="target=2 must be one of the 2 classes"):
        gan_attack(more, 2, 2, mine, LocalTraining(RATE), key)
    with pytest.raises(ValueError, match=r"data\.x holds .*; images must be in"):
        gan_attack(more, 2, 1, dataclasses.replace(mine, x=mine.x * 200), LocalTraining(RATE), key)


def test_bad_input_is_named(federation):
    _, clients, auxiliary = federation
    key = jax.random.key(0)
    run = simulate(MODEL, MODEL.init(key), clients, key, federated(2))
    images = jnp.zeros((2, 5, *SHAPE))
    with pytest.raises(ValueError, match=r"others has shape \(1, 5, 16, 16, 1\)"):
        mgan.mgan_passive(
            MODEL, run.messages(0), images, images[:1], auxiliary, key, settings=SETTINGS
        )
    with pytest.raises(ValueError, match=r"others has shape .*; it must hold something"):
        mgan.mgan_passive(
            MODEL, run.messages(0), images, images[:, :0], auxiliary, key, settings=SETTINGS
        )
    foreign = dataclasses.replace(auxiliary, y=auxiliary.y + 1)
    with pytest.raises(ValueError, match=r"auxiliary\.y holds the label 2"):
        mgan.mgan_passive(MODEL, run.messages(0), images, images, foreign, key, settings=SETTINGS)
    with pytest.raises(ValueError, match="batch_size=100 is larger than the 60 auxiliary"):
        mgan.mgan_passive(MODEL, run.messages(0), images, images, auxiliary, key)
    with pytest.raises(ValueError, match="out of the generator's reach"):
        generators.generator((30, 30, 1), 2, 16)
    with pytest.raises(ValueError, match="trunk"):
        mgan.mgan_server(mlp(4, (4,), 2), 0, auxiliary, key)
    with pytest.raises(
        ValueError, match=r"categories=\[1\.0, 1\.0\] must be non-negative and sum to 1"
    ):
        mgan.mgan_server(MODEL, 0, auxiliary, key, categories=jnp.ones(2), settings=SETTINGS)
    for changed, message in (({"batch_size": 1}, "even"),):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(SETTINGS, **changed).check(60)
    padded = dataclasses.replace(auxiliary, mask=auxiliary.mask.at[-1].set(False))
    with pytest.raises(ValueError, match="no padding"):
        mgan.mgan_server(MODEL, 0, padded, key, settings=SETTINGS)
    with pytest.raises(ValueError, match="categories has shape"):
        mgan.mgan_server(MODEL, 0, auxiliary, key, categories=jnp.ones(3), settings=SETTINGS)


def test_the_classifier_score_counts_clear_and_different_classes():
    assert classifier_score(jnp.eye(10)) == pytest.approx(10, rel=1e-5)
    assert classifier_score(jnp.tile(jnp.eye(10)[:1], (5, 1))) == pytest.approx(1)
    assert classifier_score(jnp.full((5, 10), 0.1)) == pytest.approx(1, rel=1e-5)
