"""Local model reconstruction (Driouich 2023, section 3.2): the model that a client would have
trained on its own records alone.

Threat model: a passive adversary that sees some of one client's messages, and knows the model's
structure, the loss and the training recipe. From them it has to guess a model at which the client
would have nothing to change.

Algorithm 2 learns a map G from received models to updates and looks for a zero of it.
`mapping_network` is that, as published; `affine_optimum` the same with an affine map, in closed
form (exact for linear least squares, with a ridge near 0); `extrapolated` goes on in the direction
the client last pulled, as a control in one line. `pseudo_records` is a map with the structure of a
client: the gradient on a few made-up records, fitted to the messages; then a zero of it is what
training on these records leads to. Where public columns and labels are known, better still:
reconstruct the records (`attacks.attributes.candidate_decoding`) and train on them with
`jaxfl.local_update`; that is the client's own training.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from attacks.lapack import after
from attacks.precision import in_type_here
from jaxfl import Messages, Model, mlp
from jaxfl.domains import Count, Fraction, Key, NotNegative, Positive, Shape, checked

Array = jax.Array
CHANCE = 0.05
"""A map explains something if chance would explain as much less often than this."""


@checked
def last_returned(messages: Messages) -> Any:
    """The last model the client returned: what every reconstruction has to beat."""
    return jax.tree.map(lambda a: a[-1], messages.returned)


@checked
@in_type_here
def extrapolated(messages: Messages, *, factor: NotNegative = 10.0, rounds: Count = 10) -> Any:
    """The last returned model, moved on by `factor` times the mean of the last updates. A control,
    not from the papers.

    Args:
      messages: the client's.
      factor: how far to go.
      rounds: updates that are averaged; all if there are fewer.
    """
    pull = jax.tree.map(lambda u: u[-rounds:].mean(0), messages.pseudo_gradient)
    return jax.tree.map(lambda w, u: w - factor * u, last_returned(messages), pull)


@checked
@in_type_here
def affine_optimum(messages: Messages, *, ridge: NotNegative = 1e-2) -> Any:
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

    hidden: Shape = struct.field(pytree_node=False, default=(32, 32))
    fit_steps: Count = struct.field(pytree_node=False, default=200)
    fit_rate: Positive = 1e-3
    search_steps: Count = struct.field(pytree_node=False, default=1000)
    search_rate: Positive = 1e-2
    scaling: Literal["literal", "normalised"] = struct.field(
        pytree_node=False, default="normalised"
    )
    held_out: Fraction = struct.field(pytree_node=False, default=0.1)


@struct.dataclass
class LocalModel:
    """A reconstructed model, and what the adversary can know of it.

    Attributes:
      params: the model.
      unexplained: part of held-out updates' energy that the fitted map misses; 1 is no better than
        predicting zero.
      kept_last: True if `params` are those last returned: pseudo-records explained too little, or
        the map led nowhere finite, or nowhere at all (it is constant around the last model).
      chance: how probable it is that as much is explained of updates of mean 0 that have nothing to
        do with the received models. The iterate of a network is chosen by the very updates that
        judge it: of such updates, too, some iterate explains a little.
    """

    params: Any
    unexplained: Array
    kept_last: Array
    chance: Array

    @property
    def misfit(self) -> Array:
        """Whether the model says nothing that the last one does not: what was fitted explains no
        more of held-out updates than chance would, or led nowhere. That it is none says that the
        map explains updates, not that its zero is a good model: that may be worse than the last."""
        return self.kept_last | ~(self.chance < CHANCE)


@checked
@in_type_here
def mapping_network(messages: Messages, key: Key, *, settings: Mapping | None = None) -> LocalModel:
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
        left, singular, _ = jnp.linalg.svd(after(change, inputs), full_matrices=False)
        targets = left * singular
        targets /= jnp.sqrt((targets**2).mean())
        start = coordinates(last)
    network = mlp(inputs.shape[1], settings.hidden, targets.shape[1], task="regression")
    weights, unexplained = _fitted(network, inputs, targets, key, settings)
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
    moved = jnp.isfinite(params).all() & (point != start).any()
    chance = by_chance(unexplained, targets, _held_out(settings.held_out, len(messages)))
    return LocalModel(unravel(jnp.where(moved, params, last)), unexplained, ~moved, chance)


def _fitted(
    network: Model, inputs: Array, targets: Array, key: Array, settings: Mapping
) -> tuple[Any, Array]:
    """Weights of the network after the step that explained the held-out rounds best, and the share
    of their targets that is left unexplained."""
    init_key, split_key = jax.random.split(key)
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
    return weights, unexplained


def by_chance(unexplained: Array, updates: Array, held: int) -> Array:
    """How probable it is that a map misses no more of `held` of these `updates [rounds,
    parameters]` if rounds are independent, of mean 0, and nothing to do with what was received.

    The smaller of two probabilities, doubled. A prediction of a random direction misses at least
    1 - c^2 of the held-out ones, c its cosine with them, whose square is distributed as Beta(1/2,
    (n - 1) / 2) in n dimensions. And the squared length of all updates' sum, relative to the sum of
    theirs, is a chi-square divided by its degrees of freedom; that counts for a map which explains
    at least half of what the updates' mean does. A round has (tr C)^2 / tr C^2 dimensions, for the
    covariance C of updates.
    """
    tiny = jnp.finfo(updates.dtype).tiny
    updates /= jnp.maximum(jnp.abs(updates).max(), tiny)
    updates /= jnp.maximum(jnp.linalg.norm(updates), tiny)
    deviations = updates - updates.mean(0)
    with jax.default_matmul_precision("highest"):
        gram = deviations @ deviations.T
    gram /= jnp.maximum(jnp.trace(gram), tiny)
    dimensions = jnp.clip(1 / jnp.maximum((gram**2).sum(), tiny), 1, len(updates))
    explained = jnp.clip(1 - unexplained, 0, 1)
    free = jnp.maximum(held * dimensions - 1, 1e-6)
    along = jax.scipy.special.betainc(free / 2, 0.5, 1 - explained) / 2
    pull = (updates.sum(0) ** 2).sum()
    together = jax.scipy.special.gammaincc(dimensions / 2, dimensions * pull / 2)
    together = jnp.where(explained > pull / len(updates) / 2, together, 1.0)
    tail = jnp.minimum(2 * jnp.minimum(along, together), 1)
    return jnp.where(unexplained < 1, tail, 1.0)


def _held_out(fraction: float, rounds: int) -> int:
    """How many rounds judge a fit to the others."""
    return max(1, round(fraction * rounds))


def _check_held_out(fraction: float, rounds: int) -> None:
    if _held_out(fraction, rounds) == rounds:
        raise ValueError(f"held_out={fraction!r} leaves none of {rounds} rounds to fit")


def _whitened(rows: Array) -> tuple[Array, Array, Callable[[Array], Array]]:
    """Centred coordinates `[rounds, rank]` of unit variance, the basis `[rank, parameters]` that
    leads back, and what gives the coordinates of any other point."""
    mean, root = rows.mean(0), jnp.sqrt(jnp.asarray(len(rows), rows.dtype))
    left, singular, right = jnp.linalg.svd(rows - mean, full_matrices=False)
    # Directions above what rounding in float32 leaves of some hundred products.
    kept = singular > 1e-5 * singular[0]

    def coordinates(point: Array) -> Array:
        return jnp.where(kept, root * (right @ (point - mean)) / jnp.where(kept, singular, 1), 0)

    return (
        jnp.where(kept, left, 0) * root,
        jnp.where(kept, singular, 0)[:, None] * right / root,
        coordinates,
    )
