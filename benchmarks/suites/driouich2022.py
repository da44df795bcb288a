"""Driouich, Xu, Neglia, Giroire, Thomas, *A Novel Model-Based Attribute Inference Attack in Federated Learning* (2022):
Table 1 and Figures 1 to 3 on linear clients, Table 6 on LEAF's.

The paper's flight bookings are not public; `flight_airlines` stands in. Its clients on Adult are logistic; here all of Table 1
is linear least squares, the setting of its propositions, with the income as target. Its step "10e-2" is read as 1e-2.
"""

from collections.abc import Callable, Sequence

from benchmarks import linear_experiment, local_model_experiment
from benchmarks.jobs import Cell, Cost, Job, Table, Value
from benchmarks.local_model_cost import SHAPES
from benchmarks.local_model_cost import cost as local_model_cost
from benchmarks.suites import driouich2023
from benchmarks.suites.grids import everywhere, published_rows

SUITE = "driouich2022"
DATASETS = ("flight_airlines", "adult_bachelors")
GRID = "+".join(f"{r}:{s}" for r in (100, 300, 500, 1000) for s in (10, 30, 50))

PAPER: dict[str, Value] = {
    **{
        "model": "linear",
        "hidden": "",
        "batch_norm": 0,
        "clients": 10,
        "records": 0,
        "batch_size": "full",
        "epochs": 1,
    },
    **{
        "learning_rate": 0.01,
        "rounds": 1000,
        "every": 10,
        "defense": "none",
        "epsilon": 10.0,
        "attacked": 10,
        "side": "",
    },
    **{"client": "mean", "grid": GRID, "cos_steps": 300, "evaluations": 300},
}
SMALL: dict[str, Value] = {
    "rounds": 100,
    "every": 5,
    "attacked": 4,
    "grid": "50:5+95:5",
    "cos_steps": 100,
    "evaluations": 100,
}
"""What differs at small size."""


def _linear(
    table: str, datasets: Sequence[str], clients: Sequence[Value], records: Sequence[int] = (0,)
) -> Callable[..., list[Cell]]:
    def cells(size: str, data_dir: str | None) -> list[Cell]:
        found = []
        for dataset in datasets:
            for n in records:
                for client in clients:
                    chosen = (
                        PAPER
                        | (SMALL if size == "small" else {})
                        | {"client": client, "records": n}
                    )
                    if client == "mean" or int(str(client)) < int(str(chosen["attacked"])):
                        found.append(
                            Cell(SUITE, table, size, dataset, tuple(sorted(chosen.items())))
                        )
        return found

    return cells


def _leaf(size: str, data_dir: str | None) -> list[Cell]:
    """Five clients of softmax regression, with 1, 5 and 10 local epochs of batches of 256."""
    found = []
    for epochs in (1, 5, 10):
        chosen = driouich2023.PAPER | {
            "measures": "zest",
            "clients": 5,
            "attacked": 5,
            "hidden": "",
            "batch_size": 256,
        }
        if size == "small":
            chosen = driouich2023.shrunk(chosen) | {"hidden": "", "records": 200}
        found.append(
            Cell(
                SUITE,
                "table6",
                size,
                "leaf_synthetic",
                tuple(sorted((chosen | {"epochs": epochs}).items())),
            )
        )
    return found


def published(cell: Cell, method: str, metric: str) -> float | None:
    """The paper's number for this cell and method, as printed: some of its means are not those of their rows."""
    known = dict(cell.settings)
    facts = {"table": cell.table, "dataset": cell.dataset, "method": method, "metric": metric}
    facts |= {"client": str(known.get("client", "mean")), "epochs": str(known["epochs"])}
    return next(
        (
            float(row["value"])
            for row in published_rows(SUITE)
            if all(not row[k] or row[k] == v for k, v in facts.items())
        ),
        None,
    )


def _cost(job: Job) -> Cost:
    cell = job.cell
    features, _, records = SHAPES[cell.dataset]
    records = min(records, cell["records"] or records)
    sets = str(cell["grid"]).count("+") + 1
    seen = sets * cell["rounds"] / cell["every"] / 2
    work = (
        {"cos": cell["cos_steps"] * seen, "l2_lbfgs": cell["evaluations"] * seen}.get(
            job.method, 0.0
        )
        * 30.0
        * records
        * features
    )
    compiling = {
        "simulation": 2.0,
        job.method: 3.0 * sets if job.method in ("cos", "l2_lbfgs") else 0.1,
    }
    measured = linear_experiment.measured(cell)
    operations = {
        (measured, job.seed): cell["rounds"] * cell["clients"] * 20.0 * records * features
    }
    operations[(*measured, job.method), job.seed] = cell["attacked"] * work
    return Cost(
        operations,
        {(cell.dataset, name): s for name, s in compiling.items()},
        8.0 * records * features,
    )


def _table(
    name: str,
    title: str,
    cells: Callable[..., list[Cell]],
    methods: Sequence[str] = linear_experiment.METHODS,
) -> Table:
    run, measured = linear_experiment.run, linear_experiment.measured
    return Table(
        name,
        title,
        cells,
        tuple(methods),
        published,
        everywhere,
        run,
        measured,
        _cost,
        batched=False,
    )


TABLES = (
    _table(
        "table1",
        "Attribute accuracy per client (Table 1)",
        _linear("table1", DATASETS, ("mean", *range(10))),
    ),
    _table(
        "fig1",
        "Local data size (Figure 1)",
        _linear("fig1", DATASETS, ("mean",), (10, 30, 100, 300, 1000)),
    ),
    _table(
        "fig2",
        "How far clients' optima are apart (Figure 2)",
        _linear("fig2", DATASETS, range(10)),
        ("optimum",),
    ),
    _table(
        "fig3",
        "Accuracy and bound against MSE / theta_s^2 (Figure 3)",
        _linear("fig3", DATASETS, range(10)),
        ("global", "last", "decoded", "optimum"),
    ),
    Table(
        "table6",
        "How decoded models fit their clients' records, LEAF (Table 6)",
        _leaf,
        ("last", "affine", "pseudo_records", "optimum"),
        published,
        local_model_experiment.applies,
        local_model_experiment.run,
        local_model_experiment.measured,
        local_model_cost,
        batched=False,
    ),
)
