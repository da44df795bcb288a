"""A client with binary features and random labels, one column of which is unknown, and its
messages."""

import dataclasses

import jax
import numpy as np

from attacks import UnknownColumn
from jaxfl import Federated, LocalTraining, simulate, stack_clients

N, D = 40, 20
KEY = jax.random.key(3)
ONE_HOT = UnknownColumn(np.arange(4, 8), np.eye(4))
SCALAR = UnknownColumn([5], np.array([[1.0], [2], [3], [4]]))


def make_victim(model, seed=0, rounds=3, column=None, training=None, y=None):
    rng = np.random.default_rng(seed)
    x = (rng.random((N, D)) < 0.4).astype(np.float32)
    truth = x[:, 6].astype(int)
    if column is not None:
        truth = rng.integers(0, len(column.candidates), N)
        x[:, np.asarray(column.positions)] = np.asarray(column.candidates)[truth]
    if y is None:
        y = (
            rng.integers(0, model.classes, N)
            if model.classes
            else rng.normal(size=N).astype(np.float32)
        )
    key = jax.random.key(seed)
    federated = Federated(rounds=rounds, training=training or LocalTraining(0.1))
    run = simulate(model, model.init(key), stack_clients([(x, y)]), key, federated)
    return x, y, truth, run.messages(0)


def explicit(model):
    """The same model without its dense layers named."""
    return dataclasses.replace(model, layers=None)
