"""What one's own server could learn from one's own clients, and what stops it:
`python -m benchmarks.audit`.

From a table alone the federation is simulated; with `--messages` a recorded run is attacked. The
answer goes to `--out` (default `audit/`): `report.html`, every number as CSV, and `audit.yaml`, by
which the same audit is made again.
"""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optax
import tyro
import yaml
from rich.console import Console

from benchmarks.audits import findings, notes, page, plan, recorded
from benchmarks.audits.recorded_sums import read_participation, told_by_sums
from benchmarks.harness.command_line import (
    UsageError,
    check_options,
    exit_code,
    option,
    run_command,
)
from benchmarks.harness.devices import prepare_devices
from benchmarks.harness.jobs import group
from benchmarks.harness.runner import engine_of, resumption, run_groups, unfinished
from benchmarks.harness.store import Store, write_whole
from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.sums import rarer_value
from benchmarks.scenarios.victims import VictimSettings
from benchmarks.sweep import seeds_of
from jaxfl import LocalTraining, mlp, sgd
from jaxfl.datasets import read_inputs
from jaxfl.domains import Count, Index, NotNegativeFloat, PositiveFloat
from jaxfl.recordings import read_rounds

PROG = "python -m benchmarks.audit"
KEPT = "finished rows are kept; run the same command to go on"
ONLY_SIMULATED = ("records", "rounds", "epsilon", "questions", "seeds")
ONLY_RECORDED = ("client", "sent", "returned", "after", "participation")


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the messages of a federation give away of its clients' records, and what stops it.

    Examples: `python -m benchmarks.audit --csv people.csv --target income --sensitive sex` trains
    clients on the table and attacks them. `... --messages run/ --csv inputs.csv --target income
    --sensitive sex --clients hospital` attacks the recorded run in the folder `run`."""

    csv: str = ""
    """The table, with a header. For --messages: the model's inputs as they were, all numbers."""
    target: str = ""
    """The column that the model predicts."""
    sensitive: str = ""
    """Columns that nobody should learn, comma-separated. For --messages, columns joined by + stand
    for one attribute ("race_a+race_b")."""
    drop: str = ""
    """Columns to leave out, comma-separated."""
    clients: str = "10"
    """How many clients there are, or the column that says whose a record is. For --messages: that
    column ("" if all are one client's)."""
    records: Index = 0
    """Records of each simulated client; 0: as many as there are, at most 200."""
    hidden: str = "64"
    """Widths of the hidden layers, comma-separated; "" for none."""
    rounds: Count = 20
    """Communication rounds that are simulated, and seen."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimiser of the clients, begun anew in every round."""
    momentum: NotNegativeFloat = 0.0
    """Momentum of SGD, below 1."""
    weight_decay: NotNegativeFloat = 0.0
    """Weight decay of SGD, as PyTorch has it."""
    learning_rate: PositiveFloat = 0.1
    """Learning rate of the clients' optimiser."""
    batch_size: Index = 32
    """Records per local step; 0 for all."""
    epochs: Count = 1
    """Local passes over the records in a round."""
    epsilon: str = "none,10,3,1"
    """Private trainings to be tried, comma-separated; "none" is tried in any case."""
    questions: str = ",".join(plan.QUESTIONS)
    """What is asked of simulated clients: of a sensitive column, of whether a person is there, of
    whole records; what updates show of the epsilon that is promised; which clients hold many people
    with the column's rarer value, by sums alone; whose a record is; which updates without names
    come from one client."""
    seeds: str = "3"
    """How many clients are attacked, each in a run of its own (see `benchmarks.sweep`)."""
    messages: str | None = None
    """Folder with a recorded run (docs/recordings.md); nothing is simulated then."""
    client: str | None = None
    """The recorded clients to be attacked, comma-separated; all by default."""
    sent: str = "round-{round}-sent"
    """Name of the files with what was sent, without ending."""
    returned: str = "round-{round}-client-{client}"
    """Name of the files with what came back; "" if there are none: global models alone."""
    after: str | None = None
    """Name of the files with the global model after a round, in place of --sent."""
    participation: str | None = None
    """Table with the columns round and client: who took part, where secure aggregation leaves
    global models alone."""
    config: str | None = None
    """An audit.yaml whose settings hold where the command line says nothing else."""
    out: str = "audit"
    """Folder for the report; one that holds results is resumed."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code as `benchmarks.sweep` does."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _answered(words), KEPT)


def _answered(words: list[str]) -> int:
    arguments = tyro.cli(Arguments, args=words, prog=PROG, default=_configured(words))
    _check(arguments)
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {k: v for k, v in dataclasses.asdict(arguments).items() if k != "config"}
    write_whole(folder / "audit.yaml", yaml.safe_dump(chosen, sort_keys=False))
    console = Console(width=None if sys.stdout.isatty() else 130)
    return (_recorded if arguments.messages else _simulated)(console, arguments, folder)


def _configured(words: list[str]) -> Arguments:
    """Defaults, or what `--config` says."""
    joined = [word for word in words if word.startswith("--config=")]
    if joined:
        path = joined[-1].partition("=")[2]
    elif "--config" in words[:-1]:
        path = words[words.index("--config") + 1]
    else:
        return Arguments()
    if not Path(path).is_file():
        raise UsageError(f"--config {path!r} is no file")
    try:
        told = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path!r} is no YAML ({error})".replace("\n", " ")) from None
    fields = {field.name: field for field in dataclasses.fields(Arguments)}
    odd = set(told) - set(fields) if isinstance(told, dict) else {str(told)[:40]}
    if odd:
        raise UsageError(f"--config {path!r} holds {min(odd)!r}; it may hold {', '.join(fields)}")
    for name, value in told.items():
        default = fields[name].default
        kind = str if default is None else type(default)
        if (
            value is not None
            and type(value) is not kind
            and not (kind is float and type(value) is int)
        ):
            raise UsageError(f"--config {path!r} has {name}={value!r}, which is no {kind.__name__}")
    return Arguments(**told)


def _check(arguments: Arguments) -> None:
    check_options(arguments)  # an audit.yaml holds what no parser has seen
    for name in ("csv", "target", "sensitive", "out"):
        if not getattr(arguments, name).strip(", "):
            raise UsageError(f"--{name} {getattr(arguments, name)!r} is missing: see --help")
    if arguments.messages is not None and not (
        arguments.messages and Path(arguments.messages).is_dir()
    ):
        raise UsageError(f"--messages {arguments.messages!r} is no folder")
    idle = ONLY_SIMULATED if arguments.messages else ONLY_RECORDED
    for field in dataclasses.fields(arguments):
        value = getattr(arguments, field.name)
        if field.name in idle and value != field.default:
            runs = "recorded runs (--messages)" if arguments.messages else "simulated ones"
            raise UsageError(f"{option(field.name)} {value!r} has no meaning for {runs}")
    if not Path(arguments.csv).is_file():
        raise UsageError(f"--csv {arguments.csv!r} is no file")


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _widths(text: str) -> tuple[int, ...]:
    if not all(part.isdigit() and int(part) for part in _names(text)):
        raise UsageError(f"--hidden {text!r} must hold widths, as 64,64")
    return tuple(map(int, _names(text)))


def _training(arguments: Arguments) -> LocalTraining:
    batch = arguments.batch_size or None
    try:
        own = sgd(arguments.momentum, arguments.weight_decay)
    except ValueError as error:
        raise UsageError(f"--momentum {arguments.momentum:g}: {error}") from None
    if arguments.optimizer == "adam" and own is not optax.sgd:
        raise UsageError("--momentum and --weight-decay are SGD's; --optimizer adam has neither")
    optimizer = optax.adam if arguments.optimizer == "adam" else own
    return LocalTraining(arguments.learning_rate, arguments.epochs, batch, optimizer)


def _epsilons(text: str) -> tuple[float, ...]:
    try:
        values = [float(part) for part in _names(text) if part != "none"]
    except ValueError:
        values = [-1.0]
    if not all(0 < value < float("inf") for value in values):
        raise UsageError(f"--epsilon {text!r} must hold positive numbers, as none,10,1")
    return tuple(sorted(set(values), reverse=True))


def _questions(text: str) -> tuple[str, ...]:
    odd = set(_names(text)) - set(plan.QUESTIONS)
    if odd or plan.QUESTIONS[0] not in _names(text):
        raise UsageError(
            f"--questions {text!r} must hold {plan.QUESTIONS[0]}, and may hold "
            f"{', '.join(plan.QUESTIONS[1:])}"
        )
    return _names(text)


def _federation(arguments: Arguments) -> plan.Federation:
    named = not arguments.clients.isdigit()
    if not arguments.clients or (not named and not int(arguments.clients)):
        raise UsageError(f"--clients {arguments.clients!r} must be a number of clients or a column")
    return plan.Federation(
        0 if named else int(arguments.clients),
        arguments.records,
        _widths(arguments.hidden),
        arguments.rounds,
        _training(arguments),
        _epsilons(arguments.epsilon),
    )


def _table(arguments: Arguments) -> plan.Asked:
    return plan.Asked(
        arguments.csv,
        arguments.target,
        _names(arguments.sensitive),
        _names(arguments.drop),
        "" if arguments.clients.isdigit() else arguments.clients,
    )


def _clients(asked: plan.Asked, victim: VictimSettings) -> str:
    whose = f"; by {asked.client!r}" if asked.client else ""
    return f"{victim.participants}, each of {victim.records} records{whose}"


def _simulated(console: Console, arguments: Arguments, folder: Path) -> int:
    """Train clients on a table, and attack them."""
    asked = _table(arguments)
    federation, seeds = _federation(arguments), seeds_of(arguments.seeds)
    suite = plan.suite_of(asked, federation)
    tables = [suite.table(name) for name in _questions(arguments.questions)]
    jobs = [j for t in tables for j in suite.jobs(t, "small", t.methods, seeds, None)]
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
    made = [_found(asked, column, rows) for column in asked.sensitive]
    wholes = plan.wholes_of(suite, rows)
    answer = findings.sentences(made, wholes, findings.of_clients(federation.rounds))
    told = page.Page(
        f"What updates give away: {Path(arguments.csv).name}",
        answer,
        _asked(arguments)
        | {"clients": _clients(asked, jobs[0].cell.settings)}
        | {"attacked": f"{len(seeds)} clients, each in a run of its own"},
        _seen(federation.rounds, bool(wholes)),
        made,
        [
            *notes.of_rows(rows, made, wholes),
            *plan.not_asked(suite, _questions(arguments.questions)),
            *(note for column in asked.sensitive for note in _summed(asked, column, rows)),
            *(f"Failed: {status}" for status in failed),
        ],
        "results.csv",
        _command(arguments),
    )
    return _done(console, told, folder, bool(failed))


def _found(asked: plan.Asked, column: str, rows: findings.Rows) -> findings.Finding:
    """What the rows of an audit say of a column."""
    name = asked.source(column)
    data, own = classified(name, None), [row for row in rows if row["dataset"] == name]
    read = [row for row in own if row["table"] == plan.QUESTIONS[0] and row["metric"] == "accuracy"]
    usual = float(np.bincount(data.y).max() / len(data))
    return findings.finding_of(column, data.column(column).categories, usual, read)


def _summed(asked: plan.Asked, column: str, rows: findings.Rows) -> list[str]:
    """What the rows of an audit say of a column through sums."""
    name = asked.source(column)
    data, table = classified(name, None), plan.QUESTIONS[4]
    own = [row for row in rows if (row["dataset"], row["table"]) == (name, table)]
    value = data.column(column).categories[rarer_value(data, column)]
    return notes.summed(column, value, [r for r in own if r["metric"] == "accuracy"])


def _recorded(console: Console, arguments: Arguments, folder: Path) -> int:
    """Attack a recorded run."""
    column = None if arguments.clients in ("", "10") else arguments.clients
    drop = _names(arguments.drop)
    table = read_inputs(arguments.csv, arguments.target, column, drop=drop)
    model = mlp(len(table.names), _widths(arguments.hidden), int(table.y.max()) + 1)
    run = read_rounds(
        str(arguments.messages),
        model,
        sent=None if arguments.after else arguments.sent,
        returned=arguments.returned or None,
        after=arguments.after,
    )
    participation = read_participation(arguments.participation)
    clients = recorded.clients_of(run, table, _names(arguments.client or ""))
    layout = str(run.layout).replace("\n", "; ")
    made, remarks = [], [f"Arrays were taken for these parameters: {layout}"]
    attributes = [attribute.split("+") for attribute in _names(arguments.sensitive)]
    for columns in attributes:
        table.values_of(columns)  # a wrong name is said before anything is computed
    for columns in attributes:
        finding, told = recorded.finding(model, clients, columns, _training(arguments))
        made.append(finding)
        asked = model, run, table, columns, _training(arguments)
        remarks += [*told, told_by_sums(*asked, participation)]
    rounds = max(len(client.messages) for client in clients)
    names = ", ".join(client.name for client in clients)
    source = findings.of_clients(rounds) if run.clients else findings.of_global_models(rounds)
    told_page = page.Page(
        f"What updates give away: {arguments.messages}",
        findings.sentences(made, (), source),
        _asked(arguments) | {"clients": names},
        _seen(rounds),
        made,
        list(dict.fromkeys(remarks)),
        "audit.yaml",
        _command(arguments),
    )
    return _done(console, told_page, folder, failed=False)


def _done(console: Console, told: page.Page, folder: Path, failed: bool) -> int:
    path = page.write(told, folder / "report.html")
    for sentence in told.answer:
        console.print(sentence, highlight=False, markup=False)
    console.print(f"report: {path}", highlight=False)
    return int(failed)


def _asked(arguments: Arguments) -> dict[str, Any]:
    widths = arguments.hidden or "none (logistic regression)"
    batch = f"batches of {arguments.batch_size}" if arguments.batch_size else "all records at once"
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


def _seen(rounds: int, whole: bool = False) -> list[str]:
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
