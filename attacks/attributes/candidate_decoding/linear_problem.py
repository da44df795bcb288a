"""The least-squares problem of `closed_form` as products with a Jacobian that is never formed, for
many unknowns."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from optax.tree import vdot

from jaxfl import Messages, Model

Array = jax.Array


def relative_weights(updates: Any) -> Array:
    """1 / |u|^2 of every round `[rounds]`, of updates with leaves `[rounds, ...]`; 0 where the
    model was returned as received, which no client that trains does."""
    squares = jax.vmap(vdot)(updates, updates)
    return jnp.where(squares > 0, 1 / jnp.where(squares > 0, squares, 1), 0)


def at_one_rate(messages: Messages, relative: Array) -> Messages:
    """The messages as if the rates of all rounds, relative to which these are `[rounds]`, were
    one."""
    returned = jax.tree.map(
        lambda w, u: w - jax.vmap(jnp.divide)(u, relative),
        messages.received,
        messages.pseudo_gradient,
    )
    return dataclasses.replace(messages, returned=returned)


@dataclasses.dataclass(frozen=True)
class LinearProblem:
    """The least-squares problem of `normal_equations` as products, every round divided by its
    update's length.

    Attributes:
      forward: from the unknowns to a pytree like the messages' updates.
      backward: its transpose.
      target: right-hand side.
      gradients: from weights of all candidates `[records, K]` to the sum of their gradients,
        likewise divided.
    """

    forward: Callable[[Array], Any]
    backward: Callable[[Any], Array]
    target: Any
    gradients: Callable[[Array], Any]

    def squared_residual(self, solution: Array) -> Array:
        """What a solution leaves of the right-hand side."""
        residual = jax.tree.map(jnp.subtract, self.forward(solution), self.target)
        return vdot(residual, residual)


def linear_problem(
    model: Model,
    messages: Messages,
    x: Array,
    y: Array,
    learning_rate: float | Array | None,
    members: int | None = None,
    by_round: bool = False,
) -> LinearProblem:
    """As `normal_equations`, for any model: a weighted sum of gradients is the gradient of a
    weighted loss."""
    averaged, count = (len(x) if members is None else members), x.shape[1]
    updates = messages.pseudo_gradient
    scales = jnp.sqrt(relative_weights(updates))
    present = jnp.ones(count, x.dtype).at[0].set(0.0 if members is not None else 1.0)
    flat_x, flat_y = x.reshape(-1, *x.shape[2:]), y.reshape(-1)

    def losses(params: Any) -> Array:
        return model.loss(model.apply(params, flat_x), flat_y).reshape(y.shape) * present

    def gradients(weights: Array) -> Any:
        def one_round(received_scale: tuple[Any, Array]) -> Any:
            received, scale = received_scale
            gradient = jax.grad(lambda p: jnp.vdot(losses(p), weights))(received)
            return jax.tree.map(lambda g: scale * g, gradient)

        return jax.lax.map(one_round, (messages.received, scales))

    base = gradients(jnp.zeros(y.shape, x.dtype).at[:, 0].set(1))
    whole = jax.tree.map(lambda u: averaged * jax.vmap(jnp.multiply)(u, scales), updates)

    def scaled(inverse: Array) -> Any:
        each = inverse if by_round else jnp.broadcast_to(inverse, len(messages))
        return jax.tree.map(lambda u: jax.vmap(jnp.multiply)(each, u), whole)

    def forward(unknowns: Array) -> Any:
        weights, inverse = jnp.split(unknowns, [len(x) * (count - 1)])
        weights = weights.reshape(len(x), -1)
        gradient = gradients(jnp.concatenate([-weights.sum(1, keepdims=True), weights], 1))
        if learning_rate is not None:
            return gradient
        return jax.tree.map(jnp.subtract, gradient, scaled(inverse))

    def backward(residual: Any) -> Array:
        def one_round(received_residual: tuple[Any, Any, Array]) -> Array:
            received, direction, scale = received_residual
            slopes = scale * jax.jvp(losses, (received,), (direction,))[1]
            return (slopes[:, 1:] - slopes[:, :1]).reshape(-1)

        slopes = jax.lax.map(one_round, (messages.received, residual, scales)).sum(0)
        if learning_rate is not None:
            return slopes
        along = -jax.vmap(vdot)(whole, residual)
        return jnp.append(slopes, along if by_round else along.sum())

    known = 0.0 if learning_rate is None else 1 / learning_rate
    target = jax.tree.map(lambda u, b: known * u - b, whole, base)
    return LinearProblem(forward, backward, target, gradients)


def solve_iteratively(
    problem: LinearProblem, start: Array, ridge: float | Array, iterations: int
) -> tuple[Array, Array]:
    """The ridge solution around `start`, by conjugate gradients on the normal equations, and the
    ridge in their units."""
    residual = jax.tree.map(jnp.subtract, problem.target, problem.forward(start))
    right = problem.backward(residual)

    def apply(v: Array) -> Array:
        return problem.backward(problem.forward(v))

    level = (
        ridge
        * jnp.vdot(right, apply(right))
        / jnp.maximum(jnp.vdot(right, right), jnp.finfo(right.dtype).tiny)
    )
    return start + conjugate_gradients(problem, right, level, iterations), level


def conjugate_gradients(
    problem: LinearProblem, right: Array, level: Array, iterations: int
) -> Array:
    """What normal equations of a right-hand side add to the start, with a ridge of that level."""
    tolerance = 1e-8 if right.dtype == jnp.float64 else 1e-5
    step, _ = jax.scipy.sparse.linalg.cg(
        lambda v: problem.backward(problem.forward(v)) + level * v,
        right,
        tol=tolerance,
        maxiter=iterations,
    )
    return step
