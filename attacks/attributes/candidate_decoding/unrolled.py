"""Decoding clients of any optimiser, by generalised least squares through their simulated training.

Threat model: that of `gls`, of a client whose optimiser need not be linear: Adam in batches, for
example. The server prescribed its recipe, and knows its records but for a column or a few.

The client's own training is simulated on a guess w of the candidates' weights, in M fresh orders of
its records: round t's updates then have a mean mu_t(w) and deviations D_t `[M, parameters]`. The
training is differentiable in the weights; its derivative J_t, the mean over some orders, says what
every candidate would add. A message is, to first order,

    u_t = mu_t(w) + J_t (v - w) + e_t,    cov(e_t) = D_t'D_t / (M - 1) + f_t I,

where f_t is the runs' mean variance of one number: what M runs do not span, and what the
linearisation misses. All rounds together are a quadratic in v, which is minimised under 0 <= v and
sum_k v_nk <= 1; then all is simulated anew on the answer. Only inner products of J_t, D_t and u_t -
mu_t enter.

Where `gls` applies it is much faster: it takes derivatives from gradients at the path's centre, and
most of the covariance from theory. Here both come from runs, whatever the client does.

The answer is judged by runs of the client simulated on it that nothing was learned from: what the
candidates' span leaves of the messages is compared with what it leaves of those.

A client that draws nothing at random, by full batches or by batches that are not shuffled, leaves
rounding alone: see `attacks.attributes.candidate_decoding.unrolled_exactly`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.dtypes import canonicalize_dtype
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.candidates import (
    candidate_records,
    prior_weights,
    with_first,
)
from attacks.attributes.candidate_decoding.constraints import most_likely
from attacks.attributes.candidate_decoding.explanation import judge, largest_of_more
from attacks.attributes.candidate_decoding.joint import apart, joined, told
from attacks.attributes.candidate_decoding.unrolled_client import UnrolledClient
from attacks.attributes.candidate_decoding.unrolled_exactly import exactly_unrolled
from attacks.attributes.knowledge import (
    Knowledge,
    Reconstruction,
    answered,
    check_apart,
    check_knowledge,
    explained,
    float_type,
)
from attacks.fit import FALSE_ALARMS, Fit, energies, equations, precision, rounding
from attacks.path import is_linear
from attacks.precision import arithmetic, cast
from jaxfl import ClassWeights, LocalTraining, Messages, Model
from jaxfl.domains import Count, Key, NotNegative, Positive, check, checked
from jaxfl.models.probe import draws_at_random

Array = jax.Array
JUDGES = 24
"""Runs on the answer that nothing is learned from."""


@struct.dataclass
class UnrolledGLS:
    """Settings of `gls_unrolled`. Of clients that draw nothing at random `training` alone counts.

    Attributes:
      training: the client's recipe: any optimiser of optax, whose state begins anew in every round.
        Of plug-ins it may have `ClassWeights`.
      runs: simulated in every round and pass, which tell mean and noise (static).
      tangents: of these many runs the derivative is the mean (static). Most of the time is theirs.
      passes: linearisations (static).
      floor: of f, in parts of the runs' mean variance of one number.
      ridge: pull towards the prior, relative to the precision of a draw from it.
    """

    training: LocalTraining
    _: dataclasses.KW_ONLY
    runs: Count = struct.field(pytree_node=False, default=512)
    tangents: Count = struct.field(pytree_node=False, default=8)
    passes: Count = struct.field(pytree_node=False, default=3)
    floor: Positive = 1.0
    ridge: NotNegative = 1.0


@checked
def gls_unrolled(
    model: Model, messages: Messages, knowledge: Knowledge, key: Key, *, settings: UnrolledGLS
) -> Reconstruction:
    """Reconstruct unknown columns, and labels if they are unknown, from the messages of a client
    that trains in batches, drawn or as its records stand, or takes several full-batch steps, by
    any optimiser that can be simulated: Adam, for example.

    Args:
      model: the model (static), whose operations mix no records (no batch normalisation).
      messages: the client's.
      knowledge: what is known; `y=None` and several columns as for `gls`. Where batches are not
        drawn (`LocalTraining.shuffle`), its records must be in the client's order.
      key: draws simulated orders, and dropout.
      settings: see `UnrolledGLS`.

    Returns:
      A `Reconstruction`, computed in float64 (in float32 inside an outer `jit` that runs without
      64-bit types) from runs in the models' own precision. Time grows with records times values,
      times `tangents`, times what a client's training takes; memory with that product without
      `tangents`, times the number of parameters. Of its `fit`, `misfit` compares what no values of
      the unknowns explain with what they do not explain of fresh runs.

      Of a client that draws nothing at random `objective` and `trace` are the parts of the
      messages' energy that the rounded answer and each pass leave; memory and time grow with the
      records once more. With an optimiser that is not linear, such as Adam, the search may end
      short of its own recipe: what would be a misfit is `UNCHECKED` then.

    Raises:
      ValueError: as `gls` but for the optimiser and batches that are not drawn; if the recipe has
        plug-ins other than `ClassWeights`, or `runs` are fewer than 2.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_apart("gls_unrolled", model, messages, knowledge)
    _check_settings(settings, knowledge)
    joint, training = joined("gls_unrolled", knowledge), settings.training
    dtype = jnp.dtype("float64")
    with arithmetic(dtype, messages, joint, key, settings):
        dtype = canonicalize_dtype(dtype)
        if _is_exact(model, messages, knowledge, training):
            linear = is_linear(training.optimizer, messages.model_shapes)
            answer = exactly_unrolled(model, messages, joint, training, linear, dtype)
        else:
            answer = _gls_unrolled(model, messages, joint, key, settings, dtype)
    answer = apart(answer, knowledge.columns)
    fit: Fit = answer.fit
    if _is_exact(model, messages, knowledge, training):
        fit = judge(model, messages, knowledge, answer, training, key)
        if not is_linear(training.optimizer, messages.model_shapes):
            # The search may have ended short, of this very recipe.
            misfit = jnp.where(fit.misfit > 1, jnp.nan, fit.misfit)
            fit = dataclasses.replace(fit, misfit=misfit)
    return explained("gls_unrolled", messages, answer, fit)


def _is_exact(
    model: Model, messages: Messages, knowledge: Knowledge, training: LocalTraining
) -> bool:
    """Whether a recipe draws nothing at random."""
    drawn = training.draws_batches(len(knowledge.x))
    return not (drawn or draws_at_random(model, messages.model_shapes, knowledge.x))


def _check_settings(settings: UnrolledGLS, knowledge: Knowledge) -> None:
    check("settings.training.learning_rate", settings.training.learning_rate, Positive)
    odd = [p for p in settings.training.plugins if not isinstance(p, ClassWeights)]
    if odd:
        raise ValueError(
            f"training.plugins holds {odd[0]!r}; gls_unrolled knows ClassWeights alone"
        )
    if settings.training.plugins and knowledge.y is None:
        raise ValueError("y=None does not go with ClassWeights; give labels")
    if settings.runs < 2:
        raise ValueError(f"runs={settings.runs} must be at least 2: how they differ is the noise")


@functools.partial(jax.jit, static_argnames=("model", "dtype"))
def _gls_unrolled(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    key: Array,
    settings: UnrolledGLS,
    dtype: Any,
) -> Reconstruction:
    narrow, eps = float_type(messages.received), precision(messages)
    told_by, received = equations(messages.pseudo_gradient), messages.received
    knowledge, settings = cast((knowledge, settings), narrow)
    x, y = candidate_records(model, knowledge)
    each_label = y if knowledge.y is None else knowledge.y
    client = UnrolledClient(model, x, each_label, settings.training)
    records, count = x.shape[:2]
    prior = prior_weights(model, knowledge, count).astype(dtype)
    updates = cast(messages.pseudo_gradient, dtype)
    left = _rounding(received, updates, eps, settings.training.steps(records))
    rounds = cast(received, narrow), jax.vmap(lambda u: ravel_pytree(u)[0])(updates), left

    def one_pass(at: Array, seen: tuple[Array, Array]) -> tuple[Array, Any]:
        key, is_last = seen
        total = _summed(client, settings, rounds, at, key)
        right = total.along[:, 0] + total.gram @ at
        ridge = cast(settings.ridge, dtype)
        solution, (heights, rounded) = most_likely(total.gram, right, prior, records, ridge, None)
        return jnp.where(is_last, rounded, solution), (total, solution, heights)

    with jax.default_matmul_precision("highest"):
        # After the last pass the rounded answer is judged, by one more of the same program.
        keys, last = jax.random.split(key, settings.passes + 1), settings.passes - 1
        totals, solutions, heights = jax.lax.scan(
            one_pass, prior, (keys, jnp.arange(settings.passes + 1) == last)
        )[1]
        fit = _fit(jax.tree.map(lambda a: a[-1], totals), rounds, told_by)
    weights, heights = solutions[last], heights[: last + 1]
    trace, objectives = heights.T
    values, labels, scores = told(knowledge, with_first(weights.reshape(records, -1)))
    failed = ~(jnp.isfinite(weights).all() & jnp.isfinite(trace).all())
    answer = answered(
        failed, (values,), (scores,), labels, objective=objectives[-1], trace=trace, fit=fit
    )
    return cast(answer, jnp.float32, jnp.int32)


def _rounding(received: Any, updates: Any, eps: Array, steps: int) -> Array:
    """Variance of one number `[rounds]` that rounding leaves of an update."""
    squares = energies(updates)
    share = rounding(received, updates, jnp.sqrt(squares), eps, steps)
    numbers = sum(leaf[0].size for leaf in jax.tree.leaves(updates))
    return jnp.where(squares > 0, share * squares, 0) / numbers


class _Sums(NamedTuple):
    """Inner products in the metric of the noise, summed over rounds.

    Attributes:
      gram: of the derivatives `[unknowns, unknowns]`.
      along: of the derivatives with what is left of the messages and of judging runs `[unknowns, 1
        + judges]`.
      inner: of these with themselves `[1 + judges]`.
      plain: their energy `[1 + judges]`.
    """

    gram: Array
    along: Array
    inner: Array
    plain: Array


def _summed(
    client: UnrolledClient, settings: UnrolledGLS, rounds: Any, weights: Array, key: Array
) -> _Sums:
    """Over all rounds, linearised at `weights`; of the messages, and of judging runs."""
    unknowns, dtype, vectors = len(weights), weights.dtype, 1 + JUDGES

    def add(total: _Sums, seen: Any) -> tuple[_Sums, None]:
        (received, update, left), key = seen
        learned_key, judging_key, tangent_key = jax.random.split(key, 3)
        runs = client.runs(received, weights, learned_key, settings.runs).astype(dtype)
        mean = runs.mean(0)
        judging = client.runs(received, weights, judging_key, JUDGES).astype(dtype)
        rows = jnp.concatenate([update[None], judging])
        derivative = _mean_derivative(client, settings, received, weights, tangent_key)
        floor = cast(settings.floor, dtype)
        noise = (runs - mean) / (len(runs) - 1) ** 0.5
        one = _in_metric(noise, derivative.astype(dtype), rows - mean, floor, left)
        return jax.tree.map(jnp.add, total, one), None

    shapes = (unknowns, unknowns), (unknowns, vectors), (vectors,), (vectors,)
    zero = _Sums(*(jnp.zeros(shape, dtype) for shape in shapes))
    return jax.lax.scan(add, zero, (rounds, jax.random.split(key, len(rounds[1]))))[0]


def _mean_derivative(
    client: UnrolledClient, settings: UnrolledGLS, received: Any, weights: Array, key: Array
) -> Array:
    """Derivative of the update by the weights, the mean over runs `[unknowns, parameters]`."""

    def add(total: Array, key: Array) -> tuple[Array, None]:
        return total + client.derivative(received, weights, key), None

    zero = jnp.zeros((len(weights), _numbers(received)), client.x.dtype)
    keys = jax.random.split(key, settings.tangents)
    return jax.lax.scan(add, zero, keys)[0] / settings.tangents


def _in_metric(noise: Array, derivative: Array, rows: Array, floor: Array, least: Array) -> _Sums:
    """Sums of one round, by the inverse of `noise' noise + f I` (Woodbury's identity)."""
    gram = noise @ noise.T
    f = floor * jnp.trace(gram) / noise.shape[1] + least + jnp.finfo(noise.dtype).tiny
    factor = jax.scipy.linalg.cholesky(gram + f * jnp.eye(len(gram), dtype=gram.dtype), lower=True)
    both = jnp.concatenate([derivative, rows])
    inside = jax.scipy.linalg.solve_triangular(factor, noise @ both.T, lower=True)
    ours, theirs = jnp.split(inside, [len(derivative)], axis=1)
    plain = (rows**2).sum(1)
    return _Sums(
        (derivative @ derivative.T - ours.T @ ours) / f,
        (derivative @ rows.T - ours.T @ theirs) / f,
        (plain - (theirs**2).sum(0)) / f,
        plain,
    )


def _fit(total: _Sums, rounds: Any, told_by: Array) -> Fit:
    """Fit of an answer, from what is left of the messages and of fresh runs on the answer."""
    gram = total.gram
    level = jnp.finfo(gram.dtype).eps * jnp.trace(gram) + jnp.finfo(gram.dtype).tiny
    ridged = gram + level * jnp.eye(len(gram), dtype=gram.dtype)
    solved = jax.scipy.linalg.solve(ridged, total.along, assume_a="pos")
    left = jnp.maximum(total.inner - (total.along * solved).sum(0), 0)
    largest = largest_of_more(left[1:], FALSE_ALARMS)
    misfit = left[0] / jnp.maximum(largest, jnp.finfo(gram.dtype).tiny)
    energy = (rounds[1] ** 2).sum()
    allowed = largest_of_more(total.plain[1:], FALSE_ALARMS)
    misfit = jnp.where(told_by > len(gram), misfit, jnp.nan)
    return Fit(1 - total.plain[0] / energy, 1 - allowed / energy, misfit)


def _numbers(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
