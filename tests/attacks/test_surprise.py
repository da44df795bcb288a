"""Sums that contradict any answer say so, and those of the stated law do not."""

import dataclasses
import itertools
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from attacks import box, gibbs, gradient_votes, least_squares, ridge, surprise
from attacks.fit import MisfitWarning
from attacks.properties.exchanges import SURE
from tests.attacks.test_gibbs import CLIENTS, KEY, PER_ROUND, ROUNDS, observed


@pytest.mark.very_slow
def test_sums_of_the_law_surprise_nobody_and_others_do():
    """Normal numbers are seldom farther out; wrong recipes are, on one side or the other."""
    seen = jnp.asarray([20, ROUNDS])
    for separation, seed in itertools.product((1.5, 3.0, 6.0), range(6)):
        observations, _ = observed(separation, seed)
        for p in (box(observations, seen), gibbs(observations, seen, KEY)):
            assert np.abs(surprise(observations, seen, p)).max() < 2
    observations, _ = observed(6.0)
    wrong = {
        "wide shadows": ("variance", 100 * observations.variance, -1),
        "narrow shadows": ("variance", observations.variance / 100, 1),
        "means": ("features", observations.features / PER_ROUND, -1),
    }
    for name, (field, value, side) in wrong.items():
        told = dataclasses.replace(observations, **{field: value})
        with pytest.warns(MisfitWarning, match="farther" if side > 0 else "nearer"):
            gibbs(told, seen, KEY)
        with pytest.warns(MisfitWarning):
            p = box(told, seen)
        assert side * np.asarray(surprise(told, seen, p))[1] > 4, name


def test_exchanged_names_surprise_nobody():
    observations, truth = observed(6.0)
    order = np.random.default_rng(0).permutation(CLIENTS)
    other = dataclasses.replace(observations, participation=observations.participation[:, order])
    seen = jnp.asarray([ROUNDS])
    p = box(other, seen)
    np.testing.assert_array_equal(np.asarray(p)[0] > 0.5, truth[order])
    assert abs(float(surprise(other, seen, p)[0])) < 2


def test_rounds_in_which_nobody_took_part_surprise_nobody():
    for seed in range(5):
        observations, _ = observed(6.0, seed)
        there = np.random.default_rng(seed).random(ROUNDS) < 0.25
        observations = dataclasses.replace(
            observations,
            participation=observations.participation * there[:, None],
            features=observations.features * there,
        )
        seen = jnp.asarray([20, ROUNDS])
        assert np.abs(surprise(observations, seen, box(observations, seen))).max() < 2


def test_least_squares_warns_where_box_does():
    observations, _ = observed(6.0)
    seen, weights = jnp.asarray([ROUNDS]), jnp.ones(ROUNDS)
    decoders = {
        "least_squares": lambda told: least_squares(told, seen),
        "ridge": lambda told: ridge(told, seen, weights),
        "gradient_votes": lambda told: gradient_votes(told, seen),
    }
    means = dataclasses.replace(observations, features=observations.features / PER_ROUND)
    for name, decode in decoders.items():
        decode(observations)  # warnings are errors
        with pytest.warns(MisfitWarning, match=f"{name}: sums lie") as told:
            decode(means)
        assert told[0].filename == __file__


def test_more_participants_than_a_round_has_are_refused():
    """As of a table that says who did not take part."""
    observations, _ = observed(6.0)
    absent = 1 - observations.participation
    few = dataclasses.replace(observations, clients_per_round=PER_ROUND)
    box(few, jnp.asarray([ROUNDS]))
    with pytest.raises(ValueError, match=r"observations\.clients_per_round=.* must lie between"):
        box(dataclasses.replace(few, participation=absent), jnp.asarray([ROUNDS]))


def test_what_is_no_probability_is_refused_and_what_is_not_known_is_not():
    observations, _ = observed(6.0)
    seen, shape = jnp.asarray([ROUNDS]), (1, CLIENTS)
    with pytest.raises(ValueError, match="p holds numbers below 0 or above 1"):
        surprise(observations, seen, np.full(shape, 2.0))
    assert np.isnan(surprise(observations, seen, np.full(shape, np.nan))).all()


@pytest.mark.very_slow
def test_sure_answers_of_other_rounds_participants_are_said_to_have_no_reason():
    """Of rounds off by one, or in reverse, at least half of the sure answers are named; of right
    ones, and of exchanged names, none."""
    seen, sure, warned = jnp.asarray([ROUNDS]), {}, {}
    for separation, seed in itertools.product((4.0, 6.0), range(8)):
        told, _ = observed(separation, seed)
        a = told.participation
        orders = {"right": a, "names": a[:, ::-1], "late": jnp.roll(a, 1, 0), "reverse": a[::-1]}
        for name, participation in orders.items():
            other = dataclasses.replace(told, participation=participation)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                p = np.asarray(gibbs(other, seen, KEY))
            sure[name] = sure.get(name, 0) + (p.max() > SURE)
            warned[name] = warned.get(name, 0) + bool(p.max() > SURE and said)
    assert sure["right"] == sure["names"] == 16
    assert warned["right"] == warned["names"] == 0
    assert sure["late"] + sure["reverse"] >= 8
    assert 2 * (warned["late"] + warned["reverse"]) >= sure["late"] + sure["reverse"]


def test_a_round_counts_once():
    observations, _ = observed(4.0)
    twice = dataclasses.replace(observations, rounds=observations.rounds // 2)
    with pytest.raises(ValueError, match=r"observations\.rounds holds 0 twice"):
        box(twice, jnp.asarray([ROUNDS]))


@pytest.mark.slow
def test_what_all_clients_share_needs_no_order():
    """Everyone has the property, or everyone takes part in every round."""
    for clients, each, positives in ((8, 8, 8), (8, 3, 8), (8, 8, 2)):
        for seed in range(3):
            options = {"clients": clients, "per_round": each, "positives": positives}
            told, _ = observed(4.0, seed, **options)
            gibbs(told, jnp.asarray([ROUNDS]), KEY)  # a warning is an error
