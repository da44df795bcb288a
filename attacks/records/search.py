"""Records that the spans do not contradict, by coordinate descent from thousands of random starts
at once; one record at a time, so that nothing grows with the number of combinations."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from attacks.records.evidence import Evidence, errors_of_first, hidden
from jaxfl import Model
from jaxfl.schema import Schema

Array = jax.Array
GRID = 16
"""Values of a measured column that are tried at every step, beside the one that fits best if no
unit changes."""
SIGHT = 64
"""Equations of a layer that are looked at: random combinations of all."""
ABSENT = 0.01
"""Length of a feature's projection on the span of records, below which none has it: records of a
hundred standardised columns are rarely longer than 30."""
FIRST_WEIGHT = 0.3
"""Weight of the first layer's equations beside the second's."""
LEAST_LENGTH, LEAST_CURVATURE = 1e-20, 1e-12
"""In place of the error's length of a record that moves nothing, and of the curvature along a
column on which nothing depends: both are zero, and neither is divided by."""
SKEWED = 3
"""Power of a uniform draw that a measured column's first value is: most are small, as money and
weights are."""
RIDGE = 1e-6
"""Ridge of least squares over measured columns, relative to the trace of the columns' products: a
column that nothing depends on stays where it is."""


@struct.dataclass
class Moves:
    """What the values of attributes do to the first layer's outputs, and to its equations.

    Attributes:
      outputs: attributes of similar numbers of values together: `[attributes, values, rounds,
        width]` each.
      equations: `[attributes, values, SIGHT]`.
      allowed: values that some record has `[attributes, values]`.
      slopes, equation_slopes: the same per unit of a measured column `[measured, rounds, width]`,
        `[measured, SIGHT]`.
      grid: values of each measured column `[measured, GRID]`.
      bias: outputs of a record of zeros `[rounds, width]`.
      constant: its equations `[SIGHT]`.
    """

    outputs: tuple[Array, ...]
    equations: tuple[Array, ...]
    allowed: tuple[Array, ...]
    slopes: Array
    equation_slopes: Array
    grid: Array
    bias: Array
    constant: Array


@struct.dataclass
class Sight:
    """What is looked at of the evidence, besides the first layer's equations.

    Attributes:
      params: the models received, leaves `[rounds, ...]`.
      basis: of what may not be there: `[rounds, width, SIGHT]`, of the second layer's inputs or of
        the first one's errors.
      errors: whether of errors (static).
      features: of a record (static).
    """

    params: Any
    basis: Array
    errors: bool = struct.field(pytree_node=False)
    features: int = struct.field(pytree_node=False)


class State(NamedTuple):
    """State of every start.

    Attributes:
      places: which value of each attribute, as in `Moves.outputs`: `[starts, attributes]` each.
      numbers: measured columns `[starts, measured]`.
      outputs: of the first layer `[starts, rounds, width]`.
      equations: of it `[starts, SIGHT]`.
      cost: what is to be 0 `[starts]`.
    """

    places: tuple[Array, ...]
    numbers: Array
    outputs: Array
    equations: Array
    cost: Array


def buckets(schema: Schema) -> list[list[int]]:
    """Attributes by their number of values, up to 4, 16, 64, ...: those of a bucket are tried in
    one loop, padded to the largest."""
    kinds = [((len(a.values) - 1).bit_length() + 1) // 2 for a in schema.listed]
    return [[j for j, kind in enumerate(kinds) if kind == size] for size in sorted(set(kinds))]


def occurring(schema: Schema, evidence: Evidence) -> list[np.ndarray]:
    """Values `[K]` of each listed attribute that some record may have, by the span of records.

    A feature of 1 in a record x of the span is at least 1 / |[x, 1]| long when projected there, and
    so is its difference from the bias' 1 where a record has 0.
    """
    rows, features = evidence.first.rows, schema.features
    never = np.linalg.norm(rows[:features], axis=1) < ABSENT
    always = np.zeros(features, bool)
    if len(rows) > features:  # the bias is there
        always = np.linalg.norm(rows[:features] - rows[features], axis=1) < ABSENT
    allowed = []
    for attribute in schema.listed:
        places = list(attribute.positions)
        held = (attribute.looks != 1) | ~never[places]
        held &= (attribute.looks != 0) | ~always[places]
        some = held.all(1)
        allowed.append(some if some.any() else np.ones(len(some), bool))
    return allowed


def sight_of(
    evidence: Evidence, rounds: list[int], features: int, rng: np.random.Generator
) -> Sight:
    """What the search looks at, of so many rounds."""
    errors = evidence.place == 0
    whole = evidence.layer.beyond_columns if errors else evidence.layer.beyond_rows
    basis = np.stack([_sketched(whole[t], rng) for t in rounds])
    params = jax.tree.map(lambda a: np.asarray(a[np.asarray(rounds)], np.float32), evidence.params)
    return Sight(params, jnp.asarray(basis, jnp.float32), errors, features)


def _sketched(basis: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random orthogonal combinations of the columns that are not 0, as many as are looked at; as
    long on average as all."""
    there = basis[:, np.any(basis != 0, axis=0)]
    if there.shape[1] > SIGHT:
        mixed = np.linalg.qr(rng.normal(size=(there.shape[1], SIGHT)))[0]
        return there @ mixed * np.sqrt(there.shape[1] / SIGHT)
    return np.pad(there, ((0, 0), (0, SIGHT - there.shape[1])))


def moves_of(
    model: Model, evidence: Evidence, schema: Schema, allowed: list[np.ndarray], rounds: list[int]
) -> Moves:
    """Tables of the search."""
    layers = model.layers
    assert layers is not None
    first = layers.parameters(evidence.params, layers.names[0])
    kernel = np.asarray(first["kernel"], np.float64)[rounds].transpose(1, 0, 2)
    bias = np.asarray(first.get("bias", np.zeros_like(kernel[0])), np.float64)
    bias = bias[rounds] if "bias" in first else bias
    equations = _equations(evidence.first.beyond_rows, schema, allowed)
    looks = [(list(a.positions), np.asarray(a.looks, np.float64)) for a in schema.listed]

    def table(weights: np.ndarray, bucket: list[int]) -> Array:
        parts = [np.tensordot(looks[j][1], weights[looks[j][0]], 1) for j in bucket]
        return jnp.asarray(_stacked(parts), jnp.float32)

    groups = buckets(schema)
    grid = [np.linspace(a.feature(a.low), a.feature(a.high), GRID) for a in schema.measured]
    return Moves(
        tuple(table(kernel, bucket) for bucket in groups),
        tuple(table(equations, bucket) for bucket in groups),
        tuple(jnp.asarray(_stacked([allowed[j] for j in bucket])) for bucket in groups),
        jnp.asarray(kernel[schema.positions], jnp.float32),
        jnp.asarray(equations[schema.positions], jnp.float32),
        jnp.asarray(np.reshape(grid, (len(grid), GRID)), jnp.float32),
        jnp.asarray(bias, jnp.float32),
        jnp.asarray(equations[schema.features :].sum(0), jnp.float32),
    )


def _equations(beyond: np.ndarray, schema: Schema, allowed: list[np.ndarray]) -> np.ndarray:
    """The first layer's equations `[inputs, SIGHT]`, of which those that hold for all records of
    the schema are dropped: most of them say that categories exclude each other."""
    varied = [
        looks - looks.mean(0)
        for attribute, some in zip(schema.listed, allowed, strict=True)
        for looks in [attribute.looks[some] @ beyond[list(attribute.positions)]]
    ]
    varied += [beyond[schema.positions]]
    moved = np.concatenate(varied)
    _, directions = np.linalg.eigh(moved.T @ moved)
    kept = beyond @ directions[:, ::-1][:, :SIGHT]
    return np.pad(kept, ((0, 0), (0, SIGHT - kept.shape[1])))


def _stacked(parts: list[np.ndarray]) -> np.ndarray:
    longest = max(map(len, parts))
    return np.stack(
        [np.pad(part, [(0, longest - len(part))] + [(0, 0)] * (part.ndim - 1)) for part in parts]
    )


def _residual(model: Model, sight: Sight, outputs: Array) -> Array:
    """What may not be there `[..., rounds x SIGHT]`, of first outputs `[..., rounds, width]`."""
    flat = outputs.reshape(-1, *outputs.shape[-2:])

    def of_round(params: Any, basis: Array, first: Array) -> Array:
        if not sight.errors:
            return hidden(model, params, first, sight.features) @ basis
        errors = errors_of_first(model, params, first, sight.features)
        length = jnp.linalg.norm(errors, axis=-1, keepdims=True)
        seen = errors @ basis / (length + LEAST_LENGTH)
        best = jnp.square(seen).sum(-1).argmin(0)
        return jnp.take_along_axis(seen, best[None, :, None], 0)[0]

    seen = jax.vmap(of_round, (0, 0, 1), 1)(sight.params, sight.basis, flat)
    return seen.reshape(*outputs.shape[:-2], -1)


def _cost(model: Model, sight: Sight, outputs: Array, equations: Array) -> Array:
    weight = 1.0 if sight.errors else FIRST_WEIGHT
    seen = jnp.square(_residual(model, sight, outputs)).sum(-1) / len(sight.basis)
    return seen + weight * jnp.square(equations).sum(-1)


@functools.partial(jax.jit, static_argnames=("model", "starts", "sweeps"))
def search(model: Model, sight: Sight, moves: Moves, key: Array, starts: int, sweeps: int) -> State:
    """Descends from random records, an attribute at a time: all its values are tried.

    Args:
      model: the model (static).
      sight: what is looked at.
      moves: see `Moves`.
      key: draws the starts.
      starts: how many (static).
      sweeps: how often every attribute is changed (static).
    """
    state = _placed(model, sight, moves, *_drawn(moves, key, starts))
    return jax.lax.fori_loop(0, sweeps, lambda _, s: _sweep(model, sight, moves, s), state)


def _drawn(moves: Moves, key: Array, starts: int) -> tuple[tuple[Array, ...], Array]:
    number_key, *keys = jax.random.split(key, 1 + len(moves.allowed))
    places = tuple(
        jax.random.categorical(k, jnp.where(allowed, 0.0, -jnp.inf), shape=(starts, len(allowed)))
        for k, allowed in zip(keys, moves.allowed, strict=True)
    )
    low, high = (moves.grid.min(1, initial=jnp.inf), moves.grid.max(1, initial=-jnp.inf))
    draws = jax.random.uniform(number_key, (starts, len(moves.grid)), jnp.float32) ** SKEWED
    return places, low + (high - low) * draws


def _placed(
    model: Model, sight: Sight, moves: Moves, places: tuple[Array, ...], numbers: Array
) -> State:
    def gathered(tables: tuple[Array, ...], slopes: Array, constant: Array) -> Array:
        total = constant + jnp.tensordot(numbers, slopes, 1)
        for table, chosen in zip(tables, places, strict=True):
            total += jax.vmap(lambda p, t=table: t[jnp.arange(len(t)), p].sum(0))(chosen)
        return total

    outputs = gathered(moves.outputs, moves.slopes, moves.bias)
    equations = gathered(moves.equations, moves.equation_slopes, moves.constant)
    return State(places, numbers, outputs, equations, _cost(model, sight, outputs, equations))


def _sweep(model: Model, sight: Sight, moves: Moves, state: State) -> State:
    places = []
    for bucket, chosen in enumerate(state.places):
        tables = moves.outputs[bucket], moves.equations[bucket], moves.allowed[bucket]

        def one(state: State, inputs: Any) -> tuple[State, Array]:
            place, outputs, equations, allowed = inputs
            tried = state.outputs[:, None] - outputs[place][:, None] + outputs
            tried_equations = state.equations[:, None] - equations[place][:, None] + equations
            cost = _cost(model, sight, tried, tried_equations)
            best = jnp.where(allowed, cost, jnp.inf).argmin(1)
            return _taken(state, tried, tried_equations, cost, best), best

        state, moved = jax.lax.scan(one, state, (chosen.T, *tables))
        places.append(moved.T)
    state = state._replace(places=tuple(places))
    if not len(moves.grid):
        return state
    return jax.lax.fori_loop(
        0, len(moves.grid), lambda q, s: _number_moved(model, sight, moves, s, q), state
    )


def _taken(state: State, outputs: Array, equations: Array, cost: Array, best: Array) -> State:
    starts = jnp.arange(len(best))
    return state._replace(
        outputs=outputs[starts, best], equations=equations[starts, best], cost=cost[starts, best]
    )


def _number_moved(model: Model, sight: Sight, moves: Moves, state: State, column: Array) -> State:
    """A measured column is set to a value of its grid or to the one that fits best to first
    order."""
    slope, grid = moves.slopes[column], moves.grid[column]
    along = jnp.broadcast_to(slope, state.outputs.shape)
    seen, slopes = jax.jvp(lambda z: _residual(model, sight, z), (state.outputs,), (along,))
    weight = (1.0 if sight.errors else FIRST_WEIGHT) * len(sight.basis)
    flat = moves.equation_slopes[column]
    downhill = (seen * slopes).sum(-1) + weight * state.equations @ flat
    curvature = jnp.square(slopes).sum(-1) + weight * jnp.square(flat).sum()
    now = state.numbers[:, column]
    fitted = jnp.clip(now - downhill / jnp.maximum(curvature, LEAST_CURVATURE), grid[0], grid[-1])
    tried = jnp.concatenate(
        [now[:, None], fitted[:, None], jnp.broadcast_to(grid, (len(now), GRID))], 1
    )
    by = (tried - now[:, None])[..., None]
    outputs = state.outputs[:, None] + by[..., None] * slope
    equations = state.equations[:, None] + by * flat
    cost = _cost(model, sight, outputs, equations)
    best = cost.argmin(1)
    state = _taken(state, outputs, equations, cost, best)
    return state._replace(
        numbers=state.numbers.at[:, column].set(tried[jnp.arange(len(now)), best])
    )


@functools.partial(jax.jit, static_argnames="model")
def rivals(
    model: Model, sight: Sight, moves: Moves, places: tuple[Array, ...], numbers: Array
) -> tuple[tuple[Array, Array], ...]:
    """The record of least cost that differs from one in a single listed attribute, measured columns
    fitted anew to first order: its cost and the attribute's value, `[records, attributes]` each,
    for each of `Moves.outputs`.

    Args:
      model: the model (static).
      sight: what is looked at.
      moves: see `Moves`.
      places: see `State`.
      numbers: see `State`.
    """
    state = _placed(model, sight, moves, places, numbers)
    costs = []
    for bucket, chosen in enumerate(places):
        tables = moves.outputs[bucket], moves.equations[bucket], moves.allowed[bucket]

        def one(_: None, inputs: Any) -> tuple[None, tuple[Array, Array]]:
            place, outputs, equations, allowed = inputs
            tried = state.outputs[:, None] - outputs[place][:, None] + outputs
            tried_equations = state.equations[:, None] - equations[place][:, None] + equations
            cost = _refitted(model, sight, moves, tried, tried_equations)
            other = allowed & (jnp.arange(len(allowed)) != place[:, None])
            cost = jnp.where(other, cost, jnp.inf)
            return None, (cost.min(1), cost.argmin(1))

        _, least = jax.lax.scan(one, None, (chosen.T, *tables))
        costs.append(jax.tree.map(jnp.transpose, least))
    return tuple(costs)


def _refitted(model: Model, sight: Sight, moves: Moves, outputs: Array, equations: Array) -> Array:
    """Cost of what is tried `[records, values]`, at the best measured columns to first order."""
    weight = ((1.0 if sight.errors else FIRST_WEIGHT) * len(sight.basis)) ** 0.5

    def along(slope: Array) -> tuple[Array, Array]:
        direction = jnp.broadcast_to(slope, outputs.shape)
        return jax.jvp(lambda z: _residual(model, sight, z), (outputs,), (direction,))

    left = jnp.concatenate([_residual(model, sight, outputs), weight * equations], -1)
    if len(moves.slopes):
        _, slopes = jax.lax.map(along, moves.slopes)
        flat = jnp.broadcast_to(
            weight * moves.equation_slopes[:, None, None],
            (*slopes.shape[:-1], moves.equation_slopes.shape[-1]),
        )
        design = jnp.moveaxis(jnp.concatenate([slopes, flat], -1), 0, -1)
        gram = jnp.swapaxes(design, -1, -2) @ design
        gram += (
            RIDGE * jnp.trace(gram, axis1=-2, axis2=-1)[..., None, None] * jnp.eye(gram.shape[-1])
        )
        moved = jnp.linalg.solve(gram, jnp.swapaxes(design, -1, -2) @ left[..., None])
        left -= (design @ moved)[..., 0]
    return jnp.square(left).sum(-1) / len(sight.basis)
