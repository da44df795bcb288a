"""The questions of an audit of one's own table: each is a table of what is measured."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from attacks import GLS, CosMatching, DetectorTraining, NumberDecoding, UnrolledGLS
from benchmarks.harness.jobs import Place, Table
from benchmarks.measurements.attributes import EXPERIMENT as ATTRIBUTES
from benchmarks.measurements.canaries import EXPERIMENT as CANARIES
from benchmarks.measurements.linkability import EXPERIMENT as LINKABILITY
from benchmarks.measurements.linkability import LinkSettings
from benchmarks.measurements.local_models.experiment import EXPERIMENT as LOCAL_MODELS
from benchmarks.measurements.local_models.work import FirstMessages, LocalModelSettings
from benchmarks.measurements.membership import EXPERIMENT as MEMBERSHIP
from benchmarks.measurements.numbers import EXPERIMENT as NUMBERS
from benchmarks.measurements.properties import EXPERIMENT as PROPERTIES
from benchmarks.measurements.properties import PropertySettings
from benchmarks.measurements.whole_records import EXPERIMENT as RECORDS
from benchmarks.scenarios.canaries import CanarySettings
from benchmarks.scenarios.numbers import NumberSettings
from benchmarks.scenarios.splits import held_out_rows, public_rows, training_rows
from benchmarks.scenarios.sums import TableSettings
from benchmarks.scenarios.victims import VictimSettings
from benchmarks.scenarios.whole_records import WholeRecordsSettings
from jaxfl import LocalTraining
from jaxfl.datasets import Dataset

QUESTIONS = (
    "attribute",
    "membership",
    "records",
    "epsilon",
    "property",
    "source",
    "linkability",
    "numbers",
)
READ_TOGETHER = 16
"""Records of the one update of which whole records are read."""
COS_STEPS = 200
"""Iterations, and below runs, few enough for an audit to end within minutes."""
DETECTORS = DetectorTraining(every=2)
DECODING = GLS(LocalTraining(), orders=32, points=4, passes=2)
UNROLLED = UnrolledGLS(LocalTraining(), runs=256, tangents=4, passes=2)
SOURCE_CLIENTS, SOURCE_ROUNDS = 10, 5
"""Clients, at most, whose records are told apart, and how many updates of each tell."""
NEEDS = {
    "membership": "clients that take one step of plain SGD on all of their records a round "
    "(--batch-size 0 and --epochs 1)",
    "epsilon": "private clients of plain SGD",
    "property": "four clients or more",
    "source": "clients of plain SGD",
    "linkability": "two rounds or more",
    "numbers": "a sensitive column of numbers, and clients of SGD with at most 1,000 records each",
}
FEWEST_SUMMED, SURE_SHARE = 4, 0.8
"""Clients: of fewer, halves are no sums; and what share of the training records they take."""
MOST_NUMBERED, UNKNOWNS = 1_000, 800
"""Records of a client whose numbers are read, and how many unknowns its records' nodes are kept to
where three of each record are not more: the time grows with their cube."""


def attribute(places: Sequence[Place]) -> Table:
    """A sensitive column; `places` are of every column and protection."""
    return Table(
        QUESTIONS[0],
        "A sensitive column of a client's records",
        ATTRIBUTES,
        lambda size, data_dir: list(places),
        ("majority", "cos", "closed_form", "gls", "decode_adam", "gls_unrolled"),
    )


def attacks() -> dict[str, Any]:
    """Settings of the attacks on a column that are not the usual ones, by method."""
    return {"cos": CosMatching(steps=COS_STEPS), "gls": DECODING, "gls_unrolled": UNROLLED}


def membership(levels: Sequence[Place], data: Dataset) -> Table:
    """Whether a record is a client's."""
    places = [Place(level.dataset, _alone(level.settings, data)) for level in levels]
    about = "Whether a record is a client's"
    return Table(QUESTIONS[1], about, MEMBERSHIP, lambda size, data_dir: places, ("closed_form",))


def _alone(victim: VictimSettings, data: Dataset) -> VictimSettings:
    """The victim for whose records as many held-out ones are there to be told apart."""
    records = min(victim.records, held_out_rows(data))
    training = fitting(victim.training, records)
    return dataclasses.replace(victim, participants=1, records=records, training=training)


def _whole(victim: VictimSettings) -> WholeRecordsSettings:
    """One update on few of a client's records, under the protection of its whole training."""
    training = LocalTraining(plugins=victim.recipe.plugins)
    return WholeRecordsSettings(
        min(READ_TOGETHER, victim.records), victim.hidden, training=training
    )


def read_whole(levels: Sequence[Place]) -> Table:
    """Whole records of one update."""
    places = [Place(level.dataset, _whole(level.settings)) for level in levels]
    about = "Whole records of one update, nothing known of them"
    methods = "public", "reconstruct_records"
    return Table(QUESTIONS[2], about, RECORDS, lambda size, data_dir: places, methods)


def shown(private: Sequence[Place]) -> Table:
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


def of_sums(levels: Sequence[Place], clients: int, data: Dataset) -> Table:
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


def sources(levels: Sequence[Place], clients: int) -> Table:
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


def anonymous(levels: Sequence[Place], clients: int, data: Dataset) -> Table:
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


def numbers(levels: Sequence[Place], named: Sequence[tuple[str, int]]) -> Table:
    """Numbers of columns, of which the table's bounds are known; `named` are sources that leave
    numbers as they are, and the columns' places."""
    places = []
    for name, place in named:
        for level in levels:
            victim: VictimSettings = level.settings
            settings = NumberSettings(
                place,
                victim.records,
                participants=victim.participants,
                hidden=victim.hidden,
                rounds=victim.rounds,
                training=victim.training,
                epsilon=victim.epsilon,
            )
            if victim.records <= MOST_NUMBERED:
                places.append(Place(name, settings, {"decode_numbers": _decoding(victim.records)}))
    about = "Numbers of a client's records, between bounds"
    return Table(QUESTIONS[7], about, NUMBERS, lambda size, data_dir: places, ("decode_numbers",))


def _decoding(records: int) -> NumberDecoding:
    """Between few nodes numbers end far off, and many take minutes."""
    nodes = int(np.clip(UNKNOWNS // records + 1, 3, 41))
    return NumberDecoding(LocalTraining(), orders=8, nodes=nodes, passes=12)


def fitting(training: LocalTraining, records: int) -> LocalTraining:
    """A recipe in whose batches so many records fit."""
    whole = training.batch_size is None or training.batch_size >= records
    return dataclasses.replace(training, batch_size=None, drop_last=False) if whole else training
