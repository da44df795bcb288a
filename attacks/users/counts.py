"""How many images of each class a client's update tells of, by the bias of the last layer.

Threat model: as of `attacks.users.representatives`, whose labels these are.
"""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Num

from attacks.fit import FitWarning
from attacks.matching import Virtual
from attacks.told_labels import warn_of_other_labels
from jaxfl import Model, _check
from jaxfl.domains import Count, Params, checked
from jaxfl.models import check_labelled, check_parameters, log_probabilities
from jaxfl.parallel import map_clients

Array = jax.Array
NEGATIVE = 0.05
"""Share of the images that may be fewer than none: 0.024 at most of 48 right updates of digits."""


@checked
def uniform_counts(images: Count, classes: Count) -> Int[Array, "classes"]:
    """As many images of every class as of any other `[classes]`: what is said of a client of which
    nothing is known."""
    return jnp.full(classes, images // classes) + (jnp.arange(classes) < images % classes)


@checked
def labels_of(counts: Int[Array, "classes"], images: Count) -> Int[Array, "images"]:
    """Labels `[images]` (static length), `counts [classes]` of each class in order."""
    if not _check.is_unseen(counts):
        _check.at_least(0, counts=counts)
        if np.asarray(counts).sum() != images:  # on the host, under an outer `jit` too
            raise ValueError(f"counts={np.asarray(counts).tolist()} must sum to images={images}")
    return jnp.repeat(jnp.arange(len(counts)), jnp.asarray(counts), total_repeat_length=images)


def class_probabilities(model: Model, params: Any, x: Array, y: Array) -> Array:
    """Mean probabilities that a model gives to records of each true class `[true classes,
    classes]`; uniform for classes of which there is no record."""
    classes = model.classes or 0
    members = jax.nn.one_hot(y, classes)
    sums = members.T @ jnp.exp(log_probabilities(model.apply(params, x)))
    counts = members.sum(0)[:, None]
    return jnp.where(counts > 0, sums / jnp.maximum(counts, 1), 1 / classes)


@checked
def infer_counts(
    model: Model,
    observed: Params,
    probabilities: Num[Array, "classes classes"],
    images: Count,
    virtual: Virtual,
) -> Int[Array, "classes"]:
    """How many images of each class the last layer's bias tells of.

    Its gradient is the mean over the client's records of probabilities less the one-hot label, so
    the classes' shares `n` solve `(I - P') n = -g` with `P` from `class_probabilities` and `sum n =
    1`. Exact for one full-batch step where the client's records of a class get what the adversary's
    own do; to first order in the steps otherwise: of many long ones, as of five epochs in batches
    of 10, little is told.

    Args:
      model: a classifier with a trunk (static).
      observed: the client's pseudo-gradient.
      probabilities: from `class_probabilities`, at the model that the client received.
      images: what the counts are to sum to (static).
      virtual: what the update's scale follows from.

    Returns:
      Counts `[classes]`, integers, by largest remainders; -1 if the bias is not finite, or did not
      move.

    Warns:
      FitWarning: if some shares are below zero, by more than `NEGATIVE` of the images together:
        the update has the other sign, or is larger than `virtual` says. That it is smaller nothing
        shows: shares are nearer to those of which the model is wrong on no class then.

    Raises:
      ValueError: if the model names no last layer, or probabilities are no rows of such, one for
        each class.
    """
    _check.shape((model.classes, model.classes), probabilities=probabilities)
    _check.probabilities(probabilities, name="probabilities")
    if model.trunk is None:
        raise ValueError(
            "infer_counts needs a model that names its trunk and last layer (see jaxfl.trunk_cnn)"
        )
    if "bias" not in dict(observed).get(model.trunk.head, ()):
        raise ValueError(f"observed holds no bias of the model's last layer, {model.trunk.head!r}")
    gradient = observed[model.trunk.head]["bias"] / virtual.scale(images)
    counts, negative = _counted(gradient, probabilities, images)
    _warn_of_negative("infer_counts", negative)
    return counts


def _counted(gradient: Array, probabilities: Array, images: int) -> tuple[Array, Array]:
    """Counts `[classes]` of which the bias has this gradient, and how much of their shares is below
    zero."""
    classes = len(probabilities)
    system = jnp.concatenate([jnp.eye(classes) - probabilities.T, jnp.ones((1, classes))])
    shares = jnp.linalg.lstsq(system, jnp.append(-gradient, 1.0))[0]
    counts = round_counts(jnp.where(gradient.any(), shares, jnp.nan), images)
    return counts, -jnp.minimum(shares, 0).sum()


def _warn_of_negative(name: str, negative: Array) -> None:
    """Of half of the updates, or more."""
    if _check.is_unseen(negative):
        return
    finite = np.asarray(negative)[np.isfinite(negative)]
    below = float(np.median(finite)) if len(finite) else 0.0
    if below > NEGATIVE:
        warnings.warn(
            f"{name}: {below:.2g} of the images would be fewer than none of a class; is the "
            "update's sign, or its scale (`virtual`), another?",
            FitWarning,
            stacklevel=4,
        )


@checked
def infer_all_counts(
    model: Model,
    received: Params,
    bias: Num[Array, "rounds participants classes"],
    x: Num[Array, "records ..."],
    y: Num[Array, "records"],
    images: Count,
    virtual: Virtual,
) -> Int[Array, "rounds participants classes"]:
    """`infer_counts` of every update of every round.

    Args:
      model: a classifier with a trunk (static).
      received: the models of the rounds, leaves `[rounds, ...]`.
      bias: pseudo-gradients of the last bias `[rounds, participants, classes]`.
      x, y: the adversary's own records `[records, ...]`.
      images: what the counts are to sum to (static).
      virtual: what the update's scale follows from.

    Returns:
      Counts `[rounds, participants, classes]`, integers; -1 where an update is not finite.

    Warns:
      FitWarning: as `infer_counts`, if it is so of half of the updates; if the last model names
        the labels y far more seldom than by chance.

    Raises:
      ValueError: if models, biases and records are not of one model, or records not finite.
    """
    check_parameters(model, received, "received", 1)
    check_labelled(model, jax.tree.map(lambda a: a[0], received), x, y)
    _check.shape((len(jax.tree.leaves(received)[0]), None, model.classes), bias=bias)
    known = jnp.asarray(x), jnp.asarray(y)
    last = jax.tree.map(lambda a: jnp.asarray(a)[1:][-1:], received)  # the first one is untrained
    warn_of_other_labels("infer_all_counts", model, last, *known)
    counts, negative = _infer_all_counts(model, received, bias, *known, images, virtual)
    _warn_of_negative("infer_all_counts", negative)
    return counts


@functools.partial(jax.jit, static_argnames=("model", "images"))
def _infer_all_counts(
    model: Model, received: Any, bias: Array, x: Array, y: Array, images: int, virtual: Virtual
) -> tuple[Array, Array]:
    """Counts, and how much of each update's shares is below zero."""

    def one_round(arguments: tuple[Any, Array]) -> tuple[Array, Array]:
        params, seen = arguments
        probabilities = class_probabilities(model, params, x, y)
        gradients = seen / virtual.scale(images)
        return jax.vmap(lambda gradient: _counted(gradient, probabilities, images))(gradients)

    return map_clients(one_round, (received, bias), "map")


@checked
def round_counts(shares: Num[Array, "classes"], images: Count) -> Int[Array, "classes"]:
    """Integers `[classes]` that sum to `images` in the proportions of `shares [classes]` (negative
    ones count as 0); all alike if none is positive, and -1 if one is not finite."""
    failed, shares = ~jnp.isfinite(shares).all(), jnp.maximum(shares, 0)
    shares = jnp.where(shares.sum() > 0, shares, 1)
    exact = images * shares / shares.sum()
    whole = jnp.floor(exact)
    rank = jnp.argsort(jnp.argsort(whole - exact))
    return jnp.where(failed, -1, whole + (rank < images - whole.sum())).astype(jnp.int32)
