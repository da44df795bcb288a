"""Driouich, Xu, Neglia, Giroire, Thomas, *A Novel Model-Based Attribute Inference Attack in
Federated Learning* (2022): Table 1 and Figures 1 to 3 on linear clients, Table 6 on LEAF's.

The paper's flight bookings are not public; `flight_airlines` stands in, with as many records (Table
4) and one-hot columns: as scalars, training diverges at the step that the paper prints. Its clients
on Adult are logistic: `logistic` has those. Table 1 here is linear least squares, the setting of
its propositions, with the income as target. Its step "10e-2" is read as 1e-2; `rates` and
`logistic` have it as printed too. The published numbers are as printed: some of the paper's means
are not those of their rows.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from attacks import CosMatching, L2Matching
from benchmarks.harness.jobs import Cell, Place, Suite, Table
from benchmarks.harness.settings import flatten
from benchmarks.measurements import linear_clients, local_models
from benchmarks.measurements.linear_clients import LinearSettings
from benchmarks.suites import driouich2023
from benchmarks.suites.grids import published_by
from jaxfl import LocalTraining

NAME = "driouich2022"
DATASETS = ("flight_airlines", "adult_bachelors")
SMALL = {"rounds": 100, "every": 5, "attacked": 4, "grid": ("50:5", "95:5")}
"""What differs at small size."""
SMALL_ATTACKS = {"cos": CosMatching(steps=100), "l2_lbfgs": L2Matching(100)}


def _settings(size: str, records: int, client: int | str, rate: float) -> LinearSettings:
    changed: dict[str, Any] = SMALL if size == "small" else {"fares": 100_000}
    return LinearSettings(records=records, client=client, training=LocalTraining(rate), **changed)


def _linear(
    clients: Sequence[int | str], records: Sequence[int] = (0,), rates: Sequence[float] = (0.01,)
) -> Callable[[str, str | None], list[Place]]:
    def places(size: str, data_dir: str | None) -> list[Place]:
        given: dict[str, Any] = SMALL_ATTACKS if size == "small" else {}
        attacked = _settings(size, 0, "mean", 0.01).attacked
        reported = [c for c in clients if c == "mean" or int(c) < attacked]
        return [
            Place(dataset, _settings(size, n, client, rate), given)
            for dataset in DATASETS
            for n in records
            for client in reported
            for rate in rates
        ]

    return places


def _leaf(size: str, data_dir: str | None) -> list[Place]:
    """Five clients of softmax regression, with 1, 5 and 10 local epochs of batches of 256."""
    paper = {"clients": 5, "attacked": 5, "hidden": (), "training.batch_size": 256}
    small = {"hidden": (), "records": 200}
    made = []
    for epochs in (1, 5, 10):
        place = driouich2023.place("leaf_synthetic", size, paper, small, measures=("zest",))
        training = dataclasses.replace(place.settings.training, epochs=epochs)
        settings = dataclasses.replace(place.settings, training=training)
        made.append(dataclasses.replace(place, settings=settings))
    return made


def _logistic(size: str, data_dir: str | None) -> list[Place]:
    """Adult's clients of logistic regression, in full batches; models that stand for their own are
    asked for the attribute by Algorithm 4."""
    paper = {"model": "logistic", "hidden": (), "training.batch_size": None}
    made = []
    for rate in (0.01, 0.1):
        changed = paper | {"training.learning_rate": rate}
        place = driouich2023.place(
            "adult_bachelors", size, changed, {"hidden": ()}, measures=("zest", "attribute")
        )
        # No logistic model fits every record: Adam takes all its steps, to the likeliest one.
        settings = dataclasses.replace(place.settings, optimum_fit=1.0)
        made.append(dataclasses.replace(place, settings=settings))
    return made


def _facts(cell: Cell, method: str, metric: str) -> dict[str, str]:
    known = flatten(cell.settings)
    return {"client": str(known.get("client", "mean")), "epochs": str(known["training.epochs"])}


def _table(name: str, title: str, places: Any, methods: tuple[str, ...] = ()) -> Table:
    return Table(name, title, linear_clients.EXPERIMENT, places, methods)


SUITE = Suite(
    NAME,
    (
        _table("table1", "Attribute accuracy per client (Table 1)", _linear(("mean", *range(10)))),
        _table(
            "rates",
            "The step, 1e-2 or as printed, 10e-2 (Table 1)",
            _linear(("mean",), rates=(0.01, 0.1)),
            ("global", "last", "decoded", "optimum"),
        ),
        Table(
            "logistic",
            "The attribute through logistic models of Adult, Algorithm 4 (Table 1)",
            local_models.EXPERIMENT,
            _logistic,
            (
                *("majority", "global", "last", "affine", "network_literal", "network"),
                *("pseudo_records", "optimum", "gls", "records"),
            ),
        ),
        _table("fig1", "Local data size (Figure 1)", _linear(("mean",), (10, 30, 100, 300, 1000))),
        _table(
            "fig2", "How far clients' optima are apart (Figure 2)", _linear(range(10)), ("optimum",)
        ),
        _table(
            "fig3",
            "Accuracy and bound against MSE / theta_s^2 (Figure 3)",
            _linear(range(10)),
            ("global", "last", "decoded", "optimum"),
        ),
        Table(
            "table6",
            "How decoded models fit their clients' records, LEAF (Table 6)",
            local_models.EXPERIMENT,
            _leaf,
            ("last", "affine", "pseudo_records", "optimum"),
        ),
    ),
    published_by(NAME, _facts),
)
