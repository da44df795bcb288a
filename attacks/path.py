"""The path that a client's model takes during local training, as far as its message tells: a
straight line.

A client that takes K steps of plain SGD returns the received model less a sum of K gradients. To
second order in the path's length that sum is K times one gradient, taken at the path's centre.

Under any optimiser that is linear in gradients and parameters, as SGD with momentum and weight
decay is, the sum is weighted: a gradient that many later steps repeat counts for more.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import LocalTraining, Messages, _check

Array = jax.Array


class LocalPath(NamedTuple):
    """The steps of a client's path, by a recipe whose optimiser is linear.

    Attributes:
      weights: with what weight a step's gradient enters the update, in units of the learning rate
        `[steps]`; 1 under plain SGD.
      places: what fraction of the path lies before each step, if all gradients are alike `[steps]`.
    """

    weights: Array
    places: Array

    @property
    def total(self) -> Array:
        """Of all weights: the number of steps under plain SGD."""
        return self.weights.sum()

    @property
    def centre(self) -> Array:
        """The mean place, weighted; (K - 1) / (2 K) under plain SGD."""
        return self.weights @ self.places / self.total


def local_path(training: LocalTraining, records: int) -> LocalPath:
    """The path of a client with so many records. An optimiser that is not linear in gradients and
    parameters is taken for one whose steps are alike."""
    steps = training.steps(records)
    if training.optimizer is optax.sgd or not _check.is_linear(training.optimizer):
        return LocalPath(jnp.ones(steps), jnp.arange(steps) / steps)
    rate = jnp.asarray(training.learning_rate, jnp.result_type(float))
    optimizer = training.optimizer(rate)

    def step(carry: tuple[Array, Any], gradient: Array) -> tuple[tuple[Array, Any], Array]:
        place, state = carry
        change, new_state = optimizer.update(gradient, state, place)
        return (place + change, new_state), place

    def path(gradients: Array) -> tuple[Array, Array]:
        start = jnp.zeros(())
        (last, _), places = jax.lax.scan(step, (start, optimizer.init(start)), gradients)
        return last, places

    alike = jnp.ones(steps)
    (last, places), back = jax.vjp(path, alike)
    (weights,) = back((jnp.ones(()), jnp.zeros(steps)))
    return LocalPath(-weights / rate, places / last)


def on_path(received: Any, update: Any, fraction: float | Array) -> Any:
    """The model that a client has after a fraction of its steps, if its path is straight.

    Args:
      received: the model that the client received, any pytree of arrays.
      update: received minus returned, a pytree like it.
      fraction: 0 for the received model, 1 for the returned one.
    """
    return jax.tree.map(lambda w, u: w - fraction * u, received, update)


def path_centre(received: Any, update: Any, steps: int) -> Any:
    """The centre of a local path of K steps, theta + (K - 1) / (2 K) (returned - theta); arguments
    as for `on_path`."""
    return on_path(received, update, (steps - 1) / (2 * steps))


def at_path_centres(messages: Messages, steps: int) -> Messages:
    """The same pseudo-gradients, as if their models had been received at the centres of the local
    paths of so many steps."""
    centre = path_centre(messages.received, messages.pseudo_gradient, steps)
    returned = jax.tree.map(lambda c, u: c - u, centre, messages.pseudo_gradient)
    return Messages(centre, returned, messages.rounds)
