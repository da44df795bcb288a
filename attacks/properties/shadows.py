"""What a property does to a client's update: shadow clients that have it, and its effect to first
order (Kerkouche 2023, 5).

Threat model: as in `attacks.properties.detectors`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from jaxfl import Behavior, ClientData, LocalTraining, Model, client_round, mean_loss
from jaxfl.domains import TracedFraction
from jaxfl.federated import map_clients

Array = jax.Array
BATCH = 250
"""Records whose loss is differentiated at once; more are no faster on a CPU."""


@struct.dataclass
class Property:
    """What sets some clients apart.

    Attributes:
      behavior: what they do: honest training, but for misbehaving clients.
      target: the record `(x [...], y [])` that they hold, or None.
      rate: fraction of clients that the adversary takes to have the property.
    """

    behavior: Behavior = Behavior()
    target: tuple[Array, Array] | None = None
    rate: TracedFraction = 0.1


def shadow_updates(  # noqa: PLR0913 - a shadow client is all that a real one is
    model: Model,
    params: Any,
    rows: Array,
    has: Array,
    keys: Array,
    prop: Property,
    *,
    x: Array,
    y: Array,
    training: LocalTraining,
    strategy: Any = None,
) -> Array:
    """Pseudo-gradients `[shadows, parameters]` of clients with and without a property, in one
    program.

    Args:
      model: the model (static).
      params: the model they receive.
      rows: the auxiliary records of each `[shadows, records]`; a target takes the place of the
        first.
      has: who has the property, boolean `[shadows]`.
      keys: draw what clients draw `[shadows]`; two that share one differ in the property alone.
      prop: the property.
      x: auxiliary records.
      y: their labels.
      training: the clients' recipe.
      strategy: how they run, as in `Federated` (static).
    """

    def one(arguments: tuple[Array, Array, Array]) -> Array:
        rows, has, key = arguments
        own_x, own_y = x[rows], y[rows]
        if prop.target is not None:
            own_x, own_y = (
                a.at[0].set(jnp.where(has, b, a[0]))
                for a, b in zip((own_x, own_y), prop.target, strict=True)
            )
        data = ClientData(own_x, own_y, jnp.ones(len(rows), bool), jnp.asarray(0))
        conduct = (prop.behavior.among(has),)
        returned = client_round(model, params, data, key, training, conduct)
        return ravel_pytree(jax.tree.map(jnp.subtract, params, returned))[0]

    return map_clients(one, (rows, has, keys), strategy)


def first_order_updates(
    mean: Array, target: Array | None, prop: Property, records: int
) -> tuple[Array, Array]:
    """What mean updates without and with a property are proportional to, to first order.

    Args:
      mean: gradient of records, the mean over them `[parameters]`, or one linear function of it
        `[]`.
      target: likewise of the property's record; None if it has none.
      prop: the property.
      records: records of a client.

    Returns:
      Without and with it, shaped as `mean`.
    """
    pulled = mean if target is None else mean + (target - mean) / records
    return mean, prop.behavior.gradient * prop.behavior.update * pulled


def target_loss(
    model: Model, params: Any, target: tuple[Array, Array], key: Array, masks: int
) -> Array:
    """Loss of one record, the mean over dropout masks `[]`."""
    x, y = (jnp.broadcast_to(a, (masks, *jnp.shape(a))) for a in target)
    return mean_loss(model, params, x, y, key=key)


def slope(model: Model, params: Any, direction: Array, x: Array, y: Array, key: Array) -> Array:
    """Derivative of the mean loss of records along a direction `[parameters]`, with dropout: `[]`.

    Records run in batches of one size, at most `BATCH`; a few that are left over do not count.
    """
    batches = -(-len(x) // BATCH)
    batch = len(x) // batches
    flat, unravel = ravel_pytree(params)
    tangent = unravel(direction.astype(flat.dtype))

    def one(arguments: tuple[Array, Array, Array]) -> Array:
        x, y, key = arguments
        return jax.jvp(lambda p: mean_loss(model, p, x, y, key=key), (params,), (tangent,))[1]

    split = jax.tree.map(
        lambda a: a[: batches * batch].reshape(batches, batch, *a.shape[1:]), (x, y)
    )
    return jax.lax.map(one, (*split, jax.random.split(key, batches))).mean()
