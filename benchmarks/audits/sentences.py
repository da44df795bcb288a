"""The answer of an audit, in sentences that need no vocabulary."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from benchmarks.audits.findings import DOUBTS, ROUNDING, Finding, Level, Whole


def of_hundred(share: float) -> str:
    """A share, to be said aloud."""
    return of_people(share, 100)


def of_people(share: float, people: int) -> str:
    """A share of so many people, or of a hundred where it is of others like them."""
    count = people or 100
    return f"{count * share:.0f} of {count}" if math.isfinite(share) else "an unknown number"


def listed(names: Iterable[str]) -> str:
    """Names as a sentence has them."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


BY_SUMS = "which clients hold many people with a value, by sums alone"
WHO_IS_THERE = "whether a known person is among a client's records"
WHOSE = "whose a record is"
WHICH_UPDATES = "which updates without names are of one client"
HOW_CLIENTS_TRAIN = "The model, and how clients train."


@dataclasses.dataclass(frozen=True)
class Source:
    """What was read, in words.

    Attributes:
      reader: who reads it.
      needs: what it takes beside knowledge of the records.
      has: all that the reader has, line by line.
    """

    reader: str
    needs: str
    has: tuple[str, ...]


def of_clients(rounds: int, wholes: bool = False) -> Source:
    """A client's updates; of one update whole records are read too if `wholes`."""
    reader = "someone who reads what a client sends, and holds its records without that column,"
    updates = "one update" if rounds == 1 else f"{rounds} updates"
    second = (
        "The second attacker has a single update on few people, the model, and which values each "
        "column can have; it knows nothing of the people."
    )
    has = (
        f"What one client was sent and what it sent, in {rounds} rounds: as the server has it, or "
        "someone who reads the server's traffic.",
        HOW_CLIENTS_TRAIN,
        "That client's records, all columns but the one in question, and the answers: for example "
        "from a copy that lacks the column.",
        *([second] if wholes else []),
    )
    return Source(reader, f"{updates} of one client", has)


def of_global_models(rounds: int) -> Source:
    """Global models alone."""
    reader = "someone who has the global models alone, and holds all records without that column,"
    has = (
        f"The global models before and after {rounds} rounds, as everyone who takes part has them, "
        "and nothing that a single client sent.",
        HOW_CLIENTS_TRAIN,
        "The records of all who took part, all columns but the one in question, and the answers: "
        "for example from a copy that lacks the column.",
    )
    needs = f"the global models before and after {rounds} rounds, and nothing of single clients"
    return Source(reader, needs, has)


def seen_in_sums(rounds: int) -> tuple[str, ...]:
    """What someone has who asks sums which clients hold many people of one kind, line by line."""
    return (
        f"The global models before and after {rounds} rounds, and who took part in each; nothing "
        "that a single client sent.",
        HOW_CLIENTS_TRAIN,
        "Records of nobody (rows of the table that name no client), how many clients hold many "
        "people with the value in question, and how many either kind holds on average.",
    )


def leaked(findings: Sequence[Finding], source: Source) -> str:
    """What is learnt without protection: the first sentence."""
    learnt = [f for f in findings if f.levels[0].learnt]
    if learnt:
        told = listed(
            f"{f.name} of {_named(f.levels[0])} people ({_guessed(f.levels[0])})" for f in learnt
        )
        untold = [f for f in findings if f not in learnt and f.levels[0].doubt]
        yes = f"Yes: {source.reader} names rightly {told}."
        unshown = [
            f"Of {f.column!r} too it names more than by guessing{_scored(f.levels[0])}; so few "
            "people, or so few clients, do not show it."
            for f in findings
            if f not in learnt and f not in untold and _may_leak(f)
        ]
        return " ".join([yes, *unshown, *_untold_clients(findings), *_untold(untold)])
    sure = [f for f in findings if not f.levels[0].doubt]
    if sure:
        best = max(sure, key=lambda f: f.levels[0].estimate.mean)
        names, scored = listed(f.name for f in sure), _scored(best.levels[0])
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
        notes = "" if level.doubt == "unchecked" else " See the notes below."
        told.append(f"It cannot be told{of}: {DOUBTS[level.doubt]}{scored}.{notes}")
    return told


def _scored(level: Level) -> str:
    return f" ({_named(level)} right; {_guessed(level)})"


def _named(level: Level) -> str:
    return of_people(level.estimate.mean, level.people)


def _guessed(level: Level) -> str:
    """What the best guess is, and what it needs."""
    blind = f"without updates, {of_people(level.blind_guess, level.people)} can be guessed"
    if math.isnan(level.guesses["imputation"]):
        blind += " by the most common value; there are no others to learn a better guess from"
    if level.guess > level.blind_guess:
        return f"{blind}, and another client's updates give {of_people(level.guess, level.people)}"
    return blind


def also(findings: Sequence[Finding], wholes: Sequence[Whole], source: Source) -> str:
    """What it takes, and what one update alone gives away: the second sentence."""
    learnt = any(f.levels[0].learnt for f in findings)
    needs = f"{'That takes' if learnt else 'It was tried with'} {source.needs}."
    if not wholes:
        return needs
    whole = wholes[0]
    return (
        f"{needs} A second attack needs one update on {whole.records} people, and knows nothing of "
        f"them: it read {whole.read:.0f} of their {whole.records} complete rows, on average."
    )


def stopped(
    findings: Sequence[Finding], wholes: Sequence[Whole] = (), beside: Sequence[str] = ()
) -> str:
    """What stops it, and at what cost: the third sentence. It is of the columns alone where
    something leaks `beside` them."""
    here = "of these columns" if beside else "here"
    learnt = [f for f in findings if f.levels[0].learnt]
    if not learnt and any(f.levels[0].doubt or f.levels[0].untold for f in findings):
        return "So it cannot be told either whether anything has to be stopped."
    if not learnt and any(map(_may_leak, findings)):
        return f"So it is not shown that anything {here} has to be stopped; more people would tell."
    if not learnt:
        return f"So no leak {here} was shown; other clients and more updates may differ."
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


def answer(
    findings: Sequence[Finding],
    wholes: Sequence[Whole],
    source: Source,
    beside: Sequence[str] = (),
) -> tuple[str, ...]:
    """The answer, and what leaks `beside` the columns."""
    told = (
        leaked(findings, source),
        also(findings, wholes, source),
        stopped(findings, wholes, beside),
    )
    if not beside:
        return told
    asked = f"Other questions were answered better than by chance: {listed(beside)}."
    return (*told, f"{asked} The notes say how well.")


def answer_of_sums(told: Sequence[str], leaks: bool) -> tuple[str, ...]:
    """The answer where clients were absent from rounds, of global models alone.

    Args:
      told: what sums tell of each column, in words.
      leaks: whether they tell anything beyond chance.
    """
    return (
        f"{'Yes' if leaks else 'Not shown'}: {BY_SUMS}.",
        *told,
        "Values of single people were not asked for: that needs the same clients in every round, "
        "and here some were absent from some. No protection was tried here.",
    )


def protection(epsilon: float) -> str:
    """In words."""
    return f"epsilon {epsilon:g}" if math.isfinite(epsilon) else "none"
