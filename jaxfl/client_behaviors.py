"""What clients do that do not follow the protocol: climb the loss, send their update inverted, or
send nothing of their own."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import _check
from jaxfl.clients import ClientData
from jaxfl.models import Model
from jaxfl.training import LocalTraining, local_update

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Behavior:
    """How a client departs from honest training. Both numbers are traced, so that a behaviour is
    data: clients that differ in it run in one program.

    Attributes:
      gradient: factor on the learning rate. -1 climbs the loss (Kerkouche 2023, gradient ascent
        attack).
      update: factor on the update that is sent. -1 inverts it (Kerkouche 2023, inversion attack), 0
        hides that nothing was done (a free-rider).
    """

    gradient: float | Array = 1.0
    update: float | Array = 1.0

    def check(self, clients: int) -> None:
        """Raise `ValueError` unless both fields are finite numbers, or one for each of so many
        clients."""
        for name in ("gradient", "update"):
            value = getattr(self, name)
            if np.ndim(value):
                _check.shape((clients,), **{f"behavior.{name}": value})
            _check.finite(**{f"behavior.{name}": value})

    def among(self, misbehaving: Any) -> "Behavior":
        """This behaviour of the clients where `misbehaving [clients]` is True, and honesty of the
        others."""
        return Behavior(
            jnp.where(misbehaving, self.gradient, 1.0), jnp.where(misbehaving, self.update, 1.0)
        )


def behave(
    model: Model,
    params: Any,
    data: ClientData,
    key: Array,
    training: LocalTraining,
    behavior: Behavior,
) -> Any:
    """What a client returns: `local_update` for honest ones.

    Args:
      model: the model (static).
      params: the received model.
      data: one client, without client axis.
      key: as for `local_update`.
      training: what an honest client does.
      behavior: see `Behavior`; two scalars.
    """
    dtype = jnp.result_type(*jax.tree.leaves(params))
    gradient, factor = (jnp.asarray(a, dtype) for a in (behavior.gradient, behavior.update))
    training = dataclasses.replace(training, learning_rate=training.learning_rate * gradient)
    trained = local_update(model, params, data, key, training)
    return jax.tree.map(lambda w, v: w + factor * (v - w), params, trained)
