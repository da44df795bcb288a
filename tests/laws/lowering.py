"""Programs are accelerators' too: what an operation needs there is found by lowering it, once."""

from benchmarks.harness.operations import equations
from benchmarks.harness.programs import PLATFORMS

LOWERED = set()
"""Operations by name and types of numbers that some program of this process was lowered with:
whether a device has them does not depend on the program."""


def lowers(traced):
    """Raise what lowering for CUDA and TPU raises, of a traced function with operations that were
    not lowered yet."""
    operations = {
        (equation.primitive.name, *(str(getattr(v.aval, "dtype", "")) for v in equation.invars))
        for equation in equations(traced.jaxpr)
    }
    if operations - LOWERED:
        traced.lower(lowering_platforms=PLATFORMS)
        LOWERED.update(operations)
