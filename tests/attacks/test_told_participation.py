"""Participation that says who was absent is said to, where sums tell."""

import dataclasses

import jax.numpy as jnp
import pytest

from attacks import MisfitWarning, box
from attacks.properties.exchanges import DECISIVE, _better_absent, warn_of_exchanged_rounds
from tests.attacks.test_gibbs import ROUNDS, observed

SEEN = jnp.asarray(ROUNDS)


def absent(observations):
    told = observations.participation
    return dataclasses.replace(observations, participation=1 - told)


@pytest.mark.parametrize("seed", range(5))
def test_sums_go_with_who_took_part(seed):
    observations, _ = observed(separation=6.0, seed=seed)
    assert _better_absent(observations, SEEN) < -DECISIVE
    assert _better_absent(absent(observations), SEEN) > DECISIVE


def test_rounds_that_are_not_seen_say_nothing():
    observations, _ = observed(separation=6.0)
    few = jnp.asarray(ROUNDS // 2)
    rest = jnp.arange(ROUNDS)[:, None] < few
    cut = dataclasses.replace(observations, participation=observations.participation * rest)
    both = [float(_better_absent(each, few)) for each in (observations, cut)]
    assert both[0] == pytest.approx(both[1], rel=1e-4)
    assert both[0] < 0


def test_the_other_way_round_is_said():
    observations, _ = observed(separation=6.0)
    seen = jnp.asarray([ROUNDS])
    sure = box(observations, seen)  # warnings are errors
    warn_of_exchanged_rounds("box", observations, seen, sure)
    with pytest.warns(MisfitWarning, match="is participation the other way round"):
        warn_of_exchanged_rounds("box", absent(observations), seen, sure)
