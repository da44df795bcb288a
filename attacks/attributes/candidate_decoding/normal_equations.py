"""The least-squares problem of `closed_form` as normal equations, from inner products alone, and
their direct solution."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree
from optax.tree import vdot

from attacks.attributes.candidate_decoding.candidates import (
    difference_jacobian,
    first_inputs,
    input_products,
    split,
)
from attacks.attributes.candidate_decoding.constraints import largest_eigenvalue
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.lapack import after
from jaxfl import Messages, Model
from jaxfl.models import inputs_and_errors

Array = jax.Array
_Products = tuple[Array, Callable[[Any], Array], Any]


@struct.dataclass
class NormalEquations:
    """Least squares over all rounds, each weighted by 1 / |u|^2. With D the gradient differences
    (and, for an unknown rate, the negative update as one more row):

    Attributes:
      gram: D D' `[unknowns, unknowns]`.
      right: D r `[unknowns]`.
      square: r.r, of the right-hand side.
    """

    gram: Array
    right: Array
    square: Array


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
    products = _layer_products if model.layers is not None else _jacobian_products
    inputs = first_inputs(model, x, y, jax.tree.map(lambda a: a[0], messages.received))

    rates = np.eye(len(messages)) if by_round else np.ones((len(messages), 1))

    def one_round(received_update: tuple[Any, Any, Array, Array]) -> NormalEquations:
        received, update, weight, rate = received_update
        gram, project, base = products(model, received, x, y, inputs, members is not None)
        if learning_rate is not None:
            target = jax.tree.map(lambda u, b: u * averaged / learning_rate - b, update, base)
            return NormalEquations(
                weight * gram, weight * project(target), weight * vdot(target, target)
            )
        scaled = jax.tree.map(lambda u: -averaged * u, update)
        target = jax.tree.map(jnp.negative, base)
        cross = jnp.outer(project(scaled), rate)
        whole = jnp.block(
            [[gram, cross], [cross.T, vdot(scaled, scaled) * jnp.diag(rate).astype(x.dtype)]]
        )
        right = jnp.append(project(target), vdot(scaled, target) * rate)
        return NormalEquations(weight * whole, weight * right, weight * vdot(target, target))

    def add(total: NormalEquations, one: Any) -> tuple[NormalEquations, None]:
        return jax.tree.map(jnp.add, total, one_round(one)), None

    size = len(x) * (x.shape[1] - 1) + (rates.shape[1] if learning_rate is None else 0)
    zero = NormalEquations(
        jnp.zeros((size, size), x.dtype), jnp.zeros(size, x.dtype), jnp.zeros((), x.dtype)
    )
    seen = messages.received, updates, relative_weights(updates), jnp.asarray(rates, x.dtype)
    total = jax.lax.scan(add, zero, seen)[0]
    # Once, not in every round: a transposed copy takes as long as some products of this size.
    return dataclasses.replace(total, gram=(total.gram + total.gram.T) / 2)


def _layer_gram(products: Any, bias: bool, error: Array, difference: Array) -> Array:
    """One layer's share of a matrix whose symmetric part is the Gram matrix, from products of its
    inputs (`input_products`), the other candidates' errors, and by how much they differ from the
    first's."""
    same, across, both = products
    mixed = 2 * across * (difference @ error.T)
    return (same + bias) * (difference @ difference.T) + mixed + both * (error @ error.T)


def _layer_products(
    model: Model, params: Any, x: Array, y: Array, entering: Any, absence: bool
) -> _Products:
    """A matrix whose symmetric part is the Gram matrix of the gradient differences, their products
    with a target, and the base's gradient, by layers; `entering`: of the first layer's inputs, as
    by `first_inputs`."""
    layers = model.layers
    assert layers is not None
    records, count = x.shape[:2]
    inputs, errors = inputs_and_errors(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
    if absence:
        errors = jax.tree.map(
            lambda e: e.reshape(records, count, -1).at[:, 0].set(0).reshape(e.shape), errors
        )
    gram = jnp.zeros((records * (count - 1),) * 2, x.dtype)
    parts: dict[str, Any] = {}
    flat: dict[str, dict[str, Array]] = {}
    for name in layers.names:
        bias = "bias" in layers.parameters(params, name)
        if name == layers.names[0]:
            base, difference, products = entering
        else:
            base, _, difference = split(inputs[name], records)
            products = input_products(base, difference, count - 1)
        error0, error1, error_difference = split(errors[name], records)
        gram += _layer_gram(products, bias, error1, error_difference)
        parts[name] = (jnp.repeat(base, count - 1, axis=0), difference, error1, error_difference)
        flat[name] = {"kernel": base.T @ error0} | ({"bias": error0.sum(0)} if bias else {})

    def project(target: Any) -> Array:
        total = jnp.zeros(len(gram), x.dtype)
        for name, (base, difference, error1, error_difference) in parts.items():
            at = layers.parameters(target, name)
            total += (
                (base @ at["kernel"]) * error_difference + (difference @ at["kernel"]) * error1
            ).sum(1)
            if "bias" in at:
                total += error_difference @ at["bias"]
        return total

    def place(path: Any, leaf: Array) -> Array:
        *name, parameter = (part.key for part in path)
        return flat["/".join(name)][parameter]

    return gram, project, jax.tree.map_with_path(place, params)


def _jacobian_products(
    model: Model, params: Any, x: Array, y: Array, entering: Any, absence: bool
) -> _Products:
    """As `_layer_products`, with the gradients written out."""
    jacobian, base = difference_jacobian(model, params, x, y, absence)
    return (
        jacobian @ jacobian.T,
        lambda target: jacobian @ ravel_pytree(target)[0],
        ravel_pytree(params)[1](base),
    )


class Solved(NamedTuple):
    """A ridge solution.

    Attributes:
      unknowns: the solution.
      condition: an estimate of the condition number by power iterations.
      covariance: of all unknowns, up to the noise's variance, when it is asked for: by the same
        factor, after all else (`attacks.lapack`).
    """

    unknowns: Array
    condition: Array
    covariance: Callable[[], Array]


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

    return Solved(start + step, largest * smallest, spread)


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
