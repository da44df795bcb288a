"""What rows of an audit say, in words that need no vocabulary."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.harness.intervals import Interval, accuracy_interval, student_interval
from benchmarks.harness.report import GUESSES

DECODERS = ("gls", "adam", "closed_form", "cos")
"""Attacks on an attribute, the one that reads most kinds of client first: that is chosen before
anything is scored."""
LEARNT_NOTHING = 0.02
"""Accuracy above the most frequent class below which a model is of no use."""
Rows = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Level:
    """What an attack reads of one column under one protection.

    Attributes:
      epsilon: of private training; infinity without.
      method: the attack that counts.
      estimate: share of records named right.
      guesses: mean of each of three guesses without messages.
      margin: by how much it is better than the best of them, client by client.
      explained: whether its answers explain the messages.
      model: accuracy of the trained model on held-out records.
    """

    epsilon: float
    method: str
    estimate: Interval
    guesses: Mapping[str, float]
    margin: Interval
    explained: bool
    model: float

    @property
    def guess(self) -> float:
        """The best guess."""
        return max(self.guesses.values())

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
        """The weakest protection under which, and under all stronger ones, no more is learnt than
        can be guessed."""
        weakest = None
        for level in reversed(self.levels[1:]):
            if level.learnt:
                break
            weakest = level
        return weakest


def level_of(epsilon: float, rows: Rows) -> Level:
    """From the rows of one column under one protection."""
    ran = {row["method"] for row in rows if row["value"] is not None}
    method = next((name for name in DECODERS if name in ran), "")
    chosen = [row for row in rows if row["method"] == method and row["value"] is not None]
    values = [row["value"] for row in chosen]
    best = [max(row[name] for name in GUESSES if row[name] is not None) for row in chosen]
    scored = int(chosen[0]["detail"].get("scored_records", 0)) if chosen else 0
    return Level(
        epsilon,
        method,
        accuracy_interval(values, scored),
        {name: _mean([row[name] for row in chosen if row[name] is not None]) for name in GUESSES},
        margin_of(values, best, scored),
        bool(chosen) and all(row["status"] == "ok" for row in chosen),
        _mean([row["test_accuracy"] for row in chosen]),
    )


def margin_of(values: Sequence[float], best: Sequence[float], scored: int) -> Interval:
    """By how much accuracies exceed the best guess of the same client: Student's t over clients; of
    one client Wilson's interval over its records."""
    if len(values) == 1 and scored:
        ends = accuracy_interval(values, scored)
        return Interval(*(end - best[0] for end in ends))
    return student_interval([v - g for v, g in zip(values, best, strict=True)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def finding_of(column: str, values: tuple[str, ...], usual: float, rows: Rows) -> Finding:
    """From all rows of one column."""
    epsilons = {float(row["settings"]["epsilon"]) for row in rows}
    levels = (
        level_of(e, [row for row in rows if float(row["settings"]["epsilon"]) == e])
        for e in sorted(epsilons, reverse=True)
    )
    return Finding(column, values, tuple(levels), usual)


@dataclasses.dataclass(frozen=True)
class Whole:
    """Whole records read of one update.

    Attributes:
      records: of the client.
      read: how many on average, all columns and the label.
      certified_wrong: of all that were called certain, how many were no one's.
      updates: how many updates were attacked.
    """

    records: int
    read: float
    certified_wrong: int
    updates: int


def whole_of(rows: Rows) -> Whole | None:
    """From the rows of whole records; None if there are none."""
    mine = [row for row in rows if row["method"] == "reconstruct_records"]
    by_metric = {
        m: [r["value"] for r in mine if r["metric"] == m and r["value"] is not None]
        for m in ("records_exact", "certified_wrong")
    }
    shares = by_metric["records_exact"]
    if not shares:
        return None
    records = int(mine[0]["settings"]["records"])
    read = records * sum(shares) / len(shares)
    return Whole(records, read, int(sum(by_metric["certified_wrong"])), len(shares))


def of_hundred(share: float) -> str:
    """A share, to be said aloud."""
    return f"{100 * share:.0f} of 100" if math.isfinite(share) else "unknown"


def _listed(names: Iterable[str]) -> str:
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
    return Source(
        "whoever reads the updates that a client sends", f"{rounds} updates of one client"
    )


def of_global_models(rounds: int) -> Source:
    """Global models alone."""
    reader = "whoever has the global models, and nothing of single clients,"
    return Source(reader, f"the global models of {rounds + 1} rounds")


def leaked(findings: Sequence[Finding], source: Source) -> str:
    """What is learnt without protection: the first sentence."""
    learnt = [f for f in findings if f.levels[0].learnt]
    if not learnt:
        best = max(findings, key=lambda f: f.levels[0].estimate.mean)
        level = best.levels[0]
        if not level.explained:
            return (
                "It cannot be told: these updates are not of clients that train as was said, and "
                f"nothing was found in them ({of_hundred(level.estimate.mean)} right, "
                f"{of_hundred(level.guess)} by a guess). What they are of stands below."
            )
        return (
            f"No: {source.reader} names "
            f"{_listed(repr(f.column) for f in findings)} no better than someone who guesses "
            f"({of_hundred(level.estimate.mean)} right, {of_hundred(level.guess)} by a guess)."
        )
    told = _listed(
        f"{f.column!r} of {of_hundred(f.levels[0].estimate.mean)} of its people "
        f"(without the updates {of_hundred(f.levels[0].guess)} can be guessed)"
        for f in learnt
    )
    return f"Yes: {source.reader} learns {told}."


def also(whole: Whole | None, source: Source) -> str:
    """What it takes, and what one update alone gives away: the second sentence."""
    needs = f"That takes {source.needs}, and people's rows but for that column"
    if whole is None:
        return f"{needs}."
    return (
        f"{needs}; but from a single update on {whole.records} people, without knowing anything of "
        f"them, {whole.read:.0f} of these {whole.records} people's rows were read in full."
    )


def stopped(findings: Sequence[Finding]) -> str:
    """What stops it, and at what cost: the third sentence."""
    learnt = [f for f in findings if f.levels[0].learnt]
    if not learnt:
        return "So there is nothing to be stopped here; other clients and more updates may differ."
    if len(learnt[0].levels) == 1:
        return "No protection was tried here."
    stops = [f.stopped_by for f in learnt]
    if any(level is None for level in stops):
        still = [f.column for f, level in zip(learnt, stops, strict=True) if level is None]
        return f"None of the protections that were tried keeps {_listed(map(repr, still))} secret."
    strongest = min((level for level in stops if level is not None), key=lambda v: v.epsilon)
    finding = learnt[0]
    before = finding.levels[0].model
    cost = (
        f"the model is right about {of_hundred(strongest.model)} instead of {of_hundred(before)}"
        f" new records ({of_hundred(finding.usual)} by always giving the same answer)"
    )
    return (
        f"Private training (differential privacy, epsilon {strongest.epsilon:g}) stops it: no more "
        f"is learnt than can be guessed; then {cost}."
    )


def sentences(findings: Sequence[Finding], whole: Whole | None, source: Source) -> tuple[str, ...]:
    """The answer."""
    return leaked(findings, source), also(whole, source), stopped(findings)


def notes(rows: Rows, findings: Sequence[Finding], whole: Whole | None) -> list[str]:
    """What else a reader must know."""
    told = []
    members = [r for r in rows if r["table"] == "membership" and r["metric"] == "accuracy"]
    for epsilon in sorted({float(r["settings"]["epsilon"]) for r in members}, reverse=True):
        values = [
            r["value"]
            for r in members
            if float(r["settings"]["epsilon"]) == epsilon and r["value"] is not None
        ]
        named = "without protection" if math.isinf(epsilon) else f"at epsilon {epsilon:g}"
        told.append(
            f"Whether a known person is among a client's records is named right for "
            f"{of_hundred(_mean(values))} people {named} (50 of 100 by chance)."
        )
    if whole is not None:
        told.append(
            f"Whole rows were read from {whole.updates} updates of {whole.records} people each; of "
            f"all rows that the attack called certain, {whole.certified_wrong} were no one's."
        )
    for finding in findings:
        model = finding.levels[0].model
        if model < finding.usual + LEARNT_NOTHING:
            told.append(
                f"The model itself has learnt little: it is right about {of_hundred(model)} new "
                f"records, {of_hundred(finding.usual)} by always giving the same answer."
            )
    return list(dict.fromkeys(told))
