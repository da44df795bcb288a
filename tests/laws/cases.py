"""Tests of laws, generated from the tables of methods."""

import pytest

from benchmarks.laws import calls, laws_of, rows
from benchmarks.measurements import attributes, generators

SEEN_IN_ROWS = {"majority", "cos"}
"""Attacks on attributes whose rows are tried where not all is: all of them have laws of their own,
of leaks and of failures too."""
SIMULATED = {"cos_unrolled": pytest.mark.slow, "gls_unrolled": pytest.mark.very_slow}
"""Attacks whose programs hold the client's training: they compile for long."""
LONG_OF_NOBODY = {"linear_clients", "linkability", "local_models", "properties"}
"""Experiments whose five federations of nobody's messages take up to a minute."""
REPEATED = {
    "constants_of_an_outer_jit_are_no_tracers",  # an outer jit is tried by another law
}


def cases(experiment, *methods):
    """A case for each law of some methods, or of all. Of attacks on attributes those of rows take
    long; of others those of what they call take longest."""
    names = methods or [each.name for each in experiment.methods]
    return [
        pytest.param(law, id=str(law), marks=_marks(experiment, method, law.name))
        for method in names
        for law in laws_of(experiment, method).values()
    ]


def _marks(experiment, method, law):
    of_rows, of_calls = ({each.__name__ for each in some} for some in (rows.LAWS, calls.LAWS))
    if experiment.name != attributes.EXPERIMENT.name:
        # Games of generators are played through for all their laws, and tested on their own
        # (`tests/attacks/test_generative.py`).
        if law in of_calls or experiment.name == generators.EXPERIMENT.name:
            return [pytest.mark.very_slow]
        last = pytest.mark.very_slow if experiment.name in LONG_OF_NOBODY else pytest.mark.slow
        return [last] if "of_nobody" in law else []
    if law in of_rows:
        return [pytest.mark.slow if method in SEEN_IN_ROWS else pytest.mark.very_slow]
    if law in REPEATED:
        return [pytest.mark.very_slow]
    marks = [SIMULATED[method]] if method in SIMULATED else []
    return [*marks, pytest.mark.slow] if law == "vmap_is_a_loop" else marks
