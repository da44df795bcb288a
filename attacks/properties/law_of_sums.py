"""The law of sums of clients' features, given who has the property.

Threat model: as in `attacks.properties.detectors`. Given who has the property, a sum of normal
features is normal. With D_tk = A_tk (mu1_t - mu0_t), m participants and M = diag(m sqrt(v0_t)),

    b_t - m mu0_t ~ N(sum_k D_tk p_k, C),   C = (1 - rho) diag(v_t) + rho S A A' S + M (E + q^2 T) M

where v_t adds the participants' variances and S = diag(sqrt(v_t / m)). rho S A A' S says that a
client's features in different rounds are alike (its records are the same). E is 1/n + 1/P between
rounds of one detector and rho/P between others: mu0 is a mean over n shadows, their records drawn
from those of P clients, which all rounds share. T = min(t, t'), with rounds t from 0: all clients'
features drift from the shadows', by a random walk: what calibration leaves, which changes as the
model learns their records and not the adversary's. The walk's step q is the value that explains the
sums best, with p at its prior mean and variance.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attacks.properties.observations import Observations

Array = jax.Array
DRIFTS = (0.0, *(0.4 * 2.0**-k for k in range(8)))
"""Values of q that are compared: the walk's standard deviation per round, in units
of sqrt(v0_t)."""


class Quadratic(NamedTuple):
    """Minus the log likelihood of p, `p' H p / 2 - g' p`.

    Attributes:
      matrix: H `[clients, clients]`.
      vector: g `[clients]`.
    """

    matrix: Array
    vector: Array


class _Sums(NamedTuple):
    """Sums of the rounds seen; for others zero, and one on the diagonal of `covariance`.

    Attributes:
      design: D `[rounds, clients]`.
      observed: b - m mu0 `[rounds]`.
      covariance: C without drift `[rounds, rounds]`.
      walk: M T M, what q^2 is multiplied by `[rounds, rounds]`.
    """

    design: Array
    observed: Array
    covariance: Array
    walk: Array


def _sums(observations: Observations, p: Array) -> _Sums:
    b, rho = observations.features, observations.correlation[-1]
    a = jnp.asarray(observations.participation, b.dtype)
    (mean0, mean1), (var0, var1) = observations.mean.T, observations.variance.T
    members, positives = a.sum(1), a @ p
    total = (members - positives) * var0 + positives * var1
    spread = jnp.sqrt(total / jnp.maximum(members, 1))
    together = rho * spread[:, None] * (a @ a.T) * spread
    # The error of mu0, and drift, are everyone's: of participants with the property too.
    common = members * jnp.sqrt(var0)
    common = common[:, None] * common
    number, t = observations.detector_number, observations.rounds
    same = number[:, None] == number
    calibration = common * (
        same / observations.calibrated_on + jnp.where(same, 1, rho) / observations.pool
    )
    each_sum = jnp.diag(jnp.where(members > 0, (1 - rho) * total, 1))
    walk = common * jnp.minimum(t[:, None], t)
    return _Sums(
        (mean1 - mean0)[:, None] * a, b - members * mean0, each_sum + together + calibration, walk
    )


def likelihood(observations: Observations, p: Array, drift: float | Array = 0.0) -> Quadratic:
    """The likelihood of p, features integrated out, for the variances that an expected p has.

    Args:
      observations: see there; all its rounds count (see `attacks.properties.observations.until`).
      p: the expected p `[clients]`.
      drift: q, the walk's standard deviation per round, in units of sqrt(v0_t) `[]`.
    """
    with jax.default_matmul_precision("highest"):
        sums = _sums(observations, p)
        design, observed = _white(
            sums.covariance + drift**2 * sums.walk, sums.design, sums.observed
        )[1:]
        return Quadratic(design.T @ design, design.T @ observed)


def drift_evidence(observations: Observations, drifts: Array) -> Array:
    """Log density of the sums for each q, with p at its prior mean and variance `[drifts]`, up to a
    constant.

    Args:
      observations: see there; all its rounds count.
      drifts: values of q `[drifts]`.
    """
    rate = observations.rate
    with jax.default_matmul_precision("highest"):
        sums = _sums(observations, jnp.full(observations.participation.shape[1], rate))
        unknown = sums.covariance + rate * (1 - rate) * sums.design @ sums.design.T
        unexplained = sums.observed - rate * sums.design.sum(1)

        def evidence(q: Array) -> Array:
            root, white = _white(unknown + q**2 * sums.walk, unexplained)
            return -(white @ white) / 2 - jnp.log(jnp.diag(root)).sum()

        return jax.lax.map(evidence, drifts)


def likeliest_drift(observations: Observations) -> Array:
    """The q of `DRIFTS` that explains the sums best `[]`."""
    drifts = jnp.asarray(DRIFTS, observations.features.dtype)
    evidence = drift_evidence(observations, drifts)
    return drifts[jnp.argmax(jnp.nan_to_num(evidence, nan=-jnp.inf))]


def residuals(observations: Observations, p: Array, variances: Array) -> Array:
    """What p leaves of the sums, independent and of unit variance by the detectors' laws, for each
    of the variances `[variances, clients]` that who has the property may have `[variances,
    rounds]`; 0 in rounds that are not seen."""
    sums, drift = _sums(observations, p), likeliest_drift(observations)
    covariance = sums.covariance + drift**2 * sums.walk
    left = sums.observed - sums.design @ p

    def white(variance: Array) -> Array:
        return _white(covariance + (sums.design * variance) @ sums.design.T, left)[1]

    return jax.lax.map(white, variances)


def log_likelihood(observations: Observations, p: Array) -> Array:
    """Log density of the sums given who has the property `[]`, up to a constant."""
    with jax.default_matmul_precision("highest"):
        sums, drift = _sums(observations, p), likeliest_drift(observations)
        left = sums.observed - sums.design @ p
        root, white = _white(sums.covariance + drift**2 * sums.walk, left)
        return -(white @ white) / 2 - jnp.log(jnp.diag(root)).sum()


def _white(covariance: Array, *arrays: Array) -> tuple[Array, ...]:
    """The covariance's Cholesky factor, and each vector or matrix divided by it, in one call (see
    `attacks.lapack`)."""
    root = jnp.linalg.cholesky(covariance)
    columns = [each.reshape(len(root), -1) for each in arrays]
    white = jax.scipy.linalg.solve_triangular(root, jnp.concatenate(columns, 1), lower=True)
    places = list(itertools.accumulate(each.shape[1] for each in columns))[:-1]
    parts = zip(jnp.split(white, places, 1), arrays, strict=True)
    return root, *(part.reshape(each.shape) for part, each in parts)
