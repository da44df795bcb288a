"""Which clients have a property, from sums of their features (beyond Kerkouche 2023).

Threat model: as in `attacks.properties.detectors`. PROLIN (`attacks.properties.prolin`) looks for
everyone's feature in every round; but given who has the property, a sum of normal features is
normal (`attacks.properties.law_of_sums`), so features need not be found.

`box` is weighted least squares over p in [0, 1]; `gibbs` samples p in {0, 1} with the assumed rate
as prior. Both answer for several numbers of observed rounds at once.
"""

import functools

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Int, Num

from attacks.attributes.candidate_decoding.constraints import minimize_quadratic
from attacks.properties.law_of_sums import Quadratic, likeliest_drift, likelihood
from attacks.properties.observations import Observations, check_observed, until
from attacks.properties.surprise import warn_of_surprise
from jaxfl import _check
from jaxfl.domains import Count, Key, checked

Array = jax.Array
ITERATIONS = 500
"""Of `box`, projected gradients."""
PASSES = 3
"""How often variances are computed anew from the decoded p: one pass takes them most of the way."""


@checked
def box(
    observations: Observations, seen: Int[Array, "prefixes"], iterations: Count = ITERATIONS
) -> Num[Array, "prefixes clients"]:
    """Weighted least squares over p in [0, 1]: `[prefixes, clients]`; above 1/2 the property is
    more likely than not.

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.
      iterations: of projected gradients (static).

    Warns:
      MisfitWarning: if the sums contradict any answer (`attacks.surprise`).

    Raises:
      ValueError: as `least_squares`; if iterations are no positive integer.
    """
    seen = check_observed(observations, seen)
    p = boxes(observations, seen, iterations)
    warn_of_surprise("box", observations, seen, p)
    return p


@functools.partial(jax.jit, static_argnames="iterations")
def boxes(observations: Observations, seen: Array, iterations: int) -> Array:
    """`box` of what is checked."""
    with jax.default_matmul_precision("highest"):
        return jax.vmap(lambda t: _box(observations, t, iterations)[0])(seen)


def _box(observations: Observations, seen: Array, iterations: int) -> tuple[Array, Quadratic]:
    observations = until(observations, seen)
    rate, drift = observations.rate, likeliest_drift(observations)
    start = jnp.full(observations.participation.shape[1], rate, observations.features.dtype)

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

    Warns:
      MisfitWarning: as `box`.

    Raises:
      ValueError: as `least_squares`; if a setting is no positive integer.
    """
    settings = settings or Gibbs()
    seen = check_observed(observations, seen)
    if not _check.is_unseen((observations, seen)):
        # Chains that have not mixed are no evidence against the sums.
        warn_of_surprise("gibbs", observations, seen, boxes(observations, seen, ITERATIONS))
    return _gibbs(observations, seen, key, settings)


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
