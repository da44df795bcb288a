"""Local model reconstruction (LMRA) by made-up records whose gradients explain the messages (beyond
Driouich 2023).

Threat model: as in `attacks.local_models.reconstruction`.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from attacks.local_models.reconstruction import (
    LocalModel,
    _check_held_out,
    _held_out,
    by_chance,
    last_returned,
)
from attacks.matching import Virtual, matching_objective, minimize_adam, squared_distance
from attacks.path import at_path_centres
from attacks.precision import in_type_here
from jaxfl import LocalTraining, Messages, Model, _check
from jaxfl.clients import ClientData
from jaxfl.domains import Count, Fraction, Key, Positive, Shape, TracedCount, checked
from jaxfl.models import check_parameters, check_record_shape
from jaxfl.training import batch_gradient

Array = jax.Array


@struct.dataclass
class PseudoRecords:
    """Settings of `pseudo_records`.

    Attributes:
      training: the client's recipe; its defences are left out, made-up records need none.
      local_records: how many records the client has; tells its local steps, where it trains in
        batches (static).
      records: made-up records (static).
      steps: Adam steps of the fit (static).
      learning_rate: their step size, decayed by a cosine.
      messages_per_step: drawn at random for each step (static).
      virtual: "gradient", at the centre of the client's local path; or "unrolled", through as many
        simulated full-batch steps as the client takes (static).
      finish: at most so many full-batch steps of the client's own rate on the made-up records, from
        the last returned model.
      held_out: fraction of the messages, the last ones, that judge the fit: there the search begins
        (static).
    """

    training: LocalTraining = LocalTraining()
    local_records: Count = struct.field(pytree_node=False, default=1)
    records: Count = struct.field(pytree_node=False, default=128)
    steps: Count = struct.field(pytree_node=False, default=800)
    learning_rate: Positive = 0.05
    messages_per_step: Count = struct.field(pytree_node=False, default=4)
    virtual: Literal["gradient", "unrolled"] = struct.field(pytree_node=False, default="gradient")
    finish: TracedCount = 4000
    held_out: Fraction = struct.field(pytree_node=False, default=0.1)


@checked
@in_type_here
def pseudo_records(
    model: Model,
    messages: Messages,
    key: Key,
    record_shape: Shape,
    *,
    settings: PseudoRecords | None = None,
) -> LocalModel:
    """Fit made-up records whose gradient is the client's at all observed models, then train on
    them. Beyond Driouich 2023.

    Training stops where nothing is left to follow but the fit's error (the discrepancy principle,
    Morozov 1966): of held-out updates' energy the fit misses a part e, so that a gradient whose
    square is below e / (1 - e) of that at the last returned model may be error alone. With e of one
    half or more, as from small batches' noise, the last returned model is the answer.

    Args:
      model: the model (static).
      messages: the client's, at least ten rounds.
      key: draws the start and the messages of every step.
      record_shape: shape of one record, whose numbers should be of order one (static).
      settings: see `PseudoRecords`.

    Raises:
      ValueError: if there are fewer than ten rounds, a setting is out of range, the model takes no
        such records, the client has fewer than its batch, or gradients stand for the updates of
        another optimiser than SGD.
    """
    settings = settings or PseudoRecords()
    if len(messages) < 10:
        raise ValueError(
            f"messages holds {len(messages)} rounds; fitting and checking records needs at least 10"
        )
    check_parameters(model, messages.model_shapes, "messages")
    check_record_shape(model, messages.model_shapes, record_shape=record_shape)
    if settings.virtual == "gradient":
        _check.plain_sgd(settings.training.optimizer)
    _check_held_out(settings.held_out, len(messages))
    settings = dataclasses.replace(settings, training=settings.training.without())
    return _pseudo_records(model, messages, key, settings, tuple(record_shape))


@functools.partial(jax.jit, static_argnames=("model", "record_shape"))
def _pseudo_records(
    model: Model,
    messages: Messages,
    key: Array,
    settings: PseudoRecords,
    record_shape: tuple[int, ...],
) -> LocalModel:
    fit_key, finish_key = jax.random.split(key)
    data, unexplained = _fit_records(model, messages, fit_key, settings, record_shape)
    last = last_returned(messages)
    params, steps = _descend(model, last, data, finish_key, settings, unexplained)
    finite = jnp.stack([jnp.isfinite(a).all() for a in jax.tree.leaves(params)]).all()
    kept = (steps == 0) | ~finite
    params = jax.tree.map(functools.partial(jnp.where, kept), last, params)
    updates = jax.vmap(lambda u: ravel_pytree(u)[0])(messages.pseudo_gradient)
    chance = by_chance(unexplained, updates, _held_out(settings.held_out, len(messages)))
    return LocalModel(params, unexplained, kept, chance)


def _descend(
    model: Model,
    start: Any,
    data: ClientData,
    key: Array,
    settings: PseudoRecords,
    unexplained: Array,
) -> tuple[Any, Array]:
    """Steps on the made-up records until their gradient may be the fit's error alone, and how many
    were taken."""
    optimizer = settings.training.optimizer(settings.training.learning_rate)

    def gradient(params: Any, step: Array) -> Any:
        step_key = jax.random.fold_in(key, step)
        return batch_gradient(model, params, data.x, data.y, data.mask, step_key, settings.training)

    first = gradient(start, jnp.asarray(0))
    least = (
        unexplained
        / jnp.maximum(1 - unexplained, jnp.finfo(unexplained.dtype).tiny)
        * optax.tree.norm(first, squared=True)
    )

    def more(carry: tuple[Any, Any, Any, Array]) -> Array:
        _, _, slope, step = carry
        return (step < settings.finish) & (optax.tree.norm(slope, squared=True) > least)

    def one(carry: tuple[Any, Any, Any, Array]) -> tuple[Any, Any, Any, Array]:
        params, state, slope, step = carry
        updates, state = optimizer.update(slope, state, params)
        params = optax.apply_updates(params, updates)
        return params, state, gradient(params, step + 1), step + 1

    params, _, _, steps = jax.lax.while_loop(
        more, one, (start, optimizer.init(start), first, jnp.asarray(0))
    )
    return params, steps


def _fit_records(
    model: Model,
    messages: Messages,
    key: Array,
    settings: PseudoRecords,
    record_shape: tuple[int, ...],
) -> tuple[ClientData, Array]:
    """Made-up records, and the part of the held-out updates' energy that their gradients miss."""
    steps = settings.training.steps(settings.local_records)
    start_key, fit_key, score_key = jax.random.split(key, 3)
    held = _held_out(settings.held_out, len(messages))
    # Full-batch steps on the made-up records: their number is the client's, their order means
    # nothing.
    simulated = dataclasses.replace(settings.training, epochs=steps, batch_size=None)
    virtual = Virtual(settings.virtual, simulated, rounds_per_step=settings.messages_per_step)
    seen = at_path_centres(messages, steps) if settings.virtual == "gradient" else messages
    fitted, checked = (
        jax.tree.map(lambda a: a[:-held], seen),
        jax.tree.map(lambda a: a[-held:], seen),
    )

    def labels(free: Array) -> Array:
        return free[:, 0] if model.classes is None else jax.nn.softmax(free)

    def objective(free: tuple[Array, Array], key: Array) -> Array:
        x, y = free
        return matching_objective(model, fitted, x, labels(y), key, virtual, squared_distance)

    x_key, y_key = jax.random.split(start_key)
    start = (
        jax.random.normal(x_key, (settings.records, *record_shape), jnp.float32),
        jax.random.normal(y_key, (settings.records, model.classes or 1), jnp.float32),
    )
    minimum = minimize_adam(
        objective, start, fit_key, steps=settings.steps, learning_rate=settings.learning_rate
    )
    x, y = minimum.last
    every = dataclasses.replace(virtual, rounds_per_step=None)
    unexplained = matching_objective(
        model, checked, x, labels(y), score_key, every, squared_distance
    )
    return ClientData(x, labels(y), jnp.ones(len(x), bool), jnp.asarray(0)), unexplained
