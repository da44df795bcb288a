"""mGAN-AI, passive and active: the game of `attacks.users.generative` against a transcript or as a
server.

Threat model: as in `attacks.users.generative`.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Num

from attacks.precision import in_type_here
from attacks.users.generative import (
    Adversarial,
    Game,
    Networks,
    State,
    begin,
    discriminator,
    draw,
    judge,
    play,
    trunk_of,
)
from attacks.users.generators import Generator, generator
from jaxfl import ClientData, IsolatingServer, Messages, Model, Server, ServerState, _check
from jaxfl.clients import OneClient
from jaxfl.domains import Index, Key, checked
from jaxfl.models import check_parameters, check_record_shape, zero_rows

Array = jax.Array
LOOK = 2**32 - 1
"""The stream by which a round of the active attack is looked at, apart from its game's."""


@struct.dataclass
class Generated:
    """A trained generator, and how its training went.

    Attributes:
      make: the generator's module.
      networks: all networks at the end.
      realness: probability of being no fake that the discriminator gives to generated images, per
      round `[rounds]`.
      agreement: how often the shared model names the class that was asked for, per round
      `[rounds]`: the paper's stop criterion.
    """

    make: Generator = struct.field(pytree_node=False)
    networks: Networks
    realness: Array
    agreement: Array


@checked
@in_type_here
def mgan_passive(  # noqa: PLR0913 - what the threat model grants, item by item
    model: Model,
    messages: Messages,
    victim: Num[Array, "rounds images ..."],
    others: Num[Array, "rounds other_images ..."],
    auxiliary: OneClient,
    key: Key,
    *,
    categories: Num[Array, "classes"] | None = None,
    settings: Adversarial | None = None,
) -> Generated:
    """mGAN-AI of a server that only looks (Song 2020, Algorithm 1).

    Args:
      model: the shared classifier, with a trunk (static).
      messages: the victim's.
      victim: its representatives in the rounds of the messages `[rounds, images, ...]`.
      others: those of the other clients, together `[rounds, other_images, ...]`.
      auxiliary: the adversary's own records, without client axis, in [-1, 1].
      key: draws networks, batches and noise.
      categories: how often to generate each class `[classes]`; all alike by default.
      settings: see `Adversarial`.

    Raises:
      ValueError: if shapes do not go together, or the model names no trunk.
    """
    settings = settings or Adversarial()
    game = _game(model, auxiliary, categories, settings)
    check_parameters(model, messages.model_shapes, "messages")
    for name, images in (("victim", victim), ("others", others)):
        _check.shape((len(messages), None, *game.x.shape[1:]), **{name: images})
        check_range(name, images)
    networks, traces = _passive(game, messages, victim, others, key)
    # Rectifiers and pooling pass over NaN: what diverged is not to look like an answer.
    seen = jax.tree.leaves((messages, victim, others))
    finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in seen]).all()
    answer = jax.tree.map(lambda a: jnp.where(finite, a, jnp.nan), (networks, traces))
    return Generated(game.make, answer[0], *answer[1])


def _game(
    model: Model, auxiliary: OneClient, categories: Array | None, settings: Adversarial
) -> Game:
    trunk_of(model)
    classes = model.classes or 0
    settings.check(len(auxiliary.x))
    check_images(model, auxiliary, classes, "auxiliary")
    if not _check.is_unseen(auxiliary) and not auxiliary.mask.all():
        raise ValueError("auxiliary must have no padding")
    categories = jnp.full(classes, 1 / classes) if categories is None else jnp.asarray(categories)
    _check.distribution(classes, categories=categories)
    make = generator(tuple(auxiliary.x.shape[1:]), classes, settings.width)
    return Game(model, make, auxiliary.x, auxiliary.y, categories, settings)


def check_images(model: Model, data: ClientData, classes: int, name: str) -> None:
    """Raise `ValueError` unless these are images like the generator's, which the model takes, with
    labels; padding may hold anything."""
    for field, axes in (("x", 4), ("y", 1)):
        shape = np.shape(getattr(data, field))
        if len(shape) != axes or 0 in shape:
            raise ValueError(f"{name}.{field} has shape {shape}; images have {axes} axes")
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    check_record_shape(model, shapes, **{f"{name}.x": np.shape(data.x)[1:]})
    _check.finite(data.mask, **{f"{name}.x": data.x})
    _check.labels(data.y, classes, data.mask, name=f"{name}.y")
    if not _check.is_unseen(data):
        check_range(f"{name}.x", zero_rows(data.x, data.mask))


def check_range(name: str, images: Any) -> None:
    """Raise `ValueError` if images hold numbers that the generator's never do."""
    if _check.is_unseen(images):
        return
    largest = float(np.abs(np.nan_to_num(images)).max(initial=0.0))
    if largest > 1:
        raise ValueError(f"{name} holds {largest:g}; images must be in [-1, 1], as the generator's")


@jax.jit
def _passive(
    game: Game, messages: Messages, victim: Array, others: Array, key: Array
) -> tuple[Networks, tuple[Array, Array]]:
    start_key, key = jax.random.split(key)
    first = jax.tree.map(lambda a: a[0], messages.returned)

    def round_(state: State, given: Any) -> tuple[State, tuple[Array, Array]]:
        received, returned, t, mine, theirs, place = given
        state = state._replace(networks=state.networks._replace(shared=returned))
        play_key, look_key = jax.random.split(jax.random.fold_in(key, place))
        state = play(game, state, play_key, t, (mine, theirs))
        return state, _look(game, state, received, look_key)

    rounds = (
        messages.received,
        messages.returned,
        messages.rounds,
        victim,
        others,
        jnp.arange(len(messages)),
    )
    state, traces = jax.lax.scan(round_, begin(game, first, start_key), rounds)
    return state.networks, traces


def _look(game: Game, state: State, received: Any, key: Array) -> tuple[Array, Array]:
    """`Generated.realness` and `agreement` of a round, by the model that was sent."""
    images, labels, _ = draw(game, state.networks.generator, game.settings.batch_size, key)
    realness = jax.nn.sigmoid(judge(game.model, *discriminator(state.networks), images).real).mean()
    agreement = (game.model.apply(received, images).argmax(-1) == labels).mean()
    return realness.astype(jnp.float32), agreement.astype(jnp.float32)


class Isolated(NamedTuple):
    """What the server of the active attack remembers.

    Attributes:
      state: networks and optimisers; the shared classifier among them is the victim's model.
      key: of the attack.
      t: rounds so far.
      victim_rounds: in how many of them the victim took part. With 0 the game never saw it.
      realness, agreement: as those of `Generated`, of the last round; NaN before the first.
    """

    state: State
    key: Array
    t: Array
    victim_rounds: Array
    realness: Array
    agreement: Array


@checked
def mgan_server(
    model: Model,
    victim: Index,
    auxiliary: OneClient,
    key: Key,
    *,
    categories: Num[Array, "classes"] | None = None,
    settings: Adversarial | None = None,
) -> Server:
    """The active mGAN-AI (Song 2020, section V-D): the victim trains apart, on the model that is
    also the discriminator, and gets it back in every round; the others run FedAvg without it.
    `simulate(..., server=...)` returns `Isolated` as the transcript's `private`.

    Args:
      model: the shared classifier, with a trunk.
      victim: id of the victim.
      auxiliary: the adversary's own records, without client axis, in [-1, 1].
      key: draws networks, batches and noise.
      categories: how often to generate each class `[classes]`; all alike by default.
      settings: see `Adversarial`.
    """
    game = _game(model, auxiliary, categories, settings or Adversarial())
    return MganServer(IsolatingServer(victim), game, key)


@struct.dataclass
class MganServer(Server):
    """See `mgan_server`.

    Attributes:
      apart: trains the victim apart.
      game: what the server plays with.
      key: of the attack.
    """

    apart: IsolatingServer
    game: Game
    key: Key

    personal: ClassVar[bool] = True

    @property
    def named(self) -> tuple[Any, ...]:
        """The victim."""
        return self.apart.named

    def init(self, params: Any) -> ServerState:
        """The first model, and networks around it."""
        start_key, attack_key = jax.random.split(self.key)
        none, unknown = jnp.zeros((), int), jnp.full((), jnp.nan, jnp.float32)
        started = begin(self.game, params, start_key)
        private = Isolated(started, attack_key, none, none, unknown, unknown)
        return dataclasses.replace(self.apart.init(params), private=private)

    def send(self, state: ServerState, client_id: Array) -> Any:
        """The victim's own model, or the others'."""
        return self.apart.send(_isolated(state), client_id)

    def receive(self, state: ServerState, returned: Any, sizes: Array, ids: Array) -> ServerState:
        """The others' models are aggregated; the victim's is played with."""
        private = state.private
        after = self.apart.receive(_isolated(state), returned, sizes, ids)
        before = private.state._replace(
            networks=private.state.networks._replace(shared=after.private)
        )
        key = jax.random.fold_in(private.key, private.t)
        played = play(self.game, before, key, private.t, None)
        sent = private.state.networks.shared
        look = _look(self.game, played, sent, jax.random.fold_in(key, LOOK))
        there = (ids == self.apart.victim).any()
        remembered = Isolated(
            played, private.key, private.t + 1, private.victim_rounds + there, *look
        )
        return dataclasses.replace(after, private=remembered)


def _isolated(state: ServerState) -> ServerState:
    """As `IsolatingServer` keeps it."""
    return dataclasses.replace(state, private=state.private.state.networks.shared)
