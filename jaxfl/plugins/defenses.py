"""What a client may do against its adversary: to its update before it sends it, and to its
training."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxfl.domains import Domain, EachNotNegative, EachPositive, Params, numbers_where
from jaxfl.models import Model, inputs_and_errors, mean_loss, zero_rows
from jaxfl.models.probe import mixes_records
from jaxfl.plugins import Plugin

Array = jax.Array
LARGE = 100
"""Powers of two that are normal numbers of float32, as their reciprocals are."""

MOST_BITS = 16
"""Beyond, steps are too fine for float32 to round at random."""
_CLIP = Domain("positive, infinity for none", numbers_where(lambda v: v > 0))
_BITS = Domain(
    f"an integer from 0 (off) to {MOST_BITS}",
    numbers_where(lambda v: (v == np.round(v)) & (v >= 0) & (v <= MOST_BITS)),
)


@struct.dataclass
class Upload(Plugin):
    """How an update is sent: clipped, then noised, then quantised. All numbers are traced.

    Attributes:
      clip: largest L2 norm of an update; longer ones are scaled to it. Infinity leaves them as they
        are.
      noise_multiplier: standard deviation of the Gaussian noise on every number, in units of the
        norm the update has after clipping or, if `clip` is finite, of `clip`, as in differential
        privacy (Abadi et al. 2016).
      bits: bits per number: every array is rounded at random, without bias, to one of 2^bits values
        between plus and minus its largest (Alistarh et al. 2017, per array). At most 16; 0 leaves
        numbers as they are.
    """

    clip: Annotated[float | Array, _CLIP] = float("inf")
    noise_multiplier: EachNotNegative = 0.0
    bits: Annotated[int | Array, _BITS] = 0

    def send(self, update: Params, key: Array) -> Params:
        """An update as it is sent: a pytree of floating-point arrays; the key draws noise and
        rounding."""
        leaves, structure = jax.tree.flatten(update)
        norm = _length(leaves)
        long = norm > self.clip
        factor = jnp.where(long, jnp.where(long, self.clip, 1) / jnp.where(long, norm, 1), 1)
        deviation = self.noise_multiplier * jnp.where(jnp.isfinite(self.clip), self.clip, norm)
        sent = []
        for leaf, leaf_key in zip(leaves, jax.random.split(key, len(leaves)), strict=True):
            noise_key, rounding_key = jax.random.split(leaf_key)
            noise = deviation * jax.random.normal(noise_key, leaf.shape, jnp.float32)
            noised = (factor * _wide(leaf) + noise).astype(leaf.dtype)
            sent.append(jnp.where(self.bits > 0, _rounded(noised, rounding_key, self.bits), noised))
        return jax.tree.unflatten(structure, sent)


def _wide(array: Array) -> Array:
    """In float32 at least: squares of narrower numbers overflow, and sums lose what is small."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def _length(leaves: Sequence[Array]) -> Array:
    """Norm of all leaves together, whatever the size of its numbers; differentiable at 0."""
    wide = [jax.lax.stop_gradient(_wide(leaf)) for leaf in leaves]
    largest = jnp.stack(
        [jnp.zeros((), jnp.float32), *[jnp.abs(leaf).max(initial=0) for leaf in wide]]
    ).max()
    finite = jnp.where(jnp.isfinite(largest), largest, 1)
    # Division by a power of two changes no digit.
    exponent = jnp.clip(jnp.frexp(finite)[1], -LARGE, LARGE)
    unit = jnp.ldexp(jnp.ones_like(finite), exponent)
    square = jnp.asarray(sum(jnp.square(_wide(leaf) / unit).sum() for leaf in leaves))
    norm = jnp.where(square > 0, unit * jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    return jnp.where(jnp.isfinite(largest), norm, largest)


def _rounded(values: Array, key: Array, bits: int | Array) -> Array:
    largest = jnp.abs(values).max()
    steps = 2.0 ** jnp.maximum(bits, 1) - 1
    step = jnp.maximum(2 * largest / steps, jnp.finfo(values.dtype).tiny)
    places = jnp.floor(
        (values + largest) / step + jax.random.uniform(key, values.shape, jnp.float32)
    )
    return (jnp.minimum(places, steps) * step - largest).astype(values.dtype)


@struct.dataclass
class DPSGD(Plugin):
    """Differentially private training of one client (Abadi et al. 2016, Algorithm 1). Numbers are
    traced.

    The guarantee is for models whose records do not meet in a forward pass: none with batch
    normalisation. The noisy sum of a batch is divided by the nominal size of batches, that of a
    short last one too, as Opacus does. `jaxfl.accounting` tells epsilon.

    Attributes:
      clip: largest L2 norm of a record's gradient.
      noise_multiplier: standard deviation of the Gaussian noise on the sum of a batch's gradients,
        in units of `clip`.
    """

    clip: EachPositive = 1.0
    noise_multiplier: EachNotNegative = 1.0

    def step_gradient(
        self, model: Model, params: Params, x: Array, y: Array, mask: Array, key: Array
    ) -> Params:
        """See `private_gradient`."""
        return private_gradient(model, params, x, y, mask, key, self)


def private_gradient(
    model: Model, params: Any, x: Array, y: Array, mask: Array, key: Array, privacy: DPSGD
) -> Any:
    """Mean over a batch of clipped gradients of single records, with noise.

    Norms come from the layers' inputs and errors where the model names its dense layers, from
    `vmap(grad)` otherwise.

    Args:
      model: the model (static).
      params: its parameters.
      x: inputs `[batch, ...]`; rows where `mask` is False may hold anything.
      y: labels `[batch, ...]`.
      mask: boolean `[batch]`.
      key: draws noise, and dropout.
      privacy: see `DPSGD`.

    Raises:
      ValueError: if the model or its loss mixes records: then no record has a gradient of its own.
    """
    if mixes_records(model, params, x):
        raise ValueError(
            "plugins holds DPSGD, but the model mixes the records of a batch (batch "
            "normalisation?), or its loss does: no record has a gradient of its own to be clipped"
        )
    x, y = zero_rows(x, mask), zero_rows(y, mask)
    noise_key, dropout_key = jax.random.split(key)
    if model.layers is not None:
        total = _clipped_by_layers(model, params, x, y, mask, privacy.clip)
    else:

        def gradient(x: Array, y: Array, present: Array, key: Array) -> Any:
            gradient_of_one = jax.grad(lambda p: mean_loss(model, p, x[None], y[None], key=key))(
                params
            )
            return jax.tree.map(lambda g: jnp.where(present, g, 0), gradient_of_one)

        every = jax.vmap(gradient)(x, y, mask, jax.random.split(dropout_key, len(x)))
        every = jax.tree.map(_wide, every)
        squares = sum((g**2).reshape(len(g), -1).sum(1) for g in jax.tree.leaves(every))
        factor = _clipping(jnp.asarray(squares), privacy.clip)
        total = jax.tree.map(lambda g: jnp.tensordot(factor, g, 1), every)
    count = jnp.maximum(mask.sum(), 1)
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(noise_key, len(leaves))
    deviation = privacy.clip * privacy.noise_multiplier
    noised = [
        g + deviation * jax.random.normal(k, g.shape, jnp.float32).astype(g.dtype)
        for g, k in zip(leaves, keys, strict=True)
    ]
    mean = jax.tree.unflatten(structure, [g / count for g in noised])
    return jax.tree.map(lambda g, parameter: g.astype(parameter.dtype), mean, params)


def _clipping(squares: Array, clip: float | Array) -> Array:
    """By what gradients of squared norms `[batch]` are multiplied so that none is longer than
    `clip`; differentiable where a gradient is 0, as `optax.per_example_global_norm_clip` is
    not."""
    long = squares > clip**2
    return jnp.where(long, clip / jnp.sqrt(jnp.where(long, squares, 1)), 1)


def _clipped_by_layers(
    model: Model, params: Any, x: Array, y: Array, mask: Array, clip: Any
) -> Any:
    """Sum of the clipped gradients, none of which is formed."""
    layers = model.layers
    assert layers is not None
    inputs, errors = jax.tree.map(_wide, inputs_and_errors(model, params, x, y))
    dense = {name: layers.parameters(params, name) for name in layers.names}
    squares = [
        ((inputs[n] ** 2).sum(1) + ("bias" in dense[n])) * (errors[n] ** 2).sum(1)
        for n in layers.names
    ]
    factor = jnp.where(mask, _clipping(jnp.stack(squares).sum(0), clip), 0)
    totals = {
        n: {"kernel": (inputs[n] * factor[:, None]).T @ errors[n], "bias": factor @ errors[n]}
        for n in layers.names
    }

    def place(path: Any, _: Array) -> Array:
        *parents, last = (part.key for part in path)
        return totals["/".join(parents)][last]

    return jax.tree.map_with_path(place, params)


@struct.dataclass
class Mixup(Plugin):
    """Every record of a batch is averaged with another one (see `mixed`)."""

    def batch(
        self, model: Model, x: Array, y: Array, mask: Array, key: Array
    ) -> tuple[Model, Array, Array]:
        """See `mixed`."""
        return mixed(model, x, y, mask, key)


def mixed(model: Model, x: Array, y: Array, mask: Array, key: Array) -> tuple[Model, Array, Array]:
    """Mixup with lambda = 1/2 (Zhang et al. 2018, as Driouich 2023 uses it): every record is
    averaged with another one.

    Pairs are neighbours in a random circle through the batch. Losses towards both labels are
    averaged, which for cross-entropies and squared errors has the gradient of the loss towards the
    average label.

    Returns:
      A model whose loss takes pairs of labels, the mixed inputs `[batch, ...]`, and the pairs
      `[batch, 2, ...]`.
    """
    records = len(mask)
    order = jnp.argsort(jnp.where(mask, jax.random.uniform(key, (records,), jnp.float32), jnp.inf))
    after = order[jnp.where(jnp.arange(records) + 1 < mask.sum(), jnp.arange(records) + 1, 0)]
    partner = jnp.zeros(records, order.dtype).at[order].set(after)

    def loss(outputs: Array, pairs: Array) -> Array:
        return (model.loss(outputs, pairs[:, 0]) + model.loss(outputs, pairs[:, 1])) / 2

    pair = dataclasses.replace(model, loss=loss)
    return (
        pair,
        (zero_rows(x, mask) + zero_rows(x, mask)[partner]) / 2,
        jnp.stack([y, y[partner]], 1),
    )
