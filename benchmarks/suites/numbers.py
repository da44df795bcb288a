"""Numbers of which bounds alone are known: by how much are those off that messages tell? Beyond the
papers."""

from collections.abc import Callable

from benchmarks.harness.jobs import Place, Suite, Table
from benchmarks.measurements.numbers import EXPERIMENT
from benchmarks.scenarios.numbers import NumberSettings
from jaxfl import LocalTraining
from jaxfl.datasets.sources import at_hand

RECORDS, SEEN = 100, (5, 20)
SMOOTHNESS, AGE = 4, 0
"""Attributes of the embedded table, and of Adult where it is at hand."""


def _places(training: LocalTraining) -> Callable[[str, str | None], list[Place]]:
    def places(size: str, data_dir: str | None) -> list[Place]:
        asked = [("breast_cancer", SMOOTHNESS)]
        if at_hand("adult", data_dir):
            asked.append(("adult", AGE))
        return [
            Place(name, NumberSettings(attribute, RECORDS, rounds=rounds, training=training))
            for name, attribute in asked
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
