"""Further questions of a recorded run: is a known person among a client's records, whose is a
record, and which updates without names come from one client."""

import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attacks import ClosedForm, Knowledge, Status, UnknownColumn, decode_membership, decode_sources
from attacks.fit import STATES, FitWarning
from benchmarks.audits import sentences
from benchmarks.audits.notes import Told, of_links, of_members, of_sources
from benchmarks.audits.questions import NEEDS, SOURCE_ROUNDS
from benchmarks.audits.recorded_clients import Client
from benchmarks.audits.recorded_links import linked, links_of
from benchmarks.audits.recorded_numbers import are_numbers
from benchmarks.harness.intervals import accuracy_interval, wilson_interval
from jaxfl import LocalTraining, Model
from jaxfl.datasets import Inputs

ALL = "all clients"
MOST_VALUES = 16
"""Values of the column that is left open while people are told from others, at most."""
MOST_SOURCED = 4_000
"""Records of all clients of which it is asked whose they are: the time grows with their cube."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What is asked of.

    Attributes:
      model: which clients train.
      training: what they are said to do.
      clients: who are attacked, each by updates of its own; none if no one's are recorded.
      attributes: columns that stand for one, of each sensitive attribute.
    """

    model: Model
    training: LocalTraining
    clients: Sequence[Client]
    attributes: Sequence[Sequence[str]]

    @property
    def plain(self) -> bool:
        """Whether clients train by plain SGD."""
        return self.training.optimizer is optax.sgd


class Answer(NamedTuple):
    """What an attack finds.

    Attributes:
      rows: lines of the file beside the page.
      told: in words.
    """

    rows: Sequence[dict[str, Any]]
    told: Told


@dataclasses.dataclass(frozen=True)
class Question:
    """A further question.

    Attributes:
      about: what is told beyond chance, in words.
      missing: why it cannot be asked, in words; "" if it can.
      ask: attacks, of a run that lacks nothing.
    """

    about: str
    missing: Callable[[Run], str]
    ask: Callable[[Run], Answer]


def _row(client: str, question: str, method: str, status: str, **scores: Any) -> dict[str, Any]:
    """A line of the file beside the page; shares are of people, or of updates."""
    none = dict.fromkeys(("value", "majority", "imputation", "null", "test_accuracy"))
    of = {"client": client, "question": question, "attribute": "", "method": method}
    return of | none | {"status": status} | scores


def _no_clients(run: Run, at_least: int) -> str:
    """Why nothing can be asked that needs clients' own updates and records."""
    if len(run.clients) < at_least:
        return "which needs the updates of a client" + (
            "" if at_least == 1 else ", and of another one"
        )
    if set(run.clients[0].table.clients) == {""}:
        return "which needs a table that says whose a record is (--clients)"
    return ""


def _no_members(run: Run) -> str:
    lacking = _no_clients(run, 1)
    if lacking:
        return lacking
    steps = {run.training.steps(len(client.records.y)) for client in run.clients}
    if not run.plain or run.training.plugins or steps != {1}:
        return f"which needs {NEEDS['membership']}"
    if not len(run.clients[0].others.y):
        return "which needs records of others"
    if _open_column(run) is None:
        return f"which needs a sensitive column of {MOST_VALUES} values at most"
    return ""


def _open_column(run: Run) -> Sequence[str] | None:
    """Columns of the first attribute with few values."""
    table = run.clients[0].table
    few = (
        columns
        for columns in run.attributes
        if not are_numbers(table, columns) and len(table.values_of(columns)[1]) <= MOST_VALUES
    )
    return next(few, None)


def _members(run: Run) -> Answer:
    """Who of a client's people and as many others is there, one column unknown of all of them."""
    rows, right, people, own = [], 0, 0, 0
    for client in run.clients:
        known, is_own = _among_others(run, client)
        judged, _ = _quietly(
            decode_membership,
            run.model,
            client.messages,
            known,
            len(client.records.y),
            settings=ClosedForm(learning_rate=run.training.learning_rate),
        )
        status = STATES[Status(judged.status)]
        told = int((judged.members == is_own).sum())
        usual = max(is_own.mean(), 1 - is_own.mean())
        share = told / len(is_own) if status != "diverged" else None
        rows.append(
            _row(client.name, "membership", "closed_form", status, value=share, majority=usual)
        )
        if share is not None:
            right, people, own = right + told, people + len(is_own), own + int(is_own.sum())
    if not people:
        return Answer(rows, Told("Who is there, the updates do not tell.", leaks=False))
    chance = max(own, people - own) / people
    leaks = wilson_interval(right, people).low > chance
    outcome = f"{sentences.of_people(right / people, people)} people"
    note = of_members(outcome, chance) + _doubted(rows)
    return Answer(rows, Told(note, leaks))


def _among_others(run: Run, client: Client) -> tuple[Knowledge, np.ndarray]:
    """A client's records among as many others', or as there are, in random order, one column
    unknown; and which are the client's."""
    rng, mine, others = np.random.default_rng(0), client.records, client.others
    drawn = rng.permutation(len(others.y))[: len(mine.y)]
    x = np.concatenate([mine.x, others.x[drawn]])
    y = np.concatenate([mine.y, others.y[drawn]])
    order = rng.permutation(len(y))
    columns = _open_column(run)
    assert columns is not None, "asked before"
    positions, values, _ = client.table.values_of(columns)
    x[:, positions] = np.nan
    column = UnknownColumn(jnp.asarray(positions), jnp.asarray(values))
    known = Knowledge(jnp.asarray(x[order]), jnp.asarray(y[order]), (column,))
    return known, order < len(mine.y)


def _no_sources(run: Run) -> str:
    lacking = _no_clients(run, 2)
    if lacking:
        return lacking
    if not run.plain or not run.training.shuffle:
        return f"which needs {NEEDS['source']} that draw their batches"
    together, _ = _together(run.clients)
    if len(together) < 2:
        return "which needs a round in which two clients took part"
    count = sum(len(client.records.y) for client in together)
    if count > MOST_SOURCED:
        return f"which is asked of {MOST_SOURCED} people at most; here there are {count}"
    return ""


def _together(clients: Sequence[Client]) -> tuple[list[Client], list[int]]:
    """The most clients that took part together, of equally many those that did most often; and the
    first rounds of theirs."""
    held = {client.name: set(client.messages.rounds.tolist()) for client in clients}
    everyone = sorted(set.union(*held.values()))
    present = {t: frozenset(name for name in held if t in held[name]) for t in everyone}
    often = Counter(present.values())
    names = max(often, key=lambda group: (len(group), often[group], sorted(group)))
    rounds = [t for t in everyone if names <= present[t]]
    return [client for client in clients if client.name in names], rounds[:SOURCE_ROUNDS]


def _sources(run: Run) -> Answer:
    """Whose each record is, of clients that took part together."""
    clients, numbers = _together(run.clients)
    sizes = [len(client.records.y) for client in clients]
    order = np.random.default_rng(0).permutation(sum(sizes))
    x, y = (np.concatenate([getattr(c.records, n) for c in clients])[order] for n in "xy")
    truth = np.repeat(np.arange(len(sizes)), sizes)[order]
    decoded = _quietly(
        decode_sources,
        run.model,
        [client.messages.select(numbers) for client in clients],
        sizes,
        x,
        y,
        jax.random.key(0),
        training=run.training,
    )
    named, chance = np.asarray(decoded.sources), max(sizes) / sum(sizes)
    rows = []
    for place, client in enumerate(clients):
        status = STATES[Status(int(decoded.status[place]))]
        share = float((named[truth == place] == place).mean())
        rows.append(_row(client.name, "source", "decode_sources", status, value=share))
        rows[-1]["majority"] = chance
    right = int((named == truth).sum())
    leaks = wilson_interval(right, len(truth)).low > chance
    outcome = f"{sentences.of_people(right / len(truth), len(truth))} people"
    told = of_sources(len(sizes), f"{outcome}, after {len(numbers)} rounds", chance)
    return Answer(rows, Told(told + _doubted(rows), leaks))


def _no_links(run: Run) -> str:
    if len(run.clients) < 2:
        return "which needs the updates of two clients or more"
    if not links_of(run.clients):
        return "which needs two clients that took part in two rounds, one after the other"
    return ""


def _links(run: Run) -> Answer:
    """Which updates of one round are of the clients of another."""
    clients = run.clients
    found = linked(run.model, clients, run.training, _nobody(clients[0].table))
    shares = {name: found.hits[name] / count for name, count in found.trials.items()}
    rows = [
        _row(name, "linkability", found.method, "ok", value=share, majority=found.chance)
        for name, share in shares.items()
    ]
    # Updates of one client share its records, so that clients count, not updates.
    least = accuracy_interval(list(shares.values()), min(found.trials.values())).low
    right, count = sum(found.hits.values()), sum(found.trials.values())
    outcome = f"{right} of {count}"
    return Answer(rows, Told(of_links(len(clients), outcome, found.chance), least > found.chance))


def _nobody(table: Inputs) -> Inputs:
    """Records that name no client, where others do."""
    named = np.asarray(table.clients) != ""
    rows = np.flatnonzero(~named) if named.any() else np.zeros(0, int)
    return dataclasses.replace(table, x=table.x[rows], y=table.y[rows], clients=("",) * len(rows))


QUESTIONS = {
    "membership": Question(sentences.WHO_IS_THERE, _no_members, _members),
    "source": Question(sentences.WHOSE, _no_sources, _sources),
    "linkability": Question(sentences.WHICH_UPDATES, _no_links, _links),
}
"""By name, in the order in which they are asked."""


def _quietly(attack: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the row tells it
        return attack(*arguments, **options)


def _doubted(rows: Sequence[dict[str, Any]]) -> str:
    """Of whom answers are not explained by the updates, in words."""
    doubted = [row["client"] for row in rows if row["status"] != "ok"]
    return (
        f" Answers of {sentences.listed(doubted)} are not confirmed by the updates."
        if doubted
        else ""
    )
