"""What a server does in a round: honest FedAvg, an isolating adversary, or one of your own."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl.domains import Index, Number, check, checked

Array = jax.Array


class ServerState(NamedTuple):
    """What a server remembers between rounds.

    Attributes:
      params: the global model.
      optimizer: state of the server's optimiser.
      private: whatever else this server remembers.
    """

    params: Any
    optimizer: Any
    private: Any = ()


@dataclasses.dataclass(frozen=True)
class Server:
    """What the server does in a round. An active adversary is a server of one's own.

    Attributes:
      init: `init(params) -> ServerState`.
      send: `send(state, client_id) -> params`, the model that this client receives.
      receive: `receive(state, returned [participants, ...], sizes [participants], ids
        [participants]) -> ServerState`.
      personal: True if clients may receive different models; then transcripts keep what each of
        them received.
      named: ids of clients that this server singles out; they must exist.
    """

    init: Callable[[Any], ServerState]
    send: Callable[[ServerState, Array], Any]
    receive: Callable[[ServerState, Any, Array, Array], ServerState]
    personal: bool = False
    named: tuple[int, ...] = ()


@checked
@functools.cache
def honest_server(
    optimizer: Callable[..., optax.GradientTransformation] = optax.sgd,
    learning_rate: float = 1.0,
    by_size: bool = True,
) -> Server:
    """FedAvg (McMahan et al. 2017): everyone receives the global model, the server steps along the
    mean pseudo-gradient.

    Args:
      optimizer: `optimizer(learning_rate)` is the server's optax transformation; SGD with rate 1 is
        plain FedAvg.
      learning_rate: the server's step size (static, a Python number: another one compiles again).
      by_size: weight clients by their number of records; otherwise equally.
    """
    check("learning_rate", learning_rate, Number)
    transformation = optimizer(learning_rate)

    def init(params: Any) -> ServerState:
        return ServerState(params, transformation.init(params))

    def send(state: ServerState, client_id: Array) -> Any:
        return state.params

    def receive(state: ServerState, returned: Any, sizes: Array, ids: Array) -> ServerState:
        weights = sizes.astype(jnp.float32) if by_size else (sizes > 0).astype(jnp.float32)
        total = weights.sum()

        def pseudo_gradient(received: Array, models: Array) -> Array:
            # Of differences, in float32 at least: half precision holds no large counts, and a mean
            # of equal models is that model.
            wide = jnp.promote_types(jnp.float32, models.dtype)
            shares = (weights / jnp.maximum(total, 1e-12)).astype(wide)
            mean = jnp.tensordot(shares, received.astype(wide) - models.astype(wide), 1)
            return mean.astype(received.dtype)

        updates, optimizer_state = transformation.update(
            jax.tree.map(pseudo_gradient, state.params, returned), state.optimizer, state.params
        )
        return ServerState(
            optax.apply_updates(state.params, updates), optimizer_state, state.private
        )

    return Server(init, send, receive)


@checked
@functools.cache
def isolating_server(victim: Index, server: Server | None = None) -> Server:
    """An active adversary that trains the victim apart: it gets its own model back in every round,
    the others run FedAvg among themselves (Lyu 2021, section 3.1, "isolate").

    Args:
      victim: id of the isolated client.
      server: how the others are aggregated; `honest_server()` by default.
    """
    others = server or honest_server()

    def init(params: Any) -> ServerState:
        return others.init(params)._replace(private=params)

    def send(state: ServerState, client_id: Array) -> Any:
        return jax.tree.map(
            lambda isolated, shared: jnp.where(client_id == victim, isolated, shared),
            state.private,
            state.params,
        )

    def receive(state: ServerState, returned: Any, sizes: Array, ids: Array) -> ServerState:
        is_victim = ids == victim
        isolated = jax.tree.map(
            lambda models, kept: jnp.where(is_victim.any(), models[jnp.argmax(is_victim)], kept),
            returned,
            state.private,
        )
        return others.receive(state, returned, jnp.where(is_victim, 0, sizes), ids)._replace(
            private=isolated
        )

    return Server(init, send, receive, personal=True, named=(victim,))
