"""Settings of `closed_form`, and its least squares."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from optax.tree import vdot

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.constraints import interior_point
from attacks.attributes.candidate_decoding.factored_gradients import mean_lengths
from attacks.attributes.candidate_decoding.linear_problem import (
    conjugate_gradients,
    linear_problem,
    solve_iteratively,
)
from attacks.attributes.candidate_decoding.normal_equations import (
    normal_equations,
    solve,
    squared_residual,
)
from attacks.attributes.candidate_decoding.read_again import Client, is_near, read_again
from attacks.attributes.candidate_decoding.resolution import resolved
from attacks.lapack import after, once
from jaxfl import Messages, Model
from jaxfl.domains import Count, NotNegative, Positive

Array = jax.Array

MOST_DIRECT = 8_000
"""Unknowns up to which the normal equations are formed; their matrix takes 512 MB there in float64,
and several are held."""
MOST_BOUNDED = 2_000
"""Unknowns up to which they are solved within bounds, by as many factors as `INTERIOR`."""


@struct.dataclass
class ClosedForm:
    """Settings of `closed_form`.

    Attributes:
      learning_rate: the client's step size, or None if unknown: then it is one more unknown of the
        least squares.
      by_round: the rate is unknown and another in every round, as where clients clip their updates
        or their server plans a schedule (static).
      ridge: added to the normal equations, relative to their diagonal ("direct") or to their size
        along the right-hand side ("cg"); pulls towards the prior.
      solver: "direct" (Cholesky), or "cg" (conjugate gradients on products with the gradients'
        Jacobian, which is never formed, for many unknowns); None: "direct" up to 8,000 unknowns
        (static).
      iterations: at most, of "cg" (static).
      noise: standard deviation of what the client's recipe adds to every number of an update, in
        the update's units, known where the server prescribed it. It changes no answer, but what is
        called a misfit or hidden.
    """

    learning_rate: Positive | None = None
    by_round: bool = struct.field(pytree_node=False, default=False)
    ridge: NotNegative = 1e-12
    solver: Literal["direct", "cg"] | None = struct.field(pytree_node=False, default=None)
    iterations: Count = struct.field(pytree_node=False, default=500)
    noise: NotNegative = 0.0


class Matrix(NamedTuple):
    """The normal equations of least squares whose matrix is formed.

    Attributes:
      gram: their matrix.
      right: their right-hand side.
      covariance: of the unknowns, see `normal_equations.Solved`.
      factor: lower Cholesky factor of the unknowns' precision under noise of deviation 1.
    """

    gram: Array
    right: Array
    covariance: Callable[[], Array]
    factor: Array


class Solution(NamedTuple):
    """Least squares in units of the candidates' gradients, summed.

    Attributes:
      unknowns: the ridge solution.
      condition: condition number of the normal equations, or NaN.
      left: squared residual as a function of the unknowns.
      square: of the right-hand side.
      pull: by how much the ridge may have raised the squared residual.
      lengths: mean length of the gradients of one candidate of every record `[rounds]`.
      matrix: see there; None where no matrix is formed.
      start: where they begin.
      again: the same least squares of other messages: from unknowns, and what noise adds to the
        right-hand side of the normal equations.
      within: from a right-hand side of its equations to the weights that leave least within all
        bounds; None where no matrix is formed, or there are other unknowns, or more than
        `MOST_BOUNDED`.
    """

    unknowns: Array
    condition: Array
    left: Callable[[Array], Array]
    square: Array
    pull: Array
    lengths: Array
    start: Array
    again: Callable[[Array, Array], Array]
    matrix: Matrix | None = None
    within: Callable[[Array], Array] | None = None


def least_squares(
    model: Model,
    settings: ClosedForm,
    candidates: tuple[Array, Array],
    messages: Messages,
    rate: float | Array | None,
    members: int | None,
    start: Array,
) -> Solution:
    """The ridge solution around `start`, of the rate as one more unknown if it is None, or one of
    every round."""
    by_round = settings.by_round and rate is None
    if settings.solver == "direct" or (settings.solver is None and len(start) <= MOST_DIRECT):
        system = normal_equations(model, messages, *candidates, rate, members, by_round)
        solved = solve(system, start, settings.ridge)
        moved = jnp.maximum(jnp.abs(solved.unknowns - start), 1)
        pull = settings.ridge * jnp.vdot(jnp.diag(system.gram), moved**2)
        within = None
        wide = jnp.finfo(system.gram.dtype).bits == 64
        if rate is not None and wide and len(start) <= MOST_BOUNDED:
            records = len(candidates[0])
            within = functools.partial(interior_point, system.gram, records=records)
        left = functools.partial(squared_residual, system)
        estimate = solved.unknowns, solved.condition, left
        of_system = system.square, pull, system.lengths
        factor = solved.factor / solved.scale[:, None]
        matrix = Matrix(system.gram, system.right, solved.covariance, factor)
        again = functools.partial(_solved_again, matrix, start)
        return Solution(*estimate, *of_system, start, again, matrix, within)
    problem = linear_problem(model, messages, *candidates, rate, members, by_round)
    unknowns, level = solve_iteratively(problem, start, settings.ridge, settings.iterations)
    pull = level * jnp.vdot(*[jnp.maximum(jnp.abs(unknowns - start), 1)] * 2)
    square = vdot(problem.target, problem.target)
    x, y = candidates
    lengths = mean_lengths(model, messages.received, x[:, -1], y[:, -1])
    condition = jnp.asarray(jnp.nan)

    def iterated(truth: Array, noise: Array) -> Array:
        right = problem.backward(problem.forward(truth - start)) + noise
        return start + conjugate_gradients(problem, right, level, settings.iterations)

    residual_of = problem.squared_residual
    return Solution(unknowns, condition, residual_of, square, pull, lengths, start, iterated)


def share_resolved(
    solution: Solution,
    client: Client,
    chosen: Array,
    bounded: Array,
    deviation: Array,
    nearest: Callable[[Array], Array],
    many: bool,
) -> Array:
    """See `read_again`, of which the arguments are; `bounded` is whether the answer is that within
    bounds, and `many` (static) whether candidates are many or shortlists: then noise is drawn. Of
    weights that are near enough to the answer nothing is simulated."""
    deviation = deviation.astype(chosen.dtype)
    if many and solution.matrix is not None:
        # Places on lists of their own are no values that could change places.
        return resolved(after(solution.matrix.factor, deviation), chosen, deviation, nearest)
    records = len(client.candidates[0])
    begun, unknowns = (a[: len(chosen)] for a in (solution.start, solution.unknowns))
    all_of = (after(unknowns, deviation), chosen, begun)
    weights = (with_first(a.reshape(records, -1)) for a in all_of)
    near = is_near(*weights) & ~bounded

    def estimate(truth: Array, noise: Array) -> Array:
        free = solution.again(truth, noise)
        within, matrix = solution.within, solution.matrix
        if within is None or matrix is None:
            return free
        return once(bounded, lambda _: within(matrix.gram @ truth + noise), free)

    def again(_: Array) -> Array:
        return read_again(client, chosen, solution.unknowns, deviation, estimate, nearest)

    return once(~near, again, jnp.ones_like(deviation))


def _solved_again(matrix: Matrix, start: Array, truth: Array, noise: Array) -> Array:
    right = matrix.gram @ (truth - start) + noise
    return start + jax.scipy.linalg.cho_solve((matrix.factor, True), right)
