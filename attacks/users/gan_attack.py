"""The GAN attack (Hitaj, Ateniese, Perez-Cruz 2017), which Song 2020 compares mGAN-AI with.

Threat model: a client. It knows a class that its victim holds and it has not, sees the shared
model, and spoils its own messages: what it generated of that class it trains on as a class of its
own, so that the victim has to teach the model the difference.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from attacks.users.generative import Adversarial, game_optimizer
from attacks.users.generators import NOISE, generate, generator
from attacks.users.mgan import check_images
from jaxfl import (
    ClientData,
    LocalTraining,
    Model,
    Server,
    ServerState,
    honest_server,
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
    """The GAN attack of a client (Hitaj, Ateniese, Perez-Cruz 2017), as a plug-in of `simulate`: an
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
    check_images(data, (model.classes or 0) - 1, "data")
    fake_class = (model.classes or 0) - 1
    if not 0 <= target < fake_class:
        raise ValueError(
            f"target={target} must be one of the {fake_class} classes; the last is the "
            "attacker's own"
        )
    make = generator(tuple(data.x.shape[1:]), fake_class, settings.width)
    honest, records = honest_server(), len(data.mask)
    steps = max(records // settings.batch_size, 1)
    images = functools.partial(_images, make, target)

    def init(params: Any) -> ServerState:
        start_key, attack_key = jax.random.split(key)
        made = make.init(start_key, jnp.zeros((2, NOISE)), *[jnp.zeros(2, int)] * 2)["params"]
        private = Attacker(made, game_optimizer(settings).init(made), attack_key, jnp.asarray(0))
        return honest.init(params)._replace(private=private)

    def receive(state: ServerState, returned: Any, sizes: Array, ids: Array) -> ServerState:
        private = state.private
        round_key = jax.random.fold_in(private.key, private.t)
        fit_key, fake_key, train_key = jax.random.split(round_key, 3)

        def loss(made: Any, key: Array) -> Array:
            x = images(made, 2 * settings.batch_size, key)
            return mean_loss(model, state.params, x, jnp.full(len(x), target))

        made, optimizer = _fitted(private, loss, fit_key, steps, settings)
        fakes = images(made, records, fake_key)
        x = jnp.concatenate([data.x, fakes])
        y = jnp.concatenate([data.y, jnp.full(records, fake_class, data.y.dtype)])
        both = ClientData(x, y, jnp.concatenate([data.mask, data.mask]), jnp.asarray(attacker))
        message = local_update(model, state.params, both, train_key, training)
        spoilt = jax.tree.map(lambda models, m: _put(models, m, ids == attacker), returned, message)
        after = honest.receive(state, spoilt, sizes, ids)
        return after._replace(private=Attacker(made, optimizer, private.key, private.t + 1))

    return Server(init, honest.send, receive, named=(attacker,))


def _images(make: Any, target: int, params: Any, count: int, key: Array) -> Array:
    """So many of the target class, labelled as real, by a generator `make` with its parameters."""
    return generate(make, params, jnp.full(count, target), jnp.ones(count, int), key)


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
