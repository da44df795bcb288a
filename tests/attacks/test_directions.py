"""Fisher's discriminant from few updates: by matrices written out, and better than shrunk over
single weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from attacks.properties.directions import discriminant

LEAVES = {"bias": (3,), "dead": (2,), "kernel": (2, 1, 2, 3), "row": (1, 4), "scale": ()}
"""Shapes of parameters, raveled in this order."""
LIKE = {name: jnp.zeros(shape) for name, shape in LEAVES.items()}
PLACES = {
    "bias": (0, 3, 1),
    "dead": (3, 2, 1),
    "kernel": (5, 4, 3),
    "row": (17, 1, 4),
    "scale": (21, 1, 1),
}
"""Their first coordinates, rows and columns."""


def drawn_updates(n):
    """Of parameters of many scales, of which two never move: deviations from the mean, and a
    change."""
    rng = np.random.default_rng(n)
    scales = np.geomspace(0.03, 3, 22)[rng.permutation(22)]
    scales[3:5] = 0
    each = [{name: rng.normal(size=shape) for name, shape in LEAVES.items()} for _ in range(n)]
    z = (
        np.asarray([ravel_pytree(jax.tree.map(jnp.asarray, one))[0] for one in each], np.float64)
        * scales
    )
    return (z - z.mean(0)) @ blocks(
        lambda k: np.eye(k) + 0.3 * rng.normal(size=(k, k))
    ), rng.normal(size=22)


def blocks(square):
    """A matrix on all parameters: Kronecker products of one of a leaf's rows and one of its
    columns."""
    whole = np.zeros((22, 22))
    for start, rows, columns in PLACES.values():
        end = start + rows * columns
        whole[start:end, start:end] = np.kron(square(rows), square(columns))
    return whole


def in_eigenbases(z):
    """The matrix that takes parameters to coordinates in their eigenbases."""
    each = []
    for start, rows, columns in PLACES.values():
        leaf = z[:, start : start + rows * columns].reshape(len(z), rows, columns)
        each += [np.einsum("nij,nkj->ik", leaf, leaf), np.einsum("nij,nik->jk", leaf, leaf)]
    bases = iter(np.linalg.eigh(moments)[1] for moments in each)
    return blocks(lambda k: next(bases)).T


def shrunk_discriminant(z, change, shrinkage):
    """`discriminant` by matrices written out."""
    to, (first, second) = in_eigenbases(z), (z[: len(z) // 2], z[len(z) // 2 :])
    crossed = [
        ((one @ in_eigenbases(other).T) ** 2).mean(0)
        for one, other in ((first, second), (second, first))
    ]
    variance = np.mean(crossed, 0) + 0.001 * (z**2).mean()
    return np.linalg.solve(
        (1 - shrinkage) * z.T @ z / len(z) + shrinkage * to.T @ np.diag(variance) @ to, change
    )


def single(*arrays):
    return (jnp.asarray(a, jnp.float32) for a in arrays)


@pytest.mark.very_slow
@pytest.mark.parametrize("n", [12, 60])
def test_discriminant_solves_the_shrunk_covariance(n):
    z, change = drawn_updates(n)
    expected = shrunk_discriminant(z, change, 0.2)
    found = np.asarray(discriminant(*single(z, change), LIKE, 0.2))
    scale = np.sqrt((z**2).mean(0) + 0.001 * (z**2).mean())
    assert found * scale == pytest.approx(
        expected * scale, abs=2e-3 * np.abs(expected * scale).max()
    )


@pytest.mark.slow
def test_discriminant_turns_with_a_layers_inputs_and_outputs():
    z, change = drawn_updates(40)
    rng = np.random.default_rng(1)
    turn = blocks(lambda k: np.linalg.qr(rng.normal(size=(k, k)))[0])
    straight, turned = (
        np.asarray(discriminant(*single(z @ to.T, to @ change), LIKE, 0.6))
        for to in (np.eye(22), turn)
    )
    assert turned == pytest.approx(turn @ straight, abs=2e-3 * float(np.abs(straight).max()))


def test_layers_too_wide_for_eigenbases_keep_their_coordinates(monkeypatch):
    z, change = drawn_updates(40)
    monkeypatch.setattr("attacks.properties.directions.WIDEST", 0)
    variance = (z**2).mean(0) + 0.001 * (z**2).mean()
    expected = np.linalg.solve(0.4 * z.T @ z / 40 + 0.6 * np.diag(variance), change)
    found = np.asarray(discriminant(*single(z, change), LIKE, 0.6))
    assert found * np.sqrt(variance) == pytest.approx(
        expected * np.sqrt(variance), abs=1e-3 * np.abs(expected).max()
    )


@pytest.mark.parametrize("rank_one", [False, True])
@pytest.mark.parametrize("n", [20, 40])
def test_a_kronecker_covariance_is_told_from_few_updates(n, rank_one):
    """Where the covariance is one of rows times one of columns: Fisher's direction of 128 weights,
    16 rows and 8 columns, is told better than with the covariance shrunk to its diagonal over
    single weights."""
    ratios = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows, columns = (
            np.linalg.qr(rng.normal(size=(size, size)))[0] * np.geomspace(0.3, 2, size)
            for size in (16, 8)
        )
        mix, change = np.kron(rows, columns), rng.normal(size=128)
        z = rng.normal(size=(n, 128))
        if rank_one:  # as a record's gradient of a dense layer
            z = np.einsum("ni,nj->nij", rng.normal(size=(n, 16)), rng.normal(size=(n, 8))).reshape(
                n, 128
            )
        z = z @ mix.T
        found = np.asarray(
            discriminant(*single(z, change), {"w": jnp.zeros((16, 8))}, 0.8), np.float64
        )
        scales = 128 * np.diag((z**2).mean(0))
        weights = [np.linalg.solve(z.T @ z / n + c * scales, change) for c in (1e-3, 1e-2, 0.1, 1)]
        ours, *theirs = (d @ change / np.linalg.norm(mix.T @ d) for d in (found, *weights))
        ratios.append(ours / max(theirs))
    assert np.mean(ratios) > 1.25
