"""The audit of a recorded run."""

import csv
import io
import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.audits import (
    notes,
    options,
    page,
    recipe,
    recorded,
    recorded_clients,
    request,
    sentences,
)
from benchmarks.audits.findings import Finding
from benchmarks.audits.options import Arguments
from benchmarks.audits.recorded_numbers import are_numbers, check_asked
from benchmarks.audits.recorded_questions import QUESTIONS, Run
from benchmarks.audits.recorded_sums import (
    Answer,
    Game,
    Participation,
    check_participants,
    game_of,
    read_participation,
    summed_participation,
    told_by_sums,
)
from benchmarks.harness.command_line import UsageError
from benchmarks.harness.devices import prepare_devices
from benchmarks.harness.store import write_whole
from jaxfl import LocalTraining, Model
from jaxfl.datasets import Inputs, read_inputs
from jaxfl.recordings import OtherModelError, Recording, RecordingWarning, read_rounds

TRANSPOSED = {"yes": True, "no": False, None: None}
SUMS = "property"
"""The question that sums answer."""
NEW_PEOPLE = "those of the others; the model is the attacked client's, after its last round"
NEW_PEOPLE_OF_ALL = "those who took no part; the model is the last global one"


class Asked(NamedTuple):
    """What is asked of a run.

    Attributes:
      model: of which the messages are.
      training: what its clients are said to do.
      clients: whose records are asked for; nobody if no set of records is behind all messages.
      attributes: columns that stand for one, of each.
      games: of sums, or what is missing for one, by attribute; none if they are not wanted.
      questions: that are asked besides, by name.
      untold: questions that cannot be asked, in words.
    """

    model: Model
    training: LocalTraining
    clients: Sequence[recorded_clients.Client]
    attributes: Sequence[Sequence[str]]
    games: Sequence[Game | str]
    questions: Sequence[str]
    untold: Sequence[str]

    @property
    def run(self) -> Run:
        """What further questions are asked of; of global models alone nobody is attacked."""
        alone = [client for client in self.clients if client.name != recorded_clients.EVERYONE]
        return Run(self.model, self.training, alone, self.attributes)

    @property
    def answers(self) -> int:
        """How many there will be."""
        games = sum(isinstance(game, Game) for game in self.games)
        return len(self.clients) * len(self.attributes) + games + len(self.questions)


class Told(NamedTuple):
    """What was found.

    Attributes:
      findings: of every attribute, by clients' messages.
      sums: of every game.
      beside: of every other question, in words.
      notes: what else a reader must know.
    """

    findings: Sequence[Finding]
    sums: Sequence[Answer]
    beside: Mapping[str, notes.Told]
    notes: Sequence[str]


def audit_recorded(console: Console, arguments: Arguments) -> page.Audited:
    """Attack a recorded run.

    Raises:
      UsageError: if an option does not fit the files, the table or another one, nothing can be
        asked of the run, or `--out` holds another audit.
    """
    prepare_devices(cores=False, soon=True)
    folder, table, training = Path(arguments.out), _inputs(arguments), recipe.training(arguments)
    model = recipe.model_of(arguments, table)
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", RecordingWarning)
        run = _recording(arguments, model, table)
        asked = _asked(arguments, run, table, model, training)
    request.keep_settings(arguments, folder)
    rows: list[dict[str, Any]] = []
    answers = itertools.count(1)

    def say(text: str) -> None:
        console.print(text, style="dim", markup=False, highlight=False)

    for doubt in doubts:
        if not issubclass(doubt.category, RecordingWarning):
            warnings.warn_explicit(doubt.message, doubt.category, doubt.filename, doubt.lineno)
    said = [doubt.message for doubt in doubts if issubclass(doubt.category, RecordingWarning)]
    of_files = [f"Of these files: {options.of_files(str(each))}." for each in said]
    of_files = list(dict.fromkeys(of_files))
    for text in of_files:
        say(text)

    def keep(*added: dict[str, Any]) -> None:
        rows.extend(added)
        write_whole(folder / "results.csv", _lines(rows))
        (who, *others), (row, *_) = [each["client"] for each in added], added
        what = row["attribute"] or row["question"]
        states = sentences.listed(dict.fromkeys(each["status"] for each in added))
        of = f"{next(answers)} of {asked.answers}"
        say(f"{of}: {'all clients' if others else who}, {what}: {states}")

    told = _told(asked, keep, say)
    layout = str(run.layout).replace("\n", "; ")
    arrays = f"Of the files, these arrays were taken for these parameters of the model: {layout}."
    told = told._replace(notes=[arrays, *of_files, *told.notes])
    return page.Audited(_page(arguments, asked, told, alone=not run.clients))


def _asked(
    arguments: Arguments, run: Recording, table: Inputs, model: Model, training: LocalTraining
) -> Asked:
    """What does not fit is said before anything is computed."""
    participation = read_participation(arguments.participation)
    if participation is not None:
        participation = summed_participation(run, participation, bool(arguments.after))
        run.aggregates(participation)
        check_participants(participation, table)
    chosen = options.names("client", arguments.client or "")
    try:
        clients = recorded_clients.clients_of(run, table, chosen, participation)
    except ValueError as error:  # nobody may have been named by --client
        who = "--client " if chosen else "the recorded client "
        raise UsageError(re.sub("^client=", who, str(error))) from None
    attributes = [a.split("+") for a in options.names("sensitive", arguments.sensitive)]
    for columns in attributes:
        _check_sensitive(arguments, columns)
        try:
            table.values_of(columns)
        except ValueError as error:
            raise UsageError(re.sub("^columns?=", "--sensitive ", str(error))) from None
        if clients and are_numbers(table, columns):
            check_asked(columns[0], training, clients)
    wanted = options.recorded_questions(arguments.questions)
    asked_of_sums = attributes if SUMS in wanted else ()
    games = [_game(run, table, columns, participation) for columns in asked_of_sums]
    left_out = f"what sums tell, which --questions {arguments.questions!r} leaves out"
    missing = next((game for game in games if isinstance(game, str)), left_out)
    if not clients and all(isinstance(game, str) for game in games):
        raise UsageError(
            f"--participation {arguments.participation!r} says that clients were absent from "
            "rounds, and asking for values of single people needs the same ones in every round. "
            f"Nor can be asked {missing}"
        )
    asked = Asked(model, training, clients, attributes, games, (), ())
    lacking = {n: q.missing(asked.run) for n, q in QUESTIONS.items() if n in wanted}
    told = tuple(f"Not asked: {name}, {what}." for name, what in lacking.items() if what)
    able = tuple(name for name, what in lacking.items() if not what)
    return asked._replace(questions=able, untold=told)


def _game(
    run: Recording,
    table: Inputs,
    columns: Sequence[str],
    participation: Participation | None,
) -> Game | str:
    """What is asked of sums: which clients hold many people with a value, of which numbers have
    none."""
    if are_numbers(table, columns):
        return f"which clients hold many people of one kind: {columns[0]!r} has numbers, no kinds"
    return game_of(run, table, columns, participation)


def _whose_records(clients: Sequence[recorded_clients.Client]) -> list[str]:
    """Which records are asked for, of global models alone."""
    aside = [len(client.others.y) for client in clients if client.name == recorded_clients.EVERYONE]
    return [
        f"{count} of the table's {len(clients[0].table.y)} records are of nobody who took part: "
        "guesses are learned from them, and they are not asked for."
        for count in aside
        if count
    ]


def _told(asked: Asked, keep: Callable[..., None], say: Callable[[str], None]) -> Told:
    """Attack every client, and the sums, and ask what else can be asked."""
    answers, sums, remarks = [], [], _whose_records(asked.clients)

    def doubted(client: str) -> None:
        say(f"{client}: its updates are not explained; they are asked why, which takes minutes")

    for columns in asked.attributes if asked.clients else ():
        read = recorded.read(asked.model, asked.clients, columns, asked.training, keep, doubted)
        answers.append(read.finding)
        remarks += [*notes.of_the_few(read.finding), *read.notes]
    for game in asked.games:
        if isinstance(game, str):
            remarks.append(f"Not asked: {game}.")
            continue
        answer = told_by_sums(asked.model, game, asked.training)
        keep(recorded.row_of_sums(game.attribute, answer.value, answer.majority))
        sums.append(answer)
        remarks += [answer.told.note] if asked.clients else []  # else it leads
    beside = {}
    for name in asked.questions:
        try:
            rows, beside[name] = QUESTIONS[name].ask(asked.run)
        except ValueError as error:  # what was read before stays, and the page is written
            remarks.append(f"Not answered: {name} ({error}).")
            continue
        keep(*rows)
    remarks += [*(told.note for told in beside.values()), *asked.untold]
    return Told(answers, sums, beside, list(dict.fromkeys(remarks)))


def _recording(arguments: Arguments, model: Model, table: Inputs) -> Recording:
    """The files of a run, as messages of a model that takes the table's inputs."""
    try:
        return read_rounds(
            str(arguments.messages),
            model,
            sent=None if arguments.after else arguments.sent,
            returned=arguments.returned or None,
            after=arguments.after,
            returned_as=arguments.returned_as,
            layers=options.layers(arguments.layers),
            transposed=TRANSPOSED[arguments.transposed],
        )
    except OtherModelError as error:
        inputs = f"{len(table.names)} inputs ({', '.join(table.names)})"
        told = options.of_files(str(error))
        raise UsageError(
            f"{told}. By --csv the model takes {inputs} and tells labels up to {table.y.max()}, by "
            f"--hidden {arguments.hidden!r} that is between them. A column too many goes to "
            "--drop, or to --clients if it says whose a record is; labels count from 0; "
            "--one-output is of a model that returns one number"
        ) from None
    except ValueError as error:
        raise UsageError(options.of_files(str(error))) from None


def _check_sensitive(arguments: Arguments, columns: Sequence[str]) -> None:
    """Raise `UsageError` on a column that the model is not given."""
    others = {arguments.target, arguments.clients, *options.names("drop", arguments.drop)}
    for column in columns:
        if column in others:
            raise UsageError(
                f"--sensitive {column!r} is the target, the client or dropped; it must be among "
                "the model's inputs"
            )


def _page(arguments: Arguments, asked: Asked, told: Told, alone: bool) -> page.Page:
    """Of global models `alone`, or of clients' too."""
    clients, leaks = asked.clients, any(answer.told.leaks for answer in told.sums)
    if clients:
        rounds = max(len(client.messages) for client in clients)
        source = (sentences.of_global_models if alone else sentences.of_clients)(rounds)
        who, has = ", ".join(client.name for client in clients), source.has
        beside = [QUESTIONS[name].about for name, said in told.beside.items() if said.leaks]
        beside += [sentences.BY_SUMS] if leaks else []
        answer = sentences.answer(told.findings, (), source, beside)
    else:
        games = [game for game in asked.games if isinstance(game, Game)]
        who = f"those that {arguments.participation} names"
        has = sentences.seen_in_sums(len(games[0].aggregates.rounds))
        answer = sentences.answer_of_sums([each.told.note for each in told.sums], leaks)
    as_models = arguments.returned_as == Arguments.returned_as
    held = {} if as_models else {"what came back holds": arguments.returned_as}
    return page.Page(
        f"What updates give away: {arguments.messages}",
        answer,
        request.asked(arguments, asked.training) | {"clients": who} | held,
        has,
        told.findings,
        "people",
        len(clients) > 1,
        NEW_PEOPLE_OF_ALL if alone else NEW_PEOPLE,
        told.notes,
        "results.csv",
        request.command(arguments),
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
