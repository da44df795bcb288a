"""Where attribute reconstruction stops: accuracy against one property of the client at a time, all
else as in the base cell.

Base cell: Location-30, attribute 69 (balanced), 300 records, one full-batch step per round, 128
hidden units, rate 0.1, the first five rounds seen. Where an axis departs from it, its title says
so.
"""

from collections.abc import Callable, Sequence
from typing import Any

import optax

from benchmarks.harness.experiment import Method
from benchmarks.harness.jobs import Place, Suite, Table
from benchmarks.harness.settings import flatten, replace
from benchmarks.measurements.attributes import EXPERIMENT
from benchmarks.scenarios.victims import VictimSettings
from benchmarks.suites.lyu2021 import method_settings

EXACT = ("closed_form", "gauss_newton", "decode_adam")
METHODS = ("majority", "cos", *EXACT, "gls", "gls_unrolled", "decode_partial")
MOST_RECORDS = {"cos": 1000, "gls": 1000}
"""Up to which a method runs: beyond, it takes minutes per victim."""

SETTINGS = {
    "minibatch_records": "records",
    "batch_size": "training.batch_size",
    "epochs": "training.epochs",
    "optimizer": "training.optimizer",
    "adam_batch_size": "training.batch_size",
    "noise_multiplier": "upload.noise_multiplier",
    "bits": "upload.bits",
}
"""The setting that varies along an axis of another name."""


def place_of(settings: dict[str, Any], axis: str) -> Any:
    """Where on an axis a cell with these flat settings stands."""
    return settings[SETTINGS.get(axis, axis)]


Places = Callable[[str, str | None], list[Place]]


def _axis(
    dataset: str,
    name: str,
    paper: Sequence[Any],
    small: Sequence[Any],
    steps: int = 500,
    **fixed: Any,
) -> Places:
    """Cells along one setting, that of the axis' name or the one in `SETTINGS`. At small size there
    are 75 records unless `fixed` says otherwise, and fewer simulations."""
    fixed = {key.replace("__", "."): value for key, value in fixed.items()}

    def places(size: str, data_dir: str | None) -> list[Place]:
        records, orders = (75, 64) if size == "small" else (300, 256)
        attribute = 69 if dataset == "location30" else 595
        base = VictimSettings(attribute, records, rounds=50, phases=("pre5",))
        setting = SETTINGS.get(name, name)
        given = method_settings(steps, orders=orders)
        return [
            Place(dataset, replace(base, fixed | {setting: value}), given)
            for value in (paper if size == "paper" else small)
        ]

    return places


def _takes_minutes(settings: VictimSettings, method: Method) -> bool:
    return settings.records > MOST_RECORDS.get(method.name, settings.records)


def _table(name: str, title: str, places: Places) -> Table:
    return Table(name, title, EXPERIMENT, places, METHODS, _takes_minutes)


LOCATION, FIRST20 = "location30", ("first20",)
RECORDS, FEWER = (100, 300, 1000, 3000, 10000), (25, 75, 300)
ROUNDS = (("pre1",), ("pre5",), ("first20",), ("first50",))
WIDTHS = ((4,), (8,), (16,), (32,), (128,), (512,))
NOISES = (0.0, 1e-4, 1e-3, 0.01, 0.03, 0.1)
SUITE = Suite(
    "frontier",
    (
        _table(
            "records",
            "Records of the client (Purchase-like); the first round seen",
            _axis("purchase_like", "records", RECORDS, FEWER, steps=1000, phases=("pre1",)),
        ),
        _table(
            "batch_size",
            "Records per local step; the first 20 rounds seen",
            _axis(LOCATION, "batch_size", (None, 128, 32, 8), (None, 32, 8), phases=FIRST20),
        ),
        _table(
            "minibatch_records",
            "Records of a client that trains in batches of 8; the first 20 rounds seen",
            _axis(
                LOCATION,
                "minibatch_records",
                (100, 300, 1000),
                (25, 75),
                phases=FIRST20,
                training__batch_size=8,
            ),
        ),
        _table(
            "epochs",
            "Local epochs of batches of 32; 100 records, the first 20 rounds seen",
            _axis(
                LOCATION,
                "epochs",
                (1, 2, 5),
                (1, 2),
                phases=FIRST20,
                training__batch_size=32,
                records=100,
            ),
        ),
        _table(
            "phases",
            "Rounds seen of a client that trains in batches of 8",
            _axis(LOCATION, "phases", ROUNDS, ROUNDS[:3], training__batch_size=8),
        ),
        _table(
            "optimizer",
            "The client's optimiser, at rate 0.001",
            _axis(
                LOCATION,
                "optimizer",
                (optax.sgd, optax.adam),
                (optax.sgd, optax.adam),
                training__learning_rate=1e-3,
            ),
        ),
        _table(
            "adam_batch_size",
            "Records per local step of a client of Adam at rate 0.001; 100 records, the first 20 "
            "rounds seen",
            _axis(
                LOCATION,
                "adam_batch_size",
                (None, 32, 8),
                (None, 32),
                phases=FIRST20,
                records=100,
                training__learning_rate=1e-3,
                training__optimizer=optax.adam,
            ),
        ),
        _table(
            "known",
            "Records that the adversary knows, but for the attribute; the first 20 rounds seen",
            _axis(LOCATION, "known", (30, 75, 150, 225, None), (25, 50, None), phases=FIRST20),
        ),
        _table(
            "columns", "Unknown columns", _axis(LOCATION, "columns", (1, 5, 20, 100), (1, 5, 20))
        ),
        _table("hidden", "Hidden units", _axis(LOCATION, "hidden", WIDTHS, WIDTHS[::2])),
        _table(
            "noise_multiplier",
            "Gaussian noise on every number of an update, in units of its norm",
            _axis(LOCATION, "noise_multiplier", NOISES, (0.0, 0.01, 0.1)),
        ),
        _table(
            "bits",
            "Bits per number of an update",
            _axis(LOCATION, "bits", (0, 16, 8, 4, 2, 1), (0, 8, 1)),
        ),
    ),
)


def places(axis: str, sizes: Sequence[str]) -> list[Any]:
    """The places of an axis, in the suite's order."""
    table = SUITE.table(axis)
    cells = (cell for size in sizes for cell in table.cells(SUITE.name, size, None))
    return list(dict.fromkeys(place_of(flatten(cell.settings), axis) for cell in cells))
