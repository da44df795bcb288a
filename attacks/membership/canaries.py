"""A measured epsilon: what a client's messages tell of a single canary among its records.

Threat model: an auditor with all that differential privacy grants an adversary. It sees the
client's messages, knows its records and its recipe, and plants canaries (`jaxfl.Canaries`). What it
asks is how far the messages give one canary's presence away.

Sources: Andrew et al., One-shot Empirical Privacy Estimation for Federated Learning (ICLR 2024),
whose canaries are random directions too; Dong, Roth, Su, Gaussian Differential Privacy (2022),
Corollary 2.13; for the noncentral t, Steiger, Fouladi (1997).
"""

import dataclasses
import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Num
from scipy import optimize, stats

from attacks.fit import FALSE_ALARMS, MisfitWarning, Status
from attacks.precision import in_type_here
from jaxfl import DPSGD, ClientData, LocalTraining, Messages, Model, _check, local_update
from jaxfl._check import plain_sgd
from jaxfl.accounting import gaussian_epsilon
from jaxfl.clients import OneClient, check_records_of_one
from jaxfl.domains import Fraction, Key, checked
from jaxfl.models import check_parameters
from jaxfl.plugins.canaries import Canaries
from jaxfl.watching import on_host

Array = jax.Array
LEAST_CONFIDENCE = 0.5
"""Of a lower bound: below, it lies above what is most likely."""
CLOSE = 1e-3
"""To orthonormal, as rounding leaves directions."""
FAR = 10.0
"""Standard errors within which a bound of any confidence is looked for."""
ROUNDED = 0.05
"""By which share noise and canaries may differ from what a recipe adds: float32 rounds them."""
MOST_SEEN = 1e3
"""Beyond, SciPy's noncentral t does not converge, and is taken for a normal of its variance."""


@struct.dataclass
class MeasuredEpsilon:
    """What messages tell of one canary.

    Attributes:
      lower: epsilon that is exceeded, at the confidence asked for; 0 if nothing is told.
      estimate: epsilon of the mean score, without allowance for chance.
      mu: the mean score: by how many deviations of its noise a canary's presence moves the sum of
        the messages. Of a Gaussian mechanism this is the `mu` of Gaussian differential privacy.
      scores: of each canary, in deviations `[canaries]`. Of a Gaussian mechanism the logarithm of a
        canary's likelihood ratio is linear in its score.
      status: `Status.FAILED` if the messages are not finite, or hold nothing but what the records
        make; then all numbers are NaN. `Status.MISFIT` if noise or canaries are not what the recipe
        adds: then the bound is of what messages hold, and not of the stated recipe.
    """

    lower: Num[Array, ""]
    estimate: Num[Array, ""]
    mu: Num[Array, ""]
    scores: Num[Array, "canaries"]
    status: Array


@on_host("SciPy's noncentral t, and dp-accounting")
@checked
@in_type_here
def measure_epsilon(
    model: Model,
    messages: Messages,
    data: OneClient,
    training: LocalTraining,
    key: Key,
    *,
    delta: Fraction = 1e-5,
    confidence: Fraction = 0.95,
) -> MeasuredEpsilon:
    """Epsilon out of the messages of one run, in which canaries took part.

    What the client's own records contribute is taken away: training without noise and canaries,
    from each received model. It is exact where a client takes one full-batch step a round. What is
    left is projected on each canary's direction. All other directions tell how large the noise is:
    directions are random, so that a projection of what has nothing to do with them is normal. The
    mean projection in deviations of the noise, times sqrt(canaries), is then a noncentral t of
    `parameters - 1` degrees of freedom: its interval gives `mu`, and `mu` gives epsilon.

    Where a client takes one full-batch step a round, its training is a Gaussian mechanism, and the
    interval is exact. In batches it is approximate: a canary is in some steps alone, scores vary
    more than the noise does (then their own spread counts), and `mu` is that of their mean. A bound
    above what the accountant promises points to a fault of the accountant or of the implementation;
    by chance a right one is exceeded in 1 - confidence of runs, at most.

    With n canaries the bound is short of `mu` by some 1.64 / sqrt(n) at 95 % confidence, and no
    unbiased estimate of `mu` from as many scores varies less: 1,000 canaries bound mu = 0.27
    (epsilon 1 at delta 1e-5) at 0.22 (epsilon 0.8).

    Args:
      model: the model (static).
      messages: of the client, all rounds `[rounds, ...]`.
      data: its records, without client axis. Records that are left out stay among the noise, and
        lower the bound.
      training: its recipe: SGD, with `Canaries` for its only plug-in.
      key: draws batches of the training that is taken away.
      delta: of the guarantee.
      confidence: of `lower`, one-sided; one half at least.

    Warns:
      MisfitWarning: if the messages' noise or canaries are not those of the recipe.

    Raises:
      ValueError: if the recipe is not plain SGD with canaries and nothing else, their directions
        are of another model or their rate of other batches, or an argument is bad.
      ModuleNotFoundError: without the extra "privacy".
    """
    check_parameters(model, messages.model_shapes, "messages")
    _check.at_least(LEAST_CONFIDENCE, confidence=confidence)
    first = jax.tree.map(lambda a: a[0], messages.received)
    check_records_of_one(model, first, data, "data")
    records = int(np.asarray(data.mask).sum())
    canaries = _canaries_of(training, records)
    directions = _orthonormal(canaries.directions, sum(a.size for a in jax.tree.leaves(first)))
    rest, reordered = _without_own(model, messages, data, training, canaries.clip, key)
    along, freedom = directions @ rest, len(rest) - 1
    varied = np.linalg.norm(rest - along.mean() * directions.sum(0)) / np.sqrt(freedom)
    order = np.linalg.norm(reordered) / np.sqrt(len(rest))
    in_batches = training.steps(records) > 1 and len(along) > 1
    noise = max(varied, along.std(ddof=1)) if in_batches else varied
    if not np.isfinite(along).all() or noise == 0:
        nothing = jnp.full((), jnp.nan)
        scores = jnp.full(len(along), jnp.nan)
        return MeasuredEpsilon(nothing, nothing, nothing, scores, jnp.asarray(Status.FAILED))
    scores = along / noise
    steps = len(messages) * training.steps(records)
    size = min(training.batch_size or records, records)
    seen = _Seen(scores, noise, varied, order, freedom)
    status = _judged(seen, training, canaries, steps, size)
    mu, low = float(scores.mean()), _least_mu(scores, freedom, confidence)
    return MeasuredEpsilon(
        lower=jnp.asarray(gaussian_epsilon(max(low, 0.0), delta=delta)),
        estimate=jnp.asarray(gaussian_epsilon(max(mu, 0.0), delta=delta)),
        mu=jnp.asarray(mu),
        scores=jnp.asarray(scores),
        status=jnp.asarray(status),
    )


class _Seen(NamedTuple):
    """What is left of messages without what the client's records make.

    Attributes:
      scores: of each canary, in deviations of `noise` `[canaries]`.
      noise: deviation of a projection.
      varied: likewise, of all but the canaries' mean.
      order: likewise, of what another order of the client's own records changes.
      freedom: numbers that tell the noise.
    """

    scores: np.ndarray
    noise: float
    varied: float
    order: float
    freedom: int


def _judged(
    seen: _Seen, training: LocalTraining, canaries: Canaries, steps: int, size: int
) -> Status:
    """Whether noise and canaries are what the recipe adds in so many `steps` of batches of a
    `size`. In batches each canary is in some steps alone, and the client's own records were in
    other batches than is taken away: by as much more may noise and scores vary."""
    q, sigma = float(canaries.rate), float(canaries.noise_multiplier)
    count = len(seen.scores)
    # By how much one canary moves a step, times sqrt(steps): the unit of all that follows.
    unit = float(training.learning_rate * canaries.clip) * np.sqrt(steps) / size
    if not unit:
        return Status.OK
    low, high = np.sqrt(_quantiles(seen.freedom) / seen.freedom)
    order, drawn = seen.order / unit, q * (1 - q)
    by_draws = drawn * _quantiles(count)[1] / seen.freedom
    most = (1 + ROUNDED) * np.sqrt(high**2 * (sigma**2 + order**2) + by_draws)
    varied, moved = seen.varied / unit, seen.scores.mean() * seen.noise / unit
    expected = q * np.sqrt(steps)
    chance = stats.norm.ppf(1 - FALSE_ALARMS / 4) * np.sqrt((varied**2 + drawn) / count)
    # Without noise what is left is rounding.
    is_noise = sigma * low <= varied <= most or not sigma
    if is_noise and abs(moved - expected) <= chance + ROUNDED * expected:
        return Status.OK
    warnings.warn(
        f"measure_epsilon: the noise is {varied:.3g}, where the recipe adds {sigma:.3g}, and a "
        f"canary moves the messages by {moved:.3g}, where {expected:.3g} is expected (both in "
        "units of what one canary does to a step, times the square root of the steps): messages "
        "are not of this model, recipe, canaries or records, or the noise is not what it is said "
        "to be",
        MisfitWarning,
        stacklevel=4,
    )
    return Status.MISFIT


def _quantiles(freedom: int) -> np.ndarray:
    """Within which a chi-square lies but for half of the `FALSE_ALARMS`."""
    return stats.chi2.ppf([FALSE_ALARMS / 4, 1 - FALSE_ALARMS / 4], freedom)


def _canaries_of(training: LocalTraining, records: int) -> Canaries:
    """The canaries of a recipe that can be measured."""
    plain_sgd(training.optimizer)
    canaries = training.privacy
    if not isinstance(canaries, Canaries) or len(training.plugins) > 1:
        held = ", ".join(type(plugin).__name__ for plugin in training.plugins) or "nothing"
        raise ValueError(f"training.plugins holds {held}; it must hold Canaries, and nothing else")
    rate = min(training.batch_size or records, records) / records
    if not np.isclose(float(canaries.rate), rate, rtol=1e-3):
        raise ValueError(
            f"training.plugins: canaries have rate={float(canaries.rate):g}; in batches of "
            f"batch_size={training.batch_size} of {records} records it is {rate:g}"
        )
    return canaries


def _orthonormal(directions: Array, parameters: int) -> np.ndarray:
    held = np.asarray(directions, np.float64)
    if held.shape[1] != parameters:
        raise ValueError(
            f"training.plugins: directions have {held.shape[1]} numbers, and the model has "
            f"{parameters} parameters"
        )
    gap = np.abs(held @ held.T - np.eye(len(held))).max()
    if not gap < CLOSE:
        raise ValueError(
            f"training.plugins: directions must be orthonormal rows (they are off by {gap:.2g}); "
            "see jaxfl.canary_directions"
        )
    return held


def _without_own(
    model: Model,
    messages: Messages,
    data: OneClient,
    training: LocalTraining,
    clip: float | Array,
    key: Array,
) -> tuple[np.ndarray, np.ndarray]:
    """Sums over rounds `[parameters]`: of what was sent, without what the client's records alone
    make; and of the difference that another order of them makes to the latter."""
    quiet = dataclasses.replace(training, plugins=(DPSGD(clip, 0.0),))
    keys = jax.random.split(key, (2, len(messages)))
    left, other = (
        np.asarray(_sent_beside(model, messages, data, quiet, k), np.float64).sum(0) for k in keys
    )
    return left, left - other


@functools.partial(jax.jit, static_argnames="model")
def _sent_beside(
    model: Model, messages: Messages, data: ClientData, quiet: LocalTraining, keys: Array
) -> Array:
    """What was sent beside what a recipe makes of the records `[rounds, parameters]`."""

    def of_round(received: Any, returned: Any, key: Array) -> Array:
        made = local_update(model, received, data, key, quiet)
        return ravel_pytree(jax.tree.map(jnp.subtract, made, returned))[0]

    return jax.vmap(of_round)(messages.received, messages.returned, keys)


def _least_mu(scores: np.ndarray, freedom: int, confidence: float) -> float:
    """The least mean, in deviations, of which scores as high as these have a chance of at least
    1 - confidence: their own mean is a noncentral t of so many degrees of freedom."""
    root = np.sqrt(len(scores))
    seen = float(scores.mean() * root)
    error = np.sqrt(1 + seen**2 / (2 * freedom))
    if seen > MOST_SEEN:
        return float((seen + stats.norm.ppf(1 - confidence) * error) / root)
    least = optimize.brentq(
        lambda shift: stats.nct.sf(seen, freedom, shift) - (1 - confidence),
        seen - FAR * error,
        seen + FAR * error,
    )
    return float(least / root)
