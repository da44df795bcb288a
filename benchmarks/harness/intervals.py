"""How sure one can be of a mean over seeds."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """An estimate with its confidence interval.

    Attributes:
      mean: the estimate.
      low: lower end of the interval.
      high: upper end.
    """

    mean: float
    low: float
    high: float


def student_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean over seeds with Student's t interval; infinitely wide for fewer than two values."""
    data = np.asarray(values, float)
    mean = float(data.mean()) if len(data) else math.nan
    if len(data) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = _student(confidence, len(data) - 1) * float(data.std(ddof=1)) / math.sqrt(len(data))
    return Interval(mean, mean - half, mean + half)


@functools.cache
def _student(confidence: float, freedom: int) -> float:
    """Half-width of the interval in standard errors; a report asks for few of them often."""
    return float(stats.t.ppf(0.5 + confidence / 2, freedom))


@functools.lru_cache(maxsize=4096)
def wilson_interval(hits: int, trials: int, confidence: float = 0.95) -> Interval:
    """A proportion with Wilson's score interval."""
    ends = stats.binomtest(hits, trials).proportion_ci(confidence, "wilson")
    return Interval(hits / trials, float(ends.low), float(ends.high))


def accuracy_interval(values: Sequence[float], records: int, confidence: float = 0.95) -> Interval:
    """Accuracy over seeds, within [0, 1]: Student's t, or Wilson on the pooled records where all
    seeds agree (t would have no width). Without `records`, 0, it is no proportion of independent
    ones, and always Student's t."""
    finite = [v for v in values if math.isfinite(v)]
    if records and finite and np.ptp(finite) == 0 and 0 <= finite[0] <= 1:
        return wilson_interval(round(sum(finite) * records), len(finite) * records, confidence)
    mean, low, high = student_interval(finite, confidence)
    return Interval(mean, max(low, 0.0), min(high, 1.0))


def equivalent_count(sizes: Sequence[int]) -> int:
    """Number of records of which a proportion would be as exact as the mean of proportions of so
    many records each."""
    return round(len(sizes) ** 2 / sum(1 / size for size in sizes))
