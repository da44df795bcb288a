"""Driouich, Xu, Neglia, Giroire, Thomas, *Local Model Reconstruction Attacks in Federated Learning
and their Uses* (2023): Tables 1, 9, 10 and Figures 2 to 4, 6, 7, with what reads the answer out of
the messages beside the paper's methods. The paper's "Ours" is `network_literal`, its rivals are
`cos`, `vote` and `invert_gradient`.

The paper's flight bookings are not public; `flight_airlines` stands in. LEAF's synthetic data has
no sensitive attribute; one is planted. `leaf_milder` is the same generator with less heterogeneous
clients: by LEAF's recipe seven of ten hold nearly one class. Figures' values are not printed in the
paper but for their ends.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attacks import GLS, CosMatching, GradientInversion, Inversion, PseudoRecords
from attacks import Mapping as MappingNetwork
from benchmarks.harness.jobs import Cell, Place, Suite, Table
from benchmarks.harness.settings import flatten, replace
from benchmarks.measurements.local_models import (
    EXPERIMENT,
    First,
    FirstMessages,
    LocalModelSettings,
    MapsOfClients,
)
from benchmarks.suites.grids import product, published_by
from jaxfl import LocalTraining

NAME = "driouich2023"
TABULAR, FACES = ("flight_airlines", "adult_bachelors", "leaf_synthetic"), "att_faces"
TABULAR_MEASURES = ("zest", "attribute", "source")
MEASURES = {FACES: ("zest", "source", "samples")}
MEASURES |= dict.fromkeys((*TABULAR, "leaf_milder"), TABULAR_MEASURES)
FACE_SETTINGS = {"hidden": (32, 32, 32), "training.batch_size": 32}
FARES = {"fares": 100_000, "encoding": "scalar"}
"""Appendix C.1 and C.2: of fares, 100,000 rows of nine columns."""
OF_DATA = {FACES: FACE_SETTINGS, "flight_airlines": FARES}
FIT = {
    "flight_airlines": (0.107, 0.103),
    "adult_bachelors": (0.905, 0.901),
    "leaf_synthetic": (0.899, 0.886),
    FACES: (0.885, 0.879),
}
"""How well the paper's optimal local models fit their clients' records, without and with batch
normalisation (Table 9)."""

SMALL: dict[str, Any] = {
    "hidden": (32, 32),
    "side": (20, 18),
    "optimum_steps": 5000,
    "zest_records": 8,
    "inversion": Inversion(500, 1e-2),
}
"""What differs at small size."""

SHRUNK: dict[str, dict[Any, Any]] = {
    "records": {0: 120, 50: 20, 200: 40, 500: 60, 800: 120, 1000: 120},
    "training.batch_size": {512: 64, 256: 32, 128: 16, 64: 16, 32: 8, 16: 4, 8: 2},
    "clients": {5: 5, 10: 7, 20: 10, 40: 14, 100: 20},
    "training.epochs": {5: 2, 10: 4},
    "rounds": {600: 60, 1000: 100},
    "every": {6: 3, 10: 5},
    "attacked": {10: 3},
    "fares": {100_000: 8_000},
    "targets": {100: 40},
}
"""Likewise, by the paper's value."""


def _maps(
    widths: tuple[int, ...],
    fit_rates: tuple[float, ...],
    search_steps: tuple[int, ...],
    search_rates: tuple[float, ...],
) -> Callable[[str], MapsOfClients]:
    """Maps as printed; at small size they take a tenth of the steps."""

    def at(size: str) -> MapsOfClients:
        paper = size == "paper"
        steps = search_steps if paper else tuple(n // 10 for n in search_steps)
        return MapsOfClients(widths, fit_rates, steps, search_rates, 10_000 if paper else 3000)

    return at


MAPS = {
    "flight_airlines": _maps(  # Table 5
        (64,),
        (1e-5, 1e-5, 1e-5, 1e-6, 1e-5, 1e-5, 1e-5, 1e-5, 1e-4, 1e-6),
        (10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 7000, 10_000, 6000),
        (1e-3, 1e-2, 1e-3, 1e-3, 1e-2, 1e-2, 1e-2, 5e-3, 1e-3, 1e-3),
    ),
    "adult_bachelors": _maps(  # Table 6
        (16, 16, 32, 32, 32, 32, 32, 16, 16, 16),
        (1e-3, 1e-3, 1e-5, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4),
        (1000, 1000, 1000, 1000, 1000, 1000, 100, 1000, 1000, 1000),
        (1e-1, 1e-2, 1e-1, 1e-1, 1e-2, 1e-1, 1e-2, 1e-1, 1e-1, 1e-1),
    ),
    "leaf_synthetic": _maps(  # Table 7
        (32,), (1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-3, 1e-4, 1e-4, 1e-4, 1e-4), (5000,), (1e-2,)
    ),
    FACES: _maps((64,), (1e-4,), (10_000,), (1e-3,)),  # Table 8
}
"""Hyper-parameters of the paper's maps, client by client."""


def method_settings(
    dataset: str, size: str, drift: int = 0, source_messages: int = 20
) -> dict[str, Any]:
    """Settings of the attacks, at either size.

    Args:
      dataset: name of the data set.
      size: "small" or "paper".
      drift: of `gls`.
      source_messages: that `decode_sources` uses.
    """
    small = size == "small"
    passes = 2 if small else 3
    decoding = First(10, GLS(LocalTraining(), orders=8, passes=passes, drift=drift, layers=1))
    fit_steps, search_steps = (100, 200) if small else (200, 1000)
    records, steps, finish = (32, 200, 300) if small else (128, 800, 4000)
    return {
        "gls": decoding,
        "records": decoding,
        "cos": First(5, CosMatching(steps=100 if small else 300)),
        "network_literal": MAPS.get(dataset, MAPS["leaf_synthetic"])(size),
        "network": MappingNetwork(
            fit_steps=fit_steps, search_steps=search_steps, scaling="normalised"
        ),
        "pseudo_records": PseudoRecords(
            LocalTraining(), local_records=1, records=records, steps=steps, finish=finish
        ),
        "decode_sources": FirstMessages(source_messages),
        "invert_gradient": GradientInversion(steps=200 if small else 1000),
    }


def place(
    dataset: str,
    size: str,
    paper: Mapping[str, Any],
    small: Mapping[str, Any] = {},
    measures: tuple[str, ...] = (),
    source_messages: int = 20,
) -> Place:
    """A cell at either size.

    Args:
      dataset: name of the data set.
      size: "small" or "paper".
      paper: settings of it at paper size, by flat names, where they are not the paper's.
      small: settings of it at small size, where they do not follow from those.
      measures: what is measured; all of the data set's by default.
      source_messages: that `decode_sources` uses.
    """
    settings = LocalModelSettings(measures=measures or MEASURES[dataset], optimum_steps=20_000)
    settings = replace(settings, paper)
    plain, normalised = FIT.get(dataset, FIT["leaf_synthetic"])
    settings = replace(settings, {"optimum_fit": normalised if settings.batch_norm else plain})
    if size == "small":
        known = flatten(settings)
        shrunk = {n: by.get(known[n], known[n]) for n, by in SHRUNK.items() if known[n] != "full"}
        settings = replace(settings, SMALL | shrunk | dict(small))
    # By LEAF's recipe most clients hold records of one class, which hardly differ: `gls` needs all
    # the noise of their order.
    drift = 3 if dataset == "leaf_synthetic" else 0
    return Place(dataset, settings, method_settings(dataset, size, drift, source_messages))


def _grid(
    datasets: Sequence[str],
    measures: tuple[str, ...] = (),
    source_messages: int = 20,
    **varied: Sequence[Any],
) -> Callable[[str, str | None], list[Place]]:
    """Cells of a table: sources x what is varied."""
    varied = {name.replace("__", "."): values for name, values in varied.items()}

    def places(size: str, data_dir: str | None) -> list[Place]:
        return [
            place(
                dataset,
                size,
                OF_DATA.get(dataset, {}) | values,
                measures=measures,
                source_messages=source_messages,
            )
            for dataset, values in itertools.product(datasets, product(varied))
        ]

    return places


def _clients(size: str, data_dir: str | None) -> list[Place]:
    """Cells of Figure 4: all clients are attacked, and are candidates for a record's source."""
    counts = {"leaf_synthetic": (10, 20, 40, 100), FACES: (10, 20, 40)}
    return [
        place(
            dataset,
            size,
            OF_DATA.get(dataset, {}) | {"clients": count, "attacked": count},
            {"attacked": SHRUNK["clients"][count]},
        )
        for dataset, several in counts.items()
        for count in several
    ]


def _both(
    *grids: Callable[[str, str | None], list[Place]],
) -> Callable[[str, str | None], list[Place]]:
    return lambda size, data_dir: [p for grid in grids for p in grid(size, data_dir)]


def _facts(cell: Cell, method: str, metric: str) -> dict[str, str]:
    settings = cell.settings
    return {"batch_norm": str(int(settings.batch_norm)), "defense": settings.defense}


def _table(
    name: str,
    title: str,
    places: Any,
    methods: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> Table:
    return Table(name, title, EXPERIMENT, places, methods, without=without)


FITTED = ("global", "last", "network_literal", "pseudo_records", "records", "optimum")
CONTROLS = ("extrapolated", "affine", "network", "isolated", "best_round")
"""What figures leave out: controls, a variant and another threat model, which Tables 1 and 10
have."""
DEFENSES = ("none", "dp", "mixup", "dp+mixup")
BOTH = (False, True)
SUITE = Suite(
    NAME,
    (
        _table(
            "table1",
            "Four attacks, without and with batch normalisation (Table 1)",
            _grid((*TABULAR, "leaf_milder", FACES), batch_norm=BOTH),
        ),
        _table(
            "table9",
            "How the models fit their clients' records (Table 9)",
            _grid((*TABULAR, FACES), batch_norm=BOTH),
            FITTED,
        ),
        _table("table10", "Defences (Table 10)", _grid((*TABULAR, FACES), defense=DEFENSES)),
        _table(
            "fig2",
            "Attributes against the client's records (Figure 2)",
            _grid(
                TABULAR, ("attribute",), records=(50, 200, 500, 1000), training__batch_size=[256]
            ),
            without=CONTROLS,
        ),
        _table(
            "fig3",
            "Samples against batch size and local epochs (Figure 3)",
            _both(
                _grid([FACES], ("samples",), training__batch_size=(8, 16, 32, 64)),
                _grid([FACES], ("samples",), training__epochs=(5, 10)),
            ),
            without=CONTROLS,
        ),
        _table(
            "fig4",
            "Number of clients (Figure 4)",
            _clients,
            without=CONTROLS,
        ),
        _table(
            "fig6",
            "Batch size (Figure 6)",
            _both(
                _grid(TABULAR, training__batch_size=(32, 128, 512)),
                _grid([FACES], training__batch_size=(16, 32, 64)),
            ),
            without=CONTROLS,
        ),
        _table(
            "fig7",
            "Local epochs (Figure 7)",
            _grid((*TABULAR, FACES), training__epochs=(1, 5, 10)),
            without=CONTROLS,
        ),
        _table(
            "sources",
            "Whose is a record, all of the clients' records being candidates (beyond the paper)",
            _grid(
                ("adult_bachelors", "leaf_synthetic", "leaf_milder"),
                ("source",),
                source_messages=1,
                targets=[0],
            ),
            ("last", "vote", "best_round", "drop", "drop_lda", "decode_sources", "optimum"),
        ),
        _table(
            "local_work",
            "Attributes of 800 records after much local work (beyond the paper)",
            _grid(
                ["adult_bachelors"],
                ("attribute",),
                records=[800],
                attacked=[3],
                every=[1],
                rounds=[10],
                training__batch_size=(32, 512),
                training__epochs=(1, 10),
            ),
            ("majority", "last", "cos", "gls"),
        ),
        _table(
            "messages_alone",
            "Local models of different clients out of messages alone (beyond the paper)",
            _grid(
                ["leaf_milder"],
                TABULAR_MEASURES,
                records=[500],
                attacked=[3],
                every=[6],
                rounds=[600],
                training__batch_size=[128],
            ),
            ("global", "last", "extrapolated", "affine", "network", "pseudo_records", "optimum"),
        ),
    ),
    published_by(NAME, _facts),
)
