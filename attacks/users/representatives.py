"""Client representatives (Song 2020, section V-E): images whose update resembles the one that a
client sent.

Threat model: an honest-but-curious server. It knows the model, the clients' recipe and their
updates, and of the clients' images nothing but shape and range; labels are guessed, or inferred
from the update with the help of records of its own.
"""

import contextlib
import functools
import math
import warnings
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Num

from attacks.fit import FitWarning
from attacks.matching import Virtual, minimize_adam, squared_distance, virtual_update
from attacks.precision import in_type_here
from jaxfl import Messages, Model, _check
from jaxfl.domains import Count, Key, NotNegative, Number, Params, Positive, Shape, checked
from jaxfl.models import check_parameters, check_record_shape
from jaxfl.parallel import Strategy, map_clients, strategy_here
from jaxfl.watching import on_host

Array = jax.Array
ACCELERATOR_CHUNK = 64
"""Updates worked on at once where the backend likes batches."""


@struct.dataclass
class Representing:
    """Settings of `representatives`. The paper names the solver, beta and lambda.

    Attributes:
      images: how many images stand for a client (static).
      tv_weight: lambda, of the total variation beside the residual, which is relative to the
        update's length. The paper's 1.5e-4 outweighs the residual in these units and leaves blurred
        class means.
      beta: exponent of the total variation's squared differences.
      low, high: the range of pixels.
      scale: "known", the update's length is predicted from learning rate and steps; "free", the
        best non-negative length is taken, which leaves the direction alone to be matched (static).
      solver: "adam" with a projection, or "lbfgsb", SciPy's bounded L-BFGS, as the paper (static;
        not under `jit`).
      evaluations: of the objective and its gradient (static).
      learning_rate: Adam's.
      start: standard deviation of the noise at which images begin, relative to the range's half
        width.
      virtual: how images become an update. Its `records` are the client's, which take other steps
        than so many images would.
    """

    images: Count = struct.field(pytree_node=False, default=30)
    tv_weight: NotNegative = 1e-5
    beta: Positive = 1.25
    low: Number = -1.0
    high: Number = 1.0
    scale: Literal["known", "free"] = struct.field(pytree_node=False, default="known")
    solver: Literal["adam", "lbfgsb"] = struct.field(pytree_node=False, default="adam")
    evaluations: Count = struct.field(pytree_node=False, default=300)
    learning_rate: Positive = 0.1
    start: Number = 0.3
    virtual: Virtual = Virtual()

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        if not _check.is_unseen(self.low, self.high) and not np.all(
            np.asarray(self.low) < np.asarray(self.high)
        ):
            raise ValueError(f"{name}.low={self.low} must lie below high={self.high}")
        self.virtual.check(self.images)


@struct.dataclass
class Representatives:
    """Images that stand for clients' updates.

    Attributes:
      x: images `[updates, images, height, width, channels]`.
      value: objective of each `[updates]`.
      explained: share of each update's energy that its images account for `[updates]`. No images
        are right ones, whose share could be told: near 1 they stand for the client in the shared
        model, near 0 or below they stand for nothing (another model, recipe or range of pixels).
        NaN, as the images are, of an update of zeros.
      trace: objective at every evaluation `[updates, evaluations]`; NaN after "lbfgsb" has stopped.
    """

    x: Array
    value: Array
    explained: Array
    trace: Array


def power_variation(images: Array, beta: float | Array) -> Array:
    """`sum ((x[i, j+1] - x[i, j])^2 + (x[i+1, j] - x[i, j])^2)^beta` over images and pixels (Song
    2020, Eq. 7)."""
    across = images[:, :-1, 1:] - images[:, :-1, :-1]
    down = images[:, 1:, :-1] - images[:, :-1, :-1]
    return ((across**2 + down**2) ** beta).sum()


def residual(virtual: Any, observed: Any, scale: Literal["known", "free"]) -> Array:
    """`|u - u_X| / |u|` (Song 2020, Eq. 8), or the least of `|u - s u_X| / |u|` over `s >= 0`. A
    scalar."""
    tiny = jnp.finfo(jnp.result_type(*jax.tree.leaves(observed))).tiny
    if scale == "free":
        along = jnp.maximum(optax.tree.vdot(virtual, observed), 0) / jnp.maximum(
            optax.tree.vdot(virtual, virtual), tiny
        )
        virtual = jax.tree.map(lambda u: along * u, virtual)
    return jnp.sqrt(jnp.maximum(squared_distance(virtual, observed), tiny))


def objective(
    model: Model,
    received: Any,
    observed: Any,
    x: Array,
    y: Array,
    key: Array,
    settings: Representing | None = None,
) -> Array:
    """Residual and total variation of images (Song 2020, Eq. 6 to 8). A scalar, differentiable in
    `x`.

    Args:
      model: a classifier (static).
      received: the model the client received.
      observed: its pseudo-gradient.
      x: images `[images, height, width, channels]`.
      y: labels `[images]`.
      key: draws batch orders (where `settings.virtual` simulates the training).
      settings: see `Representing`.
    """
    settings = settings or Representing()
    virtual = virtual_update(model, received, x, y, key, settings.virtual)
    return residual(virtual, observed, settings.scale) + settings.tv_weight * power_variation(
        x, settings.beta
    )


def _check_images_of(model: Model, params: Any, y: Any, shape: Any, name: str) -> None:
    """Raise `ValueError` unless a model takes images of a shape and has their classes."""
    check_parameters(model, params, name)
    check_record_shape(model, params, shape=shape)
    if model.classes is not None and not jnp.issubdtype(jnp.result_type(y), jnp.floating):
        _check.labels(y, model.classes)


@checked
def represent(
    model: Model,
    received: Params,
    observed: Params,
    y: Num[Array, "images ..."],
    key: Key,
    shape: Shape,
    settings: Representing | None = None,
) -> Representatives:
    """Representatives of one update, by Adam: pure, for `jit` and `vmap`. Fields of the result are
    without the axis of updates.

    Args:
      model: a classifier (static).
      received: the model that the client received.
      observed: its pseudo-gradient.
      y: labels of the representatives `[images]`.
      key: draws the start, and batch orders where `settings.virtual` simulates the training.
      shape: of an image (static).
      settings: see `Representing`.
    """
    settings = settings or Representing()
    _check_images_of(model, received, y, shape, "received")
    check_parameters(model, observed, "observed")
    if len(y) != settings.images:
        raise ValueError(
            f"y has {len(y)} labels; settings.images={settings.images} images need one each"
        )
    start_key, key = jax.random.split(key)
    low, high = settings.low, settings.high
    minimum = minimize_adam(
        lambda x, k: objective(model, received, observed, x, y, k, settings),
        _start(start_key, (len(y), *shape), settings),
        key,
        steps=settings.evaluations,
        learning_rate=settings.learning_rate,
        project=lambda x: jnp.clip(x, low, high),
    )
    images = jnp.where(jnp.isfinite(minimum.value), minimum.variables, jnp.nan)
    return _explaining(observed, images, minimum.value, minimum.trace, settings)


@on_host("SciPy's L-BFGS-B, with that solver")
@checked
@in_type_here
def representatives(
    model: Model,
    messages: Messages,
    y: Num[Array, "messages images"],
    key: Key,
    shape: Shape,
    *,
    settings: Representing | None = None,
    strategy: Strategy | None = None,
) -> Representatives:
    """Images that stand for the sender of each message, one set per message.

    Args:
      model: a classifier (static).
      messages: of one client or of several, one after the other.
      y: labels of the images `[messages, images]`.
      key: draws starts, and batch orders where training is simulated.
      shape: of an image (static).
      settings: see `Representing`.
      strategy: how messages are worked on (see `jaxfl.Federated`); None picks by backend.

    Warns:
      FitWarning: if the images of an update account for none of it.

    Raises:
      ValueError: if labels or shapes do not fit, or settings make no sense.
    """
    settings = settings or Representing()
    if model.classes is None:
        raise ValueError("representatives needs a classifier; this model has classes=None")
    _check.shape((len(messages), settings.images), y=y)
    _check_images_of(model, messages.model_shapes, y, shape, "messages")
    keys = jax.random.split(key, len(messages))
    updates = messages.received, messages.pseudo_gradient
    if settings.solver == "lbfgsb":
        results = [
            _represent_lbfgsb(
                model,
                jax.tree.map(lambda a, i=i: a[i], updates),
                y[i],
                keys[i],
                tuple(shape),
                settings,
            )
            for i in range(len(messages))
        ]
        answer = jax.tree.map(lambda *a: jnp.stack(a), *results)
    else:
        answer = _representatives(
            model,
            updates,
            jnp.asarray(y),
            keys,
            tuple(shape),
            settings,
            strategy or strategy_here(ACCELERATOR_CHUNK),
        )
    _warn_of_nothing(answer.explained)
    return answer


def _warn_of_nothing(explained: Array) -> None:
    if _check.is_unseen(explained):
        return
    below = np.flatnonzero(np.asarray(explained) <= 0)
    if len(below):
        warnings.warn(
            f"representatives: the images of {len(below)} of {len(explained)} updates (the first: "
            f"{below[0]}) account for none of them: they stand for nothing. Labels, model, rate, "
            "or the sign of the updates are others, or evaluations are too few",
            FitWarning,
            stacklevel=4,
        )


@functools.partial(jax.jit, static_argnames=("model", "shape", "strategy"))
def _representatives(
    model: Model,
    updates: Any,
    y: Array,
    keys: Array,
    shape: tuple[int, ...],
    settings: Representing,
    strategy: Strategy,
) -> Representatives:
    def one(arguments: Any) -> Representatives:
        (received, observed), labels, key = arguments
        return represent(model, received, observed, labels, key, shape, settings)

    return map_clients(one, (updates, y, keys), strategy)


def _start(key: Array, shape: tuple[int, ...], settings: Representing) -> Array:
    middle, half = (settings.high + settings.low) / 2, (settings.high - settings.low) / 2
    noise = settings.start * jax.random.normal(key, shape, jnp.float32)
    return jnp.clip(middle + half * noise, settings.low, settings.high)


@functools.partial(jax.jit, static_argnames="model")
def _value_and_grad(
    model: Model,
    received: Any,
    observed: Any,
    x: Array,
    y: Array,
    key: Array,
    settings: Representing,
) -> Any:
    return jax.value_and_grad(lambda x: objective(model, received, observed, x, y, key, settings))(
        x
    )


def _represent_lbfgsb(
    model: Model,
    update: tuple[Any, Any],
    y: Array,
    key: Array,
    shape: tuple[int, ...],
    settings: Representing,
) -> Representatives:
    """As `represent`, by SciPy's L-BFGS-B, tolerances off. SciPy counts evaluations between
    iterations only: they are stopped here."""
    from scipy.optimize import minimize

    start_key, key = jax.random.split(key)
    start = _start(start_key, (len(y), *shape), settings)
    trace: list[float] = []
    images, least = np.full(start.shape, np.nan, start.dtype), math.inf

    def value_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal images, least
        if len(trace) == settings.evaluations:
            raise _SpentError
        x = jnp.asarray(flat.reshape(start.shape), start.dtype)
        value, slope = _value_and_grad(model, *update, x, y, key, settings)
        trace.append(float(value))
        if trace[-1] < least:
            images, least = np.asarray(x), trace[-1]
        return trace[-1], np.asarray(slope, np.float64).ravel()

    limits = {
        "maxfun": settings.evaluations,
        "maxiter": settings.evaluations,
        "ftol": 0.0,
        "gtol": 0.0,
        "maxcor": 10,
    }
    bounds = [(float(settings.low), float(settings.high))] * start.size
    with contextlib.suppress(_SpentError):
        minimize(
            value_and_slope,
            np.asarray(start, float).ravel(),
            jac=True,
            bounds=bounds,
            method="L-BFGS-B",
            options=limits,
        )
    kept = np.full(settings.evaluations, np.nan, np.float32)
    kept[: len(trace)] = trace
    least_value = jnp.asarray(least, start.dtype)
    return _explaining(update[1], jnp.asarray(images), least_value, jnp.asarray(kept), settings)


def _explaining(
    observed: Any, images: Array, value: Array, trace: Array, settings: Representing
) -> Representatives:
    """With the share that images explain, which is in their objective. Of an update of zeros there
    is none, and images stand for nothing."""
    missed = value - settings.tv_weight * power_variation(images, settings.beta)
    moved = optax.tree.vdot(observed, observed) > 0
    images, explained = (jnp.where(moved, a, jnp.nan) for a in (images, 1 - missed**2))
    return Representatives(images, value, explained, trace)


class _SpentError(Exception):
    """The budget of evaluations is spent."""
