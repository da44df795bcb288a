"""Jobs: what a sweep runs, hashable and addressed by content."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Value = str | int | float | bool | None


@dataclasses.dataclass(frozen=True)
class Cell:
    """One setting of one table.

    Attributes:
      suite: name of the suite, "lyu2021".
      table: name of the table in it, "table3".
      size: "small" or "paper".
      dataset: name of the data set.
      settings: sorted (name, value) pairs; everything that the experiment reads.
    """

    suite: str
    table: str
    size: str
    dataset: str
    settings: tuple[tuple[str, Value], ...]

    def __getitem__(self, name: str) -> Any:
        return dict(self.settings)[name]

    @property
    def label(self) -> str:
        """Settings in one line, for progress and reports."""
        return " ".join(f"{name}={value}" for name, value in self.settings)


@dataclasses.dataclass(frozen=True)
class Job:
    """One method in one cell with one seed. A seed draws the split, the victim, the initial model, batch order and the
    attack's start; all methods of a cell share it."""

    cell: Cell
    method: str
    seed: int

    @property
    def key(self) -> str:
        """Content address: equal jobs have equal keys in every process."""
        return hashlib.sha256(
            json.dumps(dataclasses.asdict(self), sort_keys=True).encode()
        ).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one job measured, one per metric and selection. A value that is not finite is none: its status says so.

    Attributes:
      job: the job.
      metric: what was measured: "accuracy", "label_accuracy", ...
      value: the score; None if it failed.
      selection: "objective" (chosen by what the adversary knows), "oracle" (chosen by the score), "none".
      status: "ok", or why there is no value.
      chance: score of a blind guess.
      majority: score of the most frequent true value.
      train_accuracy: of the victim's last observed model on its own records.
      test_accuracy: of the same model on held-out records.
      compile_s: seconds to compile the group's program.
      run_s: wall time of the group's program divided by its members, seconds.
      device: what it ran on.
      dtype: precision of the attack.
      detail: further facts of this outcome, such as the rounds chosen.
      note: what a reader must know of the data.
      images: by caption, `[height, width]` or `[height, width, 3]` in [0, 1]: shown in the report.
    """

    job: Job
    metric: str
    value: float | None
    selection: str = "none"
    status: str = "ok"
    chance: float | None = None
    majority: float | None = None
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    compile_s: float | None = None
    run_s: float | None = None
    device: str = ""
    dtype: str = ""
    detail: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    note: str = ""
    images: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)
            object.__setattr__(self, "status", "diverged")


class Cost(NamedTuple):
    """Estimates for one job.

    Attributes:
      operations: floating-point operations by what they compute (hashable); jobs share parts of equal name.
      compiling: seconds of compilation by program (hashable); likewise.
      memory: bytes.
    """

    operations: Mapping[Any, float]
    compiling: Mapping[Any, float]
    memory: float


@dataclasses.dataclass(frozen=True)
class Table:
    """One table or figure of a paper, as a grid.

    Attributes:
      name: "table3".
      title: what it shows, one line.
      cells: from (size, data_dir) to its cells; a real source replaces its stand-in where it is at hand.
      methods: the methods of its rows.
      published: from (cell, method, metric) to the published value of the cell's paper-size counterpart, or None.
      applies: whether a method makes sense in a cell.
      run: runs jobs of equal signature, yielding outcomes as they come; `run(jobs, data_dir)`.
      signature: from a cell to what must be equal for jobs to run as one compiled call.
      cost: from a job to its estimated cost.
      batched: whether `run` takes all seeds as one batch, on all devices. If not, each seed is a group of its own.
      alone: whether nothing may run beside it: it measures time.
    """

    name: str
    title: str
    cells: Callable[[str, str | None], Sequence[Cell]]
    methods: tuple[str, ...]
    published: Callable[[Cell, str, str], float | None]
    applies: Callable[[Cell, str], bool]
    run: Callable[[Sequence[Job], str | None], Iterable[Sequence[Outcome]]]
    signature: Callable[[Cell], Any]
    cost: Callable[[Job], Cost]
    batched: bool = True
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class Group:
    """Jobs of equal signature, of one table or several, and of one seed where the tables are not batched: data and simulation
    are shared."""

    tables: tuple[Table, ...]
    jobs: tuple[Job, ...]

    @property
    def batched(self) -> bool:
        """Whether the group is shared by devices."""
        return self.tables[0].batched

    @property
    def alone(self) -> bool:
        """Whether nothing may run beside it."""
        return any(table.alone for table in self.tables)

    @property
    def label(self) -> str:
        """One line for progress."""
        shared = set.intersection(*(set(j.cell.settings) for j in self.jobs))
        text = " ".join(f"{k}={v}" for k, v in self.jobs[0].cell.settings if (k, v) in shared)
        seed = "" if self.batched else f"seed={self.jobs[0].seed} "
        return f"{self.jobs[0].cell.suite}/{'+'.join(t.name for t in self.tables)} {self.jobs[0].cell.dataset} {seed}{text}"


def expand(
    suite: str,
    table: Table,
    size: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    data_dir: str | None,
) -> list[Job]:
    """All jobs of a table, cell by cell."""
    cells = table.cells(size, data_dir)
    return [
        Job(cell, method, seed)
        for cell in cells
        for method in methods
        if table.applies(cell, method)
        for seed in seeds
    ]


def group(jobs: Iterable[tuple[Table, Job]]) -> list[Group]:
    """Jobs by signature, and by seed where a table is not batched, in the order of their first member."""
    groups: dict[Any, tuple[dict[str, Table], list[Job]]] = {}
    for table, job in jobs:
        seed = None if table.batched else job.seed
        tables, members = groups.setdefault((table.run, table.signature(job.cell), seed), ({}, []))
        tables[table.name] = table
        members.append(job)
    return [Group(tuple(tables.values()), tuple(members)) for tables, members in groups.values()]
