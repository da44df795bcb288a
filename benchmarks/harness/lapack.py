"""Calls of LAPACK on batches that nothing orders.

On a CPU such a call shares its batch out over the threads that run the program, and waits for them.
As many calls at once as there are threads wait for each other for ever: two, where there are two
cores (jaxlib 0.10). What computes one number of another keeps them apart.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from benchmarks.harness.operations import DEAR, inner_of

LAPACK = {name for name, (place, _) in DEAR.items() if place == "factorisations"}
LOOPS = {"scan", "while", "cond", "shard_map"}


class _Call(NamedTuple):
    """One call, or a loop that holds some, with the calls before it, by their places."""

    name: str
    earlier: frozenset[int]


def unordered(jaxpr: Any) -> list[str]:
    """Pairs of calls on batches, or of loops that hold some, which may run at once; those inside of
    loops too."""
    calls: list[_Call] = []
    inside: list[str] = []
    closed = getattr(jaxpr, "jaxpr", jaxpr)
    _follow(closed, [frozenset()] * len(closed.invars), calls, inside)
    pairs = [
        f"{one.name} beside {other.name}"
        for place, other in enumerate(calls)
        for before, one in enumerate(calls[:place])
        if before not in other.earlier
    ]
    return inside + pairs


def _follow(
    jaxpr: Any, given: list[frozenset[int]], calls: list[_Call], inside: list[str]
) -> list[frozenset[int]]:
    """The calls that each result needs, from those that each argument needs; a program's calls are
    put into `calls`, pairs inside of its loops into `inside`."""
    needs = dict(zip(jaxpr.invars, given, strict=True))
    needs |= dict.fromkeys(jaxpr.constvars, frozenset())

    def of(variables: Any) -> list[frozenset[int]]:
        return [frozenset() if isinstance(v, Literal) else needs[v] for v in variables]

    for equation in jaxpr.eqns:
        name, before = equation.primitive.name, of(equation.invars)
        programs = list(inner_of(equation))
        together = frozenset().union(*before)
        if programs and name not in LOOPS:
            program = getattr(programs[0], "jaxpr", programs[0])
            entering = before[len(before) - len(program.invars) :]
            made = _follow(program, entering, calls, inside)
        else:
            pairs = [pair for program in programs for pair in unordered(program)]
            inside += pairs
            if _is_batched(equation) or any(map(_holds, programs)):
                calls.append(_Call(f"{name} of {_shape(equation)}", together))
                together |= {len(calls) - 1}
            made = [together] * len(equation.outvars)
        needs |= dict(zip(equation.outvars, made, strict=True))
    return of(jaxpr.outvars)


def _shape(equation: Any) -> str:
    shapes = (getattr(v.aval, "shape", ()) for v in equation.invars)
    return str(max(shapes, key=len, default=()))


def _is_batched(equation: Any) -> bool:
    if equation.primitive.name not in LAPACK:
        return False
    return int(np.prod(equation.invars[0].aval.shape[:-2])) > 1


def _holds(jaxpr: Any) -> bool:
    """Whether a program calls LAPACK on a batch anywhere."""
    return any(
        _is_batched(equation) or any(map(_holds, _programs(equation)))
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )


def _programs(equation: Any) -> Iterator[Any]:
    programs = list(inner_of(equation))
    yield from programs if equation.primitive.name in LOOPS else programs[:1]
