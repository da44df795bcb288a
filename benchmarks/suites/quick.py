"""The default suite: embedded data, a few minutes on two cores; attributes of a victim's records,
and whole records."""

from benchmarks.harness.jobs import Place, Suite, Table
from benchmarks.measurements.attributes import EXPERIMENT
from benchmarks.measurements.whole_records import EXPERIMENT as RECORDS
from benchmarks.scenarios.victims import VictimSettings
from benchmarks.scenarios.whole_records import WholeRecordsSettings
from benchmarks.suites.lyu2021 import method_settings
from jaxfl import LocalTraining


def _attributes(size: str, data_dir: str | None) -> list[Place]:
    phases = ("pre1", "pre5", "last5")
    return [
        Place(dataset, VictimSettings(attribute, records, phases=phases), method_settings())
        for dataset, attribute, records in (
            ("purchase_like", 595, 100),
            ("digits", 20, 100),
            ("breast_cancer", 0, 50),
        )
    ]


def _minibatch(size: str, data_dir: str | None) -> list[Place]:
    training = LocalTraining(0.1, batch_size=5)
    chosen = method_settings(unrolled_steps=200, unrolled_orders=1, orders=64)
    return [
        Place("digits", VictimSettings(20, 100, training=training, phases=(phase,)), chosen)
        for phase in ("pre5", "first20")
    ]


def _learning_rate(size: str, data_dir: str | None) -> list[Place]:
    return [
        Place(
            "digits",
            VictimSettings(20, 50, training=LocalTraining(rate), phases=("last5",)),
            method_settings(),
        )
        for rate in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    ]


def _records(size: str, data_dir: str | None) -> list[Place]:
    return [Place("breast_cancer", WholeRecordsSettings(records, (64, 64))) for records in (8, 32)]


SUITE = Suite(
    "quick",
    (
        Table(
            "attributes",
            "What a server reconstructs of a full-batch client, beside what can be guessed",
            EXPERIMENT,
            _attributes,
        ),
        Table(
            "minibatch",
            "A client that trains in small batches: matching a gradient, matching the "
            "simulated training, "
            "decoding",
            EXPERIMENT,
            _minibatch,
            ("majority", "cos", "cos_unrolled", "gls"),
        ),
        Table(
            "records",
            "Whole records of a table of yes and no, with nothing known but its schema",
            RECORDS,
            _records,
            ("public", "reconstruct_records"),
        ),
        Table(
            "learning_rate",
            "The clients' learning rate and what their last rounds give away",
            EXPERIMENT,
            _learning_rate,
            ("majority", "cos"),
        ),
    ),
)
