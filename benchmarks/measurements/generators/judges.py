"""Classifiers of what a generator has made, independent of the attack: trained on pictures that
neither clients nor adversary have."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import ndimage

from benchmarks.scenarios.generated import World
from jaxfl import LocalTraining, Model, local_update, one_client, trunk_cnn

Array = jax.Array
BATCH_SIZE = 50
"""Batch size of a judge's training."""
WIDTHS = (16, 32, 64, 64)


class Judges(NamedTuple):
    """Independent classifiers of generated images.

    Attributes:
      models: the classifiers' architectures: of the class, and of being like the victim.
      category, property: their parameters.
    """

    models: tuple[Model, Model]
    category: Any
    property: Any

    def classes(self, images: Array) -> Array:
        """Probabilities `[images, classes]`."""
        return jax.nn.softmax(_apply(self.models[0], self.category, images))

    def like(self, images: Array) -> Array:
        """1 for an image that is like the victim's, 0 for others, NaN where that cannot be said
        `[images]`."""
        logits = _apply(self.models[1], self.property, images)
        return jnp.where(jnp.isfinite(logits).all(-1), logits.argmax(-1) == 1, jnp.nan)


def train_judges(world: World, strides: tuple[int, ...], key: Array, steps: int) -> Judges:
    """Classifiers of the judges' records, which the adversary has not, and of `degraded` copies; of
    faces also mirrored.

    Args:
      world: who holds what.
      strides: of their convolutions, as of the shared model's.
      key: draws copies, first parameters and batches.
      steps: of the training of each, at least: in whole epochs.
    """
    x, y, like = world.judges
    if world.classes == 40:
        x, y, like = np.concatenate([x, x[:, :, ::-1]]), np.tile(y, 2), np.tile(like, 2)
    copy_key, *keys = jax.random.split(key, 3)
    copies = degraded(x, y, like, np.random.default_rng(np.asarray(jax.random.key_data(copy_key))))
    x, y, like = np.concatenate([x, copies]), np.tile(y, 2), np.tile(like, 2)
    models = tuple(
        trunk_cnn(x.shape[1:], n, widths=WIDTHS, strides=strides) for n in (world.classes, 2)
    )
    training = LocalTraining(1e-3, math.ceil(steps * BATCH_SIZE / len(x)), BATCH_SIZE, optax.adam)
    trained = []
    for model, labels, k in zip(models, (y, like.astype(int)), keys, strict=True):
        start_key, train_key = jax.random.split(k)
        trained.append(
            _train(model, model.init(start_key), one_client(x, labels), train_key, training)
        )
    return Judges((models[0], models[1]), *trained)


_apply = jax.jit(lambda model, params, x: model.apply(params, x), static_argnums=0)
_train = jax.jit(local_update, static_argnames="model")


def degraded(
    x: np.ndarray, y: np.ndarray, like: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Each image `[images, height, width, 1]` in [-1, 1] blended with another of its class and
    kind, blurred, faded and noisy, by random amounts. A judge that was trained only on clean
    pictures is unreliable on generated ones: it took nine of ten representatives of upright digits
    for turned ones.

    Args:
      x: the images.
      y: their classes `[images]`.
      like: whether they are like the victim's `[images]`.
      rng: draws partners and amounts.
    """
    other = np.arange(len(x))
    for group in np.unique(2 * y + like):
        rows = np.flatnonzero(2 * y + like == group)
        other[rows] = rng.permutation(rows)

    def amount(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, (len(x), 1, 1, 1))

    blended = x + amount(0.0, 0.5) * (x[other] - x)
    blended += amount(0.0, 1.0) * (ndimage.gaussian_filter(blended, (0, 1, 1, 0)) - blended)
    contrast = amount(0.4, 1.0)
    faded = contrast * (blended + 1) + (1 - contrast) * amount(0.0, 0.6) - 1
    noisy = faded + amount(0.0, 0.5) * rng.normal(size=x.shape)
    return noisy.clip(-1, 1).astype(x.dtype)
