"""A numeric column of many values: read whole, by a shortlist, told or not told the rate, over many
clients at once; and not where nothing is."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import ClosedForm, FitWarning, Knowledge, Status, UnknownColumn, closed_form
from attacks.attributes.candidate_decoding import shortlist
from attacks.attributes.candidate_decoding.candidates import candidate_records
from attacks.attributes.candidate_decoding.normal_equations import solve_small
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients

RECORDS, FEATURES, VALUES, COLUMN, RATE = 40, 10, 41, 3, 0.3
MODEL = mlp(FEATURES, (24,), 2)
NUMBERS = np.linspace(-2, 2, VALUES).astype(np.float32)


def records(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    truth = rng.integers(0, VALUES, RECORDS)
    x[:, COLUMN] = scale * NUMBERS[truth]
    return x, (x.sum(1) + rng.normal(size=RECORDS) > 0).astype(int), truth


def client(seed=0, rounds=20, scale=1.0):
    """A run's messages of two clients, what is known of the first, and its truth."""
    (x, y, truth), (x_other, y_other, _) = (records(s, scale) for s in (seed, seed + 50))
    clients = stack_clients([(x, y), (x_other, y_other)])
    key = jax.random.key(seed)
    federated = Federated(rounds, LocalTraining(RATE))
    run = simulate(MODEL, MODEL.init(key), clients, key, federated)
    x[:, COLUMN] = np.nan
    column = UnknownColumn(jnp.asarray([COLUMN]), jnp.asarray(scale * NUMBERS[:, None]))
    return run, Knowledge(jnp.asarray(x), jnp.asarray(y), (column,)), truth


def right(answer, truth):
    return float((np.asarray(answer.values[0]) == truth).mean())


@pytest.mark.parametrize(
    "settings",
    [ClosedForm(learning_rate=RATE), ClosedForm(), ClosedForm(by_round=True)],
    ids=["rate", "no rate", "by round"],
)
def test_every_value_is_read(settings):
    run, known, truth = client()
    answer = closed_form(MODEL, run.messages(0), known, settings=settings)
    assert right(answer, truth) == 1
    assert answer.status == Status.OK
    assert answer.scores[0].shape == (RECORDS, VALUES)
    np.testing.assert_allclose(answer.learning_rate, RATE, rtol=1e-4)


@pytest.mark.slow
def test_over_many_clients_at_once_it_ends_and_answers_the_same():
    """Batches of LAPACK's calls once waited for each other for ever."""
    victims = [client(seed) for seed in range(3)]
    messages, known = (
        jax.tree.map(lambda *a: jnp.stack(a), *each)
        for each in zip(*((run.messages(0), known) for run, known, _ in victims), strict=True)
    )
    settings = ClosedForm(learning_rate=RATE)
    with jax.enable_x64(True):
        every = jax.jit(jax.vmap(lambda m, k: closed_form(MODEL, m, k, settings=settings)))
        answers = every(messages, known)
    for place, (_, _, truth) in enumerate(victims):
        assert right(jax.tree.map(lambda a, i=place: a[i], answers), truth) == 1


def test_another_clients_messages_are_a_misfit():
    run, known, truth = client()
    with pytest.warns(UserWarning, match="closed_form"):
        answer = closed_form(MODEL, run.messages(1), known, settings=ClosedForm(RATE))
    assert answer.status == Status.MISFIT
    assert right(answer, truth) < 0.2  # one of 41 by guessing


def test_a_prior_that_rules_values_out_changes_nothing():
    run, known, truth = client()
    prior = np.where(np.isin(np.arange(VALUES), truth), 1.0, 0.0)
    column = known.columns[0].replace(prior=jnp.asarray(prior / prior.sum(), jnp.float32))
    settings = ClosedForm(learning_rate=RATE)
    told = known.replace(columns=(column,))
    answer = closed_form(MODEL, run.messages(0), told, settings=settings)
    assert right(answer, truth) == 1


def test_the_order_of_values_does_not_matter():
    run, known, truth = client()
    order = np.random.default_rng(0).permutation(VALUES)
    column = known.columns[0].replace(candidates=known.columns[0].candidates[order])
    told = known.replace(columns=(column,))
    answer = closed_form(MODEL, run.messages(0), told, settings=ClosedForm(learning_rate=RATE))
    np.testing.assert_array_equal(order[np.asarray(answer.values[0])], truth)


@pytest.mark.very_slow
def test_too_few_equations_are_no_misfit():
    """A value that is not listed may explain what those on the list do not."""
    for seed in range(4):
        run, known, _ = client(seed, rounds=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            answer = closed_form(MODEL, run.messages(0), known, settings=ClosedForm(RATE))
        assert answer.status in (Status.OK, Status.UNCHECKED)


@pytest.mark.slow
def test_under_jit_what_a_list_does_not_explain_is_unchecked():
    """There is no way to ask all values: another client's messages have values on no list."""
    run, known, _ = client()
    with jax.enable_x64(True):
        ask = jax.jit(lambda m, k: closed_form(MODEL, m, k, settings=ClosedForm(RATE)))
        own, another = (ask(run.messages(c), known) for c in (0, 1))
    assert (own.status, another.status) == (Status.OK, Status.UNCHECKED)


def test_a_poor_answer_of_a_column_that_is_not_scaled_is_not_called_good():
    """Twelve gradients do not span those of numbers far from the other columns'."""
    run, known, truth = client(scale=20.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        answer = closed_form(MODEL, run.messages(0), known, settings=ClosedForm(RATE))
    good = answer.fit.explained >= answer.fit.allowed
    assert right(answer, truth) == 1 or not good or answer.status != Status.OK


def test_values_named_twice_are_not_listed():
    _, known, _ = client()
    values = known.columns[0].candidates
    column = known.columns[0].replace(candidates=jnp.concatenate([values, values[:1]]))
    assert not shortlist.is_needed(MODEL, known.replace(columns=(column,)), 8000)


def test_categories_are_not_listed():
    """Values that stand in a feature each have no order."""
    _, known, _ = client()
    assert shortlist.is_needed(MODEL, known, 8000)
    few = dataclasses.replace(known.columns[0], candidates=known.columns[0].candidates[:16])
    wide = UnknownColumn(jnp.arange(20) % FEATURES, jnp.eye(20))
    for column in (few, wide):
        assert not shortlist.is_needed(MODEL, known.replace(columns=(column,)), 8000)
    assert not shortlist.is_needed(MODEL, known, 100)
    assert not shortlist.is_needed(MODEL, known.replace(y=None), 8000)


def test_combinations_of_listed_values_are_the_nearest():
    """By least squares on gradients that are written out."""
    run, known, _ = client(rounds=2)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: a.astype(float), (run.messages(0).received, known.x))
        messages = run.messages(0).replace(received=wide[0])
        x, y = candidate_records(MODEL, known.replace(x=wide[1]))
        inner = shortlist._own_products(MODEL, messages, x.astype(float), y)[:1]
        places = jnp.asarray([[0, 5, 20, 40]])
        combined = np.asarray(shortlist._combined(inner, places))[0]
        values, vectors = np.linalg.eigh(inner[0])
    rows = (vectors * np.sqrt(np.maximum(values, 0))).astype(float)  # rows @ rows.T = inner
    basis = (rows[[5, 20, 40]] - rows[0]).T
    wanted = np.linalg.lstsq(basis, (rows - rows[0]).T, rcond=None)[0].T
    np.testing.assert_allclose(combined, wanted, atol=1e-4)


def test_small_systems_are_solved():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 7, 7)), rng.normal(size=(5, 7, 3))
    a = a @ a.swapaxes(1, 2) + 0.1 * np.eye(7)
    with jax.enable_x64(True):
        solved = solve_small(jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_allclose(solved, np.linalg.solve(a, b), rtol=1e-8)
