"""What rows of an audit say: how much is read of each column, and against which guess."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.harness.intervals import (
    Interval,
    accuracy_interval,
    equivalent_count,
    student_interval,
    wilson_interval,
)
from benchmarks.harness.report import GUESSES
from benchmarks.measurements.attributes.uncommon import NULL_STATUS, UNCOMMON

DECODERS = ("gls", "decode_adam", "gls_unrolled", "closed_form", "cos", "decode_numbers")
"""Attacks on an attribute, the one that reads most kinds of client first: that is chosen before
anything is scored."""
ROUNDING = 1e-6
HUNDRED = 100
"""People in whose terms a share is said where as many were named, or more."""
DOUBTS = {
    "failed": "training, or every attack, ended with numbers that are not finite, or no model came "
    "back changed",
    "misfit": "these updates are not of clients that train as was said, so that no answer to "
    "them counts",
    "unchecked": "rounding and noise may be as large as these updates, or as what tells people "
    "apart in them, so that they contradict no answer, or a search through the client's steps "
    "ended short",
}
"""Doubts about a level's answers, in words."""
DOUBTFUL = {"diverged": "failed", "misfit": "misfit", "unchecked": "unchecked"}
"""Doubts by a row's status."""
Rows = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Level:
    """What an attack reads of one column under one protection.

    Attributes:
      epsilon: of private training; infinity without.
      method: the attack that counts.
      estimate: share of records named right.
      guesses: mean of each of three guesses: two without messages, and the same attack on another
        client's.
      margin: by how much it is better than the best of them.
      doubt: "failed" if there is no answer; "misfit" if one does not explain the messages;
        "unchecked" if these could not contradict one; else "".
      model: accuracy of the trained model on held-out records.
      untold: by doubt, clients of whom nothing can be told while it can of others.
      people: how many the estimate is of; 0 where it is of a hundred others like them.
      uncommon: of the people that the estimate is of, how many have another value than their
        client's most common one, how many of them were named rightly, and how many of the rest
        wrongly; None if that is not known.
      null_guess: of the attacks on another client's messages, the mean of those that are a guess
        anyone would make; NaN if none is.
    """

    epsilon: float
    method: str
    estimate: Interval
    guesses: Mapping[str, float]
    margin: Interval
    doubt: str
    model: float
    untold: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    uncommon: tuple[int, ...] | None = None
    people: int = 0
    null_guess: float = math.nan

    @property
    def guess(self) -> float:
        """The best guess."""
        return max(self.blind_guess, self.null_guess, key=_or_least)

    @property
    def blind_guess(self) -> float:
        """The better guess of those that need no messages."""
        return max(self.guesses["majority"], self.guesses["imputation"], key=_or_least)

    @property
    def learnt(self) -> bool:
        """Whether the attack is better than all guesses, beyond doubt."""
        return self.margin.low > 0


@dataclasses.dataclass(frozen=True)
class Finding:
    """What is learnt of one column.

    Attributes:
      column: its name.
      values: what it may be.
      levels: without protection first, then from weak protection to strong.
      usual: accuracy of a model that always names the most frequent class.
      ranges: whether the values are ranges of a number.
      within: of numbers, how near one must be to be right; else 0.
    """

    column: str
    values: tuple[str, ...]
    levels: tuple[Level, ...]
    usual: float
    ranges: bool = False
    within: float = 0.0

    @property
    def name(self) -> str:
        """What is named, in words."""
        if self.within:
            return f"{self.column!r} (to within {self.within:.3g})"
        of = f" (which of {len(self.values)} ranges)" if self.ranges else ""
        return f"{self.column!r}{of}"

    @property
    def stopped_by(self) -> Level | None:
        """The weakest protection under which, and under all stronger ones, the attack is on average
        no better than the best guess. That a leak is not shown is not enough: few clients show
        little."""
        weakest = None
        for level in reversed(self.levels[1:]):
            if level.learnt or not level.margin.mean <= ROUNDING:
                break
            weakest = level
        return weakest


def level_of(epsilon: float, rows: Rows) -> Level:
    """From the rows of one column under one protection."""
    ran = {row["method"] for row in rows if row["value"] is not None}
    method = next((name for name in DECODERS if name in ran), "")
    return _level(epsilon, method, [row for row in rows if row["method"] == method], margin_of)


def level_of_clients(rows: Rows) -> Level:
    """From one row of each client of a recorded run, by the method that read it. Clients whose
    messages confirm no answer count where there are no others, and are named where there are."""
    sure = [row for row in rows if row["status"] == "ok"]
    counted = sure or rows
    methods = {row["method"] for row in counted}
    # A recorded run is asked of its own people, all of whom are there.
    judge = margin_here if sure and all(_sizes(counted)) else margin_of
    named = ", ".join(name for name in DECODERS if name in methods)
    doubted = {
        doubt: tuple(row["client"] for row in rows if DOUBTFUL.get(row["status"]) == doubt)
        for doubt in DOUBTS
    }
    untold = {doubt: names for doubt, names in doubted.items() if names} if sure else {}
    level = _level(math.inf, named, counted, judge)
    named_of = [(row, n) for row, n in zip(counted, _sizes(counted), strict=True) if n]
    told = [(row["value"] * n, n) for row, n in named_of if row["value"] is not None]
    if told:
        hits, people = map(sum, zip(*told, strict=True))
        estimate = wilson_interval(round(hits), people)
        level = dataclasses.replace(level, estimate=estimate, people=people)
    return dataclasses.replace(level, untold=untold)


def _level(epsilon: float, method: str, rows: Rows, judge: Callable[..., Interval]) -> Level:
    chosen = [row for row in rows if row["value"] is not None]
    values = [row["value"] for row in chosen]
    best = [_best_of(row) for row in chosen]
    sizes = _sizes(chosen)
    scored = equivalent_count(sizes) // len(sizes) if sizes and all(sizes) else 0

    def over_people(name: str, rows: Rows = chosen) -> float:
        told = [row for row in rows if row[name] is not None]
        return mean([row[name] for row in told], _sizes(told))

    return Level(
        epsilon,
        method,
        accuracy_interval(values, scored),
        {name: over_people(name) for name in GUESSES},
        judge(values, best, sizes),
        next((d for d in DOUBTS if any(row["status"] == d for row in chosen)), "")
        if chosen
        else "failed",
        mean([row["test_accuracy"] for row in chosen if row["test_accuracy"] is not None]),
        uncommon=_uncommon(chosen),
        people=sum(sizes) if all(sizes) and sum(sizes) < HUNDRED else 0,
        null_guess=over_people("null", [row for row in chosen if _null_counts(row)]),
    )


def _uncommon(rows: Rows) -> tuple[int, ...] | None:
    if not rows or any(UNCOMMON[0] not in row["detail"] for row in rows):
        return None
    return tuple(sum(int(row["detail"][name]) for row in rows) for name in UNCOMMON)


def _sizes(rows: Rows) -> list[int]:
    """How many people were named in each row; 0 where that is not said."""
    return [int(row["detail"].get("scored_records", 0)) for row in rows]


def _best_of(row: Mapping[str, Any]) -> float:
    return max((row[name] or 0.0) for name in GUESSES if name != "null" or _null_counts(row))


def _null_counts(row: Mapping[str, Any]) -> bool:
    """Whether the attack on another client's messages is a guess that anyone would make: it is none
    where that client's messages contradict it, and this one's do not."""
    return not (row["status"] == "ok" and row["detail"].get(NULL_STATUS) == "misfit")


def margin_of(values: Sequence[float], best: Sequence[float], sizes: Sequence[int]) -> Interval:
    """By how much accuracies exceed the best guess of the same client: for other clients like
    these, Student's t over clients, and no narrower than for these clients alone."""
    over_clients = student_interval([v - g for v, g in zip(values, best, strict=True)])
    if not values or not all(sizes):
        return over_clients
    here = margin_here(values, best, sizes)
    if len(values) == 1:
        return here
    low, high = min(over_clients.low, here.low), max(over_clients.high, here.high)
    return Interval(here.mean, low, high)


def margin_here(values: Sequence[float], best: Sequence[float], sizes: Sequence[int]) -> Interval:
    """The same for these very clients, chance being in their records alone: the mean over people of
    differences of two proportions, each with the score interval of Newcombe (1998)."""
    below, above = 0.0, 0.0
    for value, guess, size in zip(values, best, sizes, strict=True):
        read, guessed = (wilson_interval(round(p * size), size) for p in (value, guess))
        share = size / sum(sizes)
        below += share**2 * ((value - read.low) ** 2 + (guessed.high - guess) ** 2)
        above += share**2 * ((read.high - value) ** 2 + (guess - guessed.low) ** 2)
    difference = mean(values, sizes) - mean(best, sizes)
    low, high = math.sqrt(below), math.sqrt(above)
    return Interval(difference, difference - low, difference + high)


def _or_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def mean(values: Sequence[float], sizes: Sequence[int] = ()) -> float:
    """NaN of none. With sizes, all of which are known, over so many people each."""
    if sizes and all(sizes):
        return sum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes)
    return sum(values) / len(values) if values else math.nan


def finding_of(column: str, values: tuple[str, ...], usual: float, rows: Rows) -> Finding:
    """From all rows of one column of a simulated federation."""
    epsilons = {float(row["settings"]["epsilon"]) for row in rows}
    levels = (
        level_of(e, [row for row in rows if float(row["settings"]["epsilon"]) == e])
        for e in sorted(epsilons, reverse=True)
    )
    return Finding(column, values, tuple(levels), usual)


@dataclasses.dataclass(frozen=True)
class Whole:
    """Whole records read of one update under one protection.

    Attributes:
      epsilon: of private training; infinity without.
      records: that the update is of.
      read: how many on average, all columns and the label.
      certified: rows that were called certain, of all updates.
      certified_wrong: how many of them were no one's.
      updates: how many updates were attacked.
    """

    epsilon: float
    records: int
    read: float
    certified: int
    certified_wrong: int
    updates: int


def whole_of(epsilon: float, rows: Rows) -> Whole | None:
    """From the rows of whole records under one protection; None if there are none."""
    mine = [row for row in rows if row["method"] == "reconstruct_records"]
    names = ("records_exact", "certified", "certified_wrong")
    exact, certain, wrong = (
        [r["value"] for r in mine if r["metric"] == m and r["value"] is not None] for m in names
    )
    if not exact:
        return None
    records = int(mine[0]["settings"]["records"])
    certified = round(records * sum(certain))
    return Whole(epsilon, records, records * mean(exact), certified, int(sum(wrong)), len(exact))
