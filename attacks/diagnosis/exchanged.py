"""Messages that are right, under another round's or record's name: rounds off by one, one round of
another client, labels that are others than were told.

Threat model: as of `attacks.diagnosis.causes`, which asks.
"""

import dataclasses
import warnings

import jax
import numpy as np

from attacks.attributes.candidate_decoding.closed_form import closed_form
from attacks.diagnosis.advice import LABELS, ONE_ROUND, ROUND_LATE
from attacks.diagnosis.numbers import Finding
from attacks.diagnosis.trials import RecipeTrial, decoded
from attacks.fit import FitWarning, Status
from attacks.path import at_place

FEWEST_ROUNDS, MOST_ROUNDS = 3, 32
"""Rounds of which one may be another client's: of fewer, the others do not tell; of more, a second
wrong one is as likely."""


def exchanged(trial: RecipeTrial) -> Finding | None:
    """What explains the messages once it is put right; nothing if that is none of these."""
    return _round_late(trial) or _one_round(trial) or _labels(trial)


def _round_late(trial: RecipeTrial) -> Finding | None:
    """Models paired with those of the round before or after."""
    seen = trial.messages
    if len(seen) < FEWEST_ROUNDS:
        return None
    for place, received, returned in (
        ("before", slice(None, -1), slice(1, None)),
        ("after", slice(1, None), slice(None, -1)),
    ):
        sent, back = (
            jax.tree.map(lambda a, part=part: a[part], tree)
            for tree, part in ((seen.received, received), (seen.returned, returned))
        )
        shifted = dataclasses.replace(seen, received=sent, returned=back, rounds=seen.rounds[:-1])
        if _explains(dataclasses.replace(trial, messages=shifted)):
            evidence = f"what came back is as told of the model that was sent the round {place}"
            return Finding(ROUND_LATE, evidence, 1.0)
    return None


def _one_round(trial: RecipeTrial) -> Finding | None:
    """A round without which the others are as told: the one that leaves least."""
    numbers = np.asarray(trial.messages.rounds).tolist()
    if not FEWEST_ROUNDS <= len(numbers) <= MOST_ROUNDS:
        return None
    at_centre = at_place(trial.messages, trial.path.centre)

    def left_without(number: int) -> float:
        others = [n for n in numbers if n != number]
        return float(
            decoded(trial.of_gradients, at_centre.select(others), trial.knowledge).residual
        )

    left = {number: left_without(number) for number in numbers}
    odd = min(left, key=lambda number: np.nan_to_num(left[number], nan=np.inf))
    rest = trial.messages.select([n for n in numbers if n != odd])
    if not _explains(dataclasses.replace(trial, messages=rest)):
        return None
    evidence = f"without round {odd} the others are as told: it is another client's, or was changed"
    return Finding(ONE_ROUND, evidence, 1.0)


def _labels(trial: RecipeTrial) -> Finding | None:
    """Other labels than were told, of one full-batch step: those that the messages tell explain
    them."""
    knowledge = trial.knowledge
    if knowledge.y is None or trial.model.classes is None:
        return None
    if trial.training.steps(len(knowledge.x)) > 1 or np.ndim(knowledge.y) != 1:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        unknown = dataclasses.replace(knowledge, y=None)
        answer = closed_form(trial.model, trial.messages, unknown)
    if answer.status != Status.OK or answer.labels is None:
        return None
    told, read = np.asarray(knowledge.y), np.asarray(answer.labels)
    wrong = np.flatnonzero(told != read)
    right = dataclasses.replace(knowledge, y=answer.labels)
    if not len(wrong) or not _explains(dataclasses.replace(trial, knowledge=right)):
        return None
    which = ", ".join(f"record {k} is {read[k]} and not {told[k]}" for k in wrong[:3])
    evidence = f"{len(wrong)} of {len(told)} labels are others than told: {which}"
    return Finding(LABELS, evidence, 1.0)


def _explains(trial: RecipeTrial) -> bool:
    fit = trial.fit()
    return bool(fit.misfit <= 1 and fit.allowed > 0)
