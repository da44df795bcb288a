"""A numeric column of which bounds are known: `decode_numbers`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import (
    Knowledge,
    NumberDecoding,
    Status,
    UnknownColumn,
    decode_numbers,
)
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients

FULL = LocalTraining(0.1)
BATCHES = LocalTraining(0.1, batch_size=8, epochs=2)
PLACE, LOWER, UPPER = 4, -2.0, 3.0
COLUMN = UnknownColumn(jnp.asarray([PLACE]), jnp.asarray([[LOWER], [UPPER]]))
RECORDS, FEATURES = 40, 12


def client(model, training, seed=0, rounds=10):
    """Its messages, what is known of its records, and its numbers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    x[:, ::2] = x[:, ::2] > 0
    x[:, PLACE] = np.clip(rng.normal(size=RECORDS), LOWER, UPPER)
    score = x[:, :6].sum(1) + rng.normal(size=RECORDS)
    y = (score > np.median(score)).astype(int)
    key = jax.random.key(seed)
    federated = Federated(rounds, training)
    run = simulate(model, model.init(key), stack_clients([(x, y)]), key, federated)
    numbers = x[:, PLACE].copy()
    x[:, PLACE] = np.nan
    return run.messages(0), Knowledge(x, y, (COLUMN,)), numbers


def rmse(answer, numbers):
    return float(np.sqrt(np.square(np.asarray(answer.values) - numbers).mean()))


def decoded(model, messages, knowledge, training, **settings):
    settings = NumberDecoding(training, **settings)
    return decode_numbers(model, messages, knowledge, jax.random.key(1), settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "activation", "most"),
    [(FULL, "relu", 0.02), (FULL, "tanh", 0.05), (BATCHES, "relu", 0.2)],
    ids=["full batch", "tanh", "batches"],
)
def test_numbers_are_told_and_so_is_by_how_much_they_are_off(training, activation, most):
    model = mlp(FEATURES, (64,), 2, activation=activation)
    messages, knowledge, numbers = client(model, training)
    answer = decoded(model, messages, knowledge, training)
    assert answer.status == Status.OK
    assert np.asarray(answer.values).min() >= LOWER
    assert np.asarray(answer.values).max() <= UPPER
    assert rmse(answer, numbers) < most * numbers.std()
    assert rmse(answer, numbers) < 3 * answer.error < 1
