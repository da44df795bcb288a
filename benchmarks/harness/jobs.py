"""Jobs: what a sweep runs, hashable and addressed by content; and the suites that list them."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.harness.experiment import Experiment, Method
from benchmarks.harness.settings import Value, defaults, flatten

MethodSettings = Mapping[str, Any]
"""Settings of methods by their names, where they are not the method's own defaults."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One setting of one table.

    Attributes:
      suite: name of the suite, "lyu2021".
      table: name of the table in it, "table3".
      size: "small" or "paper".
      dataset: name of the data set.
      experiment: what is measured.
      settings: a record of the experiment's type.
      method_settings: (method, record) pairs, where a method's settings are not its defaults.

    Raises:
      ValueError: if the settings are not of the experiment's type, or `method_settings` names a
        method that it has not, or a record that is not of the method's type.
    """

    suite: str
    table: str
    size: str
    dataset: str
    experiment: Experiment
    settings: Any
    method_settings: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        kind = self.experiment.settings
        if type(self.settings) is not kind:
            raise ValueError(
                f"settings={self.settings!r} of {self.suite}/{self.table} are no {kind.__name__}"
            )
        for name, record in self.method_settings:
            method = self.experiment.method(name)
            if type(record) is not type(method.settings):
                kind = type(method.settings)
                raise ValueError(f"settings={record!r} of method {name!r} are no {kind.__name__}")


@dataclasses.dataclass(frozen=True)
class Job:
    """One method in one cell with one seed. A seed draws the split, the victim, the initial model,
    batch order and the attack's start; all methods of a cell share it.

    Raises:
      ValueError: if the experiment has no such method, or the method refuses the cell's settings.
    """

    cell: Cell
    method: str
    seed: int

    def __post_init__(self) -> None:
        reason = self.how.refuses(self.cell.settings)
        if reason:
            raise ValueError(f"method={self.method!r} cannot run here: {reason}")

    @property
    def how(self) -> Method:
        """The method's record."""
        return self.cell.experiment.method(self.method)

    @property
    def method_settings(self) -> Any:
        """Settings of the method in this cell, as it runs."""
        given = dict(self.cell.method_settings).get(self.method, self.how.settings)
        return self.how.settles(given, self.cell.settings)

    @property
    def settings(self) -> dict[str, Value]:
        """All that is set, by flat names: the cell's, and the method's own under its name."""
        return flatten(self.cell.settings) | self._of_method(self.method_settings)

    @property
    def set_here(self) -> dict[str, Value]:
        """What of it differs from the defaults of the experiment and of the method."""
        known: dict[str, Value] = defaults(self.cell.experiment.settings)
        known |= self._of_method(self.how.settings)
        return {k: v for k, v in self.settings.items() if k not in known or known[k] != v}

    def _of_method(self, record: Any) -> dict[str, Value]:
        flat = {} if record is None else flatten(record)
        filled = tuple(f"{name}." for name in self.how.filled)
        left = {k: v for k, v in flat.items() if not f"{k}.".startswith(filled)}
        return {f"{self.method}.{k}": v for k, v in left.items()}

    @property
    def facts(self) -> dict[str, Value]:
        """What `--where` may ask of a job before it has run."""
        cell = self.cell
        place: dict[str, Value] = {
            "suite": cell.suite,
            "table": cell.table,
            "size": cell.size,
            "dataset": cell.dataset,
        }
        return place | {"method": self.method, "seed": self.seed} | self.settings

    @property
    def computation(self) -> Any:
        """What is computed for every seed: jobs that only ask other things of it share it."""
        cell = self.cell
        settings = cell.experiment.run_of(cell.settings)
        return cell.experiment.name, cell.dataset, settings, self.method, self.method_settings

    @property
    def unit(self) -> Any:
        """What is computed once: a computation with a seed."""
        return self.computation, self.seed

    @property
    def key(self) -> str:
        """Content address: equal jobs have equal keys in every process."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one job measured, one per metric and selection. A value that is not finite is none: its
    status says so.

    Attributes:
      job: the job.
      metric: a metric of the job's experiment.
      value: the score; None if it failed.
      selection: "objective" (chosen by what the adversary knows), "oracle" (chosen by the score) or
        "none".
      status: "ok"; "misfit", of a value where no answer explains the messages; "unchecked", of one
        whose answer they could not contradict; or why there is no value.
      chance: score of a blind guess; the metric's own where it is not said.
      majority: score of the most frequent true value.
      imputation: score of a guess by all that is known of a record beside the messages.
      null: score of the same attack on another client's messages.
      explained: share of the messages' energy that the answer accounts for.
      misfit: what no answer explains, relative to what rounding and the recipe's noise leave (see
        `attacks.Fit`).
      train_accuracy: of the victim's last observed model on its own records.
      test_accuracy: of the same model on held-out records.
      compile_s: seconds to compile the group's program.
      run_s: wall time of the group's program divided by its members, seconds.
      device: what it ran on; the runner says so.
      dtype: precision of the attack.
      detail: further facts of this outcome, such as the rounds chosen; `scored_records` says of how
        many independent records a proportion is.
      note: what a reader must know of the data.
      trace: where the method failed, as Python tells it: for the sweep's `failures.log`.
      images: by caption, `[height, width]` or `[height, width, 3]` in [0, 1]: shown in the report.

    Raises:
      ValueError: if the job's experiment has no such metric.
    """

    job: Job
    metric: str
    value: float | None
    selection: str = "none"
    status: str = "ok"
    chance: float | None = None
    majority: float | None = None
    imputation: float | None = None
    null: float | None = None
    explained: float | None = None
    misfit: float | None = None
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    compile_s: float | None = None
    run_s: float | None = None
    device: str = ""
    dtype: str = ""
    detail: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    note: str = ""
    trace: str = dataclasses.field(default="", compare=False)
    images: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        metric = self.job.cell.experiment.metric(self.metric)
        if self.chance is None:
            object.__setattr__(self, "chance", metric.chance)
        if self.value is None and self.status == "ok":
            object.__setattr__(self, "status", "diverged")
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)
            object.__setattr__(self, "status", "diverged")


@dataclasses.dataclass(frozen=True)
class Place:
    """A cell before its suite and table are known.

    Attributes:
      dataset: name of the data set.
      settings: a record of the experiment's type.
      method_settings: by the name of the method.
    """

    dataset: str
    settings: Any
    method_settings: MethodSettings = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Table:
    """One table or figure of a paper, as a grid.

    Attributes:
      name: "table3".
      title: what it shows, one line.
      experiment: what is measured.
      places: from (size, data_dir) to its cells; a real source replaces its stand-in where it is at
        hand.
      listed: the methods of its rows, by name; all of the experiment's if empty, new ones too.
      without: methods that it leaves out of these.
      skips: from (settings, method) to whether the table leaves a method out, for its cost.

    Raises:
      ValueError: if the experiment lacks one of the methods.
    """

    name: str
    title: str
    experiment: Experiment
    places: Callable[[str, str | None], Sequence[Place]]
    listed: tuple[str, ...] = ()
    skips: Callable[[Any, Method], bool] = lambda settings, method: False
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.listed + self.without:
            self.experiment.method(name)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that have rows here."""
        names = self.listed or tuple(method.name for method in self.experiment.methods)
        return tuple(name for name in names if name not in self.without)

    def cells(self, suite: str, size: str, data_dir: str | None) -> list[Cell]:
        """Its cells, each once."""
        place = suite, self.name, size
        drawn = self.places(size, data_dir)

        def cell(at: Place) -> Cell:
            given = tuple(sorted(at.method_settings.items()))
            return Cell(*place, at.dataset, self.experiment, at.settings, given)

        return list(dict.fromkeys(map(cell, drawn)))

    def takes(self, cell: Cell, name: str) -> bool:
        """Whether a method has rows in a cell."""
        method = self.experiment.method(name)
        return not method.refuses(cell.settings) and not self.skips(cell.settings, method)


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tables of one paper.

    Attributes:
      name: as on the command line.
      tables: in the paper's order.
      published: from (cell, method, metric) to the published value, or None.
    """

    name: str
    tables: tuple[Table, ...]
    published: Callable[[Cell, str, str], float | None] = lambda cell, method, metric: None

    def table(self, name: str) -> Table:
        """A table by name. Raises `ValueError` if there is none."""
        for table in self.tables:
            if table.name == name:
                return table
        names = ", ".join(table.name for table in self.tables)
        raise ValueError(f"table {name!r} is not in {self.name}; choose from {names}")

    def jobs(
        self,
        table: Table,
        size: str,
        methods: Sequence[str],
        seeds: Sequence[int],
        data_dir: str | None,
    ) -> list[Job]:
        """All jobs of a table, cell by cell."""
        return [
            Job(cell, method, seed)
            for cell in table.cells(self.name, size, data_dir)
            for method in methods
            if table.takes(cell, method)
            for seed in seeds
        ]


@dataclasses.dataclass(frozen=True)
class Group:
    """Jobs that share data and simulation, and one seed where their experiment is not batched."""

    jobs: tuple[Job, ...]

    @property
    def experiment(self) -> Experiment:
        """What is measured."""
        return self.jobs[0].cell.experiment

    def without(self, finished: set[str]) -> "Group":
        """Those of its jobs that are not finished, by their keys."""
        return Group(tuple(job for job in self.jobs if job.key not in finished))

    @property
    def label(self) -> str:
        """One line for progress."""
        cell = self.jobs[0].cell
        tables = "+".join(dict.fromkeys(job.cell.table for job in self.jobs))
        seed = "" if self.experiment.batched else f" seed={self.jobs[0].seed}"
        return f"{cell.suite}/{tables} {cell.dataset}{seed}"


def group(jobs: Iterable[Job]) -> list[Group]:
    """Jobs that can run together, in the order of their first member."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        cell, experiment = job.cell, job.cell.experiment
        seed = None if experiment.batched else job.seed
        shared = experiment, cell.dataset, experiment.program_of(cell.settings), seed
        groups.setdefault(shared, []).append(job)
    return [Group(tuple(members)) for members in groups.values()]


def by_method(jobs: Iterable[Job]) -> Iterator[tuple[Method, Any, list[Job]]]:
    """Each method with its settings, and its jobs; in the order of their first."""
    methods: dict[tuple[Method, Any], list[Job]] = {}
    for job in jobs:
        methods.setdefault((job.how, job.method_settings), []).append(job)
    for (method, given), wanted in methods.items():
        yield method, given, wanted
