"""How good a model is that stands for a client's own: its fit, its explanations, the records and
images it gives away."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from attacks.metrics import accuracy, explain, ssim, zest_masks
from benchmarks.scenarios.federations import Federation, fit_of
from jaxfl import Model

Array = jax.Array


class Score(NamedTuple):
    """A value, and what it is compared with where there is any (see `Outcome`)."""

    value: float
    majority: float | None = None
    chance: float | None = None
    imputation: float | None = None
    null: float | None = None


PATCH = 10
"""Side of the patches of a face that are one segment of its explanation, pixels."""


def strips(*rows: np.ndarray) -> np.ndarray:
    """Grey images `[n, height, width, 1]` side by side, one row below the other."""
    return np.concatenate([np.concatenate(list(row[..., 0]), 1) for row in rows])


def likeness(federation: Federation, c: int, images: Array) -> float:
    """Likeness of one image per class: mean over classes of the largest SSIM to a record of the
    class."""
    x, y = federation.data.x[federation.parts[c]], federation.data.y[federation.parts[c]]
    every = np.asarray(_ssim(images[y], jnp.asarray(x)))
    return mean([float(every[y == k].max()) for k in np.unique(y)])


def matched_likeness(images: Array, records: Array) -> tuple[float, np.ndarray]:
    """Likeness of images without classes: mean SSIM to records, each image matched with a record of
    its own; and the matched records' places."""
    every = np.asarray(_each_with_all(images, records))
    if not np.isfinite(every).all():
        return math.nan, np.zeros(len(images), int)
    rows, places = optimize.linear_sum_assignment(every, maximize=True)
    return float(every[rows, places].mean()), places


_ssim = jax.jit(ssim)


@jax.jit
def _each_with_all(images: Array, records: Array) -> Array:
    """SSIM `[images, records]`."""
    return jax.lax.map(lambda image: ssim(image, records), images)


def fit(federation: Federation, params: list[Any]) -> Iterator[tuple[str, Score]]:
    """How the models fit the clients' records (Driouich 2023, Table 9)."""
    model, losses, scores = federation.model, [], []
    for c, of_client in enumerate(params):
        data = federation.client(c)
        losses.append(float(model.loss(model.apply(of_client, data.x), data.y).mean()))
        scores.append(fit_of(model, of_client, data))
    yield "train_loss", Score(mean(losses))
    yield "mape" if model.classes is None else "train_accuracy", Score(mean(scores))


def explained(federation: Federation, c: int, params: Any, records: int, count: int) -> Array:
    """A model's explanations around so many records of a client, by so many masks each."""
    rows = federation.parts[c][:records]
    x, shape = jnp.asarray(federation.data.x[rows]), federation.data.x.shape[1:]
    fill = jnp.asarray(federation.data.x[np.concatenate(federation.parts)].mean(0))
    segments = _segments(federation, shape)
    masks = zest_masks(jax.random.key(0), int(segments.max()) + 1, count)
    return _explain(federation.model, params, x, jnp.asarray(segments), masks, fill)


@functools.partial(jax.jit, static_argnames="model")
def _explain(
    model: Model, params: Any, x: Array, segments: Array, masks: Array, fill: Array
) -> Array:
    return explain(functools.partial(model.apply, params), x, segments, masks, fill)


def _segments(federation: Federation, shape: tuple[int, ...]) -> np.ndarray:
    """Attributes of a table, patches of an image."""
    if not federation.data.columns:
        rows, columns = np.indices(shape[:2]) // PATCH
        return (rows * (columns.max() + 1) + columns)[..., None]
    segments = np.zeros(shape, int)
    for number, column in enumerate(federation.data.columns):
        segments[list(column.positions)] = number
    return segments


def targets(federation: Federation, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose source is asked for, so many of each client or all if 0, and the client each was
    drawn from."""
    rng = np.random.default_rng(0)
    chosen = [
        rng.permutation(rows)[: limit or None]
        for rows in federation.parts[: len(federation.messages)]
    ]
    holders = np.repeat(np.arange(len(chosen)), [len(rows) for rows in chosen])
    order = rng.permutation(len(holders))  # in the order of clients it would tell them
    return np.concatenate(chosen)[order], holders[order]


def source_scores(
    answers: Sequence[np.ndarray], rows: np.ndarray, holders: np.ndarray, federation: Federation
) -> Iterator[tuple[str, Score]]:
    """How often the client named for a record holds it, balanced over the clients that records were
    drawn from; of several answers the best of those that name a client for every record. Where
    clients share records also how often it is the very client that a record was drawn from.

    Args:
      answers: places of attacked clients `[rows]`; NaN is scored if none is without a negative one.
      rows: of the source.
      holders: the clients that they were drawn from.
      federation: whose clients they are.
    """
    held = np.stack([np.isin(rows, part) for part in federation.parts[: len(federation.messages)]])

    def best(right: Callable[[np.ndarray], np.ndarray]) -> float:
        return max(
            (_balanced(right(answer), holders) for answer in answers if (answer >= 0).all()),
            default=math.nan,
        )

    named = best(lambda answer: held[answer, np.arange(len(rows))])
    yield "source_accuracy", Score(named, chance=_balanced(held.mean(0), holders))
    if held.sum(0).max() > 1:
        strict = best(lambda answer: answer == holders)
        yield "strict_source_accuracy", Score(strict, chance=1 / len(held))


def _balanced(values: np.ndarray, holders: np.ndarray) -> float:
    return mean([float(values[holders == c].mean()) for c in np.unique(holders)])


def accuracy_of(found: np.ndarray, truth: np.ndarray) -> float:
    """Fraction of records that were inferred exactly; NaN if the attack failed (a value of -1)."""
    return float(accuracy(jnp.asarray(found), jnp.asarray(truth)))


def majority_of(truth: np.ndarray) -> float:
    """How frequent the most frequent value is."""
    return float(np.bincount(truth).max() / len(truth))


def mean(values: Sequence[float]) -> float:
    """Over the attacked clients."""
    return float(np.mean(values))
