"""What is measured for a table of one's own, as a suite that the sweep's machinery runs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optax

from attacks import GLS, CosMatching, DetectorTraining, UnrolledGLS
from benchmarks.audits.findings import Rows, Whole, whole_of
from benchmarks.harness.jobs import Cell, Place, Suite, Table
from benchmarks.harness.settings import flatten
from benchmarks.measurements.attributes import EXPERIMENT as ATTRIBUTES
from benchmarks.measurements.canaries import EXPERIMENT as CANARIES
from benchmarks.measurements.linkability import EXPERIMENT as LINKABILITY
from benchmarks.measurements.linkability import LinkSettings
from benchmarks.measurements.local_models.experiment import EXPERIMENT as LOCAL_MODELS
from benchmarks.measurements.local_models.work import FirstMessages, LocalModelSettings
from benchmarks.measurements.membership import EXPERIMENT as MEMBERSHIP
from benchmarks.measurements.properties import EXPERIMENT as PROPERTIES
from benchmarks.measurements.properties import PropertySettings
from benchmarks.measurements.whole_records import EXPERIMENT as RECORDS
from benchmarks.scenarios.canaries import CanarySettings
from benchmarks.scenarios.phases import EVERY_ROUND
from benchmarks.scenarios.sources import classified, own_table
from benchmarks.scenarios.splits import (
    held_out_rows,
    public_rows,
    sure_records,
    training_rows,
)
from benchmarks.scenarios.sums import TableSettings
from benchmarks.scenarios.victims import VictimSettings
from benchmarks.scenarios.whole_records import WholeRecordsSettings
from jaxfl import LocalTraining
from jaxfl.datasets import Dataset

NAME = "audit"
QUESTIONS = (
    "attribute",
    "membership",
    "records",
    "epsilon",
    "property",
    "source",
    "linkability",
)
MOST_RECORDS, FEWEST_RECORDS = 200, 10
READ_TOGETHER = 16
"""Records of the one update of which whole records are read."""
COS_STEPS = 200
"""Iterations, and below runs, few enough for an audit to end within minutes."""
DETECTORS = DetectorTraining(every=2)
DECODING = GLS(LocalTraining(), orders=32, points=4, passes=2)
UNROLLED = UnrolledGLS(LocalTraining(), runs=256, tangents=4, passes=2)
MOST_CATEGORIES = 100
"""Texts that a column may hold."""
SOURCE_CLIENTS, SOURCE_ROUNDS = 10, 5
"""Clients, at most, whose records are told apart, and how many updates of each tell."""
NEEDS = {
    "membership": "clients that take one step of plain SGD on all of their records a round "
    "(--batch-size 0 and --epochs 1)",
    "epsilon": "private clients of plain SGD",
    "property": "four clients or more",
    "source": "clients of plain SGD",
    "linkability": "two rounds or more",
}
FEWEST_SUMMED, SURE_SHARE = 4, 0.8
"""Clients: of fewer, halves are no sums; and what share of the training records they take."""
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
    attributes, membership = [], []
    for column, name in named.items():
        place = [each.name for each in sources[column].columns].index(column)
        for epsilon in (math.inf, *federation.epsilons):
            settings = _victim(place, federation, epsilon)
            attributes.append(Place(name, settings, _attacks()))
            membership.append(Place(name, _alone(settings, any_source)))
    levels = attributes[: len(federation.epsilons) + 1]
    plain = federation.training.optimizer is optax.sgd
    return Suite(
        NAME,
        (
            Table(
                QUESTIONS[0],
                "A sensitive column of a client's records",
                ATTRIBUTES,
                lambda size, data_dir: attributes,
                ("majority", "cos", "closed_form", "gls", "decode_adam", "gls_unrolled"),
            ),
            Table(
                QUESTIONS[1],
                "Whether a record is a client's",
                MEMBERSHIP,
                lambda size, data_dir: membership[: len(federation.epsilons) + 1],
                ("closed_form",),
            ),
            _read_whole(levels),
            _shown(levels[1:] if plain else []),
            _of_sums(attributes, federation.clients, any_source),
            _sources(levels if plain else [], federation.clients),
            _anonymous(levels, federation.clients, any_source),
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
        training=fitting(federation.training, federation.records),
        epsilon=epsilon,
        phases=(EVERY_ROUND,),
    )


def _alone(victim: VictimSettings, data: Dataset) -> VictimSettings:
    """The victim for whose records as many held-out ones are there to be told apart."""
    records = min(victim.records, held_out_rows(data))
    training = fitting(victim.training, records)
    return dataclasses.replace(victim, participants=1, records=records, training=training)


def victim_of(suite: Suite) -> VictimSettings:
    """The federation of which a sensitive column is asked."""
    settings: VictimSettings = suite.table(QUESTIONS[0]).places("small", None)[0].settings
    return settings


def _whole(victim: VictimSettings) -> WholeRecordsSettings:
    """One update on few of a client's records, under the protection of its whole training."""
    training = LocalTraining(plugins=victim.recipe.plugins)
    return WholeRecordsSettings(
        min(READ_TOGETHER, victim.records), victim.hidden, training=training
    )


def _read_whole(levels: Sequence[Place]) -> Table:
    places = [Place(level.dataset, _whole(level.settings)) for level in levels]
    about = "Whole records of one update, nothing known of them"
    methods = "public", "reconstruct_records"
    return Table(QUESTIONS[2], about, RECORDS, lambda size, data_dir: places, methods)


def _shown(private: Sequence[Place]) -> Table:
    """Table of clients as private as those of `private`, with canaries. Canaries are measured in
    plain SGD alone."""
    places = []
    for place in private:
        victim: VictimSettings = place.settings
        audited = CanarySettings(
            victim.records,
            hidden=victim.hidden,
            rounds=victim.rounds,
            training=victim.training,
            epsilon=victim.epsilon,
        )
        places.append(Place(place.dataset, audited))
    about = "What updates show of the epsilon that is promised"
    return Table(QUESTIONS[3], about, CANARIES, lambda size, data_dir: places, ("canaries",))


def _of_sums(levels: Sequence[Place], clients: int, data: Dataset) -> Table:
    """Table about half of the clients, whose records have the attribute more often than the
    others': what sums over another half of the clients in every round tell."""
    public, places = len(public_rows(data, seed=0)), []
    most = public // 2
    if data.group is None:  # by chance more records with the attribute are asked for than expected
        most = min(most, int(SURE_SHARE * training_rows(data)) // clients)
    for place in levels if clients >= FEWEST_SUMMED else ():
        victim: VictimSettings = place.settings
        half, records = clients // 2, min(victim.records, most)
        settings = PropertySettings(
            "",
            "prevalence",
            records,
            clients=clients,
            positives=half,
            clients_per_round=half,
            training=fitting(victim.training, records),
            auxiliary=public,
            rounds=victim.rounds,
            tabular=TableSettings(victim.attribute, hidden=victim.hidden, epsilon=victim.epsilon),
            detectors=DETECTORS,
            seen=victim.rounds,
        )
        places.append(Place(place.dataset, settings))
    about = "Which clients' records have an attribute more often, by sums alone"
    return Table(QUESTIONS[4], about, PROPERTIES, lambda size, data_dir: places, ("gibbs",))


def _sources(levels: Sequence[Place], clients: int) -> Table:
    """Whose is a record that some client holds, to someone who sees what all clients send."""
    places = []
    for place in levels:
        victim: VictimSettings = place.settings
        settings = LocalModelSettings(
            hidden=victim.hidden,
            clients=clients,
            records=victim.records,
            training=victim.training,
            rounds=victim.rounds,
            every=1,
            defense="dp" if victim.private else "none",
            epsilon=victim.epsilon,
            attacked=min(clients, SOURCE_CLIENTS),
            measures=("source",),
            targets=0,
        )
        places.append(
            Place(place.dataset, settings, {"decode_sources": FirstMessages(SOURCE_ROUNDS)})
        )
    about = "Whose is a record"
    methods = "decode_sources", "drop"
    return Table(QUESTIONS[5], about, LOCAL_MODELS, lambda size, data_dir: places, methods)


def _anonymous(levels: Sequence[Place], clients: int, data: Dataset) -> Table:
    """Which updates without names come from one client. The server's own federation, by whose
    records' gradients it measures, has as many records."""
    places = []
    for place in levels if levels[0].settings.rounds > 1 else ():
        victim: VictimSettings = place.settings
        records = min(victim.records, len(data) // (2 * clients))
        settings = LinkSettings(
            split="iid" if data.group is None else "named",
            clients=clients,
            records=records,
            training=fitting(victim.training, records),
            hidden=victim.hidden,
            epsilon=victim.epsilon,
            first=0,
            window=victim.rounds,
            trunk_round=0,
            shadow_every=1,
        )
        places.append(Place(place.dataset, settings))
    about = "Which updates without names come from one client"
    methods = ("matched_filter",)
    return Table(QUESTIONS[6], about, LINKABILITY, lambda size, data_dir: places, methods)


def fitting(training: LocalTraining, records: int) -> LocalTraining:
    """A recipe in whose batches so many records fit."""
    whole = training.batch_size is None or training.batch_size >= records
    return dataclasses.replace(training, batch_size=None, drop_last=False) if whole else training


def not_asked(suite: Suite, asked: Sequence[str]) -> list[str]:
    """What each question needs that cannot be asked, in words."""
    tables = [suite.table(name) for name in asked]
    empty = [t.name for t in tables if not suite.jobs(t, "small", t.methods, (0,), None)]
    return [f"Not asked: {name}, which needs {NEEDS[name]}." for name in empty]


def wholes_of(suite: Suite, rows: Rows) -> list[Whole]:
    """What was read of whole records, without protection first, then from weak to strong."""
    attribute, table = (suite.table(QUESTIONS[place]) for place in (0, 2))
    victims, cells = (t.cells(NAME, "small", None) for t in (attribute, table))
    mine = [row for row in rows if row["table"] == table.name]
    read = [
        whole_of(victim.settings.epsilon, [row for row in mine if _is_of(row, cell)])
        for victim, cell in zip(victims, cells, strict=False)
    ]
    return [whole for whole in read if whole is not None]


def _is_of(row: Mapping[str, Any], cell: Cell) -> bool:
    return bool(flatten(cell.settings).items() <= row["settings"].items())


def _attacks() -> dict[str, Any]:
    return {"cos": CosMatching(steps=COS_STEPS), "gls": DECODING, "gls_unrolled": UNROLLED}


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
