"""Numbers of which bounds alone are known: by how much are those off that messages tell? Beyond the
papers."""

from collections.abc import Callable

from benchmarks.harness.jobs import Place, Suite, Table
from benchmarks.measurements.numbers import EXPERIMENT
from benchmarks.scenarios.numbers import NumberSettings
from jaxfl import LocalTraining
from jaxfl.datasets.sources import at_hand

RECORDS, SEEN = 100, (5, 20)
AGE = 0
"""Attribute of the embedded table, and of Adult, which is taken where it is at hand."""


def _places(training: LocalTraining) -> Callable[[str, str | None], list[Place]]:
    def places(size: str, data_dir: str | None) -> list[Place]:
        names = ["diabetes", "adult"] if at_hand("adult", data_dir) else ["diabetes"]
        return [
            Place(name, NumberSettings(AGE, RECORDS, rounds=rounds, training=training))
            for name in names
            for rounds in SEEN
        ]

    return places


SUITE = Suite(
    "numbers",
    (
        Table(
            "full",
            "A number, from full batches",
            EXPERIMENT,
            _places(LocalTraining(0.1)),
        ),
        Table(
            "batches",
            "A number, from batches of 20",
            EXPERIMENT,
            _places(LocalTraining(0.1, batch_size=20)),
        ),
    ),
)
