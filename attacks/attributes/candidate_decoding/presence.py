"""Whether records are in messages at all, whatever their unknown values are, of a client that has
others too (`attacks.attributes.candidate_decoding.partial`).

Beyond as many means mu, K known records of N add

    p = sum_known (E_v g_n(v) - mu)

to what is left of the messages without N mu, in the metric of the others' noise. By least squares
that holds p once if the records are there, and not at all if others are in their place. What all
known records share of a value is taken off p first: how frequent the values are among them is not
known.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import scipy.stats

from attacks.fit import FALSE_ALARMS

Array = jax.Array
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


class Counts(NamedTuple):
    """How many records there are.

    Attributes:
      known: in part.
      others: of the client.
      public: those that the mean is of.
      held_out: the other public ones.
    """

    known: int
    others: int
    public: int
    held_out: int


class Presence(NamedTuple):
    """How much of what the known records add is in the messages.

    Attributes:
      share: 1 on average if they are there, 0 if records of the population are in their place.
      error: of it if they are there: its standard deviation.
      error_if_absent: the same if they are not.
    """

    share: Array
    error: Array
    error_if_absent: Array


def presence_of(seen: Whitened, prior: Array, counts: Counts) -> Presence:
    """By least squares, of values with this prior `[unknowns]`. The errors are infinite where that
    of the mean is as large as what the records add."""
    known, unknowns = counts.known, len(prior)
    added = jnp.zeros(len(seen.metric), prior.dtype).at[:unknowns].set(prior).at[FIRST].set(1)
    added = _without_shared(seen.metric, added, known, unknowns)
    along = seen.metric @ added
    # The error of the mean is in both, what they add and what is explained.
    astray = jnp.diag(seen.metric)[unknowns:FIRST].mean() / counts.public
    whole, lost = along @ added, known**2 * astray
    sum_of = known + counts.others
    energy = jnp.maximum(whole - lost, jnp.finfo(prior.dtype).tiny)
    share = (along[FIRST] + along[LEFT] - known * sum_of * astray) / energy
    one = (along[unknowns:FIRST] ** 2).mean()  # variance that a record of the population adds
    differences = along[:unknowns].reshape(known, -1)
    moved = prior.reshape(known, -1) * differences
    spread = ((moved * differences).sum(1) - moved.sum(1) ** 2).sum()

    def error(draws: int, spread: Array | float) -> Array:
        variance = (draws + draws**2 / counts.public) * one + spread
        return jnp.where(whole > 2 * lost, jnp.sqrt(variance) / energy, jnp.inf)

    return Presence(share, error(counts.others, spread), error(sum_of, 0.0))


def _without_shared(metric: Array, added: Array, known: int, unknowns: int) -> Array:
    """What is left of a vector without sums over known records of what one candidate changes, by
    Gram and Schmidt: `added` and these as combinations of those that the metric is of."""
    each = jnp.eye(unknowns // known, dtype=added.dtype)
    shared = jnp.zeros((len(each), len(added)), added.dtype)
    shared = shared.at[:, :unknowns].set(jnp.tile(each, known))

    def take_off(place: Array, held: tuple[Array, Array]) -> tuple[Array, Array]:
        added, shared = held
        along = metric @ shared[place]
        energy = along @ shared[place]
        scale = jnp.where(energy > 0, 1 / energy, 0)
        off = shared[place]
        return added - scale * (added @ along) * off, shared - scale * jnp.outer(
            shared @ along, off
        )

    return jax.lax.fori_loop(0, len(shared), take_off, (added, shared))[0]


def astray(presence: Presence, counts: Counts) -> Array:
    """Above 1 where the share is so far from 1, to either side, that a fourth of `FALSE_ALARMS` of
    right messages are further from it on that side."""
    within = float(scipy.stats.t.ppf(1 - FALSE_ALARMS / 4, counts.held_out - 1))
    return jnp.square((presence.share - 1) / (within * presence.error))


def told_apart(presence: Presence, counts: Counts) -> Array:
    """Whether messages without the known records would be so far from 1 in all but `FALSE_ALARMS`
    of cases."""
    right, wrong = scipy.stats.t.ppf(
        [1 - FALSE_ALARMS / 4, 1 - FALSE_ALARMS], counts.held_out - 1
    ).tolist()
    return right * presence.error + wrong * presence.error_if_absent < 1
