"""Tests of laws, generated from the tables of methods."""

import pytest

from benchmarks.laws import laws_of


def cases(experiment, *methods):
    """A case for each law of some methods, or of all."""
    return [
        pytest.param(law, id=str(law))
        for method in methods or [each.name for each in experiment.methods]
        for law in laws_of(experiment, method).values()
    ]
