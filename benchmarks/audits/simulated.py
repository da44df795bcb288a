"""The audit of a table: clients are trained on it, and attacked."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.audits import findings, notes, options, page, plan, recipe, request, sentences
from benchmarks.audits.options import Arguments
from benchmarks.audits.questions import QUESTIONS
from benchmarks.harness.devices import prepare_devices
from benchmarks.harness.jobs import Suite, group
from benchmarks.harness.runner import engine_of, resumption, run_groups, unfinished
from benchmarks.harness.seeds import seeds_of
from benchmarks.harness.store import Store
from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.splits import held_out_rows, public_rows
from benchmarks.scenarios.sums import rarer_value
from benchmarks.scenarios.victims import VictimSettings
from jaxfl.datasets import Dataset
from jaxfl.datasets.csv import NOTES, are_ranges


def audit_simulated(console: Console, arguments: Arguments) -> page.Audited:
    """Train clients on a table, and attack them; rows that `--out` holds are not run again.

    Raises:
      UsageError: if an option does not fit the table or another one, or `--out` holds the report of
        a recorded run.
    """
    folder = Path(arguments.out)
    asked, questions = options.table(arguments), options.questions(arguments.questions)
    federation, seeds = recipe.federation(arguments), seeds_of(arguments.seeds)
    try:
        suite = plan.suite_of(asked, federation)
    except ValueError as error:
        raise options.in_options(error) from None
    tables = [suite.table(name) for name in questions]
    jobs = [j for t in tables for j in suite.jobs(t, "small", t.methods, seeds, None)]
    request.keep_settings(arguments, folder)
    keys = {job.key for job in jobs}
    prepare_devices(soon=True)
    store = Store(folder)
    try:
        pending, others = unfinished(group(jobs), store.finished())
        for line in resumption(len(keys), sum(len(g.jobs) for g in pending), others, folder):
            console.print(line)
        run_groups(console, engine_of("local"), store, pending, None, lambda job, metric: None)
        store.write_csv()
        rows, failed = store.rows(keys), store.failed(keys)
    finally:
        store.close()
    told = _told(arguments, asked, federation, suite, rows, [f"Failed: {s}" for s in failed])
    return page.Audited(told, bool(failed))


def _told(
    arguments: Arguments,
    asked: plan.Asked,
    federation: plan.Federation,
    suite: Suite,
    rows: findings.Rows,
    failed: list[str],
) -> page.Page:
    """The page of a simulated audit."""
    made = [_found(asked, column, rows) for column in asked.sensitive]
    sums = [told for column in asked.sensitive for told in _summed(asked, column, rows)]
    numbers = {column: _numbered(asked, column, rows) for column in asked.sensitive}
    beside = notes.answered_beside(rows)
    beside += [f"the numbers of {c!r}" for c, told in numbers.items() if told and told[0].leaks]
    if any(told.leaks for told in sums):
        beside.append(sentences.BY_SUMS)
    wholes, count = plan.wholes_of(suite, rows), len(seeds_of(arguments.seeds))
    each = "1 client" if count == 1 else f"{count} clients, each in a run of its own"
    tables = {column: classified(asked.source(column), None) for column in asked.sensitive}
    victim = plan.victim_of(suite)
    source = sentences.of_clients(federation.rounds, bool(wholes))
    return page.Page(
        f"What updates give away: {Path(arguments.csv).name}",
        sentences.answer(made, wholes, source, beside),
        request.asked(arguments, victim.training)
        | {
            "clients": _clients(asked, victim, next(iter(tables.values()))),
            "attacked": each,
            "columns": _read_as(tables),
        },
        source.has,
        made,
        "people" if count == 1 else "clients",
        any(math.isfinite(level.guesses["null"]) for f in made for level in f.levels),
        "those whose records no client holds",
        [
            *dict.fromkeys(
                f"{n}." for data in tables.values() for n in data.note.split(NOTES) if n
            ),
            *notes.of_rows(rows, made, wholes),
            *plan.not_asked(suite, options.questions(arguments.questions)),
            *(told.note for each in numbers.values() for told in each),
            *(told.note for told in sums),
            *failed,
        ],
        "results.csv",
        request.command(arguments),
    )


def _clients(asked: plan.Asked, victim: VictimSettings, data: Dataset) -> str:
    count, each = victim.participants, victim.records
    known = len(public_rows(data, seed=0))
    others = (
        f"of the {len(data)} rows the attacker knows {known}, and {held_out_rows(data)} are tests"
    )
    if data.group is None:
        return f"{count}, each of {each} records; {others}"
    there = len(np.unique(data.group))
    fewer = (
        f"; {there - count} of {there} have fewer, and do not take part" if there > count else ""
    )
    return f"{count}, each of {each} records; by {asked.client!r}{fewer}; {others}"


def _read_as(tables: Mapping[str, Dataset]) -> str:
    """How a table's columns were read, each sensitive one as where it is asked for."""
    usual = next(iter(tables.values()))
    columns = [tables.get(column.name, usual).column(column.name) for column in usual.columns]
    numbers = [column.name for column in columns if not column.categories]
    texts = [f"{c.name} ({len(c.categories)})" for c in columns if c.categories]
    kinds = {"numbers": numbers, "categories, so many": texts}
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)


def _found(asked: plan.Asked, column: str, rows: findings.Rows) -> findings.Finding:
    """What the rows of an audit say of a column."""
    name = asked.source(column)
    data, of_dataset = classified(name, None), [row for row in rows if row["dataset"] == name]
    read = [
        row for row in of_dataset if row["table"] == QUESTIONS[0] and row["metric"] == "accuracy"
    ]
    usual = float(np.bincount(data.y).max() / len(data))
    values = data.column(column).categories
    made = findings.finding_of(column, values, usual, read)
    return dataclasses.replace(made, ranges=are_ranges(values))


def _numbered(asked: plan.Asked, column: str, rows: findings.Rows) -> list[notes.Told]:
    """What the rows of an audit say of a column's numbers."""
    name = asked.source("")
    place = [each.name for each in classified(name, None).columns].index(column)
    of_table = [
        row
        for row in rows
        if (row["dataset"], row["table"]) == (name, QUESTIONS[7])
        and row["settings"]["attribute"] == place
    ]
    return notes.numbered(column, of_table)


def _summed(asked: plan.Asked, column: str, rows: findings.Rows) -> list[notes.Told]:
    """What the rows of an audit say of a column through sums."""
    name = asked.source(column)
    data, table = classified(name, None), QUESTIONS[4]
    of_table = [row for row in rows if (row["dataset"], row["table"]) == (name, table)]
    value = data.column(column).categories[rarer_value(data, column)]
    return notes.summed(column, value, [r for r in of_table if r["metric"] == "accuracy"])
