"""Driouich, Xu, Neglia, Giroire, Thomas, *Local Model Reconstruction Attacks in Federated Learning and their Uses* (2023):
Tables 1, 9, 10 and Figures 2 to 4, 6, 7, with what reads the answer out of the messages beside the paper's methods.

The paper's flight bookings are not public; `flight_airlines` stands in. LEAF's synthetic data has no sensitive attribute; one
is planted. `leaf_milder` is the same generator with less heterogeneous clients: by LEAF's recipe seven of ten hold nearly one
class. Figures' values are not printed in the paper but for their ends.
"""

import itertools
from collections.abc import Callable, Sequence

from benchmarks import local_model_experiment
from benchmarks.jobs import Cell, Table, Value
from benchmarks.local_model_cost import cost
from benchmarks.suites.grids import product, published_rows

SUITE = "driouich2023"
TABULAR, FACES = ("flight_airlines", "adult_bachelors", "leaf_synthetic"), "att_faces"
MEASURES = {FACES: "zest,source,samples"} | dict.fromkeys(
    (*TABULAR, "leaf_milder"), "zest,attribute,source"
)

PAPER: dict[str, Value] = {
    **{
        "model": "mlp",
        "hidden": "256,256,256",
        "batch_norm": 0,
        "clients": 10,
        "records": 0,
        "batch_size": 512,
        "epochs": 1,
    },
    **{
        "learning_rate": 0.01,
        "rounds": 1000,
        "every": 10,
        "defense": "none",
        "epsilon": 10.0,
        "attacked": 10,
        "side": "80,70",
    },
    **{"optimum_steps": 4000, "decoded": 10, "orders": 8, "passes": 3, "drift": 0, "layers": 1},
    **{"matched": 5, "cos_steps": 300},
    **{"fit_steps": 200, "search_steps": 1000, "pseudo": 128, "pseudo_steps": 800, "finish": 4000},
    **{"zest_records": 32, "zest_masks": 300, "targets": 100, "source_messages": 20},
    **{"inversion_steps": 5000, "inversion_rate": 1e-3, "gradient_steps": 1000},
}
"""The paper's setting (Appendix C), and ours where it is silent."""

LIKE_RECORDS: dict[str, Value] = {"drift": 3}
"""By LEAF's recipe most clients hold records of one class, which hardly differ: `gls` needs all the noise of their order."""

SMALL: dict[str, Value] = {
    **{
        "hidden": "32,32",
        "side": "20,18",
        "optimum_steps": 1000,
        "passes": 2,
        "cos_steps": 100,
        "fit_steps": 100,
    },
    **{"search_steps": 200, "pseudo": 32, "pseudo_steps": 200, "finish": 300, "zest_records": 8},
    **{"inversion_steps": 500, "inversion_rate": 1e-2, "gradient_steps": 200},
}
"""What differs at small size."""

SHRUNK: dict[str, dict[Value, Value]] = {
    "records": {0: 120, 50: 20, 200: 40, 500: 60, 800: 120, 1000: 120},
    "batch_size": {512: 64, 256: 32, 128: 16, 64: 16, 32: 8, 16: 4, 8: 2},
    "clients": {5: 5, 10: 7, 20: 10, 40: 14, 100: 20},
    "epochs": {5: 2, 10: 4},
    "rounds": {600: 60, 1000: 100},
    "every": {6: 3, 10: 5},
    "attacked": {10: 3},
    "targets": {100: 40},
}
"""Likewise, by the paper's value."""


def shrunk(chosen: dict[str, Value]) -> dict[str, Value]:
    """Settings of paper size at small size."""
    return (
        chosen
        | SMALL
        | {name: smaller.get(chosen[name], chosen[name]) for name, smaller in SHRUNK.items()}
    )


def _grid(
    table: str, datasets: Sequence[str], measures: str | None = None, /, **varied: Sequence[Value]
) -> Callable[..., list[Cell]]:
    """Cells of a table: sources x what is varied."""

    def cells(size: str, data_dir: str | None) -> list[Cell]:
        found = []
        for dataset, values in itertools.product(datasets, product(varied)):
            chosen = PAPER | {"measures": measures or MEASURES[dataset]}
            if dataset == FACES:  # Appendix C.1 and C.2
                chosen |= {"hidden": "32,32,32", "batch_size": 32}
            if dataset == "leaf_synthetic":
                chosen |= LIKE_RECORDS
            chosen |= values
            chosen = shrunk(chosen) if size == "small" else chosen
            found.append(Cell(SUITE, table, size, dataset, tuple(sorted(chosen.items()))))
        return list(dict.fromkeys(found))

    return cells


def published(cell: Cell, method: str, metric: str) -> float | None:
    """The paper's number for this cell and method; the paper's "Ours" is `network_literal`, its rivals `cos`, `vote` and
    `invert_gradient`."""
    facts = {
        "table": cell.table,
        "dataset": cell.dataset,
        "batch_norm": str(int(cell["batch_norm"])),
        "defense": str(cell["defense"]),
    }
    facts |= {"method": method, "metric": metric}
    return next(
        (
            float(row["value"])
            for row in published_rows(SUITE)
            if all(row[k] == v for k, v in facts.items())
        ),
        None,
    )


def _table(
    name: str,
    title: str,
    cells: Callable[..., list[Cell]],
    methods: Sequence[str] = local_model_experiment.METHODS,
) -> Table:
    experiment = local_model_experiment
    run, measured = experiment.run, experiment.measured
    return Table(
        name,
        title,
        cells,
        tuple(methods),
        published,
        experiment.applies,
        run,
        measured,
        cost,
        batched=False,
    )


FITTED = ("global", "last", "network_literal", "pseudo_records", "records", "optimum")
FIGURED = tuple(
    m
    for m in local_model_experiment.METHODS
    if m not in ("extrapolated", "affine", "network", "isolated", "best_round")
)
"""Figures' methods: all but controls, a variant and another threat model, which Tables 1 and 10 have."""
DEFENSES = ("none", "dp", "mixup", "dp+mixup")
TABLES = (
    _table(
        "table1",
        "Four attacks, without and with batch normalisation (Table 1)",
        _grid("table1", (*TABULAR, "leaf_milder", FACES), batch_norm=(0, 1)),
    ),
    _table(
        "table9",
        "How the models fit their clients' records (Table 9)",
        _grid("table9", (*TABULAR, FACES), batch_norm=(0, 1)),
        FITTED,
    ),
    _table("table10", "Defences (Table 10)", _grid("table10", (*TABULAR, FACES), defense=DEFENSES)),
    _table(
        "fig2",
        "Attributes against the client's records (Figure 2)",
        _grid("fig2", TABULAR, "attribute", records=(50, 200, 500, 1000), batch_size=[256]),
        FIGURED,
    ),
    _table(
        "fig3",
        "Samples against batch size and local epochs (Figure 3)",
        lambda *a: [
            *_grid("fig3", [FACES], "samples", batch_size=(8, 16, 32, 64))(*a),
            *_grid("fig3", [FACES], "samples", epochs=(5, 10))(*a),
        ],
        FIGURED,
    ),
    _table(
        "fig4",
        "Number of clients (Figure 4)",
        _grid("fig4", ("leaf_synthetic", FACES), clients=(10, 20, 40)),
        FIGURED,
    ),
    _table(
        "fig6",
        "Batch size (Figure 6)",
        lambda *a: [
            *_grid("fig6", TABULAR, batch_size=(32, 128, 512))(*a),
            *_grid("fig6", [FACES], batch_size=(16, 32, 64))(*a),
        ],
        FIGURED,
    ),
    _table(
        "fig7",
        "Local epochs (Figure 7)",
        _grid("fig7", (*TABULAR, FACES), epochs=(1, 5, 10)),
        FIGURED,
    ),
    _table(
        "sources",
        "Whose is a record, all of the clients' records being candidates (beyond the paper)",
        _grid(
            "sources",
            ("adult_bachelors", "leaf_synthetic", "leaf_milder"),
            "source",
            targets=[0],
            source_messages=[1],
        ),
        ("last", "vote", "best_round", "drop", "drop_lda", "decode_sources", "optimum"),
    ),
    _table(
        "local_work",
        "Attributes of 800 records after much local work (beyond the paper)",
        _grid(
            "local_work",
            ["adult_bachelors"],
            "attribute",
            **{
                "records": [800],
                "attacked": [3],
                "every": [1],
                "rounds": [10],
                "batch_size": (32, 512),
                "epochs": (1, 10),
            },
        ),
        ("majority", "last", "cos", "gls"),
    ),
    _table(
        "messages_alone",
        "Local models of different clients out of messages alone (beyond the paper)",
        _grid(
            "messages_alone",
            ["leaf_milder"],
            "zest,attribute,source",
            **{
                "records": [500],
                "attacked": [3],
                "every": [6],
                "rounds": [600],
                "batch_size": [128],
            },
        ),
        ("global", "last", "extrapolated", "affine", "network", "pseudo_records", "optimum"),
    ),
)
