"""Paper 000: L. Lyu, C. Chen, "A Novel Attribute Reconstruction Attack in Federated Learning" (2021), Tables 2 to 4."""

import csv
import functools
from collections.abc import Callable, Sequence
from importlib import resources

from benchmarks import attribute_experiment
from benchmarks.jobs import Cell, Job, Table, Value
from jaxfl.datasets.sources import at_hand

SUITE = "lyu2021"
SIZES = {
    # paper's |D_v|: Purchase and Genome {50, 100, 500, 1000}, Location {50, 100, 300}
    "paper": {50: 50, 100: 100, 300: 300, 500: 500, 1000: 1000},
    "small": {50: 25, 100: 50, 300: 100, 500: 100, 1000: 200},
}
SHAPES = {"purchase100": (600, 100), "purchase_like": (600, 100), "location30": (446, 30), "genome_hs3d": (80, 2)}
"""Features and classes, for estimates."""

ALL_PHASES = "pre1,pre2,pre5,gap10,last5"


def settings(**values: Value) -> tuple[tuple[str, Value], ...]:
    """The experiment's settings with the paper's defaults (learning rate: not stated there)."""
    defaults: dict[str, Value] = {
        "batch_size": "full",
        "hidden": 128,
        "learning_rate": 0.1,
        "rounds": 100,
        "phases": ALL_PHASES,
        "prior": "known",
        "encoding": "onehot",
        "steps": 300,
        "gamma": 1.0,
        "adam_rate": 0.1,
        "unrolled_steps": 300,
        "unrolled_orders": 2,
        "evaluations": 200,
    }
    return tuple(sorted((defaults | values).items()))


def _steps(records: int) -> int:
    """Adam iterations until the objective no longer moves: more unknowns take longer."""
    return 300 if records <= 100 else 500 if records <= 300 else 1000


def _cells(
    table: str, dataset: str, attributes: Sequence[int], records: Sequence[int], encodings: Sequence[str], size: str
) -> list[Cell]:
    return [
        Cell(SUITE, table, size, dataset, settings(attribute=a, records=n, encoding=encoding, steps=_steps(n)))
        for encoding in encodings
        for n in dict.fromkeys(SIZES[size][paper] for paper in records)
        for a in attributes
    ]


def _table2(size: str, data_dir: str | None) -> list[Cell]:
    dataset = "purchase100" if at_hand("purchase100", data_dir) else "purchase_like"
    return _cells("table2", dataset, (130, 595), (50, 100, 500, 1000), ("onehot",), size)


def _table3(size: str, data_dir: str | None) -> list[Cell]:
    return _cells("table3", "location30", (1, 69), (50, 100, 300), ("onehot",), size)


def _table4(size: str, data_dir: str | None) -> list[Cell]:
    return _cells("table4", "genome_hs3d", (7, 17), (50, 100, 500, 1000), ("scalar", "onehot"), size)


def _minibatch(size: str, data_dir: str | None) -> list[Cell]:
    records = SIZES[size][300]
    cell = settings(attribute=69, records=records, batch_size=8, phases="pre5", steps=_steps(records))
    return [Cell(SUITE, "minibatch", size, "location30", cell)]


@functools.cache
def _published_values() -> dict[tuple[str, int, int, str], float]:
    text = resources.files("benchmarks.suites").joinpath("lyu2021_published.csv").read_text(encoding="utf-8")
    return {
        (row["table"], int(row["attribute"]), int(row["records"]), row["method"]): float(row["value"])
        for row in csv.DictReader(text.splitlines())
    }


def published(cell: Cell, method: str) -> float | None:
    """The paper's number for this cell and method. The paper reports the best phase for `cos`, an oracle's choice."""
    values = _published_values()
    in_table = {records for table, _, records, _ in values if table == cell.table}
    paper = next((records for records in in_table if SIZES[cell.size][records] == cell["records"]), None)
    return None if paper is None else values.get((cell.table, cell["attribute"], paper, method))


def _cost(job: Job) -> tuple[float, float]:
    features, classes = SHAPES[job.cell.dataset]
    return attribute_experiment.cost(job, features, classes)


def _table(
    name: str,
    title: str,
    cells: Callable[[str, str | None], Sequence[Cell]],
    methods: tuple[str, ...] = attribute_experiment.METHODS,
) -> Table:
    return Table(name, title, cells, methods, published, attribute_experiment.run, attribute_experiment.signature, _cost)


TABLES = (
    _table("table2", "Purchase-100, attributes 130 and 595 (Table 2)", _table2),
    _table("table3", "Location-30, attributes 1 and 69 (Table 3)", _table3),
    _table("table4", "Genome HS3D, attributes 7 and 17, scalar and one-hot (Table 4)", _table4),
    _table(
        "minibatch",
        "Location-30, attribute 69, batches of 8: matching a gradient or the simulated training",
        _minibatch,
        ("majority", "cos", "cos_unrolled"),
    ),
)
