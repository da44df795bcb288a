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
ROUNDING = 1e-6
DOUBTS = {
    "misfit": "these updates are not of clients that train as was said, and nothing was found in "
    "them",
    "unchecked": "rounding and noise may be as large as these updates, so that they contradict no "
    "answer",
}
"""Of a level's answers, in words."""
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
      doubt: "misfit" if one of its answers does not explain the messages, or there is none;
        "unchecked" if these could not contradict one; else "".
      model: accuracy of the trained model on held-out records.
    """

    epsilon: float
    method: str
    estimate: Interval
    guesses: Mapping[str, float]
    margin: Interval
    doubt: str
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
        next((d for d in DOUBTS if any(row["status"] == d for row in chosen)), "")
        if chosen
        else "misfit",
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
    return Whole(epsilon, records, records * _mean(exact), certified, int(sum(wrong)), len(exact))


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
    return Source(reader, f"{rounds} updates of that client")


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
            f" (without updates, {of_hundred(f.levels[0].guess)} can be guessed)"
            for f in learnt
        )
        return f"Yes: {source.reader} names rightly {told}."
    best = max(findings, key=lambda f: f.levels[0].estimate.mean)
    level = best.levels[0]
    scored = f"{of_hundred(level.estimate.mean)} right, {of_hundred(level.guess)} by the best guess"
    if level.doubt:
        return f"It cannot be told: {DOUBTS[level.doubt]} ({scored}). See the notes below."
    names = listed(repr(f.column) for f in findings)
    return f"Not shown: {source.reader} names {names} no better than by guessing ({scored})."


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
    return (
        f"Private training (noise is added; epsilon {weakest.epsilon:g} or less, where less is "
        f"stronger) left the first attack no better than a guess{second}. Its price: the model is "
        f"right about {of_hundred(weakest.model)} new people in place of "
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


def notes(rows: Rows, findings: Sequence[Finding], wholes: Sequence[Whole]) -> list[str]:
    """What else a reader must know."""
    members = [row for row in rows if row["table"] == "membership"]
    named = [_membership(epsilon, mine) for epsilon, mine in _by_epsilon(members, "accuracy")]
    certain = [_certainty(whole) for whole in wholes]
    useless = [
        f"With protection {protection(level.epsilon)} the model is barely of use: right about "
        f"{of_hundred(level.model)} new people, the most common answer about "
        f"{of_hundred(finding.usual)}. More records for each client help."
        for finding in findings
        for level in finding.levels
        if level.model < finding.usual + LEARNT_NOTHING
    ]
    shown = [_shown(epsilon, mine) for epsilon, mine in _by_epsilon(rows, "epsilon_bound")]
    return list(dict.fromkeys([*named, *_sourced(rows), *certain, *shown, *useless]))


def summed(column: str, value: str, rows: Rows) -> list[str]:
    """What sums alone tell of a column, in words; from the rows of its accuracy, if there are."""
    told = [row for row in rows if row["value"] is not None]
    if not told:
        return []
    settings = told[0]["settings"]
    clients = int(settings["clients"])
    by_epsilon = _by_protection(told, "table.epsilon")
    outcomes = listed(
        f"{round(clients * sum(r['value'] for r in mine))} of {clients * len(mine)} clients "
        f"{_with(epsilon)}"
        for epsilon, mine in by_epsilon
    )
    usual = of_hundred(_mean([row["majority"] for row in told]))
    plain = by_epsilon[0][1]
    margin = margin_of([r["value"] for r in plain], [r["majority"] for r in plain], clients)
    hides = (
        "So secure aggregation alone does not hide it."
        if margin.low > 0
        else "That this leaks is not shown."
    )
    return [
        f"Behind secure aggregation, which shows sums over {settings['per_round']} of {clients} "
        f"clients alone: whether a client holds many people with {column} = {value} was told "
        f"rightly, after {settings['rounds']} rounds, of {outcomes}. Saying the same of all is "
        f"right about {usual}. {hides}"
    ]


def _sourced(rows: Rows) -> list[str]:
    """Whose a record is, in words."""
    told = [
        row
        for row in rows
        if row["metric"] == "source_accuracy"
        and row["method"] == "decode_sources"
        and row["value"] is not None
    ]
    if not told:
        return []
    outcomes = listed(
        f"{of_hundred(_mean([row['value'] for row in mine]))} people {_with(epsilon)}"
        + (
            ", by an answer that does not explain the updates"
            if any(row["status"] in DOUBTS for row in mine)
            else ""
        )
        for epsilon, mine in _by_protection(told, "epsilon")
    )
    return [
        "Someone who sees what every client sends, and has all people's records but not whose "
        f"they are, named the right one of {told[0]['settings']['attacked']} clients for "
        f"{outcomes}; by chance {of_hundred(_mean([row['chance'] for row in told]))}."
    ]


def _by_protection(rows: Rows, setting: str) -> list[tuple[float, list[Mapping[str, Any]]]]:
    """Rows by the epsilon that is promised, the largest first; infinite without protection."""
    groups: dict[float, list[Mapping[str, Any]]] = {}
    for row in rows:
        private = row["settings"].get("defense") != "none"
        epsilon = float(row["settings"][setting]) if private else math.inf
        groups.setdefault(epsilon, []).append(row)
    return sorted(groups.items(), key=lambda group: -group[0])


def _with(epsilon: float) -> str:
    return f"with {protection(epsilon)}" if math.isfinite(epsilon) else "without protection"


def _by_epsilon(rows: Rows, metric: str) -> list[tuple[float, list[float]]]:
    """Values of a metric by the epsilon that is promised, the largest first."""
    by_epsilon: dict[float, list[float]] = {}
    for row in rows:
        if row["metric"] == metric:
            values = by_epsilon.setdefault(float(row["settings"]["epsilon"]), [])
            values += [row["value"]] if row["value"] is not None else []
    return sorted(by_epsilon.items(), reverse=True)


def _membership(epsilon: float, values: Sequence[float]) -> str:
    return (
        "Whether a known person is among a client's records was named rightly for "
        f"{of_hundred(_mean(values))} people (protection: {protection(epsilon)}; by chance 50)."
    )


def _shown(promised: float, bounds: Sequence[float]) -> str:
    if not bounds:
        return f"The noise promises an epsilon of {promised:g} at most; nothing was measured."
    least, most = (math.floor(100 * end(bounds)) / 100 for end in (min, max))
    shown = f"{least:g} or more" if least == most else f"{least:g} to {most:g} or more"
    told = (
        f"The noise promises an epsilon of {promised:g} at most. Updates show "
        f"{shown if most > 0 else 'nothing of it'}, measured with canaries, which are made-up "
        f"gradients (bounds of {len(bounds)} clients, 95 % confidence each)."
    )
    if min(bounds) <= promised:
        return told
    chance = 100 * 0.05 ** len(bounds)
    return (
        f"{told} That is more than is promised, which a right accountant and right noise give in "
        f"{chance:.2g} % of such audits at most: look for a fault in either."
    )


def _certainty(whole: Whole) -> str:
    return (
        f"Complete rows (all columns and the answer), protection {protection(whole.epsilon)}: "
        f"{whole.read:.1f} of {whole.records} on average over {whole.updates} updates. The "
        f"attacker was certain of {whole.certified} rows, {whole.certified_wrong} of them no one's."
    )
