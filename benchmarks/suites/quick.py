"""The default suite: embedded data, a few minutes on two cores, every kind of answer once."""

from collections.abc import Callable, Sequence

from benchmarks import attribute_cost, attribute_experiment
from benchmarks.jobs import Cell, Cost, Job, Table
from benchmarks.suites.lyu2021 import settings

SUITE = "quick"
SHAPES = {"purchase_like": (600, 100), "breast_cancer": (30, 2), "digits": (64, 10)}


def _attributes(size: str, data_dir: str | None) -> list[Cell]:
    return [
        Cell(
            SUITE,
            "attributes",
            size,
            dataset,
            settings(attribute=attribute, records=records, phases="pre1,pre5,last5"),
        )
        for dataset, attribute, records in (
            ("purchase_like", 595, 100),
            ("digits", 20, 100),
            ("breast_cancer", 0, 50),
        )
    ]


def _minibatch(size: str, data_dir: str | None) -> list[Cell]:
    shared = {
        "attribute": 20,
        "records": 100,
        "batch_size": 5,
        "unrolled_steps": 200,
        "unrolled_orders": 1,
        "gls_orders": 64,
    }
    return [
        Cell(SUITE, "minibatch", size, "digits", settings(phases=phases, **shared))
        for phases in ("pre5", "first20")
    ]


def _learning_rate(size: str, data_dir: str | None) -> list[Cell]:
    rates = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    return [
        Cell(
            SUITE,
            "learning_rate",
            size,
            "digits",
            settings(attribute=20, records=50, phases="last5", learning_rate=rate),
        )
        for rate in rates
    ]


def _cost(job: Job) -> Cost:
    return attribute_cost.cost(job, *SHAPES[job.cell.dataset])


def _table(
    name: str,
    title: str,
    cells: Callable[[str, str | None], Sequence[Cell]],
    methods: tuple[str, ...],
) -> Table:
    experiment = attribute_experiment
    return Table(
        name,
        title,
        cells,
        methods,
        lambda cell, method, metric: None,
        experiment.applies,
        experiment.run,
        experiment.signature,
        _cost,
    )


TABLES = (
    _table(
        "attributes",
        "What a server reconstructs of a full-batch client, beside what can be guessed",
        _attributes,
        attribute_experiment.METHODS,
    ),
    _table(
        "minibatch",
        "A client that trains in small batches: matching a gradient, matching the simulated training, decoding",
        _minibatch,
        ("majority", "cos", "cos_unrolled", "gls"),
    ),
    _table(
        "learning_rate",
        "The clients' learning rate and what their last rounds give away",
        _learning_rate,
        ("majority", "cos"),
    ),
)
