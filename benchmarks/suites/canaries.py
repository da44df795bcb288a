"""Measured epsilons: what messages show of what an accountant promises. Beyond the papers."""

from collections.abc import Callable, Iterable

from benchmarks.harness.jobs import Place, Suite, Table
from benchmarks.measurements.canaries import EXPERIMENT
from benchmarks.scenarios.canaries import CanarySettings
from jaxfl import LocalTraining

EPSILONS = (1.0, 3.0, 10.0)
BATCHES = (64, 16)


def _places(trainings: Iterable[LocalTraining]) -> Callable[[str, str | None], list[Place]]:
    def places(size: str, data_dir: str | None) -> list[Place]:
        return [
            Place("digits", CanarySettings(200, training=training, epsilon=epsilon))
            for training in trainings
            for epsilon in EPSILONS
        ]

    return places


SUITE = Suite(
    "canaries",
    (
        Table(
            "full",
            "Full batches: each round is a Gaussian mechanism",
            EXPERIMENT,
            _places([LocalTraining(0.1)]),
        ),
        Table(
            "batches",
            "Batches: a round's update shows less than its steps",
            EXPERIMENT,
            _places([LocalTraining(0.1, batch_size=b) for b in BATCHES]),
        ),
    ),
)
