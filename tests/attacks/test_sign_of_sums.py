"""Sums of `returned - received` in place of `received - returned`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import Detectors, MisfitWarning, observe
from jaxfl import Federated, LocalTraining, linear, simulate, stack_clients

ROUNDS, FEATURES = 6, 4


def test_sums_of_the_other_sign_are_named():
    """Not of rounds that do not follow each other: nothing can tell."""
    rng, key = np.random.default_rng(0), jax.random.key(0)
    clients = stack_clients([(rng.normal(size=(9, FEATURES)), rng.normal(size=9)) for _ in "abcd"])
    model = linear(FEATURES)
    federated = Federated(ROUNDS, LocalTraining(0.05), clients_per_round=2)
    sums = simulate(model, model.init(key), clients, key, federated).aggregates()
    detectors = Detectors(
        direction=rng.normal(size=(ROUNDS, FEATURES + 1)),
        offset=np.zeros(ROUNDS),
        mean=np.tile([-1.0, 1.0], (ROUNDS, 1)),
        variance=np.ones((ROUNDS, 2)),
        correlation=np.zeros(ROUNDS),
        calibrated_on=jnp.asarray(10.0),
        pool=jnp.asarray(10.0),
        rate=jnp.asarray(0.5),
        detector_number=np.arange(ROUNDS),
    )
    negative = jax.tree.map(jnp.negative, sums.pseudo_gradient)
    other = dataclasses.replace(sums, pseudo_gradient=negative)
    observe(sums, detectors)  # a warning is an error
    with pytest.warns(MisfitWarning, match=r"cosine -\d.*received - returned") as told:
        observe(other, detectors)
    assert told[0].filename == __file__
    observe(dataclasses.replace(other, rounds=2 * other.rounds), detectors)
    means = jax.tree.map(lambda a: a / 2, sums.pseudo_gradient)
    with pytest.warns(MisfitWarning, match=r"are these means\? Attacks take sums"):
        observe(dataclasses.replace(sums, pseudo_gradient=means), detectors)
    for scale in (1e25, jnp.inf):  # as of models that diverge
        wide = jax.tree.map(lambda a: a * scale, sums.received)  # noqa: B023
        observe(dataclasses.replace(sums, received=wide), detectors)
    nobody = jnp.asarray(sums.participation).at[2].set(False)
    with pytest.raises(ValueError, match="names nobody at the place 2"):
        observe(dataclasses.replace(sums, participation=nobody), detectors)
