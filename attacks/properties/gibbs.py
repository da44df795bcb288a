"""Which clients have a property, from sums of their features (beyond Kerkouche 2023).

Threat model: as in `attacks.properties.detectors`. PROLIN (`attacks.properties.prolin`) looks for
everyone's feature in every round; but given who has the property, a sum of normal features is
normal (`attacks.properties.law_of_sums`), so features need not be found.

`gibbs` samples p in {0, 1} with the assumed rate as prior, and answers for several numbers of
observed rounds at once. It warns where `attacks.properties.box` would, and where it is sure of a
client for no reason in the sums (`attacks.properties.exchanges`).
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Int, Num

from attacks.properties.best_in_box import ITERATIONS, ROUGHLY, box_and_quadratic, boxes
from attacks.properties.exchanges import SELDOM, warn_of_exchanged_rounds
from attacks.properties.observations import Observations, check_observed
from attacks.properties.surprise import warn_of_surprise
from jaxfl import _check
from jaxfl.domains import Count, Key, checked

Array = jax.Array


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
      MisfitWarning: as `box`; and where it is sure of a client (`SURE`), though the sums go no
        better with who took part than with other rounds' participants. Judged by the last of `seen`
        of which that holds, if it is twice the number of clients or more.

    Raises:
      ValueError: as `least_squares`; if a setting is no positive integer.
    """
    settings = settings or Gibbs()
    seen = check_observed(observations, seen)
    if not _check.is_unseen((observations, seen)):
        # Chains that have not mixed are no evidence against the sums.
        warn_of_surprise("gibbs", observations, seen, boxes(observations, seen, ITERATIONS))
    answer = _gibbs(observations, seen, key, settings)
    warn_of_exchanged_rounds("gibbs", observations, seen, answer, SELDOM)
    return answer


@jax.jit
def _gibbs(observations: Observations, seen: Array, key: Array, settings: Gibbs) -> Array:
    clients = observations.participation.shape[1]
    prior = jnp.log(observations.rate) - jnp.log1p(-observations.rate)

    def one(t: Array, key: Array) -> Array:
        _, (matrix, vector) = box_and_quadratic(observations, t, ROUGHLY)
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
