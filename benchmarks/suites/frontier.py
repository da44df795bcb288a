"""Where attribute reconstruction stops: accuracy against one property of the client at a time, all else as in the base cell.

Base cell: Location-30, attribute 69 (balanced), 300 records, one full-batch step per round, 128 hidden units, rate 0.1, the
first five rounds seen. Where an axis departs from it, its title says so.
"""

from collections.abc import Callable, Sequence

from benchmarks import attribute_cost, attribute_experiment
from benchmarks.jobs import Cell, Cost, Job, Table, Value
from benchmarks.suites.lyu2021 import SHAPES, settings

SUITE = "frontier"
METHODS = ("majority", "cos", "closed_form", "gauss_newton", "gls")
MOST_ITERATED = MOST_SIMULATED = 1000
"""Records up to which `cos` and `gls` run: beyond, they take minutes per victim."""


SETTINGS = {"minibatch_records": "records"}
"""The setting that varies along an axis of another name."""


def _axis(
    dataset: str, name: str, paper: Sequence[Value], small: Sequence[Value], **fixed: Value
) -> Callable[..., list[Cell]]:
    """Cells along one setting, that of the axis' name or the one in `SETTINGS`. At small size there are 75 records unless
    `fixed` says otherwise, and fewer simulations."""

    def cells(size: str, data_dir: str | None) -> list[Cell]:
        reduced = {"records": 75, "gls_orders": 64} if size == "small" else {"records": 300}
        values = paper if size == "paper" else small
        shared = {
            "attribute": 69 if dataset == "location30" else 595,
            "phases": "pre5",
            "rounds": 50,
            "steps": 500,
        }
        setting = SETTINGS.get(name, name)
        return [
            Cell(
                SUITE,
                name,
                size,
                dataset,
                settings(**(shared | reduced | fixed | {setting: value})),
            )
            for value in values
        ]

    return cells


def _applies(cell: Cell, method: str) -> bool:
    most = {"cos": MOST_ITERATED, "gls": MOST_SIMULATED}.get(method, cell["records"])
    return attribute_experiment.applies(cell, method) and cell["records"] <= most


def _cost(job: Job) -> Cost:
    return attribute_cost.cost(job, *SHAPES[job.cell.dataset])


def _table(name: str, title: str, cells: Callable[..., list[Cell]]) -> Table:
    experiment = attribute_experiment
    return Table(
        name,
        title,
        cells,
        METHODS,
        lambda cell, method, metric: None,
        _applies,
        experiment.run,
        experiment.signature,
        _cost,
    )


RECORDS, FEWER = (100, 300, 1000, 3000, 10000), (25, 75, 300)
MINIBATCH: dict[str, Value] = {"batch_size": 8}
TABLES = (
    _table(
        "records",
        "Records of the client (Purchase-like); the first round seen",
        _axis("purchase_like", "records", RECORDS, FEWER, phases="pre1", steps=1000),
    ),
    _table(
        "batch_size",
        "Records per local step; the first 20 rounds seen",
        _axis("location30", "batch_size", ("full", 128, 32, 8), ("full", 32, 8), phases="first20"),
    ),
    _table(
        "minibatch_records",
        "Records of a client that trains in batches of 8; the first 20 rounds seen",
        _axis(
            "location30",
            "minibatch_records",
            (100, 300, 1000),
            (25, 75),
            phases="first20",
            batch_size=8,
        ),
    ),
    _table(
        "epochs",
        "Local epochs of batches of 32; 100 records, the first 20 rounds seen",
        _axis(
            "location30", "epochs", (1, 2, 5), (1, 2), phases="first20", batch_size=32, records=100
        ),
    ),
    _table(
        "phases",
        "Rounds seen of a client that trains in batches of 8",
        _axis(
            "location30",
            "phases",
            ("pre1", "pre5", "first20", "first50"),
            ("pre1", "pre5", "first20"),
            **MINIBATCH,
        ),
    ),
    _table(
        "columns", "Unknown columns", _axis("location30", "columns", (1, 5, 20, 100), (1, 5, 20))
    ),
    _table(
        "hidden",
        "Hidden units",
        _axis("location30", "hidden", ("4", "8", "16", "32", "128", "512"), ("4", "16", "128")),
    ),
    _table(
        "noise_multiplier",
        "Gaussian noise on every number of an update, in units of its norm",
        _axis(
            "location30", "noise_multiplier", (0.0, 1e-4, 1e-3, 0.01, 0.03, 0.1), (0.0, 0.01, 0.1)
        ),
    ),
    _table(
        "bits",
        "Bits per number of an update",
        _axis("location30", "bits", (0, 16, 8, 4, 2, 1), (0, 8, 1)),
    ),
)
