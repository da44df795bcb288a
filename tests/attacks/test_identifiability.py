"""What participation tells apart depends on no client's unit."""

import jax.numpy as jnp
import numpy as np
import pytest

from attacks import identifiability


def test_weights_of_many_sizes_are_told_as_float64_tells_them():
    """Weights are numbers of records: one client has 60,000, another five."""
    rng = np.random.default_rng(0)
    part = (rng.random((60, 20)) < 0.4) * np.r_[60_000.0, np.full(18, 1_000.0), 5.0]
    told = identifiability(jnp.asarray(part), jnp.asarray([60]))
    assert told.rank[0] == np.linalg.matrix_rank(part) == 20
    assert told.resolved.all()
    variance = np.square(np.linalg.pinv(part)).sum(1)
    assert np.asarray(told.variance[0]) == pytest.approx(variance, rel=1e-4)


def test_a_client_that_is_never_apart_stays_unresolved_whatever_the_weights():
    rng = np.random.default_rng(1)
    part = (rng.random((40, 6)) < 0.5) * 1.0
    part[:, 5] = 7 * part[:, 4]
    weights = np.r_[1e4, 1.0, 1e-2, 3.0, 50.0, 2.0]
    told = identifiability(jnp.asarray(part * weights), jnp.asarray([40]))
    assert told.rank[0] == 5
    assert np.asarray(told.resolved[0]).tolist() == [True] * 4 + [False] * 2
    kept = np.square(np.linalg.pinv(part[:, :5] * weights[:5])).sum(1)[:4]
    assert np.asarray(told.variance[0, :4]) == pytest.approx(kept, rel=1e-3)
    assert np.isinf(told.variance[0, 4:]).all()
