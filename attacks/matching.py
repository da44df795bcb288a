"""Gradient matching: how far the update that a guess of the data would cause is from the update
that was seen.

A guess enters as a *virtual update*, either one gradient at the received model
(`Virtual(kind="gradient")`: exact for a client that takes one full-batch step) or the client's own
training simulated on the guess (`Virtual(kind="unrolled")`). Both are differentiable in the guess.

For one gradient of a dense model `cos_matching` computes the same objective by
`attacks.column_matching`, without forming the update.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Num
from optax.tree import vdot

from attacks.fit import moved
from attacks.precision import in_type_here
from jaxfl import LocalTraining, Messages, Model, _check, client_round, mean_loss
from jaxfl.clients import ClientData
from jaxfl.domains import Count, Key, Params, checked
from jaxfl.models import check_labelled, check_parameters
from jaxfl.parallel import map_clients, strategy_here

Array = jax.Array


@checked
def cosine_distance(virtual: Any, observed: Params) -> Num[Array, ""]:
    """`1 - cos` of the angle between two updates, all leaves together (Lyu 2021, Eq. 1 and 4). A
    scalar in [0, 2].

    The distance from a vector of length zero is 1.
    """
    _check.alike("virtual, beside observed,", observed, virtual)
    return 1 - vdot(virtual, observed) * inverse_root(vdot(virtual, virtual)) * inverse_root(
        vdot(observed, observed)
    )


@checked
def squared_distance(virtual: Any, observed: Params) -> Num[Array, ""]:
    """Squared Euclidean distance relative to the observed update's squared length (DLG, Zhu et al.
    2019). A scalar.

    Dividing by the length changes no minimum of a single round and keeps rounds comparable.
    """
    _check.alike("virtual, beside observed,", observed, virtual)
    difference = jax.tree.map(jnp.subtract, virtual, observed)
    return vdot(difference, difference) / jnp.maximum(
        vdot(observed, observed), jnp.finfo(jnp.float32).tiny
    )


def inverse_root(square: Array) -> Array:
    """`1 / sqrt(square)` `[...]`; finite at 0."""
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
    orders: Count = struct.field(pytree_node=False, default=1)
    rounds_per_step: Count | None = struct.field(pytree_node=False, default=None)
    records: Count | None = struct.field(pytree_node=False, default=None)

    def check(self, records: int) -> None:
        """Raise `ValueError` on settings that cannot simulate a client of which so many records are
        guessed."""
        if self.records is not None and self.kind == "unrolled":
            raise ValueError(
                f"records={self.records} needs kind='gradient': unrolled training runs on what is "
                "guessed"
            )

    def scale(self, guessed: int) -> float | Array:
        """Learning rate times steps: what a gradient becomes an update by, where so many records
        are guessed."""
        return self.training.learning_rate * self.training.steps(self.records or guessed)


@checked
def virtual_update(
    model: Model,
    received: Params,
    x: Num[Array, "records ..."],
    y: Num[Array, "records ..."],
    key: Key,
    virtual: Virtual,
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
    check_parameters(model, received, "received")
    check_labelled(model, received, jnp.asarray(x), jnp.asarray(y))
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


@checked
@in_type_here
def matching_objective(
    model: Model,
    messages: Messages,
    x: Num[Array, "records ..."],
    y: Num[Array, "records ..."],
    key: Key,
    virtual: Virtual,
    distance: Callable[[Any, Any], Array] = cosine_distance,
) -> Num[Array, ""]:
    """Mean over rounds of the distance between virtual and observed updates (Lyu 2021, Algorithm 1,
    line 12, with `1 - cos` for `cos`). A scalar, differentiable in `x` and in soft labels `y`.
    Rounds from which the model came back as it went count for nothing, unless all did.

    Args:
      model: the model that was trained (static).
      messages: the client's, of all rounds that count.
      x: a guess of its records `[records, ...]`.
      y: labels `[records]`, or soft ones `[records, classes]`.
      key: draws rounds, batch orders and noise.
      virtual: how the guess's updates come about.
      distance: between a virtual update and an observed one (static).
    """
    check_parameters(model, messages.model_shapes, "messages")
    rounds = (messages.received, messages.pseudo_gradient)
    counts = counting(rounds[1])
    # In place of one that does not count stands one that does: any distance of it is a number.
    some = counts.argmax()
    rounds = jax.tree.map(
        lambda a: jax.vmap(lambda c, r: jnp.where(c > 0, r, a[some]))(counts, a), rounds
    )
    round_key, order_key = jax.random.split(key)
    count = len(messages)
    if virtual.rounds_per_step is not None and virtual.rounds_per_step < count:
        chosen = jax.random.choice(round_key, count, (virtual.rounds_per_step,), replace=False)
        rounds, counts = jax.tree.map(lambda a: a[chosen], (rounds, counts))
        count = virtual.rounds_per_step

    def one_round(arguments: tuple[Any, Array, Array]) -> Array:
        (received, observed), counts, key = arguments
        value = distance(virtual_update(model, received, x, y, key, virtual), observed)
        if jnp.shape(value):
            raise ValueError(f"distance gives an array of shape {jnp.shape(value)}, not a number")
        return counts * value

    keys = jax.random.split(order_key, count)
    total = map_clients(one_round, (rounds, counts, keys), strategy_here()).sum()
    return total / jnp.maximum(counts.sum(), 1)


def counting(updates: Any) -> Array:
    """1 for every round that counts, 0 for one that tells nothing `[rounds]`, of updates with
    leaves `[rounds, ...]`: the model came back as it went, from this round and not from all."""
    changed = moved(updates)
    counts = jnp.where(changed.any(), changed, True)
    return counts.astype(jnp.result_type(*jax.tree.leaves(updates)))


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
