"""Kerkouche, Acs, Fritz, *Client-specific Property Inference against Secure Aggregation in Federated Learning* (2023), PROLIN:
Figures 3 to 5 (F1 against rounds, panels a to h), 8 (number of clients), and what Figures 2, 6 and 7 show of the detectors.

The panels' detectors are ours for all methods: `first_order`, one for every five rounds, from the gradients of 1,000 records of
one half of the adversary's (500 on CIFAR-10, for time, and for misbehaviour, which is plain), its direction averaged with those
of the two before (one on CIFAR-10), calibrated by 60 shadow pairs of the other half. Published curves, PROLIN's and its
rivals', are of logistic detectors on 6,000 pairs a round. `detectors` has kinds and numbers side by side.

Where text and code differ the published curves follow the code, and so do cells: two local epochs, inversion by -1/2, gradients
clipped to norm 2 where clients climb the loss. Published values are digitised from the figures (mean error about .01), panels
g of Figures 3 and 5 exact. CIFAR-10 is split at random, as the text says; its first 20,000 images stand in where the rest is
not at hand.
"""

import functools
import math
from collections.abc import Callable, Sequence

from attacks import DetectorTraining
from benchmarks import property_experiment
from benchmarks.jobs import Cell, Cost, Job, Table, Value
from benchmarks.property_experiment import MEAN_OVER, METHODS, OURS
from benchmarks.suites.grids import everywhere, published_rows
from jaxfl.datasets.sources import at_hand

SUITE = "kerkouche2023"
PANELS = {
    **{"a": ("mnist", 10), "b": ("mnist", 20), "c": ("mnist", 30)},
    **{"d": ("fashion_mnist", 10), "e": ("fashion_mnist", 20), "f": ("fashion_mnist", 30)},
    **{"g": ("cifar10", 25), "h": ("cifar10", 50)},
}
PAPER: dict[str, Value] = {
    **{
        "clients": 50,
        "positives": 5,
        "per_round": 10,
        "batch_size": 10,
        "epochs": 2,
        "learning_rate": 0.01,
        "clip": 0.0,
    },
    **{
        "factor": -0.5,
        "auxiliary": 6000,
        "detector": "first_order",
        "pairs": 60,
        "gradients": 1000,
        "rounds": 300,
    },
    **{"every": 5, "averaged": 3},
}
COLOURED: dict[str, Value] = {
    "batch_size": 25,
    "learning_rate": 0.1,
    "auxiliary": 5000,
    "gradients": 500,
    "averaged": 2,
}
MISBEHAVING: dict[str, Value] = {"gradients": 500}
SMALL_ROUNDS = 40
SMALL: dict[str, Value] = {"clients": 20, "positives": 3, "per_round": 5, "rounds": SMALL_ROUNDS}
SMALL |= {"auxiliary": 1000, "pairs": 40, "gradients": 500}
PLAINER: dict[str, Value] = {"pairs": 20, "gradients": 250}
"""At small size, of CIFAR-10 and of misbehaviour."""
FEWER_RECORDS = 0.4
"""Of CIFAR-10 at small size: of a client's, in parts of the paper's."""
ALL_SEEN: tuple[Value, ...] = ("mean", *range(10, 300, 10))
FEWER_SEEN: tuple[Value, ...] = ("mean", 10, 20, 30, 40, 50, 70, 100, 150, 200, 250, 290)
"""At small size; of 300 rounds."""


def _grid(
    table: str,
    panels: Sequence[str],
    prop: str,
    seen: Sequence[Value] | None = None,
    **changed: Value,
) -> Callable[..., list[Cell]]:
    def cells(size: str, data_dir: str | None) -> list[Cell]:
        found = []
        for panel in panels:
            dataset, records = PANELS[panel]
            chosen = (
                PAPER
                | (COLOURED if dataset == "cifar10" else {})
                | {"property": prop, "records": records}
            )
            chosen |= {} if prop == "membership" else MISBEHAVING
            chosen |= {"clip": 2.0} if prop == "ascent" else {}
            if size == "small":
                chosen |= SMALL | (PLAINER if dataset == "cifar10" or prop != "membership" else {})
                if dataset == "cifar10":
                    chosen |= {
                        "records": round(FEWER_RECORDS * records),
                        "batch_size": 10,
                        "auxiliary": 500,
                    }
            chosen |= changed
            if dataset == "cifar10" and not at_hand("cifar10", data_dir):
                dataset = "cifar10_subset"
            for t in seen or (FEWER_SEEN if size == "small" else ALL_SEEN):
                at = (
                    t
                    if isinstance(t, str) or size == "paper"
                    else round(int(str(t)) * SMALL_ROUNDS / 300)
                )
                settings = tuple(sorted((chosen | {"panel": panel, "seen": at}).items()))
                found.append(Cell(SUITE, table, size, dataset, settings))
        return found

    return cells


def published(cell: Cell, method: str, metric: str) -> float | None:
    """The paper's F1 for this panel, method and number of rounds."""
    if metric != "f1" or cell["clients"] not in (PAPER["clients"], SMALL["clients"]):
        return None
    if cell.table == "detectors" and cell["detector"] != "logistic":
        return None
    records = cell["records"]
    if cell.size == "small" and cell.dataset.startswith("cifar10"):
        records = round(records / FEWER_RECORDS)
    rounds = (
        MEAN_OVER if cell["seen"] == "mean" else (round(cell["seen"] * 300 / cell["rounds"], -1),)
    )
    curve = _curves().get(
        (cell["property"], cell.dataset.removesuffix("_subset"), records, method), {}
    )
    values = [curve[t] for t in rounds if t in curve]
    return sum(values) / len(values) if len(values) == len(rounds) else None


@functools.cache
def _curves() -> dict[tuple[str, str, int, str], dict[int, float]]:
    """F1 by number of seen rounds, by property, source, records and method."""
    curves: dict[tuple[str, str, int, str], dict[int, float]] = {}
    for row in published_rows(SUITE):
        place = row["property"], row["dataset"], int(row["records"]), row["method"]
        curves.setdefault(place, {})[int(row["seen"])] = float(row["value"])
    return curves


def _cost(job: Job) -> Cost:
    """From times on two CPU cores: 1.1 ms for a step of ten digits, 0.25 ms for a gradient."""
    cell, each = job.cell, {"mnist": 1.0, "fashion_mnist": 1.0}.get(job.cell.dataset, 2.0)
    flops = 2.5e7 * each  # of a record's gradient
    update = cell["epochs"] * cell["records"] * flops
    # Operations per gradient to find eigenbases and to turn it to them: four times a leaf's size by its sides, twice.
    parameters, turning = (21_840, 5.8e7) if each == 1 else (62_006, 2.2e8)
    detector, fitted = (2 * cell["pairs"] + 20) * update, 2 * cell["pairs"]
    if cell["detector"] == "first_order":
        fitted = cell["gradients"]
        detector += fitted * flops
    if cell["detector"] != "logistic":
        detector += fitted * (turning + 2.0 * fitted * parameters)
    # By a forward derivative, half a gradient in large batches.
    followed = min(DetectorTraining.followed, cell["auxiliary"] // 2)
    detector += (cell["pairs"] * cell["records"] + cell["every"] * followed) * flops / 2
    if cell["detector"] == "logistic":
        detector += 50 * 2 * cell["pairs"] * 12.0 * parameters
    shared = (
        cell["rounds"] * cell["per_round"] * update
        + math.ceil(cell["rounds"] / cell["every"]) * detector
    )
    measured = property_experiment.measured(cell)
    decoding = (
        {"prolin": 1e8, "prolin_paper": 6e6, "gibbs": 8e5}.get(job.method, 3e5)
        * cell["rounds"]
        * cell["per_round"]
    )
    operations = {(measured, job.seed): shared, (measured, job.seed, job.method): decoding}
    compiling = {(cell.dataset, cell["records"], cell["property"]): 15.0, job.method: 3.0}
    return Cost(operations, compiling, 4.0 * parameters * (3 * cell["rounds"] + 6 * fitted))


def _table(
    name: str, title: str, cells: Callable[..., list[Cell]], methods: Sequence[str] = METHODS[:-1]
) -> Table:
    run, measured = property_experiment.run, property_experiment.measured
    return Table(name, title, cells, tuple(methods), published, everywhere, run, measured, _cost)


def _several(*grids: Callable[..., list[Cell]]) -> Callable[..., list[Cell]]:
    return lambda size, data_dir: [cell for grid in grids for cell in grid(size, data_dir)]


def _detectors(size: str, data_dir: str | None) -> list[Cell]:
    """The first panel by kind of detector and by what it learns from in each round."""
    paper = size == "paper"
    gradients = (250, 500, 1000, 2000) if paper else (100, 250, 500)
    varied: list[dict[str, Value]] = [
        {"detector": "first_order", "gradients": n} for n in gradients
    ]
    varied += [
        {"detector": kind, "pairs": n}
        for kind in ("lda", "logistic")
        for n in ((100, 300) if paper else (60,))
    ]
    return [
        cell
        for own in varied
        for cell in _grid("detectors", "a", "membership", ("mean", 290), **own)(size, data_dir)
    ]


def _numbers_of_clients(size: str, data_dir: str | None) -> list[Cell]:
    counts, positives = ((50, 100, 200), 5) if size == "paper" else ((20, 40, 80), 3)
    varied: list[dict[str, Value]] = [
        {"clients": n, "per_round": n // 5, "positives": positives} for n in counts
    ]
    grids = [
        _grid("fig8", "g", prop, None, **own) for prop in ("membership", "ascent") for own in varied
    ]
    return _several(*grids)(size, data_dir)


EVERY = tuple(PANELS)
SOME_SEEN: tuple[Value, ...] = (10, 50, 100, 150, 200, 250, 290)
TABLES = (
    _table("fig3", "Membership of one record (Figure 3)", _grid("fig3", EVERY, "membership")),
    _table(
        "fig4", "Clients that invert their updates (Figure 4)", _grid("fig4", EVERY, "inversion")
    ),
    _table("fig5", "Clients that climb the loss (Figure 5)", _grid("fig5", EVERY, "ascent")),
    _table(
        "fig8",
        "Number of clients (Figure 8)",
        _numbers_of_clients,
    ),
    _table(
        "fig2",
        "Detectors of membership, round by round: separation, overlap and norm (Figure 2)",
        _grid("fig2", EVERY, "membership", SOME_SEEN),
        ("detector",),
    ),
    _table(
        "fig6",
        "Detectors of clients that climb the loss, CIFAR-10: separation, overlap and norm (Figure 6)",
        _grid("fig6", "gh", "ascent", SOME_SEEN),
        ("detector",),
    ),
    _table(
        "fig7",
        "Detectors of membership and of inversion, CIFAR-10: separation, overlap and norm (Figure 7)",
        _several(*(_grid("fig7", "g", prop, SOME_SEEN) for prop in ("membership", "inversion"))),
        ("detector",),
    ),
    _table(
        "detectors",
        "Detectors, by what they learn from (beyond the paper)",
        _detectors,
        (*OURS, "prolin", "ridge", "detector"),
    ),
    _table(
        "free_riders",
        "Clients that send nothing (beyond the paper)",
        _grid("free_riders", "a", "free_rider"),
    ),
)
