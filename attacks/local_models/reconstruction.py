"""Local model reconstruction (Driouich 2023, section 3.2): the model that a client would have
trained on its own records alone.

Threat model: a passive adversary that sees some of one client's messages, and knows the model's
structure, the loss and the training recipe. From them it has to guess a model at which the client
would have nothing to change.

Algorithm 2 learns a map G from received models to updates and looks for a zero of it.
`mapping_network` is that, as published; `affine_optimum` the same with an affine map, in closed
form (exact for linear least squares); `extrapolated` goes on in the direction the client last
pulled, as a control in one line. `pseudo_records` is a map with the structure of a client: the
gradient on a few made-up records, fitted to the messages; then a zero of it is what training on
these records leads to. Where public columns and labels are known, better still: reconstruct the
records (`attacks.attributes.candidate_decoding`) and train on them with `jaxfl.local_update`; that
is the client's own training.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from attacks.matching import Virtual, matching_objective, minimize_adam, squared_distance
from attacks.path import at_path_centres
from jaxfl import LocalTraining, Messages, Model, _check, mlp
from jaxfl.clients import ClientData
from jaxfl.models import check_record_shape
from jaxfl.training import batch_gradient

Array = jax.Array


def last_returned(messages: Messages) -> Any:
    """The last model the client returned: what every reconstruction has to beat."""
    return jax.tree.map(lambda a: a[-1], messages.returned)


def extrapolated(messages: Messages, *, factor: float = 10.0, rounds: int = 10) -> Any:
    """The last returned model, moved on by `factor` times the mean of the last updates. A control,
    not from the papers.

    Args:
      messages: the client's.
      factor: how far to go.
      rounds: updates that are averaged; all if there are fewer.
    """
    _check.positive_integer(rounds=rounds)
    pull = jax.tree.map(lambda u: u[-rounds:].mean(0), messages.pseudo_gradient)
    return jax.tree.map(lambda w, u: w - factor * u, last_returned(messages), pull)


def affine_optimum(messages: Messages, *, ridge: float = 1e-2) -> Any:
    """The zero of the least affine map from received models to updates: `sum_t a_t theta_t`, `sum_t
    a_t = 1`, whose update `sum_t a_t u_t` is shortest. For linear least squares, in float64 and
    with a ridge near 0, this is Proposition 1 of Driouich 2023, for any number of rounds.

    Args:
      messages: the client's, at least two rounds.
      ridge: on the weights, relative to the updates' mean square.

    Raises:
      ValueError: if there are fewer than two rounds, or the ridge is negative.
    """
    if len(messages) < 2:
        raise ValueError(f"messages holds {len(messages)} rounds; an affine map needs at least 2")
    _check.not_negative(ridge=ridge)
    updates = jax.vmap(lambda u: ravel_pytree(u)[0])(messages.pseudo_gradient)
    with jax.default_matmul_precision("highest"):
        gram = updates @ updates.T
    gram += ridge * jnp.trace(gram) / len(gram) * jnp.eye(len(gram), dtype=gram.dtype)
    weights = jnp.linalg.solve(gram, jnp.ones(len(gram), gram.dtype))
    weights /= weights.sum()
    return jax.tree.map(lambda a: jnp.tensordot(weights, a, 1), messages.received)


@struct.dataclass
class Mapping:
    """Settings of `mapping_network`. The paper tunes widths, rates and epochs per client (Tables 5
    to 8) by a criterion it does not state, and names neither optimiser, scaling nor start.

    Attributes:
      hidden: widths of the network (static).
      fit_steps: full-batch Adam steps on Eq. 7 (static).
      fit_rate: their step size.
      search_steps: Adam steps on Eq. 8 (static).
      search_rate: their step size.
      scaling: "literal", models and updates as they are; or "normalised", in coordinates of the
        observed models' span, each of unit variance, and of the updates' span, of unit mean square:
        nothing else can be told from them, and the network becomes small (static).
      held_out: fraction of the messages by which the best iterate of Eq. 7 is chosen (static).
    """

    hidden: tuple[int, ...] = struct.field(pytree_node=False, default=(32, 32))
    fit_steps: int = struct.field(pytree_node=False, default=200)
    fit_rate: float | Array = 1e-3
    search_steps: int = struct.field(pytree_node=False, default=1000)
    search_rate: float | Array = 1e-2
    scaling: Literal["literal", "normalised"] = struct.field(
        pytree_node=False, default="normalised"
    )
    held_out: float = struct.field(pytree_node=False, default=0.1)


@struct.dataclass
class LocalModel:
    """A reconstructed model, and what the adversary can know of it.

    Attributes:
      params: the model.
      unexplained: part of held-out updates' energy that the fitted map misses; 1 is no better than
        predicting zero.
      kept_last: True if `params` are those last returned: pseudo-records explained too little, or
        the map led nowhere finite.
    """

    params: Any
    unexplained: Array
    kept_last: Array


def mapping_network(
    messages: Messages, key: Array, *, settings: Mapping | None = None
) -> LocalModel:
    """Algorithm 2 of Driouich 2023: fit a network G to the updates (Eq. 7), then minimise |G|^2
    from the last model (Eq. 8).

    Args:
      messages: the client's, at least ten rounds.
      key: draws the network and the held-out messages.
      settings: see `Mapping`.

    Raises:
      ValueError: if there are fewer than ten rounds, or a setting is out of range.
    """
    settings = settings or Mapping()
    if len(messages) < 10:
        raise ValueError(
            f"messages holds {len(messages)} rounds; fitting and checking a network needs at "
            "least 10"
        )
    _check.one_of(("literal", "normalised"), scaling=settings.scaling)
    _check.positive_integer(fit_steps=settings.fit_steps, search_steps=settings.search_steps)
    _check.positive(fit_rate=settings.fit_rate, search_rate=settings.search_rate)
    _check_held_out(settings.held_out, len(messages))
    return _mapping_network(messages, key, settings)


@jax.jit
def _mapping_network(messages: Messages, key: Array, settings: Mapping) -> LocalModel:
    flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])
    theta, change = flat(messages.received), -flat(messages.pseudo_gradient)
    last, unravel = ravel_pytree(last_returned(messages))
    if settings.scaling == "literal":
        inputs, targets, start = theta, change, last
        basis = None
    else:
        inputs, basis, coordinates = _whitened(theta)
        left, singular, _ = jnp.linalg.svd(change, full_matrices=False)
        targets = left * singular
        targets /= jnp.sqrt((targets**2).mean())
        start = coordinates(last)
    init_key, split_key = jax.random.split(key)
    network = mlp(inputs.shape[1], settings.hidden, targets.shape[1], task="regression")
    rounds = len(inputs)
    held = _held_out(settings.held_out, rounds)
    held_out = jax.random.permutation(split_key, rounds) < held

    def missed(weights: Any, rows: Array) -> Array:
        errors = ((network.apply(weights, inputs) - targets) ** 2).sum(1)
        return (errors * rows).sum() / jnp.maximum(
            ((targets**2).sum(1) * rows).sum(), jnp.finfo(errors.dtype).tiny
        )

    optimizer = optax.adam(settings.fit_rate)

    def fit(carry: Any, _: None) -> tuple[Any, None]:
        weights, state, best, least = carry
        updates, state = optimizer.update(jax.grad(missed)(weights, ~held_out), state)
        weights = optax.apply_updates(weights, updates)
        left = missed(weights, held_out)
        best = jax.tree.map(functools.partial(jnp.where, left < least), weights, best)
        return (weights, state, best, jnp.minimum(left, least)), None

    weights = network.init(init_key)
    carry = weights, optimizer.init(weights), weights, missed(weights, held_out)
    (_, _, weights, unexplained), _ = jax.lax.scan(fit, carry, length=settings.fit_steps)

    searcher = optax.adam(settings.search_rate)

    def search(carry: Any, _: None) -> tuple[Any, None]:
        place, state = carry
        slope = jax.grad(lambda z: (network.apply(weights, z[None]) ** 2).sum())(place)
        updates, state = searcher.update(slope, state)
        return (optax.apply_updates(place, updates), state), None

    (point, _), _ = jax.lax.scan(
        search, (start, searcher.init(start)), length=settings.search_steps
    )
    params = point if basis is None else last + (point - start) @ basis
    finite = jnp.isfinite(params).all()
    return LocalModel(unravel(jnp.where(finite, params, last)), unexplained, ~finite)


def _held_out(fraction: float, rounds: int) -> int:
    """How many rounds judge a fit to the others."""
    return max(1, round(fraction * rounds))


def _check_held_out(fraction: float, rounds: int) -> None:
    _check.fraction(held_out=fraction)
    if _held_out(fraction, rounds) == rounds:
        raise ValueError(f"held_out={fraction!r} leaves none of {rounds} rounds to fit")


def _whitened(rows: Array) -> tuple[Array, Array, Callable[[Array], Array]]:
    """Centred coordinates `[rounds, rank]` of unit variance, the basis `[rank, parameters]` that
    leads back, and what gives the coordinates of any other point."""
    mean, root = rows.mean(0), jnp.sqrt(jnp.asarray(len(rows), rows.dtype))
    left, singular, right = jnp.linalg.svd(rows - mean, full_matrices=False)
    kept = singular > 1e-5 * singular[0]

    def coordinates(point: Array) -> Array:
        return jnp.where(kept, root * (right @ (point - mean)) / jnp.where(kept, singular, 1), 0)

    return (
        jnp.where(kept, left, 0) * root,
        jnp.where(kept, singular, 0)[:, None] * right / root,
        coordinates,
    )


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
    local_records: int = struct.field(pytree_node=False, default=1)
    records: int = struct.field(pytree_node=False, default=128)
    steps: int = struct.field(pytree_node=False, default=800)
    learning_rate: float | Array = 0.05
    messages_per_step: int = struct.field(pytree_node=False, default=4)
    virtual: Literal["gradient", "unrolled"] = struct.field(pytree_node=False, default="gradient")
    finish: int | Array = 4000
    held_out: float = struct.field(pytree_node=False, default=0.1)


def pseudo_records(
    model: Model,
    messages: Messages,
    key: Array,
    record_shape: tuple[int, ...],
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
    for name in ("local_records", "records", "steps", "messages_per_step"):
        _check.positive_integer(**{name: getattr(settings, name)})
    if not _check.is_traced(settings.finish):
        _check.positive_integer(finish=settings.finish)
    _check.one_of(("gradient", "unrolled"), virtual=settings.virtual)
    check_record_shape(model, messages.model_shapes, record_shape=record_shape)
    settings.training.check(settings.local_records)
    if settings.virtual == "gradient":
        _check.plain_sgd(settings.training.optimizer)
    _check.positive(learning_rate=settings.learning_rate)
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
    return LocalModel(
        jax.tree.map(functools.partial(jnp.where, kept), last, params), unexplained, kept
    )


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
        jax.random.normal(x_key, (settings.records, *record_shape)),
        jax.random.normal(y_key, (settings.records, model.classes or 1)),
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
