"""Wall time with compilation apart, for what is not one compiled call."""

import threading
import time
from collections import defaultdict
from typing import NamedTuple

import jax

COMPILING = (
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)
"""Events of JAX that do not hold each other. Tracing is Python's time and stays with the run."""
_compiled: dict[int, float] = defaultdict(float)
"""Seconds of each thread so far."""


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event in COMPILING:
        _compiled[threading.get_ident()] += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)


class Spent(NamedTuple):
    """Seconds of a thread.

    Attributes:
      run_s: compilation apart.
      compile_s: spent compiling, or reading what was compiled before.
    """

    run_s: float
    compile_s: float


class Clock:
    """Seconds of this thread since the clock was made."""

    def __init__(self) -> None:
        self._began, self._compiled = time.perf_counter(), _compiled[threading.get_ident()]

    def read(self) -> Spent:
        """So far."""
        compiled = _compiled[threading.get_ident()] - self._compiled
        return Spent(time.perf_counter() - self._began - compiled, compiled)
