"""How are attributes distributed? (Lyu 2021, Table 1; tells whether data at hand is the paper's)"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome
from benchmarks.scenarios.sources import classified


@dataclasses.dataclass(frozen=True)
class Attribute:
    """Which attribute, by its 0-based number, and the coding of categories."""

    attribute: int
    encoding: str = "onehot"


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """One outcome per attribute and metric; nothing depends on the seed."""
    from scipy.stats.contingency import association

    for job in jobs:
        data = classified(job.cell.dataset, data_dir, encoding=job.cell.settings.encoding)
        values = data.values_of(job.cell.settings.attribute)
        counts = np.zeros((data.classes or 0, values.max() + 1), int)
        np.add.at(counts, (data.y, values), 1)
        measured = float(counts.sum(0).var()), float(association(counts)) ** 2
        pairs = zip(METRICS, measured, strict=True)
        yield [Outcome(job, metric.name, value, note=data.note) for metric, value in pairs]


METRICS = (
    Metric("counts_variance", 'population variance of the value counts ("variance" in the paper)'),
    Metric(
        "cramers_v_squared", "squared association of attribute and label (the paper's Cramer's V)"
    ),
)
EXPERIMENT = Experiment(
    "associations",
    Attribute,
    (Method("summary", "what the data holds", observes=False),),
    METRICS,
    run,
    traced=("attribute",),
)
