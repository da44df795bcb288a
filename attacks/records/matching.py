"""Whole records by matching gradients, all columns relaxed: what is done where nothing is proven
(TabLeak, Vero et al. 2023, whose relaxation this is; without its ensembles).

Threat model: as in `attacks.records.reconstruction`; the number of records is known too.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Num

from attacks.fit import energies
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
      x: every column a value of the schema; NaN if the objective was never finite, or
        nothing was sent `[count, features]`.
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
    ends = [[a.feature(a.low), a.feature(a.high)] for a in schema.measured]
    relaxation = _Relaxation(
        tuple(_group(schema, places) for places in _alike(schema)),
        tuple(schema.positions),
        jnp.asarray(np.reshape(ends, (-1, 2)), jnp.float32),
        schema.features,
        count,
        model.classes or 0,
    )
    virtual = Virtual(training=training, records=count)
    match = _match(model, messages, relaxation, virtual, key, settings)
    x = schema.records(np.asarray(match.places), np.asarray(match.numbers, np.float64))
    # A client that returned what it received says nothing of its records.
    moved = bool((energies(messages.pseudo_gradient) > 0).any())
    if not np.isfinite(match.distance) or not moved:
        return MatchedRecords(np.full_like(x, np.nan), np.full(count, -1))
    return MatchedRecords(x, np.asarray(match.labels))


def _alike(schema: Schema) -> list[list[int]]:
    """Places of the listed attributes, those with as many values of as many features together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, attribute in enumerate(schema.listed):
        groups.setdefault(np.shape(attribute.looks), []).append(place)
    return list(groups.values())


@struct.dataclass
class _Group:
    """Listed attributes with as many values of as many features.

    Attributes:
      places: among all listed attributes (static).
      positions: of their features, one attribute after the other (static).
      looks: of their values `[attributes, values, features]`.
    """

    places: tuple[int, ...] = struct.field(pytree_node=False)
    positions: tuple[int, ...] = struct.field(pytree_node=False)
    looks: Array


def _group(schema: Schema, places: list[int]) -> _Group:
    attributes = [schema.listed[place] for place in places]
    positions = tuple(p for attribute in attributes for p in attribute.positions)
    looks = np.stack([attribute.looks for attribute in attributes])
    return _Group(tuple(places), positions, jnp.asarray(looks, jnp.float32))


class _Free(NamedTuple):
    """What is fitted.

    Attributes:
      weights: of each group's values, before softmax `[attributes, records, values]`.
      numbers: as the model reads them `[records, measured]`.
      labels: before softmax `[records, classes]`.
    """

    weights: tuple[Array, ...]
    numbers: Array
    labels: Array


@struct.dataclass
class _Relaxation:
    """Records of a schema as functions of numbers that may be anything.

    Attributes:
      groups: its listed attributes. All of a group are one operation: Location has 446.
      positions: of measured columns (static).
      span: their ranges, as the model reads them `[measured, 2]`.
      features: of a record (static).
      count: of records (static).
      classes: of labels (static).
    """

    groups: tuple[_Group, ...]
    positions: tuple[int, ...] = struct.field(pytree_node=False)
    span: Array
    features: int = struct.field(pytree_node=False)
    count: int = struct.field(pytree_node=False)
    classes: int = struct.field(pytree_node=False)

    @property
    def listed(self) -> int:
        """Number of listed attributes."""
        return sum(len(group.places) for group in self.groups)

    def drawn(self, key: Array) -> _Free:
        """A start."""
        keys = jax.random.split(key, self.listed + 2)

        def normal(key: Array, width: int) -> Array:
            return jax.random.normal(key, (self.count, width), jnp.float32)

        weights = tuple(
            0.1
            * jax.vmap(lambda k, g=group: normal(k, g.looks.shape[1]))(
                keys[np.asarray(group.places)]
            )
            for group in self.groups
        )
        numbers = normal(keys[-2], len(self.span))
        return _Free(weights, numbers, 0.1 * normal(keys[-1], self.classes))

    def records(self, free: _Free) -> tuple[Array, Array]:
        """Expected records `[records, features]` and labels `[records, classes]`."""
        x = jnp.zeros((self.count, self.features), jnp.float32)
        for group, weights in zip(self.groups, free.weights, strict=True):
            expected = jnp.einsum("ack,akw->caw", jax.nn.softmax(weights), group.looks)
            x = x.at[:, np.asarray(group.positions)].set(expected.reshape(self.count, -1))
        if self.positions:
            x = x.at[:, np.asarray(self.positions)].set(self._within(free.numbers))
        return x, jax.nn.softmax(free.labels)

    def likeliest(self, free: _Free, distance: Array) -> "_Match":
        """The likeliest values."""
        places = jnp.zeros((self.count, self.listed), int)
        for group, weights in zip(self.groups, free.weights, strict=True):
            places = places.at[:, np.asarray(group.places)].set(weights.argmax(2).T)
        return _Match(distance, places, self._within(free.numbers), free.labels.argmax(1))

    def _within(self, numbers: Array) -> Array:
        return jnp.clip(numbers, self.span[:, 0], self.span[:, 1])


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


@functools.partial(jax.jit, static_argnames="model")
def _match(
    model: Model,
    messages: Messages,
    relaxation: _Relaxation,
    virtual: Virtual,
    key: Array,
    settings: RecordMatching,
) -> _Match:
    def objective(free: _Free, key: Array) -> Array:
        x, y = relaxation.records(free)
        return matching_objective(model, messages, x, y, key, virtual, cosine_distance)

    def once(key: Array) -> tuple[Array, _Free]:
        start_key, key = jax.random.split(key)
        minimum = minimize_adam(
            objective,
            relaxation.drawn(start_key),
            key,
            steps=settings.steps,
            learning_rate=settings.learning_rate,
        )
        return minimum.value, minimum.variables

    distances, ends = jax.lax.map(once, jax.random.split(key, settings.restarts))
    best = jax.tree.map(lambda a: a[jnp.nanargmin(distances)], ends)
    return relaxation.likeliest(best, jnp.nanmin(distances))
