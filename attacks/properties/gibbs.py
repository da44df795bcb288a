"""Which clients have a property, from sums of their features (beyond Kerkouche 2023).

Threat model: as in `attacks.properties.detectors`. PROLIN (`attacks.properties.prolin`) looks for
everyone's feature in every round; but given who has the property, a sum of normal features is
normal, so features need not be found. With D_tk = A_tk (mu1_t - mu0_t), m participants and M =
diag(m sqrt(v0_t)),

    b_t - m mu0_t ~ N(sum_k D_tk p_k, C),   C = (1 - rho) diag(v_t) + rho S A A' S + M (E + q^2 T) M

where v_t adds the participants' variances and S = diag(sqrt(v_t / m)). rho S A A' S says that a
client's features in different rounds are alike (its records are the same). E is 1/n + 1/P between
rounds of one detector and rho/P between others: mu0 is a mean over n shadows, their records drawn
from those of P clients, which all rounds share. T = min(t, t'), with rounds t from 0: all clients'
features drift from the shadows', by a random walk: what calibration leaves, which changes as the
model learns their records and not the adversary's. The walk's step q is the value that explains the
sums best, with p at its prior mean and variance.

`box` is weighted least squares over p in [0, 1]; `gibbs` samples p in {0, 1} with the assumed rate
as prior. Both answer for several numbers of observed rounds at once.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Int, Num

from attacks.attributes.candidate_decoding.constraints import minimize_quadratic
from attacks.properties.observations import Observations, check_observed, until
from jaxfl.domains import Count, Key, checked

Array = jax.Array
PASSES = 3
"""How often variances are computed anew from the decoded p: one pass takes them most of the way."""
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


def _white(covariance: Array, *arrays: Array) -> tuple[Array, ...]:
    """The covariance's Cholesky factor, and each vector or matrix divided by it, in one call (see
    `attacks.lapack`)."""
    root = jnp.linalg.cholesky(covariance)
    columns = [each.reshape(len(root), -1) for each in arrays]
    white = jax.scipy.linalg.solve_triangular(root, jnp.concatenate(columns, 1), lower=True)
    places = list(itertools.accumulate(each.shape[1] for each in columns))[:-1]
    parts = zip(jnp.split(white, places, 1), arrays, strict=True)
    return root, *(part.reshape(each.shape) for part, each in parts)


@checked
def box(
    observations: Observations, seen: Int[Array, "prefixes"], iterations: Count = 500
) -> Num[Array, "prefixes clients"]:
    """Weighted least squares over p in [0, 1]: `[prefixes, clients]`; above 1/2 the property is
    more likely than not.

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.
      iterations: of projected gradients (static).

    Raises:
      ValueError: as `least_squares`; if iterations are no positive integer.
    """
    return _boxes(observations, check_observed(observations, seen), iterations)


@functools.partial(jax.jit, static_argnames="iterations")
def _boxes(observations: Observations, seen: Array, iterations: int) -> Array:
    with jax.default_matmul_precision("highest"):
        return jax.vmap(lambda t: _box(observations, t, iterations)[0])(seen)


def _box(observations: Observations, seen: Array, iterations: int) -> tuple[Array, Quadratic]:
    observations = until(observations, seen)
    rate = observations.rate
    start = jnp.full(observations.participation.shape[1], rate, observations.features.dtype)
    drifts = jnp.asarray(DRIFTS, start.dtype)
    drift = drifts[jnp.argmax(jnp.nan_to_num(drift_evidence(observations, drifts), nan=-jnp.inf))]

    def again(p: Array, _: None) -> tuple[Array, None]:
        quadratic = likelihood(observations, p, drift)
        # What no round tells keeps the assumed rate.
        faint = 1e-4 * jnp.trace(quadratic.matrix) / len(p)
        matrix = quadratic.matrix + faint * jnp.eye(len(p), dtype=p.dtype)
        # No eigenvalue is larger than the largest row sum.
        largest = abs(matrix).sum(1).max() + jnp.finfo(p.dtype).tiny
        slope = lambda q: matrix @ q - quadratic.vector - faint * rate  # noqa: E731
        return minimize_quadratic(slope, p, lambda q: jnp.clip(q, 0, 1), largest, iterations), None

    p, _ = jax.lax.scan(again, start, length=PASSES)
    return p, likelihood(observations, p, drift)


@struct.dataclass
class Gibbs:
    """Settings of `gibbs`.

    Attributes:
      chains: independent chains (static).
      sweeps: over all clients (static), the first quarter of which is not counted.
    """

    chains: Count = struct.field(pytree_node=False, default=32)
    sweeps: Count = struct.field(pytree_node=False, default=400)


@checked
def gibbs(
    observations: Observations,
    seen: Int[Array, "prefixes"],
    key: Key,
    *,
    settings: Gibbs | None = None,
) -> Num[Array, "prefixes clients"]:
    """Posterior probability that a client has the property `[prefixes, clients]`, by Gibbs
    sampling, given the estimated drift and the variances at the p of `box`. The prior is the rate
    that the adversary assumes (`observations.rate`).

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.
      key: randomness of the chains.
      settings: see `Gibbs`.

    Raises:
      ValueError: as `least_squares`; if a setting is no positive integer.
    """
    settings = settings or Gibbs()
    return _gibbs(observations, check_observed(observations, seen), key, settings)


@jax.jit
def _gibbs(observations: Observations, seen: Array, key: Array, settings: Gibbs) -> Array:
    clients = observations.participation.shape[1]
    prior = jnp.log(observations.rate) - jnp.log1p(-observations.rate)

    def one(t: Array, key: Array) -> Array:
        _, (matrix, vector) = _box(observations, t, 200)
        start_key, key = jax.random.split(key)
        diagonal = jnp.diag(matrix)

        def visit(p: Array, arguments: tuple[Array, Array]) -> tuple[Array, Array]:
            k, draw = arguments
            log_odds = prior + vector[k] - p @ matrix[k] + diagonal[k] * p[:, k] - diagonal[k] / 2
            return p.at[:, k].set(
                (draw < jax.nn.sigmoid(log_odds)).astype(p.dtype)
            ), jax.nn.sigmoid(log_odds).mean()

        def sweep(p: Array, key: Array) -> tuple[Array, Array]:
            order_key, draw_key = jax.random.split(key)
            order = jax.random.permutation(order_key, clients)
            draws = jax.random.uniform(draw_key, (clients, settings.chains), p.dtype)
            p, chance = jax.lax.scan(visit, p, (order, draws))
            return p, jnp.zeros_like(chance).at[order].set(chance)

        start = jax.random.bernoulli(
            start_key, observations.rate, (settings.chains, clients)
        ).astype(matrix.dtype)
        _, chances = jax.lax.scan(sweep, start, jax.random.split(key, settings.sweeps))
        return chances[settings.sweeps // 4 :].mean(0)

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(seen, jax.random.split(key, len(seen)))
