"""Laws of rows, which bind every method of every experiment.

All methods of one small cell run in turn: twice with one seed, the second time in the opposite
order; with another seed; and on messages that are not finite. Laws look at these four runs, each of
which is made once.
"""

import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from attacks import FitWarning
from benchmarks.harness.experiment import Method
from benchmarks.harness.jobs import Cell, Job, Outcome, group
from benchmarks.harness.programs import Call, HostError, Program, watched
from benchmarks.harness.runner import run_safely
from benchmarks.laws.calls import Calls, called
from benchmarks.laws.law import Law, require
from benchmarks.laws.programs import compilations, lower, never_waits
from benchmarks.laws.recordings import BROKEN, OF_NOBODY, recorded_by

SCORED = ("ok", "misfit", "unchecked")
"""Statuses of rows that have a score."""
TIMES = {"compile_s", "run_s"}
DEVIATIONS = 4
"""By which a score may exceed a guess: fair guesses do in one case of 30,000."""
FEW = 20
"""Records that a proportion of a specimen is of at least, if it does not say."""
SEEDS = 5
"""Seeds of messages of nobody. With `FEW` records, a score .2 above a guess is not by chance."""


@dataclasses.dataclass
class Turn:
    """What happened while one method ran.

    Attributes:
      outcomes: its own.
      programs: that it ran.
      compiled: names of what was compiled.
      calls: of attacks.
    """

    outcomes: list[Outcome]
    programs: set[Program]
    compiled: list[str]
    calls: Calls

    @property
    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """All that is said but how long it took, by metric and selection."""
        return {(o.metric, o.selection): _row(o) for o in self.outcomes}

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
        """Turns of the first run."""
        return self.turns(self.jobs())

    @functools.cached_property
    def again(self) -> dict[str, Turn]:
        """Turns with the same seed, the last method first."""
        return self.turns(self.jobs()[::-1])

    @functools.cached_property
    def another(self) -> dict[str, Turn]:
        """Turns with another seed, when all has run before, so that nothing is left to compile."""
        self.first, self.again  # noqa: B018 - they are run
        return self.turns(self.jobs(1))

    @functools.cached_property
    def broken(self) -> dict[str, Turn]:
        """Turns on messages that are not finite; a failure is a status, as in a sweep."""
        (together,) = group(self.jobs())
        with recorded_by(BROKEN) as recorded:
            turns = _turns(run_safely(together, None))
        self._require_some(recorded)
        return turns

    @functools.cached_property
    def of_nobody(self) -> dict[str, Turn]:
        """Turns on messages that have nothing to do with what is scored, of `SEEDS` seeds."""
        with recorded_by(OF_NOBODY) as recorded, warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # they are
            jobs = [job for seed in range(SEEDS) for job in self.jobs(seed)]
            turns = _turns(
                itertools.chain.from_iterable(
                    self.cell.experiment.run(each.jobs, None) for each in group(jobs)
                )
            )
        self._require_some(recorded)
        return turns

    def _require_some(self, recorded: list[str]) -> None:
        observed = any(self.cell.experiment.method(name).observes for name in self.methods)
        names = "neither by `simulate` nor by `sent_gradient`"
        require(recorded or not observed, f"messages are recorded {names}: nothing is looked at")


def _row(outcome: Outcome) -> dict[str, Any]:
    fields = {field.name for field in dataclasses.fields(outcome)} - TIMES - {"job"}
    row = {name: getattr(outcome, name) for name in fields}
    row["detail"] = {k: v for k, v in outcome.detail.items() if not k.endswith("_s")}
    row["images"] = {caption: image.tolist() for caption, image in outcome.images.items()}
    return row


def _turns(run: Iterable[Sequence[Outcome]]) -> dict[str, Turn]:
    turns: dict[str, Turn] = {}
    ran: list[Call] = []
    calls = Calls()
    with called(calls), watched(ran, repeats=0), compilations() as compiled:
        for outcomes in run:
            for outcome in outcomes:
                turn = turns.setdefault(outcome.job.method, Turn([], set(), [], Calls()))
                turn.outcomes.append(outcome)
                turn.programs |= {call.program for call in ran}
                turn.compiled += compiled
                turn.calls.add(calls)
            calls.clear()
            ran.clear()
            compiled.clear()
    return turns


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
    first, again = (run[method.name].rows for run in (turns.first, turns.again))
    require(set(first) == set(again), f"one seed measures {set(first)} and {set(again)}")
    for measured, row in first.items():
        other = again[measured]
        apart = {k: (v, other[k]) for k, v in row.items() if k != "images" and v != other[k]}
        require(not apart, f"one seed gives two {measured}: {apart}")
        require(row["images"] == other["images"], f"one seed gives two pictures of {measured}")


def another_seed_compiles_nothing(turns: Turns, method: Method) -> None:
    """And has the same metrics."""
    first, another = turns.first[method.name], turns.another[method.name]
    require(set(first.rows) == set(another.rows), "another seed has other metrics")
    require(not another.compiled, f"another seed compiles {another.compiled}")


def accelerators_run_its_programs(turns: Turns, method: Method) -> None:
    """Its programs are lowered for CUDA and for TPU, without either, none of them waits for the
    host, and no product of float32 numbers is left to a device's own precision; on a CPU no two of
    its calls of LAPACK may wait for each other; what runs on the host is said, and why."""
    programs = turns.first[method.name].programs
    unseen = "it calls no `checked` attack, nor `run_members` or `simulate`: nothing is looked at"
    require(programs or method.oracle or not method.observes, unseen)
    for program in programs:
        lowers(program)


def lowers(program: Program) -> None:
    """See `accelerators_run_its_programs`."""
    try:
        traced = program.traced
    except HostError:
        require(program.on_host, f"{program.name} runs on the host, and no `on_host` says why")
        return
    with jax.enable_x64(program.x64):
        lower(traced)
    waits = program.host_calls()
    require(not waits, f"{program.name} waits for the host: {waits[:1]}")
    reduced = program.reduced()
    require(not reduced, f"{program.name} leaves to a device's precision: {reduced[:1]}")
    never_waits(traced)


def messages_that_are_not_finite_give_no_score(turns: Turns, method: Method) -> None:
    """But for methods that look at none."""
    scored = {o.metric: o.value for o in turns.broken[method.name].scored}
    if method.observes:
        require(not scored, f"messages that are not finite give {scored}")
    else:
        require(scored, "it observes, though it says that it does not")


def messages_of_nobody_tell_no_more_than_a_guess(turns: Turns, method: Method) -> None:
    """Messages of nobody are of records that nobody holds, dealt to senders anew in every round. A
    score above every guess has the truth from elsewhere. An oracle and a ceiling have it, and say
    so; a guess has no truth from elsewhere either."""
    if method.oracle or method.ceiling:
        return
    scored = turns.of_nobody[method.name].scored
    for metric, selection in {(o.metric, o.selection): None for o in scored}:
        measured = [o for o in scored if (o.metric, o.selection) == (metric, selection)]
        guesses = [guess for guess in map(_guess, measured) if guess is not None]
        if not guesses or not turns.cell.experiment.metric(metric).proportion:
            continue
        if selection == "oracle":
            continue
        guess, value = np.mean(guesses), np.mean([o.value for o in measured])
        spread = 0.5 / math.sqrt(sum(map(_records, measured)))
        known = f"{metric} of messages of nobody is {value:.3f}, of a guess {guess:.3f}"
        require(value <= guess + DEVIATIONS * spread, f"{known}: the truth leaks into it")


def messages_of_nobody_are_not_explained(turns: Turns, method: Method) -> None:
    """A method that tells a misfit explains the client's own messages, or cannot judge them, and
    does not explain nobody's."""
    own = [o for o in turns.first[method.name].scored if o.misfit is not None]
    require(all(o.status != "misfit" for o in own), "the client's own messages are a misfit")
    told = [o for o in turns.of_nobody[method.name].scored if o.misfit is not None]
    explained = [o.job.seed for o in told if o.status == "ok"]
    require(not explained, f"messages of nobody are called explained, with seeds {explained}")


def _records(outcome: Outcome) -> float:
    records = outcome.detail.get("scored_records")
    return records if isinstance(records, (int, float)) and records else FEW


def _guess(outcome: Outcome) -> float | None:
    guesses = (outcome.chance, outcome.majority, outcome.imputation)
    return max((g for g in guesses if g is not None), default=None)


LAWS = (
    its_messages_give_a_score,
    same_seed_same_row,
    another_seed_compiles_nothing,
    accelerators_run_its_programs,
    messages_that_are_not_finite_give_no_score,
    messages_of_nobody_tell_no_more_than_a_guess,
    messages_of_nobody_are_not_explained,
)


@functools.lru_cache(maxsize=4)
def turns_of(cell: Cell, methods: tuple[str, ...]) -> Turns:
    """Methods of a cell, run in turn once for all laws."""
    return Turns(cell, methods)


def laws_of(cell: Cell, method: str, methods: tuple[str, ...]) -> dict[str, Law]:
    """Laws of a method's rows, by name; `methods` of the cell, it among them, run in turn."""
    record, turns = cell.experiment.method(method), turns_of(cell, methods)
    return {
        law.__name__: Law(law.__name__, method, functools.partial(law, turns, record))
        for law in LAWS
    }
