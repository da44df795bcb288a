"""Membership: closed forms, success where a client has fitted its records or sends one gradient,
failure where not."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import (
    ClosedForm,
    Knowledge,
    MisfitWarning,
    Status,
    UncheckedWarning,
    binary_column,
    candidate_records,
    closed_form,
    decode_membership,
    gradient_variance,
    split_variances,
    variance_mixture,
)
from attacks.membership.alike import warn_of_alike
from attacks.metrics import detection
from benchmarks.harness.jobs import Job
from benchmarks.measurements import membership
from benchmarks.suites.specimens import specimen_of
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients
from tests.benchmarks.cells import cell_of, outcomes_of

N, D = 40, 30
MODEL = mlp(D, (64,), 3)
COLUMN = binary_column(6, 0.4)


def make_world(seed=0, rounds=5, rate=0.1, equal=()):
    """A victim's messages, and its records followed by as many that it never saw; the second of
    each of the pairs that are `equal` is the first."""
    rng = np.random.default_rng(seed)
    x = (rng.random((2 * N, D)) < 0.4).astype(np.float32)
    y = rng.integers(0, 3, 2 * N)
    for one, other in equal:
        x[other], y[other] = x[one], y[one]
    key = jax.random.key(seed)
    federated = Federated(rounds=rounds, training=LocalTraining(rate))
    messages = simulate(
        MODEL, MODEL.init(key), stack_clients([(x[:N], y[:N])]), key, federated
    ).messages(0)
    return Knowledge(jnp.asarray(x), jnp.asarray(y), (COLUMN,)), x[:, 6].astype(int), messages


TRUTH = np.arange(2 * N) < N


def test_variance_is_that_of_the_last_layers_gradient():
    knowledge, _, messages = make_world()
    params = jax.tree.map(lambda a: a[-1], messages.returned)
    x, y = candidate_records(MODEL, knowledge)
    found = gradient_variance(MODEL, params, x, y)

    def direct(x, y):
        gradient = jax.grad(lambda p: MODEL.loss(MODEL.apply(p, x[None]), y[None]).sum())(params)
        return gradient["Dense_1"]["kernel"].var()

    expected = jax.vmap(jax.vmap(direct))(x, y)
    assert found.shape == (2 * N, 2)
    assert np.allclose(found, expected, rtol=1e-4)


def test_the_mixture_finds_members_once_the_victim_has_fitted_them_and_not_before():
    knowledge, _, messages = make_world(rounds=400, rate=1.0)
    found = variance_mixture(MODEL, messages, knowledge)
    assert found.status == Status.OK
    assert (found.members == TRUTH).mean() > 0.85
    assert (found.candidates == TRUTH[:, None]).mean() > 0.8
    assert detection(found.scores, TRUTH).auc > 0.9
    areas = []
    for seed in range(8):
        knowledge, _, messages = make_world(seed, rounds=1, rate=0.01)
        with pytest.warns(MisfitWarning, match="vary as one group") as warned:
            answer = variance_mixture(MODEL, messages, knowledge)
        assert {w.filename for w in warned} == {__file__}
        assert answer.status == Status.MISFIT
        areas.append(detection(answer.scores, TRUTH).auc)
    assert abs(np.mean(areas) - 0.5) < 0.1


@pytest.mark.parametrize("rate", [0.1, None])
def test_decoding_finds_members_and_attribute_from_the_first_rounds(rate):
    knowledge, truth, messages = make_world()
    found, decoding = decode_membership(MODEL, messages, knowledge, N, settings=ClosedForm(rate))
    assert (found.members == TRUTH).all()
    assert np.allclose(found.scores, TRUTH, atol=1e-2)
    assert (np.asarray(decoding.values[0])[:N] == truth[:N]).all()
    assert decoding.learning_rate == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("rate", [0.1, None])
@pytest.mark.parametrize("told", [N // 2, N + N // 2])
def test_another_number_of_members_is_a_misfit(told, rate):
    """It divides all weights: half of the members are half there, and explain the messages."""
    knowledge, _, messages = make_world()
    with pytest.warns(MisfitWarning):
        found, decoding = decode_membership(
            MODEL, messages, knowledge, told, settings=ClosedForm(rate)
        )
    assert np.allclose(found.scores, N / told * TRUTH * (told / N) ** 2, atol=1e-2)
    assert decoding.fit.misfit > 100


@pytest.mark.filterwarnings("ignore::attacks.SomeWrongWarning")
def test_a_right_number_of_members_is_no_misfit_where_the_rate_is_blurred():
    """Three records that the model has fitted hardly say how much they weigh, and the rate that is
    not told is of all weights' sum."""
    rng, key = np.random.default_rng(0), jax.random.key(0)
    x = (rng.random((2 * N, D)) < 0.4).astype(np.float32)
    y = rng.integers(0, 3, 2 * N)
    easy = np.r_[0:3, N : N + 3]
    x[:, 0], y[easy] = 0, 0
    x[easy, 0] = 6
    federated = Federated(200, LocalTraining(0.3))
    run = simulate(MODEL, MODEL.init(key), stack_clients([(x[:N], y[:N])]), key, federated)
    messages = run.messages(0).select(range(195, 200))
    known = Knowledge(jnp.asarray(x), jnp.asarray(y), (COLUMN,))
    membership, decoding = decode_membership(MODEL, messages, known, N)
    assert (membership.members == TRUTH).all()
    assert decoding.fit.misfit < 0.1


def test_without_strangers_absence_changes_nothing():
    knowledge, _, messages = make_world()
    own = Knowledge(knowledge.x[:N], knowledge.y[:N], knowledge.columns)
    plain = closed_form(MODEL, messages, own, settings=ClosedForm(0.1))
    absent = closed_form(MODEL, messages, own, members=N, settings=ClosedForm(0.1))
    assert np.allclose(plain.scores[0], absent.scores[0], atol=1e-3)
    assert np.allclose(absent.presence, 1, atol=1e-3)
    assert plain.presence is None


def test_decoding_another_clients_messages_tells_nothing():
    areas = []
    for seed in range(8):
        knowledge, _, _ = make_world(seed)
        _, _, wrong = make_world(seed + 50)
        with pytest.warns(MisfitWarning):
            membership, _ = decode_membership(MODEL, wrong, knowledge, N, settings=ClosedForm(0.1))
        areas.append(detection(membership.scores, TRUTH).auc)
    assert abs(np.mean(areas) - 0.5) < 0.1


def test_detection_on_known_scores():
    truth = np.array([True] * 100 + [False] * 100)
    assert jax.tree.leaves(detection(np.where(truth, 1.0, 0.0), truth)) == [1.0, 1.0]
    assert jax.tree.leaves(detection(np.zeros(200), truth)) == [0.5, 0.0]
    scores = np.concatenate(
        [np.linspace(1, 2, 100), np.linspace(0, 1.5, 100)]
    )  # half of the members above all others
    assert detection(scores, truth).tpr == pytest.approx(0.5, abs=0.02)
    assert np.isnan(detection(np.full(200, np.nan), truth).auc)


@pytest.mark.filterwarnings("ignore::attacks.SomeWrongWarning")
def test_an_unknown_rate_pulls_to_the_same_prior():
    """Fewer equations than unknowns: the ridge decides, and must not take weights for their product
    with the rate."""
    narrow = mlp(D, (6,), 3)
    rng = np.random.default_rng(0)
    x, y = (rng.random((2 * N, D)) < 0.4).astype(np.float32), rng.integers(0, 3, 2 * N)
    federated = Federated(rounds=1, training=LocalTraining(0.01))
    run = simulate(
        narrow,
        narrow.init(jax.random.key(0)),
        stack_clients([(x[:N], y[:N])]),
        jax.random.key(0),
        federated,
    )
    known = Knowledge(x, y, (COLUMN,))
    scores = [
        decode_membership(narrow, run.messages(0), known, N, settings=ClosedForm(rate))[0].scores
        for rate in (0.01, None)
    ]
    areas = [detection(s, TRUTH).auc for s in scores]
    assert areas[1] == pytest.approx(areas[0], abs=0.01)


def test_failure_is_data():
    with pytest.raises(ValueError, match="variance holds -2"):
        split_variances(np.array([[1.0, -2.0], [2.0, 1.0]]))
    found = split_variances(np.array([[1.0, np.nan], [2.0, 1.0]]))
    assert found.status == 1
    assert not found.members.any()
    knowledge, _, messages = make_world(rate=1e30)
    assert decode_membership(MODEL, messages, knowledge, N, settings=ClosedForm(0.1))[0].status == 1


def table_cell(dataset, **changes):
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    attacks = {"mixture": {"steps": changes.pop("steps")}}
    cell = cell_of("lyu2021/table11", changes, attacks)
    return dataclasses.replace(cell, dataset=dataset)


@pytest.mark.slow
def test_one_diverged_member_leaves_the_others_alone():
    shared = {"attribute": 0, "records": 20, "phases": ("pre2",), "rounds": 3, "steps": 5}
    shared["training__batch_size"] = None
    cells = {
        r: table_cell("breast_cancer", training__learning_rate=r, **shared) for r in (0.1, 1e30)
    }
    methods = [method.name for method in cells[0.1].experiment.methods]
    jobs = [Job(cell, method, 0) for method in methods for cell in cells.values()]
    outcomes = outcomes_of(jobs)
    assert {o.job.method for o in outcomes if o.status == "diverged"} == set(methods)
    assert all(o.value is None for o in outcomes if o.job.cell == cells[1e30])
    assert all(o.value is not None for o in outcomes if o.job.cell == cells[0.1])
    other = table_cell("breast_cancer", **(shared | {"phases": ("pre5",)}))
    program = other.experiment.program_of
    assert program(cells[0.1].settings) == program(cells[1e30].settings)
    assert program(cells[0.1].settings) != program(other.settings)


def test_bad_input():
    knowledge, _, messages = make_world()
    with pytest.raises(
        ValueError, match=r"members=81 must lie between 1 and the number of records, 80"
    ):
        decode_membership(MODEL, messages, knowledge, 81)
    with pytest.raises(ValueError, match="x has 1 record"):
        variance_mixture(
            MODEL, messages, Knowledge(knowledge.x[:1], knowledge.y[:1], knowledge.columns)
        )
    with pytest.raises(ValueError, match="variance_mixture needs known labels"):
        variance_mixture(MODEL, messages, Knowledge(knowledge.x, None, knowledge.columns))


@pytest.mark.very_slow
def test_the_table_scores_both_methods_on_the_same_victims(data_dir):
    changes = {"attribute": 69, "records": 30, "rounds": 60, "training__learning_rate": 1.0}
    cell = table_cell("location30", training__batch_size=None, steps=50, **changes)
    jobs = [Job(cell, m.name, seed) for m in cell.experiment.methods for seed in (0, 1)]
    outcomes = outcomes_of(jobs, data_dir)
    values = {(o.job.method, o.metric): o.value for o in outcomes if o.job.seed == 0}
    assert values["closed_form", "accuracy"] == 1.0
    assert values["closed_form", "attribute_accuracy"] == 1.0
    assert {metric for method, metric in values if method == "mixture"} == {
        *("accuracy", "candidate_accuracy", "auc", "tpr_at_fpr_0.01", "attribute_accuracy"),
    }
    assert all(0 <= v <= 1 for v in values.values())
    assert jnp.isfinite(jnp.asarray(list(values.values()))).all()


@pytest.mark.parametrize("spread", [0.0, 1e-13])
def test_variances_that_are_alike_are_no_two_groups(spread):
    variance = 1 + spread * np.random.default_rng(0).random((20, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn says that it sees one group too
        answer = split_variances(variance)
    assert answer.status == 1
    assert not answer.members.any()
    assert np.isnan(answer.scores).all()


@pytest.mark.slow
def test_victims_of_different_attributes_share_a_run():
    """Each has its own attribute hidden, and no other."""
    cell = specimen_of(membership.EXPERIMENT, "closed_form")
    cells = [
        dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, attribute=attribute))
        for attribute in (0, 20)
    ]

    def rows(of):
        outcomes = outcomes_of([Job(each, "closed_form", 0) for each in of])
        return {(o.job.cell, o.metric): (o.value, o.status) for o in outcomes}

    together = rows(cells)
    assert {status for _, status in together.values()} == {"ok"}
    assert together == rows(cells[:1]) | rows(cells[1:])


def test_noise_of_few_records_is_no_two_groups():
    """It falls into two more often than not, and nothing is said for sure."""
    rng = np.random.default_rng(0)
    told = [split_variances(np.exp(rng.normal(size=(8, 2)))).status for _ in range(20)]
    assert set(told) == {Status.MISFIT, Status.UNCHECKED}
    knowledge, _, messages = make_world(rounds=1, rate=0.01)
    few = Knowledge(knowledge.x[:8], knowledge.y[:8], knowledge.columns)
    with pytest.warns((MisfitWarning, UncheckedWarning)):
        assert variance_mixture(MODEL, messages, few).status != Status.OK


@pytest.mark.parametrize(
    ("weights", "warned"),
    [
        ([0.5, 0.5, 1, 0], True),
        ([0.33, 0.33, 0.33, 0], True),
        ([0.89] * 4, False),
        ([0.12] * 4, False),
        ([0.02, 0.03, 1, 1], False),
    ],
)
def test_equal_records_are_doubted_where_some_are_members(weights, warned):
    x, y = np.zeros((4, 2)), np.asarray([0, 0, 0, 1] if weights[2] == 0.33 else [0, 0, 1, 2])
    if len(set(weights)) == 1:
        y = np.zeros(4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_of_alike("attack", x, y, np.asarray(weights)[:, None])
    assert bool(said) == warned


def test_equal_records_of_which_one_is_a_member_are_said_to_be_a_guess():
    """And equal members are not: whichever is which."""
    knowledge, _, messages = make_world(rounds=6, rate=0.1, equal=((0, N), (1, 2)))
    with pytest.warns(UncheckedWarning, match=f"2 records are equal .* first: 0, {N}") as warned:
        membership, _ = decode_membership(MODEL, messages, knowledge, N, settings=ClosedForm(0.1))
    assert {w.filename for w in warned} == {__file__}
    assert np.allclose(membership.scores[[0, N]], 0.5, atol=0.05)
    others = np.setdiff1d(np.arange(2 * N), [0, N])
    assert (membership.members == TRUTH)[others].all()
