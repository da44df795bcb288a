"""What differentially private training spends: epsilon of a client's `DPSGD`, by Renyi accounting
(dp-accounting)."""

import functools
import math
from typing import Any

import numpy as np

from jaxfl._extras import of_extra
from jaxfl.domains import Count, Fraction, NotNegative, Positive, checked

ORDERS = (*(x / 10 for x in range(20, 110)), *range(11, 64), 128, 256, 512, 1024)
"""Renyi orders. Below 2 the sum for sampled batches does not converge."""


LEAST, MOST = 1e-100, 1e100
"""Noise, in sensitivities or of them, that is accounted for."""
MIXED = 3
"""Gradients by which the sum of a mixed batch differs when a record is left out: the averages with
its two neighbours vanish, and one average of these two neighbours appears."""


@checked
def epsilon(
    noise_multiplier: Positive,
    *,
    records: Count,
    batch_size: Count | None,
    steps: Count,
    delta: Fraction,
    mixup: bool = False,
) -> float:
    """Epsilon at `delta` of one client's whole training, for adding or removing one record. The
    number of records, which sums are divided by, is public.

    As is customary, batches are accounted for as Poisson samples of rate batch_size / records,
    while they are drawn by shuffling; with full batches there is no sampling, and no difference.
    Batches that are not drawn (`LocalTraining.shuffle`) are no samples, and the promise does not
    hold of them: a record is in the same step of every epoch, and one that is left out moves those
    behind it into other batches.

    Args:
      noise_multiplier: of `DPSGD`.
      records: the client's.
      batch_size: records per step; None, or more than there are: all.
      steps: over all rounds, those of one round being `LocalTraining.steps(records)`.
      delta: of the guarantee.
      mixup: whether records are averaged before their gradients are clipped: then three gradients,
        not one, tell whether a record is there, and the noise counts for a third.

    Raises:
      ValueError: if a number is out of range.
    """
    with of_extra("privacy"):
        from dp_accounting import rdp

    _check_accounted(noise_multiplier=float(noise_multiplier))
    accountant = rdp.RdpAccountant(ORDERS)
    accountant.compose(
        _event(float(noise_multiplier) / (MIXED if mixup else 1), _rate(records, batch_size)), steps
    )
    return float(accountant.get_epsilon(delta))


@checked
def gaussian_epsilon(mu: NotNegative, *, delta: Fraction) -> float:
    """Epsilon at `delta` of mu-Gaussian differential privacy: that of a Gaussian mechanism whose
    noise is 1 / mu times its sensitivity (Dong, Roth, Su 2022, Corollary 2.13).

    Args:
      mu: how far apart what is sent with and without a record is, in deviations of the noise.
      delta: of the guarantee.

    Raises:
      ValueError: if a number is out of range.
    """
    with of_extra("privacy"):
        import dp_accounting

    if math.erf(mu / math.sqrt(8)) <= delta:  # the delta of epsilon 0
        return 0.0
    _check_accounted(mu=float(mu))
    with np.errstate(divide="ignore"):  # logarithms of 0, in what it leaves aside
        return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))


@checked
def noise_multiplier(
    epsilon: Positive,
    *,
    records: Count,
    batch_size: Count | None,
    steps: Count,
    delta: Fraction,
    mixup: bool = False,
) -> float:
    """The least noise multiplier that spends no more than `epsilon`.

    Args:
      epsilon: what a client's whole training may spend at `delta`.
      records, batch_size, steps, delta, mixup: as those of `epsilon`.

    Raises:
      ValueError: as `epsilon`; if `epsilon` is so small that no order of the accountant tells how
        much noise it takes (0.0035 at delta 1e-5): only noise of some 1 / delta would be known to
        be enough.
    """
    # Of no divergence at all (Canonne, Kamath, Steinke 2020, Proposition 12).
    most = max(ORDERS)
    least = math.log1p(-1 / most) - (math.log(delta) + math.log(most)) / (most - 1)
    if epsilon <= least:
        raise ValueError(
            f"epsilon={epsilon:g} is smaller than Renyi accounting tells apart at "
            f"delta={delta:g}, short of noise of some 1 / delta: it must be above {least:.2g}"
        )

    noise = _calibrated(float(epsilon), float(delta), _rate(records, batch_size), steps)
    return noise * (MIXED if mixup else 1)


@functools.lru_cache(maxsize=4096)
def _calibrated(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Kept, because the accountant takes half a second, and a federation's clients ask alike."""
    with of_extra("privacy"):
        import dp_accounting

    def event(multiplier: float) -> Any:
        return dp_accounting.SelfComposedDpEvent(_event(multiplier, rate), steps)

    return float(
        dp_accounting.calibrate_dp_mechanism(
            lambda: dp_accounting.rdp.RdpAccountant(ORDERS), event, epsilon, delta
        )
    )


def _check_accounted(**numbers: float) -> None:
    for name, number in numbers.items():
        if not LEAST <= number <= MOST:
            raise ValueError(
                f"{name}={number} must be between {LEAST} and {MOST}: beyond, accountants' numbers "
                "overflow"
            )


def _rate(records: int, batch_size: int | None) -> float:
    return 1.0 if batch_size is None else min(batch_size / records, 1.0)


def _event(multiplier: float, rate: float) -> Any:
    with of_extra("privacy"):
        import dp_accounting

    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    return gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)
