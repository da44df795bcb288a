"""A client's own training, simulated on a guess of its records: what its updates are on average,
how they vary with the order of the records, and the path of its model."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from attacks.precision import cast
from jaxfl import (
    DPSGD,
    ClassWeights,
    LocalTraining,
    Model,
    Plugin,
    client_round,
    local_update,
    mean_loss,
)
from jaxfl.clients import ClientData
from jaxfl.models.probe import draws_at_random
from jaxfl.parallel import Strategy, map_clients

Array = jax.Array
RUNS, SURE_RUNS = 16, 4
"""Simulated runs, which tell the noise; of a client that does nothing at random but rounding."""


class Guess(NamedTuple):
    """What a client is simulated with: its model, its records by the guess, its recipe."""

    model: Model
    data: ClientData
    training: LocalTraining


class Simulation(NamedTuple):
    """A client's training, whatever it is simulated with.

    Attributes:
      training: its recipe.
      records: how many it has.
      run_count: how many runs tell its noise.
      runs: from a received model and a key to updates `[run_count, parameters]`.
      downhill: from a model to the gradient of the mean loss.
    """

    training: LocalTraining
    records: int
    run_count: int
    runs: Callable[[Any, Array], Array]
    downhill: Callable[[Any], Any]


def simulation_of(
    guess: Guess, received: Any, dtype: Any, run_count: int | None = None
) -> Simulation:
    """The client on a guess of its records, which received models `[rounds, ...]`; gradients are of
    a type, and runs as many as tell its noise, or as many as is said."""
    model, data, training = guess
    count = run_count or runs_that_tell(model, training, received, data.x)
    x, y = cast((data.x, data.y), dtype)
    return Simulation(
        training,
        len(data.mask),
        count,
        lambda received, key: simulated_runs(guess, received, key, count),
        jax.grad(lambda params: mean_loss(model, params, x, y)),
    )


def either(first: Array, one: Simulation, other: Simulation) -> Simulation:
    """One client where `first` is true, else the other, both of one recipe and of as many records
    and runs. Under `vmap` both are simulated."""
    return other._replace(
        runs=lambda *at: jax.lax.cond(first, one.runs, other.runs, *at),
        downhill=lambda at: jax.lax.cond(first, one.downhill, other.downhill, at),
    )


def guess_of(
    model: Model,
    training: LocalTraining,
    scores: Array,
    x: Array,
    y: Array,
    squares: Callable[[], Array],
) -> Guess:
    """Each candidate, weighted by the guess times its clipping factor; `squares` returns the
    candidates' squared gradient norms. With mixup: the expected records, because mixup would mix
    the weights too. Labels `y` are `[records]` if they are known, else of every candidate
    `[records, K]`.

    The noise of private training is not drawn, because its variance is known.
    """
    rest = (jnp.ones(len(x), bool), jnp.asarray(0))
    if training.mixup:
        if training.privacy is not None:
            quiet = dataclasses.replace(training.privacy, noise_multiplier=0.0)
            plugins = (*training.without(DPSGD).plugins, quiet)
            training = dataclasses.replace(training, plugins=plugins)
        expected = jnp.einsum("nk,nk...->n...", scores, x)
        return Guess(model, ClientData(expected, y, *rest), training)
    weights = scores
    if training.privacy is not None:
        weights = scores * clipping(squares(), training.privacy.clip).reshape(scores.shape)
        training = _unclipped(training, len(x))
    weighted = jnp.concatenate([x.reshape(*scores.shape, -1), weights[..., None]], 2)
    return Guess(_weighted(model, x.shape[2:]), ClientData(weighted, y, *rest), training)


def _unclipped(training: LocalTraining, records: int) -> LocalTraining:
    """The recipe without clipping and noise, whose short last batch is divided by the nominal size
    all the same."""
    plain, sizes = training.without(DPSGD), training.batch_sizes(records)
    if len(set(sizes)) == 1:
        return plain
    return dataclasses.replace(plain, plugins=(*plain.plugins, _NominalSize(sizes[0])))


@struct.dataclass
class _NominalSize(Plugin):
    """The sum of a batch's losses is divided by the nominal size of batches (static)."""

    size: int = struct.field(pytree_node=False)

    def step_gradient(
        self, model: Model, params: Any, x: Array, y: Array, mask: Array, key: Array
    ) -> Any:
        """See `jaxfl.Plugin`."""
        share = mask.sum() / self.size
        return jax.grad(lambda p: share * mean_loss(model, p, x, y, key=key, mask=mask))(params)


def clipping(squares: Array, clip: float | Array) -> Array:
    """Factors that clip gradients, from their squared norms."""
    return jnp.minimum(1, clip / jnp.sqrt(jnp.maximum(squares, jnp.finfo(squares.dtype).tiny)))


def _weighted(model: Model, shape: tuple[int, ...]) -> Model:
    """The model on records `[K, features + 1]`, with one label or `[K]`: flat candidates of that
    shape, and in the last column their losses' weights."""

    def apply(params: Any, x: Array, *, key: Array | None = None, mask: Array | None = None) -> Any:
        # Nobody asks how training changes with the candidates, but with their weights.
        candidates = jax.lax.stop_gradient(x[..., :-1]).reshape(*x.shape[:2], *shape)
        # All candidates of a record get the same dropout.
        outputs = jax.vmap(lambda each: model.apply(params, each, key=key, mask=mask), 1, 1)(
            candidates
        )
        return outputs, x[..., -1]

    def loss(outputs: Any, y: Array) -> Array:
        candidates, weights = outputs
        each = None if y.ndim == 1 else 1
        return (weights * jax.vmap(model.loss, (1, each), 1)(candidates, y)).sum(1)

    return dataclasses.replace(model, apply=apply, loss=loss, layers=None)


def simulated(guess: Guess, received: Any, key: Array, orders: int) -> tuple[Array, Array]:
    """Mean update `[parameters]` and deviations `[orders, parameters]` of the client's training on
    the guess, in units of the learning rate. Their squares add to the covariance of what another
    order differs from that mean: of one more run, and of the mean of these."""

    def run(k: Array) -> Array:
        returned = local_update(guess.model, received, guess.data, k, guess.training)
        return (
            ravel_pytree(jax.tree.map(jnp.subtract, received, returned))[0]
            / guess.training.learning_rate
        )

    # Products of small batches leave a core idle unless several runs share it, whose models should
    # fit its cache.
    together: Strategy = "vmap" if jax.default_backend() != "cpu" else 8
    updates = map_clients(run, jax.random.split(key, orders), together)
    mean = updates.mean(0)
    return mean, (updates - mean) * ((orders + 1) / (orders * (orders - 1))) ** 0.5


def simulated_runs(guess: Guess, received: Any, key: Array, count: int) -> Array:
    """Updates `[count, parameters]` of the client, its records in a fresh order each time, or those
    of each batch where batches are not drawn: even a full batch is rounded otherwise then."""
    model, data, training = guess

    def run(key: Array) -> Array:
        order_key, train_key = jax.random.split(key)
        order = _fresh_order(order_key, len(data.mask), training)
        rows = data.x[order], data.y[order], data.mask[order]
        shuffled = dataclasses.replace(data, x=rows[0], y=rows[1], mask=rows[2])
        returned = client_round(model, received, shuffled, train_key, training)
        return ravel_pytree(jax.tree.map(jnp.subtract, received, returned))[0]

    together: Strategy = "vmap" if jax.default_backend() != "cpu" else 8
    return map_clients(run, jax.random.split(key, count), together)


def _fresh_order(key: Array, records: int, training: LocalTraining) -> Array:
    if training.shuffle:
        return jax.random.permutation(key, records)
    within = jax.random.uniform(key, (records,), jnp.float32)
    return jnp.argsort(jnp.arange(records) // (training.batch_size or records) + within)


def runs_that_tell(model: Model, training: LocalTraining, received: Any, x: Array) -> int:
    """How many simulated runs tell the noise of a client with records `x [records, ...]`, which
    received models `[rounds, ...]`."""
    return RUNS if trains_at_random(model, training, received, x) else SURE_RUNS


def trains_at_random(model: Model, training: LocalTraining, received: Any, x: Array) -> bool:
    """Whether such a client's updates differ from run to run by more than rounding, or may."""
    batches = training.draws_batches(len(x))
    first = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), received)
    return bool(batches or training.plugins or draws_at_random(model, first, x))


def simulated_path(guess: Guess, received: Any, key: Array, points: int) -> Any:
    """Models `[epochs * points, ...]` on a simulated path, at which gradients are taken: in every
    epoch after a part of its batches, none of them to all but one."""
    model, data, training = guess
    records, one_epoch = len(data.mask), dataclasses.replace(training, epochs=1)
    seen = (jnp.arange(points) + 0.5) / points * one_epoch.steps(records)
    seen = jnp.floor(seen).astype(int) * (training.batch_size or records)

    def after(params: Any, seen: Array, key: Array) -> Any:
        part_key, order_key = jax.random.split(key)
        ranks = jax.random.uniform(part_key, (records,), jnp.float32).argsort().argsort()
        return local_update(
            model, params, dataclasses.replace(data, mask=ranks < seen), order_key, one_epoch
        )

    def epoch(params: Any, key: Array) -> tuple[Any, Any]:
        point_key, epoch_key = jax.random.split(key)
        models = jax.vmap(functools.partial(after, params))(
            seen, jax.random.split(point_key, points)
        )
        return after(params, jnp.asarray(records), epoch_key), models

    _, models = jax.lax.scan(epoch, received, jax.random.split(key, training.epochs))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), models)


def model_of_gradients(model: Model, training: LocalTraining, y: Array) -> Model:
    """The model whose records' gradients enter the client's updates alike, whose labels are `y
    [records]`: weights of classes stand in its loss."""
    weights = [plugin for plugin in training.plugins if isinstance(plugin, ClassWeights)]
    return weights[0].in_loss(model, y) if weights else model


def towards_average(model: Model, y: Array) -> Model:
    """Under mixup half of a record's loss is towards its partner's label."""
    classes = model.classes

    def loss(outputs: Array, labels: Array) -> Array:
        if classes is None:
            partner = model.loss(outputs, jnp.full_like(labels, y.mean()))
        else:
            every = jax.vmap(lambda k: model.loss(outputs, jnp.full_like(labels, k)))(
                jnp.arange(classes)
            )
            partner = (y[:, None] == jnp.arange(classes)).mean(0) @ every
        return (model.loss(outputs, labels) + partner) / 2

    return dataclasses.replace(model, loss=loss)
