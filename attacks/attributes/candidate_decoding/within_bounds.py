"""Least squares of `closed_form` within the bounds of weights."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attacks.attributes.candidate_decoding.decoded import Decoded, decoded, nearest_of
from attacks.attributes.candidate_decoding.linear_problem import LinearProblem
from attacks.attributes.candidate_decoding.read_again import Client, read_again
from attacks.attributes.candidate_decoding.solution import Solution
from attacks.attributes.knowledge import Knowledge
from attacks.lapack import after

Array = jax.Array


def within_bounds(
    solution: Solution,
    client: Client,
    deviation: Array,
    answer: Decoded,
    short: Array,
    knowledge: Knowledge,
    absence: bool,
) -> tuple[Decoded, Array]:
    """The answer, or that of weights within all bounds where it falls short: of equations that
    hardly tell records apart, the solution without bounds is rounding that the bounds rule out.
    It is taken even where it explains less after it was rounded: where both are partly wrong, it
    names more. Then what share of its values would be read again, or NaN."""
    matrix, solve = solution.matrix, solution.within
    if matrix is None or solve is None:
        return answer, jnp.full_like(deviation, jnp.nan)
    candidates_of = nearest_of(len(knowledge.x), None)

    def bounded_again(problem: LinearProblem, truth: Array, noise: Any) -> Array:
        return solve(matrix.gram @ truth + problem.backward(noise))

    def again(tried: tuple[Array, Decoded, Array]) -> tuple[Array, Decoded, Array]:
        weights = solve(matrix.right)
        bounded = decoded(knowledge, weights.reshape(len(knowledge.x), -1), None, None, absence)
        sound = jnp.isfinite(weights).all()
        kept = jax.tree.map(functools.partial(jnp.where, sound), bounded, answer)
        at = kept.rounded, solution.unknowns, after(deviation, kept.rounded)
        stay = read_again(client, *at, bounded_again, candidates_of)
        return jnp.zeros((), bool), kept, stay

    begin = short, answer, jnp.full_like(deviation, jnp.nan)
    # A loop of one step at most: of many clients at once, it is taken where one needs it.
    return jax.lax.while_loop(lambda tried: tried[0], again, begin)[1:]
