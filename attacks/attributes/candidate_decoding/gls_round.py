"""What one round of a client that trains in batches or for several epochs says of the unknowns: the
terms of `gls`, whose module has the equations."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from attacks.attributes.candidate_decoding.factored_gradients import (
    FactoredGradients,
    candidates_at_centre,
    mean_gradients,
    of_layers,
)
from attacks.attributes.candidate_decoding.order_noise import (
    OrderNoise,
    batch_weights,
    drift,
    noise_variance,
    piece_ends,
    upload_variance,
    with_drift,
    with_weights,
)
from attacks.attributes.candidate_decoding.simulated_client import (
    Guess,
    clipping,
    guess_of,
    model_of_gradients,
    simulated,
    simulated_path,
    towards_average,
)
from attacks.attributes.candidate_decoding.whitening import whitened
from attacks.fit import ROUNDING, energies, rounding
from attacks.path import local_path
from jaxfl import LocalTraining, Messages, Model
from jaxfl.domains import Count, Index, NotNegative

Array = jax.Array


@struct.dataclass
class GLS:
    """Settings of `gls`.

    Attributes:
      training: the client's recipe, known to the server that prescribed it. Its optimiser must be
        SGD, with momentum and weight decay or without, or another that is linear in gradients,
        alike for all parameters (`attacks.path.is_linear`); its plug-ins `DPSGD`, `Mixup`,
        `ClassWeights`, or `Upload` without bits, of whose noise alone `gls` knows: its clip must be
        longer than every update.
      orders: simulated runs M per round, at least 2, each on all candidates, for mean and noise
        (static). Many small batches make noise in about N directions; what M runs miss of them is
        taken for signal. Clients with few steps need few.
      points: 1, gradients at the path's centre; or more, their mean over so many points of each
        epoch of a simulated path, where a random part of the records has been seen: better for many
        small batches, at the price of writing gradients out, records x K x parameters behind the
        first layer; or all, if the model names no dense layers (static). What is clipped is taken
        to be that mean, which is a little shorter than the gradients are. Plain SGD only.
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
        records miss what tells these apart. N + M rows become N (1 + drift) + M
        (static). In float32 rounding loses the quadratic of thousands of like records, which
        `status` says.
      layers: look at the gradients of the first so many dense layers alone; all parameters with
        None (static). A column that is an input enters the first layer as it is; what later layers
        add of it is mostly noise of orders if records are alike.
    """

    training: LocalTraining
    _: dataclasses.KW_ONLY
    orders: Count = struct.field(pytree_node=False, default=64)
    points: Count = struct.field(pytree_node=False, default=1)
    passes: Count = struct.field(pytree_node=False, default=3)
    spread: NotNegative = 0.01
    floor: NotNegative | None = None
    ridge: NotNegative = 0.05
    iterations: Count = struct.field(pytree_node=False, default=500)
    drift: Index = struct.field(pytree_node=False, default=0)
    layers: Count | None = struct.field(pytree_node=False, default=None)


FLOOR, EXACT_FLOOR = 3e-3, 1e-5
"""See `GLS.floor`: of noise that runs sample, and of noise that `drift` works out."""


class Round(NamedTuple):
    """One round's model and update, the most of the variance per number that rounding adds to the
    update, in units of the learning rate, and inner products of the candidates' gradients
    `[records, K, records, K]`, if they are at hand."""

    received: Any
    update: Any
    rounded: Array | float = 0.0
    inner: Array | None = None


def rounds_of(messages: Messages, spacing: Array, training: LocalTraining, records: int) -> Round:
    """All rounds `[rounds, ...]` of a client with so many records; `spacing` is that of the numbers
    in which its models were recorded, relative to these (`attacks.fit.precision`)."""
    received, updates = messages.received, messages.pseudo_gradient
    energy = energies(updates)
    count = sum(a.size for a in jax.tree.leaves(messages.model_shapes))
    left = rounding(received, updates, jnp.zeros(()), spacing, training.steps(records))
    left = jnp.where(energy > 0, left * energy, 0)
    return Round(received, updates, left / count / training.learning_rate**2)


@struct.dataclass
class Client:
    """The candidates `[records, K, ...]` of a client's records, labels `[records]` or, if they are
    unknown, of every candidate, and how it trains."""

    model: Model = struct.field(pytree_node=False)
    x: Array
    labels: Array
    settings: GLS

    @property
    def y(self) -> Array:
        """Labels of every candidate `[records, K]`."""
        labels = self.labels[:, None] if self.labels.ndim == 1 else self.labels
        return jnp.broadcast_to(labels, self.x.shape[:2])

    @property
    def model_of_gradients(self) -> Model:
        """See there."""
        return model_of_gradients(self.model, self.settings.training, self.labels)

    def at_centre(self, seen: Round, depth: int | None = None) -> FactoredGradients:
        """The candidates' gradients at the centre of a round's path, of the first `depth` layers or
        all."""
        training = self.settings.training
        return candidates_at_centre(
            self.model_of_gradients, seen.received, seen.update, training, self.x, self.y, depth
        )

    def guess(self, scores: Array, seen: Round) -> Guess:
        """Its training on what `scores [records, K]` expect."""
        return guess_of(
            self.model,
            self.settings.training,
            scores,
            self.x,
            self.labels,
            lambda: self.at_centre(seen).squares(),
        )


def round_quadratic(client: Client, seen: Round, scores: Array, key: Array) -> tuple[Array, Array]:
    """`a^2 J S^-1 J'` and `a J S^-1 (u / eta - mu)` of one round."""
    settings, (records, count) = client.settings, client.x.shape[:2]
    training = settings.training
    simulate_key, path_key = jax.random.split(key)
    guess = client.guess(scores, seen)
    mean, deviations = simulated(guess, seen.received, simulate_key, settings.orders)
    gram, project = _gradients(client, seen, guess, path_key)
    residual = ravel_pytree(seen.update)[0] / training.learning_rate - mean
    vectors = jax.vmap(ravel_pytree(seen.received)[1])(
        jnp.concatenate([residual[None], deviations])
    )
    along = jax.vmap(project, out_axes=1)(vectors).reshape(
        records, count, -1
    )  # [records, K, 1 + orders]
    noise = _noise(client, seen, vectors, gram, along, scores)
    # Rounding of inner products, as if independent, moves eigenvalues by about so much.
    rounding = ROUNDING * jnp.finfo(noise.inner.dtype).eps * noise.squares / len(noise.inner) ** 0.5
    by_default = EXACT_FLOOR if settings.drift else FLOOR
    relative = by_default if settings.floor is None else settings.floor
    least = jnp.maximum(relative * jnp.trace(noise.inner) / records, rounding)
    least += noise_variance(training, records) + upload_variance(training, seen.update)
    least += seen.rounded
    quadratic, slope = whitened(noise, gram, along[..., 0], least)
    averages = 2 if training.mixup else 1  # that one record is in
    entries = averages * batch_weights(training, records)[0]
    return entries**2 * quadratic, entries * slope


def _noise(
    client: Client, seen: Round, vectors: Any, gram: Array, along: Array, scores: Array
) -> OrderNoise:
    """Rows of a round's noise: weights, drift if asked for, and sampled deviations, which are all
    of `vectors`, trees `[1 + orders, ...]`, but the first, the residual. `along`: their products
    with the candidates' gradients `[records, K, 1 + orders]`."""
    settings, records = client.settings, len(scores)
    training, depth = settings.training, settings.layers
    looked_at = jax.vmap(lambda tree: ravel_pytree(of_layers(client.model, tree, depth))[0])(
        vectors
    )
    inner = looked_at[1:] @ looked_at[1:].T
    expected = jnp.einsum("nk,nkm->nm", scores, along[..., 1:])
    noise = OrderNoise(
        along[..., 1:], expected, inner, looked_at[1:] @ looked_at[0], jnp.trace(inner)
    )
    if settings.drift:
        flat = client.x.reshape(-1, *client.x.shape[2:]), client.y.reshape(-1)
        ends = piece_ends(seen.received, seen.update, local_path(training, records), settings.drift)
        moved = drift(client.model_of_gradients, ends, *flat, depth)
        moved = moved.expected(jnp.tile(scores, (settings.drift, 1)))
        projected = jax.vmap(moved.along, out_axes=1)(vectors)
        noise = with_drift(noise, moved, client.at_centre(seen, depth), projected, scores, training)
    return with_weights(noise, gram, along[..., 0], scores, training, settings.spread)


def _gradients(
    client: Client, seen: Round, guess: Guess, key: Array
) -> tuple[Array, Callable[[Any], Array]]:
    """Inner products `[records, K, records, K]` of the candidates' gradients, as the client's
    training uses them, and their products with a target `[records * K]`."""
    settings, shape = client.settings, client.x.shape[:2]
    if settings.training.mixup:
        towards = (client.x + guess.data.x.mean(0)) / 2
        model = towards_average(client.model, guess.data.y)
        client = Client(model, towards, client.labels, settings)
    if settings.points == 1:
        centre = client.at_centre(seen, settings.layers)
        gram = centre.gram() if seen.inner is None else seen.inner
        project: Callable[[Any], Array] = centre.along
        squares = client.at_centre(seen).squares()
    else:
        path = simulated_path(guess, seen.received, key, settings.points)
        gram, project = mean_gradients(client.model_of_gradients, path, client.x, client.y)
        squares = jnp.diag(gram)
    gram = gram.reshape(*shape, *shape)
    if settings.training.privacy is None:
        return gram, project
    factor = clipping(squares, settings.training.privacy.clip).reshape(shape)
    clipped = gram * factor[..., None, None] * factor
    return clipped, lambda target: factor.reshape(-1) * project(target)
