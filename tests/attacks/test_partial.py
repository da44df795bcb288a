"""Decoding some of a client's records among others: agreement with least squares written out, what
is read of which share, and what is refused."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from attacks import (
    FitWarning,
    Knowledge,
    PartialDecoding,
    Status,
    UnknownColumn,
    binary_column,
    decode_partial,
)
from attacks.attributes.candidate_decoding import partial
from attacks.attributes.candidate_decoding.candidates import candidate_records
from attacks.attributes.candidate_decoding.public_records import held_out_of
from jaxfl import DPSGD, Federated, LocalTraining, sgd, simulate, stack_clients
from tests.attacks.partly_known import MODEL, PUBLIC, ROUNDS, people

RECORDS, KNOWN = 60, 30
OTHERS = RECORDS - KNOWN
RECIPE = LocalTraining(0.3)


def client(recipe=RECIPE, seed=0, rounds=ROUNDS):
    """Messages, what is known of the first records, their truth, and public ones."""
    (x, y), public = people(seed, RECORDS), people(seed + 100, PUBLIC)
    clients = stack_clients([(x, y), people(seed + 200, RECORDS)])
    key = jax.random.key(seed)
    run = simulate(MODEL, MODEL.init(key), clients, key, Federated(rounds, recipe))
    known = x[:KNOWN].copy()
    known[:, 4] = np.nan
    return run, Knowledge(known, y[:KNOWN], (binary_column(4, 0.5),)), x[:KNOWN, 4], public


def decoded(recipe=RECIPE, told=None, victim=0, seed=0, held=KNOWN, others=None):
    run, known, truth, public = client(recipe, seed)
    known = dataclasses.replace(known, x=known.x[:held], y=known.y[:held])
    others = RECORDS - held if others is None else others
    settings = PartialDecoding(others, recipe if told is None else told)
    answer = decode_partial(MODEL, run.messages(victim), known, *public, settings=settings)
    return answer, float((np.asarray(answer.values[0]) == truth[:held]).mean())


def test_half_of_the_records_are_read_with_nothing_known_of_the_others():
    answers = [decoded(seed=seed) for seed in range(3)]
    assert np.mean([accuracy for _, accuracy in answers]) > 0.9
    assert all(answer.status == Status.OK for answer, _ in answers)


def test_public_records_hold_candidates_of_the_unknown_column():
    run, known, _, (x, y) = client()
    settings, messages = PartialDecoding(OTHERS, RECIPE), run.messages(0)
    for low, high in ((1, 2), (-1, 1), (0, 100)):
        column = UnknownColumn(jnp.asarray([4]), jnp.asarray([[low], [high]]))
        told = dataclasses.replace(known, columns=(column,))
        with pytest.raises(ValueError, match=r"x_public\[\d+\] holds .* none of its candidates"):
            decode_partial(MODEL, messages, told, x, y, settings=settings)
    x[:, 4] = 0
    with pytest.warns(FitWarning, match="Is the column missing there"):
        decode_partial(MODEL, messages, known, x, y, settings=settings)


@pytest.mark.parametrize(
    "recipe",
    [
        LocalTraining(0.1, epochs=3),
        LocalTraining(0.3, optimizer=sgd(weight_decay=0.1)),
        LocalTraining(0.05, epochs=3, optimizer=sgd(0.9, 1e-2)),
    ],
    ids=["epochs", "decay", "momentum"],
)
def test_of_other_full_batch_steps_too(recipe):
    answer, accuracy = decoded(recipe)
    assert answer.status == Status.OK
    assert accuracy > 0.85  # of 30 fair bits


def test_copies_of_public_records_change_little():
    """As where they are drawn with repetition: a copy of a held-out one would say that there is no
    noise."""
    run, known, truth, (x, y) = client()
    settings = PartialDecoding(OTHERS, RECIPE)
    often = np.repeat(np.arange(PUBLIC), 2)
    answer = decode_partial(MODEL, run.messages(0), known, x[often], y[often], settings=settings)
    assert answer.status == Status.OK
    assert (np.asarray(answer.values[0]) == truth).mean() > 0.85


@pytest.mark.parametrize(
    ("recipe", "victim"),
    [(LocalTraining(0.6), 0), (RECIPE, 1), (LocalTraining(0.3, batch_size=15), 0)],
)
def test_another_rate_client_or_batches_are_a_misfit(recipe, victim):
    with pytest.warns(UserWarning, match="decode_partial"):
        answer, _ = decoded(recipe, RECIPE, victim)
    assert answer.status == Status.MISFIT


@pytest.mark.slow
@pytest.mark.parametrize("held", [10, 4])
def test_that_few_known_records_are_not_there_is_no_clean_bill(held):
    """What they add tells, whatever their values; where they are too few for that, it is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        states = [
            [int(decoded(victim=v, seed=s, held=held)[0].status) for s in range(4)] for v in (0, 1)
        ]
    right, another = states
    assert Status.MISFIT not in right
    assert Status.OK not in another
    assert another.count(Status.MISFIT) >= 3
    assert Status.OK in right if held == 10 else set(right) == {Status.UNCHECKED}


@pytest.mark.parametrize("others", [OTHERS // 2, 2 * OTHERS])
def test_another_number_of_others_is_a_misfit(others):
    with pytest.warns(UserWarning, match="decode_partial"):
        answer, _ = decoded(others=others)
    assert answer.status == Status.MISFIT


def written_out(messages, x, y):
    """Gradients of records at all models that were received, one after another `[records, ...]`."""

    def loss(params, x, y):
        return MODEL.loss(MODEL.apply(params, x[None]), y[None])[0]

    each = jax.vmap(jax.grad(loss), (None, 0, 0))
    models = [jax.tree.map(lambda a, t=t: a[t], messages.received) for t in range(len(messages))]
    flat = [jax.vmap(lambda g: ravel_pytree(g)[0])(each(params, x, y)) for params in models]
    return np.concatenate(flat, 1)


def in_64_bits(tree):
    return jax.tree.map(
        lambda a: jnp.asarray(a, float) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree
    )


@pytest.mark.very_slow
def test_it_is_least_squares_with_the_public_records_covariance():
    run, known, _, public = client(rounds=2)
    settings = PartialDecoding(OTHERS, RECIPE)
    with jax.enable_x64(True):
        messages, known, public = in_64_bits((run.messages(0), known, public))
        x, y = candidate_records(MODEL, known)
        products = partial._products(MODEL, messages, (x, y), public, settings)
        least = 1e-3 * products.inner[0, 0]
        seen = jax.tree.map(
            np.asarray,
            partial._whitened(products, (KNOWN, 2), held_out_of(*public), OTHERS, least),
        )
        first, other, theirs = (
            written_out(messages, *each)
            for each in ((x[:, 0], y[:, 0]), (x[:, 1], y[:, 1]), public)
        )
        sent = jax.vmap(lambda u: ravel_pytree(u)[0])(messages.pseudo_gradient).reshape(-1)
    _, fitted = held_out_of(*public)
    mean = theirs[fitted].mean(0)
    covariance = OTHERS * np.cov(theirs[fitted].T, bias=True)
    left = np.asarray(sent) * RECORDS / 0.3 - first.sum(0) - OTHERS * mean
    differences = other - first

    def apart(floor):
        """By how much what is read differs from least squares with this floor."""
        inverse = np.linalg.inv(covariance + floor * np.eye(len(mean)))
        rows = np.concatenate([differences, left[None]])
        wanted = differences @ inverse @ rows.T
        places = [*range(KNOWN), -2]
        return np.abs(seen.metric[:KNOWN, places] - wanted).max() / np.abs(wanted).max()

    floors = np.trace(covariance) * np.asarray(partial.FLOORS) + float(least)
    assert min(map(apart, floors)) < 1e-6


def test_the_order_of_rounds_does_not_matter():
    run, known, _, public = client()
    settings = PartialDecoding(OTHERS, RECIPE)
    whole = run.messages(0)
    turned = whole.select(list(range(ROUNDS))[::-1])
    answers = [
        decode_partial(MODEL, seen, known, *public, settings=settings) for seen in (whole, turned)
    ]
    np.testing.assert_allclose(answers[0].scores[0], answers[1].scores[0], atol=1e-4)


def test_what_it_cannot_read_is_refused():
    run, known, _, (x, y) = client()
    call = {"model": MODEL, "messages": run.messages(0), "knowledge": known}
    call |= {"x_public": x, "y_public": y}
    refused = {
        "batch_size=16": LocalTraining(0.3, batch_size=16),
        "batch_size=50": LocalTraining(0.3, batch_size=50, drop_last=True),
        "plugins": dataclasses.replace(RECIPE, plugins=(DPSGD(1.0, 1.0),)),
    }
    for words, recipe in refused.items():
        with pytest.raises(ValueError, match=words):
            decode_partial(**call, settings=PartialDecoding(OTHERS, recipe))
    settings = PartialDecoding(OTHERS, RECIPE)
    with pytest.raises(ValueError, match="x_public has 19 records"):
        decode_partial(**call | {"x_public": x[:19], "y_public": y[:19]}, settings=settings)
    for labels in (y + 3, np.eye(3)[y]):
        with pytest.raises(ValueError, match="y_public"):
            decode_partial(**call | {"y_public": labels}, settings=settings)
