"""Do sums of features contradict who is said to have a property?

Threat model: as in `attacks.properties.detectors`. Decoders take for granted whose sums these are,
who took part in each, and how features of one client are distributed. If one of these is wrong,
their answer looks like any other. What it leaves of the sums does not: given the property, it is
normal, with the covariance of `attacks.properties.law_of_sums`.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Int, Num

from attacks.fit import FALSE_ALARMS, MisfitWarning, chi_square_deviations
from attacks.properties.law_of_sums import residuals
from attacks.properties.observations import Observations, check_observed, until
from jaxfl import _check
from jaxfl.domains import checked

Array = jax.Array


@checked
def surprise(
    observations: Observations,
    seen: Int[Array, "prefixes"],
    p: Num[Array, "prefixes clients"],
) -> Num[Array, "prefixes"]:
    """In how many deviations what p leaves of sums is more (above 0) or less than the detectors'
    laws say. With the p of `box`, which explains sums best: beyond 2.6, which `FALSE_ALARMS` of
    normal numbers exceed, the sums, who took part, the shadows' recipe or the detectors' model are
    not those that were told. Exchanged names of clients change nothing of it.

    The residuals' squares, divided by their covariance, are a chi-square
    (`attacks.fit.chi_square_deviations`). Too much is judged with the variance of what p leaves
    open, p (1 - p) of each client, and as many degrees of freedom as rounds in which anyone took
    part; too little without it, and one degree less for every client that p is fitted to: not
    before there are more such rounds than clients.

    Args:
      observations: see there.
      seen: how many rounds were used `[prefixes]`.
      p: probability that a client has the property, as `box` gives it; where it is NaN, so is the
        answer.

    Raises:
      ValueError: as `gibbs`; if p has another shape, or is not between 0 and 1.
    """
    seen = check_observed(observations, seen)
    _check.shape((len(seen), observations.participation.shape[1]), p=p)
    if not _check.is_unseen(p) and ((np.asarray(p) < 0) | (np.asarray(p) > 1)).any():
        raise ValueError("p holds numbers below 0 or above 1: it is no probability")
    return _surprise(observations, seen, jnp.asarray(p))


def most_surprise(prefixes: int) -> float:
    """Deviations that the worst of so many prefixes exceeds in `FALSE_ALARMS` of right sums, on
    either side."""
    return float(scipy.stats.norm.ppf(1 - FALSE_ALARMS / (2 * max(prefixes, 1))))


def warn_of_surprise(
    name: str, observations: Observations, seen: Array, p: Array, deeper: int = 0
) -> None:
    """Warn with a `MisfitWarning` if the sums contradict even the p of `box`, which explains them
    best; not where it is traced. `deeper` counts the calls between this one and the public
    function."""
    if _check.is_unseen((observations, seen, p)):
        return
    far = _surprise(observations, seen, p)
    worst = float(far[jnp.argmax(jnp.nan_to_num(jnp.abs(far)))]) if len(far) else 0.0
    side = "farther from" if worst > 0 else "nearer to"
    if abs(worst) > most_surprise(len(far)):
        warnings.warn(
            f"{name}: sums lie {abs(worst):.1f} deviations {side} any answer than the detectors' "
            "laws say: the sums, who took part, the rate, the shadows' recipe or the detectors' "
            "model are not those that were told",
            MisfitWarning,
            stacklevel=4 + deeper,
        )


def _deviations(white: Array, freedom: Array) -> Array:
    freedom = jnp.maximum(freedom, 1)
    return chi_square_deviations(jnp.square(white).sum() / freedom, freedom)


@jax.jit
def _surprise(observations: Observations, seen: Array, p: Array) -> Array:
    def one(t: Array, p: Array) -> Array:
        known = until(observations, t)
        open_, sure = residuals(known, p, jnp.stack([p * (1 - p), jnp.zeros_like(p)]))
        rounds = (known.participation > 0).any(1).sum()
        more = _deviations(open_, rounds)
        less = jnp.where(rounds > len(p), _deviations(sure, rounds - len(p)), 0)
        least = jnp.where(jnp.isnan(more), jnp.nan, jnp.minimum(less, 0))
        return jnp.where(more > 0, more, least)

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(seen, jnp.asarray(p, observations.features.dtype))
