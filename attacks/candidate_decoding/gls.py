"""Decoding clients that train in batches or for several epochs, by generalised least squares.

Such a client's update is no gradient: the model moves under way, and the order of its records is random and unknown.
To first order in the unknown weights s around a current guess, round t says

    u_t = mu_t(s) + e_t,    mu_t(s + d) ~ mu_t(s) + J_t' d,    cov(e_t) = S_t.

Mean and covariance come from the client's own training, simulated on the guess in M fresh orders; J_t holds, per unknown,
the difference of the record's gradients between candidates, averaged along simulated paths, in units of the update (a
record enters with steps / records times the learning rate). A partial epoch is an epoch over a random part of the
records, so points along a path need nothing new. With `R` the centred simulated updates, `S = sigma^2 I + R'R / M` is
inverted in M dimensions (Woodbury). All rounds together give a quadratic in s, minimised under 0 <= s and
sum_k s_nk <= 1, and the whole is repeated from the new guess: later rounds need the mean near the truth.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from attacks.attribute_reconstruction import Knowledge, Reconstruction, check_knowledge
from attacks.candidate_decoding.candidates import (
    candidate_records,
    difference_jacobian,
    first_inputs,
    inputs_and_errors,
    prior_weights,
    split,
)
from attacks.candidate_decoding.constraints import minimize_quadratic, onto_simplex
from jaxfl import LocalTraining, Messages, Model, _check, local_update
from jaxfl.clients import ClientData

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GLS:
    """Settings of `gls`.

    Attributes:
      training: the client's recipe, known to the server that prescribed it. The Jacobian is that of plain SGD.
      orders: simulated runs M per round, for mean and noise (static). The noise of N records has about N directions;
        what M runs miss of them is taken for signal.
      points: places along the path where gradients are taken, per epoch (static).
      passes: repetitions from the improved guess (static).
      floor: sigma^2 relative to the simulated noise's total variance.
      ridge: pull towards the prior, relative to the precision of a draw from it.
      iterations: of the constrained minimisation (static).
    """

    training: LocalTraining = LocalTraining()
    orders: int = dataclasses.field(default=256, metadata={"static": True})
    points: int = dataclasses.field(default=8, metadata={"static": True})
    passes: int = dataclasses.field(default=2, metadata={"static": True})
    floor: float | Array = 1e-3
    ridge: float | Array = 0.05
    iterations: int = dataclasses.field(default=500, metadata={"static": True})


def gls(model: Model, messages: Messages, knowledge: Knowledge, key: Array, *, settings: GLS | None = None) -> Reconstruction:
    """Reconstruct one unknown column from the messages of a client that trains in batches.

    Args:
      model: the model (static); one whose layers are dense needs less memory (see `jaxfl.models.DenseLayers`).
      messages: the client's messages; the more rounds the better, since one unknown bit moves few numbers per round.
      knowledge: one unknown column; known labels.
      key: draws simulated batch orders.
      settings: see `GLS`.

    Returns:
      A `Reconstruction`; `objective` is the whitened misfit of the rounded answer relative to that of the prior's mean,
      `trace` the same of the real-valued answer after each pass.

    Raises:
      ValueError: as `cos_matching`; and if labels are unknown or there are several unknown columns.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    if knowledge.y is None or len(knowledge.columns) != 1:
        raise ValueError("gls needs known labels and exactly one unknown column")
    settings = settings or GLS()
    _check.positive_integer(
        orders=settings.orders, points=settings.points, passes=settings.passes, iterations=settings.iterations
    )
    if settings.orders < 2:
        raise ValueError(f"orders={settings.orders} gives no spread; simulate at least 2")
    settings.training.check(len(knowledge.x))
    settings = jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(float)), settings)
    return _gls(model, messages, knowledge, key, settings)


@functools.partial(jax.jit, static_argnames="model")
def _gls(model: Model, messages: Messages, knowledge: Knowledge, key: Array, settings: GLS) -> Reconstruction:
    x, y = candidate_records(model, knowledge)
    records, count = x.shape[:2]
    prior = prior_weights(model, knowledge, count)
    # Precision of a draw from the prior, per unknown.
    precision = settings.ridge / jnp.maximum(prior * (1 - prior), 1e-3)
    rounds = (messages.received, messages.pseudo_gradient, jnp.arange(len(messages)))
    inputs = first_inputs(model, x, y, jax.tree.map(lambda a: a[0], messages.received))

    def one_pass(weights: Array, key: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        scores = _scores(weights, records)
        data = ClientData(jnp.einsum("nk,nkf->nf", scores, x), y[:, 0], jnp.ones(records, bool), jnp.asarray(0))

        def add(total: tuple[Array, Array], one: Any) -> tuple[tuple[Array, Array], None]:
            received, update, t = one
            gram, right = _one_round(model, received, update, data, x, y, inputs, jax.random.fold_in(key, t), settings)
            return (total[0] + gram, total[1] + right), None

        size = len(weights)
        zero = jnp.zeros((size, size)), jnp.zeros(size)
        (gram, right), _ = jax.lax.scan(add, zero, rounds)
        right = right + gram @ weights  # linearised at the current weights
        gram, right = gram + jnp.diag(precision), right + precision * prior
        found = minimize_quadratic(
            lambda w: gram @ w - right,
            weights,
            lambda w: onto_simplex(w.reshape(records, -1)).reshape(-1),
            jnp.abs(gram).sum(1).max(),  # bounds the largest eigenvalue
            settings.iterations,
        )
        return found, (gram, right, _misfit(gram, right, found, prior))

    with jax.default_matmul_precision("highest"):
        weights, (grams, rights, trace) = jax.lax.scan(one_pass, prior, jax.random.split(key, settings.passes))
    scores = _scores(weights, records)
    chosen = scores.argmax(1)
    rounded = jax.nn.one_hot(chosen, count)[:, 1:].reshape(-1)
    failed = ~jnp.isfinite(weights).all()
    objective = _misfit(grams[-1], rights[-1], rounded, prior)
    return Reconstruction(
        values=(jnp.where(failed, -1, chosen),),
        scores=(scores,),
        labels=None,
        objective=jnp.where(failed, jnp.inf, objective),
        trace=trace,
        gradient_norm=jnp.full_like(trace, jnp.nan),
        status=failed.astype(jnp.int32),
    )


def _scores(weights: Array, records: int) -> Array:
    weights = weights.reshape(records, -1)
    return jnp.concatenate([1 - weights.sum(1, keepdims=True), weights], 1)


def _misfit(gram: Array, right: Array, weights: Array, prior: Array) -> Array:
    """The quadratic's value above its unconstrained minimum, relative to that of the prior's mean."""
    best = jnp.linalg.solve(gram, right)

    def above(w: Array) -> Array:
        return (w - best) @ gram @ (w - best)

    return above(weights) / jnp.maximum(above(prior), jnp.finfo(gram.dtype).tiny)


def _one_round(
    model: Model, received: Any, update: Any, data: ClientData, x: Array, y: Array, inputs: Any, key: Array, settings: GLS
) -> tuple[Array, Array]:
    """`J S^-1 J'` and `J S^-1 (u - mu)` of one round."""
    simulate_key, path_key = jax.random.split(key)
    training, flatten = settings.training, lambda tree: ravel_pytree(tree)[0]

    def simulated(k: Array) -> Array:
        returned = local_update(model, received, data, k, training)
        return flatten(jax.tree.map(jnp.subtract, received, returned))

    # At once on every backend: products of small batches leave a core idle unless several runs share it.
    updates = jax.vmap(simulated)(jax.random.split(simulate_key, settings.orders))
    mean, centred = updates.mean(0), updates - updates.mean(0)
    jacobian = _path_jacobian(model, received, data, x, y, inputs, path_key, settings)
    scale = training.learning_rate * training.steps(len(data.x)) / len(data.x)
    gram = scale**2 * jacobian.gram()
    unravel = ravel_pytree(received)[1]
    targets = jnp.concatenate([centred, (flatten(update) - mean)[None]])
    projected = scale * jax.vmap(lambda v: jacobian.project(unravel(v)))(targets).T
    noise, signal = projected[:, :-1], projected[:, -1]
    products = centred @ targets.T
    total = jnp.trace(products[:, :-1]) / settings.orders
    # A full batch has no order: without noise, rounding errors are what is left.
    floor = settings.floor * total + 1e-10 * mean @ mean
    inner = products[:, :-1] + floor * settings.orders * jnp.eye(settings.orders)
    solved = jnp.linalg.solve(inner, jnp.concatenate([noise.T, products[:, -1:]], 1))
    return (gram - noise @ solved[:, :-1]) / floor, (signal - noise @ solved[:, -1]) / floor


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Jacobian:
    """Path-averaged gradient differences. The first layer's inputs do not change along the path, so its part stays a sum
    of two outer products; the rest is written out.

    Attributes:
      first: `(base, difference, products, error_difference, error)` of the first layer, or None.
      rest: `[unknowns, other parameters]`.
      bias: whether the first layer has one (static).
      name: path of the first layer (static).
    """

    first: Any
    rest: Array
    bias: bool = dataclasses.field(metadata={"static": True})
    name: str = dataclasses.field(metadata={"static": True})

    def gram(self) -> Array:
        gram = self.rest @ self.rest.T
        if self.first is None:
            return gram
        _, _, (same, across, both), error_difference, error = self.first
        mixed = across * (error_difference @ error.T)
        gram += (same + self.bias) * (error_difference @ error_difference.T) + mixed + mixed.T
        return gram + both * (error @ error.T)

    def project(self, target: Any) -> Array:
        if self.first is None:
            return self.rest @ ravel_pytree(target)[0]
        base, difference, _, error_difference, error = self.first
        own, others = _apart(target, self.name)
        found = ((base @ own["kernel"]) * error_difference + (difference @ own["kernel"]) * error).sum(1)
        if self.bias:
            found += error_difference @ own["bias"]
        return found + self.rest @ others


def _apart(tree: Any, name: str) -> tuple[dict[str, Array], Array]:
    """The named layer's parameters, and all others in one vector."""
    own: dict[str, Array] = {}
    others = []
    for path, leaf in jax.tree.leaves_with_path(tree):
        *parents, last = (part.key for part in path)
        if "/".join(parents) == name:
            own[last] = leaf
        else:
            others.append(leaf.reshape(-1))
    return own, jnp.concatenate([jnp.zeros(0, leaf.dtype), *others])


def _path_jacobian(
    model: Model, received: Any, data: ClientData, x: Array, y: Array, inputs: Any, key: Array, settings: GLS
) -> _Jacobian:
    """Gradient differences averaged over points of simulated paths: in every epoch after a random part of the records."""
    records, count = x.shape[:2]
    epoch_training = dataclasses.replace(settings.training, epochs=1)

    def after(params: Any, fraction: Array, key: Array) -> Any:
        part_key, order_key = jax.random.split(key)
        ranks = jax.random.uniform(part_key, (records,)).argsort().argsort()
        part = dataclasses.replace(data, mask=ranks < fraction * records)
        return local_update(model, params, part, order_key, epoch_training)

    def differences(params: Any) -> tuple[Any, Array]:
        if model.layers is None:
            return None, difference_jacobian(model, params, x, y)[0]
        return _factors(model, params, x, y)

    def epoch(params: Any, key: Array) -> tuple[Any, Any]:
        point_key, epoch_key = jax.random.split(key)
        fractions = (jnp.arange(settings.points) + 0.5) / settings.points
        keys = jax.random.split(point_key, settings.points)
        found = jax.lax.map(lambda fk: differences(after(params, *fk)), (fractions, keys))
        return after(params, jnp.ones(()), epoch_key), jax.tree.map(lambda a: a.mean(0), found)

    _, found = jax.lax.scan(epoch, received, jax.random.split(key, settings.training.epochs))
    errors, rest = jax.tree.map(lambda a: a.mean(0), found)
    if model.layers is None:
        return _Jacobian(None, rest, False, "")
    base, difference, products = inputs
    name = model.layers.names[0]
    first = (jnp.repeat(base, count - 1, axis=0), difference, products, *errors)
    return _Jacobian(first, rest, "bias" in model.layers.parameters(received, name), name)


def _factors(model: Model, params: Any, x: Array, y: Array) -> tuple[tuple[Array, Array], Array]:
    """First layer: error difference and error of the other candidates. Other layers: their gradients' differences."""
    layers = model.layers
    assert layers is not None
    records, count = x.shape[:2]
    inputs, errors = inputs_and_errors(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
    first, *others = layers.names
    written: dict[str, dict[str, Array]] = {}
    for name in others:
        base, _, difference = split(inputs[name], records)
        _, error, error_difference = split(errors[name], records)
        base = jnp.repeat(base, count - 1, axis=0)
        kernel = base[:, :, None] * error_difference[:, None] + difference[:, :, None] * error[:, None]
        written[name] = {"kernel": kernel, "bias": error_difference}

    def place(path: Any, leaf: Array) -> Array:
        *parents, last = (part.key for part in path)
        name = "/".join(parents)
        size = records * (count - 1)
        return written[name][last].reshape(size, -1) if name in written else jnp.zeros((size, 0), x.dtype)

    rest = jnp.concatenate(jax.tree.leaves(jax.tree.map_with_path(place, params)), 1)
    _, error, error_difference = split(errors[first], records)
    return (error_difference, error), rest
