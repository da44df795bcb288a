"""Who holds which records."""

import numpy as np
import pytest

from jaxfl.datasets import load, partitions


def test_parts_of_small_classes_are_as_large_for_every_client():
    """Rounded down, each class's last records would all be the last clients'."""
    y = np.repeat(np.arange(60), 3)
    dealt = [partitions.dirichlet(np.random.default_rng(s), y, 4, 1e6) for s in range(20)]
    sizes = np.mean([list(map(len, parts)) for parts in dealt], 0)
    assert np.abs(sizes - 45).max() < 5


def test_partitions():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 60)

    def covers(parts):
        joined = np.concatenate(parts)
        return len(joined) == len(set(joined.tolist())) == len(y)

    parts = partitions.iid(rng, 600, 7)
    assert covers(parts)
    assert {len(p) for p in parts} == {85, 86}
    assert [len(p) for p in partitions.by_sizes(rng, 600, [5, 100, 20])] == [5, 100, 20]
    parts = partitions.by_classes(rng, y, 10, 3)
    assert covers(parts)
    assert all(len(np.unique(y[p])) == 3 for p in parts)
    for alpha in (0.05, 100.0):
        parts = partitions.dirichlet(rng, y, 8, alpha)
        assert covers(parts)
        assert min(map(len, parts)) >= 1
    assert (
        np.std([np.bincount(y[p], minlength=10) for p in parts]) < 4
    )  # alpha = 100 is nearly even
    with pytest.raises(ValueError, match=r"y\[1\]=0.5 is no class"):
        partitions.dirichlet(rng, np.asarray([1, 0.5]), 2, 1.0)
    with pytest.raises(ValueError, match=r"few=\(\) leaves open"):
        partitions.overlapping_classes(rng, y, 2, few=())
    adult_like = load("breast_cancer")
    low, high = partitions.by_column(adult_like, 0)
    assert (adult_like.values_of(0)[low] == 0).all()
    assert len(low) + len(high) == 569
