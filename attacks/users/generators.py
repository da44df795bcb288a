"""Generators of the generative attacks (Song 2020, Tables I and II)."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Int, Num

from jaxfl import _check
from jaxfl.domains import Count, Key, Shape, checked
from jaxfl.models.convolutions import convolve_transposed

Array = jax.Array
NOISE = 100
"""Numbers that a generator makes an image of, as in Song 2020."""


class _Deconvolution(nn.Module):
    """5x5, with stride 2; with stride 1 and without padding if `valid`."""

    features: int
    valid: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param(
            "kernel", nn.initializers.lecun_normal(), (5, 5, x.shape[-1], self.features)
        )
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return (
            convolve_transposed(
                x, kernel, 1 if self.valid else 2, "VALID" if self.valid else "SAME"
            )
            + bias
        )


class Generator(nn.Module):
    """Noise, class and identity to images in [-1, 1] (Song 2020, Tables I and II): noise times the
    embeddings of class and identity, a dense layer, and transposed 5x5 convolutions; batch
    normalisation by the batch's own statistics.

    The text has stride 2 everywhere, with which 28x28 cannot be reached from 3x3: its first step is
    taken with stride 1 and without padding, to 7x7.

    Attributes:
      shape: of an image; height and width 28, or 16 times a number.
      classes: number of classes.
      width: channels after the dense layer; the paper has 384 for 28x28 and 512 for 64x64. Every
        step halves them.
    """

    shape: tuple[int, ...]
    classes: int
    width: int

    @nn.compact
    def __call__(self, noise: Array, labels: Array, identity: Array) -> Array:
        """Images `[batch, *shape]` of noise `[batch, 100]`, classes `[batch]` and identities
        `[batch]`, 1 for the victim."""
        glorot = nn.initializers.glorot_normal()
        for count, number in ((self.classes, labels), (2, identity)):
            noise = noise * nn.Embed(count, NOISE, embedding_init=glorot)(number)
        small = self.shape[0] == 28
        side = 3 if small else self.shape[0] // 16
        x = nn.relu(nn.Dense(side * side * self.width)(noise)).reshape(-1, side, side, self.width)
        for step in range(3 - small):
            x = _Deconvolution(self.width >> (step + 1), valid=small and step == 0)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False, use_scale=True)(x))
        return jnp.tanh(_Deconvolution(self.shape[-1], valid=False)(x))


@checked
@functools.cache
def generator(shape: Shape, classes: Count, width: Count) -> Generator:
    """A `Generator`.

    Args:
      shape: of an image, `(side, side, channels)` (static).
      classes: number of classes (static).
      width: channels after the dense layer (static).

    Raises:
      ValueError: if its steps do not reach the shape.
    """
    if len(shape) != 3 or shape[0] != shape[1] or (shape[0] != 28 and shape[0] % 16):
        raise ValueError(
            f"shape={shape} is out of the generator's reach: 28x28, or sides that are multiples "
            "of 16"
        )
    return Generator(tuple(shape), classes, width)


@checked
def generate(
    make: Generator,
    params: Any,
    labels: Int[Array, "images"],
    identity: Num[Array, "images"],
    key: Key,
) -> Num[Array, "images ..."]:
    """Images `[images, ...]` in [-1, 1].

    Args:
      make: the generator (static).
      params: its parameters.
      labels: classes `[images]`.
      identity: 1 for the victim, 0 for others `[images]`. Normalisation takes the batch as it
        comes: mix both, as in training.
      key: draws the noise.
    """
    _check.labels(labels, make.classes, name="labels")
    _check.zeros_or_ones(identity=identity)
    return _generate(make, params, jnp.asarray(labels), jnp.asarray(identity, jnp.int32), key)


@functools.partial(jax.jit, static_argnames="make")
def _generate(make: Generator, params: Any, labels: Array, identity: Array, key: Array) -> Array:
    noise = jax.random.uniform(key, (len(labels), NOISE), jnp.float32, -1.0, 1.0)
    images, _ = make.apply({"params": params}, noise, labels, identity, mutable=["batch_stats"])
    return jnp.asarray(images)
