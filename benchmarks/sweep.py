"""Run tables of attacks x settings x seeds: `python -m benchmarks.sweep`.

Results go to `--out` (default `results/`): `results.sqlite` (every finished row, as soon as it is
measured), `results.csv` and `report.html`. A folder that holds results is resumed: finished jobs
are skipped, failed ones tried again.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import rich.markup  # noqa: F401  imported late by rich, when TensorFlow Datasets has patched imports
import tyro
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.harness import report
from benchmarks.harness.code import code_of
from benchmarks.harness.command_line import (
    INTERRUPTED,
    UsageError,
    check_once,
    exit_code,
    repeat,
    run_command,
)
from benchmarks.harness.devices import prepare_devices
from benchmarks.harness.estimates import estimate, peaks
from benchmarks.harness.jobs import Group, Job, Suite, Table, group
from benchmarks.harness.memory import resident_mib
from benchmarks.harness.runner import FAILURES, engine_of, resumption, run_groups, unfinished
from benchmarks.harness.seeds import seeds_of
from benchmarks.harness.settings import constant, full_name, short_names
from benchmarks.harness.store import Store
from benchmarks.suites import SUITES, metrics_of
from benchmarks.suites.outside import with_outside


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Run tables of attacks x settings x seeds; results.sqlite, results.csv and report.html go to
    --out. The same command again resumes. Without arguments: quick, some minutes on two cores.

    Examples: `python -m benchmarks.sweep lyu2021/table3 --seeds 5 --data-dir DATA`. `... --size
    paper --dry-run` says how long that takes. `... quick --where dataset=digits --methods cos`."""

    suites: Annotated[tuple[str, ...], tyro.conf.Positional] = ("quick",)
    """Suites or single tables: quick (embedded data), lyu2021, lyu2021/table3, ... (--list names
    them); your own as module:NAME or module:NAME/table."""
    list: bool = False
    """List suites, tables and methods, then stop."""
    size: Literal["small", "paper"] = "small"
    """small: the same cells, or most of them, with fewer records or rounds; paper: the published
    sizes. See --dry-run for how long either takes."""
    seeds: str = "3"
    """A count (5 means seeds 0 to 4) or a comma-separated list ("0,2,7"; "3," is the seed
    3 alone)."""
    methods: str | None = None
    """Comma-separated methods; all of a table's by default."""
    where: tuple[str, ...] = ()
    """Keep the jobs where key=value[,value]; keys: suite, table, size, dataset, method, seed,
    settings (attribute, training.batch_size or batch_size, cos.steps, ...)."""
    data_dir: str | None = None
    """Folder with local copies of public sources; JAXFL_DATA by default. What is not there is
    downloaded."""
    out: str = "results"
    """Folder for results; one that holds results is resumed."""
    engine: Literal["local", "ray"] = "local"
    """local: this machine's devices; ray: a Ray cluster (needs the extra 'cluster')."""
    address: str | None = None
    """Address of the Ray cluster, as 10.0.0.1:6379; by default RAY_ADDRESS, else a local one."""
    keep_rows: bool = False
    """Keep finished rows that other code measured; else they are measured again."""
    dry_run: bool = False
    """Print cells, groups, estimated time and memory, then stop."""


def main(argv: Sequence[str] | None = None, suites: Mapping[str, Suite] = SUITES) -> int:
    """The command line.

    Args:
      argv: its words; those of the process by default.
      suites: what may be asked for. With suites of one's own, an attack from outside is run.

    Returns:
      The exit code: 0, 1 if a job failed or results could not be written, 2 on bad input (unusable
      data included), 130 if interrupted by Ctrl-C or SIGTERM.
    """
    arguments = tyro.cli(Arguments, args=argv, prog="python -m benchmarks.sweep")
    kept = f"finished rows are kept in {arguments.out}"
    words = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: _answered(arguments, suites, words), arguments, kept)


def _answered(arguments: Arguments, suites: Mapping[str, Suite], words: Sequence[str]) -> int:
    check_once(words, "where", "methods")
    console = Console(width=None if sys.stdout.isatty() else 130)
    suites = with_outside(arguments.suites, suites)
    if arguments.list:
        _print_suites(console, suites)
        return 0
    groups = select(arguments, suites)
    prepare_devices(soon=arguments.size == "small")
    if arguments.dry_run:
        _print_plan(console, groups)
        return 0
    return _sweep(console, arguments, groups, suites)


def select(arguments: Arguments, suites: Mapping[str, Suite] = SUITES) -> list[Group]:
    """The groups that a command line asks for.

    Raises:
      UsageError: on an unknown suite, table, method, key or seed, or if nothing is left.
    """
    suites = with_outside(arguments.suites, suites)
    if not arguments.out:
        raise UsageError("--out '' names no folder")
    seeds = seeds_of(arguments.seeds)
    methods = None if arguments.methods is None else arguments.methods.split(",")
    if arguments.data_dir is not None and not (
        arguments.data_dir and Path(arguments.data_dir).is_dir()
    ):
        raise UsageError(
            f"--data-dir {arguments.data_dir!r} is not a folder; "
            "name the folder with the sources' files"
        )
    chosen = dict.fromkeys(pair for name in arguments.suites for pair in _tables(name, suites))
    known = {method for _, table in chosen for method in table.methods}
    for method in methods or ():
        if method not in known:
            names = ", ".join(sorted(known))
            raise UsageError(f"--methods {method!r} is unknown here; choose from {names}")
    jobs: list[Job] = []
    for suite, table in chosen:
        wanted = [m for m in table.methods if methods is None or m in methods]
        jobs += suite.jobs(table, arguments.size, wanted, seeds, arguments.data_dir)
    keep = _filter(arguments.where, jobs)
    groups = group(job for job in jobs if keep(job))
    if not groups:
        asked = f"{' '.join(arguments.suites)} matches --where {' '.join(arguments.where)}"
        raise UsageError(f"nothing to run: no cell of {asked}")
    return groups


def _tables(name: str, suites: Mapping[str, Suite]) -> list[tuple[Suite, Table]]:
    suite, _, table = name.partition("/")
    if suite not in suites:
        raise UsageError(f"suite {suite!r} is unknown; choose from {', '.join(suites)}")
    tables = suites[suite].tables if not table else (suites[suite].table(table),)
    return [(suites[suite], t) for t in tables]


def _filter(where: Sequence[str], jobs: Sequence[Job]) -> Callable[[Job], bool]:
    known = dict.fromkeys(key for job in jobs for key in job.facts) if where else {}
    conditions: dict[str, list[str]] = {}
    for text in where:
        key, separator, values = text.partition("=")
        if not separator:
            raise UsageError(f"--where {text!r} must read key=value[,value]")
        try:
            name = full_name(key, known)
        except ValueError as error:
            raise UsageError(f"--where {error}") from None
        # A value may itself hold commas (a list of phases): then it must match as a whole.
        conditions[name] = [*conditions.get(name, []), values, *values.split(",")]
    if not conditions:
        return lambda job: True

    def keep(job: Job) -> bool:
        facts = job.facts
        return all(_is_among(facts.get(key), values) for key, values in conditions.items())

    return keep


def _is_among(fact: Any, texts: Sequence[str]) -> bool:
    """Whether one of the texts says what holds; 1 says 1.0."""
    return str(fact) in texts or (isinstance(fact, float) and f"{fact:g}" in texts)


def _sweep(
    console: Console, arguments: Arguments, groups: list[Group], suites: Mapping[str, Suite]
) -> int:
    code_of(groups[0].jobs[0])  # read now: from here on whoever interrupts finds a report
    engine, store = engine_of(arguments.engine, arguments.address), Store(arguments.out)
    try:
        keys = {job.key for g in groups for job in g.jobs}
        pending, others = unfinished(groups, store.finished(), arguments.keep_rows)
        left = sum(len(g.jobs) for g in pending)
        for line in resumption(len(keys), left, others, arguments.out, arguments.keep_rows):
            console.print(line)
        began, start, interrupted = time.time(), time.perf_counter(), False

        def published(job: Job, metric: str) -> float | None:
            return suites[job.cell.suite].published(job.cell, job.method, metric)

        try:
            run_groups(console, engine, store, pending, arguments.data_dir, published)
        except KeyboardInterrupt:
            repeat(0)
            interrupted = True
        path, metrics = store.write_csv(), metrics_of(suites)
        page = report.write(store.rows(), store.folder, metrics, store.images())
        tables = {(job.cell.suite, job.cell.table) for g in groups for job in g.jobs}
        shown = [row for row in store.rows() if (row["suite"], row["table"]) in tables]
        _print_results(console, report.sections(shown, metrics))
        failed = store.failed(keys)
        seconds = time.perf_counter() - start
        rest, _ = unfinished(groups, store.finished(), arguments.keep_rows)
        ran = left - sum(len(g.jobs) for g in rest)
        ran_of = f"{ran} of {left} jobs finished" if interrupted else f"{left} jobs"
        console.print(f"{ran_of} in {seconds:.0f} s; table {path}, report {page}")
        if interrupted:
            console.print("interrupted: finished rows are kept; run the same command to go on")
            return INTERRUPTED
        for status in failed:
            console.print(f"failed: {status}", markup=False)
        log = store.folder / FAILURES
        if failed and log.exists() and log.stat().st_mtime >= began:
            console.print(f"where: {log}", markup=False)
        # Data that cannot be used is bad input too, found only when its cell is reached.
        bad_input = all(s.startswith(("ValueError", "ConnectionError")) for s in failed)
        return 0 if not failed else 2 if bad_input else 1
    finally:
        store.close()


def _print_suites(console: Console, suites: Mapping[str, Suite]) -> None:
    for suite in {suite.name: suite for suite in suites.values()}.values():
        for table in suite.tables:
            names = ", ".join(table.methods)
            text = f"{suite.name}/{table.name}: {table.title}\n    methods: {names}"
            console.print(text, highlight=False, markup=False)
    console.print("methods:", highlight=False)
    experiments = dict.fromkeys(t.experiment for suite in suites.values() for t in suite.tables)
    for experiment in experiments:
        for method in experiment.methods:
            line = f"    {experiment.name}/{method.name}: {method.about}"
            console.print(line, highlight=False, markup=False)


def _print_plan(console: Console, groups: list[Group]) -> None:
    columns = ("group", "cells", "jobs", "estimated s", "estimated MiB")
    table, total = RichTable(*columns, title="plan"), 0.0
    guessed = bounds = 0
    most = peaks(groups, resident_mib())
    for g, peak in zip(groups, most, strict=True):
        estimates = {job.unit: estimate(job) for job in g.jobs}.values()
        seconds = sum(e.seconds for e in estimates)
        texts = f"{seconds:.0f}", "unknown" if peak is None else f"{peak:.0f}"
        cells = len({job.cell for job in g.jobs})
        table.add_row(g.label, str(cells), str(len(g.jobs)), *texts)
        total += seconds
        guessed += sum(not e.measured for e in estimates)
        bounds += sum(e.bound for e in estimates)
    console.print(table)
    _print_cells(console, groups)
    count = sum(len(g.jobs) for g in groups)
    minutes = f"{'at least' if bounds else 'about'} {total / 60:.1f} minutes on two cores"
    known = [peak for peak in most if peak is not None]
    at_least = "" if len(known) == len(most) else "at least "
    memory = f", {at_least}{max(known):.0f} MiB" if known else ""
    console.print(f"{count} jobs in {len(groups)} groups, {minutes}{memory}")
    if guessed > bounds:
        why = "were measured in other tables alone"
        console.print(f"{guessed - bounds} runs of a method {why}: those times are taken")
    if bounds:
        why = "were measured at no such size: counted as at the small size, or as a second each"
        console.print(f"{bounds} runs of a method {why}")


def _print_cells(console: Console, groups: list[Group]) -> None:
    """What is set in each table beside the defaults: what its cells agree on, then cell by cell."""
    by_table: dict[tuple[str, str], list[Job]] = {}
    for job in (job for g in groups for job in g.jobs):
        by_table.setdefault((job.cell.suite, job.cell.table), []).append(job)
    for (suite, name), jobs in by_table.items():
        told = {"dataset", *(key for job in jobs for key in job.set_here)}
        every = [{"dataset": job.cell.dataset, **job.settings} for job in jobs]
        cells = [{key: v for key, v in cell.items() if key in told} for cell in every]
        short, shared = short_names(key for cell in cells for key in cell), constant(cells)
        text = " ".join(f"{short[key]}={v}" for key, v in shared.items())
        console.print(f"{suite}/{name}: {text}", highlight=False, soft_wrap=True)
        apart = [{key: v for key, v in cell.items() if key not in shared} for cell in cells]
        lines = (" ".join(f"{short[key]}={v}" for key, v in cell.items()) for cell in apart)
        for line in dict.fromkeys(filter(None, lines)):
            console.print(f"    {line}", highlight=False, soft_wrap=True)


def _print_results(console: Console, sections: Sequence[report.Section]) -> None:
    for section in sections:
        columns: dict[str, Any] = {
            **{"data and setting": "setting", "method": "method", "metric": "metric"},
            **{"selected by": "selection", "n": "n", "mean": "mean", "interval": "interval"},
            **{"guess": "guess", "learnt": "learnt", "fit": "fit", "published": "published"},
        }
        for heading in ("learnt", "fit", "published"):
            if not any(getattr(line, heading) for line in section.lines):
                del columns[heading]
        if len({line.metric for line in section.lines}) == 1:
            del columns["metric"]
        title = f"{section.title}: mean and 95 % interval over seeds"
        table = RichTable(title=title, title_justify="left")
        for name in columns:
            right = name in ("n", "mean", "published")
            table.add_column(name, justify="right" if right else "left", no_wrap=True)
        for line in section.lines:
            table.add_row(*(str(getattr(line, field)) for field in columns.values()))
        console.print(table)


if __name__ == "__main__":
    run_command(main)
