"""What clients do that do not follow the protocol: climb the loss, send their update inverted, or
send nothing of their own."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxfl.domains import EachNumber, Params
from jaxfl.plugins import PerClient, Plugin
from jaxfl.training import LocalTraining

Array = jax.Array


@struct.dataclass
class Behavior(Plugin):
    """How a client departs from honest training. Both numbers are traced: clients that differ in
    them run in one program (see `PerClient`).

    Attributes:
      gradient: factor on the learning rate. -1 climbs the loss (Kerkouche 2023, gradient ascent
        attack).
      update: factor on the update that is sent. -1 inverts it (Kerkouche 2023, inversion attack), 0
        hides that nothing was done (a free-rider).
    """

    gradient: EachNumber = 1.0
    update: EachNumber = 1.0

    def recipe(self, training: LocalTraining) -> LocalTraining:
        """The recipe with its learning rate times `gradient`."""
        return dataclasses.replace(training, learning_rate=training.learning_rate * self.gradient)

    def send(self, update: Params, key: Array) -> Params:
        """`update` times the update."""
        return jax.tree.map(lambda u: jnp.asarray(self.update, u.dtype) * u, update)

    def among(self, misbehaving: Any) -> "Behavior":
        """This behaviour where `misbehaving`, a boolean or booleans `[clients]`, is True; else
        honesty."""
        chosen = jnp.asarray(misbehaving)
        gradient, update = (jnp.where(chosen, a, 1.0) for a in (self.gradient, self.update))
        return Behavior(gradient, update)

    def of(self, misbehaving: Any) -> PerClient:
        """For `Federated.plugins`: this behaviour of the clients where `misbehaving [clients]` is
        True."""
        return PerClient(self.among(misbehaving))
