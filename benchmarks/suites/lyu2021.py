"""Lyu 2021: L. Lyu, C. Chen, "A Novel Attribute Reconstruction Attack in Federated Learning" (2021).

Tables 1 to 13, and section 5.4 (unknown labels). Attributes count from 0.
"""

import functools
from collections.abc import Callable, Sequence

from benchmarks import attribute_cost, attribute_experiment, data_check, membership_experiment
from benchmarks.jobs import Cell, Cost, Job, Table, Value
from benchmarks.suites.grids import everywhere, product, published_rows
from jaxfl.datasets.sources import at_hand

SUITE = "lyu2021"
SIZES = {
    # the paper's |D_v|: Purchase and Genome {50, 100, 500, 1000}, Location {50, 100, 300}
    "paper": {50: 50, 100: 100, 300: 300, 500: 500, 1000: 1000},
    "small": {50: 25, 100: 50, 300: 75, 500: 100, 1000: 200},
}
SHAPES = {
    "purchase100": (600, 100),
    "purchase_like": (600, 100),
    "purchase2_like": (600, 2),
    "location30": (446, 30),
    "genome_hs3d": (80, 2),
}
"""Features and classes, for estimates."""

ATTRIBUTES = {"purchase": (130, 595), "genome": (7, 17), "location": (1, 69)}
RECORDS = {"location": (50, 100, 300)} | dict.fromkeys(
    ("purchase", "purchase2", "genome"), (50, 100, 500, 1000)
)
ALL_PHASES = "pre1,pre2,pre5,gap10,last5"
MINIBATCH_METHODS = (*attribute_experiment.METHODS, "cos_unrolled", "gls")
MOST_SIMULATED = 300
"""Records up to which training is simulated: beyond, minutes per victim."""


def settings(**values: Value) -> tuple[tuple[str, Value], ...]:
    """The experiment's settings with the paper's defaults (learning rate: not stated there)."""
    defaults: dict[str, Value] = {
        "columns": 1,
        "batch_size": "full",
        "epochs": 1,
        "noise_multiplier": 0.0,
        "bits": 0,
        "hidden": "128",
        "learning_rate": 0.1,
        "rounds": 100,
        "phases": ALL_PHASES,
        "simulated_phases": "same",
        "prior": "known",
        "labels": "known",
        "participants": 1,
        "encoding": "onehot",
        "steps": 300,
        "gamma": 1.0,
        "adam_rate": 0.1,
        "unrolled_steps": 300,
        "unrolled_orders": 2,
        "unrolled_rounds": 5,
        "evaluations": 200,
        "gls_orders": 256,
        "gls_passes": 3,
        "gls_points": 8,
    }
    return tuple(sorted((defaults | values).items()))


def _steps(records: int, values: dict[str, Value]) -> int:
    """Adam iterations until the objective no longer moves: more unknowns take longer, a prior or more observed numbers less."""
    if records <= 100 or str(values.get("hidden", "")).startswith("1024"):
        return 300
    return 500 if records <= 500 or values.get("prior", "known") == "known" else 750


def _sources(data_dir: str | None) -> dict[str, str]:
    """The paper's sources, or what stands in for them here."""
    purchase = "purchase100" if at_hand("purchase100", data_dir) else "purchase_like"
    return {
        "purchase": purchase,
        "genome": "genome_hs3d",
        "location": "location30",
        "purchase2": "purchase2_like",
    }


def _grid(
    table: str,
    sources: Sequence[str],
    records: Sequence[int] | None = None,
    **varied: Sequence[Value],
) -> Callable[..., list[Cell]]:
    """Cells of a table: sources x records (all of the source's by default) x attributes x codings x what else is varied."""

    def cells(size: str, data_dir: str | None) -> list[Cell]:
        names = _sources(data_dir)
        found = []
        for source in sources:
            for values in product(
                {"encoding": ("scalar", "onehot")} | varied if source == "genome" else varied
            ):
                for n in records or RECORDS[source]:
                    ours = SIZES[size][n]
                    if (
                        isinstance(values.get("batch_size"), int)
                        and int(str(values["batch_size"])) > ours
                    ):
                        continue
                    for attribute in ATTRIBUTES[source.rstrip("2")]:
                        chosen = {
                            "steps": _steps(ours, values),
                            **values,
                            "attribute": attribute,
                            "records": ours,
                        }
                        if "phases" not in values and isinstance(values.get("batch_size"), int):
                            chosen |= {
                                "simulated_phases": "first20",
                                "gls_orders": 64,
                                "gls_points": 1,
                            }
                        if size == "small":  # 200, 300, 2 and 256 at paper size
                            chosen |= {
                                "evaluations": 100,
                                "unrolled_steps": 100,
                                "unrolled_orders": 1,
                                "gls_orders": 64,
                            }
                        found.append(Cell(SUITE, table, size, names[source], settings(**chosen)))
        return list(dict.fromkeys(found))

    return cells


def published(cell: Cell, method: str, metric: str) -> float | None:
    """The paper's number for this cell and method. The paper reports the best phase for `cos` and `stats`, an oracle's
    choice, except in Tables 7 and 8; for membership, the accuracy per candidate."""
    known = dict(cell.settings)
    for row in published_rows(SUITE):
        facts = {
            key: str(known.get(key))
            for key in ("attribute", "batch_size", "participants", "hidden", "phases")
        }
        source = cell.dataset.split("_")[0].rstrip("0123456789")
        facts |= {"table": cell.table, "source": source, "method": method, "metric": metric}
        facts["records"] = str(
            next((n for n, ours in SIZES[cell.size].items() if ours == known.get("records")), "")
        )
        if all(not row[key] or row[key] == value for key, value in facts.items()):
            return float(row["value"])
    return None


def _cost(job: Job, *, strangers: bool = False) -> Cost:
    return attribute_cost.cost(job, *SHAPES[job.cell.dataset], strangers=strangers)


def _table(
    name: str,
    title: str,
    cells: Callable[..., list[Cell]],
    methods: tuple[str, ...] = attribute_experiment.METHODS,
) -> Table:
    experiment = attribute_experiment
    return Table(
        name,
        title,
        cells,
        methods,
        published,
        _applies,
        experiment.run,
        experiment.signature,
        _cost,
    )


def _table1() -> Table:
    def cells(size: str, data_dir: str | None) -> list[Cell]:
        names = _sources(data_dir)
        return [
            Cell(
                SUITE,
                "table1",
                size,
                names[source],
                (("attribute", attribute), ("encoding", "onehot")),
            )
            for source in EVERYTHING
            for attribute in ATTRIBUTES[source]
        ]

    return Table(
        name="table1",
        title="Data check: distribution of the attributes (Table 1)",
        cells=cells,
        methods=data_check.METHODS,
        published=published,
        applies=everywhere,
        run=data_check.run,
        signature=data_check.signature,
        cost=data_check.cost,
    )


def _membership(name: str, title: str, source: str, rates: tuple[Value, ...]) -> Table:
    cells = _grid(name, [source], phases=["pre5"], batch_size=BATCHES, learning_rate=rates)
    experiment, cost = membership_experiment, functools.partial(_cost, strangers=True)
    return Table(
        name,
        title,
        cells,
        experiment.METHODS,
        published,
        experiment.applies,
        experiment.run,
        experiment.signature,
        cost,
    )


def _applies(cell: Cell, method: str) -> bool:
    simulated = method in attribute_experiment.SIMULATED
    return attribute_experiment.applies(cell, method) and not (
        simulated and cell["records"] > MOST_SIMULATED
    )


EVERYTHING = ("purchase", "genome", "location")
PHASES = ALL_PHASES.split(",")
BATCHES: tuple[Value, ...] = (8, 32, "full")

TABLES = (
    _table1(),
    _table("table2", "Purchase-100 (Table 2)", _grid("table2", ["purchase"])),
    _table("table3", "Location-30 (Table 3)", _grid("table3", ["location"])),
    _table("table4", "Genome HS3D, scalar and one-hot (Table 4)", _grid("table4", ["genome"])),
    _table(
        "table5",
        "Participants; 1 is isolation (Table 5)",
        _grid("table5", EVERYTHING, [100], participants=(1, 2, 10)),
    ),
    _table(
        "table6",
        "Batch size (Table 6)",
        _grid("table6", EVERYTHING, [100], batch_size=BATCHES),
        MINIBATCH_METHODS,
    ),
    _table(
        "table7", "Training phases (Table 7)", _grid("table7", EVERYTHING, [100], phases=PHASES)
    ),
    _table(
        "table8", "Local data size, pre5 (Table 8)", _grid("table8", EVERYTHING, phases=["pre5"])
    ),
    _table(
        "table9",
        "Model width, Location (Table 9)",
        _grid("table9", ["location"], hidden=("128", "1024", "1024,256")),
    ),
    _membership("table10", "Membership unknown, Purchase (Table 10)", "purchase", (0.1, 1.0)),
    _membership("table11", "Membership unknown, Location (Table 11)", "location", (0.1, 1.0)),
    _table(
        "table12",
        "Prior unknown, Location (Table 12)",
        _grid("table12", ["location"], batch_size=BATCHES, prior=["unknown"]),
        MINIBATCH_METHODS,
    ),
    _table(
        "table13",
        "Prior unknown, Purchase (Table 13)",
        _grid("table13", ["purchase"], batch_size=BATCHES, prior=["unknown"]),
        MINIBATCH_METHODS,
    ),
    _table(
        "labels",
        "Labels unknown (section 5.4): Purchase in two classes, Genome",
        _grid("labels", ["purchase2", "genome"], labels=["unknown"], phases=["pre5"], steps=[1000]),
    ),
    _table(
        "minibatch",
        "Batches of 8: matching a gradient, matching the simulated training, decoding",
        _grid(
            "minibatch", ["location"], [300], batch_size=[8], phases=["pre5", "first20", "first50"]
        ),
        ("majority", "cos", "cos_unrolled", "gls"),
    ),
)
