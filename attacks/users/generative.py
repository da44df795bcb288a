"""mGAN-AI (Song 2020, sections V and VII-C): a generator of one client's data, trained beside
federated learning.

Threat model: the server. The passive attack only looks: it takes every client's updates, and
records of its own that are like the clients' (its test set). The active attack isolates the victim,
who shares its model with the discriminator from then on.

As printed, the paper's losses train the discriminator the wrong way and leave the generator without
a gradient for identity (Eq. 4 and 5): here all are cross-entropies, generated images are judged by
the identity they were made for, and the generator takes the loss that does not saturate. Even so
the generator meets the discriminator's idea of the victim by details that mean nothing: with an
adversarial identity (`adversarial_identity_weight`, beyond the paper) the discriminator also learns
that what is generated for the victim is not the victim's.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from attacks.users.generators import NOISE, Generator, generate
from jaxfl import Model
from jaxfl.domains import Count, NotNegative, Positive, TracedCount
from jaxfl.models import Trunk

Array = jax.Array
MOMENTUM = 0.5
"""Momentum of Adam's first moment (Song 2020, section VII-A)."""


@struct.dataclass
class Adversarial:
    """Settings of the generative attacks. The paper gives Adam's rate and momentum, and that the
    discriminator's epochs grow.

    Attributes:
      width: of the generator (static).
      batch_size: images per step of the discriminator (static); the generator takes twice as many.
      learning_rate: of both Adams.
      growth: rounds after which the discriminator gets one epoch more, from 1 on.
      most_epochs: it never gets more than so many.
      category_weight: of the cross-entropy of the adversary's own records in the discriminator's
        loss, besides what it gets by taking over the shared model; the paper has none (0).
      adversarial_identity_weight: of the cross-entropy that takes images generated for the victim
        for somebody else's, in the discriminator's loss of the passive attack; the others have no
        identity. The paper has none (0).
    """

    width: Count = struct.field(pytree_node=False, default=384)
    batch_size: Count = struct.field(pytree_node=False, default=100)
    learning_rate: Positive = 2e-4
    growth: TracedCount = 10
    most_epochs: TracedCount = 10
    category_weight: NotNegative = 0.0
    adversarial_identity_weight: NotNegative = 0.0

    def check(self, auxiliary: int | None) -> None:
        """Raise `ValueError` on settings that do not go with so many records; None if there are
        none."""
        if self.width % 8 or self.batch_size % 2:
            raise ValueError(
                f"width={self.width} must be a multiple of 8, batch_size={self.batch_size} "
                "even: both are halved"
            )
        if auxiliary is not None and self.batch_size > auxiliary:
            raise ValueError(
                f"batch_size={self.batch_size} is larger than the {auxiliary} auxiliary records"
            )


class Networks(NamedTuple):
    """The networks of mGAN-AI.

    Attributes:
      shared: the classifier, whose trunk all of the discriminator's outputs share.
      real, identity: their last layers, `kernel`, `bias`.
      generator: parameters of the generator.
    """

    shared: Any
    real: Any
    identity: Any
    generator: Any


class State(NamedTuple):
    """Networks and optimisers of the game, between rounds.

    Attributes:
      networks: the networks.
      discriminator, generator: states of their optimisers.
    """

    networks: Networks
    discriminator: Any
    generator: Any


@struct.dataclass
class Game:
    """What an adversary plays with.

    Attributes:
      model: the shared classifier, with a trunk (static).
      make: the generator's module (static).
      x, y: the adversary's own records `[auxiliary, ...]`, in [-1, 1].
      categories: how often the generator is asked for each class `[classes]`, summing to 1.
      settings: see `Adversarial`.
    """

    model: Model = struct.field(pytree_node=False)
    make: Generator = struct.field(pytree_node=False)
    x: Array
    y: Array
    categories: Array
    settings: Adversarial


@jax.jit
def begin(game: Game, shared: Any, key: Array) -> State:
    """Fresh networks around a shared model."""
    keys = jax.random.split(key, 3)
    width = shared[trunk_of(game.model).head]["kernel"].shape[0]
    real, identity = (nn.Dense(1).init(k, jnp.zeros((1, width)))["params"] for k in keys[:2])
    made = game.make.init(keys[2], jnp.zeros((2, NOISE)), *[jnp.zeros(2, int)] * 2)["params"]
    networks = Networks(shared, real, identity, made)
    adam = game_optimizer(game.settings)
    return State(networks, adam.init(discriminator(networks)), adam.init(made))


def game_optimizer(settings: Adversarial) -> optax.GradientTransformation:
    """Adam as the paper has it."""
    return optax.adam(settings.learning_rate, b1=MOMENTUM)


class Discriminator(NamedTuple):
    """The discriminator's parameters.

    Attributes:
      shared: the shared model's.
      real, identity: those of the two heads beside its own.
    """

    shared: Any
    real: Any
    identity: Any


def discriminator(networks: Networks) -> Discriminator:
    """That among the networks of a game."""
    return Discriminator(networks.shared, networks.real, networks.identity)


def trunk_of(model: Model) -> Trunk:
    """The trunk that a model names. Raises `ValueError` if it names none."""
    if model.trunk is None:
        raise ValueError(
            "generative attacks need a model that names its trunk (see jaxfl.trunk_cnn)"
        )
    return model.trunk


class Judged(NamedTuple):
    """What the discriminator says of a batch of images.

    Attributes:
      real, identity: logits `[batch]` of being no fake, and of being the victim's.
      classes: logits `[batch, classes]`.
    """

    real: Array
    identity: Array
    classes: Array


@functools.partial(jax.jit, static_argnames="model")
def judge(model: Model, shared: Any, real: Any, identity: Any, x: Array) -> Judged:
    """What the discriminator says of images `[batch, ...]`; networks as in `Networks`."""
    trunk = trunk_of(model)
    features = trunk.features(shared, x).reshape(len(x), -1)

    def last(head: Any) -> Array:
        return features @ head["kernel"] + head["bias"]

    return Judged(last(real)[:, 0], last(identity)[:, 0], last(shared[trunk.head]))


def draw(game: Game, params: Any, count: int, key: Array) -> tuple[Array, Array, Array]:
    """Generated images `[count, ...]`, their classes, and the identity they were made for."""
    label_key, identity_key, noise_key = jax.random.split(key, 3)
    labels = jax.random.choice(label_key, len(game.categories), (count,), p=game.categories)
    identity = jax.random.bernoulli(identity_key, jnp.float32(0.5), (count,)).astype(int)
    return generate(game.make, params, labels, identity, noise_key), labels, identity


def _bce(logits: Array, target: float | Array) -> Array:
    return optax.sigmoid_binary_cross_entropy(
        logits, jnp.broadcast_to(jnp.asarray(target, logits.dtype), logits.shape)
    ).mean()


def _not_the_victims(logits: Array, made_for: Array) -> Array:
    """Mean cross-entropy to identity 0 of the images that were made for the victim; 0 if there are
    none."""
    losses = optax.sigmoid_binary_cross_entropy(logits, jnp.zeros_like(logits))
    return (losses * made_for).sum() / jnp.maximum(made_for.sum(), 1)


def discriminator_step(
    game: Game, state: State, key: Array, identified: tuple[Array, Array] | None
) -> State:
    """One step down `L_real + L_id` (Song 2020, Eq. 4 and 5), and what `Adversarial` adds to it.

    Args:
      game: what is played with.
      state: networks and optimisers.
      key: draws the batch.
      identified: images of the victim and of others, `[images, ...]` each, half a batch of either
        is drawn; None leaves the identity out, as in the active attack.
    """
    size, settings = game.settings.batch_size, game.settings
    aux_key, fake_key, victim_key, other_key = jax.random.split(key, 4)
    rows = jax.random.choice(aux_key, len(game.x), (size,), replace=False)
    fake, _, made_for = draw(game, state.networks.generator, size, fake_key)
    halves = []
    if identified is not None:
        for k, images in zip((victim_key, other_key), identified, strict=True):
            halves.append(images[jax.random.randint(k, (size // 2,), 0, len(images), jnp.int32)])
    batch = jnp.concatenate([game.x[rows], fake, *halves])

    def loss(discriminator: tuple[Any, Any, Any]) -> Array:
        judged = judge(game.model, *discriminator, batch)
        total = _bce(judged.real[:size], 1) + _bce(judged.real[size : 2 * size], 0)
        named = game.model.loss(judged.classes[:size], game.y[rows]).mean()
        total += settings.category_weight * named
        if identified is not None:
            victims, others = jnp.split(judged.identity[2 * size :], 2)
            total += _bce(victims, 1) + _bce(others, 0)
            total += settings.adversarial_identity_weight * _not_the_victims(
                judged.identity[size : 2 * size], made_for
            )
        return total

    current = discriminator(state.networks)
    updates, optimizer = game_optimizer(settings).update(
        jax.grad(loss)(current), state.discriminator
    )
    shared, real, identity = optax.apply_updates(current, updates)
    return state._replace(
        networks=Networks(shared, real, identity, state.networks.generator), discriminator=optimizer
    )


def generator_step(game: Game, state: State, key: Array, with_identity: bool) -> State:
    """One step down `L_cat - L_real + L_id` (Song 2020, Eq. 5)."""

    def loss(params: Any) -> Array:
        images, labels, identity = draw(game, params, 2 * game.settings.batch_size, key)
        judged = judge(game.model, *discriminator(state.networks), images)
        total = game.model.loss(judged.classes, labels).mean() + _bce(judged.real, 1)
        return total + (_bce(judged.identity, identity) if with_identity else 0.0)

    params = state.networks.generator
    updates, optimizer = game_optimizer(game.settings).update(
        jax.grad(loss)(params), state.generator
    )
    return state._replace(
        networks=state.networks._replace(generator=optax.apply_updates(params, updates)),
        generator=optimizer,
    )


def play(
    game: Game, state: State, key: Array, t: Array, identified: tuple[Array, Array] | None
) -> State:
    """The adversary's part of round `t` (Song 2020, Algorithm 1): epochs of the discriminator, then
    one of the generator."""
    settings = game.settings
    steps = len(game.x) // settings.batch_size
    epochs = jnp.minimum(1 + t // settings.growth, settings.most_epochs)
    d_key, g_key = jax.random.split(key)

    def discriminate(i: Array, state: State) -> State:
        return discriminator_step(game, state, jax.random.fold_in(d_key, i), identified)

    def improve(i: Array, state: State) -> State:
        return generator_step(game, state, jax.random.fold_in(g_key, i), identified is not None)

    state = jax.lax.fori_loop(0, epochs * steps, discriminate, state)
    return jax.lax.fori_loop(0, steps, improve, state)
