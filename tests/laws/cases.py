"""Tests of laws, generated from the tables of methods."""

import pytest

from benchmarks.laws import calls, laws_of, rows
from benchmarks.measurements import attributes


def cases(experiment, *methods):
    """A case for each law of some methods, or of all. Of attacks on attributes those of rows take
    long; of others those of what they call take longest."""
    made = []
    for method in methods or [each.name for each in experiment.methods]:
        laws = laws_of(experiment, method)
        named = experiment.name == attributes.EXPERIMENT.name
        long = {law.__name__ for law in (rows.LAWS if named else calls.LAWS)}
        mark = pytest.mark.slow if named else pytest.mark.very_slow
        made += [
            pytest.param(law, id=str(law), marks=[mark] if law.name in long else [])
            for law in laws.values()
        ]
    return made
