"""Tests of laws, generated from the tables of methods."""

import pytest

from benchmarks.laws import laws_of, rows


def cases(experiment, *methods):
    """A case for each law of some methods, or of all. Rows of methods whose answers have laws of
    their own take longer than those, and tell less."""
    made = []
    for method in methods or [each.name for each in experiment.methods]:
        laws = laws_of(experiment, method)
        slow = {law.__name__ for law in rows.LAWS} if len(laws) > len(rows.LAWS) else set()
        for law in laws.values():
            marks = [pytest.mark.slow] if law.name in slow else []
            made.append(pytest.param(law, id=str(law), marks=marks))
    return made
