"""Each condition of a certificate decides alone: what breaks one of them is not certified."""

import dataclasses

import numpy as np
import pytest

from attacks.records import progress, reading
from attacks.records.acceptance import MARGIN, passing
from attacks.records.evidence import Findings
from attacks.records.spans import energy
from tests.attacks.test_records import KEY, MODEL, SCHEMA
from tests.attacks.test_refinement import COUNT, begun, noisy_task, taken

QUIET, LOUD, LOUDER = 1e-9, 1e-5, 1e-4
"""Noise in which all ages show, in which some do not, and in which a year more leaves as little."""


def findings(**changed):
    """Of one record, of one class and one round, that passes every test."""
    right = Findings(
        x=np.zeros((1, 2)),
        deviation=np.zeros((1, 0)),
        looseness=np.zeros((1, 0)),
        off_inputs=np.ones(1),
        off_errors=np.ones((1, 1)),
        whole=np.full((1, 1, 1), 8.0),
        whole_deviation=np.full((1, 1, 1), 1e-9),
        expected=np.ones(1),
    )
    return right._replace(**changed)


def test_a_right_record_passes():
    passed, copies = passing(findings(), 8)
    assert passed.all()
    assert copies.tolist() == [[1]]


@pytest.mark.parametrize(
    "changed",
    [
        {"off_inputs": np.full(1, 1.1 * MARGIN)},
        {"off_errors": np.full((1, 1), 1.1 * MARGIN)},
        {"whole": np.full((1, 1, 1), np.nan)},
        {"whole": np.full((1, 1, 1), 7.9)},
        {"whole_deviation": np.full((1, 1, 1), 1.0)},
    ],
    ids=["inputs", "errors", "not_finite", "weight", "weight_unsure"],
)
def test_each_test_alone_stops_a_record(changed):
    assert not passing(findings(**changed), 8)[0].any()


def test_a_wrong_label_is_stopped_by_its_errors_alone():
    x, y, task = noisy_task(QUIET)
    evidence = progress.evidence_of(task, begun(task), 1)
    seen = reading.examined(MODEL, SCHEMA, evidence, x)
    wrong = np.arange(3) != np.asarray(y)[:, None]
    assert (np.asarray(seen.off_inputs) <= MARGIN).all()
    assert (np.asarray(seen.off_errors)[wrong] > MARGIN).all()
    blind = seen._replace(off_errors=np.zeros_like(seen.off_errors), whole=0 * seen.whole + COUNT)
    assert passing(blind, 0)[0][wrong].all()
    assert not passing(seen, 0)[0][wrong].any()


def test_a_record_of_which_another_value_passes_is_not_certified():
    *_, task = noisy_task(LOUD)
    evidence = progress.evidence_of(task, begun(task, (COUNT, COUNT)), 1)
    passed, _ = reading._pass(task, evidence, evidence, KEY, COUNT)
    opened = np.asarray([bool(columns) for columns in passed.open])
    assert opened.any()
    assert not passed.certified[opened].any()
    assert passed.certified[~opened].all()


@pytest.mark.parametrize(("noise", "settled"), [(QUIET, COUNT), (LOUDER, 0)])
def test_what_is_left_certifies_the_last_records_unless_a_neighbour_leaves_as_little(
    noise, settled
):
    x, y, task = noisy_task(noise)
    opened = dataclasses.replace(taken(x, y, 0.0).uncertified(), open=(("age",),) * len(x))
    start = begun(task, (COUNT, COUNT))
    evidence = progress.evidence_of(task, start, 1)
    rest = energy(progress.without(task, task.gradients, opened, COUNT, evidence))
    last = dataclasses.replace(start, opened=opened, noise=rest)
    answer = reading._settled(task, last, evidence)
    assert len(answer) == settled
    assert answer.certified.all()
    assert not len(reading._settled(task, dataclasses.replace(last, noise=rest / 500), evidence))
