"""What a server does in a round: honest FedAvg, an isolating adversary, or one of your own.

A server of one's own is a frozen record, registered as a pytree, that overrides what it does
differently:

>>> import flax, jax, jax.numpy as jnp, jaxfl
>>> @flax.struct.dataclass
... class Median(jaxfl.Server):
...     step: float
...     def receive(self, state, returned, sizes, ids):
...         middle = jax.tree.map(lambda models: jnp.median(models, 0), returned)
...         moved = jax.tree.map(lambda w, m: w + self.step * (m - w), state.params, middle)
...         return state.replace(params=moved)
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxfl.domains import Index, Number, Optimizer, Params

Array = jax.Array


@struct.dataclass
class ServerState:
    """What a server remembers between rounds.

    Attributes:
      params: the global model.
      optimizer: state of the server's optimiser.
      private: whatever else this server remembers.
    """

    params: Params
    optimizer: Any = ()
    private: Any = ()


class Server:
    """What the server does in a round. An active adversary is a server of one's own. All methods
    run under `jit`, and `send` under `vmap`; a server's numbers are traced.

    Attributes:
      personal: True if clients may receive different models; then transcripts keep what each of
        them received.
    """

    personal: ClassVar[bool] = False

    @property
    def named(self) -> tuple[Any, ...]:
        """Ids of clients that this server singles out; they must exist."""
        return ()

    def init(self, params: Params) -> ServerState:
        """What it remembers before the first round."""
        return ServerState(params)

    def send(self, state: ServerState, client_id: Array) -> Params:
        """The model that this client receives; the global one by default."""
        return state.params

    def receive(
        self, state: ServerState, returned: Params, sizes: Array, ids: Array
    ) -> ServerState:
        """What it remembers after a round.

        Args:
          state: what it remembered before.
          returned: the participants' models `[participants, ...]`.
          sizes: how many records they have `[participants]`.
          ids: who they are `[participants]`.
        """
        raise NotImplementedError


def kind_of(server: Server) -> tuple[Any, ...]:
    """The types of a server and of the servers in it, which `jit` is to tell apart (see
    `jaxfl.plugins.Plugins`)."""
    inner = (kind_of(part) for part in vars(server).values() if isinstance(part, Server))
    return type(server), *inner


@struct.dataclass
class HonestServer(Server):
    """FedAvg (McMahan et al. 2017): everyone receives the global model, the server steps along the
    mean pseudo-gradient.

    Attributes:
      optimizer: `optimizer(learning_rate)` is the server's optax transformation; SGD with rate 1 is
        plain FedAvg (static).
      learning_rate: the server's step size.
      by_size: weight clients by their number of records; otherwise equally (static).
    """

    optimizer: Optimizer = struct.field(pytree_node=False, default=optax.sgd)
    learning_rate: Number = 1.0
    by_size: bool = struct.field(pytree_node=False, default=True)

    def init(self, params: Params) -> ServerState:
        """The first model, and the optimiser's first state."""
        return ServerState(params, self.optimizer(self.learning_rate).init(params))

    def receive(
        self, state: ServerState, returned: Params, sizes: Array, ids: Array
    ) -> ServerState:
        """A step along the mean pseudo-gradient."""
        weights = sizes.astype(jnp.float32) if self.by_size else (sizes > 0).astype(jnp.float32)
        total = weights.sum()

        def pseudo_gradient(received: Array, models: Array) -> Array:
            # Of differences, in float32 at least: half precision holds no large counts, and a mean
            # of equal models is that model.
            wide = jnp.promote_types(jnp.float32, models.dtype)
            shares = (weights / jnp.maximum(total, 1e-12)).astype(wide)
            mean = jnp.tensordot(shares, received.astype(wide) - models.astype(wide), 1)
            return mean.astype(received.dtype)

        mean = jax.tree.map(pseudo_gradient, state.params, returned)
        transformation = self.optimizer(self.learning_rate)
        updates, optimizer = transformation.update(mean, state.optimizer, state.params)
        return ServerState(optax.apply_updates(state.params, updates), optimizer, state.private)


@struct.dataclass
class IsolatingServer(Server):
    """An active adversary that trains the victim apart: it gets its own model back in every round,
    the others run FedAvg among themselves (Lyu 2021, section 3.1, "isolate").

    Attributes:
      victim: id of the isolated client.
      server: how the others are aggregated.
    """

    victim: Index
    server: Server = HonestServer()

    personal: ClassVar[bool] = True

    @property
    def named(self) -> tuple[Any, ...]:
        """The victim."""
        return (self.victim,)

    def init(self, params: Params) -> ServerState:
        """The first model, for the others and for the victim."""
        return dataclasses.replace(self.server.init(params), private=params)

    def send(self, state: ServerState, client_id: Array) -> Params:
        """The victim's own model, or the others'."""
        return jax.tree.map(
            lambda isolated, shared: jnp.where(client_id == self.victim, isolated, shared),
            state.private,
            state.params,
        )

    def receive(
        self, state: ServerState, returned: Params, sizes: Array, ids: Array
    ) -> ServerState:
        """The victim's model is kept as it is, the others' are aggregated."""
        is_victim = ids == self.victim
        isolated = jax.tree.map(
            lambda models, kept: jnp.where(is_victim.any(), models[jnp.argmax(is_victim)], kept),
            returned,
            state.private,
        )
        others = jnp.where(is_victim, 0, sizes)
        after = self.server.receive(state, returned, others, ids)
        return dataclasses.replace(after, private=isolated)
