"""What an audit is asked on its command line or by an `audit.yaml`, and what that means."""

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.audits import plan
from benchmarks.audits.questions import QUESTIONS
from benchmarks.harness.command_line import UsageError, check_options, option
from jaxfl.domains import Count, Index, NotNegativeFloat, PositiveFloat, Share
from jaxfl.models.architectures import Activation

AS_NUMBERS = ("clients", "hidden", "seeds", "epsilon")
"""Texts that a file may hold as numbers."""
ONLY_SIMULATED = ("records", "rounds", "epsilon", "seeds")
ONLY_RECORDED = (
    "client",
    "sent",
    "returned",
    "after",
    "returned_as",
    "layers",
    "transposed",
    "participation",
    "activation",
    "dropout",
    "one_output",
    "label_smoothing",
    "class_weights",
    "upload_noise",
    "unshuffled",
)
OF_RECORDED = ("attribute", "membership", "property", "source", "linkability")
"""Questions that are asked of recorded runs."""
DEFAULT_CLIENTS = "10"
AS_OPTIONS = (
    "path",
    "target",
    "sensitive",
    "drop",
    "drop_last",
    "batch_size",
    "client",
    "clients",
    "records",
    "decimal",
    "separator",
    "text_encoding",
)
OPTION_OF = {"client": "clients", "path": "csv"}
"""Arguments that errors of reading a table and of its federation name, some of which are options
by another name."""
READING = ("text_encoding", "decimal", "separator")
"""Options of `jaxfl.datasets.read_csv`, by the same names."""


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
    decimal: Literal[".", ","] = "."
    """What stands before a number's decimals in the table."""
    separator: str | None = None
    """What stands between the table's cells; by default that is guessed."""
    text_encoding: str = "utf-8"
    """Of the table, as latin-1."""
    clients: str = DEFAULT_CLIENTS
    """How many clients there are, or the column that says whose a record is. For --messages: that
    column ("" if all are one client's)."""
    records: Index = 0
    """Records of each simulated client; 0: as many as there are, at most 200."""
    hidden: str = "64"
    """Widths of the hidden layers, comma-separated; "" for none."""
    activation: Activation = "relu"
    """After every hidden layer."""
    dropout: Share = 0.0
    """Share of each hidden layer's numbers that training sets to 0."""
    one_output: bool = False
    """The model returns one number, the logit of label 1 (BCEWithLogitsLoss)."""
    label_smoothing: Share = 0.0
    """Share of each loss that is towards all labels alike."""
    class_weights: str | None = None
    """Weights of the labels 0, 1, ... in the loss, comma-separated. Losses of a batch are divided
    by its weights' sum (CrossEntropyLoss), or by its records with --one-output (pos_weight)."""
    upload_noise: NotNegativeFloat = 0.0
    """Standard deviation of the noise that clients add to every number that they send; beside SGD.
    For Flower's LocalDpMod: sensitivity * sqrt(2 ln(1.25 / delta)) / epsilon."""
    rounds: Count = 20
    """Communication rounds that are simulated, and seen."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimiser of the clients, begun anew in every round."""
    momentum: NotNegativeFloat = 0.0
    """Momentum of SGD, below 1."""
    weight_decay: NotNegativeFloat = 0.0
    """Weight decay of SGD, as PyTorch has it; for --messages of Adam too, as AdamW has it."""
    proximal: NotNegativeFloat = 0.0
    """The mu of FedProx, beside SGD."""
    learning_rate: PositiveFloat = 0.1
    """Learning rate of the clients' optimiser."""
    batch_size: Index = 32
    """Records per local step; 0 for all."""
    drop_last: bool = False
    """Leave out the last batch of a pass if it is not full, as data loaders of PyTorch can."""
    unshuffled: bool = False
    """Batches are cut from a client's records as the table has them, the same in every pass
    (shuffle=False, which is what data loaders of PyTorch do unless asked)."""
    epochs: Count = 1
    """Local passes over the records in a round."""
    epsilon: str = "none,10,3,1"
    """Private trainings to be tried, comma-separated; "none" is tried in any case."""
    questions: str = ",".join(QUESTIONS)
    """What is asked: a sensitive column (always); whether a person is there; whole records; what
    updates show of the epsilon that is promised; which clients hold many people with the column's
    rarer value, by sums alone; whose a record is; which updates without names come from one client.
    Of recorded runs neither whole records nor epsilon."""
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
    returned_as: Literal["models", "changes", "gradients"] = "models"
    """What files of what came back hold: models; changes (returned - received); or gradients
    (received - returned, of --learning-rate 1)."""
    layers: str | None = None
    """Which layer of the files is which of the model, where that is open, comma-separated:
    fc1=Dense_0."""
    transposed: Literal["yes", "no"] | None = None
    """Whether weights are [outputs, inputs], as PyTorch's, where every weight is square."""
    participation: str | None = None
    """Table with the columns round and client: who took part, where secure aggregation leaves
    global models alone."""
    config: str | None = None
    """An audit.yaml whose settings hold where the command line says nothing else."""
    out: str = "audit"
    """Folder for the report; one that holds results of simulated clients is resumed."""


class _StrictSafeLoader(yaml.SafeLoader):
    """YAML in which no name stands twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        names = Counter(self.construct_object(key, deep=True) for key, _ in node.value)
        repeated = [name for name, count in names.items() if count > 1]
        if repeated:
            raise yaml.YAMLError(f"{repeated[0]!r} stands there more than once")
        return made


def configured(words: list[str]) -> Arguments:
    """Defaults, or what `--config` says.

    Raises:
      UsageError: if that is no file of settings.
    """
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
        told = yaml.load(Path(path).read_text(encoding="utf-8"), _StrictSafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path!r} is no YAML ({error})".replace("\n", " ")) from None
    fields = {field.name: field for field in dataclasses.fields(Arguments)}
    if not isinstance(told, dict):
        holds = "nothing" if told is None else repr(str(told)[:40])
        raise UsageError(f"--config {path!r} holds {holds}; it may hold {', '.join(fields)}")
    odd = [str(name) for name in told if name not in fields]
    if odd:
        raise UsageError(f"--config {path!r} holds {min(odd)!r}; it may hold {', '.join(fields)}")
    for name, value in told.items():
        default = fields[name].default
        kind = str if default is None else type(default)
        told[name] = value = _as_text(name, value)
        whole = kind is float and type(value) is int
        if type(value) is not kind and not whole and not (value is None and default is None):
            raise UsageError(f"--config {path!r} has {name}={value!r}, which is no {kind.__name__}")
    return Arguments(**told)


def _as_text(name: str, value: Any) -> Any:
    """What YAML reads as a number or a truth value, as the text of an option."""
    if name in AS_NUMBERS and type(value) in (int, float):  # as `clients: 3`
        return str(value)
    if name == "transposed" and type(value) is bool:  # as `transposed: yes`
        return "yes" if value else "no"
    return value


def check(arguments: Arguments) -> None:
    """Raise `UsageError` on what is missing, does not exist, or has no meaning here."""
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
            runs = (
                "recorded runs (--messages)"
                if arguments.messages
                else "simulated runs; it goes with --messages"
            )
            raise UsageError(f"{option(field.name)} {value!r} has no meaning for {runs}")
    _check_files_of_rounds(arguments)
    if not Path(arguments.csv).is_file():
        raise UsageError(f"--csv {arguments.csv!r} is no file")
    for name in ("separator", "text_encoding"):
        if getattr(arguments, name) == "":
            raise UsageError(f"{option(name)} '' says nothing; leave it out")
    if Path(arguments.out).exists() and not Path(arguments.out).is_dir():
        raise UsageError(f"--out {arguments.out!r} is no folder")


def _check_files_of_rounds(arguments: Arguments) -> None:
    """Raise `UsageError` on an option that another one leaves without meaning."""
    if arguments.client and not arguments.returned:
        raise UsageError(
            f"--client {arguments.client!r} names clients, of which --returned '' has no files"
        )
    if arguments.returned_as != Arguments.returned_as and not arguments.returned:
        raise UsageError(
            f"--returned-as {arguments.returned_as!r} is of what came back, of which --returned '' "
            "has no files"
        )
    if arguments.after is not None and arguments.sent != Arguments.sent:
        raise UsageError(f"--sent {arguments.sent!r} and --after {arguments.after!r}: name one")


def names(argument: str, text: str) -> tuple[str, ...]:
    """Names between commas. Raises `UsageError` on one that stands twice."""
    each = tuple(filter(None, (part.strip() for part in text.split(","))))
    repeated = [name for name, count in Counter(each).items() if count > 1]
    if repeated:
        raise UsageError(f"{option(argument)} {text!r} holds {repeated[0]!r} more than once")
    return each


def is_count(text: str) -> bool:
    """Whether a text is a whole number above 0."""
    return text.isascii() and text.isdigit() and int(text) > 0


def layers(text: str | None) -> dict[str, str]:
    """The model's layer by the files' one."""
    if text is None:
        return {}
    pairs = [[side.strip() for side in pair.split("=")] for pair in names("layers", text)]
    if not pairs or not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise UsageError(f"--layers {text!r} must hold layers, as fc1=Dense_0,fc2=Dense_1")
    names("layers", ",".join(theirs for theirs, _ in pairs))
    return {pair[0]: pair[1] for pair in pairs}


def in_options(error: ValueError) -> UsageError:
    """An error of reading the table, with options for the arguments that it names."""

    def named(match: re.Match[str]) -> str:
        return f"{option(OPTION_OF.get(match[1], match[1]))} "

    told = re.sub(rf"\b({'|'.join(AS_OPTIONS)})=", named, str(error))
    mend = "leave the column out, clean the file or declare the column categorical"
    told = told.replace("more than max_categories=", "more than ")
    return UsageError(told.replace(mend, "leave the column out (--drop) or clean the file"))


def of_files(text: str) -> str:
    """What was said of a recording's files, with options for the arguments that it names."""
    arguments = "|".join(ONLY_RECORDED)
    told = re.sub(rf"\b({arguments})=", lambda match: f"{option(match[1])} ", text)
    told = told.replace("--transposed None leaves open", "It is open").replace(" ,", ",")
    told = told.replace("--transposed True", "--transposed yes")
    told = told.replace("--transposed False", "--transposed no")
    told = told.replace("layers names", "--layers names")
    told = told.replace("say True (PyTorch) or False", "say --transposed yes (PyTorch) or no")
    return told.replace("--layers {...}", "--layers").rstrip()


def questions(text: str) -> tuple[str, ...]:
    """Names of the tables that are measured."""
    asked = names("questions", text)
    if set(asked) - set(QUESTIONS) or QUESTIONS[0] not in asked:
        raise UsageError(
            f"--questions {text!r} must hold {QUESTIONS[0]}, and may hold "
            f"{', '.join(QUESTIONS[1:])}"
        )
    return asked


def recorded_questions(text: str) -> tuple[str, ...]:
    """Names of what is asked of a recorded run; by default all that can be."""
    asked = questions(text)
    if text == Arguments.questions:
        return OF_RECORDED
    simulated = [name for name in asked if name not in OF_RECORDED]
    if simulated:
        raise UsageError(
            f"--questions {text!r} holds {simulated[0]}, which is asked of simulated clients; of "
            f"recorded runs {', '.join(OF_RECORDED)} are"
        )
    return asked


def table(arguments: Arguments) -> plan.Asked:
    """The table that is asked about."""
    reading = {name: getattr(arguments, name) for name in READING}
    return plan.Asked(
        arguments.csv,
        arguments.target,
        names("sensitive", arguments.sensitive),
        names("drop", arguments.drop),
        "" if arguments.clients.isdecimal() else arguments.clients,
        tuple((name, v) for name, v in reading.items() if v != getattr(Arguments, name)),
    )
