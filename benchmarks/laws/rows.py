"""Laws of rows, which bind every method of every experiment.

All methods of one small cell run in turn: twice with one seed, the second time in the opposite
order; with another seed; and on messages that are not finite. Laws look at these four runs, each of
which is made once.
"""

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.engines import forget_programs
from benchmarks.harness.experiment import Method
from benchmarks.harness.jobs import Cell, Job, Outcome, group
from benchmarks.harness.programs import Call, HostError, Program, watched
from benchmarks.harness.runner import run_safely
from benchmarks.laws.law import Law, require
from benchmarks.laws.programs import compilations, lower
from benchmarks.speed.timings import ON_HOST
from jaxfl import simulate

SCORED = ("ok", "misfit")
"""Statuses of rows that have a score."""


@dataclasses.dataclass
class Turn:
    """What happened while one method ran.

    Attributes:
      outcomes: its own.
      programs: that it ran.
      compiled: names of what was compiled.
    """

    outcomes: list[Outcome]
    programs: set[Program]
    compiled: list[str]

    @property
    def values(self) -> dict[tuple[str, str], tuple[float | None, str]]:
        """Value and status by metric and selection."""
        return {(o.metric, o.selection): (o.value, o.status) for o in self.outcomes}

    @property
    def scored(self) -> list[Outcome]:
        """Outcomes with a score."""
        return [o for o in self.outcomes if o.status in SCORED and o.value is not None]


class Turns:
    """Methods of one cell, run in turn."""

    def __init__(self, cell: Cell, methods: Sequence[str]) -> None:
        self.cell, self.methods = cell, methods

    def jobs(self, seed: int = 0) -> list[Job]:
        """One of each method."""
        return [Job(self.cell, name, seed) for name in self.methods]

    def turns(self, jobs: Sequence[Job]) -> dict[str, Turn]:
        """Turns by method; a failure is raised."""
        return _turns(self.cell.experiment.run(jobs, None))

    @functools.cached_property
    def first(self) -> dict[str, Turn]:
        """Of the first run."""
        return self.turns(self.jobs())

    @functools.cached_property
    def again(self) -> dict[str, Turn]:
        """Of the same seed, the last method first."""
        return self.turns(self.jobs()[::-1])

    @functools.cached_property
    def another(self) -> dict[str, Turn]:
        """Of another seed, when all has run before, so that nothing is left to compile."""
        self.first, self.again  # noqa: B018 - they are run
        return self.turns(self.jobs(1))

    @functools.cached_property
    def broken(self) -> dict[str, Turn]:
        """Of messages that are not finite; a failure is a status, as in a sweep."""
        (together,) = group(self.jobs())
        with _broken_messages(self.cell):
            return _turns(run_safely(together, None))


def _turns(run: Iterable[Sequence[Outcome]]) -> dict[str, Turn]:
    turns: dict[str, Turn] = {}
    calls: list[Call] = []
    with watched(calls, repeats=0), compilations() as compiled:
        for outcomes in run:
            for outcome in outcomes:
                turn = turns.setdefault(outcome.job.method, Turn([], set(), []))
                turn.outcomes.append(outcome)
                turn.programs |= {call.program for call in calls}
                turn.compiled += compiled
            calls.clear()
            compiled.clear()
    return turns


@contextlib.contextmanager
def _broken_messages(cell: Cell) -> Iterator[None]:
    """Inside, recorded messages are not finite, whichever module of the measurements and scenarios
    records them, or that of the cell's experiment."""
    rooms = ("benchmarks.scenarios.", "benchmarks.measurements.", cell.experiment.run.__module__)
    modules = [module for name, module in sys.modules.items() if name.startswith(rooms)]
    recorders = {"simulate": _broken_run, "sent_gradient": _broken_gradient}
    with contextlib.ExitStack() as stack:
        for module, name in itertools.product(modules, recorders):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, recorders[name]))
        forget_programs()
        yield
    forget_programs()


@functools.wraps(simulate)
def _broken_run(*arguments: Any, **options: Any) -> Any:
    run = simulate(*arguments, **options)
    returned, sums = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), (run.returned, run.sums))
    return dataclasses.replace(run, returned=returned, sums=sums)


def _broken_gradient(model: Any, params: Any, *arguments: Any) -> Any:
    return jax.tree.map(lambda w: jnp.full_like(w, jnp.nan), params)


def its_messages_give_a_score(turns: Turns, method: Method) -> None:
    """And proportions are proportions."""
    turn = turns.first[method.name]
    require(turn.scored, f"it has no score: {[o.status for o in turn.outcomes]}")
    for outcome in turn.scored:
        value, metric = outcome.value or 0.0, turns.cell.experiment.metric(outcome.metric)
        require(np.isfinite(value), f"{metric.name} is {value}")
        require(not metric.proportion or 0 <= value <= 1, f"{metric.name} is {value}")


def same_seed_same_row(turns: Turns, method: Method) -> None:
    """Whoever ran before."""
    first, again = (run[method.name].values for run in (turns.first, turns.again))
    require(first == again, f"one seed gives {first} and {again}")


def another_seed_compiles_nothing(turns: Turns, method: Method) -> None:
    """And has the same metrics."""
    first, another = turns.first[method.name], turns.another[method.name]
    require(set(first.values) == set(another.values), "another seed has other metrics")
    require(not another.compiled, f"another seed compiles {another.compiled}")


def accelerators_run_its_programs(turns: Turns, method: Method) -> None:
    """Its programs are lowered for CUDA and for TPU, without either, and no product of float32
    numbers is left to a device's own precision; what runs on the host is said, and why."""
    for program in turns.first[method.name].programs:
        lowers(program)


def lowers(program: Program) -> None:
    """See `accelerators_run_its_programs`."""
    try:
        traced = program.traced
    except HostError:
        require(program.name in ON_HOST, f"{program.name} runs on the host")
        return
    with jax.enable_x64(program.x64):
        lower(traced)
    reduced = program.reduced()
    require(not reduced, f"{program.name} leaves to a device's precision: {reduced[:1]}")


def messages_that_are_not_finite_give_no_score(turns: Turns, method: Method) -> None:
    """But for methods that look at none."""
    scored = {o.metric: o.value for o in turns.broken[method.name].scored}
    if method.observes:
        require(not scored, f"messages that are not finite give {scored}")
    else:
        require(scored, "it observes, though it says that it does not")


LAWS = (
    its_messages_give_a_score,
    same_seed_same_row,
    another_seed_compiles_nothing,
    accelerators_run_its_programs,
    messages_that_are_not_finite_give_no_score,
)


@functools.lru_cache(maxsize=4)
def _turns_of(cell: Cell, methods: tuple[str, ...]) -> Turns:
    return Turns(cell, methods)


def laws_of(cell: Cell, method: str, methods: tuple[str, ...]) -> dict[str, Law]:
    """Laws of a method's rows, by name; `methods` of the cell, it among them, run in turn."""
    record, turns = cell.experiment.method(method), _turns_of(cell, methods)
    return {
        law.__name__: Law(law.__name__, method, functools.partial(law, turns, record))
        for law in LAWS
    }
