"""Calls of LAPACK that may wait for each other for ever are told from those that have an order."""

import jax
import jax.numpy as jnp
import pytest

from attacks.lapack import after
from benchmarks.harness.call_order import unordered


def solve(matrix, right):
    return jax.scipy.linalg.solve(matrix, right, assume_a="pos")


def two_beside(matrix, right):
    return solve(matrix, right), jnp.linalg.eigh(matrix)[0]


def one_after_another(matrix, right):
    factor = jax.scipy.linalg.cho_factor(matrix)
    return jax.scipy.linalg.cho_solve(factor, jax.scipy.linalg.cho_solve(factor, right))


def ordered(matrix, right):
    solved = solve(matrix, right)
    return solved, jnp.linalg.eigh(after(matrix, solved))[0]


def in_a_loop_beside(matrix, right):
    looped = jax.lax.fori_loop(0, 3, lambda _, r: solve(matrix, r), right)
    return looped, solve(matrix, right)


def two_inside_of_a_loop(matrix, right):
    return jax.lax.fori_loop(0, 3, lambda _, r: sum(two_beside(matrix, r)), right)


def two_inside_of_a_jit(matrix, right):
    return jax.jit(two_beside)(matrix, right)


def apart_in_a_jit(matrix, right):
    """What the second call needs of the program that holds the first needs no call."""
    solved, plain = jax.jit(lambda m, r: (solve(m, r), r + 1))(matrix, right)
    return solved, solve(matrix, plain)


def the_transpose_needs_another_call(matrix, right):
    """What a solve's derivative would need is no need of the solve."""
    other = jnp.linalg.eigh(matrix)[0]
    return jax.lax.custom_linear_solve(
        lambda x: matrix @ x,
        right,
        lambda _, b: jax.scipy.linalg.solve_triangular(matrix, b),
        lambda _, b: b + other,
    ), other


def added_at_a_place(matrix, right):
    factor = jax.scipy.linalg.cho_factor(matrix)
    solved = jax.scipy.linalg.cho_solve(factor, right)
    return jax.scipy.linalg.cho_solve(factor, solved.at[0].add(1))


def traced(function, *batch):
    matrices = jnp.broadcast_to(jnp.eye(3), (*batch, 3, 3))
    mapped = function
    for _ in batch:
        mapped = jax.vmap(mapped)
    return jax.jit(mapped).trace(matrices, jnp.ones((*batch, 3))).jaxpr


@pytest.mark.parametrize("function", [one_after_another, ordered, added_at_a_place])
def test_calls_with_an_order_are_none(function):
    assert unordered(traced(function, 2)) == []


@pytest.mark.parametrize(
    "function",
    [
        two_beside,
        in_a_loop_beside,
        two_inside_of_a_loop,
        two_inside_of_a_jit,
        apart_in_a_jit,
        the_transpose_needs_another_call,
    ],
)
def test_calls_beside_each_other_are_named(function):
    assert unordered(traced(function, 2))
    assert unordered(traced(function, 2, 2))
    assert not unordered(traced(function))  # of one matrix each no call waits
    assert not unordered(traced(function, 1))


def test_after_a_nan_comes_nan():
    assert jnp.isnan(after(jnp.ones(2), jnp.asarray([1.0, jnp.nan]))).all()
    assert (after(jnp.ones(2), jnp.ones(3), jnp.zeros(())) == 1).all()
