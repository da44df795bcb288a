"""Decoding clients that train in batches or for several epochs, by generalised least squares.

Threat model: an honest-but-curious server sees a client's messages, prescribed its recipe of SGD
(with momentum and weight decay or without), and knows its records but for one column or a few,
perhaps its labels, and the possible values of these columns.

Such a client's update is no gradient: the model moves under way, and the order of its records is
random and unknown. To first order in the unknown weights s around a current guess, round t says, in
units of the learning rate,

    u_t / eta = mu_t(s) + e_t,    mu_t(s + d) ~ mu_t(s) + a J_t' d,
    cov(e_t) <= R_t'R_t + A_t' (v C + x a^2 I) A_t + H_t' (W (x) C) H_t + sigma^2 I,
    C = (I - 11' / N) N / (N - 1).

The mean mu_t and the deviations R_t come from the client's own training, simulated on the guess in
M fresh orders: a record's loss is that of its candidates, weighted by the guess and by what
clipping leaves of its gradient (under mixup, that of its expected value). J_t holds, per unknown,
the difference of the record's gradients between candidates, A_t the records' gradients, both at the
centre of the path that the client went, theta_t + (T - 1) / (2 T) (returned - theta_t) for T local
steps of plain SGD, or averaged along simulated paths. A record enters with weight 1 / (size of its
batch) in every epoch: with mean a = T / N, and with a variance v that a short last batch makes
large; x is room for what the linearisation misses. Momentum repeats a gradient in later steps, and
decay shrinks what came before: a step then has a weight of its own (`attacks.path.local_path`),
which enters mean, variance and centre, and a record counts for more in an early batch. Weights of
classes are divided by their mean over all records; that a batch has another mean, M runs say. H_t,
if asked for, holds by how much the gradient that the guess expects of a record changes on every
piece of the path from the first step to the last, W is the covariance of a record's weighted places
on these pieces (which are not independent of its weight where the last batch is short, or with
momentum; that is left out). Weights and places are dealt without repetition: their sum is fixed,
hence C. What M runs say of the same noise stays in R_t, so that the sum is a bound from above.

Woodbury inverts the covariance in as many dimensions as A_t, R_t and H_t have rows, so that only
inner products of candidates' gradients are needed; at the centre, where all parameters belong to
dense layers, no gradient is formed. All rounds together give a quadratic in s, minimised under 0 <=
s and sum_k s_nk <= 1, and the whole is repeated from the new guess: the simulated mean corrects
what the path's centre misses.

What a client does against it is known where its server prescribed it: norms to which gradients are
clipped, noise, mixup (whose pairs are not known; a record's partner is taken to be the average
one).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.dtypes import canonicalize_dtype

from attacks.attributes.candidate_decoding.candidates import (
    candidate_records,
    prior_weights,
    with_first,
)
from attacks.attributes.candidate_decoding.constraints import most_likely, pull
from attacks.attributes.candidate_decoding.decoded import nearest_of
from attacks.attributes.candidate_decoding.explanation import JUDGED, judge
from attacks.attributes.candidate_decoding.gls_round import (
    GLS,
    Client,
    Round,
    round_quadratic,
    rounds_of,
)
from attacks.attributes.candidate_decoding.joint import apart, joined, told
from attacks.attributes.candidate_decoding.resolution import resolved
from attacks.attributes.knowledge import (
    Knowledge,
    Reconstruction,
    answered,
    check_apart,
    check_knowledge,
    explained,
)
from attacks.fit import no_fit, precision
from attacks.lapack import after
from attacks.path import check_linear
from attacks.precision import arithmetic, cast, floating
from jaxfl import DPSGD, ClassWeights, LocalTraining, Messages, Mixup, Model, Upload, _check
from jaxfl.domains import Key, Positive, check, checked

Array = jax.Array
System = tuple[Array, Array, Array]
KEPT = 2**29
"""Inner products of gradients, as many as are kept between passes and not computed again (2 GiB in
float32, in each call: times those that are mapped over at once)."""
INDEFINITE = -0.01
"""A misfit relative to the prior's so far below the unconstrained minimum's is of no positive
quadratic: what tells records apart was lost in rounding."""


@checked
def gls(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    key: Key,
    *,
    settings: GLS,
    dtype: Any = None,
) -> Reconstruction:
    """Reconstruct unknown columns, and labels if they are unknown, from the messages of a client
    with any local training whose optimiser is linear.

    Args:
      model: the model (static), whose operations mix no records (no batch normalisation).
      messages: the client's messages; early ones tell most, and the more rounds the better, since
        one unknown bit moves few numbers per round.
      knowledge: what is known. Unknown labels make every (value, label) pair a candidate; of
        several unknown columns every combination of values is one, 64 at most.
      key: draws simulated batch orders.
      settings: see `GLS`.
      dtype: of the arithmetic (static); by default float64 with `drift`, else the models', at least
        float32. 64-bit types are switched on for the call. Inside an outer `jit` that runs without
        them, float32 is used. Results are float32.

    Returns:
      A `Reconstruction`; `objective` is how far the last pass's whitened misfit (with the pull
      towards the prior) of the rounded answer lies above what it would be without constraints,
      relative to that of the prior's mean: comparable between clients, not between settings.
      `trace` is the same of the real-valued answer after each pass. `fit.resolved` is of the
      covariance above, and of the rounding of models. Memory grows with (records K)^2
      (and with the rounds, while that is at most `KEPT` numbers).

    Raises:
      ValueError: as `cos_matching`; and if unknown columns have more than 64 values together, a
        setting is out of range, batches are not drawn (`LocalTraining.shuffle`; see
        `gls_unrolled`), the recipe has another plug-in than `GLS.training` names or an
        `Upload` with bits, the client's optimiser is not linear, alike for all parameters
        (or not plain SGD, with `points`), labels are unknown under mixup or class weights, `drift`
        is asked for with `points`, mixup or differential privacy, or `layers` with `points` or of a
        model that names no dense layers.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_apart("gls", model, messages, knowledge)
    check_linear(settings.training.optimizer, messages.model_shapes)
    check_gls(settings, model, knowledge)
    joint = joined("gls", knowledge)
    if dtype is None:
        narrow = jnp.promote_types(
            jnp.float32, jnp.result_type(*jax.tree.leaves(messages.received))
        )
        dtype = jnp.float64 if settings.drift else narrow
    dtype = floating(dtype)
    with arithmetic(dtype, messages, joint, key, settings):
        answer = _gls(model, messages, joint, key, settings, canonicalize_dtype(dtype))
    answer = apart(answer, knowledge.columns)
    judge_key = jax.random.fold_in(key, JUDGED)
    fit = judge(model, messages, knowledge, answer, settings.training, judge_key)
    fit = dataclasses.replace(fit, resolved=answer.fit.resolved)
    return explained("gls", messages, answer, fit)


def check_gls(settings: GLS, model: Model, knowledge: Knowledge) -> None:
    """Raise `ValueError` on settings that do not go together, or with what is known."""
    training = settings.training
    check("settings.training.learning_rate", training.learning_rate, Positive)
    if settings.orders < 2:
        raise ValueError(
            f"orders={settings.orders} must be at least 2: how they differ is the noise"
        )
    if settings.points > 1 and training.optimizer is not optax.sgd:
        raise ValueError(
            f"points={settings.points} does not go with optimizer={training.optimizer!r}; it needs "
            "points=1 or optax.sgd"
        )
    if training.repeats_batches(len(knowledge.x)):
        raise ValueError(
            f"training.shuffle=False cuts the same batches of {training.batch_size} every time; "
            "this attack is for batches that are drawn. gls_unrolled is exact where they are not"
        )
    _check_plugins(training, knowledge)
    if settings.layers is not None:
        named = () if model.layers is None else model.layers.names
        if settings.layers > len(named) or settings.points > 1:
            raise ValueError(
                f"layers={settings.layers} does not go with points={settings.points} and the "
                f"model's {len(named)} named dense "
                "layers; it needs points=1 and so many layers"
            )
    if settings.drift and (settings.points > 1 or training.mixup or training.privacy is not None):
        raise ValueError(
            f"drift={settings.drift} does not go with points={settings.points}, "
            f"mixup={training.mixup}, "
            f"privacy={training.privacy}; it needs points=1 and a client that has neither"
        )


def _check_plugins(training: LocalTraining, knowledge: Knowledge) -> None:
    weighted = any(isinstance(plugin, ClassWeights) for plugin in training.plugins)
    if training.mixup and weighted:
        raise ValueError("training.plugins has Mixup and ClassWeights; gls knows one of them alone")
    if knowledge.y is None and (training.mixup or weighted):
        raise ValueError("y=None does not go with Mixup or ClassWeights; give labels")
    for plugin in training.plugins:
        rounded = isinstance(plugin, Upload) and not (
            _check.is_unseen(plugin.bits) or np.all(np.asarray(plugin.bits) == 0)
        )
        if rounded or type(plugin) not in (DPSGD, Mixup, ClassWeights, Upload):
            raise ValueError(
                f"training.plugins holds {plugin!r}; gls knows DPSGD, Mixup, ClassWeights and "
                "Upload without bits alone"
            )


@functools.partial(jax.jit, static_argnames=("model", "dtype"))
def _gls(
    model: Model, messages: Messages, knowledge: Knowledge, key: Array, settings: GLS, dtype: Any
) -> Reconstruction:
    spacing = precision(messages)
    messages, knowledge, settings = cast((messages, knowledge, settings), dtype)
    x, y = candidate_records(model, knowledge)
    known_labels = y if knowledge.y is None else jnp.asarray(knowledge.y)
    client = Client(model, x, known_labels, settings)
    records, count = client.x.shape[:2]
    prior = prior_weights(model, knowledge, count)
    rounds = rounds_of(messages, spacing, settings.training, records)
    gradients_need_no_guess = settings.points == 1 and not settings.training.mixup
    with jax.default_matmul_precision("highest"):
        if gradients_need_no_guess and len(messages) * (records * count) ** 2 <= KEPT:

            def inner(seen: Round) -> Array:
                return client.at_centre(seen, settings.layers).gram()

            rounds = rounds._replace(inner=jax.lax.map(inner, rounds))
        one_pass = functools.partial(_one_pass, client, rounds, prior)
        begin = prior, jnp.zeros((len(prior),) * 2), prior
        keys = jax.random.split(key, settings.passes)
        (weights, gram, rounded), heights = jax.lax.scan(one_pass, begin, keys)
        factor = jnp.linalg.cholesky(after(gram + jnp.diag(pull(prior, settings.ridge)), heights))
        stay = resolved(factor, rounded, 1.0, nearest_of(records, None))
        weights = after(weights, jnp.nan_to_num(stay))  # which the answer's judge works with
    trace, objectives = heights.T
    values, labels, scores = told(knowledge, with_first(weights.reshape(records, -1)))
    finite = jnp.isfinite(weights).all() & jnp.isfinite(trace).all() & jnp.isfinite(objectives[-1])
    failed = ~finite | (trace[-1] < INDEFINITE)
    fit = dataclasses.replace(no_fit(), resolved=stay)
    answer = answered(
        failed, (values,), (scores,), labels, objective=objectives[-1], trace=trace, fit=fit
    )
    return cast(answer, jnp.float32, jnp.int32)


def _one_pass(
    client: Client, rounds: Round, prior: Array, before: System, key: Array
) -> tuple[System, Array]:
    """Least squares over all rounds, linearised at the weights of the pass before, the first of
    `before`: the next weights, the quadratic's matrix and the weights' rounding; and how far they
    and their rounding lie above the minimum."""
    weights = before[0]
    records = len(client.x)
    scores = with_first(weights.reshape(records, -1))

    def add(total: tuple[Array, Array], one: tuple[Round, Array]) -> tuple[Any, None]:
        seen, t = one
        quadratic = round_quadratic(client, seen, scores, jax.random.fold_in(key, t))
        return jax.tree.map(jnp.add, total, quadratic), None

    zero = jnp.zeros((len(weights),) * 2), jnp.zeros(len(weights))
    numbers = jnp.arange(len(jax.tree.leaves(rounds)[0]))
    (gram, right), _ = jax.lax.scan(add, zero, (rounds, numbers))
    right = right + gram @ weights
    ridge, iterations = client.settings.ridge, client.settings.iterations
    solution, (above, rounded) = most_likely(
        gram, right, prior, records, ridge, iterations, weights
    )
    return (solution, gram, rounded), above
