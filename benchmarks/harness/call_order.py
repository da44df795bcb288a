"""Calls of LAPACK on batches that nothing orders: see `attacks.lapack` for what they do.

Order is read from the traced program. XLA may remove it: of a slice that takes nothing of what it
seems to need, or of a loop of one pass. Several devices of one CPU, one call each, are not looked
at."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from benchmarks.harness.operations import DEAR, inner_of

LAPACK = {name for name, (place, _) in DEAR.items() if place == "factorisations"} | {
    *("eig", "schur", "hessenberg", "tridiagonal", "tridiagonal_solve"),
}
LOOPS = {"scan", "while", "cond", "shard_map"}


class _Call(NamedTuple):
    """One call, or a loop that holds some, with the calls before it, by their places."""

    name: str
    earlier: frozenset[int]


def unordered(jaxpr: Any) -> list[str]:
    """Pairs of calls on batches, or of loops that hold some, which may run at once; those inside of
    loops too. What no result needs is not run."""
    calls: list[_Call] = []
    inside: list[str] = []
    closed = getattr(jaxpr, "jaxpr", jaxpr)
    _follow(closed, [frozenset()] * len(closed.invars), [True] * len(closed.outvars), calls, inside)
    pairs = [
        f"{one.name} beside {other.name}"
        for place, other in enumerate(calls)
        for before, one in enumerate(calls[:place])
        if before not in other.earlier
    ]
    return inside + pairs


def _follow(
    jaxpr: Any,
    given: list[frozenset[int]],
    wanted: list[bool],
    calls: list[_Call],
    inside: list[str],
) -> list[frozenset[int]]:
    """The calls that each result needs, from those that each argument needs; a program's calls are
    put into `calls`, pairs inside of its loops into `inside`."""
    needs = dict(zip(jaxpr.invars, given, strict=True))
    needs |= dict.fromkeys(jaxpr.constvars, frozenset())

    def of(variables: Any) -> list[frozenset[int]]:
        return [frozenset() if isinstance(v, Literal) else needs[v] for v in variables]

    for equation, live in _needed(jaxpr, wanted):
        name, before = equation.primitive.name, of(equation.invars)
        programs = list(inner_of(equation))
        together = frozenset().union(*before)
        entered = _entered(equation, before)
        if entered is not None:
            program, entering = entered
            made = _follow(program, entering, live, calls, inside)
        else:
            inside += [pair for program in programs for pair in unordered(program)]
            if _is_batched(equation) or any(map(_holds, programs)):
                calls.append(_Call(f"{name} of {_shape(equation)}", together))
                together |= {len(calls) - 1}
            made = [together] * len(equation.outvars)
        needs |= dict(zip(equation.outvars, made, strict=True))
    results = zip(jaxpr.outvars, wanted, strict=True)
    return [of([variable])[0] if want else frozenset() for variable, want in results]


def _entered(
    equation: Any, before: list[frozenset[int]]
) -> tuple[Any, list[frozenset[int]]] | None:
    """The program that an equation stands for, and what its arguments need; None of a loop, and of
    what uses a program otherwise."""
    programs = list(inner_of(equation))
    if not programs or equation.primitive.name in LOOPS:
        return None
    program, given = getattr(programs[0], "jaxpr", programs[0]), before
    if equation.primitive.name == "custom_linear_solve":
        lengths = equation.params["const_lengths"]
        skipped = lengths.matvec + lengths.vecmat
        given = before[skipped : skipped + lengths.solve] + before[sum(lengths) :]
    sizes = len(program.invars), len(program.outvars)
    return (program, given) if sizes == (len(given), len(equation.outvars)) else None


def _needed(jaxpr: Any, wanted: list[bool]) -> list[tuple[Any, list[bool]]]:
    """Equations that wanted results need, in order, with which of their own results these need."""
    results = zip(jaxpr.outvars, wanted, strict=True)
    live = {v for v, want in results if want and not isinstance(v, Literal)}
    needed = []
    for equation in reversed(jaxpr.eqns):
        made = [variable in live for variable in equation.outvars]
        if any(made) or equation.effects:
            needed.append((equation, made))
            live |= {v for v in equation.invars if not isinstance(v, Literal)}
    return needed[::-1]


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
