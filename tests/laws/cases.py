"""Tests of laws, generated from the tables of methods."""

import pytest

from benchmarks.laws import calls, laws_of, rows
from benchmarks.measurements import attributes


def cases(experiment, *methods):
    """A case for each law of some methods, or of all. Of attacks on attributes those of rows take
    long; of others those of what they call, and longest those that compile or run it anew."""
    made = []
    for method in methods or [each.name for each in experiment.methods]:
        laws = laws_of(experiment, method)
        named = experiment.name == attributes.EXPERIMENT.name
        slow = {law.__name__ for law in (rows.LAWS if named else calls.LAWS)}
        very_slow = set() if named else {law.__name__ for law in calls.LENGTHY}
        for law in laws.values():
            marks = [pytest.mark.slow] if law.name in slow else []
            marks += [pytest.mark.very_slow] if law.name in very_slow else []
            made.append(pytest.param(law, id=str(law), marks=marks))
    return made
