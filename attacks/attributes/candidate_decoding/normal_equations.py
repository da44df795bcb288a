"""The least-squares problem of `closed_form` as normal equations, from inner products alone, and
their direct solution."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from optax.tree import vdot

from attacks.attributes.candidate_decoding.constraints import largest_eigenvalue
from attacks.attributes.candidate_decoding.factored_gradients import gradient_differences
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.lapack import after
from jaxfl import Messages, Model

Array = jax.Array
_System = tuple[Array, ...]


@struct.dataclass
class NormalEquations:
    """Least squares over all rounds, each weighted by 1 / |u|^2. With D the gradient differences
    (and, for an unknown rate, the negative update as one more row):

    Attributes:
      gram: D D' `[unknowns, unknowns]`.
      right: D r `[unknowns]`.
      square: r.r, of the right-hand side.
      lengths: mean length of the last candidates' gradients, which is as good as any other's
        `[rounds]`.
    """

    gram: Array
    right: Array
    square: Array
    lengths: Array


def normal_equations(
    model: Model,
    messages: Messages,
    x: Array,
    y: Array,
    learning_rate: float | Array | None,
    members: int | None = None,
    by_round: bool = False,
) -> NormalEquations:
    """The normal equations for the weights of candidates `x [records, K, features]`, `y [records,
    K]`.

    The first candidate is the base; unknowns are the weights of the others, record by record, and
    last the inverse learning rate if that is None, or one for every round. If only `members` of the
    records are the client's, the first candidate stands for absence: its gradient is zero.
    """
    averaged = len(x) if members is None else members
    updates = messages.pseudo_gradient
    rates = np.eye(len(messages)) if by_round else np.ones((len(messages), 1))

    def one_round(received_update: tuple[Any, Any, Array, Array]) -> tuple[_System, Array]:
        received, update, weight, rate = received_update
        differences, base, length = gradient_differences(model, received, x, y, members is not None)
        gram, project = differences.gram(), differences.along
        if learning_rate is not None:
            target = jax.tree.map(lambda u, b: u * averaged / learning_rate - b, update, base)
            system = gram, project(target), vdot(target, target)
            return tuple(weight * a for a in system), length
        scaled = jax.tree.map(lambda u: -averaged * u, update)
        target = jax.tree.map(jnp.negative, base)
        cross = jnp.outer(project(scaled), rate)
        whole = jnp.block(
            [[gram, cross], [cross.T, vdot(scaled, scaled) * jnp.diag(rate).astype(x.dtype)]]
        )
        right = jnp.append(project(target), vdot(scaled, target) * rate)
        return tuple(weight * a for a in (whole, right, vdot(target, target))), length

    def add(total: _System, one: Any) -> tuple[_System, Array]:
        system, length = one_round(one)
        return tuple(a + b for a, b in zip(total, system, strict=True)), length

    size = len(x) * (x.shape[1] - 1) + (rates.shape[1] if learning_rate is None else 0)
    zero = tuple(jnp.zeros(shape, x.dtype) for shape in ((size, size), (size,), ()))
    seen = messages.received, updates, relative_weights(updates), jnp.asarray(rates, x.dtype)
    (gram, right, square), lengths = jax.lax.scan(add, zero, seen)
    return NormalEquations(gram, right, square, lengths)


class Solved(NamedTuple):
    """A ridge solution.

    Attributes:
      unknowns: the solution.
      condition: an estimate of the condition number by power iterations.
      covariance: of all unknowns, up to the noise's variance, when it is asked for: by the same
        factor, after all else (`attacks.lapack`).
      scale: of the unknowns, by which the factor is of a unit diagonal.
      factor: lower Cholesky factor of the matrix so scaled.
    """

    unknowns: Array
    condition: Array
    covariance: Callable[[], Array]
    scale: Array
    factor: Array


def solve(system: NormalEquations, start: Array, ridge: float | Array) -> Solved:
    """The ridge solution around `start`."""
    scale, scaled, (factor, lower) = _factorised(system, ridge)
    right = scale * (system.right - system.gram @ start)
    step = scale * jax.scipy.linalg.cho_solve((factor, lower), right)
    largest = largest_eigenvalue(lambda v: scaled @ v, scale)
    later = after(factor, step), lower
    smallest = largest_eigenvalue(lambda v: jax.scipy.linalg.cho_solve(later, v), scale)

    def spread() -> Array:
        last = after(factor, step, smallest), lower
        return _inverse(last, scale)

    return Solved(start + step, largest * smallest, spread, scale, factor)


def _factorised(system: NormalEquations, ridge: float | Array) -> tuple[Array, Array, Any]:
    """Unknowns of different scale (an inverse rate beside weights) are brought to unit diagonal:
    the scale, the matrix, and its Cholesky factor."""
    scale = jax.lax.rsqrt(jnp.maximum(jnp.diag(system.gram), jnp.finfo(system.gram.dtype).tiny))
    scaled = system.gram * scale[:, None] * scale[None] + ridge * jnp.eye(
        len(scale), dtype=scale.dtype
    )
    return scale, scaled, jax.scipy.linalg.cho_factor(scaled, lower=True)


def covariance(system: NormalEquations, ridge: float | Array) -> Array:
    """Covariance of all unknowns, up to the noise's variance."""
    scale, _, factor = _factorised(system, ridge)
    return _inverse(factor, scale)


def _inverse(factor: tuple[Array, bool], scale: Array) -> Array:
    eye = jnp.eye(len(scale), dtype=scale.dtype)
    return jax.scipy.linalg.cho_solve(factor, eye) * scale[:, None] * scale


def precisions(covariance: Array, records: int, each: int) -> Array:
    """Inverses `[records, each, each]` of the covariances of each record's unknowns, which come
    first."""
    blocks = covariance[: records * each, : records * each].reshape(records, each, records, each)
    of_records = jnp.moveaxis(jnp.diagonal(blocks, 0, 0, 2), -1, 0)
    return solve_small(
        of_records, jnp.broadcast_to(jnp.eye(each, dtype=of_records.dtype), of_records.shape)
    )


def off_whole(
    weights: Array, spread: Callable[[], Array] | None, members: int | None
) -> Array | float:
    """By how much the squared residual grows at least if one weight is to be 0 or 1: where it is
    told how many records are the client's, another number divides all weights. Where no rate is
    told beside so many members, a weight is nothing or the members' share of all. `spread` gives
    the weights' covariance; None proves nothing."""
    if spread is None:
        return 0.0
    covariance = spread()[: len(weights), : len(weights)]
    variances = jnp.diag(covariance)
    absent = weights**2 / variances
    if members is None:
        return jnp.minimum(absent, (weights - 1) ** 2 / variances).max()
    sums = covariance.sum(1)
    apart = weights - weights.sum() / members
    both = variances - 2 * sums / members + sums.sum() / members**2
    return jnp.minimum(absent, apart**2 / both).max()


def solve_small(matrices: Array, right: Array) -> Array:
    """Solutions `[n, k, m]` of many small positive systems `[n, k, k]`, by Gauss and Jordan: see
    `attacks.lapack` for what LAPACK does in batches."""
    size = matrices.shape[1]

    def eliminate(i: int, whole: Array) -> Array:
        row = whole[:, i] / whole[:, i, i, None]
        return (whole - whole[:, :, i, None] * row[:, None]).at[:, i].set(row)

    whole = jnp.concatenate([matrices, right], 2)
    return jax.lax.fori_loop(0, size, eliminate, whole)[:, :, size:]


def squared_residual(system: NormalEquations, solution: Array) -> Array:
    """What a solution leaves of the right-hand side."""
    total = solution @ system.gram @ solution - 2 * solution @ system.right + system.square
    return jnp.maximum(total, 0)
