"""What the views of a transcript (`jaxfl.transcript`) compute, each as one program: an accelerator
takes longer to compile one for every step than for all of it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array


@jax.jit
def of_rounds(models: Any, rows: Array, place: Array | int | None) -> Any:
    """Models of some rounds, leaves `[rounds, ...]`; of leaves `[rounds, clients, ...]` those of
    the client at a place."""
    return jax.tree.map(lambda a: a[rows] if place is None else a[rows, place], models)


@functools.partial(jax.jit, static_argnames="of_many")
def difference(received: Any, returned: Any, *, of_many: bool = False) -> Any:
    """Received models less returned ones, leaves `[rounds, ...]`; `of_many` participants who
    received the same, `[rounds, participants, ...]`."""
    return jax.tree.map(lambda w, v: (w[:, None] if of_many else w) - v, received, returned)


@functools.partial(jax.jit, static_argnames="clients_per_round")
def shuffled(
    key: Array,
    returned: Any,
    rounds: Array,
    who: tuple[Array, Array, Array],
    clients_per_round: int | None,
) -> tuple[Any, Array]:
    """Models of those present, leaves `[rounds, participants, ...]`, in another order every round,
    and the senders' ids `[rounds, participants]`.

    Args:
      key: draws the order.
      returned: by `clients`, leaves `[rounds, clients, ...]`.
      rounds: their numbers `[rounds]`.
      who: `clients [clients]`, all `ids [ids]`, and who took part `[all rounds, ids]`.
      clients_per_round: how many take part in a round; None: all (static).
    """
    clients, ids, participation = who
    places = jnp.argmax(clients[:, None] == ids, axis=1)
    present = participation[rounds][:, places]
    draws = jax.random.uniform(key, present.shape, jnp.float32)
    order = jnp.argsort(jnp.where(present, draws, jnp.inf), axis=1)[:, :clients_per_round]
    models = jax.tree.map(lambda a: jax.vmap(lambda models, o: models[o])(a, order), returned)
    return models, clients[order]
