"""Canaries: gradients of nobody that a client adds to its differentially private training, so that
an auditor can measure what its messages tell of a single one."""

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Num

from jaxfl.domains import Count, Key, Params, Probability, checked
from jaxfl.models import Model
from jaxfl.plugins.defenses import DPSGD, private_gradient

Array = jax.Array


@struct.dataclass
class Canaries(DPSGD):
    """`DPSGD` of a client that has canaries beside its records: each is a gradient of norm `clip`
    in a direction of its own (Nasr et al. 2023; Andrew et al. 2024).

    The noise protects a canary as it protects a record whose gradient is as long as it may be: with
    full batches the guarantee is the same. In batches canaries are drawn at every step by chance,
    as the accountant assumes of records; these are shuffled. Batches are divided by the number of
    records, as without canaries. Numbers are traced.

    Attributes:
      directions: orthonormal rows `[canaries, parameters]`, in the order of the model's leaves.
      rate: chance that a canary is in the batch of a step: 1 with full batches, else the batch size
        over the number of records.
    """

    directions: Num[Array, "canaries parameters"] = struct.field(kw_only=True)
    rate: Probability = 1.0

    def step_gradient(
        self, model: Model, params: Params, x: Array, y: Array, mask: Array, key: Array
    ) -> Params:
        """The private gradient of the batch, with its canaries."""
        chosen_key, key = jax.random.split(key)
        chosen = jax.random.bernoulli(chosen_key, self.rate, self.directions.shape[:1])
        total, unravel = ravel_pytree(params)
        if self.directions.shape[1] != total.size:
            raise ValueError(
                f"Canaries.directions have {self.directions.shape[1]} numbers, and the model has "
                f"{total.size} parameters"
            )
        canaries = self.clip * (chosen.astype(total.dtype) @ self.directions.astype(total.dtype))
        added = unravel(canaries / jnp.maximum(mask.sum(), 1).astype(total.dtype))
        private = private_gradient(model, params, x, y, mask, key, self)
        return jax.tree.map(jnp.add, private, added)


@checked
def canary_directions(params: Params, key: Key, count: Count) -> Num[Array, "canaries parameters"]:
    """Random orthonormal directions, for `Canaries`.

    Args:
      params: the model's parameters.
      key: draws the directions.
      count: how many; at most half the number of parameters, so that the rest tells how large the
        noise is (static).

    Raises:
      ValueError: if there are more canaries than half the parameters.

    >>> import jax, jaxfl
    >>> params = jaxfl.mlp(8, (16,), 2).init(jax.random.key(0))
    >>> jaxfl.canary_directions(params, jax.random.key(1), 50).shape
    (50, 178)
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    if 2 * count > size:
        raise ValueError(f"count={count} must be at most half of the {size} parameters")
    normal = jax.random.normal(key, (size, count), jnp.float32)
    return jnp.linalg.qr(normal)[0].T
