"""Decoding clients that train in batches or for several epochs, by generalised least squares.

Threat model: an honest-but-curious server sees a client's messages, prescribed its recipe of plain
SGD, and knows its records but for one column, its labels, and the column's possible values.

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
steps, or averaged along simulated paths. A record enters with weight 1 / (size of its batch) in
every epoch: with mean a = T / N, and with a variance v that a short last batch makes large; x is
room for what the linearisation misses. H_t, if asked for, holds by how much the gradient that the
guess expects of a record changes on every piece of the path from the first step to the last, W is
the covariance of a record's weighted places on these pieces (which are not independent of its
weight where the last batch is short; that is left out). Weights and places are dealt without
repetition: their sum is fixed, hence C. What M runs say of the same noise stays in R_t, so that the
sum is a bound from above.

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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.dtypes import canonicalize_dtype
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.candidates import (
    candidate_records,
    candidates_at_centre,
    mean_gradients,
    of_layers,
    prior_weights,
    with_first,
)
from attacks.attributes.candidate_decoding.constraints import minimize_quadratic, onto_simplex
from attacks.attributes.candidate_decoding.order_noise import (
    OrderNoise,
    batch_weights,
    drift,
    noise_variance,
    with_drift,
    with_weights,
)
from attacks.attributes.candidate_decoding.simulated_client import (
    Guess,
    clipping,
    guess_of,
    simulated,
    simulated_path,
    towards_average,
)
from attacks.attributes.candidate_decoding.whitening import _heights, _whitened
from attacks.attributes.knowledge import (
    Knowledge,
    Reconstruction,
    answered,
    check_knowledge,
    check_one_column,
)
from attacks.precision import arithmetic, cast, floating
from jaxfl import DPSGD, LocalTraining, Messages, Mixup, Model, _check

Array = jax.Array
KEPT = 2**29
"""Inner products of gradients, as many as are kept between passes and not computed again (2 GiB in
float32, in each call: times those that are mapped over at once)."""
ROUNDING = 64
"""Relative errors of inner products, in units of the precision: those of sums of some hundred
numbers."""
INDEFINITE = -0.01
"""A misfit relative to the prior's so far below the unconstrained minimum's is of no positive
quadratic: what tells records apart was lost in rounding."""


@struct.dataclass
class GLS:
    """Settings of `gls`.

    Attributes:
      training: the client's recipe, known to the server that prescribed it. Its optimiser must be
        plain SGD, its plug-ins `DPSGD` or `Mixup`.
      orders: simulated runs M per round, at least 2, each on all candidates, for mean and noise
        (static). Many small batches make noise in about N directions; what M runs miss of them is
        taken for signal. Clients with few steps need few.
      points: 1, gradients at the path's centre; or more, their mean over so many points of each
        epoch of a simulated path, where a random part of the records has been seen: better for many
        small batches, at the price of writing gradients out, records x K x parameters behind the
        first layer; or all, if the model names no dense layers (static). What is clipped is taken
        to be that mean, which is a little shorter than the gradients are.
      passes: repetitions from the improved guess (static).
      spread: variance added to the records' weights, relative to their squared mean: room for what
        the linearisation misses.
      floor: sigma^2 relative to the other noise's variance per record; raised where rounding asks
        for more. By default 3e-3, or 1e-5 with `drift`, beside which little is left that the noise
        does not say.
      ridge: pull towards the prior, relative to the precision of a draw from it.
      iterations: of the constrained minimisation (static).
      drift: a record's gradient changes while the model moves, so that what it adds to the update
        depends on its place in the order. With 1 that is a row of noise for every record (the
        expected one of its candidates), with more as many, one for each piece of the path:
        gradients of rectified units jump. With 0 M runs sample it, which for clients of like
        records miss what tells these apart. Plain SGD only; N + M rows become N (1 + drift) + M
        (static). In float32 rounding loses the quadratic of thousands of like records, which
        `status` says.
      layers: look at the gradients of the first so many dense layers alone; all parameters with
        None (static). A column that is an input enters the first layer as it is; what later layers
        add of it is mostly noise of orders if records are alike.
    """

    training: LocalTraining
    _: dataclasses.KW_ONLY
    orders: int = struct.field(pytree_node=False, default=64)
    points: int = struct.field(pytree_node=False, default=1)
    passes: int = struct.field(pytree_node=False, default=3)
    spread: float | Array = 0.01
    floor: float | Array | None = None
    ridge: float | Array = 0.05
    iterations: int = struct.field(pytree_node=False, default=500)
    drift: int = struct.field(pytree_node=False, default=0)
    layers: int | None = struct.field(pytree_node=False, default=None)


def gls(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    key: Array,
    *,
    settings: GLS,
    dtype: Any = None,
) -> Reconstruction:
    """Reconstruct one unknown column from the messages of a client with any local training.

    Args:
      model: the model (static), whose operations mix no records (no batch normalisation).
      messages: the client's messages; early ones tell most, and the more rounds the better, since
        one unknown bit moves few numbers per round.
      knowledge: one unknown column; known labels.
      key: draws simulated batch orders.
      settings: see `GLS`.
      dtype: of the arithmetic (static); by default float64 with `drift`, else the models', at least
        float32. 64-bit types are switched on for the call. Inside an outer `jit` that runs without
        them, float32 is used. Results are float32.

    Returns:
      A `Reconstruction`; `objective` is how far the last pass's whitened misfit (with the pull
      towards the prior) of the rounded answer lies above what it would be without constraints,
      relative to that of the prior's mean: comparable between clients, not between settings.
      `trace` is the same of the real-valued answer after each pass. Memory grows with (records K)^2
      (and with the rounds, while that is at most `KEPT` numbers).

    Raises:
      ValueError: as `cos_matching`; and if labels are unknown, there are several unknown columns, a
        setting is out of range, the client's optimiser is not plain SGD, `drift` is asked for with
        `points`, mixup or differential privacy, or `layers` with `points` or of a model that names
        no dense layers.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_one_column("gls", knowledge)
    _check_settings(settings, model, len(knowledge.x))
    if dtype is None:
        narrow = jnp.promote_types(
            jnp.float32, jnp.result_type(*jax.tree.leaves(messages.received))
        )
        dtype = jnp.float64 if settings.drift else narrow
    dtype = floating(dtype)
    with arithmetic(dtype, messages, knowledge, key, settings):
        return _gls(model, messages, knowledge, key, settings, canonicalize_dtype(dtype))


def _check_settings(settings: GLS, model: Model, records: int) -> None:
    _check.instance(GLS, settings=settings)
    training, numbers = settings.training, ("orders", "points", "passes", "iterations")
    _check.positive_integer(**{name: getattr(settings, name) for name in numbers})
    if settings.orders < 2:
        raise ValueError(
            f"orders={settings.orders} must be at least 2: how they differ is the noise"
        )
    _check.not_negative(spread=settings.spread, ridge=settings.ridge)
    if settings.floor is not None:
        _check.not_negative(floor=settings.floor)
    training.check(records)
    _check.positive(learning_rate=training.learning_rate)
    _check.plain_sgd(training.optimizer)
    for plugin in training.plugins:
        if type(plugin) not in (DPSGD, Mixup):
            raise ValueError(
                f"training.plugins holds {plugin!r}; gls knows the noise of DPSGD and Mixup alone"
            )
    if settings.layers is not None:
        _check.positive_integer(layers=settings.layers)
        named = () if model.layers is None else model.layers.names
        if settings.layers > len(named) or settings.points > 1:
            raise ValueError(
                f"layers={settings.layers} does not go with points={settings.points} and the "
                f"model's {len(named)} named dense "
                "layers; it needs points=1 and so many layers"
            )
    if settings.drift:
        _check.positive_integer(drift=settings.drift)
    if settings.drift and (settings.points > 1 or training.mixup or training.privacy is not None):
        raise ValueError(
            f"drift={settings.drift} does not go with points={settings.points}, "
            f"mixup={training.mixup}, "
            f"privacy={training.privacy}; it needs points=1 and a client that has neither"
        )


class _Round(NamedTuple):
    """One round's model and update, and inner products of the candidates' gradients `[records, K,
    records, K]`, if they are at hand."""

    received: Any
    update: Any
    inner: Array | None = None


@functools.partial(jax.jit, static_argnames=("model", "dtype"))
def _gls(
    model: Model, messages: Messages, knowledge: Knowledge, key: Array, settings: GLS, dtype: Any
) -> Reconstruction:
    messages, knowledge, settings = cast((messages, knowledge, settings), dtype)
    x, y = candidate_records(model, knowledge)
    records, count = x.shape[:2]
    prior = prior_weights(model, knowledge, count)
    # Precision of a draw from the prior, per unknown.
    precision = settings.ridge / jnp.maximum(prior * (1 - prior), 1e-3)
    at_centre = functools.partial(
        candidates_at_centre, model, training=settings.training, x=x, y=y, depth=settings.layers
    )
    rounds = _Round(messages.received, messages.pseudo_gradient)
    guess_free = (
        settings.points == 1 and not settings.training.mixup
    )  # gradients do not depend on the guess
    if guess_free and len(messages) * (records * count) ** 2 <= KEPT:
        with jax.default_matmul_precision("highest"):
            rounds = rounds._replace(
                inner=jax.lax.map(lambda one: at_centre(*one).inner(at_centre(*one)), rounds[:2])
            )

    def one_pass(weights: Array, key: Array) -> tuple[Array, list[Array]]:
        scores = with_first(weights.reshape(records, -1))

        def add(
            total: tuple[Array, Array], one: tuple[_Round, Array]
        ) -> tuple[tuple[Array, Array], None]:
            seen, t = one
            gram, right = _one_round(
                model, seen, scores, x, y, jax.random.fold_in(key, t), settings
            )
            return (total[0] + gram, total[1] + right), None

        size = len(weights)
        zero = jnp.zeros((size, size)), jnp.zeros(size)
        (gram, right), _ = jax.lax.scan(add, zero, (rounds, jnp.arange(len(messages))))
        right = right + gram @ weights  # linearised at the current weights
        gram, right = gram + jnp.diag(precision), right + precision * prior
        solution = minimize_quadratic(
            lambda w: gram @ w - right,
            weights,
            lambda w: onto_simplex(w.reshape(records, -1)).reshape(-1),
            jnp.abs(gram).sum(1).max(),  # bounds the largest eigenvalue
            settings.iterations,
        )
        rounded = jax.nn.one_hot(with_first(solution.reshape(records, -1)).argmax(1), count)[
            :, 1:
        ].reshape(-1)
        return solution, _heights(gram, right, prior, solution, rounded)

    with jax.default_matmul_precision("highest"):
        weights, (trace, objectives) = jax.lax.scan(
            one_pass, prior, jax.random.split(key, settings.passes)
        )
    scores = with_first(weights.reshape(records, -1))
    chosen, finite = (
        scores.argmax(1),
        jnp.isfinite(weights).all() & jnp.isfinite(trace).all() & jnp.isfinite(objectives[-1]),
    )
    failed = ~finite | (trace[-1] < INDEFINITE)
    answer = answered(failed, (chosen,), (scores,), objective=objectives[-1], trace=trace)
    return cast(answer, jnp.float32, jnp.int32)


def _one_round(
    model: Model, seen: _Round, scores: Array, x: Array, y: Array, key: Array, settings: GLS
) -> tuple[Array, Array]:
    """`a^2 J S^-1 J'` and `a J S^-1 (u / eta - mu)` of one round."""
    training, (records, count) = settings.training, x.shape[:2]
    simulate_key, path_key = jax.random.split(key)

    def squares() -> Array:
        return candidates_at_centre(model, seen.received, seen.update, training, x, y).squares()

    guess = guess_of(model, training, scores, x, y, squares)
    mean, deviations = simulated(guess, seen.received, simulate_key, settings.orders)
    gram, project = _gradients(model, seen, guess, x, y, path_key, settings)
    residual = ravel_pytree(seen.update)[0] / training.learning_rate - mean
    vectors = jax.vmap(ravel_pytree(seen.received)[1])(
        jnp.concatenate([residual[None], deviations])
    )
    along = jax.vmap(project, out_axes=1)(vectors).reshape(
        records, count, -1
    )  # [records, K, 1 + orders]
    noise = _noise(model, seen, vectors, gram, along, scores, x, y, settings)
    # Rounding of inner products, as if independent, moves eigenvalues by about so much.
    rounding = ROUNDING * jnp.finfo(noise.inner.dtype).eps * noise.squares / len(noise.inner) ** 0.5
    relative = (1e-5 if settings.drift else 3e-3) if settings.floor is None else settings.floor
    least = jnp.maximum(relative * jnp.trace(noise.inner) / records, rounding) + noise_variance(
        training, records
    )
    quadratic, slope = _whitened(noise, gram, along[..., 0], least)
    entries = batch_weights(training, records)[0] * (
        2 if training.mixup else 1
    )  # a record is in two of the averages
    return entries**2 * quadratic, entries * slope


def _noise(
    model: Model,
    seen: _Round,
    vectors: Any,
    gram: Array,
    along: Array,
    scores: Array,
    x: Array,
    y: Array,
    settings: GLS,
) -> OrderNoise:
    """Rows of a round's noise: weights, drift if asked for, and sampled deviations, which are all
    of `vectors`, trees `[1 + orders, ...]`, but the first, the residual. `along`: their products
    with the candidates' gradients `[records, K, 1 + orders]`."""
    training, depth, records = settings.training, settings.layers, len(scores)
    looked_at = jax.vmap(lambda tree: ravel_pytree(of_layers(model, tree, depth))[0])(vectors)
    inner = looked_at[1:] @ looked_at[1:].T
    expected = jnp.einsum("nk,nkm->nm", scores, along[..., 1:])
    noise = OrderNoise(
        along[..., 1:], expected, inner, looked_at[1:] @ looked_at[0], jnp.trace(inner)
    )
    if settings.drift:
        flat, steps = (x.reshape(-1, *x.shape[2:]), y.reshape(-1)), training.steps(records)
        moved = drift(model, seen.received, seen.update, *flat, steps, settings.drift, depth)
        moved = moved.expected(jnp.tile(scores, (settings.drift, 1)))
        centre = candidates_at_centre(model, seen.received, seen.update, training, x, y, depth)
        noise = with_drift(
            noise, moved, centre, jax.vmap(moved.along, out_axes=1)(vectors), scores, training
        )
    return with_weights(noise, gram, along[..., 0], scores, training, settings.spread)


def _gradients(
    model: Model, seen: _Round, guess: Guess, x: Array, y: Array, key: Array, settings: GLS
) -> tuple[Array, Callable[[Any], Array]]:
    """Inner products `[records, K, records, K]` of the candidates' gradients, as the client's
    training uses them, and their products with a target `[records * K]`."""
    training, shape, (received, update, kept) = settings.training, x.shape[:2], seen
    if training.mixup:
        model, x = towards_average(model, guess.data.y), (x + guess.data.x.mean(0)) / 2
    if settings.points == 1:
        centre = candidates_at_centre(model, received, update, training, x, y, settings.layers)
        gram, project = (
            centre.inner(centre) if kept is None else kept,
            lambda target: centre.along(target),
        )
        squares = candidates_at_centre(model, received, update, training, x, y).squares()
    else:
        gram, project = mean_gradients(
            model, simulated_path(guess, received, key, settings.points), x, y
        )
        squares = jnp.diag(gram)
    if training.privacy is not None:
        factor = clipping(squares, training.privacy.clip)
        return (gram * factor[:, None] * factor).reshape(
            *shape, *shape
        ), lambda target: factor * project(target)
    return gram.reshape(*shape, *shape), project
