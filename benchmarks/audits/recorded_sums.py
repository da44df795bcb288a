"""What sums of a recorded run give away: which clients hold many people with a value.

The server is granted who took part in which round, the clients' recipe, records of nobody (rows of
the table that name no client), how many clients hold many, and the mean share that either kind
holds."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import Prevalence, Property, gibbs, observe, train_detectors
from attacks.metrics import ranking
from attacks.precision import cast
from benchmarks.audits.notes import Told, by_sums
from benchmarks.audits.questions import DETECTORS, FEWEST_SUMMED, fitting
from benchmarks.harness.command_line import UsageError
from benchmarks.harness.intervals import wilson_interval
from benchmarks.scenarios.sums import parting_share
from jaxfl import Aggregates, LocalTraining, Model
from jaxfl.datasets import Inputs
from jaxfl.datasets.cells import read_cells
from jaxfl.recordings import Recording

THRESHOLD = 0.5
"""Probability that a client holds many, above which the client is said to hold many."""


@dataclasses.dataclass(frozen=True)
class Halves:
    """Clients that hold many people with a value, and the others.

    Attributes:
      many: who holds many `[clients]`.
      shares: of such people among those of a client that holds many, and of another.
      carries: which of nobody's records have the value `[auxiliary]`.
      nobody: these records.
      held: how many records every client has.
      value: in words.
    """

    many: np.ndarray
    shares: tuple[float, float]
    carries: np.ndarray
    nobody: Inputs
    held: tuple[int, ...]
    value: str

    @property
    def records(self) -> int:
        """Records of a client, the median over clients."""
        return int(np.median(self.held))


Participation = Mapping[int, Sequence[str]]
"""Ids of the clients that took part, by round."""


def read_participation(path: str | None) -> Participation | None:
    """Who took part, from a table with the columns `round` and `client`; None from none.

    Raises:
      UsageError: if there is no such file, a column is missing, a round is no integer, or a client
        has no name.
    """
    if path is None:
        return None
    if not Path(path).is_file():
        raise UsageError(f"--participation {path!r} is no file")
    header, rows = read_cells(Path(path), "utf-8", None)
    for name in ("round", "client"):
        if name not in header:
            columns = ", ".join(header)
            raise UsageError(
                f"--participation {path!r} lacks the column {name!r}; it has {columns}"
            )
    rounds, clients = ([row[header.index(name)] for row in rows] for name in ("round", "client"))
    odd = [text for text in rounds if not text.isdecimal()]
    if odd:
        raise UsageError(
            f"--participation {path!r} holds the round {odd[0]!r}, which is no integer"
        )
    if "" in clients:
        raise UsageError(f"--participation {path!r} names no client in row {clients.index('') + 2}")
    by_round: dict[int, list[str]] = {}
    for row, (number, client) in enumerate(zip(rounds, clients, strict=True), 2):
        names = by_round.setdefault(int(number), [])
        if client in names:
            raise UsageError(
                f"--participation {path!r} names {client!r} in round {int(number)} twice: row {row}"
            )
        names.append(client)
    return by_round


def summed_participation(
    run: Recording, participation: Participation | None, after: bool = False
) -> Participation:
    """Who took part, in the rounds of which a sum is recorded: after the last nothing is, nor of
    the first, if models were kept `after` a round.

    Raises:
      UsageError: if rounds of the table and of the recording are not the same.
    """
    summed = [t for t in run.sent if run.clients or t + 1 in run.sent]
    told = participation or {}
    there = f"it names {_span(told)}; sums are of {_span(summed)}"
    # Of a round in which nobody took part the next model is the same.
    missing = [t for t in summed if t not in told and _changed(run, t)]
    if missing:
        raise UsageError(
            f"--participation names nobody in round {missing[0]}, of which a sum is recorded: "
            f"{there}; are they counted from another number?"
        )
    outside = [t for t in told if not min(run.sent) - after <= t <= max(run.sent)]
    if outside:
        raise UsageError(
            f"--participation names round {outside[0]}, of which no sum is recorded: {there}"
        )
    return {t: names for t, names in told.items() if t in summed}


def check_participants(participation: Participation, table: Inputs) -> None:
    """Raise `UsageError` if the table says whose its records are, and a client has none."""
    held = set(table.clients) - {""}
    for number, names in participation.items():
        for name in names:
            if held and name not in held:
                raise UsageError(
                    f"--participation names {name!r} in round {number}, of whom the table has no "
                    f"record; it has those of {', '.join(sorted(held)[:10])}"
                )


def _changed(run: Recording, number: int) -> bool:
    """Whether a client returned a model in a round, or the global model changed in it."""
    if run.clients:
        return any(number in models for models in run.returned.values())
    pairs = zip(*(jax.tree.leaves(run.sent[t]) for t in (number, number + 1)), strict=True)
    return any((before != after).any() for before, after in pairs)


def _span(rounds: Collection[int]) -> str:
    return f"{len(rounds)} rounds from {min(rounds)} to {max(rounds)}" if rounds else "no round"


@dataclasses.dataclass(frozen=True)
class Game:
    """What is asked of sums.

    Attributes:
      attribute: in question.
      aggregates: the sums.
      halves: of the clients.
      weighed: whether clients count by their records in the sums; else they are taken to count
        alike.
    """

    attribute: str
    aggregates: Aggregates
    halves: Halves
    weighed: bool


def game_of(
    run: Recording,
    table: Inputs,
    columns: Sequence[str],
    participation: Participation | None = None,
) -> Game | str:
    """What can be asked of columns that stand for one attribute; or, in words, what is missing for
    that. Who took part is told where clients' models are not recorded."""
    seen = _sums(run, participation)
    halves = seen if isinstance(seen, str) else _halves(seen[1], table, columns)
    if isinstance(seen, str) or isinstance(halves, str):
        return f"which clients hold many people of one kind, by sums, {halves}"
    return Game(" + ".join(columns), seen[0], halves, weighed=bool(run.clients))


class Answer(NamedTuple):
    """What sums tell of an attribute.

    Attributes:
      told: in words.
      value: share of clients of whom it is told rightly; None if the detectors are not finite.
      majority: the same if one thing is said of all.
    """

    told: Told
    value: float | None
    majority: float


def told_by_sums(model: Model, game: Game, training: LocalTraining) -> Answer:
    """Play the game."""
    halves, rounds = game.halves, len(game.aggregates.rounds)
    clients, rate = len(halves.many), float(halves.many.mean())
    usual, what = max(rate, 1 - rate), f"{game.attribute} = {halves.value}"
    scores = _scores(model, game.aggregates, halves, training)
    if not np.isfinite(scores).all():
        note = f"Of {what}, sums tell nothing: the detectors are not finite."
        return Answer(Told(note, leaks=False), None, usual)
    share = ranking(scores, halves.many, THRESHOLD).accuracy
    right = round(clients * share)
    leaks = wilson_interval(right, clients).low > usual
    over = f"{_summed_clients(game.aggregates)} of {clients} clients"
    told = f"{right} of {clients} clients"
    note = by_sums((over, rounds), what, halves.shares, told, usual, leaks)
    return Answer(Told(note + _counted_alike(game), leaks), share, usual)


def _summed_clients(aggregates: Aggregates) -> str:
    """How many clients a sum is over."""
    each = np.asarray(aggregates.participation).sum(1)
    return f"{each.min()}" if each.min() == each.max() else f"{each.min()} to {each.max()}"


def _counted_alike(game: Game) -> str:
    """That clients were taken to count alike where they may not."""
    least, most = min(game.halves.held), max(game.halves.held)
    if game.weighed or least == most:
        return ""
    return (
        f" Clients hold from {least} to {most} people, and were taken to count alike in the sums: "
        "where the server weighs them by their records, more may leak."
    )


def _scores(
    model: Model, aggregates: Aggregates, halves: Halves, training: LocalTraining
) -> np.ndarray:
    """Probability that a client holds many `[clients]`."""
    more, fewer = halves.shares
    prevalence = Prevalence(jnp.asarray(halves.carries), fewer, more)
    key = jax.random.key(0)
    detectors = train_detectors(
        model,
        aggregates.received,
        jnp.asarray(halves.nobody.x),
        jnp.asarray(halves.nobody.y),
        Property(rate=float(halves.many.mean()), prevalence=prevalence),
        key,
        training=fitting(training, halves.records),
        records=halves.records,
        settings=DETECTORS,
    )
    seen = jnp.asarray([len(aggregates.rounds)])
    return np.asarray(gibbs(observe(aggregates, detectors), seen, key))[0]


def _sums(
    run: Recording, participation: Participation | None
) -> tuple[Aggregates, tuple[str, ...]] | str:
    """Sums and the clients' ids, or what is missing for clients to differ in them."""
    if not run.clients and participation is None:
        return "which needs to know who took part in which round (--participation)"
    wide, names = run.aggregates(participation)
    aggregates = cast(wide, jnp.float32)
    if len(names) < FEWEST_SUMMED:
        return f"which needs {FEWEST_SUMMED} clients or more"
    if bool(np.asarray(aggregates.participation).all()):
        return "which needs rounds in which some clients are absent"
    return aggregates, names


def _halves(names: Sequence[str], table: Inputs, columns: Sequence[str]) -> Halves | str:
    """The clients in halves, or what is missing to tell them apart."""
    rows = {name: np.flatnonzero(np.asarray(table.clients) == name) for name in (*names, "")}
    unknown = [name for name in names if not len(rows[name])]
    if unknown:
        return f"which needs records of every client; the table has none of {unknown[0]!r}"
    held = tuple(len(rows[name]) for name in names)
    typical, free = int(np.median(held)), len(rows[""])
    if free < 2 * typical:
        return (
            f"which needs {2 * typical} records of nobody for a client's {typical} (rows that name "
            f"no client); the table has {free}"
        )
    _, values, places = table.values_of(columns)
    took_part = np.concatenate([rows[name] for name in names])
    counts = np.bincount(places[took_part], minlength=len(values))
    value = int(np.argsort(counts)[-2])
    carries = places == value
    share = np.asarray([carries[rows[name]].mean() for name in names])
    many = share > parting_share(share, len(names) // 2)
    if not many.any() or len(np.unique(carries[rows[""]])) < 2:
        return "which needs clients, and records of nobody, that differ in the column"
    nobody = dataclasses.replace(
        table, x=table.x[rows[""]], y=table.y[rows[""]], clients=("",) * len(rows[""])
    )
    shares = float(share[many].mean()), float(share[~many].mean())
    text = " ".join(f"{v:g}" for v in values[value])
    return Halves(many, shares, carries[rows[""]], nobody, held, text)
