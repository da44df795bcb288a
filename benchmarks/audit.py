"""What one's own server could learn from one's own clients, and what stops it:
`python -m benchmarks.audit`.

From a table alone the federation is simulated; with `--messages` a recorded run is attacked. The
answer goes to `--out` (default `audit/`): `report.html`, every number as CSV, and `audit.yaml`, by
which the same audit is made again.
"""

import csv
import dataclasses
import io
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro
import yaml
from rich.console import Console

from benchmarks.audits import findings, notes, options, page, plan, recorded, sentences
from benchmarks.audits.options import Arguments
from benchmarks.audits.recorded_sums import (
    check_participants,
    read_participation,
    summed_participation,
    told_by_sums,
)
from benchmarks.harness.command_line import UsageError, check_once, exit_code, run_command
from benchmarks.harness.devices import prepare_devices
from benchmarks.harness.jobs import Suite, group
from benchmarks.harness.runner import engine_of, resumption, run_groups, unfinished
from benchmarks.harness.store import Store, write_whole
from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.splits import held_out_rows, public_rows
from benchmarks.scenarios.sums import rarer_value
from benchmarks.scenarios.victims import VictimSettings
from benchmarks.sweep import seeds_of
from jaxfl import LocalTraining, Model, mlp
from jaxfl.datasets import Dataset, Inputs, read_inputs
from jaxfl.datasets.csv import NOTES, are_ranges
from jaxfl.recordings import OtherModelError, Recording, read_rounds

PROG = "python -m benchmarks.audit"
ASIDE = ("messages", "csv")
"""What tells one audit from another, and is named first."""
KEPT = "finished rows are kept; run the same command to go on"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code as `benchmarks.sweep` does."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _answered(words), _kept(words))


def _kept(words: list[str]) -> str:
    """What an interruption leaves."""
    try:
        told = options.configured(words).messages is not None
    except (UsageError, OSError):
        return ""
    of_recording = told or any(word.split("=")[0] == "--messages" for word in words)
    return "run the same command again" if of_recording else KEPT


def _keep_settings(arguments: Arguments, folder: Path) -> None:
    """Only of an audit that can be made: that of an earlier one stays else.

    Raises:
      UsageError: if the folder holds the report of another audit, and either is of a recorded run,
        of which no rows are kept but those of its report.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {arguments.out!r} cannot be made: {error.strerror}") from None
    chosen = {k: v for k, v in dataclasses.asdict(arguments).items() if k != "config"}
    earlier = options.settings_in(folder)
    ordered = {name: chosen[name] for name in ASIDE} | chosen | {"out": earlier.get("out")}
    other = [name for name, value in ordered.items() if earlier.get(name) != value]
    of_recording = arguments.messages or earlier.get("messages")
    if other and of_recording and (folder / "results.csv").is_file():
        raise UsageError(
            f"--out {arguments.out!r} holds another audit, with {other[0]}="
            f"{earlier.get(other[0])!r}; choose another folder, so that its results are kept"
        )
    write_whole(folder / "audit.yaml", yaml.safe_dump(chosen, sort_keys=False))


def _answered(words: list[str]) -> int:
    check_once(words, "sensitive", "drop", "client", "questions", "epsilon")
    arguments = tyro.cli(Arguments, args=words, prog=PROG, default=options.configured(words))
    options.check(arguments)
    folder = Path(arguments.out)
    console = Console(width=None if sys.stdout.isatty() else 130)
    return (_recorded if arguments.messages else _simulated)(console, arguments, folder)


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


def _simulated(console: Console, arguments: Arguments, folder: Path) -> int:
    """Train clients on a table, and attack them."""
    asked, questions = options.table(arguments), options.questions(arguments.questions)
    federation, seeds = options.federation(arguments), seeds_of(arguments.seeds)
    try:
        suite = plan.suite_of(asked, federation)
    except ValueError as error:
        raise options.in_options(error) from None
    tables = [suite.table(name) for name in questions]
    jobs = [j for t in tables for j in suite.jobs(t, "small", t.methods, seeds, None)]
    _keep_settings(arguments, folder)
    keys = {job.key for job in jobs}
    prepare_devices()
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
    return _done(console, told, folder, bool(failed))


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
    beside = notes.answered_beside(rows)
    if any(told.leaks for told in sums):
        beside.append("which clients hold many people with a value, by sums alone")
    wholes, count = plan.wholes_of(suite, rows), len(seeds_of(arguments.seeds))
    each = "1 client" if count == 1 else f"{count} clients, each in a run of its own"
    tables = {column: classified(asked.source(column), None) for column in asked.sensitive}
    victim = plan.victim_of(suite)
    return page.Page(
        f"What updates give away: {Path(arguments.csv).name}",
        sentences.answer(made, wholes, sentences.of_clients(federation.rounds), beside),
        _asked(arguments, victim.training)
        | {
            "clients": _clients(asked, victim, next(iter(tables.values()))),
            "attacked": each,
            "columns": _read_as(tables),
        },
        _seen(federation.rounds, bool(wholes)),
        made,
        "records" if count == 1 else "clients",
        any(math.isfinite(level.guesses["null"]) for f in made for level in f.levels),
        "those whose records no client holds",
        [
            *dict.fromkeys(n for data in tables.values() for n in data.note.split(NOTES) if n),
            *notes.of_rows(rows, made, wholes),
            *plan.not_asked(suite, options.questions(arguments.questions)),
            *(told.note for told in sums),
            *failed,
        ],
        "results.csv",
        _command(arguments),
    )


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
        row
        for row in of_dataset
        if row["table"] == plan.QUESTIONS[0] and row["metric"] == "accuracy"
    ]
    usual = float(np.bincount(data.y).max() / len(data))
    values = data.column(column).categories
    made = findings.finding_of(column, values, usual, read)
    return dataclasses.replace(made, ranges=are_ranges(values))


def _summed(asked: plan.Asked, column: str, rows: findings.Rows) -> list[notes.Told]:
    """What the rows of an audit say of a column through sums."""
    name = asked.source(column)
    data, table = classified(name, None), plan.QUESTIONS[4]
    of_table = [row for row in rows if (row["dataset"], row["table"]) == (name, table)]
    value = data.column(column).categories[rarer_value(data, column)]
    return notes.summed(column, value, [r for r in of_table if r["metric"] == "accuracy"])


def _recorded(console: Console, arguments: Arguments, folder: Path) -> int:
    """Attack a recorded run."""
    table, training = _inputs(arguments), options.training(arguments)
    model = mlp(len(table.names), options.widths(arguments.hidden), int(table.y.max()) + 1)
    run = _recording(arguments, model, table)
    participation = read_participation(arguments.participation)
    if participation is not None:
        participation = summed_participation(run, participation)
        run.aggregates(participation)  # what does not fit is said before anything is computed
        check_participants(participation, table)
    clients = recorded.clients_of(run, table, options.names("client", arguments.client or ""))
    layout = str(run.layout).replace("\n", "; ")
    answers, rows, remarks = [], [], [f"Arrays were taken for these parameters: {layout}"]
    attributes = [a.split("+") for a in options.names("sensitive", arguments.sensitive)]
    for columns in attributes:  # a wrong name is said before anything is computed
        _check_sensitive(arguments, columns)
        table.values_of(columns)
    _keep_settings(arguments, folder)

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        write_whole(folder / "results.csv", _lines(rows))
        of = f"{len(rows)} of {len(attributes) * len(clients)}"
        told = f"{of}: {row['client']}, {row['attribute']}: {row['status']}"
        console.print(told, style="dim", markup=False, highlight=False)

    def doubted(client: str) -> None:
        told = f"{client}: its updates are not explained; they are asked why, which takes minutes"
        console.print(told, style="dim", markup=False, highlight=False)

    for columns in attributes:
        answers.append(recorded.read(model, clients, columns, training, keep, doubted))
        asked = model, run, table, columns, training
        few = notes.of_the_few(answers[-1].finding)
        remarks += [*few, *answers[-1].notes, told_by_sums(*asked, participation)]
    made = [answer.finding for answer in answers]
    told = _told_of_recording(arguments, clients, made, remarks, alone=not run.clients)
    return _done(console, told, folder, failed=False)


def _recording(arguments: Arguments, model: Model, table: Inputs) -> Recording:
    """The files of a run, as messages of a model that takes the table's inputs."""
    try:
        return read_rounds(
            str(arguments.messages),
            model,
            sent=None if arguments.after else arguments.sent,
            returned=arguments.returned or None,
            after=arguments.after,
        )
    except OtherModelError as error:
        inputs = f"{len(table.names)} inputs ({', '.join(table.names)})"
        raise UsageError(
            f"{error}. By --csv the model takes {inputs} and tells labels up to {table.y.max()}, "
            f"by --hidden {arguments.hidden!r} that is between them. A column too many goes to "
            "--drop, or to --clients if it says whose a record is; labels count from 0"
        ) from None


def _check_sensitive(arguments: Arguments, columns: Sequence[str]) -> None:
    """Raise `UsageError` on a column that the model is not given."""
    others = {arguments.target, arguments.clients, *options.names("drop", arguments.drop)}
    for column in columns:
        if column in others:
            raise UsageError(
                f"--sensitive {column!r} is the target, the client or dropped; it must be among "
                "the model's inputs"
            )


def _told_of_recording(
    arguments: Arguments,
    clients: Sequence[recorded.Client],
    made: Sequence[findings.Finding],
    remarks: Sequence[str],
    alone: bool,
) -> page.Page:
    """The page of a recorded run, of global models alone or not."""
    rounds = max(len(client.messages) for client in clients)
    names = ", ".join(client.name for client in clients)
    source = sentences.of_global_models(rounds) if alone else sentences.of_clients(rounds)
    return page.Page(
        f"What updates give away: {arguments.messages}",
        sentences.answer(made, (), source),
        _asked(arguments, options.training(arguments)) | {"clients": names},
        _seen(rounds, alone=alone),
        made,
        "records",
        len(clients) > 1,
        "those of the other clients; the model is the attacked client's, after its last round",
        list(dict.fromkeys(remarks)),
        "results.csv",
        _command(arguments),
    )


def _inputs(arguments: Arguments) -> Inputs:
    """The table of a recorded run's records."""
    column = None if arguments.clients in ("", options.DEFAULT_CLIENTS) else arguments.clients
    try:
        return read_inputs(
            arguments.csv,
            arguments.target,
            column,
            drop=options.names("drop", arguments.drop),
            separator=arguments.separator,
            text_encoding=arguments.text_encoding,
            decimal=arguments.decimal,
        )
    except ValueError as error:
        raise options.in_options(error) from None


def _lines(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _done(console: Console, told: page.Page, folder: Path, failed: bool) -> int:
    path = page.write(told, folder / "report.html")
    for sentence in told.answer:
        console.print(sentence, highlight=False, markup=False)
    console.print(f"report: {path}", highlight=False)
    return int(failed)


def _asked(arguments: Arguments, training: LocalTraining) -> dict[str, Any]:
    widths = arguments.hidden or "none (logistic regression)"
    batch = f"batches of {training.batch_size}" if training.batch_size else "all records at once"
    batch += ", the last one left out if it is not full" if training.drop_last else ""
    extras = ("momentum", arguments.momentum), ("weight decay", arguments.weight_decay)
    more = "".join(f", {name} {value:g}" for name, value in extras if value)
    return {
        "table": arguments.csv,
        "the model predicts": arguments.target,
        "should stay secret": arguments.sensitive,
        "model": f"perceptron, hidden units: {widths}",
        "clients train by": f"{arguments.optimizer} at rate {arguments.learning_rate:g}{more}, "
        f"{batch}, "
        f"{arguments.epochs} pass{'es' if arguments.epochs > 1 else ''} a round",
    }


def _seen(rounds: int, whole: bool = False, alone: bool = False) -> list[str]:
    if alone:
        return [
            f"The global models of {rounds + 1} rounds, as everyone who takes part has them, and "
            "nothing that a single client sent.",
            "The model, and how clients train.",
            "The records of all clients together, all columns but the one in question, and the "
            "answers: for example from a copy that lacks the column.",
        ]
    second = [
        "The second attacker has a single update on few people, the model, and which values each "
        "column can have; it knows nothing of the people."
    ]
    return [
        f"What one client was sent and what it sent, in {rounds} rounds: as the server has it, or "
        "someone who reads the server's traffic.",
        "The model, and how clients train.",
        "That client's records, all columns but the one in question, and the answers: for example "
        "from a copy that lacks the column.",
        *(second if whole else []),
    ]


def _command(arguments: Arguments) -> str:
    return shlex.join([*PROG.split(), "--config", f"{arguments.out}/audit.yaml"])


if __name__ == "__main__":
    run_command(main)
