"""What rows of an audit say, in words that need no vocabulary."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.harness.intervals import (
    Interval,
    accuracy_interval,
    equivalent_count,
    student_interval,
    wilson_interval,
)
from benchmarks.harness.report import GUESSES

DECODERS = ("gls", "decode_adam", "gls_unrolled", "closed_form", "cos")
"""Attacks on an attribute, the one that reads most kinds of client first: that is chosen before
anything is scored."""
ROUNDING = 1e-6
DOUBTS = {
    "failed": "training, or every attack, ended with numbers that are not finite, or no model came "
    "back changed",
    "misfit": "these updates are not of clients that train as was said, and nothing was found in "
    "them",
    "unchecked": "rounding and noise may be as large as these updates, so that they contradict no "
    "answer",
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
    """

    epsilon: float
    method: str
    estimate: Interval
    guesses: Mapping[str, float]
    margin: Interval
    doubt: str
    model: float
    untold: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def guess(self) -> float:
        """The best guess."""
        return max(self.guesses.values(), key=_or_least)

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
    """

    column: str
    values: tuple[str, ...]
    levels: tuple[Level, ...]
    usual: float

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
    # A recorded run is asked of its own clients, all of whom are there.
    judge = margin_here if sure else margin_of
    named = ", ".join(name for name in DECODERS if name in methods)
    doubted = {
        doubt: tuple(row["client"] for row in rows if DOUBTFUL.get(row["status"]) == doubt)
        for doubt in DOUBTS
    }
    untold = {doubt: names for doubt, names in doubted.items() if names} if sure else {}
    return dataclasses.replace(_level(math.inf, named, counted, judge), untold=untold)


def _level(epsilon: float, method: str, rows: Rows, judge: Callable[..., Interval]) -> Level:
    chosen = [row for row in rows if row["value"] is not None]
    values = [row["value"] for row in chosen]
    best = [_best_of(row) for row in chosen]
    sizes = [int(row["detail"].get("scored_records", 0)) for row in chosen]
    scored = equivalent_count(sizes) // len(sizes) if sizes and all(sizes) else 0
    return Level(
        epsilon,
        method,
        accuracy_interval(values, scored),
        {name: mean([row[name] for row in chosen if row[name] is not None]) for name in GUESSES},
        judge(values, best, sizes),
        next((d for d in DOUBTS if any(row["status"] == d for row in chosen)), "")
        if chosen
        else "failed",
        mean([row["test_accuracy"] for row in chosen if row["test_accuracy"] is not None]),
    )


def _best_of(row: Mapping[str, Any]) -> float:
    return max((row[name] or 0.0) for name in GUESSES)


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
    return Interval(over_clients.mean, low, high)


def margin_here(values: Sequence[float], best: Sequence[float], sizes: Sequence[int]) -> Interval:
    """The same for these very clients, chance being in their records alone: the mean of differences
    of two proportions, each with the score interval of Newcombe (1998)."""
    below, above = 0.0, 0.0
    for value, guess, size in zip(values, best, sizes, strict=True):
        read, guessed = (wilson_interval(round(p * size), size) for p in (value, guess))
        below += (value - read.low) ** 2 + (guessed.high - guess) ** 2
        above += (read.high - value) ** 2 + (guess - guessed.low) ** 2
    difference = mean(values) - mean(best)
    low, high = (math.sqrt(each) / len(values) for each in (below, above))
    return Interval(difference, difference - low, difference + high)


def _or_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def mean(values: Sequence[float]) -> float:
    """NaN of none."""
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


def of_hundred(share: float) -> str:
    """A share, to be said aloud."""
    return f"{100 * share:.0f} of 100" if math.isfinite(share) else "an unknown number"


def listed(names: Iterable[str]) -> str:
    """Names as a sentence has them."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


@dataclasses.dataclass(frozen=True)
class Source:
    """What was read, in words.

    Attributes:
      reader: who reads it.
      needs: what it takes beside knowledge of the records.
    """

    reader: str
    needs: str


def of_clients(rounds: int) -> Source:
    """A client's updates."""
    reader = "someone who reads what a client sends, and holds its records without that column,"
    updates = "one update" if rounds == 1 else f"{rounds} updates"
    return Source(reader, f"{updates} of that client")


def of_global_models(rounds: int) -> Source:
    """Global models alone."""
    reader = "someone who has the global models alone, and holds all records without that column,"
    return Source(
        reader, f"the global models of {rounds + 1} rounds, and nothing of single clients"
    )


def leaked(findings: Sequence[Finding], source: Source) -> str:
    """What is learnt without protection: the first sentence."""
    learnt = [f for f in findings if f.levels[0].learnt]
    if learnt:
        told = listed(
            f"{f.column!r} of {of_hundred(f.levels[0].estimate.mean)} people"
            f" ({_guessed(f.levels[0])})"
            for f in learnt
        )
        untold = [f for f in findings if f not in learnt and f.levels[0].doubt]
        yes = f"Yes: {source.reader} names rightly {told}."
        return " ".join([yes, *_untold_clients(findings), *_untold(untold)])
    sure = [f for f in findings if not f.levels[0].doubt]
    if sure:
        best = max(sure, key=lambda f: f.levels[0].estimate.mean)
        names, scored = listed(repr(f.column) for f in sure), _scored(best.levels[0])
        shown = f"Not shown: {source.reader} names {names} no better than by guessing{scored}."
        if any(_may_leak(f) for f in sure):
            shown = (
                f"Not shown: that {source.reader} names {names} better than by guessing{scored}. "
                "So few people, or so few clients, do not show it."
            )
        rest = _untold([f for f in findings if f not in sure])
        return " ".join([shown, *_untold_clients(findings), *rest])
    return " ".join(_untold(findings, alone=len(findings) == 1))


def _may_leak(finding: Finding) -> bool:
    """Whether the attack is better than all guesses, though not beyond doubt."""
    return finding.levels[0].margin.mean > ROUNDING


def _untold_clients(findings: Sequence[Finding]) -> list[str]:
    """Of which clients nothing can be said, and why."""
    which = [f", {f.column!r}," if len(findings) > 1 else "" for f in findings]
    return [
        f"Of {listed(names)}{column} it cannot be told: {DOUBTS[doubt]}."
        for f, column in zip(findings, which, strict=True)
        for doubt, names in f.levels[0].untold.items()
    ]


def _untold(findings: Sequence[Finding], alone: bool = False) -> list[str]:
    """Of which columns nothing can be said, and why."""
    told = []
    for f in findings:
        level = f.levels[0]
        scored = "" if level.doubt == "failed" else _scored(level)
        of = "" if alone else f" of {f.column!r}"
        told.append(f"It cannot be told{of}: {DOUBTS[level.doubt]}{scored}. See the notes below.")
    return told


def _scored(level: Level) -> str:
    return f" ({of_hundred(level.estimate.mean)} right; {_guessed(level)})"


def _guessed(level: Level) -> str:
    """What the best guess is, and what it needs."""
    blind = f"without updates, {of_hundred(level.blind_guess)} can be guessed"
    if level.guess > level.blind_guess:
        return f"{blind}, and another client's updates give {of_hundred(level.guess)}"
    return blind


def also(wholes: Sequence[Whole], source: Source) -> str:
    """What it takes, and what one update alone gives away: the second sentence."""
    needs = f"That takes {source.needs}."
    if not wholes:
        return needs
    whole = wholes[0]
    return (
        f"{needs} A second attack needs one update on {whole.records} people, and knows nothing of "
        f"them: it read {whole.read:.0f} of their {whole.records} complete rows, on average."
    )


def stopped(findings: Sequence[Finding], wholes: Sequence[Whole] = ()) -> str:
    """What stops it, and at what cost: the third sentence."""
    learnt = [f for f in findings if f.levels[0].learnt]
    if not learnt and any(f.levels[0].doubt or f.levels[0].untold for f in findings):
        return "So it cannot be told either whether anything has to be stopped."
    if not learnt and any(map(_may_leak, findings)):
        return "So it is not shown that anything has to be stopped; more people would tell."
    if not learnt:
        return "So nothing had to be stopped here; other clients and more updates may differ."
    if len(learnt[0].levels) == 1:
        return "No protection was tried here."
    stops = [f.stopped_by for f in learnt]
    if any(level is None for level in stops):
        still = [f.column for f, level in zip(learnt, stops, strict=True) if level is None]
        return f"No protection that was tried is shown to keep {listed(map(repr, still))} secret."
    weakest = min((level for level in stops if level is not None), key=lambda v: v.epsilon)
    finding = learnt[0]
    rows = next((w for w in wholes if w.epsilon == weakest.epsilon), None)
    second = "" if rows is None else f", and the second {rows.read:.0f} of {rows.records} rows"
    which = "first attack" if wholes else "attack"
    doubt = f" (there {DOUBTS[weakest.doubt]})" if weakest.doubt else ""
    return (
        f"Private training (noise is added; epsilon {weakest.epsilon:g} or less, where less is "
        f"stronger) left the {which} no better than a guess{doubt}{second}. Its price: the model "
        f"is right about {of_hundred(weakest.model)} new people in place of "
        f"{of_hundred(finding.levels[0].model)}; the most common answer alone is right about "
        f"{of_hundred(finding.usual)}."
    )


def sentences(
    findings: Sequence[Finding], wholes: Sequence[Whole], source: Source
) -> tuple[str, ...]:
    """The answer."""
    return leaked(findings, source), also(wholes, source), stopped(findings, wholes)


def protection(epsilon: float) -> str:
    """In words."""
    return f"epsilon {epsilon:g}" if math.isfinite(epsilon) else "none"
