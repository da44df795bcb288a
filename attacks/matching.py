"""Gradient matching: how far the update that a guess of the data would cause is from the update
that was seen.

A guess enters as a *virtual update*, either one gradient at the received model
(`virtual="gradient"`: exact for a client that takes one full-batch step) or the client's own
training simulated on the guess (`virtual="unrolled"`). Both are differentiable in the guess.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct
from optax.tree import vdot

from jaxfl import LocalTraining, Messages, Model, _check, client_round, mean_loss
from jaxfl.clients import ClientData
from jaxfl.federated import map_clients, strategy_here

Array = jax.Array


def cosine_distance(virtual: Any, observed: Any) -> Array:
    """`1 - cos` of the angle between two updates, all leaves together (Lyu 2021, Eq. 1 and 4). A
    scalar in [0, 2].

    The distance from a vector of length zero is 1.
    """
    return 1 - vdot(virtual, observed) * _inverse_root(vdot(virtual, virtual)) * _inverse_root(
        vdot(observed, observed)
    )


def squared_distance(virtual: Any, observed: Any) -> Array:
    """Squared Euclidean distance relative to the observed update's squared length (DLG, Zhu et al.
    2019). A scalar.

    Dividing by the length changes no minimum of a single round and keeps rounds comparable.
    """
    difference = jax.tree.map(jnp.subtract, virtual, observed)
    return vdot(difference, difference) / jnp.maximum(
        vdot(observed, observed), jnp.finfo(jnp.float32).tiny
    )


def _inverse_root(square: Array) -> Array:
    return jax.lax.rsqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))


@struct.dataclass
class Virtual:
    """How a guess of the client's data becomes an update.

    Attributes:
      kind: "gradient", the gradient of the mean loss at the received model, times learning rate and
        steps; or "unrolled", the client's training simulated from the received model (static).
      training: the client's recipe, known to the server that prescribed it. The gradient needs only
        its scale.
      orders: simulated runs in fresh batch orders, averaged ("unrolled" only, static).
      rounds_per_step: rounds drawn at random for each evaluation, or None for all (static).
      records: of the client, from which its number of steps follows; None: as many as are guessed
        ("gradient" only, static).
    """

    kind: Literal["gradient", "unrolled"] = struct.field(pytree_node=False, default="gradient")
    training: LocalTraining = LocalTraining()
    orders: int = struct.field(pytree_node=False, default=1)
    rounds_per_step: int | None = struct.field(pytree_node=False, default=None)
    records: int | None = struct.field(pytree_node=False, default=None)

    def check(self, records: int) -> None:
        """Raise `ValueError` on settings that cannot simulate a client of which so many records are
        guessed."""
        _check.one_of(("gradient", "unrolled"), kind=self.kind)
        _check.positive_integer(orders=self.orders)
        if self.rounds_per_step is not None:
            _check.positive_integer(rounds_per_step=self.rounds_per_step)
        if self.records is not None:
            _check.positive_integer(records=self.records)
            if self.kind == "unrolled":
                raise ValueError(
                    f"records={self.records} needs kind='gradient': unrolled training runs on "
                    "what is guessed"
                )
        self.training.check(self.records or records)

    def scale(self, guessed: int) -> float | Array:
        """Learning rate times steps: what a gradient becomes an update by, where so many records
        are guessed."""
        return self.training.learning_rate * self.training.steps(self.records or guessed)


def check_virtual(virtual: Any, records: int) -> None:
    """`Virtual.check`, after checking that it is a `Virtual`."""
    _check.instance(Virtual, virtual=virtual)
    virtual.check(records)


def virtual_update(
    model: Model, received: Any, x: Array, y: Array, key: Array, virtual: Virtual
) -> Any:
    """The pseudo-gradient that a client with records `x [records, ...]`, `y [records, ...]` would
    have caused.

    Args:
      model: the model (static).
      received: the model the client received.
      x: guessed inputs.
      y: guessed labels, integers or class probabilities.
      key: draws batch orders ("unrolled" only).
      virtual: see `Virtual`.

    Returns:
      A pytree like `received`, positive along the gradient (Lyu 2021, Eq. 3).
    """
    chex.assert_equal_shape_prefix((x, y), 1)
    if virtual.kind == "gradient":
        scale = virtual.scale(len(x))
        return jax.tree.map(
            lambda g: scale * g, jax.grad(lambda p: mean_loss(model, p, x, y))(received)
        )

    data = ClientData(x, y, jnp.ones(len(x), bool), jnp.asarray(0))

    @jax.checkpoint
    def run(order_key: Array) -> Any:
        returned = client_round(model, received, data, order_key, virtual.training)
        return jax.tree.map(jnp.subtract, received, returned)

    updates = jax.lax.map(run, jax.random.split(key, virtual.orders))
    return jax.tree.map(lambda u: u.mean(0), updates)


def matching_objective(
    model: Model,
    messages: Messages,
    x: Array,
    y: Array,
    key: Array,
    virtual: Virtual,
    distance: Callable[[Any, Any], Array] = cosine_distance,
) -> Array:
    """Mean over rounds of the distance between virtual and observed updates (Lyu 2021, Algorithm 1,
    line 12, with `1 - cos` for `cos`). A scalar, differentiable in `x` and in soft labels `y`."""
    rounds = (messages.received, messages.pseudo_gradient)
    round_key, order_key = jax.random.split(key)
    count = len(messages)
    if virtual.rounds_per_step is not None and virtual.rounds_per_step < count:
        chosen = jax.random.choice(round_key, count, (virtual.rounds_per_step,), replace=False)
        rounds, count = jax.tree.map(lambda a: a[chosen], rounds), virtual.rounds_per_step

    def one_round(arguments: tuple[Any, Array]) -> Array:
        (received, observed), key = arguments
        return distance(virtual_update(model, received, x, y, key, virtual), observed)

    return map_clients(
        one_round, (rounds, jax.random.split(order_key, count)), strategy_here()
    ).mean()


def column_objective(
    model: Model, messages: Messages, erased: Array, positions: Array
) -> Callable[[Array, Array], Array]:
    """`matching_objective` for the cosine and `virtual="gradient"` as a function of a few columns,
    many times cheaper.

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
    first, *others = layers.names
    records, features = erased.shape
    updates = messages.pseudo_gradient
    kernel, update = (layers.parameters(tree, first) for tree in (messages.received, updates))
    zeros = jnp.zeros(kernel["kernel"].shape[::2], erased.dtype)
    bias = "bias" in kernel

    def apart(tree: Any, names: list[str]) -> list[Any]:
        return [layers.parameters(tree, name) for name in names]

    constants = (
        erased @ kernel["kernel"] + kernel.get("bias", zeros)[:, None],
        erased @ update["kernel"] + update.get("bias", zeros)[:, None],
        kernel["kernel"][:, positions],
        update["kernel"][:, positions],
        apart(updates, others),
        jax.vmap(vdot)(updates, updates),
        messages.received,
    )
    by_gram = records < 2 * features  # N^2 h multiplications against 2 N d h
    gram = erased @ erased.T + bias if by_gram else None

    def known_products(errors: Array) -> Array:
        if gram is not None:
            return gram @ errors
        return erased @ (erased.T @ errors) + bias * errors.sum(0)

    def one_round(columns: Array, y: Array, constants: Any) -> tuple[Array, tuple[Array, Array]]:
        known, known_update, weights, weights_update, rest_update, length, params = constants

        def tail(inner: Array, rest: list[Any], y: Array) -> Array:
            outputs, _ = layers.forward(_with(params, others, rest), erased, {}, inner)
            return model.loss(outputs, y).mean()

        inner, rest = known + columns @ weights, apart(params, others)
        errors, rest_gradient = jax.grad(tail, (0, 1))(inner, rest, y)
        products, observed = known_products(errors), known_update + columns @ weights_update
        gradient = columns.T @ errors
        norm = (
            jnp.vdot(errors, products)
            + jnp.vdot(gradient, gradient)
            + vdot(rest_gradient, rest_gradient)
        )
        dot = jnp.vdot(errors, observed) + vdot(rest_gradient, rest_update)
        alpha = _inverse_root(norm) * _inverse_root(length)
        beta = -alpha * dot / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny)
        tangent = alpha * observed + beta * (products + columns @ gradient)
        rest_tangent = jax.tree.map(lambda u, g: alpha * u + beta * g, rest_update, rest_gradient)

        def along(inner: Array, y: Array) -> Array:
            return jax.jvp(lambda s, r: tail(s, r, y), (inner, rest), (tangent, rest_tangent))[1]

        if jnp.issubdtype(y.dtype, jnp.floating):
            by_inner, by_y = jax.grad(along, (0, 1))(inner, y)
        else:
            by_inner, by_y = jax.grad(along)(inner, y), jnp.zeros(())
        by_columns = by_inner @ weights.T + errors @ (alpha * weights_update + beta * gradient).T
        return 1 - dot * alpha, (-by_columns, -by_y)

    def value_and_grad(columns: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
        per_round = map_clients(lambda c: one_round(columns, y, c), constants, strategy_here())
        return jax.tree.map(lambda a: a.mean(0), per_round)

    @jax.custom_vjp
    def objective(columns: Array, y: Array) -> Array:
        return value_and_grad(columns, y)[0]

    def backward(saved: tuple[Array, Array], slope: Array) -> tuple[Array, Any]:
        by_columns, by_y = saved
        # Integer labels have no gradient: JAX wants the zero of its own type for them.
        return slope * by_columns, slope * by_y if by_y.ndim else None

    objective.defvjp(value_and_grad, backward)
    return objective


def _with(params: Any, names: list[str], parts: list[Any]) -> Any:
    """`params` with the parameters of the named layers replaced."""
    for name, part in zip(names, parts, strict=True):
        params = _replace(params, name.split("/"), part)
    return params


def _replace(tree: Any, path: list[str], part: Any) -> Any:
    return part if not path else tree | {path[0]: _replace(tree[path[0]], path[1:], part)}


@struct.dataclass
class Minimum:
    """Where a search ended, and how it went.

    Attributes:
      variables: the best iterate.
      last: the last one, to be preferred where the objective is drawn anew in every step.
      value: objective of the best.
      trace: objective at every iteration `[steps]`.
      gradient_norm: norm of the gradient at every iteration `[steps]`.
    """

    variables: Any
    last: Any
    value: Array
    trace: Array
    gradient_norm: Array


def minimize_adam(
    objective: Callable[[Any, Array], Array],
    start: Any,
    key: Array,
    *,
    steps: int,
    learning_rate: float | Array,
    project: Callable[[Any], Any] = lambda variables: variables,
) -> Minimum:
    """Adam with a cosine decay to zero, keeping the best iterate.

    Args:
      objective: `objective(variables, key) -> scalar`; the key is fresh in every step.
      start: the first iterate, a pytree.
      key: randomness of the objective.
      steps: iterations (static).
      learning_rate: Adam's first step size (traced).
      project: brings an iterate back to where it is allowed to be, after every step.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    def step(
        carry: tuple[Any, Any, Any, Array], t: Array
    ) -> tuple[tuple[Any, Any, Any, Array], tuple[Array, Array]]:
        variables, state, best, least = carry
        value, gradient = jax.value_and_grad(objective)(variables, jax.random.fold_in(key, t))
        better = value < least  # False for NaN
        best = jax.tree.map(functools.partial(jnp.where, better), variables, best)
        updates, state = optimizer.update(gradient, state, variables)
        carry = (
            project(optax.apply_updates(variables, updates)),
            state,
            best,
            jnp.where(better, value, least),
        )
        return carry, (value, optax.tree.norm(gradient))

    carry = start, optimizer.init(start), start, jnp.asarray(jnp.inf)
    (last, _, best, least), (trace, norms) = jax.lax.scan(step, carry, jnp.arange(steps))
    return Minimum(best, last, least, trace, norms)


def minimize_lbfgs(
    objective: Callable[[Any], Array], start: Any, *, evaluations: int, memory: int = 20
) -> Minimum:
    """L-BFGS with a zoom line search, within a budget of evaluations, keeping the best iterate.

    Args:
      objective: `objective(variables) -> scalar`, deterministic.
      start: the first iterate, a pytree.
      evaluations: evaluations of objective and gradient together (static). A line search that
        crosses the budget is finished but its result is not used.
      memory: number of past steps kept (static).

    Returns:
      `trace` and `gradient_norm` are indexed by evaluations used so far; NaN where the line search
      was at work.
    """
    search = optax.scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")
    optimizer = optax.lbfgs(memory_size=memory, linesearch=search)
    value_and_grad = optax.value_and_grad_from_state(objective)

    def unfinished(carry: Any) -> Array:
        _, _, _, _, used, _, _, going = carry
        return (used < evaluations) & going

    def step(carry: Any) -> Any:
        variables, state, best, least, used, trace, norms, _ = carry
        value, gradient = value_and_grad(variables, state=state)
        norm = optax.tree.norm(gradient)
        trace, norms = (a.at[used].set(b, mode="drop") for a, b in ((trace, value), (norms, norm)))
        better = value < least
        best = jax.tree.map(functools.partial(jnp.where, better), variables, best)
        updates, state = optimizer.update(
            gradient, state, variables, value=value, grad=gradient, value_fn=objective
        )
        moved = optax.apply_updates(variables, updates)
        used = used + jnp.maximum(state[-1].info.num_linesearch_steps, 1)
        # A search that ends where it began has reached the precision of the arithmetic.
        going = jnp.isfinite(value) & (optax.tree.norm(updates) > 0)
        return moved, state, best, jnp.where(better, value, least), used, trace, norms, going

    empty = jnp.full(evaluations, jnp.nan)
    carry = (
        start,
        optimizer.init(start),
        start,
        jnp.asarray(jnp.inf),
        jnp.asarray(0),
        empty,
        empty,
        jnp.asarray(True),
    )
    last, _, best, least, _, trace, norms, _ = jax.lax.while_loop(unfinished, step, carry)
    return Minimum(best, last, least, trace, norms)
