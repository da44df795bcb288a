"""Clients' features, or gradients, by least squares (Kerkouche 2023, sections 4 and 5.1; Lam et al.
2021).

Threat model: as in `attacks.properties.detectors`. A sum is linear in what each client contributes,
`b = A x + e`, whatever the laws of features. Where sums contradict these laws, as `box` tells, all
functions warn: then they are not of these clients, or not of these detectors.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Int, Num

from attacks.properties.best_in_box import ITERATIONS, boxes
from attacks.properties.observations import (
    Observations,
    check_observed,
    check_weights,
    prefix,
    until,
)
from attacks.properties.surprise import warn_of_surprise
from jaxfl import _check
from jaxfl.domains import NotNegative, checked

Array = jax.Array


@checked
def least_squares(
    observations: Observations, seen: Int[Array, "prefixes"]
) -> Num[Array, "prefixes clients"]:
    """OLS (Kerkouche 2023, Eq. 3): mean feature of every client `[prefixes, clients]`, the shortest
    of several solutions.

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.

    Warns:
      MisfitWarning: if the sums contradict any answer (`attacks.surprise`).

    Raises:
      ValueError: if observations are not of one number of rounds, or `seen` exceeds it.
    """
    seen = check_observed(observations, seen)
    _warn_of_sums("least_squares", observations, seen)
    return _least_squares(observations, seen)


@jax.jit
def _least_squares(observations: Observations, seen: Array) -> Array:
    def one(t: Array) -> Array:
        known = until(observations, t)
        return jnp.linalg.pinv(known.participation) @ known.features

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(seen)


@checked
def ridge(
    observations: Observations,
    seen: Int[Array, "prefixes"],
    weights: Num[Array, "rounds"],
    penalty: NotNegative = 5.0,
) -> Num[Array, "prefixes clients"]:
    """REG (Kerkouche 2023, Eq. 10): weighted least squares with a penalty on the squares
    `[prefixes, clients]`.

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.
      weights: of the rounds `[rounds]`; the paper's are 1 - OVL.
      penalty: the paper's lambda.

    Warns:
      MisfitWarning: as `least_squares`.

    Raises:
      ValueError: as `least_squares`; if weights are not finite, or the penalty is below 0.
    """
    seen = check_observed(observations, seen)
    check_weights(weights, len(observations.features))
    _warn_of_sums("ridge", observations, seen)
    return _ridge(observations, seen, jnp.asarray(weights), penalty)


@jax.jit
def _ridge(
    observations: Observations, seen: Array, weights: Array, penalty: float | Array
) -> Array:
    def one(t: Array) -> Array:
        known = until(observations, t)
        a, w = known.participation, jnp.where(prefix(len(weights), t), weights, 0)
        normal = (a.T * w) @ a + penalty * jnp.eye(a.shape[1], dtype=a.dtype)
        return jax.scipy.linalg.solve(normal, (a.T * w) @ known.features, assume_a="pos")

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(seen)


@checked
def gradient_votes(
    observations: Observations, seen: Int[Array, "prefixes"]
) -> Num[Array, "prefixes clients"]:
    """BASELINE (Lam et al. 2021; Kerkouche 2023, Eq. 6): clients' gradients by least squares, then
    for each client the fraction of the seen rounds' detectors that find the property in its
    gradient `[prefixes, clients]`; the assumed rate for a client that took part in none.

    Gradients are never written out: detectors are affine, so features of the aggregates are enough.

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.

    Warns:
      MisfitWarning: as `least_squares`.

    Raises:
      ValueError: as `least_squares`.
    """
    seen = check_observed(observations, seen)
    _warn_of_sums("gradient_votes", observations, seen)
    return _gradient_votes(observations, seen)


def _warn_of_sums(name: str, observations: Observations, seen: Array) -> None:
    if not _check.is_unseen((observations, seen)):
        warn_of_surprise(name, observations, seen, boxes(observations, seen, ITERATIONS), deeper=1)


@jax.jit
def _gradient_votes(observations: Observations, seen: Array) -> Array:
    def one(t: Array) -> Array:
        known = until(observations, t)
        inside = prefix(len(known.features), t)
        features = jnp.linalg.pinv(known.participation) @ known.cross + known.offset
        votes = ((features > 0) & inside).sum(1) / jnp.maximum(inside.sum(), 1)
        votes = jnp.where((known.participation == 0).all(0), known.rate, votes)
        # What is not finite votes for nobody, and would pass for a vote against.
        return jnp.where((~jnp.isfinite(features) & inside).any(1), jnp.nan, votes)

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(seen)
