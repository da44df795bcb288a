"""What the messages of full-batch rounds say of a record that is tried: nothing else is known of
it.

With one hidden layer the record itself must lie in the span of the first layer's inputs, and its
error in that layer's span of errors. With more, what it becomes before the second layer must lie in
that layer's span of inputs as well: those keep full rank where one-hot columns, which depend on
each other, have lost it.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from attacks.lapack import after
from attacks.records.isolation import Isolated, off_directions
from attacks.records.spans import MARGIN, Span, off_columns, off_rows, whole_of
from jaxfl import Model
from jaxfl.models import inputs_and_errors

Array = jax.Array
STEPS = 8
"""Gauss-Newton steps for numeric columns: within one pattern of active units they are linear."""
ROUNDED, UNBOUNDED = 1e-13, 1e6
"""Part of the largest of products of slopes that rounding leaves of others; and the deviation of a
feature that nothing bounds."""


@struct.dataclass
class Evidence:
    """What is seen.

    Attributes:
      params: the models received, leaves `[rounds, ...]`.
      first: spans of the first layer over all rounds together, stacked by rows: records have the
        same inputs in all; its columns are of no one space and are not used.
      layer: spans of the layer that is looked at, round by round: arrays `[rounds, ...]`.
      count: number of the client's records with their copies; 0 if unknown.
      place: which layer that is: the second one, if there are two hidden ones, or the first
        (static).
      isolated: directions that the record is orthogonal to, of which nothing need be known.
      returned: the models returned, if clients take several steps a round: then nothing is known of
        a record's weight and errors but that units which it never moves have none. None if they
        take one full-batch step.
    """

    params: Any
    first: Span
    layer: Span
    count: Any
    place: int = struct.field(pytree_node=False)
    isolated: Isolated
    returned: Any = None


class Findings(NamedTuple):
    """Findings about records that are tried.

    Attributes:
      x: the records, numeric columns fitted `[records, features]`.
      deviation: standard deviation of the fitted columns by the messages' noise, others as they are
        `[records, measured]`, in units of features; up to `UNBOUNDED` where nothing tells them.
      looseness: of listed numbers, as if all numbers were fitted `[records, counted]`.
      off_inputs: how far inputs are from their spans, the worst of layers and rounds `[records]`;
        about 1 for a right record.
      off_errors: the same of its errors, by label `[records, classes]`.
      whole: of how many records it would be one, by label and round `[records, classes, rounds]`:
        N for a right one, a part of N if the client has it more than once.
      whole_deviation: its standard deviation by the messages' noise, likewise.
      expected: what the noise leaves of a right record outside the spans of the search, in the
        units of `attacks.records.search.Sight` `[records]`.
    """

    x: Array
    deviation: Array
    looseness: Array
    off_inputs: Array
    off_errors: Array
    whole: Array
    whole_deviation: Array
    expected: Array


def extended(model: Model, name: str, params: Any, inputs: Array) -> Array:
    """Inputs of a layer `[..., width]`, with the 1 that its bias takes, if it has one."""
    assert model.layers is not None
    if "bias" not in model.layers.parameters(params, name):
        return inputs
    return jnp.concatenate([inputs, jnp.ones((*inputs.shape[:-1], 1), inputs.dtype)], -1)


def _from_first(
    model: Model, params: Any, first: Array, features: int
) -> tuple[Array, dict[str, Array]]:
    """Outputs, and inputs of the layers, by the first one's outputs `[batch, width]`."""
    assert model.layers is not None
    records = jnp.zeros((len(first), features), first.dtype)
    return model.layers.forward(params, records, {}, first)


def hidden(model: Model, params: Any, first: Array, features: int) -> Array:
    """The second layer's inputs `[batch, width + 1]` by the first's outputs `[batch, width]`."""
    assert model.layers is not None
    name = model.layers.names[1]
    return extended(model, name, params, _from_first(model, params, first, features)[1][name])


def errors_of_first(model: Model, params: Any, first: Array, features: int) -> Array:
    """The first layer's errors `[classes, batch, width]`, for each label, by its outputs `[batch,
    width]`."""

    def loss(first: Array, label: Array) -> Array:
        outputs, _ = _from_first(model, params, first, features)
        return model.loss(outputs, jnp.full(len(first), label)).sum()

    return jax.vmap(jax.grad(loss), (None, 0))(first, jnp.arange(model.classes or 0))


@functools.partial(jax.jit, static_argnames=("model", "measured", "counted"))
def examine(
    model: Model,
    evidence: Evidence,
    x: Array,
    measured: tuple[int, ...],
    counted: tuple[int, ...],
) -> Findings:
    """What the messages say of records `[records, features]`, whose measured columns are fitted
    first. Positions of those and of listed numbers are static. Float64: of float32 messages no bit
    is lost here."""
    return jax.vmap(lambda record: _examined(model, evidence, record, measured, counted))(x)


def _examined(
    model: Model,
    evidence: Evidence,
    x: Array,
    measured: tuple[int, ...],
    counted: tuple[int, ...],
) -> Findings:
    places, fitted = jnp.asarray(measured, int), jnp.zeros(0, x.dtype)
    both = jnp.asarray(measured + counted, int)
    deviation, loose = fitted, fitted

    def slopes_of(x: Array, places: Array) -> Array:
        return jax.jacfwd(lambda n: _left(model, evidence, x.at[places].set(n)))(x[places])

    def step(x: Array, _: None) -> tuple[Array, None]:
        slopes = slopes_of(x, places)
        moved = _inverse(slopes) @ (slopes.T @ _left(model, evidence, x))
        return x.at[places].add(-moved), None

    if measured:
        x, _ = jax.lax.scan(step, x, length=STEPS)
    if measured or counted:
        slopes, noise = slopes_of(x, both), _slope_noise(model, evidence, x, both)
        few = slice(len(measured))
        deviation = jnp.sqrt(_variances(slopes[:, few], noise[few, few]))
        loose = jnp.sqrt(_variances(after(slopes, deviation), noise)[len(measured) :])
    offs, expected = _offs(model, evidence, x)
    off_errors, whole, whole_deviation = _by_label(model, evidence, x)
    return Findings(x, deviation, loose, offs, off_errors, whole, whole_deviation, expected)


def _inverse(slopes: Array) -> Array:
    """Inverse of the slopes' Gram matrix."""
    gram = slopes.T @ slopes
    ridge = 1e-12 * jnp.trace(gram) + jnp.finfo(gram.dtype).tiny
    return jnp.linalg.inv(gram + ridge * jnp.eye(len(gram), dtype=gram.dtype))


def _variances(slopes: Array, noise: Array) -> Array:
    """Variances of numbers by equations of unit noise whose slopes are `[equations, numbers]`.
    Slopes are noisy too, by products of their own noise `[numbers, numbers]`: what may be that
    noise, or rounding, bounds nothing."""
    gram = slopes.T @ slopes
    rounding = ROUNDED * jnp.trace(gram) * jnp.eye(len(gram), dtype=gram.dtype)
    values, vectors = jnp.linalg.eigh(gram - MARGIN**2 * noise - rounding)
    bounded = 1 / jnp.where(values > 0, values, 1)
    return jnp.square(vectors) @ jnp.where(values > 0, bounded, UNBOUNDED**2)


def _slope_noise(model: Model, evidence: Evidence, x: Array, places: Array) -> Array:
    """Products `[places, places]` of what the noise of spans alone makes of the slopes of `_left`,
    by what it makes of a vector of the span itself."""

    def moved(span: Span, inputs: Array, slopes: Array) -> Array:
        """Slopes `[inputs, places]` in units of what the noise leaves of the inputs."""
        length = jnp.linalg.norm((inputs @ span.rows) * span.inverse)
        rows = (slopes.T @ span.rows) * span.inverse / (length + jnp.finfo(x.dtype).tiny)
        return (span.free[0] + 1) * rows @ rows.T  # one dimension is the weight's

    def second(params: Any, span: Span) -> Array:
        def inputs(numbers: Array) -> Array:
            return _inputs(model, params, x.at[places].set(numbers))[1]

        return moved(span, inputs(x[places]), jax.jacfwd(inputs)(x[places]))

    first = _inputs(model, _any_round(evidence), x)[0]
    chosen = jnp.eye(len(first), dtype=x.dtype)[:, places]
    noise = moved(evidence.first, first, chosen)
    spread = evidence.isolated.spread @ first
    lengths = jnp.linalg.norm(spread, axis=-1)[:, None, None] + jnp.finfo(x.dtype).tiny
    relative = evidence.isolated.spread[:, :, places] / lengths
    noise += jnp.einsum("dkp,dkq->pq", relative, relative)
    if evidence.place:
        noise += jax.vmap(second)(evidence.params, evidence.layer).sum(0)
    return noise


def _inputs(model: Model, params: Any, x: Array) -> list[Array]:
    """Inputs of the layers that are looked at, the 1 for the bias included."""
    layers = model.layers
    assert layers is not None
    _, inputs = layers.forward(params, x[None], {})
    return [extended(model, name, params, inputs[name])[0] for name in layers.names[:2]]


def _left(model: Model, evidence: Evidence, x: Array) -> Array:
    """What lies outside the spans of inputs, and what the weight lacks, each number in units of its
    noise."""

    def outside(span: Span, inputs: Array) -> Array:
        length = jnp.linalg.norm((inputs @ span.rows) * span.inverse)
        return inputs @ span.beyond_rows / jax.lax.stop_gradient(span.noise * length + 1e-30)

    def second(params: Any, span: Span) -> Array:
        return outside(span, _inputs(model, params, x)[1])

    first = _inputs(model, _any_round(evidence), x)[0]
    orthogonal = off_directions(evidence.isolated, first)
    parts = [outside(evidence.first, first), orthogonal]
    if evidence.place:
        parts.append(jax.vmap(second)(evidence.params, evidence.layer).ravel())
    # On a line between records of equal categories nothing but the weight tells where they are.
    _, whole, deviation = _by_label(model, evidence, x)
    right = jnp.abs(whole / jnp.maximum(evidence.count, 1) - 1).max(1).argmin()
    copies = jnp.maximum(jnp.rint(evidence.count / whole[right].mean()), 1)
    off = jnp.where(
        evidence.count, whole[right] - jax.lax.stop_gradient(evidence.count / copies), 0
    )
    return jnp.concatenate([*parts, off / jax.lax.stop_gradient(deviation[right] + 1e-30)])


def _offs(model: Model, evidence: Evidence, x: Array) -> tuple[Array, Array]:
    def expected(span: Span, inputs: Array) -> Array:
        return span.noise * jnp.linalg.norm((inputs @ span.rows) * span.inverse)

    def second(params: Any, span: Span) -> tuple[Array, Array]:
        inputs = _inputs(model, params, x)[1]
        return off_rows(span, inputs), expected(span, inputs) * jnp.sqrt(span.free[0])

    first = _inputs(model, _any_round(evidence), x)[0]
    off, length = off_rows(evidence.first, first), expected(evidence.first, first)
    off = jnp.maximum(off, jnp.abs(off_directions(evidence.isolated, first)).max())
    if not evidence.place:
        return off, length
    offs, lengths = jax.vmap(second)(evidence.params, evidence.layer)
    return jnp.maximum(off, offs.max()), jnp.maximum(length, lengths.max())


def _by_label(model: Model, evidence: Evidence, x: Array) -> tuple[Array, Array, Array]:
    layers, labels = model.layers, jnp.arange(model.classes or 0)
    assert layers is not None
    name = layers.names[evidence.place]

    def of_round(params: Any, span: Span) -> tuple[Array, Array, Array]:
        records = jnp.broadcast_to(x, (len(labels), *x.shape))
        inputs, errors = inputs_and_errors(model, params, records, labels)
        ones = extended(model, name, params, inputs[name])
        off = jax.vmap(lambda e: off_columns(span, e))(errors[name])
        return off, *jax.vmap(lambda e, a: whole_of(span, e, a))(errors[name], ones)

    off, whole, deviation = jax.vmap(of_round)(evidence.params, evidence.layer)
    return off.max(0), whole.T, deviation.T


def _any_round(evidence: Evidence) -> Any:
    """Models of one round, for what is the same in all."""
    return jax.tree.map(lambda a: a[0], evidence.params)


@functools.partial(jax.jit, static_argnames="model")
def parts_of(model: Model, params: Any, x: Array, y: Array) -> list[tuple[Array, Array]]:
    """Inputs, the 1 for the bias included, and errors `[rounds, records, width]` of every dense
    layer, in models with leaves `[rounds, ...]`."""
    layers = model.layers
    assert layers is not None

    def of_round(params: Any) -> list[tuple[Array, Array]]:
        inputs, errors = inputs_and_errors(model, params, x, y)
        return [(extended(model, n, params, inputs[n]), errors[n]) for n in layers.names]

    return jax.vmap(of_round)(params)
