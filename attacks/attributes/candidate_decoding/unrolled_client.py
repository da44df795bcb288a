"""A client's training as a function of the weights of its records' candidates.

Threat model: as of `attacks.attributes.candidate_decoding.unrolled`, which asks.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.simulated_client import Guess, guess_of, simulated_runs
from jaxfl import LocalTraining, Model, local_update

Array = jax.Array


@struct.dataclass
class UnrolledClient:
    """The client as it is simulated: its candidates `[records, K, features]`, labels, recipe."""

    model: Model = struct.field(pytree_node=False)
    x: Array
    y: Array
    training: LocalTraining

    def guess(self, weights: Array) -> Guess:
        """On weights `[unknowns]` of all candidates but every record's first."""
        scores = with_first(weights.reshape(len(self.x), -1)).astype(self.x.dtype)
        training = dataclasses.replace(self.training, optimizer=_smooth(self.training.optimizer))
        return guess_of(self.model, training, scores, self.x, self.y, lambda: scores)

    def runs(self, received: Any, weights: Array, key: Array, count: int) -> Array:
        """Updates `[count, parameters]` of runs in fresh orders."""
        return simulated_runs(self.guess(weights), received, key, count)

    def update(self, received: Any, weights: Array, key: Array) -> Array:
        """Received minus returned model `[parameters]`."""
        model, data, training = self.guess(weights)
        returned = local_update(model, received, data, key, training)
        return ravel_pytree(jax.tree.map(jnp.subtract, received, returned))[0]

    def derivative(self, received: Any, weights: Array, key: Array) -> Array:
        """Derivative of one run's update by the weights `[unknowns, parameters]`."""
        one_by_one = jnp.eye(len(weights), dtype=weights.dtype)

        def update(w: Array) -> Array:
            return self.update(received, w, key)

        return jax.vmap(lambda t: jax.jvp(update, (weights,), (t,))[1])(one_by_one)


@functools.lru_cache
def _smooth(optimizer: Any) -> Any:
    """An optimiser whose steps have no derivative where it is not finite: Adam's, of a parameter
    that nothing moves, is that of a root at 0."""

    def made(rate: Any) -> optax.GradientTransformation:
        base = optimizer(rate)

        def update(gradients: Any, state: Any, params: Any = None) -> Any:
            return jax.tree.map(_finite_tangent, base.update(gradients, state, params))

        return optax.GradientTransformation(base.init, update)

    return made


@jax.custom_jvp
def _finite_tangent(a: Array) -> Array:
    return a


@_finite_tangent.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (a,), (tangent,) = primals, tangents
    if not jnp.issubdtype(jnp.asarray(a).dtype, jnp.inexact):
        return a, tangent
    return a, jnp.where(jnp.isfinite(tangent), tangent, 0)
