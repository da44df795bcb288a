"""Kerkouche, Acs, Fritz, *Client-specific Property Inference against Secure Aggregation in
Federated Learning* (2023), PROLIN: Figures 3 to 5 (F1 against rounds, panels a to h), 8 (number of
clients), and what Figures 2, 6 and 7 show of the detectors.

The panels' detectors are ours for all methods: `first_order`, one for every five rounds, from the
gradients of 1,000 records of one half of the adversary's (500 on CIFAR-10, for time, and for
misbehaviour, which is plain), its direction averaged with those of the two before (one on
CIFAR-10), calibrated by 60 shadow pairs of the other half. Published curves, PROLIN's and its
rivals', are of logistic detectors on 6,000 pairs a round. `detectors` has kinds and numbers side by
side.

Where text and code differ the published curves follow the code, and so do cells: two local epochs,
inversion by -1/2, gradients clipped to norm 2 where clients climb the loss. Published values are
digitised from the figures (mean error about .01), panels g of Figures 3 and 5 exact. CIFAR-10 is
split at random, as the text says; its first 20,000 images stand in where the rest is not at hand.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from attacks import DetectorTraining, FirstOrder, Lda, Logistic
from benchmarks.harness.jobs import Cell, Place, Suite, Table
from benchmarks.harness.settings import replace
from benchmarks.measurements.properties import EXPERIMENT, MEAN_OVER, PropertySettings
from benchmarks.scenarios.sums import TableSettings
from benchmarks.suites.grids import product, published_rows
from jaxfl import LocalTraining
from jaxfl.datasets.sources import at_hand

NAME = "kerkouche2023"
PANELS = {
    **{"a": ("mnist", 10), "b": ("mnist", 20), "c": ("mnist", 30)},
    **{"d": ("fashion_mnist", 10), "e": ("fashion_mnist", 20), "f": ("fashion_mnist", 30)},
    **{"g": ("cifar10", 25), "h": ("cifar10", 50)},
}
PUBLISHED_PAIRS = 6000
"""Shadow pairs a round of the published detectors (MNIST)."""
DETECTORS = DetectorTraining(FirstOrder(gradients=1000, averaged=3), pairs=60, every=5)
COLOURED: dict[str, Any] = {
    "training.batch_size": 25,
    "training.learning_rate": 0.1,
    "auxiliary": 5000,
    "detectors.kind.gradients": 500,
    "detectors.kind.averaged": 2,
}
MISBEHAVING: dict[str, Any] = {"detectors.kind.gradients": 500}
SMALL: dict[str, Any] = {
    **{"clients": 20, "positives": 3, "clients_per_round": 5, "rounds": 40},
    **{"auxiliary": 1000, "detectors.pairs": 40, "detectors.kind.gradients": 500},
}
PLAINER: dict[str, Any] = {"detectors.pairs": 20, "detectors.kind.gradients": 250}
"""At small size, of CIFAR-10 and of misbehaviour."""
ADULT_SEX = 9
"""Number of that attribute."""
FEWER_RECORDS = 0.4
"""Records of CIFAR-10 that a client has at small size, in parts of the paper's."""
ALL_SEEN: tuple[int | str, ...] = ("mean", *range(10, 300, 10))
FEWER_SEEN: tuple[int | str, ...] = ("mean", 10, 20, 30, 40, 50, 70, 100, 150, 200, 250, 290)
"""At small size; of 300 rounds."""
EVERY = tuple(PANELS)
SOME_SEEN: tuple[int | str, ...] = (10, 50, 100, 150, 200, 250, 290)
Places = Callable[[str, str | None], list[Place]]


def _changes(size: str, panel: str, prop: str) -> dict[str, Any]:
    """What a panel's settings are beside the paper's on digits."""
    dataset, records = PANELS[panel]
    coloured, misbehaving = dataset == "cifar10", prop != "membership"
    changes: dict[str, Any] = COLOURED if coloured else {}
    changes = changes | (MISBEHAVING if misbehaving else {})
    changes |= {"clip": 2.0} if prop == "ascent" else {}
    if size == "small":
        changes |= SMALL | (PLAINER if coloured or misbehaving else {})
        if coloured:
            fewer = round(FEWER_RECORDS * records)
            changes |= {"records": fewer, "training.batch_size": 10, "auxiliary": 500}
    return changes


def _grid(
    panels: Sequence[str],
    prop: str,
    seen: Sequence[int | str] | None = None,
    changed: dict[str, Any] | None = None,
) -> Places:
    def places(size: str, data_dir: str | None) -> list[Place]:
        made = []
        for panel in panels:
            dataset, records = PANELS[panel]
            base = PropertySettings(panel, prop, records, detectors=DETECTORS)  # type: ignore[arg-type]
            settings = replace(base, _changes(size, panel, prop) | (changed or {}))
            if dataset == "cifar10" and not at_hand("cifar10", data_dir):
                dataset = "cifar10_subset"
            for t in seen or (FEWER_SEEN if size == "small" else ALL_SEEN):
                at = t if isinstance(t, str) else round(t * settings.rounds / 300)
                made.append(Place(dataset, replace(settings, {"seen": at})))
        return made

    return places


def _published(cell: Cell, method: str, metric: str) -> float | None:
    """The paper's F1 for this panel, method and number of rounds."""
    settings: PropertySettings = cell.settings
    if metric != "f1" or settings.clients not in (PropertySettings.clients, SMALL["clients"]):
        return None
    if cell.table == "detectors" and settings.detectors.kind.name != "logistic":
        return None
    records = settings.records
    if cell.size == "small" and cell.dataset.startswith("cifar10"):
        records = round(records / FEWER_RECORDS)
    seen = settings.seen
    rounds = MEAN_OVER if seen == "mean" else (10 * round(int(seen) * 30 / settings.rounds),)
    source = cell.dataset.removesuffix("_subset")
    curve = _curves().get((settings.property, source, records, method), {})
    values = [curve[t] for t in rounds if t in curve]
    return sum(values) / len(values) if len(values) == len(rounds) else None


@functools.cache
def _curves() -> dict[tuple[str, str, int, str], dict[int, float]]:
    """F1 by number of seen rounds, by property, source, records and method."""
    curves: dict[tuple[str, str, int, str], dict[int, float]] = {}
    for row in published_rows(NAME):
        place = row["property"], row["dataset"], int(row["records"]), row["method"]
        curves.setdefault(place, {})[int(row["seen"])] = float(row["value"])
    return curves


def _several(*grids: Places) -> Places:
    return lambda size, data_dir: [place for grid in grids for place in grid(size, data_dir)]


def _detectors(size: str, data_dir: str | None) -> list[Place]:
    """The first panel by kind of detector and by what it learns from in each round."""
    paper = size == "paper"
    gradients = (250, 500, 1000, 2000) if paper else (100, 250, 500)
    kinds = (Lda(), (100, 300)), (Logistic(), (100, 300, PUBLISHED_PAIRS))
    varied: list[dict[str, Any]] = [{"detectors.kind.gradients": n} for n in gradients]
    varied += [
        {"detectors.kind": kind, "detectors.pairs": n}
        for kind, pairs in kinds
        for n in (pairs if paper else (60,))
    ]
    made = []
    for changed in varied:
        made += _grid("a", "membership", ("mean", 290), changed)(size, data_dir)
    return made


def _numbers_of_clients(size: str, data_dir: str | None) -> list[Place]:
    counts, positives = ((50, 100, 200), 5) if size == "paper" else ((20, 40, 80), 3)
    made = []
    for prop in ("membership", "ascent"):
        for n in counts:
            changed = {"clients": n, "clients_per_round": n // 5, "positives": positives}
            made += _grid("g", prop, changed=changed)(size, data_dir)
    return made


def _prevalence(size: str, data_dir: str | None) -> list[Place]:
    """Places of Adult's clients, by how much more some of them hold of women's records."""
    clients, rounds = (50, 100) if size == "paper" else (10, 20)
    base = PropertySettings(
        "",
        "prevalence",
        200,
        clients=clients,
        positives=clients // 2,
        clients_per_round=clients // 2,
        training=LocalTraining(0.1, batch_size=32),
        auxiliary=1000,
        rounds=rounds,
        tabular=TableSettings(ADULT_SEX),
        detectors=DetectorTraining(),
        seen=rounds,
    )
    spreads: dict[str, Sequence[Any]] = {"tabular.spread": (0.125, 0.25, 0.5, 0.9)}
    return [Place("adult", replace(base, changes)) for changes in product(spreads)]


def _table(name: str, title: str, places: Places, methods: tuple[str, ...] = ()) -> Table:
    """All decoders, if no methods are named."""
    return Table(name, title, EXPERIMENT, places, methods, without=() if methods else ("detector",))


SUITE = Suite(
    NAME,
    (
        _table("fig3", "Membership of one record (Figure 3)", _grid(EVERY, "membership")),
        _table("fig4", "Clients that invert their updates (Figure 4)", _grid(EVERY, "inversion")),
        _table("fig5", "Clients that climb the loss (Figure 5)", _grid(EVERY, "ascent")),
        _table("fig8", "Number of clients (Figure 8)", _numbers_of_clients),
        _table(
            "fig2",
            "Detectors of membership, round by round: separation, overlap and norm (Figure 2)",
            _grid(EVERY, "membership", SOME_SEEN),
            ("detector",),
        ),
        _table(
            "fig6",
            "Detectors of clients that climb the loss, CIFAR-10: separation, overlap and norm "
            "(Figure 6)",
            _grid("gh", "ascent", SOME_SEEN),
            ("detector",),
        ),
        _table(
            "fig7",
            "Detectors of membership and of inversion, CIFAR-10: separation, overlap and norm "
            "(Figure 7)",
            _several(*(_grid("g", prop, SOME_SEEN) for prop in ("membership", "inversion"))),
            ("detector",),
        ),
        _table(
            "detectors",
            "Detectors, by what they learn from (beyond the paper)",
            _detectors,
            ("gibbs", "box", "prolin", "prolin_paper", "ridge", "ols", "baseline", "detector"),
        ),
        _table(
            "prevalence",
            "Clients that hold more records with an attribute (beyond the paper)",
            _prevalence,
        ),
        _table(
            "free_riders", "Clients that send nothing (beyond the paper)", _grid("a", "free_rider")
        ),
    ),
    _published,
)
