"""Each condition of a certificate decides alone: what breaks one of them is not certified."""

import dataclasses

import jax
import numpy as np
import pytest

from attacks import Status, reconstruct_records
from attacks.records import progress, reading
from attacks.records.acceptance import Passed, passing
from attacks.records.evidence import UNBOUNDED, Findings, _variances
from attacks.records.spans import MARGIN, energy
from jaxfl import (
    Federated,
    Listed,
    LocalTraining,
    Measured,
    Messages,
    Schema,
    mean_loss,
    mlp,
    simulate,
    stack_clients,
)
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


def test_numbers_that_no_message_bounds_have_no_bound():
    slopes = np.asarray([[1e15, 2e15], [2e15, 4e15], [3e15, 6e15]])
    with jax.enable_x64(True):
        of_one_equation = np.asarray(_variances(slopes, np.zeros((2, 2))))
        told = np.asarray(_variances(np.eye(2) * [1e3, 1e9], np.zeros((2, 2))))
        of_noise = np.asarray(_variances(np.eye(2) * [1e9, 5.0], np.eye(2)))
    assert (of_one_equation > 1).all()
    np.testing.assert_allclose(told, [1e-6, 1e-18], rtol=0.2)
    assert of_noise[0] < 1e-17
    assert of_noise[1] == UNBOUNDED**2


@pytest.mark.parametrize("one_hidden", [False, pytest.param(True, marks=pytest.mark.very_slow)])
@pytest.mark.slow
def test_of_averaged_clients_whose_span_leaves_numbers_free_no_number_is_certified(one_hidden):
    """Twelve records in thirteen dimensions: any can be moved along some direction of numbers."""
    rng = np.random.default_rng(0)
    model, schema = mlp(16, (64,) if one_hidden else (40, 40), 2), narrow_schema()
    x, y = records_of(schema, 12, rng), rng.integers(0, 2, 12)
    training = LocalTraining(0.1, epochs=2, batch_size=4)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda a: np.asarray(a, np.float64), model.init(KEY))
        run = simulate(model, params, stack_clients([(x, y)]), KEY, Federated(1, training))
        answer = reconstruct_records(model, run.messages(0), schema, training, KEY)
    assert len(answer)
    assert not answer.certified.any()
    assert all({"age", "income"} <= set(columns) for columns in answer.open)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"income": {"whole": True}}, "'income' is whole by the schema and"),
        ({"age": {"deviation": 15.0}}, "'age' is whole by the schema and"),
    ],
)
@pytest.mark.slow
def test_numbers_that_are_not_whole_are_not_rounded_and_certified(told, says):
    rng = np.random.default_rng(1)
    schema, model = narrow_schema(), mlp(16, (40, 40), 2)
    x, y = records_of(schema, 8, rng), rng.integers(0, 2, 8)
    measured = [dataclasses.replace(a, **told.get(a.column, {})) for a in schema.measured]
    answer = read_one_gradient(model, dataclasses.replace(schema, measured=tuple(measured)), x, y)
    assert answer.status == Status.MISFIT
    assert says in answer.reason
    theirs = np.abs(answer.x[answer.certified][:, None] - x).max(2)
    assert theirs.min(1, initial=1).max(initial=0) < 1e-9
    assert read_one_gradient(model, schema, x, y).complete


@pytest.mark.slow
def test_a_range_that_is_too_narrow_is_said_to_be():
    rng = np.random.default_rng(0)
    schema, model = narrow_schema(), mlp(16, (40, 40), 2)
    x, y = records_of(schema, 8, rng), rng.integers(0, 2, 8)
    age, income = schema.measured
    narrow = dataclasses.replace(schema, measured=(dataclasses.replace(age, high=60.0), income))
    answer = read_one_gradient(model, narrow, x, y)
    assert answer.complete
    assert "'age' is" in answer.reason
    assert "beyond the schema's 18 to 60" in answer.reason
    assert "beyond" not in read_one_gradient(model, schema, x, y).reason


def narrow_schema():
    """Fourteen columns of four categories, an age and an income."""
    listed, place = [], 0
    for name, count in zip("abcd", (3, 4, 5, 2), strict=True):
        values = tuple((f"{name}{k}",) for k in range(count))
        positions = tuple(range(place, place + count))
        listed.append(Listed((name,), positions, np.eye(count), values))
        place += count
    age = Measured("age", 14, 18.0, 90.0, 50.0, 20.0, whole=True)
    return Schema(16, tuple(listed), (age, Measured("income", 15, 0.0, 100.0, 50.0, 30.0)))


def records_of(schema, count, rng):
    places = np.stack([rng.integers(0, len(a.looks), count) for a in schema.listed], 1)
    age, income = schema.measured
    numbers = age.feature(rng.integers(18, 91, count)), income.feature(rng.uniform(0, 100, count))
    return schema.records(places, np.stack(numbers, 1))


def read_one_gradient(model, schema, x, y):
    with jax.enable_x64(True):
        params = jax.tree.map(lambda a: np.asarray(a, np.float64), model.init(KEY))
        gradient = jax.grad(lambda p: mean_loss(model, p, x, y))(params)
        seen = Messages.from_gradients(*jax.tree.map(lambda a: a[None], (params, gradient)))
        return reconstruct_records(model, seen, schema, LocalTraining(1.0), KEY)


def test_a_record_with_more_columns_open_is_certified_no_more():
    two = dataclasses.replace(
        Passed.none(narrow_schema()),
        x=np.zeros((2, 16)),
        certified=np.ones(2, bool),
        open=((), ("a",)),
    )
    opened = two.opened([set(), {"age"}])
    assert opened.certified.tolist() == [True, False]
    assert opened.open == ((), ("a", "age"))
