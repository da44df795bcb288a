"""Gradient matching where only a few columns are unknown (Lyu 2021, Eq. 4): the same objective as
`attacks.matching`, many times cheaper."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from optax.tree import vdot

from attacks.matching import counting, inverse_root
from jaxfl import Messages, Model
from jaxfl.parallel import map_clients, strategy_here

Array = jax.Array


def column_objective(
    model: Model, messages: Messages, erased: Array, positions: Array
) -> Callable[[Array, Array], Array]:
    """`matching_objective` for the cosine and `Virtual(kind="gradient")`, as a function of a few
    columns, many times cheaper.

    For models whose first layer takes the records (`model.layers.takes_records`). With `x = erased
    + columns`, everything that the known columns contribute is computed once: `S0 = x W`, `P0 = x
    U` (`U` the observed update of that layer) and `K0 = x x' + 1`. With first-layer errors `D` and
    `A` the unknown columns,

        <G, U> = sum D . (P0 + A U_J),      |G|^2 = D . (K0 D) + |A' D|^2,

    and the same with written-out gradients for the small layers behind. The gradient of the cosine
    is the derivative of the loss along `v = dcos/dG`, held fixed, whose first-layer part `x v` is
    again `alpha (P0 + A U_J) + beta (K0 D + A G_J)`.

    Args:
      model: the model (static).
      messages: the client's messages.
      erased: records with zeros in the unknown columns `[records, features]`.
      positions: the unknown columns `[width]`.

    Returns:
      `objective(features [records, width], y) -> scalar`, differentiable (once) in both.
    """
    layers = model.layers
    assert layers is not None
    records, features = erased.shape
    first, *others = layers.names
    updates = messages.pseudo_gradient
    kernel, update = (layers.parameters(tree, first) for tree in (messages.received, updates))
    zeros = jnp.zeros(kernel["kernel"].shape[::2], erased.dtype)
    bias = "bias" in kernel
    rounds = _KnownPart(
        messages.received,
        erased @ kernel["kernel"] + kernel.get("bias", zeros)[:, None],
        erased @ update["kernel"] + update.get("bias", zeros)[:, None],
        kernel["kernel"][:, positions],
        update["kernel"][:, positions],
        [layers.parameters(updates, name) for name in others],
        jax.vmap(vdot)(updates, updates),
    )
    by_gram = records < 2 * features  # N^2 h multiplications against 2 N d h
    gram = erased @ erased.T + bias if by_gram else None
    counts = counting(updates)

    def known_products(errors: Array) -> Array:
        if gram is not None:
            return gram @ errors
        return erased @ (erased.T @ errors) + bias * errors.sum(0)

    def value_and_grad(columns: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
        one_round = functools.partial(_columns_of_round, model, erased, known_products, columns, y)
        per_round = map_clients(one_round, rounds, strategy_here())
        return jax.tree.map(lambda a: jnp.tensordot(counts, a, 1) / counts.sum(), per_round)

    @jax.custom_vjp
    def objective(columns: Array, y: Array) -> Array:
        return value_and_grad(columns, y)[0]

    def backward(saved: tuple[Array, Array], slope: Array) -> tuple[Array, Any]:
        by_columns, by_y = saved
        # Integer labels have no gradient: JAX wants the zero of its own type for them.
        return slope * by_columns, slope * by_y if by_y.ndim else None

    objective.defvjp(value_and_grad, backward)
    return objective


class _KnownPart(NamedTuple):
    """What does not depend on the unknown columns, leaves `[rounds, ...]`: the received model; the
    known columns' products with the first layer's weights, S0, and with its update, P0; the unknown
    columns' rows of both; the other layers' updates; and the squared length of all."""

    received: Any
    inner: Array
    observed: Array
    weights: Array
    update: Array
    others: list[Any]
    length: Array


def _columns_of_round(
    model: Model,
    erased: Array,
    known_products: Callable[[Array], Array],
    columns: Array,
    y: Array,
    known: _KnownPart,
) -> tuple[Array, tuple[Array, Array]]:
    """One round's term of `column_objective`, and its slopes by columns and labels."""
    layers = model.layers
    assert layers is not None
    names = list(layers.names[1:])

    def tail(inner: Array, rest: list[Any], y: Array) -> Array:
        outputs, _ = layers.forward(_with(known.received, names, rest), erased, {}, inner)
        return model.loss(outputs, y).mean()

    inner = known.inner + columns @ known.weights
    rest = [layers.parameters(known.received, name) for name in names]
    errors, rest_gradient = jax.grad(tail, (0, 1))(inner, rest, y)
    products, observed = known_products(errors), known.observed + columns @ known.update
    gradient = columns.T @ errors
    norm = (
        jnp.vdot(errors, products)
        + jnp.vdot(gradient, gradient)
        + vdot(rest_gradient, rest_gradient)
    )
    dot = jnp.vdot(errors, observed) + vdot(rest_gradient, known.others)
    alpha = inverse_root(norm) * inverse_root(known.length)
    beta = -alpha * dot / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny)
    tangent = alpha * observed + beta * (products + columns @ gradient)
    rest_tangent = jax.tree.map(lambda u, g: alpha * u + beta * g, known.others, rest_gradient)

    def along(inner: Array, y: Array) -> Array:
        return jax.jvp(lambda s, r: tail(s, r, y), (inner, rest), (tangent, rest_tangent))[1]

    if jnp.issubdtype(y.dtype, jnp.floating):
        by_inner, by_y = jax.grad(along, (0, 1))(inner, y)
    else:
        by_inner, by_y = jax.grad(along)(inner, y), jnp.zeros(())
    by_columns = by_inner @ known.weights.T + errors @ (alpha * known.update + beta * gradient).T
    return 1 - dot * alpha, (-by_columns, -by_y)


def _with(params: Any, names: list[str], parts: list[Any]) -> Any:
    """`params` with the parameters of the named layers replaced."""
    for name, part in zip(names, parts, strict=True):
        params = _replace(params, name.split("/"), part)
    return params


def _replace(tree: Any, path: list[str], part: Any) -> Any:
    return part if not path else tree | {path[0]: _replace(tree[path[0]], path[1:], part)}
