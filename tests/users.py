"""Cells of the suite of Song 2020 that run in seconds, and made-up pictures for them."""

import dataclasses

import numpy as np

from benchmarks.suites import song2020
from jaxfl.datasets import Dataset

TINY_LINKS = {
    "clients": 4,
    "records": 9,
    "widths": "2,2,4,4",
    "first": 2,
    "window": 6,
    "evaluations": 3,
    "images": 6,
}
TINY_LINKS |= {
    "siamese_epochs": 2,
    "siamese_batch": 4,
    "epoch": 2,
    "learning_rate": 0.05,
    "trunk_round": 4,
}
TINY_GAME = {
    "clients": 3,
    "records": 12,
    "widths": "2,2,4,4",
    "generator_width": 8,
    "rounds": 4,
    "evaluations": 2,
}
TINY_GAME |= {
    "images": 6,
    "auxiliary": 20,
    "batch": 10,
    "most_epochs": 1,
    "learning_rate": 0.05,
    "batch_size": 6,
}


def pictures(side=28):
    """Ten classes, each a picture of its own with noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 1600)
    x = np.tanh(
        rng.normal(size=(10, side, side, 1))[y] + 0.3 * rng.normal(size=(1600, side, side, 1))
    )
    return Dataset("images", x.astype(np.float32), y.astype(np.int32), (), 10)


def table(name):
    return next(t for t in song2020.TABLES if t.name == name)


def tiny(name, changes, **more):
    cell = table(name).cells("small", None)[0]
    return dataclasses.replace(
        cell, settings=tuple(sorted((dict(cell.settings) | changes | more).items()))
    )
