"""Scores, and how sure one can be of them."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Int, Num

from jaxfl import _check
from jaxfl._extras import of_extra
from jaxfl.domains import Count, Key, Probability, checked

Array = jax.Array


@checked
def accuracy(values: Array, truth: Array) -> Num[Array, "..."]:
    """Fraction of records whose value was inferred exactly; NaN if the attack failed (a value of
    -1).

    Args:
      values: inferred `[..., records]`, integers.
      truth: the same shape, or `[records]`.

    Raises:
      ValueError: if the shapes do not fit: they would be broadcast.
    """
    shape = np.shape(values)
    if np.shape(truth) not in (shape, shape[-1:]) or not shape:
        raise ValueError(
            f"truth has shape {np.shape(truth)} and values {shape}; they must be alike, one value "
            "for each record"
        )
    _check.at_least(0, truth=truth)
    values, truth = jnp.asarray(values), jnp.asarray(truth)
    return jnp.where((values < 0).any(-1), jnp.nan, (values == truth).mean(-1))


@checked
def majority_rate(truth: Num[Array, "records"], candidates: Count) -> Num[Array, ""]:
    """Accuracy of naming the most frequent true value for every record: what any attack has to
    beat. `candidates` is static.

    Raises:
      ValueError: if `truth` is no `[records]` of integers below `candidates`.
    """
    _check.labels(truth, candidates, name="truth")
    return jax.nn.one_hot(jnp.asarray(truth), candidates).mean(0).max()


def _both(truth: Any) -> None:
    """Raise `ValueError` unless there are truths of both kinds."""
    _check.zeros_or_ones(truth=truth)
    kinds = np.unique(np.asarray(truth, bool))
    if len(kinds) < 2:
        raise ValueError(
            f"truth holds {kinds.tolist()} alone; scores rank one kind above the other"
        )


@struct.dataclass
class Ranking:
    """How well scores rank those who have a property.

    Attributes:
      f1: harmonic mean of precision and recall of the scores above a threshold fixed in advance; 0
        where undefined.
      accuracy: share of clients on the right side of that threshold.
      auc: area under the receiver operating characteristic.
      average_precision: area under the precision-recall curve.
      brier: mean squared error of the scores, where they are probabilities.
    """

    f1: float
    accuracy: float
    auc: float
    average_precision: float
    brier: float


@checked
def ranking(
    scores: Num[np.ndarray, "clients"], truth: Num[np.ndarray, "clients"], threshold: float
) -> Ranking:
    """How well scores tell the few positives of `truth` `[clients]` from the rest; NaN if a score
    is not finite.

    Raises:
      ValueError: if shapes differ, or all or none are positive.
    """
    _both(truth)
    from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

    scores, truth = np.asarray(scores, float), np.asarray(truth, bool)
    if not np.isfinite(scores).all():
        return Ranking(*[math.nan] * 5)
    return Ranking(
        float(f1_score(truth, scores > threshold, zero_division=0)),
        float(((scores > threshold) == truth).mean()),
        float(roc_auc_score(truth, scores)),
        float(average_precision_score(truth, scores)),
        float(((scores - truth) ** 2).mean())
        if ((scores >= 0) & (scores <= 1)).all()
        else math.nan,
    )


@struct.dataclass
class Detection:
    """How well scores detect members.

    Attributes:
      auc: area under the receiver operating characteristic.
      tpr: true-positive rate where at most `fpr` of the negatives are taken for positive.
    """

    auc: float
    tpr: float


@checked
def detection(
    scores: Num[np.ndarray, "records"], truth: Num[np.ndarray, "records"], fpr: Probability = 0.01
) -> Detection:
    """How well scores tell the positives of `truth` `[records]` from the rest; NaN if a score is
    not finite.

    Raises:
      ValueError: if shapes differ, or all or none are positive.
    """
    _both(truth)
    from sklearn.metrics import roc_auc_score, roc_curve

    if not np.isfinite(scores).all():
        return Detection(math.nan, math.nan)
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    return Detection(float(roc_auc_score(truth, scores)), float(true[false <= fpr].max()))


@checked
def explain(
    apply: Callable[[Array], Array],
    x: Num[Array, "records ..."],
    segments: Int[Array, "..."],
    masks: Num[Array, "masks segments"],
    fill: Num[Array, "..."],
) -> Num[Array, "records segments outputs"]:
    """Linear explanations of a model around records (Jia et al. 2022, Zest, after LIME):
    least-squares weights, without intercept, of its outputs on which segments of a record are kept.

    Args:
      apply: from records `[batch, ...]` to outputs `[batch, outputs]`, before any softmax.
      x: reference records `[records, ...]`.
      segments: number of the segment to which each entry of a record belongs: an attribute, a patch
        of an image.
      masks: which segments are kept `[masks, segments]`, 0 or 1, shared by the records.
      fill: what stands in for the others, of a record's shape: the data's mean.

    Returns:
      Weights `[records, segments, outputs]`.

    Raises:
      ValueError: if there are fewer than two masks for each segment: about as many fit any model
        exactly, noise and all; or if shapes do not go together, or a record is not finite.
    """
    for name, array in (("segments", segments), ("fill", fill)):
        if np.shape(array) != np.shape(x)[1:]:
            raise ValueError(
                f"{name} has shape {np.shape(array)}; records of x have {np.shape(x)[1:]}"
            )
    _check.finite(x=x, fill=fill)
    _check.zeros_or_ones(masks=masks)
    _check.labels(segments, masks.shape[1], name="segments, beside masks,")
    if len(masks) < 2 * masks.shape[1]:
        raise ValueError(
            f"masks has {len(masks)} rows for {masks.shape[1]} segments; give at least two for each"
        )
    x = jnp.asarray(x)
    masks = jnp.asarray(masks, x.dtype)
    inverse = jnp.linalg.pinv(masks)
    kept = masks[:, segments]

    def one(record: Array) -> Array:
        return inverse @ apply(kept * record + (1 - kept) * fill)

    return jax.lax.map(one, x)


@checked
def zest_masks(key: Key, segments: Count, count: Count = 1000) -> Num[Array, "count segments"]:
    """Masks `[count, segments]` for `explain`: fair coins, the first keeping everything."""
    return jax.random.bernoulli(key, jnp.float32(0.5), (count, segments)).at[0].set(True)


@checked
def zest_similarity(a: Num[Array, "..."], b: Num[Array, "..."]) -> Num[Array, ""]:
    """Cosine of two models' explanations, all records, segments and outputs together; Driouich 2023
    prints 100 times that."""
    if np.shape(a) != np.shape(b):
        raise ValueError(f"a has shape {np.shape(a)} and b {np.shape(b)}; they must be alike")
    return (a * b).sum() / jnp.sqrt((a**2).sum() * (b**2).sum())


@checked
def ssim(
    image: Num[Array, "... height width channels"],
    references: Num[Array, "... height width channels"],
) -> Num[Array, "..."]:
    """Structural similarity (Wang et al. 2004: 11x11 Gaussian of 1.5) of an image in [0, 1]
    `[height, width, channels]` to each of several `[n, height, width, channels]`, or of as many
    images to one each. Best under `jax.jit`: it is many operations."""
    with of_extra("images"):
        import dm_pix

    if np.shape(references)[1:] != np.shape(image)[-3:]:
        raise ValueError(
            f"references has shape {np.shape(references)}; it must be [n, height, width, channels] "
            f"as image, of {np.shape(image)}"
        )
    return dm_pix.ssim(jnp.broadcast_to(image, references.shape), references)


@checked
def classifier_score(probabilities: Num[Array, "images classes"]) -> Num[Array, ""]:
    """`exp E KL(p(class | image) || p(class))` of a classifier's probabilities for images `[images,
    classes]` (the inception score, Salimans et al. 2016, with a classifier of one's own): from 1,
    all alike or unclear, to the number of classes. A scalar."""
    finite = np.isfinite(probabilities).all(-1) if not _check.is_unseen(probabilities) else None
    _check.probabilities(probabilities, finite, name="probabilities")
    tiny = jnp.finfo(probabilities.dtype).tiny
    entropy = -(probabilities * jnp.log(jnp.maximum(probabilities, tiny))).sum(-1).mean()
    mean = probabilities.mean(0)
    return jnp.exp(-(mean * jnp.log(jnp.maximum(mean, tiny))).sum() - entropy)
