"""Sample reconstruction (Driouich 2023, section 2.3): images out of a model, or out of an update.

Threat model: as in `attacks.local_models.reconstruction`; nothing is known of the client's records
but their shape and number.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Num

from attacks.fit import energies
from attacks.matching import (
    Virtual,
    cosine_distance,
    matching_objective,
    minimize_adam,
)
from attacks.precision import in_type_here
from jaxfl import Messages, Model, _check
from jaxfl.domains import Count, Key, NotNegative, Number, Params, Positive, Shape, checked
from jaxfl.models import check_parameters, check_record_shape, log_probabilities

Array = jax.Array


@struct.dataclass
class Inversion:
    """Settings of `invert_model`. The paper gives the step size (1e-3 for reconstructed models,
    1e-4 for others), no more.

    Attributes:
      steps: gradient steps (static).
      learning_rate: their step size.
      start: grey level at which every image begins.
      spread: standard deviation of the noise around it, where a key is given.
      low, high: the range of pixels.
    """

    steps: Count = struct.field(pytree_node=False, default=5000)
    learning_rate: Positive = 1e-3
    start: Number = 0.5
    spread: NotNegative = 0.01
    low: Number = 0.0
    high: Number = 1.0

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        if not _check.is_unseen(self.low, self.high) and not self.low < self.high:
            raise ValueError(f"{name}.low={self.low} must lie below high={self.high}")


@struct.dataclass
class ClassImages:
    """One image of each class.

    Attributes:
      images: `[classes, *shape]`.
      probabilities: that the model gives them, of their class `[classes]`.
    """

    images: Num[Array, "classes ..."]
    probabilities: Num[Array, "classes"]


@struct.dataclass
class InvertedImages:
    """Images out of an update; NaN if the objective was never finite, or nothing was sent.

    Attributes:
      images: in [0, 1] `[batch, *shape]`.
      labels: probabilities of their classes `[batch, classes]`.
    """

    images: Num[Array, "batch ..."]
    labels: Num[Array, "batch classes"]


@checked
def invert_model(
    model: Model,
    params: Params,
    shape: Shape,
    key: Key | None = None,
    *,
    settings: Inversion | None = None,
) -> ClassImages:
    """One image per class that the model is surest of (Driouich 2023, Eq. 5; Fredrikson et al.
    2015), by gradient ascent on the log probability, the stable form of the probability's, within
    the range of pixels. All classes are one batch, whose statistics normalisation uses.

    Args:
      model: a classifier (static).
      params: its parameters.
      shape: of an image.
      key: draws noise around the start. None begins with equal images, whose variance of 0 a model
        that normalises by the batch divides by: the first step is then all noise.
      settings: see `Inversion`.

    Returns:
      An image of each class.

    Raises:
      ValueError: if the model has no classes, takes no images of that shape, or a step size or
        number of steps is not positive.
    """
    settings = settings or Inversion()
    if model.classes is None:
        raise ValueError("invert_model needs a classifier; this model has classes=None")
    check_parameters(model, params)
    check_record_shape(model, params, shape=shape)
    return ClassImages(*_invert_model(model, params, tuple(shape), key, settings))


@functools.partial(jax.jit, static_argnames=("model", "shape"))
def _invert_model(
    model: Model, params: Any, shape: tuple[int, ...], key: Array | None, settings: Inversion
) -> tuple[Array, Array]:
    classes = model.classes or 0

    def of_own_class(x: Array) -> Array:
        return jnp.diag(log_probabilities(model.apply(params, x)))

    def step(x: Array, _: None) -> tuple[Array, None]:
        slope = jax.grad(lambda images: of_own_class(images).sum())(x)
        return jnp.clip(x + settings.learning_rate * slope, settings.low, settings.high), None

    start = jnp.full((classes, *shape), settings.start, jnp.result_type(float))
    if key is not None:
        start = jnp.clip(
            start + settings.spread * jax.random.normal(key, start.shape, jnp.float32),
            settings.low,
            settings.high,
        )
    images, _ = jax.lax.scan(step, start, length=settings.steps)
    return images, jnp.exp(of_own_class(images))


def total_variation(images: Array) -> Array:
    """Mean absolute difference of neighbouring pixels, down and across, of images `[batch, height,
    width, channels]`."""
    down, across = jnp.diff(images, axis=1), jnp.diff(images, axis=2)
    return jnp.abs(down).mean() + jnp.abs(across).mean()


@struct.dataclass
class GradientInversion:
    """Settings of `invert_gradient`.

    Attributes:
      alpha: weight of the total variation; the paper leaves it open.
      learning_rate: Adam's step size.
      steps: iterations (static).
      virtual: how a guess becomes an update.
    """

    alpha: NotNegative = 0.01
    learning_rate: Positive = 0.05
    steps: Count = struct.field(pytree_node=False, default=2000)
    virtual: Virtual = Virtual()


@checked
@in_type_here
def invert_gradient(
    model: Model,
    messages: Messages,
    shape: Shape,
    batch: Count,
    key: Key,
    *,
    y: Num[Array, "images"] | None = None,
    settings: GradientInversion | None = None,
) -> InvertedImages:
    """Images whose gradient points where the update did (Driouich 2023, Eq. 4; Geiping et al.
    2020).

    Args:
      model: a classifier (static).
      messages: the client's, of one round or of several.
      shape: of an image.
      batch: how many images to reconstruct (static).
      key: draws their start.
      y: their labels `[batch]`, or None: then they are reconstructed too.
      settings: see `GradientInversion`.

    Returns:
      Images with the probabilities of their classes.

    Raises:
      ValueError: if the model has no classes, images of that shape or labels do not fit, or a
        setting is out of range.
    """
    settings = settings or GradientInversion()
    if model.classes is None:
        raise ValueError("invert_gradient needs a classifier; this model has classes=None")
    settings.virtual.check(batch)
    if len(shape) != 3:
        raise ValueError(
            f"shape={tuple(shape)} must be of height, width and channels: the total variation "
            "is of images"
        )
    check_record_shape(model, messages.model_shapes, shape=shape)
    if y is not None:
        _check.shape((batch,), y=y)
        _check.labels(y, model.classes)
    inverted = _invert_gradient(model, messages, tuple(shape), batch, key, y, settings)
    # A client that returned what it received says nothing of its images.
    moved = (energies(messages.pseudo_gradient) > 0).any()
    return InvertedImages(*(jnp.where(moved, a, jnp.nan) for a in inverted))


@functools.partial(jax.jit, static_argnames=("model", "shape", "batch"))
def _invert_gradient(
    model: Model,
    messages: Messages,
    shape: tuple[int, ...],
    batch: int,
    key: Array,
    y: Array | None,
    settings: GradientInversion,
) -> tuple[Array, Array]:
    x_key, y_key, key = jax.random.split(key, 3)
    classes = model.classes or 0
    start = (
        jax.random.normal(x_key, (batch, *shape), jnp.float32),
        0.1 * jax.random.normal(y_key, (batch, classes), jnp.float32),
    )

    def guess(free: tuple[Array, Array]) -> tuple[Array, Array]:
        x, labels = free
        return jax.nn.sigmoid(x), jax.nn.softmax(labels) if y is None else jax.nn.one_hot(
            y, classes
        )

    def objective(free: tuple[Array, Array], key: Array) -> Array:
        x, labels = guess(free)
        matched = matching_objective(
            model, messages, x, labels, key, settings.virtual, cosine_distance
        )
        return matched + settings.alpha * total_variation(x)

    minimum = minimize_adam(
        objective, start, key, steps=settings.steps, learning_rate=settings.learning_rate
    )
    x, labels = guess(minimum.variables)
    ok = jnp.isfinite(minimum.value)
    return jnp.where(ok, x, jnp.nan), jnp.where(ok, labels, jnp.nan)
