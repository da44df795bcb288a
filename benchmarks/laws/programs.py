"""What is compiled is listened to; what accelerators would run is lowered for them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from benchmarks.harness.call_order import unordered
from benchmarks.harness.operations import equations
from benchmarks.harness.programs import PLATFORMS
from benchmarks.laws.law import require

_LOWERED: set[tuple[str, ...]] = set()
"""Operations by name and types of numbers that some program of this process was lowered with:
whether a device has them does not depend on the program."""


def lower(traced: Any) -> None:
    """Raise what lowering for CUDA and TPU raises, of a traced function with operations that were
    not lowered yet."""
    operations = {
        (equation.primitive.name, *(str(getattr(v.aval, "dtype", "")) for v in equation.invars))
        for equation in equations(traced.jaxpr)
    }
    if operations - _LOWERED:
        traced.lower(lowering_platforms=PLATFORMS)
        _LOWERED.update(operations)


def never_waits(traced: Any) -> None:
    """Raise `BrokenLawError` if calls of LAPACK in a traced function may wait for each other for
    ever, see `benchmarks.harness.call_order`."""
    waiting = unordered(traced.jaxpr)
    require(not waiting, f"calls of LAPACK may wait for each other: {waiting[:1]}")


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Names of what is compiled inside, as it comes."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **facts: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(facts.get("fun_name", event)))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
