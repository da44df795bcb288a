"""Cells of each kind, by size, that methods are timed on and held to laws; made-up and embedded
data alone."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import optax

from benchmarks.harness.experiment import Experiment, Method
from benchmarks.harness.jobs import Cell, Job
from benchmarks.harness.settings import replace
from benchmarks.suites import SUITES

Size = Literal["tiny", "default", "full"]
Changes = Mapping[str, Any]
"""Values by flat names."""


class Specimen(NamedTuple):
    """A cell of a suite's table, on other data.

    Attributes:
      table: as "quick/attributes".
      dataset: what it is run on.
      changes: of its settings, at all sizes.
      tiny: of its settings at the tiny size.
      method_settings: at the tiny size, changes of methods' settings.
      many: what it is run on at the full size, where drawing many members of `dataset` takes long.
    """

    table: str
    dataset: str
    changes: Changes
    tiny: Changes
    method_settings: Mapping[str, Changes] = {}
    many: str = ""

    def cell(self, size: Size) -> Cell:
        """The cell at a size; the full one is the default's, of more members."""
        suite, _, table = self.table.partition("/")
        cell = SUITES[suite].table(table).cells(suite, "small", None)[0]
        methods = {method.name: method.settings for method in cell.experiment.methods}
        given = {name: record for name, record in cell.method_settings if name in methods}
        changes = dict(self.changes)
        if size == "tiny":
            changes |= self.tiny
            for name, changed in self.method_settings.items():
                given[name] = replace(given.get(name, methods[name]), changed)
        return dataclasses.replace(
            cell,
            dataset=self.many if self.many and size == "full" else self.dataset,
            settings=replace(cell.settings, changes),
            method_settings=tuple(sorted(given.items())),
        )


_VICTIM = {"attribute": 0, "records": 20, "rounds": 6, "phases": ("pre2",)}
_PRE5 = {"attribute": 20, "phases": ("pre5",)}
_ADAM = _PRE5 | {"training.optimizer": optax.adam, "training.learning_rate": 0.01}
_FEW: dict[str, Changes] = {
    "cos": {"steps": 5},
    "l2_lbfgs": {"evaluations": 10},
    "public1000": {"records": 100},
}
_LOCAL = {
    **{"hidden": (16,), "clients": 4, "records": 60, "training.batch_size": 32, "rounds": 40},
    **{"every": 4, "attacked": 2, "optimum_steps": 200, "zest_masks": 250, "zest_records": 4},
    **{"targets": 20, "inversion.steps": 20},
}
_MAPS: dict[str, Changes] = {
    "pseudo_records": {"records": 8, "steps": 20, "finish": 20},
    "cos": {"attack.steps": 20},
    "network": {"fit_steps": 20, "search_steps": 5},
    "network_literal": {"fit_steps": 20, "search_steps": (5,)},
    "gls": {"attack.orders": 4, "attack.passes": 2},
    "records": {"attack.orders": 4, "attack.passes": 2},
}
_SUMS = {
    **{
        "clients": 24,
        "positives": 8,
        "clients_per_round": 8,
        "rounds": 10,
        "records": 5,
        "seen": 10,
    },
    **{"training.batch_size": 5, "auxiliary": 100, "detectors.pairs": 8},
    **{"detectors.kind.gradients": 30, "detectors.masks": 8, "detectors.repeated": 6},
    **{"detectors.followed": 50},
}
TINY_LINKS = {
    **{"clients": 4, "records": 9, "widths": (2, 2, 4, 4), "first": 2, "window": 6},
    **{"representing.evaluations": 3, "representing.images": 6, "trunk_round": 4},
    **{"siamese.epochs": 2, "siamese.batch_size": 4, "epoch": 2, "training.learning_rate": 0.05},
    **{"references": 40, "pairs": 50},
}
_SEARCH = {"representing.images": 6, "representing.evaluations": 10}
TINY_GAME = {
    **{"clients": 3, "records": 12, "widths": (2, 2, 4, 4), "game.width": 8, "rounds": 4},
    **{"representing.evaluations": 2, "representing.images": 6, "auxiliary": 20},
    **{"game.batch_size": 10, "game.most_epochs": 1, "training.batch_size": 6},
    **{"training.learning_rate": 0.05, "samples": 24, "judge_steps": 10, "judged": 100},
    **{"classes_held": 1},
}
SPECIMENS = (
    Specimen("quick/attributes", "purchase_like", _PRE5, _VICTIM, _FEW, "digits"),
    Specimen(
        "quick/minibatch",
        "digits",
        {"phases": ("pre5",)},
        _VICTIM | {"training.batch_size": 5},
        {"cos_unrolled": {"steps": 5}, "gls": {"orders": 8}},
    ),
    Specimen("quick/attributes", "digits", _PRE5 | {"columns": 2}, _VICTIM),
    Specimen("quick/attributes", "digits", _ADAM, _VICTIM),
    Specimen(
        "quick/minibatch",
        "digits",
        _ADAM | {"phases": ("pre5",)},
        _VICTIM | {"training.batch_size": 5},
        {"gls_unrolled": {"runs": 32, "tangents": 2, "passes": 2}},
    ),
    Specimen("quick/attributes", "digits", _PRE5 | {"known": 75}, _VICTIM | {"known": 15}),
    Specimen(
        "lyu2021/table11",
        "digits",
        {"training.batch_size": None},
        _VICTIM,
        {"mixture": {"steps": 5}},
    ),
    Specimen("quick/records", "breast_cancer", {}, {"hidden": (32, 32)}),
    Specimen(
        "driouich2022/table1",
        "leaf_milder",
        {},
        {"records": 40, "clients": 3, "rounds": 40, "grid": ("30:10", "30:5")},
        {"cos": {"steps": 5}, "l2_lbfgs": {"evaluations": 10}},
    ),
    Specimen("driouich2023/table1", "leaf_milder", {}, _LOCAL, _MAPS),
    Specimen(
        "driouich2023/table1",
        "pictures_like",
        {"measures": ("zest", "source", "samples"), "training.batch_size": 8},
        _LOCAL | {"training.batch_size": 8},
        _MAPS | {"invert_gradient": {"steps": 20}},
    ),
    Specimen("kerkouche2023/fig4", "pictures_like", {}, _SUMS),
    Specimen(
        "song2020/solvers",
        "pictures_like",
        {},
        {"before": 100, "steps": 5, "widths": (2, 2, 4, 4)} | _SEARCH,
    ),
    Specimen("song2020/table3", "pictures_like", {"clients": 6}, TINY_LINKS),
    Specimen("song2020/table4", "pictures_like", {}, TINY_GAME, {"model_inversion": {"steps": 20}}),
    Specimen("song2020/fig10", "pictures_like", {}, TINY_GAME | {"round": 4}),
    Specimen("lyu2021/table1", "purchase_like", {}, {}),
    Specimen(
        "sums/client",
        "digits",
        {"clients": 20, "references": 20, "rounds": 20},
        {"records": 5, "clients_per_round": 3, "hidden": (4,)},
    ),
    Specimen(
        "numbers/batches",
        "diabetes",
        {},
        {"records": 20, "rounds": 2, "hidden": (8,), "training.batch_size": 10},
        {"decode_numbers": {"orders": 2, "nodes": 3, "passes": 2}},
    ),
    Specimen("canaries/full", "breast_cancer", {}, {"records": 20, "rounds": 2, "canaries": 50}),
)


@functools.cache
def _cells(size: Size) -> tuple[Cell, ...]:
    return tuple(specimen.cell(size) for specimen in SPECIMENS)


def specimen_of(experiment: Experiment, method: str, size: Size = "tiny") -> Cell:
    """The first specimen of experiments of this name that takes a method.

    Raises:
      ValueError: if there is no such method, or none takes it.
    """
    cell = _first_that_takes(experiment, experiment.method(method), size)
    if cell is None:
        raise ValueError(f"method={method!r} of {experiment.name}: no specimen takes it")
    return cell


def _first_that_takes(experiment: Experiment, method: Method, size: Size) -> Cell | None:
    for cell in _cells(size):
        if cell.experiment.name == experiment.name and not method.refuses(cell.settings):
            return dataclasses.replace(cell, experiment=experiment)
    return None


def companions(cell: Cell, size: Size = "tiny") -> tuple[str, ...]:
    """Methods of the suites' experiment whose specimen a cell is."""
    ours = next(c for c in _cells(size) if c.settings == cell.settings and c.table == cell.table)
    return tuple(
        method.name
        for method in ours.experiment.methods
        if _first_that_takes(ours.experiment, method, size) == ours
    )


def jobs_of(size: Size) -> Iterator[Job]:
    """Every method once, on its specimen."""
    for cell in _cells(size):
        for name in companions(cell, size):
            yield Job(cell, name, 0)
