"""Decoding several unknown columns of a full-batch client at once, by a Gauss-Newton method.

Threat model: as in `attacks.attributes.candidate_decoding.closed_form`, with several unknown
columns and known labels.

With several unknown columns a record's gradient is no longer a sum over columns: its error depends
on all of them. Around the records a guess stands for it is linear to first order, so every pass
solves a linear least-squares problem under the constraints of the weights
(`attacks.attributes.candidate_decoding.constraints`), and the next starts from its answer. Products
with the Jacobian are derivatives of the gradient by the records' features, so no matrix is formed,
whatever the number of columns.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from optax.tree import vdot

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.constraints import (
    largest_eigenvalue,
    minimize_quadratic,
    onto_simplex,
)
from attacks.attributes.candidate_decoding.explanation import judge
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.attributes.knowledge import (
    Knowledge,
    Reconstruction,
    answered,
    check_knowledge,
    erase,
    explained,
)
from attacks.fixed_draws import fixed_key
from attacks.precision import arithmetic, in_type_here
from jaxfl import LocalTraining, Messages, Model
from jaxfl.domains import Count, Positive, checked
from jaxfl.models import mean_loss

Array = jax.Array


@struct.dataclass
class GaussNewton:
    """Settings of `gauss_newton`.

    Attributes:
      learning_rate: the client's step size.
      passes: linearisations (static).
      iterations: of each constrained minimisation (static).
    """

    learning_rate: Positive
    passes: Count = struct.field(pytree_node=False, default=20)
    iterations: Count = struct.field(pytree_node=False, default=40)


@checked
@in_type_here
def gauss_newton(
    model: Model, messages: Messages, knowledge: Knowledge, *, settings: GaussNewton
) -> Reconstruction:
    """Reconstruct unknown columns from the messages of a client that takes one full-batch step a
    round.

    It may end where no single column's change explains more, and is not exact:
    `fit.explained < fit.allowed` says so. While the columns have few values together, `closed_form`
    takes every combination for a candidate, and is exact.

    What it draws comes from a fixed key (`attacks.fixed_draws`).

    Args:
      model: the model that was trained (static).
      messages: the client's messages in the rounds to be used.
      knowledge: any number of unknown columns; known labels.
      settings: see `GaussNewton`.

    Returns:
      A `Reconstruction`; `objective` and `trace` are squared residuals relative to the update, mean
      over rounds that changed the model, of the rounded answer and before each pass.

    Raises:
      ValueError: as `cos_matching`; if labels are unknown.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    if knowledge.y is None:
        raise ValueError("y=None: gauss_newton needs known labels")
    settings = jax.tree.map(lambda a: jnp.asarray(a, knowledge.x.dtype), settings)
    with arithmetic(knowledge.x.dtype, messages, knowledge, settings):
        answer = _gauss_newton(model, messages, knowledge, settings)
    one_step = LocalTraining(settings.learning_rate)
    fit = judge(model, messages, knowledge, answer, one_step, fixed_key())
    return explained("gauss_newton", messages, answer, fit)


@functools.partial(jax.jit, static_argnames="model")
def _gauss_newton(
    model: Model, messages: Messages, knowledge: Knowledge, settings: GaussNewton
) -> Reconstruction:
    base, y = erase(knowledge), jnp.asarray(knowledge.y)
    updates = jax.tree.map(lambda u: u / settings.learning_rate, messages.pseudo_gradient)
    scales = jnp.sqrt(relative_weights(updates))

    def misfit(weights: tuple[Array, ...]) -> Any:
        """Difference between the guess's gradients and the updates, relative to the latter's
        length."""
        x = base
        for column, weight in zip(knowledge.columns, weights, strict=True):
            first, others = column.candidates[0], column.candidates[1:]
            x = x.at[:, column.positions].set(first + weight @ (others - first))

        def one_round(arguments: tuple[Any, Any, Array]) -> Any:
            received, update, scale = arguments
            gradient = jax.grad(lambda p: mean_loss(model, p, x, y))(received)
            return jax.tree.map(lambda g, u: scale * (g - u), gradient, update)

        return jax.lax.map(one_round, (messages.received, updates, scales))

    def one_pass(weights: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], Array]:
        residual, forward = jax.linearize(misfit, weights)
        backward = jax.linear_transpose(forward, weights)

        def slope(at: tuple[Array, ...]) -> tuple[Array, ...]:
            moved = forward(jax.tree.map(jnp.subtract, at, weights))
            return backward(jax.tree.map(jnp.add, moved, residual))[0]

        largest = 1.1 * largest_eigenvalue(lambda v: backward(forward(v))[0], weights)
        # 0 of columns that do not enter the model.
        largest = jnp.maximum(largest, jnp.finfo(largest.dtype).tiny)
        project = functools.partial(jax.tree.map, onto_simplex)
        return minimize_quadratic(slope, weights, project, largest, settings.iterations), vdot(
            residual, residual
        )

    with jax.default_matmul_precision("highest"):
        weights, trace = jax.lax.scan(one_pass, _prior(knowledge), length=settings.passes)
        scores = tuple(map(with_first, weights))
        chosen = tuple(s.argmax(1) for s in scores)
        pairs = zip(chosen, scores, strict=True)
        remaining = misfit(tuple(jax.nn.one_hot(c, s.shape[1])[:, 1:] for c, s in pairs))
        rounds = jnp.maximum((scales > 0).sum(), 1)
        objective = vdot(remaining, remaining) / rounds
    failed = ~(jnp.isfinite(objective) & jnp.isfinite(trace).all())
    return answered(failed, chosen, scores, objective=objective, trace=trace / rounds)


def _prior(knowledge: Knowledge) -> tuple[Array, ...]:
    def start(count: int, prior: Array | None) -> Array:
        weights = jnp.full(count, 1 / count) if prior is None else prior
        return jnp.tile(weights[1:], (len(knowledge.x), 1))

    return tuple(start(len(column.candidates), column.prior) for column in knowledge.columns)
