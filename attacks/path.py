"""The path that a client's model takes during local training, as far as its message tells: a
straight line.

A client that takes K steps of plain SGD returns the received model less a sum of K gradients. To
second order in the path's length that sum is K times one gradient, taken at the path's centre.

Under any optimiser that is linear in gradients, alike for all parameters, as SGD with momentum and
weight decay is, the sum is weighted: a gradient that many later steps repeat counts for more.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attacks.fixed_draws import SEED
from attacks.precision import arithmetic
from jaxfl import LocalTraining, Messages

Array = jax.Array
Optimizer = Callable[..., optax.GradientTransformation]
DENSE = {"bias": np.zeros(2), "kernel": np.zeros((2, 2))}
"""Parameters of a dense layer."""
PROBED, SCALES, ALIKE = 16, (1e-3, 1.0, 1e3), 0.03
"""Steps in which an optimiser is looked at, sizes of the gradients, and by how much of itself a
change may differ from what it is of a linear one: weight decay of some parameters alone does."""


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
        """Total of all weights: the number of steps under plain SGD."""
        return self.weights.sum()

    @property
    def centre(self) -> Array:
        """The mean place, weighted; (K - 1) / (2 K) under plain SGD."""
        return self.weights @ self.places / self.total


def local_path(training: LocalTraining, records: int) -> LocalPath:
    """The path of a client with so many records. An optimiser that is not linear (`is_linear`) is
    taken for one whose steps are alike."""
    steps = training.steps(records)
    if training.optimizer is optax.sgd or not is_linear(training.optimizer):
        return LocalPath(jnp.ones(steps), jnp.arange(steps) / steps)
    rate = jnp.asarray(training.learning_rate, jnp.result_type(float))
    return _path(training.optimizer, rate, steps)


def _path(optimizer: Optimizer, rate: Array, steps: int) -> LocalPath:
    """Path of one number that is 0 at first."""
    transformation = optimizer(rate)

    def step(carry: tuple[Array, Any], gradient: Array) -> tuple[tuple[Array, Any], Array]:
        place, state = carry
        change, new_state = transformation.update(gradient, state, place)
        return (place + change, new_state), place

    def path(gradients: Array) -> tuple[Array, Array]:
        start = jnp.zeros((), rate.dtype)
        carry = start, transformation.init(start)
        (last, _), places = jax.lax.scan(step, carry, gradients)
        return last, places

    (last, places), back = jax.vjp(path, jnp.ones(steps, rate.dtype))
    (weights,) = back((jnp.ones_like(last), jnp.zeros_like(places)))
    return LocalPath(-weights / rate, places / last)


def moved_alone(training: LocalTraining, received: Any, records: int) -> Any:
    """Received minus returned model of a client whose gradients are all 0: what weight decay and
    the like do, and what an optimiser that is linear adds to every update."""
    optimizer = training.optimizer(training.learning_rate)
    nothing = jax.tree.map(jnp.zeros_like, received)

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        params, state = carry
        changes, state = optimizer.update(nothing, state, params)
        return (optax.apply_updates(params, changes), state), None

    first = received, optimizer.init(received)
    (last, _), _ = jax.lax.scan(step, first, length=training.steps(records))
    return jax.tree.map(jnp.subtract, received, last)


def check_linear(optimizer: Optimizer, shapes: Any) -> None:
    """Raise `ValueError` unless an optimiser is linear (`is_linear`) on a model of such shapes."""
    if not (is_linear(optimizer) and is_linear(optimizer, shapes)):
        raise ValueError(
            f"optimizer={optimizer!r} is not linear in gradients, alike for all parameters, as "
            "optax.sgd and jaxfl.sgd are: what is read out of messages are sums of gradients"
        )


def is_linear(optimizer: Optimizer, shapes: Any = None) -> bool:
    """Whether a gradient moves every number of a model by itself times a weight that depends on its
    step alone, to within `ALIKE`, as under SGD with momentum and weight decay. Looked at in
    `PROBED` steps of random gradients from small to large.

    Args:
      optimizer: a recipe's.
      shapes: the model's parameters or their shapes, which it may treat apart; a dense layer's with
        None.
    """
    leaves, structure = jax.tree.flatten(DENSE if shapes is None else shapes)
    # Small ones of as many axes, by which parameters are told apart.
    small = tuple(tuple(min(size, 2) for size in leaf.shape) for leaf in leaves)
    return optimizer is optax.sgd or _is_linear(optimizer, small, structure)


@functools.cache
def _is_linear(optimizer: Optimizer, shapes: tuple[Any, ...], structure: Any) -> bool:
    rng = np.random.default_rng(SEED)

    def drawn(*axes: int) -> Any:
        arrays = [rng.normal(size=(*axes, *shape)).astype(np.float32) for shape in shapes]
        return jax.tree.unflatten(structure, arrays)

    start, slopes = drawn(), drawn(PROBED)
    rate = np.asarray(0.1, np.float32)  # of JAX it would be traced inside a `jit`

    def last(gradients: Any) -> Any:
        transformation = optimizer(rate)
        params, state = jax.tree.map(jnp.asarray, start), transformation.init(start)
        for number in range(PROBED):
            gradient = jax.tree.map(lambda a, t=number: jnp.asarray(a[t]), gradients)
            updates, state = transformation.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params

    def alike(scale: float, weights: Array, still: Any) -> bool:
        scaled = jax.tree.map(lambda a: np.float32(scale) * a, slopes)
        moved = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), last(scaled), still)
        told = jax.tree.map(lambda a: -0.1 * np.tensordot(np.asarray(weights), a, 1), scaled)
        pairs = zip(jax.tree.leaves(moved), jax.tree.leaves(told), strict=True)
        return all(np.linalg.norm(m - t) < ALIKE * np.linalg.norm(t) for m, t in pairs)

    try:
        with jax.ensure_compile_time_eval():
            weights = _path(optimizer, jnp.asarray(rate), PROBED).weights
            still = last(jax.tree.map(np.zeros_like, slopes))
            return all(alike(scale, weights, still) for scale in SCALES)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        return False  # it asks of parameters what these are not


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
    return at_place(messages, (steps - 1) / (2 * steps))


def at_place(messages: Messages, place: float | Array) -> Messages:
    """The same pseudo-gradients, as if their models had been received after such a fraction of the
    local paths."""
    widest = np.result_type(*(leaf.dtype for leaf in jax.tree.leaves(messages.received)))
    with arithmetic(widest, messages, place):
        centre = on_path(messages.received, messages.pseudo_gradient, place)
        returned = jax.tree.map(lambda c, u: c - u, centre, messages.pseudo_gradient)
    return Messages(centre, returned, messages.rounds)
