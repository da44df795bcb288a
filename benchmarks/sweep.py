"""Run tables of attacks x settings x seeds: `python -m benchmarks.sweep`.

Results go to `--out` (default `results/`): `results.sqlite` (every finished row, as soon as it is measured),
`results.csv` and `report.html`. A folder that holds results is resumed: finished jobs are skipped, failed ones tried
again.
"""

import dataclasses
import functools
import importlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rich.markup  # noqa: F401  imported late by rich, when TensorFlow Datasets has patched imports for a while
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

import jaxfl
from benchmarks import report
from benchmarks.engines import ENGINES, use_all_cores
from benchmarks.jobs import Group, Job, Outcome, Table, expand, group
from benchmarks.store import Row, Store
from benchmarks.suites import SUITES


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Run tables of attacks x settings x seeds; results.sqlite, results.csv and report.html go to --out."""

    suites: Annotated[tuple[str, ...], tyro.conf.Positional] = ("quick",)
    """Suites or single tables: quick (embedded data), lyu2021, lyu2021/table3, ... (--list names them)."""
    list: bool = False
    """List suites and tables, then stop."""
    size: Literal["small", "paper"] = "small"
    """small: same cells with fewer records, at most 45 minutes on 2 cores per suite; paper: the published sizes."""
    seeds: str = "3"
    """A count (5 means seeds 0 to 4) or a comma-separated list ("0,2,7"; "3," is the seed 3 alone)."""
    methods: str | None = None
    """Comma-separated methods; all of a table's by default."""
    where: tuple[str, ...] = ()
    """Keep the jobs where key=value[,value]; keys: suite, table, size, dataset, method, seed, settings (attribute, ...)."""
    data_dir: str | None = None
    """Folder with local copies of public sources; JAXFL_DATA by default. What is not there is downloaded."""
    out: str = "results"
    """Folder for results; one that holds results is resumed."""
    engine: Literal["local", "ray"] = "local"
    """local: this machine's devices; ray: a Ray cluster (needs the extra 'cluster')."""
    dry_run: bool = False
    """Print cells, groups, estimated time and memory, then stop."""


class UsageError(ValueError):
    """A request that cannot be run; its text is one line for the user."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 0, 1 if a job failed, 2 on bad input (unusable data included), 130 if
    interrupted."""
    arguments = tyro.cli(Arguments, args=argv, prog="python -m benchmarks.sweep")
    console = Console(width=None if sys.stdout.isatty() else 130)
    try:
        if arguments.list:
            _print_suites(console)
            return 0
        groups = select(arguments)
        use_all_cores()
        if arguments.dry_run:
            _print_plan(console, groups)
            return 0
        return _sweep(console, arguments, groups)
    except (UsageError, ValueError, ConnectionError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {error}", markup=False)
        return 2


def select(arguments: Arguments) -> list[Group]:
    """The groups that a command line asks for.

    Raises:
      UsageError: on an unknown suite, table, method, key or seed, or if nothing is left.
    """
    seeds = _seeds(arguments.seeds)
    methods = None if arguments.methods is None else arguments.methods.split(",")
    if arguments.data_dir is not None and not Path(arguments.data_dir).is_dir():
        raise UsageError(
            f"--data-dir {arguments.data_dir!r} is not a folder; name the folder with the sources' files"
        )
    tables = list(dict.fromkeys(pair for name in arguments.suites for pair in _tables(name)))
    known = {m for _, table in tables for m in table.methods}
    for method in methods or ():
        if method not in known:
            raise UsageError(
                f"--methods {method!r} is unknown here; choose from {', '.join(sorted(known))}"
            )
    everything: list[tuple[Table, Job]] = []
    for suite, table in tables:
        chosen = [m for m in table.methods if methods is None or m in methods]
        everything += [
            (table, job)
            for job in expand(suite, table, arguments.size, chosen, seeds, arguments.data_dir)
        ]
    _check_keys(arguments.where, [job for _, job in everything])
    keep = _filter(arguments.where)
    groups = group((table, job) for table, job in everything if keep(job))
    if not groups:
        raise UsageError(
            f"nothing to run: no cell of {' '.join(arguments.suites)} matches --where {' '.join(arguments.where)}"
        )
    return groups


def _seeds(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part]
    except ValueError:
        numbers = []
    if not numbers:
        raise UsageError(f"--seeds {text!r} must be a count (5) or a list (0,3,7)")
    seeds = numbers if "," in text else list(range(numbers[0]))
    if not seeds or min(seeds) < 0:
        raise UsageError(f"--seeds {text!r} must name at least one seed, none negative")
    return seeds


def _tables(name: str) -> list[tuple[str, Table]]:
    suite, _, table = name.partition("/")
    if suite not in SUITES:
        raise UsageError(f"suite {suite!r} is unknown; choose from {', '.join(SUITES)}")
    tables = [t for t in SUITES[suite] if not table or t.name == table]
    if not tables:
        raise UsageError(
            f"table {table!r} is not in {suite}; choose from {', '.join(t.name for t in SUITES[suite])}"
        )
    return [(suite, t) for t in tables]


def _facts(job: Job) -> dict[str, Any]:
    """What `--where` may ask of a job before it has run."""
    cell = job.cell
    columns = {"suite": cell.suite, "table": cell.table, "size": cell.size, "dataset": cell.dataset}
    return columns | {"method": job.method, "seed": job.seed} | dict(cell.settings)


def _conditions(where: Sequence[str]) -> dict[str, list[str]]:
    conditions: dict[str, list[str]] = {}
    for text in where:
        key, separator, values = text.partition("=")
        if not separator or not values:
            raise UsageError(f"--where {text!r} must read key=value[,value]")
        # A value may itself hold commas (a list of phases): then it must match as a whole.
        conditions[key] = [*conditions.get(key, []), values, *values.split(",")]
    return conditions


def _filter(where: Sequence[str]) -> Callable[[Job], bool]:
    conditions = _conditions(where)
    return lambda job: all(
        str(_facts(job).get(key)) in values for key, values in conditions.items()
    )


def _check_keys(where: Sequence[str], jobs: Sequence[Job]) -> None:
    known = {key for job in jobs for key in _facts(job)}
    for key in _conditions(where):
        if key not in known:
            raise UsageError(
                f"--where {key!r} is no column or setting here; choose from {', '.join(sorted(known))}"
            )


def _sweep(console: Console, arguments: Arguments, groups: list[Group]) -> int:
    store = Store(arguments.out)
    try:
        finished = store.finished()
        jobs = sum(len(g.jobs) for g in groups)
        pending = [p for g in groups if (p := _without(g, finished)).jobs]
        left = sum(len(g.jobs) for g in pending)
        if left < jobs:
            console.print(
                f"{jobs - left} of {jobs} jobs are finished in {arguments.out}; running the other {left}"
            )
        start, interrupted = time.perf_counter(), False
        try:
            _run_groups(console, arguments, store, pending)
        except KeyboardInterrupt:
            interrupted = True
        keys = {job.key for g in groups for job in g.jobs}
        path = store.write_csv()
        page = report.write(store.rows(), store.folder, store.images())
        _print_results(
            console,
            store.rows(),
            {(job.cell.suite, job.cell.table) for g in groups for job in g.jobs},
        )
        failed = store.failed(keys)
        console.print(
            f"{left} jobs in {time.perf_counter() - start:.0f} s; table {path}, report {page}"
        )
        if interrupted:
            console.print("interrupted: finished rows are kept; run the same command to go on")
            return 130
        for status in failed:
            console.print(f"failed: {status}", markup=False)
        # Data that cannot be used is bad input too, found only when its cell is reached.
        return (
            0
            if not failed
            else 2
            if all(s.startswith(("ValueError", "ConnectionError")) for s in failed)
            else 1
        )
    finally:
        store.close()


def _without(group: Group, finished: set[str]) -> Group:
    return dataclasses.replace(
        group, jobs=tuple(job for job in group.jobs if job.key not in finished)
    )


def _run_groups(console: Console, arguments: Arguments, store: Store, groups: list[Group]) -> None:
    versions = f"jax {jax.__version__}, numpy {np.__version__}, jaxfl {jaxfl.__version__}"
    estimate, whole, done = _estimator(), Seen(set(), set()), Seen(set(), set())
    # TensorFlow Datasets exchanges `__import__` while it is loaded, which the bar's thread would trip over.
    importlib.import_module("jaxfl.datasets.builders")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=sum(estimate(g.jobs, whole) for g in groups))
        run = functools.partial(_run_safely, data_dir=arguments.data_dir)
        for owner, outcomes in ENGINES[arguments.engine](run, groups):
            store.add(_row(outcome, versions) for outcome in outcomes)
            progress.update(bar, description=f"{owner.label} {outcomes[0].job.method}"[:70])
            progress.advance(bar, estimate([o.job for o in outcomes], done))


def _run_safely(group: Group, data_dir: str | None) -> Iterator[Sequence[Outcome]]:
    """A group's outcomes; a failure becomes the status of the jobs that have none yet."""
    done: set[Job] = set()
    try:
        for outcomes in group.tables[0].run(group.jobs, data_dir):
            done |= {o.job for o in outcomes}
            yield outcomes
    except (ValueError, TypeError, ConnectionError, OSError, RuntimeError, MemoryError) as error:
        status = f"{type(error).__name__}: {error}".splitlines()[0]
        yield [
            Outcome(job, "accuracy", None, status=status) for job in group.jobs if job not in done
        ]


def _row(outcome: Outcome, versions: str) -> Row:
    job, cell = outcome.job, outcome.job.cell
    settings = (
        dict(cell.settings)
        | dict(outcome.detail)
        | ({"note": outcome.note} if outcome.note else {})
    )
    values = {
        **{
            "suite": cell.suite,
            "table": cell.table,
            "size": cell.size,
            "dataset": cell.dataset,
            "method": job.method,
        },
        **{
            "published": _table_of(job).published(cell, job.method, outcome.metric),
            "versions": versions,
        },
        **{
            name: getattr(outcome, name)
            for name in ("selection", "metric", "value", "status", "chance", "majority")
        },
        **{
            name: getattr(outcome, name)
            for name in ("train_accuracy", "test_accuracy", "compile_s", "run_s", "device", "dtype")
        },
        **{"seed": job.seed, "settings": json.dumps(settings, sort_keys=True)},
    }
    return Row(job.key, values, {caption: _png(image) for caption, image in outcome.images.items()})


def _png(image: np.ndarray) -> bytes:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, np.clip(image, 0, 1), cmap="gray", vmin=0, vmax=1, format="png")
    return buffer.getvalue()


def _table_of(job: Job) -> Table:
    return next(table for table in SUITES[job.cell.suite] if table.name == job.cell.table)


class Seen(NamedTuple):
    """Parts of the work that an estimate has counted already, since later jobs share them."""

    work: set[Any]
    programs: set[Any]


def _estimator() -> Callable[[Sequence[Job], Seen], float]:
    """Seconds of jobs, from operation counts and the speed of one matrix product measured here."""
    a, b = jnp.ones((300, 446)), jnp.ones((446, 128))
    product = jax.jit(lambda a, b: a @ b)
    product(a, b).block_until_ready()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        product(a, b).block_until_ready()
        times.append(time.perf_counter() - start)
    rate = 2 * 300 * 446 * 128 / min(times) * jax.local_device_count()

    def seconds(jobs: Sequence[Job], seen: Seen) -> float:
        total = 0.0
        for job in dict.fromkeys(jobs):
            cost = _table_of(job).cost(job)
            total += (
                sum(
                    operations
                    for part, operations in cost.operations.items()
                    if part not in seen.work
                )
                / rate
            )
            total += sum(
                time for program, time in cost.compiling.items() if program not in seen.programs
            )
            seen.work.update(cost.operations)
            seen.programs.update(cost.compiling)
        return total

    return seconds


def _print_suites(console: Console) -> None:
    for suite, tables in SUITES.items():
        for table in tables:
            console.print(
                f"{suite}/{table.name}: {table.title}\n    methods: {', '.join(table.methods)}",
                highlight=False,
            )


def _print_plan(console: Console, groups: list[Group]) -> None:
    estimate, seen = _estimator(), Seen(set(), set())
    table = RichTable(
        *("group", "cells", "jobs", "programs", "estimated s", "estimated MiB"), title="plan"
    )
    total = 0.0
    for g in groups:
        programs = len(seen.programs)
        seconds = estimate(g.jobs, seen)
        members = len({(job.cell, job.seed) for job in g.jobs})
        memory = members * max(_table_of(job).cost(job).memory for job in g.jobs) / 2**20
        cells = len({job.cell for job in g.jobs})
        table.add_row(
            g.label,
            str(cells),
            str(len(g.jobs)),
            str(len(seen.programs) - programs),
            f"{seconds:.0f}",
            f"{memory:.0f}",
        )
        total += seconds
    console.print(table)
    for g in groups:
        for cell in dict.fromkeys(job.cell for job in g.jobs):
            console.print(
                f"{cell.suite}/{cell.table} {cell.dataset} {cell.label}",
                highlight=False,
                soft_wrap=True,
            )
    console.print(
        f"{sum(len(g.jobs) for g in groups)} jobs in {len(groups)} groups, about {total / 60:.1f} minutes here"
    )


def _print_results(
    console: Console, rows: list[dict[str, Any]], tables: set[tuple[str, str]]
) -> None:
    for section in report.sections([row for row in rows if (row["suite"], row["table"]) in tables]):
        columns = {
            **{
                "data and setting": "setting",
                "method": "method",
                "metric": "metric",
                "selected by": "selection",
            },
            **{
                "n": "n",
                "mean": "mean",
                "interval": "interval",
                "majority": "majority",
                "published": "published",
            },
        }
        if len({line.metric for line in section.lines}) == 1:
            del columns["metric"]
        table = RichTable(
            title=f"{section.title}: mean and 95 % interval over seeds", title_justify="left"
        )
        for name in columns:
            table.add_column(
                name,
                justify="right" if name in ("n", "mean", "majority", "published") else "left",
                no_wrap=True,
            )
        for line in section.lines:
            table.add_row(*(str(getattr(line, field)) for field in columns.values()))
        console.print(table)


if __name__ == "__main__":
    sys.exit(main())
