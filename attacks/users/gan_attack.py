"""The GAN attack (Hitaj, Ateniese, Perez-Cruz 2017), which Song 2020 compares mGAN-AI with.

Threat model: a client. It knows a class that its victim holds and it has not, sees the shared
model, and spoils its own messages: what it generated of that class it trains on as a class of its
own, so that the victim has to teach the model the difference.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from attacks.users.generative import Adversarial, game_optimizer
from attacks.users.generators import NOISE, Generator, generate, generator
from attacks.users.mgan import check_images
from jaxfl import (
    ClientData,
    HonestServer,
    LocalTraining,
    Model,
    Server,
    ServerState,
    local_update,
    mean_loss,
)
from jaxfl.clients import OneClient
from jaxfl.domains import Index, Key, checked

Array = jax.Array


class Attacker(NamedTuple):
    """What the attacking client of `gan_attack` remembers.

    Attributes:
      generator: parameters of its generator.
      optimizer: state of its optimiser.
      key: of the attack.
      t: rounds so far.
    """

    generator: Any
    optimizer: Any
    key: Array
    t: Array


@checked
def gan_attack(
    model: Model,
    attacker: Index,
    target: Index,
    data: OneClient,
    training: LocalTraining,
    key: Key,
    *,
    settings: Adversarial | None = None,
) -> Server:
    """The GAN attack of a client (Hitaj, Ateniese, Perez-Cruz 2017), as a server for `simulate`: an
    honest server, but for the attacker's message, which is made here, where there is a memory. The
    shared model has one class more than the data, the last, by which the attacker calls what it
    generated: so the others have to learn its target class better. Its `private` is an `Attacker`.

    Args:
      model: the shared classifier, of one class more than there are.
      attacker: id of the attacking client.
      target: the class that it wants.
      data: the attacker's records, without client axis, in [-1, 1]; it adds as many images of its
        own.
      training: what the attacker does with them.
      key: draws networks and noise.
      settings: see `Adversarial`.

    Raises:
      ValueError: if the target is none of the classes, or a setting is out of range.
    """
    settings = settings or Adversarial()
    settings.check(None)
    check_images(model, data, (model.classes or 0) - 1, "data")
    fake_class = (model.classes or 0) - 1
    if not 0 <= target < fake_class:
        raise ValueError(
            f"target={target} must be one of the {fake_class} classes; the last is the "
            "attacker's own"
        )
    make = generator(tuple(data.x.shape[1:]), fake_class, settings.width)
    return GanAttackServer(model, make, attacker, target, data, training, key, settings)


@struct.dataclass
class GanAttackServer(Server):
    """See `gan_attack`.

    Attributes:
      model: the shared classifier (static).
      make: the generator's module (static).
      attacker: id of the attacking client.
      target: the class that it wants.
      data: its records.
      training: what it does with them.
      key: of the attack.
      settings: see `Adversarial`.
    """

    model: Model = struct.field(pytree_node=False)
    make: Generator = struct.field(pytree_node=False)
    attacker: Index
    target: Index
    data: OneClient
    training: LocalTraining
    key: Key
    settings: Adversarial

    @property
    def named(self) -> tuple[Any, ...]:
        """The attacker."""
        return (self.attacker,)

    def init(self, params: Any) -> ServerState:
        """The first model, and the attacker's generator."""
        start_key, attack_key = jax.random.split(self.key)
        made = self.make.init(start_key, jnp.zeros((2, NOISE)), *[jnp.zeros(2, int)] * 2)["params"]
        optimizer = game_optimizer(self.settings).init(made)
        private = Attacker(made, optimizer, attack_key, jnp.asarray(0))
        return dataclasses.replace(HonestServer().init(params), private=private)

    def receive(self, state: ServerState, returned: Any, sizes: Array, ids: Array) -> ServerState:
        """As an honest server, but for the attacker's message."""
        private, records = state.private, len(self.data.mask)
        round_key = jax.random.fold_in(private.key, private.t)
        fit_key, fake_key, train_key = jax.random.split(round_key, 3)

        def loss(made: Any, key: Array) -> Array:
            x = self._images(made, 2 * self.settings.batch_size, key)
            return mean_loss(self.model, state.params, x, jnp.full(len(x), self.target))

        steps = max(records // self.settings.batch_size, 1)
        made, optimizer = _fitted(private, loss, fit_key, steps, self.settings)
        spoilt = self._trained_on(self._images(made, records, fake_key), state.params, train_key)
        messages = jax.tree.map(
            lambda models, m: _put(models, m, ids == self.attacker), returned, spoilt
        )
        after = HonestServer().receive(state, messages, sizes, ids)
        return dataclasses.replace(
            after, private=Attacker(made, optimizer, private.key, private.t + 1)
        )

    def _images(self, params: Any, count: int, key: Array) -> Array:
        """So many of the target class, labelled as real."""
        labels, real = jnp.full(count, self.target), jnp.ones(count, int)
        return generate(self.make, params, labels, real, key)

    def _trained_on(self, fakes: Array, params: Any, key: Array) -> Any:
        """The attacker's model, of its own records and of fakes `[records, ...]` beside them."""
        data, fake_class = self.data, (self.model.classes or 0) - 1
        x = jnp.concatenate([data.x, fakes])
        y = jnp.concatenate([data.y, jnp.full(len(fakes), fake_class, data.y.dtype)])
        both = ClientData(x, y, jnp.concatenate([data.mask, data.mask]), jnp.asarray(self.attacker))
        return local_update(self.model, params, both, key, self.training)


def _put(messages: Array, message: Array, at: Array) -> Array:
    """One message in the places `at [clients]` of all `[clients, ...]`."""
    return jnp.where(at.reshape(-1, *[1] * message.ndim), message, messages)


def _fitted(
    attacker: Attacker,
    loss: Callable[[Any, Array], Array],
    key: Array,
    steps: int,
    settings: Adversarial,
) -> tuple[Any, Any]:
    """The attacker's generator and optimiser after steps down a loss of parameters and a key."""
    optimizer = game_optimizer(settings)

    def step(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        made, state = carry
        updates, state = optimizer.update(jax.grad(loss)(made, jax.random.fold_in(key, i)), state)
        return optax.apply_updates(made, updates), state

    return jax.lax.fori_loop(0, steps, step, (attacker.generator, attacker.optimizer))
