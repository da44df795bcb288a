"""How often decoders are sure of a client, and warn, where participation is right, of the round
before, or of rounds in reverse: `python -m tests.attacks.exchanged_rounds`."""

import collections
import dataclasses
import itertools
import warnings

import jax.numpy as jnp
import numpy as np

from attacks import Prolin, box, gibbs, prolin
from attacks.properties.exchanges import SURE
from tests.attacks.test_gibbs import KEY, observed

FEDERATIONS = ((20, 40, 5), (20, 60, 5), (10, 40, 4), (40, 80, 8))
"""Clients, rounds, participants of a round."""
SEPARATIONS, SEEDS = (2.0, 3.0, 4.0, 6.0), range(100, 125)


def by_prolin(observations, seen):
    weights = jnp.ones(len(observations.features))
    return prolin(observations, seen, weights, KEY, settings=Prolin(iterations=5000)).p


DECODERS = {"gibbs": lambda observations, seen: gibbs(observations, seen, KEY)}
DECODERS |= {"box": box, "prolin": by_prolin}


def main():
    counts = collections.defaultdict(lambda: np.zeros(3, int))
    for (clients, rounds, each), separation, seed in itertools.product(
        FEDERATIONS, SEPARATIONS, SEEDS
    ):
        right, _ = observed(separation, seed, clients=clients, per_round=each, rounds=rounds)
        a = right.participation
        for name, other in {"right": a, "late": jnp.roll(a, 1, 0), "reverse": a[::-1]}.items():
            told = dataclasses.replace(right, participation=other)
            for decoder, decode in DECODERS.items():
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    p = np.asarray(decode(told, jnp.asarray([rounds])))
                sure = p.max() > SURE
                counts[decoder, name] += [1, sure, sure and bool(said)]
    for (decoder, name), (runs, sure, warned) in sorted(counts.items()):
        print(f"{decoder}, {name}: {runs} federations, {sure} sure of a client, {warned} warned")


if __name__ == "__main__":
    main()
