"""Do sums go with who is said to have taken part, or would other rounds' participants do as well?

Threat model: as in `attacks.properties.detectors`. Where participation is of other rounds, no
client's property explains the sums, and few rounds still make a decoder sure of some. The rounds'
participants are exchanged at random, and each order is given its own best answer: of the right
order it is better than of nearly all others.
"""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from attacks.fit import MisfitWarning
from attacks.fixed_draws import fixed_key
from attacks.properties.best_in_box import ROUGHLY, boxes
from attacks.properties.law_of_sums import log_likelihood
from attacks.properties.observations import Observations, until
from jaxfl import _check

Array = jax.Array
SURE = 0.9
"""Probability above which a client is said to have the property."""
EVEN = 0.5
"""Probability below which another one must lie: what all clients share, any order explains."""
EXCHANGES, ENOUGH = 39, 2
"""Orders that are drawn; and how many times as many rounds as clients there must be: some answer
explains fewer in any order."""
SELDOM, HALF = 0.1, 0.5
"""The share of these that may explain the sums better, where an answer is a probability; and where
it is not, so that it is sure of a client where detectors tell little too."""
DECISIVE = 4.0
"""Difference of two logarithms of a likelihood, from which on it is said: weak evidence, that of
right participants lay below 0 in all federations that were looked at."""
ALIKE = 1e-5
"""Relative difference of two likelihoods that rounding makes."""


def warn_of_exchanged_rounds(
    name: str, observations: Observations, seen: Array, p: Array, share: float = HALF
) -> None:
    """Warn with a `MisfitWarning` if an answer `[prefixes, clients]` is sure of a client though
    more than a `share` of exchanged rounds explain the sums better. The last sure one of `ENOUGH`
    rounds is judged. Not where it is traced."""
    if _check.is_unseen((observations, seen, p)):
        return
    known = np.nan_to_num(np.asarray(p))
    sure = (known.max(1, initial=0.0) > SURE) & (known.min(1, initial=1.0) < EVEN)
    rounds = np.asarray(seen)[sure & (np.asarray(seen) >= ENOUGH * np.shape(p)[1])]
    if not len(rounds):
        return
    last = jnp.asarray(rounds.max())
    if float(_likelier(observations, last)) > share:
        warnings.warn(
            f"{name}: it is sure of a client, and the sums go with who took part no better than "
            "with other rounds' participants: participation is of other rounds, or the detectors "
            "tell nothing",
            MisfitWarning,
            stacklevel=4,
        )
    elif float(_better_absent(observations, last)) > DECISIVE:
        warnings.warn(
            f"{name}: it is sure of a client, and the sums go with who is said to have been absent "
            "better than with who took part: is participation the other way round?",
            MisfitWarning,
            stacklevel=4,
        )


@jax.jit
def _better_absent(observations: Observations, seen: Array) -> Array:
    """By how much the sums' log-likelihood is larger where those took part who did not `[]`."""
    known = until(observations, seen)

    def explained(participation: Array) -> Array:
        other = dataclasses.replace(known, participation=participation)
        return log_likelihood(other, boxes(other, seen[None], ROUGHLY)[0])

    told = known.participation
    inside = (jnp.arange(len(told)) < seen) & (told > 0).any(1)
    absent = jnp.where((told > 0) | ~inside[:, None], 0, 1).astype(told.dtype)
    return explained(absent) - explained(told)


@jax.jit
def _likelier(observations: Observations, seen: Array) -> Array:
    """Share of orders of the rounds' participants, the told one among them, whose best answer
    explains the sums better than that of the told one `[]`. An order with the same participants in
    every round is not better."""
    known = until(observations, seen)
    inside = jnp.arange(len(known.features)) < seen

    def explained(participation: Array) -> Array:
        other = dataclasses.replace(known, participation=participation)
        return log_likelihood(other, boxes(other, seen[None], ROUGHLY)[0])

    def exchanged(key: Array) -> Array:
        drawn = jnp.argsort(jnp.where(inside, jax.random.uniform(key, inside.shape), jnp.inf))
        return explained(known.participation[drawn])

    told = explained(known.participation)
    others = jax.lax.map(exchanged, jax.random.split(fixed_key(), EXCHANGES), batch_size=8)
    return (1 + (others > told + ALIKE * jnp.abs(told)).sum()) / (1 + EXCHANGES)
