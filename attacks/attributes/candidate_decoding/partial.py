"""Decoding the records that are known of a client that has others, too.

Threat model: an honest-but-curious server sees a client's messages, prescribed its recipe of SGD
(with momentum and weight decay or without), and knows some of the client's records but for one
column or a few, how many others there are, and records of the same kind: public ones, or those of
other clients.

A message is the sum of two parts,

    N u_t / (eta a) = sum_known g_nt(v_n) + sum_others g_mt,

with a the weight of a record's gradient (`gls`). The others are draws from a population, of which
the public records are draws as well. All rounds together are one long vector, in which the sum of H
others has the mean H mu and the covariance H Sigma, with mu and Sigma those of single records'
gradients. So the known part is read by generalised least squares:

    cov = (H / M) sum_m (g_m - mu)(g_m - mu)' + f I

over M public records; f stands for what so few draws do not span. No gradient is formed where the
model names its dense layers: inner products of gradients, summed over rounds, are all that enters.

A fifth of the public records is held out. Of all f that is taken under which what tells the
candidates apart stands out most among sums of held-out records; these also say how large the noise
is in truth, and how much of a message they leave unexplained, by which the answer is judged. So is
whether what the known records add is there (`presence`).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.dtypes import canonicalize_dtype

from attacks.attributes.candidate_decoding.candidates import (
    candidate_records,
    prior_weights,
    with_first,
)
from attacks.attributes.candidate_decoding.constraints import most_likely
from attacks.attributes.candidate_decoding.explanation import largest_of_more
from attacks.attributes.candidate_decoding.factored_gradients import (
    factored_gradients,
    mean_lengths,
)
from attacks.attributes.candidate_decoding.joint import apart, joined, told
from attacks.attributes.candidate_decoding.order_noise import batch_weights
from attacks.attributes.candidate_decoding.presence import (
    FIRST,
    LEFT,
    Counts,
    Whitened,
    astray,
    presence_of,
    told_apart,
)
from attacks.attributes.candidate_decoding.public_records import check_values, held_out_of
from attacks.attributes.knowledge import (
    Knowledge,
    Reconstruction,
    answered,
    check_apart,
    check_knowledge,
    explained,
)
from attacks.fit import FALSE_ALARMS, Fit, energies, equations, precision, rounding
from attacks.fixed_draws import fixed_key
from attacks.path import check_linear, local_path, moved_alone, on_path
from attacks.precision import arithmetic, cast, floating
from jaxfl import LocalTraining, Messages, Model, _check
from jaxfl.domains import Count, NotNegative, checked
from jaxfl.models import check_labelled

Array = jax.Array
FEWEST = 20
"""How many public records there are at least."""
FLOORS = tuple(10.0**power for power in range(-10, 1))
"""What is tried as f, relative to the energy of the others' sum."""
SUMS = 64
"""Sums of held-out records that the message is compared with."""


@struct.dataclass
class PartialDecoding:
    """Settings of `decode_partial`.

    Attributes:
      others: how many records the client has that the adversary does not know (static).
      training: the client's recipe, without plug-ins; its optimiser is linear, as for `gls`.
        Gradients are taken at the centre of the path: exact for one full-batch step.
      ridge: pull towards the prior, relative to the precision of a draw from it.
      iterations: of the constrained minimisation (static).
    """

    others: Count = struct.field(pytree_node=False)
    training: LocalTraining = LocalTraining()
    _: dataclasses.KW_ONLY
    ridge: NotNegative = 1.0
    iterations: Count = struct.field(pytree_node=False, default=500)


@checked
def decode_partial(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    x_public: Any,
    y_public: Any,
    *,
    settings: PartialDecoding,
    dtype: Any = jnp.float64,
) -> Reconstruction:
    """Reconstruct unknown columns, and labels if they are unknown, of some of a client's records,
    when nothing is known of the others.

    What it draws comes from a fixed key (`attacks.fixed_draws`).

    Args:
      model: the model (static), whose operations mix no records (no batch normalisation).
      messages: the client's.
      knowledge: of the records that are known in part; `y=None` and several columns as for `gls`.
      x_public: records of the same kind as the others `[public, features]`, many times as many as
        these are. None of them is the client's: whoever has such records knows the column. Copies
        are seen outside `jit` alone: inside, leave none. Memory grows with
        (records K + public)^2.
      y_public: their labels `[public]`.
      settings: see `PartialDecoding`.
      dtype: as for `closed_form`.

    Returns:
      A `Reconstruction`. Its `fit` is in units of the others' noise, not of plain energy:
        `explained` is the share of the messages' whitened energy that the answer and the others'
        mean account for, and `misfit` compares what is left with sums of held-out public records,
        and what the known records add, whatever their unknown values are, with what they should
        add. Where so few are known that another client's messages would not be told by that, the
        status is UNCHECKED. Of some tens of public records alone neither is sure. If a few records
        have far longer gradients than the rest, right answers may be called misfits.

    Warns:
      FitWarning: if all public records have the same value of an unknown column, and as
        `closed_form`.

    Raises:
      ValueError: as `gls`; if public records are fewer than 20, do not fit the model or hold values
        of an unknown column that are none of its candidates, or the recipe has plug-ins.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_apart("decode_partial", model, messages, knowledge)
    training = settings.training
    check_linear(training.optimizer, messages.model_shapes)
    if training.plugins:
        raise ValueError(f"training.plugins holds {training.plugins}; decode_partial knows none")
    records = len(knowledge.x) + settings.others
    if tuple(training.batch_sizes(records)) != (records,):
        raise ValueError(
            f"training.batch_size={training.batch_size} makes batches of {records} records; "
            "decode_partial is for clients whose steps take all of them"
        )
    x_public, y_public = jnp.asarray(x_public, knowledge.x.dtype), jnp.asarray(y_public)
    _check.shape((len(x_public),), y_public=y_public)
    named = {"x_name": "x_public", "y_name": "y_public"}
    check_labelled(model, messages.model_shapes, x_public, y_public, **named)
    if len(x_public) < FEWEST:
        raise ValueError(f"x_public has {len(x_public)} records; {FEWEST} are needed at least")
    check_values(x_public, knowledge)
    joint, dtype = joined("decode_partial", knowledge), floating(dtype)
    with arithmetic(dtype, messages, joint, x_public, settings):
        public, dtype = (x_public, y_public), canonicalize_dtype(dtype)
        held = held_out_of(x_public, y_public)
        answer = _decode_partial(model, messages, joint, public, held, settings, dtype)
    return explained("decode_partial", messages, apart(answer, knowledge.columns), answer.fit)


@functools.partial(jax.jit, static_argnames=("model", "dtype"))
def _decode_partial(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    public: tuple[Array, Array],
    held_out: tuple[Array, Array],
    settings: PartialDecoding,
    dtype: Any,
) -> Reconstruction:
    eps, told_by = precision(messages), equations(messages.pseudo_gradient)
    messages, knowledge, public, settings = cast((messages, knowledge, public, settings), dtype)
    x, y = candidate_records(model, knowledge)
    records, count = x.shape[:2]
    prior = prior_weights(model, knowledge, count)
    with jax.default_matmul_precision("highest"):
        products = _products(model, messages, (x, y), public, settings)
        least = _rounding(model, messages, public, settings, eps, records)
        seen = _whitened(products, (records, count), held_out, settings.others, least)
        held, fitted = map(len, held_out)
        counts = Counts(records, settings.others, fitted, held)
        weights, (height, rounded) = most_likely(
            seen.scale * seen.metric[: len(prior), : len(prior)],
            seen.scale * seen.metric[: len(prior), LEFT],
            prior,
            records,
            settings.ridge,
            settings.iterations,
        )
        fit = _fit(seen, weights, rounded, told_by, prior, counts)
    values, labels, scores = told(knowledge, with_first(weights.reshape(records, -1)))
    failed = ~(jnp.isfinite(weights).all() & jnp.isfinite(height[-1]))
    objective, trace = height[-1], height[:1]
    answer = answered(
        failed, (values,), (scores,), labels, objective=objective, trace=trace, fit=fit
    )
    return cast(answer, jnp.float32, jnp.int32)


class _Products(NamedTuple):
    """Inner products, summed over rounds, of gradients of all candidates and public records, which
    come after them.

    Attributes:
      inner: with each other `[gradients, gradients]`.
      along: with the messages, in units of a record's gradient `[gradients]`.
      energy: of these.
    """

    inner: Array
    along: Array
    energy: Array


def _products(
    model: Model,
    messages: Messages,
    candidates: tuple[Array, Array],
    public: tuple[Array, Array],
    settings: PartialDecoding,
) -> _Products:
    x, y = (
        jnp.concatenate([ours.reshape(-1, *ours.shape[2:]), theirs])
        for ours, theirs in zip(candidates, public, strict=True)
    )
    training, records = settings.training, len(candidates[0]) + settings.others
    unit, path = _unit(training, records), local_path(training, records)

    def add(total: _Products, seen: tuple[Any, Any]) -> tuple[_Products, None]:
        received, update = seen
        centre = on_path(received, update, path.centre)
        gradients = factored_gradients(model, centre, x, y)
        alone = moved_alone(training, received, records)
        message = jax.tree.map(lambda u, a: (u - a) / unit, update, alone)
        energy = energies(jax.tree.map(lambda a: a[None], message))[0]
        one = _Products(gradients.gram(), gradients.along(message), energy)
        return jax.tree.map(jnp.add, total, one), None

    zero = _Products(*(jnp.zeros(shape, x.dtype) for shape in ((len(x),) * 2, (len(x),), ())))
    return jax.lax.scan(add, zero, (messages.received, messages.pseudo_gradient))[0]


def _unit(training: LocalTraining, records: int) -> Array:
    """What a record's gradient adds to an update."""
    return training.learning_rate * batch_weights(training, records)[0]


def _rounding(
    model: Model,
    messages: Messages,
    public: tuple[Array, Array],
    settings: PartialDecoding,
    eps: Array,
    known: int,
) -> Array:
    """Variance per number that rounding leaves of a message, in units of a record's gradient."""
    training, records = settings.training, known + settings.others
    updates, steps = messages.pseudo_gradient, training.steps(records)
    lengths = training.learning_rate * mean_lengths(model, messages.received, *public)
    share = rounding(messages.received, updates, lengths, eps, steps)
    energy = jnp.where(jnp.isfinite(share), share * energies(updates), 0).sum()
    numbers = sum(leaf.size for leaf in jax.tree.leaves(updates))
    return energy / numbers / _unit(training, records) ** 2


def _whitened(
    products: _Products,
    shape: tuple[int, int],
    held_out: tuple[Any, Any],
    others: int,
    least: Array,
) -> Whitened:
    """See there; of so many records and candidates of each (`shape`, static); `least` is what f is
    at least."""
    inner, along, vectors = _vectors(products, shape, held_out, others)
    unknowns = shape[0] * (shape[1] - 1)
    # Eigenvectors of the noise, times the roots of their eigenvalues.
    values, turned = jnp.linalg.eigh(inner)
    values = jnp.maximum(values, 0)
    coordinates = along.T @ turned
    scale = jnp.trace(inner) * jnp.asarray(FLOORS, inner.dtype) + least

    def metric(floor: Array) -> Array:
        weighted = coordinates / (values + floor)
        return (vectors - weighted @ coordinates.T) / floor

    def contrast(floor: Array) -> tuple[Array, Array]:
        signal = jnp.diag(vectors)[:unknowns]
        ours, held = coordinates[:unknowns] / (values + floor), coordinates[unknowns:FIRST]
        signal = (signal - (ours * coordinates[:unknowns]).sum(1)) / floor
        noise = (vectors[:unknowns, unknowns:FIRST] - ours @ held.T) / floor
        variance = others * (noise**2).mean(1)
        tiny = jnp.finfo(inner.dtype).tiny
        deflection = jnp.log(jnp.maximum(signal**2 / jnp.maximum(variance, tiny), tiny))
        return deflection.mean(), signal.mean() / jnp.maximum(variance.mean(), tiny)

    contrasts, scales = jax.lax.map(contrast, scale)
    best = contrasts.argmax()
    chosen = metric(scale[best])
    held = chosen[unknowns:FIRST, unknowns:FIRST]
    drawn = jax.random.randint(fixed_key(), (SUMS, others), 0, len(held))
    counts = jax.vmap(lambda d: jnp.zeros(len(held), held.dtype).at[d].add(1))(drawn)
    sums = jnp.einsum("sh,hg,sg->s", counts, held, counts)
    return Whitened(chosen, scales[best], largest_of_more(sums, FALSE_ALARMS))


def _vectors(
    products: _Products, shape: tuple[int, int], held_out: tuple[Any, Any], others: int
) -> tuple[Array, Array, Array]:
    """Rows of the noise, by inner products: with each other `[fitted] * 2`, and with the vectors of
    `Whitened` `[fitted, vectors]`; and these with each other."""
    inner, along, energy = products
    known = shape[0] * shape[1]
    held, fitted = (known + places for places in held_out)
    # Gradients as combinations of the given ones and, last, of the messages.
    whole = jnp.block([[inner, along[:, None]], [along[None], energy[None, None]]])
    mean = jnp.zeros(len(whole), inner.dtype).at[fitted].set(1 / len(fitted))
    eye = jnp.eye(len(whole), dtype=inner.dtype)
    ours = eye[:known].reshape(*shape, -1)
    message = eye[-1]
    left = message - ours[:, 0].sum(0) - others * mean
    differences = (ours[:, 1:] - ours[:, :1]).reshape(-1, len(whole))
    first = ours[:, 0].sum(0) - shape[0] * mean
    rows = jnp.concatenate([differences, eye[held] - mean, jnp.stack([first, left, message])])
    noise = (others / len(fitted)) ** 0.5 * (eye[fitted] - mean)
    seen = rows @ whole
    return noise @ whole @ noise.T, noise @ seen.T, seen @ rows.T


def _fit(
    seen: Whitened,
    weights: Array,
    rounded: Array,
    told_by: Array,
    prior: Array,
    counts: Counts,
) -> Fit:
    """Fit of the rounded answer. Its misfit is the lesser one of that and the real-valued one, or
    that of the known records' presence; where that cannot be told, nothing is allowed for."""
    unknowns = len(weights)
    ours, right = seen.metric[:unknowns, :unknowns], seen.metric[:unknowns, LEFT]
    whole = seen.metric[-1, -1]

    def left(w: Array) -> Array:
        return seen.metric[LEFT, LEFT] - 2 * w @ right + w @ ours @ w

    presence = presence_of(seen, prior, counts)
    misfit = jnp.minimum(left(weights), left(rounded)) / seen.largest
    misfit = jnp.maximum(misfit, astray(presence, counts))
    misfit = jnp.where(told_by > unknowns, misfit, jnp.nan)
    allowed = 1 - seen.largest / whole
    allowed = jnp.where(told_apart(presence, counts), allowed, jnp.minimum(allowed, 0))
    return Fit(1 - left(rounded) / whole, allowed, misfit)
