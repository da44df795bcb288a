"""What an audit was asked: kept in a folder, by which the audit is made again, and in words."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import yaml

from benchmarks.audits.options import Arguments
from benchmarks.harness.command_line import UsageError
from benchmarks.harness.store import write_whole
from jaxfl import LocalTraining

PROG = "python -m benchmarks.audit"
NUMBERS = ("momentum", "weight_decay", "proximal", "upload_noise")
"""Options that say more of how clients train, and send."""
ASIDE = ("messages", "csv")
"""What tells one audit from another, and is named first."""


def settings_in(folder: Path) -> dict[str, Any]:
    """What an earlier audit left in a folder; nothing if that cannot be read."""
    try:
        told = yaml.safe_load((folder / "audit.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return {}
    return told if isinstance(told, dict) else {}


def keep_settings(arguments: Arguments, folder: Path) -> None:
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
    earlier = settings_in(folder)
    ordered = {name: chosen[name] for name in ASIDE} | chosen | {"out": earlier.get("out")}
    before = dataclasses.asdict(Arguments()) | earlier  # which may know fewer options
    other = [name for name, value in ordered.items() if before[name] != value]
    of_recording = arguments.messages or earlier.get("messages")
    if other and of_recording and (folder / "results.csv").is_file():
        raise UsageError(
            f"--out {arguments.out!r} holds another audit, with {other[0]}="
            f"{before[other[0]]!r}; choose another folder, so that its results are kept"
        )
    write_whole(folder / "audit.yaml", yaml.safe_dump(chosen, sort_keys=False))


def asked(arguments: Arguments, training: LocalTraining) -> dict[str, Any]:
    """What was asked of which federation, line by line."""
    batch = f"batches of {training.batch_size}" if training.batch_size else "all records at once"
    batch += ", the last one left out if it is not full" if training.drop_last else ""
    batch += "" if training.shuffle else ", in the order of the table"
    extras = [(n.replace("_", " "), getattr(arguments, n)) for n in NUMBERS]
    more = "".join(f", {name} {value:g}" for name, value in extras if value)
    return {
        "table": arguments.csv,
        "the model predicts": arguments.target,
        "should stay secret": arguments.sensitive,
        "model": _model(arguments),
        "clients train by": f"{arguments.optimizer} at rate {arguments.learning_rate:g}{more}, "
        f"{batch}, "
        f"{arguments.epochs} pass{'es' if arguments.epochs > 1 else ''} a round",
    }


def _model(arguments: Arguments) -> str:
    """What the clients train, and by which loss."""
    told = [f"perceptron, hidden units: {arguments.hidden or 'none (logistic regression)'}"]
    if arguments.activation != Arguments.activation:
        told.append(f"with {arguments.activation} in place of {Arguments.activation}")
    if arguments.dropout:
        told.append(f"dropout {arguments.dropout:g}")
    if arguments.one_output:
        told.append("one output for both labels")
    if arguments.label_smoothing:
        told.append(f"labels smoothed by {arguments.label_smoothing:g}")
    if arguments.class_weights:
        told.append(f"labels weigh {arguments.class_weights.replace(',', ' : ')}")
    return ", ".join(told)


def command(arguments: Arguments) -> str:
    """What makes the same audit again."""
    return shlex.join([*PROG.split(), "--config", f"{arguments.out}/audit.yaml"])
