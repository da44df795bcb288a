"""Whether records are in messages at all, whatever their unknown values are, of a client that has
others too (`attacks.attributes.candidate_decoding.partial`)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import scipy.stats

from attacks.fit import FALSE_ALARMS

Array = jax.Array
RIGHT_WITHIN, WRONG_WITHIN = map(
    float, scipy.stats.norm.ppf([1 - FALSE_ALARMS / 2, 1 - FALSE_ALARMS])
)
"""Standard errors within which what known records add is of what it should be, on either side, if
they are there; and on one side, if they are not, of nothing."""
FIRST, LEFT = -3, -2
"""Places of two vectors of `Whitened`."""


class Whitened(NamedTuple):
    """Vectors in the metric of the others' noise.

    Attributes:
      metric: inner products of the candidates' differences from the first, of held-out records'
        gradients less the mean, of the sum of first candidates' less as many means, of what is left
        of the messages without first candidates and the others' mean, and of the messages
        `[unknowns + held + 3] * 2`.
      scale: one over the variance that the noise has in this metric.
      largest: what is left of a right answer is more in `FALSE_ALARMS` of cases.
    """

    metric: Array
    scale: Array
    largest: Array


class Presence(NamedTuple):
    """Whether the known records are in the messages, whatever their unknown values are.

    Attributes:
      share: of what they add to a message, less as many means; 1 if they are there, 0 if records of
        the population are in their place.
      error: its standard deviation, from the others and from the unknown values.
    """

    share: Array
    error: Array


def presence_of(seen: Whitened, prior: Array, counts: tuple[int, int, int]) -> Presence:
    """By least squares on what they add on average over the prior `[unknowns]`; of so many known
    records, others, and public ones that the mean is of (`counts`)."""
    (known, others, public), unknowns = counts, len(prior)
    added = jnp.zeros(len(seen.metric), prior.dtype).at[:unknowns].set(prior).at[FIRST].set(1)
    along = seen.metric @ added
    held, moved = along[unknowns:FIRST], (prior * along[:unknowns]).reshape(known, -1)
    # The error of the mean is in both, what they add and what is explained.
    astray = jnp.diag(seen.metric)[unknowns:FIRST].mean() / public
    energy = jnp.maximum(along @ added - known**2 * astray, jnp.finfo(prior.dtype).tiny)
    share = (along[FIRST] + along[LEFT] - known * (known + others) * astray) / energy
    drawn = (others + (known + others) ** 2 / public) * (held**2).mean()
    spread = (moved * along[:unknowns].reshape(known, -1)).sum(1) - moved.sum(1) ** 2
    variance = drawn + spread.sum()
    return Presence(share, jnp.sqrt(variance) / energy)
