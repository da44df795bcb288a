"""What is right under another round's or record's name is put right by the diagnosis."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import closed_form, diagnose
from attacks.fit import MisfitWarning, Status
from jaxfl import LocalTraining
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
        (SEEN, relabelled([5, 7, 9, 20]), "other labels", "4 of 80 labels"),
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
