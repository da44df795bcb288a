"""What is right under another round's or record's name is put right by the diagnosis."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import closed_form, diagnose
from attacks.diagnosis.numbers import numbers_say
from attacks.fit import MisfitWarning, Status
from jaxfl import LocalTraining, Messages
from tests.attacks.wrong_recipes import RATE, client

TOLD = LocalTraining(RATE)
MODEL, SEEN, KNOWN, _ = client("right", TOLD, 3)
OTHER = client("right", TOLD, 4)[1]


def cut(tree, part):
    return jax.tree.map(lambda a: a[part], tree)


def paired(received, returned):
    return dataclasses.replace(
        SEEN,
        received=cut(SEEN.received, received),
        returned=cut(SEEN.returned, returned),
        rounds=SEEN.rounds[:-1],
    )


def relabelled(rows):
    y = np.array(KNOWN.y)
    y[rows] = 1 - y[rows]
    return dataclasses.replace(KNOWN, y=jnp.asarray(y))


def another_in(place):
    returned = jax.tree.map(lambda a, b: a.at[place].set(b[place]), SEEN.returned, OTHER.returned)
    return dataclasses.replace(SEEN, returned=returned)


STILL = dataclasses.replace(SEEN, returned=SEEN.received)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("messages", "known", "cause", "evidence"),
    [
        (SEEN, relabelled(slice(None)), "other labels", "80 of 80 labels"),
        (
            SEEN,
            relabelled([5]),
            "other labels",
            "1 of 80 labels are others than told: record 5",
        ),
        (paired(slice(None, -1), slice(1, None)), KNOWN, "rounds off by one", "the round after"),
        (another_in(3), KNOWN, "one round of something else", "without round 3"),
        (STILL, KNOWN, "nothing came back changed", "the models after the round?"),
        (SEEN, KNOWN, "as told", "explains the messages"),
    ],
)
def test_what_is_exchanged_is_named(messages, known, cause, evidence):
    if cause not in ("as told", "nothing came back changed"):
        with pytest.warns(MisfitWarning):
            assert closed_form(MODEL, messages, known).status == Status.MISFIT
    diagnosis = diagnose(MODEL, messages, known, TOLD)
    assert diagnosis.findings[0].cause == cause
    assert evidence in diagnosis.findings[0].evidence
    assert len(diagnosis.findings) == 1


def test_models_of_one_client_after_the_round_came_back_unchanged():
    """Its next model is its last one, but for the rounding of a mean."""
    late = paired(slice(1, None), slice(None, -1))
    assert diagnose(MODEL, late).findings[0].cause == "nothing came back changed"


@pytest.mark.very_slow
def test_labels_are_not_named_where_a_round_leaves_them_open():
    """One round of two classes is explained by many labels."""
    one = SEEN.select([0])
    for finding in diagnose(MODEL, one, relabelled([5, 7]), TOLD).findings:
        assert finding.cause != "other labels" or "2 of 80" in finding.evidence


def test_half_precision_that_moves_is_no_unchanged_model():
    model = jax.tree.map(lambda a: jnp.ones((3, 8, 8), jnp.bfloat16) + 0 * a.mean(), SEEN.received)
    noise = np.random.default_rng(0).normal(size=(3, 8, 8))
    small = jax.tree.map(lambda a: a * jnp.asarray(0.001 * noise, jnp.bfloat16), model)
    moved = jax.tree.map(lambda a: a * jnp.asarray(1 + 0.05 * noise, jnp.bfloat16), small)
    messages = Messages(received=small, returned=moved, rounds=jnp.arange(3))
    causes = [finding.cause for finding in numbers_say(messages)]
    assert "nothing came back changed" not in causes
