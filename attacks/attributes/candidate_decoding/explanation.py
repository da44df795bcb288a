"""Does an answer on unknown columns explain a client's messages, whatever the client's recipe?

The client is simulated on the answer `RUNS` times, in fresh orders, or `SURE_RUNS` times if it
draws none. What is left of its messages, r = u - mean, is compared with what is left of a run, e_m
= u_m - mean of the others. Wrong values of the unknown columns add to r what the candidates'
gradients span, so that this span, over all rounds together, is taken off r and e_m by least
squares. If model, recipe and known data are right, r is then noise as the e_m are. It is compared
in its length and along two directions: the gradient, which another learning rate or number of steps
adds to, and the model, which weight decay does. How far r may lie out is said by the prediction
interval of Student's t over the runs.

Gradients are taken at the centre of the client's path, which is exact to first order; the answer
that does not pass is corrected by the least squares and judged again, while that brings it closer,
and the best verdict counts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.alternatives import (
    MOST_JOINT,
    Alternatives,
    alternatives,
    least_sure,
    records_of,
)
from attacks.attributes.candidate_decoding.client_rounding import client_rounding, effect_of_one
from attacks.attributes.candidate_decoding.factored_gradients import (
    factored_gradients,
)
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.attributes.candidate_decoding.looks import (
    CLOSER,
    Look,
    is_judged_again,
    looks_on,
    moved_by,
    on_weights,
)
from attacks.attributes.candidate_decoding.resolution import resolved_alone
from attacks.attributes.candidate_decoding.simulated_client import (
    Guess,
    Simulation,
    clipping,
    either,
    model_of_gradients,
    simulation_of,
)
from attacks.attributes.knowledge import Knowledge, Reconstruction
from attacks.fit import (
    FALSE_ALARMS,
    ROUNDING,
    Fit,
    energies,
    equations,
    no_fit,
)
from attacks.path import local_path, on_path
from attacks.precision import arithmetic, cast
from jaxfl import LocalTraining, Messages, Model
from jaxfl.models.probe import mixes_records
from jaxfl.plugins import overriding

Array = jax.Array
JUDGED = 2**32 - 1
"""The stream of runs that judge an answer, apart from the attack's own."""


Directions = tuple[Callable[[Any], Any], ...]
"""From a model to a tree like it, along which what is left is looked at."""


def judge(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    answer: Reconstruction,
    training: LocalTraining,
    key: Array,
    *,
    free_scale: bool = False,
) -> Fit:
    """How well an answer explains messages under a recipe.

    Args:
      model: the model (static).
      messages: the client's.
      knowledge: what is known, checked.
      answer: of an attack; its scores say which records are unsure.
      training: the recipe that the attack was told.
      key: draws the orders of the runs.
      free_scale: whether updates may have any length (static): then the learning rate is not
        judged.
    """
    training = as_wide(training, knowledge)
    chosen = answer.values, answer.scores, answer.labels
    with arithmetic(np.dtype(np.float64), messages, knowledge, chosen, key, training):
        return cast(
            _judge(model, messages, knowledge, chosen, training, key, free_scale), jnp.float32
        )


def as_wide(training: LocalTraining, knowledge: Knowledge) -> LocalTraining:
    """A recipe whose numbers are as wide as the records: clients compute in no more."""
    dtype = knowledge.x.dtype
    return jax.tree.map(lambda a: jnp.asarray(a, dtype) if isinstance(a, float) else a, training)


@functools.partial(jax.jit, static_argnames=("model", "free_scale"))
def _judge(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    answer: Any,
    training: LocalTraining,
    key: Array,
    free_scale: bool,
) -> Fit:
    each = alternatives(model, knowledge, answer)
    records, count = each.x.shape[:2]
    unsure, data = least_sure(each), records_of(each)
    updates = messages.pseudo_gradient
    noise = client_rounding(model, messages, training, (data.x, data.y), free_scale)
    # What mixes records, or changes a batch before its gradient is taken, has another span.
    mixes = mixes_records(model, messages.model_shapes, each.x[:, 0])
    plain = not (mixes or overriding("batch", training.plugins))
    told = plain & (equations(updates) > len(unsure) * (count - 1))
    model_told, model = model, model_of_gradients(model, training, data.y)
    labels = data.y if answer[2] is None else each.y

    dtype = jnp.result_type(float)
    on_answer = simulation_of(Guess(model_told, data, training), messages.received, dtype)
    known = plain and len(unsure) == records and count <= MOST_JOINT
    effect = effect_of_one(model_told, messages, training, data, free_scale) if known else None

    def seen_with(client: Simulation, number: int | Array) -> tuple[Fit, Array]:
        pass_key = jax.random.fold_in(key, number)
        left = left_of(model, messages, client, each, unsure, pass_key, free_scale)
        fit = verdict(left, noise, (energies(updates) > 0).sum(), free_scale)
        misfit = jnp.where(_is_backwards(left), jnp.inf, fit.misfit)
        stay = _resolved(left, each, unsure, noise, equations(updates), effect)
        return dataclasses.replace(fit, misfit=misfit, resolved=stay), left.step

    def look_at(look: Look) -> Look:
        corrected = on_weights(model_told, training, each, labels, unsure, look.weights)
        weighted = simulation_of(corrected, messages.received, dtype, on_answer.run_count)
        first = look.number == 0
        fit, step = seen_with(either(first, on_answer, weighted), look.number)
        kept = jax.tree.map(functools.partial(jnp.where, first), fit, look.fit)
        return Look(
            look.number + 1,
            moved_by(training, records, look.weights, step),
            dataclasses.replace(kept, misfit=jnp.minimum(kept.misfit, fit.misfit)),
            first | (fit.misfit < look.fit.misfit / CLOSER),
        )

    with jax.default_matmul_precision("highest"):
        if is_judged_again(training, records):
            # Most answers pass at once, and another look is as dear as the first.
            fit = jax.lax.while_loop(looks_on, look_at, _first_look(each, unsure)).fit
        else:
            fit, _ = seen_with(on_answer, 0)
    return _where_told(fit, told, updates)


def _first_look(each: Alternatives, unsure: Array) -> Look:
    weights = jax.nn.one_hot(each.chosen, each.x.shape[1], dtype=each.x.dtype)[unsure]
    nothing = cast(no_fit(), jnp.result_type(float))
    return Look(jnp.zeros((), int), weights, nothing, jnp.ones((), bool))


def _where_told(fit: Fit, told: Array, updates: Any) -> Fit:
    misfit = jnp.where(told, fit.misfit, jnp.nan)
    # A client that trains returns another model than it received.
    moved = (energies(updates) > 0).any()
    return dataclasses.replace(fit, misfit=jnp.where(moved, misfit, jnp.inf))


class Left(NamedTuple):
    """What is left of the messages and of the runs, summed over rounds.

    Attributes:
      before: inner products of messages, runs and directions `[1 + runs + 2] * 2` as they are.
      after: the same without the candidates' span.
      step: least squares' weights of what is left of the messages `[unknowns]`.
      pull: by how much the ridge may have raised what is left.
      blocks: inner products of the gradients of each record's unknowns.
      along: inner products of messages, runs and directions with the runs' mean, where updates may
        have any length; the first with that of the values that point most along the messages.
    """

    before: Array
    after: Array
    step: Array
    pull: Array
    blocks: Array | None = None
    along: Array | None = None


def left_of(  # noqa: PLR0913 - what a client is compared with, and how
    model: Model,
    messages: Messages,
    client: Simulation,
    each: Alternatives,
    unsure: Array,
    key: Array,
    free_scale: bool,
    more: Directions = (),
) -> Left:
    """What is left of the messages, and of the client's simulated runs, summed over rounds."""
    x, y = cast((each.x[unsure], each.y[unsure]), jnp.result_type(float))
    unknowns = x.shape[0] * (x.shape[1] - 1)
    updates = messages.pseudo_gradient

    def add(total: Any, seen: Any) -> tuple[Any, None]:
        received, update, weight, key = seen
        run = client.runs(received, key)
        vectors = _vectors(client, received, update, run, x.dtype, more)
        products = _products(model, client, vectors, x, y, free_scale)
        return jax.tree.map(lambda t, p: t + weight * p, total, products), None

    rounds = messages.received, updates, relative_weights(updates)
    keys = jax.random.split(key, len(messages))
    rows = client.run_count + 3 + len(more)
    shapes = (unknowns, unknowns), (unknowns, rows), (rows, rows), (), (rows,), (unknowns,)
    zero = tuple(jnp.zeros(shape, x.dtype) for shape in shapes)
    (gram, along, inner, scale, common, each_along), _ = jax.lax.scan(add, zero, (*rounds, keys))
    each_record = (len(x), x.shape[1] - 1) * 2
    blocks = jnp.moveaxis(jnp.diagonal(gram.reshape(each_record), 0, 0, 2), -1, 0)
    left = without_span(span_of(gram, scale), along, inner)._replace(blocks=blocks)
    if not free_scale:
        return left
    gains = jnp.concatenate([jnp.zeros((len(x), 1)), each_along.reshape(len(x), -1)], 1)
    chosen = jnp.take_along_axis(gains, each.chosen[unsure][:, None], 1)[:, 0]
    path = local_path(client.training, client.records).total
    unit = client.training.learning_rate * path / client.records
    return left._replace(along=common.at[0].add(unit * (gains.max(1) - chosen).sum()))


def span_of(gram: Array, scale: Array) -> tuple[Any, Array]:
    """The factor of the Gram matrix of unknowns' gradients, and the ridge in it; `scale` is the
    mean square of the gradients of which these may be differences, which are as inexact."""
    level = ROUNDING * jnp.finfo(gram.dtype).eps * scale + jnp.finfo(gram.dtype).tiny
    ridged = gram + level * jnp.eye(len(gram), dtype=gram.dtype)
    return jax.scipy.linalg.cho_factor(ridged, lower=True), level


def without_span(span: tuple[Any, Array], along: Array, inner: Array) -> Left:
    """What a span leaves of vectors, from their products with the unknowns' gradients `[unknowns,
    vectors]` and with each other `[vectors, vectors]`."""
    factor, level = span
    solved = jax.scipy.linalg.cho_solve(factor, along)
    pulls = level * solved.T @ solved
    return Left(inner, inner - along.T @ solved - pulls, solved[:, 0], pulls[0, 0])


class _Vectors(NamedTuple):
    """What is compared in a round.

    Attributes:
      rows: what is left of the message, of each run, and the directions, the gradient and the
        model last `[1 + runs + directions, parameters]`.
      mean: of the runs `[parameters]`.
      update: the message `[parameters]`.
      centre: the model at the centre of the client's path.
    """

    rows: Array
    mean: Array
    update: Array
    centre: Any


def _vectors(
    client: Simulation, received: Any, update: Any, runs: Array, dtype: Any, more: Directions
) -> _Vectors:
    received, update, runs = cast((received, update, runs), dtype)
    path = local_path(client.training, client.records)
    mean, (flat, unravel) = runs.mean(0), ravel_pytree(received)
    # Of no noise that is in what is compared: not of the path that was seen, and directions of no
    # run.
    centre = unravel(on_path(flat, mean, path.centre))
    downhill = ravel_pytree(client.downhill(received))[0]
    noise = deviations(runs)
    seen = ravel_pytree(update)[0]
    others = [ravel_pytree(direction(centre))[0] for direction in more]
    return _Vectors(jnp.stack([seen - mean, *noise, *others, downhill, flat]), mean, seen, centre)


def deviations(runs: Array) -> Array:
    """Deviations of runs `[runs, ...]` from their mean, as large as a message's from the mean of
    runs."""
    return (runs - runs.mean(0)) * ((len(runs) + 1) / (len(runs) - 1)) ** 0.5


def _products(
    model: Model, client: Simulation, vectors: _Vectors, x: Array, y: Array, free_scale: bool
) -> tuple[Array, ...]:
    """Inner products of a round: of the candidates' differences with each other and with the
    vectors, of the vectors, the mean square of the candidates' gradients, inner products of
    message, runs and directions with the runs' mean, and those of the candidates' differences with
    the message."""
    records, count = x.shape[:2]
    rows, unravel = vectors.rows, ravel_pytree(vectors.centre)[1]
    gradients = factored_gradients(
        model, vectors.centre, x.reshape(-1, *x.shape[2:]), y.reshape(-1)
    )
    gram, factor = gradients.gram(), jnp.ones(())
    if client.training.privacy is not None:
        factor = clipping(jnp.diag(gram), client.training.privacy.clip)
        gram *= factor[:, None] * factor
    scale = jnp.trace(gram) / len(gram)

    def difference(a: Array) -> Array:
        a = a.reshape(records, count, *a.shape[1:])
        return (a[:, 1:] - a[:, :1]).reshape(records * (count - 1), *a.shape[2:])

    def project(vector: Array) -> Array:
        return difference(factor * gradients.along(unravel(vector)))

    gram = difference(difference(gram).T)
    along, gains = jnp.zeros(len(rows), x.dtype), jnp.zeros(len(gram), x.dtype)
    if free_scale:
        gains = project(vectors.update)
        length = jnp.maximum(jnp.linalg.norm(vectors.mean), jnp.finfo(x.dtype).tiny)
        unit = vectors.mean / length
        # Runs of the recipe's rate are noise as long as the messages' where these are as long.
        times = jnp.linalg.norm(vectors.update) / length
        runs = slice(1, len(rows) - 2)
        rows = rows.at[runs].multiply(times).at[0].set(vectors.update)
        along = rows @ vectors.mean
        rows -= jnp.outer(rows @ unit, unit)
        common = project(unit)
        gram -= jnp.outer(common, common)
    return gram, jax.lax.map(project, rows).T, rows @ rows.T, scale, along, gains


def _resolved(
    left: Left, each: Alternatives, unsure: Array, rounded: Array, count: Array, effect: Any
) -> Array:
    """What share of the values rounding and the runs' noise leave at most, spread over so many
    equations; `effect` is that of one record, or None where it is not known."""
    if effect is None or left.blocks is None:
        return jnp.full_like(rounded, jnp.nan)
    runs = jnp.diag(left.before)[1 : len(left.before) - 2]
    deviation = jnp.sqrt((rounded + runs.mean()) / count) / effect
    in_order = jax.tree.map(lambda a: a[unsure], each)
    return resolved_alone(left.blocks, in_order, deviation)


def _is_backwards(left: Left) -> Array:
    """Whether messages of any length go against the runs, whatever the unknown values, by more than
    noise may turn them."""
    if left.along is None:
        return jnp.zeros((), bool)
    runs = left.along[1 : len(left.before) - 2]
    t = scipy.stats.t.ppf(1 - FALSE_ALARMS / 8, len(runs) - 1)
    return left.along[0] < -t * jnp.sqrt((runs**2).mean())


def verdict(left: Left, rounded: Array, rounds: Array, free_scale: bool) -> Fit:
    """From what is left of so many rounds; `rounded` is what rounding may leave of all."""
    inexact = ROUNDING * jnp.finfo(left.before.dtype).eps
    directions = slice(-1, None) if free_scale else slice(-2, None)
    runs = slice(1, len(left.before) - 2)
    before, after = jnp.diag(left.before), jnp.maximum(jnp.diag(left.after), 0)
    slack = rounded + inexact * before[0] + left.pull
    length = after[0] / (largest_of_more(after[runs], FALSE_ALARMS / 2) + slack)
    across, squares = left.after[:, directions], after[directions]
    # Half of the false alarms are of the length, the others of two directions, on either side.
    t = scipy.stats.t.ppf(1 - FALSE_ALARMS / 8, len(left.before) - 4)
    spread = t**2 * (across[runs] ** 2).mean(0) + slack * squares
    there = squares > inexact * before[directions]
    along = jnp.where(there, across[0] ** 2 / jnp.where(there, spread, 1), 0)
    allowed = largest_of_more(before[runs], FALSE_ALARMS) + rounded
    misfit = jnp.maximum(length, along.max())
    return Fit(1 - before[0] / rounds, 1 - allowed / rounds, misfit)


def largest_of_more(squares: Array, alarms: float) -> Array:
    """What one more square like these exceeds in so many cases; their logarithms are about
    normal."""
    logs = jnp.log(jnp.maximum(squares, jnp.finfo(squares.dtype).tiny))
    t = scipy.stats.t.ppf(1 - alarms, len(squares) - 1)
    return jnp.exp(logs.mean() + t * logs.std(ddof=1) * (1 + 1 / len(squares)) ** 0.5)
