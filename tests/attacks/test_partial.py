"""Decoding some of a client's records among others: agreement with least squares written out, what
is read of which share, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from attacks import Knowledge, PartialDecoding, Status, binary_column, decode_partial
from attacks.attributes.candidate_decoding import partial
from attacks.attributes.candidate_decoding.candidates import candidate_records
from jaxfl import DPSGD, Federated, LocalTraining, mlp, simulate, stack_clients

RECORDS, KNOWN, FEATURES, PUBLIC, ROUNDS = 60, 30, 12, 600, 10
OTHERS = RECORDS - KNOWN
RECIPE = LocalTraining(0.3)
MODEL = mlp(FEATURES, (48,), 3)


def records(seed, count):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, FEATURES))
    x[:, ::2] = x[:, ::2] > 0
    return x.astype(np.float32), rng.integers(0, 3, count)


def client(recipe=RECIPE, seed=0, rounds=ROUNDS):
    """Messages, what is known of the first records, their truth, and public ones."""
    (x, y), public = records(seed, RECORDS), records(seed + 100, PUBLIC)
    clients = stack_clients([(x, y), records(seed + 200, RECORDS)])
    key = jax.random.key(seed)
    run = simulate(MODEL, MODEL.init(key), clients, key, Federated(rounds, recipe))
    known = x[:KNOWN].copy()
    known[:, 4] = np.nan
    return run, Knowledge(known, y[:KNOWN], (binary_column(4, 0.5),)), x[:KNOWN, 4], public


def decoded(recipe=RECIPE, told=None, victim=0, seed=0):
    run, known, truth, public = client(recipe, seed)
    settings = PartialDecoding(OTHERS, recipe if told is None else told)
    answer = decode_partial(MODEL, run.messages(victim), known, *public, settings=settings)
    return answer, float((np.asarray(answer.values[0]) == truth).mean())


def test_half_of_the_records_are_read_with_nothing_known_of_the_others():
    answers = [decoded(seed=seed) for seed in range(3)]
    assert np.mean([accuracy for _, accuracy in answers]) > 0.9
    assert all(answer.status == Status.OK for answer, _ in answers)


def test_of_several_full_batch_steps_too():
    answer, accuracy = decoded(LocalTraining(0.1, epochs=3))
    assert answer.status == Status.OK
    assert accuracy > 0.9


@pytest.mark.parametrize(
    ("recipe", "victim"),
    [(LocalTraining(0.6), 0), (RECIPE, 1), (LocalTraining(0.3, batch_size=15), 0)],
)
def test_another_rate_client_or_batches_are_a_misfit(recipe, victim):
    with pytest.warns(UserWarning, match="decode_partial"):
        answer, _ = decoded(recipe, RECIPE, victim)
    assert answer.status == Status.MISFIT


def test_it_is_least_squares_with_the_public_records_covariance():
    run, known, _, (x_public, y_public) = client(rounds=2)
    settings = PartialDecoding(OTHERS, RECIPE)
    with jax.enable_x64(True):
        messages, known = jax.tree.map(
            lambda a: jnp.asarray(a, float) if jnp.issubdtype(a.dtype, jnp.floating) else a,
            (run.messages(0), known),
        )
        candidates = candidate_records(MODEL, known)
        public = jnp.asarray(x_public, float), jnp.asarray(y_public)
        products = partial._products(MODEL, messages, candidates, public, settings)
        least = jnp.asarray(1e-3 * float(products.inner[0, 0]))
        seen = partial._whitened(products, KNOWN, 2, OTHERS, least)

        def gradients(x, y):
            def one(params, x, y):
                loss = MODEL.loss(MODEL.apply(params, x[None]), y[None])[0]
                return loss

            each = jax.vmap(jax.grad(one), (None, 0, 0))
            rows = [
                each(jax.tree.map(lambda a, t=t: a[t], messages.received), x, y) for t in (0, 1)
            ]
            flat = [jax.vmap(lambda g: ravel_pytree(g)[0])(row) for row in rows]
            return np.concatenate([np.asarray(f) for f in flat], 1)

        updates = messages.pseudo_gradient
        sent = [ravel_pytree(jax.tree.map(lambda a, t=t: a[t], updates))[0] for t in (0, 1)]
        message = np.concatenate([np.asarray(s) for s in sent]) * RECORDS / 0.3
        first, other = (gradients(candidates[0][:, k], candidates[1][:, k]) for k in (0, 1))
        theirs = gradients(*public)
    fitted = np.asarray([m for m in range(PUBLIC) if m % partial.HELD_OUT])
    mean = theirs[fitted].mean(0)
    centred = theirs[fitted] - mean
    left = message - first.sum(0) - OTHERS * mean
    differences = other - first
    covariance = OTHERS / len(fitted) * centred.T @ centred
    floors = np.trace(covariance) * np.asarray(partial.FLOORS) + float(least)
    inverses = [np.linalg.inv(covariance + f * np.eye(len(mean))) for f in floors]
    wanted = [differences @ inverse @ differences.T for inverse in inverses]
    found = np.asarray(seen.metric[:KNOWN, :KNOWN])
    apart = [np.abs(found - w).max() / np.abs(w).max() for w in wanted]
    best = int(np.argmin(apart))
    assert apart[best] < 1e-6
    right = differences @ inverses[best] @ left
    np.testing.assert_allclose(seen.metric[:KNOWN, -2], right, rtol=1e-5, atol=1e-6 * right.max())


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
        "plugins": dataclasses.replace(RECIPE, plugins=(DPSGD(1.0, 1.0),)),
    }
    for words, recipe in refused.items():
        with pytest.raises(ValueError, match=words):
            decode_partial(**call, settings=PartialDecoding(OTHERS, recipe))
    settings = PartialDecoding(OTHERS, RECIPE)
    with pytest.raises(ValueError, match="x_public has 19 records"):
        decode_partial(**call | {"x_public": x[:19], "y_public": y[:19]}, settings=settings)
    with pytest.raises(ValueError, match="y_public"):
        decode_partial(**call | {"y_public": y + 3}, settings=settings)
