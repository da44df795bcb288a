"""What else a reader of an audit must know: answers to further questions, in a sentence or two."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.audits.findings import DOUBTS, Finding, Rows, Whole, margin_of, mean
from benchmarks.audits.sentences import (
    WHICH_UPDATES,
    WHO_IS_THERE,
    WHOSE,
    listed,
    of_hundred,
    protection,
)
from benchmarks.harness.intervals import accuracy_interval, wilson_interval
from benchmarks.harness.report import GUESSES

HALVES = "with", "without"
NEARLY_ALL = 0.9
"""Share of people with the most common value, above which the few others are counted apart."""
LEARNT_NOTHING = 0.02
"""Accuracy above the most frequent class below which a model is of no use."""


def of_rows(rows: Rows, findings: Sequence[Finding], wholes: Sequence[Whole]) -> list[str]:
    """What else a reader must know."""
    members = [row for row in rows if row["table"] == "membership"]
    named = [_membership(e, mine) for e, mine in _by_epsilon(members, "accuracy") if mine]
    certain = [_certainty(whole) for whole in wholes]
    useless = [note for finding in findings for note in _useless(finding)]
    few = [note for finding in findings for note in of_the_few(finding)]
    shown = [_shown(epsilon, mine) for epsilon, mine in _by_epsilon(rows, "epsilon_bound")]
    others = [*_sourced(rows), *_linked(rows)]
    return list(dict.fromkeys([*few, *named, *others, *certain, *shown, *useless]))


def of_the_few(finding: Finding) -> list[str]:
    """Where nearly all people of a client have one value: how many of the others are named."""
    told = [
        f"{named} of {count} {_with(level.epsilon)} ({wrong} of the rest were said to have another)"
        for level in finding.levels
        if level.uncommon is not None and level.guesses["majority"] > NEARLY_ALL
        for count, named, wrong in [level.uncommon]
        if count
    ]
    if not told:
        return []
    return [
        f"Nearly all people have their client's most common value of {finding.column!r}, so that "
        f"the share of right answers says little. Of those who have another the attack named "
        f"{listed(told)}; saying the most common value of all names none of them."
    ]


def _useless(finding: Finding) -> list[str]:
    """Which protections cost the model its use, in words."""
    # Of targets that are nearly all alike even a perfect model is little better.
    least = finding.usual + min(LEARNT_NOTHING, (1 - finding.usual) / 2)
    levels = [v for v in finding.levels if v.model < least]
    if not levels:
        return []
    outcomes = listed(f"{of_hundred(v.model)} new people {_with(v.epsilon)}" for v in levels)
    return [
        f"The model is barely of use where it is right about {outcomes}: the most common answer is "
        f"right about {of_hundred(finding.usual)}. More records for each client help."
    ]


class Told(NamedTuple):
    """What is told of a further question.

    Attributes:
      note: in words.
      leaks: whether, without protection, more is told than by chance, with 95 % confidence.
    """

    note: str
    leaks: bool


def answered_beside(rows: Rows) -> list[str]:
    """What else leaks without protection, in words."""
    members = [row for row in rows if row["table"] == "membership"]
    asked = {
        WHO_IS_THERE: _scored(members, "closed_form", "accuracy"),
        WHOSE: _scored(rows, "decode_sources", "source_accuracy"),
        WHICH_UPDATES: _scored(rows, "matched_filter", "precision"),
    }
    return [what for what, mine in asked.items() if _beats_chance(mine)]


def _beats_chance(rows: Rows) -> bool:
    """By Student's t over rows; over people where rows say of how many they are, and agree."""
    plain = [row for row in rows if row["chance"] is not None and not _is_private(row)]
    if not plain:
        return False
    people = min(int(row["detail"].get("scored_records", 0)) for row in plain)
    least = accuracy_interval([row["value"] for row in plain], people).low
    return least > mean([row["chance"] for row in plain])


def summed(column: str, value: str, rows: Rows) -> list[Told]:
    """What sums alone tell of a column; from the rows of its accuracy, if there are."""
    told = [row for row in rows if row["value"] is not None]
    if not told:
        return []
    settings = told[0]["settings"]
    clients = int(settings["clients"])
    by_epsilon = _by_protection(told, "tabular.epsilon")
    outcomes = listed(
        f"{round(clients * sum(r['value'] for r in mine))} of {clients * len(mine)} clients "
        f"{_with(epsilon)}"
        for epsilon, mine in by_epsilon
    )
    plain = [row for epsilon, mine in by_epsilon if not math.isfinite(epsilon) for row in mine]
    hits, trials = round(clients * sum(r["value"] for r in plain)), clients * len(plain)
    shares = [mean([row["detail"][f"share_{which}"] for row in told]) for which in HALVES]
    seen = f"{settings['clients_per_round']} of {clients} clients", settings["rounds"]
    usual = mean([row["majority"] for row in told])
    leaks = trials and wilson_interval(hits, trials).low > mean([r["majority"] for r in plain])
    note = by_sums(seen, f"{column} = {value}", shares, outcomes, usual, bool(leaks))
    return [Told(note + _doubted(by_epsilon, "sums"), bool(leaks))]


def by_sums(
    seen: tuple[str, int],
    what: str,
    shares: Sequence[float],
    outcomes: str,
    usual: float,
    leaks: bool,
) -> str:
    """What sums tell, in words.

    Args:
      seen: over whom, and in how many rounds.
      what: the column and its value.
      shares: of people with it among those of clients that hold many, and of the others.
      outcomes: of how many clients it is told rightly.
      usual: share of clients of whom it is, if the same is said of all.
      leaks: whether more are told rightly, beyond chance.
    """
    (clients, rounds), (more, fewer) = seen, map(of_hundred, shares)
    hides = "So secure aggregation alone does not hide it."
    return (
        f"Behind secure aggregation, which shows sums over {clients} alone: whether a client holds "
        f"many people with {what} ({more} people on average; the others {fewer}) was told rightly, "
        f"after {rounds} rounds, of {outcomes}. Saying the same of all is right about "
        f"{of_hundred(usual)} clients. {hides if leaks else 'That this leaks is not shown.'}"
    )


def _sourced(rows: Rows) -> list[str]:
    """Whose a record is, in words."""
    told = _scored(rows, "decode_sources", "source_accuracy")
    if not told:
        return []
    by_epsilon = _by_protection(told, "epsilon")
    outcomes = listed(
        f"{of_hundred(mean([row['value'] for row in mine]))} people {_with(epsilon)}"
        for epsilon, mine in by_epsilon
    )
    clients, chance = told[0]["settings"]["attacked"], mean([row["chance"] for row in told])
    return [of_sources(clients, outcomes, chance) + _doubted(by_epsilon, "updates")]


def of_sources(clients: int, outcomes: str, chance: float) -> str:
    """For how many people the right one of so many clients is named, in words."""
    return (
        "Someone who sees what every client sends, and has all people's records but not whose "
        f"they are, named the right one of {clients} clients for {outcomes}; by chance "
        f"{of_hundred(chance)}."
    )


def _doubted(by_epsilon: Sequence[tuple[float, Rows]], by: str) -> str:
    """Under which protections answers are in doubt, in words; else nothing."""
    doubted = [e for e, mine in by_epsilon if any(row["status"] in DOUBTS for row in mine)]
    return (
        f" Answers {listed(map(_with, doubted))} are not confirmed by the {by}." if doubted else ""
    )


def _linked(rows: Rows) -> list[str]:
    """Which updates are of one client, in words."""
    told = _scored(rows, "matched_filter", "precision")
    if not told:
        return []
    outcomes = listed(
        f"{of_hundred(mean([row['value'] for row in mine]))} {_with(epsilon)}"
        for epsilon, mine in _by_protection(told, "epsilon")
    )
    clients, chance = told[0]["settings"]["clients"], mean([row["chance"] for row in told])
    return [of_links(clients, outcomes, chance) + _clustered(rows)]


def of_links(clients: int, outcomes: str, chance: float) -> str:
    """How many updates are linked to their client's next one, in words."""
    return (
        f"Where updates of {clients} clients come without names (shuffled in every round), the one "
        f"that is most like an update of the next round was of the same client for {outcomes}; by "
        f"chance {of_hundred(chance)}."
    )


def _clustered(rows: Rows) -> str:
    """How well updates of all rounds fall into one group for each client, in words."""
    told = _scored(rows, "matched_filter", "clusters_one_to_one")
    agreement = listed(
        f"{mean([row['value'] for row in mine]):.2f} {_with(epsilon)}"
        for epsilon, mine in _by_protection(told, "epsilon")
    )
    return (
        " The updates of all rounds together were sorted into one group for each client, with one "
        f"update of a round at most. How well the groups are the clients': {agreement} (adjusted "
        "Rand index: 1 is without an error, 0 is chance)."
        if told
        else ""
    )


def numbered(column: str, rows: Rows) -> list[Told]:
    """How well a column's numbers are read, from the rows of that column, if there are."""
    told = _scored(rows, "decode_numbers", "told")
    plain = [row for row in told if not _is_private(row) and row["status"] != "misfit"]
    leaks = bool(plain) and _beats_guesses(plain)
    return [Told(note, leaks) for note in _numbered(rows, column)]


def _beats_guesses(rows: Rows) -> bool:
    """Whether more numbers are read than are guessed, with 95 % confidence."""
    best = [max(row[g] or 0.0 for g in GUESSES) for row in rows]
    sizes = [int(row["detail"]["scored_records"]) for row in rows]
    return margin_of([row["value"] for row in rows], best, sizes).low > 0


def _numbered(rows: Rows, column: str) -> list[str]:
    """How well a column's numbers are read, in words; `rows` are of that column."""
    told = _scored(rows, "decode_numbers", "told")
    if not told:
        return []
    half = _by_protection(_scored(rows, "decode_numbers", "median_error"), "epsilon")
    by_epsilon = _by_protection(told, "epsilon")
    within = mean([row["detail"]["within"] for row in told])
    named = listed(
        f"{of_hundred(mean([row['value'] for row in mine]))} people {_with(epsilon)}"
        for epsilon, mine in by_epsilon
    )
    off = listed(
        f"{mean([row['value'] for row in mine]):.3g} {_with(epsilon)}" for epsilon, mine in half
    )
    guesses = [mean([row[guess] for row in told]) for guess in ("majority", "imputation")]
    others = mean([row["imputation"] for _, mine in half for row in mine])
    nodes = told[0]["settings"]["decode_numbers.nodes"]
    return [
        f"Numbers of {column!r}, not their ranges: read to within {within:.3g} of {named}; without "
        f"updates the best number to say of everyone is that near for {of_hundred(guesses[0])}, "
        f"and a guess from the other columns for {of_hundred(guesses[1])}. Half of the numbers "
        f"that are read are off by more than {off}; of those that are guessed from the other "
        f"columns, by more than {others:.3g}. Of every record {nodes} numbers at a time were "
        f"weighed; more of them may read more.{_doubted(by_epsilon, 'updates')}"
    ]


def _scored(rows: Rows, method: str, metric: str) -> list[Mapping[str, Any]]:
    """A method's rows of a metric that have a value."""
    return [
        row
        for row in rows
        if row["metric"] == metric and row["method"] == method and row["value"] is not None
    ]


def _by_protection(rows: Rows, setting: str) -> list[tuple[float, list[Mapping[str, Any]]]]:
    """Rows by the epsilon that is promised, the largest first; infinite without protection, which
    `source` says by its defence: its epsilon is a number all the same."""
    groups: dict[float, list[Mapping[str, Any]]] = {}
    for row in rows:
        epsilon = _promised(row, setting)
        groups.setdefault(epsilon, []).append(row)
    return sorted(groups.items(), key=lambda group: -group[0])


def _promised(row: Mapping[str, Any], setting: str) -> float:
    private = row["settings"].get("defense") != "none"
    return float(row["settings"][setting]) if private else math.inf


def _is_private(row: Mapping[str, Any]) -> bool:
    return math.isfinite(_promised(row, "epsilon"))


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
    return of_members(f"{of_hundred(mean(values))} people {_with(epsilon)}", 0.5)


def of_members(outcomes: str, chance: float) -> str:
    """Of how many people it is told whether they are there, in words."""
    return (
        f"Whether a known person is among a client's records was named rightly for {outcomes}; by "
        f"chance {of_hundred(chance)}."
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
