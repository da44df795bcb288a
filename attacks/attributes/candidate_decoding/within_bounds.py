"""Least squares of `closed_form` within the bounds of weights."""

import functools

import jax
import jax.numpy as jnp

from attacks.attributes.candidate_decoding.decoded import Decoded, decoded
from attacks.attributes.candidate_decoding.solution import Solution
from attacks.attributes.knowledge import Knowledge
from attacks.lapack import once

Array = jax.Array


def within_bounds(
    solution: Solution,
    answer: Decoded,
    short: Array,
    knowledge: Knowledge,
    absence: bool,
) -> tuple[Decoded, Array]:
    """The answer, or that of weights within all bounds where it falls short: of equations that
    hardly tell records apart, the solution without bounds is rounding that the bounds rule out.
    It is taken even where it explains less after it was rounded: where both are partly wrong, it
    names more. Then whether it is the one within bounds."""
    matrix, solve = solution.matrix, solution.within
    if matrix is None or solve is None:
        return answer, jnp.zeros((), bool)

    def again(tried: tuple[Decoded, Array]) -> tuple[Decoded, Array]:
        answer, _ = tried
        weights = solve(matrix.right)
        bounded = decoded(knowledge, weights.reshape(len(knowledge.x), -1), None, None, absence)
        sound = jnp.isfinite(weights).all()
        kept = jax.tree.map(functools.partial(jnp.where, sound), bounded, answer)
        return kept, sound

    return once(short, again, (answer, jnp.zeros((), bool)))
