"""Quadratics over weights of candidates: of every record, non-negative and with a sum of at
most 1."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.whitening import heights

Array = jax.Array
State = tuple[Array, ...]
INTERIOR, CENTRING, INSIDE = 40, 0.1, 0.995
"""Steps of an interior point, what share of complementarity each aims at, and how far it goes
towards the constraints."""


def onto_simplex(weights: Array) -> Array:
    """Nearest weights `[records, K - 1]` that are non-negative and sum to at most 1 per record."""
    clipped = jnp.maximum(weights, 0)
    onto = jax.vmap(optax.projections.projection_simplex)(weights)
    return jnp.where(clipped.sum(1, keepdims=True) > 1, onto, clipped)


def minimize_quadratic(
    slope: Callable[[Any], Any],
    start: Any,
    project: Callable[[Any], Any],
    largest: Array,
    iterations: int,
) -> Any:
    """Minimise a convex quadratic under constraints, by accelerated projected gradient with
    restarts.

    Args:
      slope: its gradient.
      start: where to begin, a pytree that satisfies the constraints.
      project: onto the constraints.
      largest: a bound on the largest eigenvalue of its matrix.
      iterations: how many (static).

    Source: Beck, Teboulle (2009), FISTA; restarts by O'Donoghue, Candes (2015), gradient scheme.
    """

    def step(carry: tuple[Any, Any, Array], _: None) -> tuple[tuple[Any, Any, Array], None]:
        now, ahead, t = carry
        moved = project(jax.tree.map(lambda a, g: a - g / largest, ahead, slope(ahead)))
        leaves = (jax.tree.leaves(tree) for tree in (ahead, moved, now))
        uphill = sum(jnp.vdot(a - m, m - n) for a, m, n in zip(*leaves, strict=True)) > 0
        later = jnp.where(uphill, 1, (1 + jnp.sqrt(1 + 4 * t**2)) / 2)
        momentum = jnp.where(uphill, 0, (t - 1) / later)
        return (moved, jax.tree.map(lambda m, n: m + momentum * (m - n), moved, now), later), None

    return jax.lax.scan(step, (start, start, jnp.ones_like(largest)), length=iterations)[0][0]


def interior_point(gram: Array, right: Array, records: int, steps: int = INTERIOR) -> Array:
    """Weights `[unknowns]`, non-negative and with a sum of at most 1 per record, under which `w'
    gram w / 2 - right' w` is least, however ill-conditioned it is: a primal-dual method, of as many
    Cholesky factors as steps (static).

    Source: Nocedal, Wright (2006), Numerical Optimization, section 16.6.
    """
    count = len(right) // records

    def summed(w: Array) -> Array:
        return w.reshape(records, count).sum(1)

    def step(carry: State, _: None) -> tuple[State, None]:
        # What is left of each sum is kept, and not taken anew from 1: it may be too small for that.
        w, rest, z, rest_z = carry
        aim = jnp.maximum(CENTRING * (z @ w + rest_z @ rest) / (len(w) + records), least)
        blocks = jnp.kron(jnp.diag(rest_z / rest), jnp.ones((count, count), w.dtype))
        matrix = gram + jnp.diag(z / w) + blocks
        slope = right - gram @ w + aim / w - jnp.repeat(aim / rest, count)
        moved = jax.scipy.linalg.solve(matrix, slope, assume_a="pos")
        rest_moved = -summed(moved)
        duals = aim / w - z - z / w * moved
        rest_duals = aim / rest - rest_z - rest_z / rest * rest_moved
        changes = moved, rest_moved, duals, rest_duals
        far = [
            jnp.where(d < 0, -at / jnp.where(d < 0, d, 1), jnp.inf).min()
            for at, d in zip(carry, changes, strict=True)
        ]
        length = jnp.minimum(1, INSIDE * jnp.stack(far).min())
        after = tuple(at + length * d for at, d in zip(carry, changes, strict=True))
        sound = jnp.stack([(jnp.isfinite(a) & (a > 0)).all() for a in after]).all()
        # At the end rounding may leave a matrix that has no factor; then nothing moves any more.
        return jax.tree.map(lambda a, b: jnp.where(sound, a, b), after, carry), None

    w = jnp.full_like(right, 1 / (count + 1))
    z = jnp.maximum(jnp.abs(gram @ w - right), 1)
    start: State = w, 1 - summed(w), z, jnp.maximum(summed(z), 1)
    least = jnp.finfo(w.dtype).eps * z.mean()  # far below what tells two corners apart
    w = jax.lax.scan(step, start, length=steps)[0][0]
    return jnp.where(jnp.isfinite(gram).all() & jnp.isfinite(right).all(), w, jnp.nan)


def pull(prior: Array, ridge: float | Array) -> Array:
    """By how much the pull towards the prior adds to the precision of unknowns `[unknowns]`;
    arguments as those of `most_likely`."""
    return ridge / jnp.maximum(prior * (1 - prior), 1e-3)


def most_likely(
    gram: Array,
    right: Array,
    prior: Array,
    records: int,
    ridge: float | Array,
    iterations: int | None,
    start: Array | None = None,
) -> tuple[Array, tuple[Array, Array]]:
    """Weights `[unknowns]` under which `w' gram w / 2 - right' w` and the pull towards the prior
    are least; then how far they and their rounding lie above the minimum (`heights`), and the
    rounding.

    Args:
      gram, right: of the quadratic.
      prior: weights of all candidates but every record's first `[unknowns]`.
      records: how many (static).
      ridge: of the pull, relative to the precision of a draw from the prior.
      iterations: of the minimisation (static); None for `interior_point`.
      start: where it begins; at the prior by default.
    """
    precision = pull(prior, ridge)
    gram, right = gram + jnp.diag(precision), right + precision * prior
    if iterations is None:
        weights = interior_point(gram, right, records)
    else:
        weights = minimize_quadratic(
            lambda w: gram @ w - right,
            prior if start is None else start,
            lambda w: onto_simplex(w.reshape(records, -1)).reshape(-1),
            jnp.abs(gram).sum(1).max(),  # bounds the largest eigenvalue
            iterations,
        )
    every = with_first(weights.reshape(records, -1))
    rounded = jax.nn.one_hot(every.argmax(1), every.shape[1], dtype=gram.dtype)[:, 1:].reshape(-1)
    return weights, (jnp.stack(heights(gram, right, prior, weights, rounded)), rounded)


def largest_eigenvalue(apply: Callable[[Any], Any], like: Any, iterations: int = 20) -> Array:
    """Largest eigenvalue of a symmetric, positive operator on pytrees like `like`, from below, by
    power iteration (static `iterations`). The iteration's start is tilted, since equal entries may
    be what the operator takes to zero. `optax.power_iteration` stops by a tolerance, and gives no
    bound from below."""

    def unit(tree: Any) -> tuple[Any, Array]:
        norm = optax.tree.norm(tree)
        return jax.tree.map(lambda a: a / jnp.maximum(norm, jnp.finfo(a.dtype).tiny), tree), norm

    def iterate(_: int, state: tuple[Any, Array]) -> tuple[Any, Array]:
        return unit(apply(state[0]))

    tilted = jax.tree.map(
        lambda a: 1 + jnp.linspace(0, 1, a.size, dtype=a.dtype).reshape(a.shape), like
    )
    return jax.lax.fori_loop(0, iterations, iterate, unit(tilted))[1]
