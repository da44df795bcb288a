"""What is measured for a table of one's own, as a suite that the sweep's machinery runs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optax

from benchmarks.audits import questions
from benchmarks.audits.findings import Rows, Whole, whole_of
from benchmarks.audits.optimizers import is_adam
from benchmarks.harness.jobs import Cell, Place, Suite
from benchmarks.harness.settings import flatten
from benchmarks.scenarios.phases import EVERY_ROUND
from benchmarks.scenarios.sources import classified, own_table
from benchmarks.scenarios.splits import sure_records, training_rows
from benchmarks.scenarios.victims import VictimSettings
from jaxfl import LocalTraining
from jaxfl.datasets import Dataset
from jaxfl.datasets.csv import are_ranges

NAME = "audit"
MOST_RECORDS, FEWEST_RECORDS = 200, 10
MOST_CATEGORIES = 100
"""Texts that a column may hold."""
LEAST_SHARE = 0.01
"""Share of the second most frequent value below which there is nothing to be told apart."""


@dataclasses.dataclass(frozen=True)
class Federation:
    """How clients train.

    Attributes:
      clients: how many; 0 for those that the table's column names.
      records: of each; 0 for as many as there are, or as three of four named clients have, at most
        `MOST_RECORDS`.
      hidden: widths of the hidden layers of a perceptron.
      rounds: communication rounds, all of which are seen.
      training: what a client does in one.
      epsilons: of private trainings that are tried beside the plain one.
    """

    clients: int
    records: int
    hidden: tuple[int, ...]
    rounds: int
    training: LocalTraining
    epsilons: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Asked:
    """A table of one's own.

    Attributes:
      path: the file.
      target: the column that the model predicts.
      sensitive: columns that nobody should learn.
      drop: columns to leave out.
      client: the column that says whose a record is, or "".
      reading: further options of `jaxfl.datasets.read_csv`, by name.
    """

    path: str
    target: str
    sensitive: tuple[str, ...]
    drop: tuple[str, ...] = ()
    client: str = ""
    reading: tuple[tuple[str, str], ...] = ()

    def source(self, column: str) -> str:
        """Its name where a sensitive column is asked for."""
        told = {"target": self.target, "sensitive": column, "client": self.client}
        told |= dict(self.reading)
        return own_table(self.path, max_categories=MOST_CATEGORIES, drop=self.drop, **told)


def suite_of(asked: Asked, federation: Federation) -> Suite:
    """What is measured of a CSV's sensitive columns.

    Raises:
      ValueError: if the file cannot be read, a column does not exist, the target is no class, a
        sensitive column has one value, or there are too few records for the clients.
      FileNotFoundError: if there is no such file.
    """
    named = {column: asked.source(column) for column in asked.sensitive}
    sources = {column: classified(name, None) for column, name in named.items()}
    for column, data in sources.items():
        _check_varies(column, data)
    any_source = next(iter(sources.values()))
    _check_trains(asked.target, any_source)
    federation = _of_table(any_source, asked.client, federation)
    places = {name: [c.name for c in data.columns].index(name) for name, data in sources.items()}
    attributes = [
        Place(name, _victim(places[column], federation, epsilon), questions.attacks())
        for column, name in named.items()
        for epsilon in (math.inf, *federation.epsilons)
    ]
    levels = attributes[: len(federation.epsilons) + 1]
    ranges = [c for c, data in sources.items() if are_ranges(data.column(c).categories)]
    numeric = [(asked.source(""), places[column]) for column in ranges]
    some = levels[:2]  # the strongest leak, and the weakest protection: numbers take minutes
    plain = federation.training.optimizer is optax.sgd
    return Suite(
        NAME,
        (
            questions.attribute(attributes),
            questions.membership(levels, any_source),
            questions.read_whole(levels),
            questions.shown(levels[1:] if plain else []),
            questions.of_sums(attributes, federation.clients, any_source),
            questions.sources(levels if plain else [], federation.clients),
            questions.anonymous(levels, federation.clients, any_source),
            questions.numbers([] if is_adam(federation.training.optimizer) else some, numeric),
        ),
    )


def _victim(place: int, federation: Federation, epsilon: float) -> VictimSettings:
    """Raises `ValueError` if none of a client's batches is full, and such are left out."""
    told, records = federation.training, federation.records
    if told.drop_last and (told.batch_size or 0) > records:
        raise ValueError(
            f"drop_last=True with batch_size={told.batch_size} leaves out all of a client's "
            f"{records} records"
        )
    return VictimSettings(
        place,
        federation.records,
        participants=federation.clients,
        hidden=federation.hidden,
        rounds=federation.rounds,
        training=questions.fitting(federation.training, federation.records),
        epsilon=epsilon,
        phases=(EVERY_ROUND,),
    )


def victim_of(suite: Suite) -> VictimSettings:
    """The federation of which a sensitive column is asked."""
    settings: VictimSettings = suite.table(questions.QUESTIONS[0]).places("small", None)[0].settings
    return settings


def not_asked(suite: Suite, asked: Sequence[str]) -> list[str]:
    """What each question needs that cannot be asked, in words."""
    tables = [suite.table(name) for name in asked]
    empty = [t.name for t in tables if not suite.jobs(t, "small", t.methods, (0,), None)]
    return [f"Not asked: {name}, which needs {questions.NEEDS[name]}." for name in empty]


def wholes_of(suite: Suite, rows: Rows) -> list[Whole]:
    """What was read of whole records, without protection first, then from weak to strong."""
    attribute, table = (suite.table(questions.QUESTIONS[place]) for place in (0, 2))
    victims, cells = (t.cells(NAME, "small", None) for t in (attribute, table))
    mine = [row for row in rows if row["table"] == table.name]
    read = [
        whole_of(victim.settings.epsilon, [row for row in mine if _is_of(row, cell)])
        for victim, cell in zip(victims, cells, strict=False)
    ]
    return [whole for whole in read if whole is not None]


def _is_of(row: Mapping[str, Any], cell: Cell) -> bool:
    return bool(flatten(cell.settings).items() <= row["settings"].items())


def _check_trains(target: str, data: Dataset) -> None:
    if len(np.unique(data.y)) < 2:
        raise ValueError(f"target={target!r} is the same everywhere: nothing can be trained")


def _check_varies(column: str, data: Dataset) -> None:
    shares = np.asarray(data.prior(column))
    others = np.sort(shares)[::-1][1:]
    if not len(others) or others[0] < LEAST_SHARE:
        common = data.column(column).categories[int(shares.argmax())]
        raise ValueError(
            f"sensitive={column!r} has the value {common!r} nearly everywhere, and no other in "
            f"{LEAST_SHARE:.0%} of the records: there is nothing to be told apart"
        )


def _of_table(data: Dataset, client: str, federation: Federation) -> Federation:
    """The federation with as many clients and records as the table has."""
    if data.group is None:
        return dataclasses.replace(federation, records=_records(data, federation))
    sure = sure_records(data)
    there = federation.records or min(int(np.quantile(sure, 1 / 4)), MOST_RECORDS)
    records = max(there, FEWEST_RECORDS)
    clients = int((sure >= records).sum())
    if clients < 2:
        raise ValueError(
            f"client={client!r} names {len(sure)} in {data.name}, of whom {clients} have {records} "
            "records beside those of the adversary and of tests; two are needed"
        )
    return dataclasses.replace(federation, clients=clients, records=records)


def _records(data: Dataset, federation: Federation) -> int:
    count, told = federation.clients, federation.records
    there = training_rows(data) // count
    beside = f"{data.name} has {there} for each of {count} clients, beside those of the adversary"
    if told > there:
        raise ValueError(f"records={told}: {beside} and of tests")
    if 0 < told < FEWEST_RECORDS:
        raise ValueError(f"records={told} must be at least {FEWEST_RECORDS}, or 0 for all")
    if there < FEWEST_RECORDS:
        raise ValueError(
            f"clients={count}: {beside} and of tests; each needs {FEWEST_RECORDS}, so that "
            f"{training_rows(data) // FEWEST_RECORDS or 'no'} clients can be had of these "
            f"{len(data)} records"
        )
    return told or min(there, MOST_RECORDS)
