"""Summary of the attributes (Lyu 2021, Table 1), to see whether data at hand is the paper's.

Metrics: `counts_variance`, population variance of the K value counts ("variance" in the paper), and `cramers_v_squared`,
the squared association of attribute and label: on Location the paper's "Cramer's V" is its square.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.jobs import Cell, Cost, Job, Outcome
from benchmarks.members import labelled_data

METHODS = ("summary",)
METRICS = ("counts_variance", "cramers_v_squared")


def signature(cell: Cell) -> tuple[str, str]:
    """Attributes of one source are summarised together."""
    return cell.dataset, cell["encoding"]


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """One outcome per attribute and metric; nothing depends on the seed."""
    from scipy.stats.contingency import association

    data = labelled_data(jobs[0].cell, data_dir)
    for job in jobs:
        values = data.values_of(job.cell["attribute"])
        table = np.zeros((data.classes or 0, values.max() + 1), int)
        np.add.at(table, (data.y, values), 1)
        found = float(table.sum(0).var()), float(association(table)) ** 2
        yield [
            Outcome(job, metric, value, note=data.note)
            for metric, value in zip(METRICS, found, strict=True)
        ]


def cost(job: Job) -> Cost:
    """Next to nothing."""
    return Cost({}, {}, 0.0)
