"""What a property does to a client's update: shadow clients that have it, and its effect to first
order (Kerkouche 2023, 5).

Threat model: as in `attacks.properties.detectors`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Num

from jaxfl import Behavior, ClientData, LocalTraining, Model, _check, client_round, mean_loss
from jaxfl.domains import Probability, TracedFraction
from jaxfl.parallel import map_clients

Array = jax.Array
BATCH = 250
"""Records whose loss is differentiated at once; more are no faster on a CPU."""


@struct.dataclass
class Prevalence:
    """How many of a client's records have an attribute (beyond Kerkouche 2023; the property of
    Melis et al. 2019 and of distribution inference).

    Attributes:
      carriers: which auxiliary records have it, True or 1 `[auxiliary]`.
      without: the expected share of such records among those of a client without the property.
      with_property: likewise of a client with it.
    """

    carriers: Num[Array, "auxiliary"]
    without: Probability
    with_property: Probability

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        _check.zeros_or_ones(**{f"{name}.carriers": self.carriers})
        shares = self.without, self.with_property
        if not any(map(_check.is_unseen, shares)) and shares[0] == shares[1]:
            raise ValueError(
                f"{name}.with_property={self.with_property} is the share without the property; it "
                "sets nobody apart"
            )

    def weights(self, rows: Array) -> tuple[Array, Array]:
        """Weights of auxiliary records `[n]` by their row numbers, for clients without and with the
        property: `[n]` each. A weighted sum is the mean over records of such clients."""
        carries = jnp.asarray(self.carriers, jnp.float32)[rows]
        each, rest = (part / jnp.maximum(part.sum(), 1) for part in (carries, 1 - carries))
        without, with_property = (s * each + (1 - s) * rest for s in self._shares)
        return without, with_property

    def drawn(self, key: Array, rows: Array, size: int) -> tuple[Array, Array]:
        """Records `[size]` of a client without and of one with the property, of the auxiliary
        records `rows`. The two have as many records in common as they can. Records come twice
        where there are too few of a kind."""
        count_key, order_key = jax.random.split(key)
        uniform = jax.random.uniform(count_key, (size,), jnp.float32)
        noise = jax.random.uniform(order_key, rows.shape, jnp.float32)
        carries = jnp.asarray(self.carriers, bool)[rows]
        kinds = []
        for kind in (carries, ~carries):
            first = jnp.argsort(jnp.where(kind, noise, 1 + noise))
            kinds.append(rows[first[jnp.arange(size) % jnp.maximum(kind.sum(), 1)]])
        mine, others = kinds
        counts = [(uniform < share).sum() for share in self._shares]
        without, with_property = (jnp.where(jnp.arange(size) < n, mine, others) for n in counts)
        return without, with_property

    @property
    def _shares(self) -> tuple[Any, Any]:
        return self.without, self.with_property


@struct.dataclass
class Property:
    """What sets some clients apart.

    Attributes:
      behavior: what they do: honest training, but for misbehaving clients.
      target: the record `(x [...], y [])` that they hold, or None.
      rate: fraction of clients that the adversary takes to have the property.
      prevalence: how many of their records have an attribute, or None if as many as of others'.
    """

    behavior: Behavior = Behavior()
    target: tuple[Array, Array] | None = None
    rate: TracedFraction = 0.1
    prevalence: Prevalence | None = None


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
    means: tuple[Array, Array], target: Array | None, prop: Property, records: int
) -> tuple[Array, Array]:
    """What mean updates without and with a property are proportional to, to first order.

    Args:
      means: gradient of records of clients without and with the property, but for its record: the
        mean over them `[parameters]`, or one linear function of it `[]`.
      target: likewise of the property's record; None if it has none.
      prop: the property.
      records: records of a client.

    Returns:
      Without and with it, shaped as each of `means`.
    """
    without, mean = means
    pulled = mean if target is None else mean + (target - mean) / records
    return without, prop.behavior.gradient * prop.behavior.update * pulled


def target_loss(
    model: Model, params: Any, target: tuple[Array, Array], key: Array, masks: int
) -> Array:
    """Loss of one record, the mean over dropout masks `[]`."""
    x, y = (jnp.broadcast_to(a, (masks, *jnp.shape(a))) for a in target)
    return mean_loss(model, params, x, y, key=key)


def slopes(model: Model, params: Any, direction: Array, x: Array, y: Array, key: Array) -> Array:
    """Derivative of each record's loss along a direction `[parameters]`, with dropout: of the first
    records, `[records]` but for a few.

    Records run in batches of one size, at most `BATCH`; a few that are left over do not count.
    """
    batches = -(-len(x) // BATCH)
    batch = len(x) // batches
    flat, unravel = ravel_pytree(params)
    tangent = unravel(direction.astype(flat.dtype))

    def one(arguments: tuple[Array, Array, Array]) -> Array:
        x, y, key = arguments
        losses = lambda p: model.loss(model.apply(p, x, key=key), y)  # noqa: E731
        return jax.jvp(losses, (params,), (tangent,))[1]

    split = jax.tree.map(
        lambda a: a[: batches * batch].reshape(batches, batch, *a.shape[1:]), (x, y)
    )
    return jax.lax.map(one, (*split, jax.random.split(key, batches))).reshape(-1)
