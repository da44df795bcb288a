"""Whole records by matching gradients, all columns relaxed: what is done where nothing is proven
(TabLeak, Vero et al. 2023, whose relaxation this is; without its ensembles).

Threat model: as in `attacks.records.reconstruction`; the number of records is known too.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Num

from attacks.matching import (
    Virtual,
    cosine_distance,
    matching_objective,
    minimize_adam,
)
from attacks.precision import cast
from attacks.records.gradients import check_readable
from jaxfl import LocalTraining, Messages, Model
from jaxfl.domains import Count, Key, Positive, checked
from jaxfl.schema import Schema
from jaxfl.watching import on_host

Array = jax.Array


@struct.dataclass
class RecordMatching:
    """Settings of `match_records`.

    Attributes:
      steps: iterations of Adam (static).
      learning_rate: its first step size.
      restarts: random starts, of which the one that matches best is kept (static).
    """

    steps: Count = struct.field(pytree_node=False, default=1500)
    learning_rate: Positive = 0.06
    restarts: Count = struct.field(pytree_node=False, default=4)


@struct.dataclass
class MatchedRecords:
    """Records that nothing tells right from wrong.

    Attributes:
      x: every column a value of the schema; NaN if the objective was never finite
        `[count, features]`.
      y: labels; -1 then `[count]`.
    """

    x: Num[np.ndarray, "count features"]
    y: Num[np.ndarray, "count"]


@on_host("it draws starts and rounds answers between its programs, in NumPy")
@checked
def match_records(
    model: Model,
    messages: Messages,
    schema: Schema,
    count: Count,
    training: LocalTraining,
    key: Key,
    *,
    settings: RecordMatching | None = None,
) -> MatchedRecords:
    """So many records whose gradient points where the messages do: categories and labels as
    softmaxes, numbers free within their range.

    Args:
      model: a classifier (static).
      messages: the client's.
      schema: of its table.
      count: how many records it has (static).
      training: its recipe.
      key: draws the starts.
      settings: see `RecordMatching`.

    Returns:
      The records and their labels.

    Raises:
      ValueError: as `reconstruct_records`.
    """
    settings = settings or RecordMatching()
    check_readable(model, messages, schema)
    messages = cast(messages, jnp.float32)
    groups = tuple(tuple(a.positions) for a in schema.listed)
    looks = tuple(jnp.asarray(a.looks, jnp.float32) for a in schema.listed)
    ends = [[a.feature(a.low), a.feature(a.high)] for a in schema.measured]
    span = jnp.asarray(np.reshape(ends, (-1, 2)), jnp.float32)
    match = _match(
        model,
        messages,
        (groups, tuple(schema.positions), count, schema.features),
        (looks, span),
        Virtual(training=training, records=count),
        key,
        settings,
    )
    x = schema.records(np.asarray(match.places), np.asarray(match.numbers, np.float64))
    if not np.isfinite(match.distance):
        return MatchedRecords(np.full_like(x, np.nan), np.full(count, -1))
    return MatchedRecords(x, np.asarray(match.labels))


class _Match(NamedTuple):
    """The nearest match of all starts.

    Attributes:
      distance: of its gradient from the messages'.
      places: which value each listed attribute has `[records, listed]`.
      numbers: as the model reads them `[records, measured]`.
      labels: `[records]`.
    """

    distance: Array
    places: Array
    numbers: Array
    labels: Array


@functools.partial(jax.jit, static_argnames=("model", "shape"))
def _match(
    model: Model,
    messages: Messages,
    shape: tuple[Any, ...],
    values: tuple[Any, Array],
    virtual: Virtual,
    key: Array,
    settings: RecordMatching,
) -> _Match:
    groups, positions, count, features = shape
    looks, span = values
    classes = model.classes or 0

    def drawn(key: Array) -> Any:
        keys = jax.random.split(key, len(looks) + 2)
        weights = tuple(
            0.1 * jax.random.normal(k, (count, len(look)), jnp.float32)
            for k, look in zip(keys, looks, strict=False)
        )
        labels = 0.1 * jax.random.normal(keys[-1], (count, classes), jnp.float32)
        return weights, jax.random.normal(keys[-2], (count, len(span)), jnp.float32), labels

    def relaxed(free: Any) -> tuple[Array, Array]:
        weights, numbers, labels = free
        x = jnp.zeros((count, features), jnp.float32)
        for place, look, weight in zip(groups, looks, weights, strict=True):
            x = x.at[:, jnp.asarray(place)].set(jax.nn.softmax(weight) @ look)
        if positions:
            x = x.at[:, jnp.asarray(positions)].set(jnp.clip(numbers, span[:, 0], span[:, 1]))
        return x, jax.nn.softmax(labels)

    def objective(free: Any, key: Array) -> Array:
        x, y = relaxed(free)
        return matching_objective(model, messages, x, y, key, virtual, cosine_distance)

    def once(key: Array) -> tuple[Array, Any]:
        start_key, key = jax.random.split(key)
        minimum = minimize_adam(
            objective,
            drawn(start_key),
            key,
            steps=settings.steps,
            learning_rate=settings.learning_rate,
        )
        return minimum.value, minimum.variables

    distances, ends = jax.lax.map(once, jax.random.split(key, settings.restarts))
    weights, numbers, labels = jax.tree.map(lambda a: a[jnp.nanargmin(distances)], ends)
    places = jnp.stack([weight.argmax(1) for weight in weights], 1)
    numbers = jnp.clip(numbers, span[:, 0], span[:, 1])
    return _Match(jnp.nanmin(distances), places, numbers, labels.argmax(1))
