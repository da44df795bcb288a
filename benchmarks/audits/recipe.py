"""The model, the recipe and the federation that an audit is told."""

import re
from typing import Any

from benchmarks.audits import plan
from benchmarks.audits.optimizers import adam
from benchmarks.audits.options import Arguments, is_count, names
from benchmarks.harness.command_line import UsageError
from jaxfl import ClassWeights, LocalTraining, Model, Plugin, Upload, label_smoothing, mlp, sgd
from jaxfl.datasets import Inputs

UNCLIPPED = 1e6
"""A norm that no update has, in units of which the noise on what is sent is told."""


def model_of(arguments: Arguments, table: Inputs) -> Model:
    """What the clients of a recorded run trained.

    Raises:
      UsageError: if options say of labels what the table's are not.
    """
    most = int(table.y.max())
    if arguments.one_output and most > 1:
        raise UsageError(f"--one-output tells 0 from 1; --csv has labels up to {most}")
    labels = 2 if arguments.one_output else most + 1
    weights = class_weights(arguments.class_weights)
    if weights and arguments.label_smoothing:
        raise UsageError(
            "--label-smoothing and --class-weights do not go together: PyTorch weighs each part of "
            "a smoothed label by its own class, which no option says"
        )
    if weights and len(weights) != labels:
        raise UsageError(
            f"--class-weights {arguments.class_weights!r} has {len(weights)} entries; --csv has "
            f"labels up to {most}"
        )
    hidden = widths(arguments.hidden)
    for name in ("activation", "dropout"):
        if not hidden and getattr(arguments, name) != getattr(Arguments, name):
            raise UsageError(
                f"--{name} {getattr(arguments, name)} is of hidden layers; by --hidden "
                f"{arguments.hidden!r} there are none"
            )
    model = mlp(
        len(table.names),
        hidden,
        1 if arguments.one_output else labels,
        activation=arguments.activation,
        dropout=arguments.dropout,
    )
    if arguments.label_smoothing:
        model = label_smoothing(model, arguments.label_smoothing)
    # PyTorch averages the weighted losses of one logit over records (`pos_weight`).
    return ClassWeights(weights).weighted(model) if weights and arguments.one_output else model


def widths(text: str) -> tuple[int, ...]:
    """Widths of hidden layers."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(is_count(part) for part in parts):
        raise UsageError(f"--hidden {text!r} must hold widths, as 64,64")
    return tuple(map(int, parts))


def training(arguments: Arguments) -> LocalTraining:
    """What a client does in a round."""
    batch = arguments.batch_size or None
    try:
        optimizer = sgd(arguments.momentum, arguments.weight_decay, arguments.proximal)
    except ValueError as error:
        raise UsageError(re.sub(r"^momentum=", "--momentum ", str(error))) from None
    if arguments.optimizer == "adam":
        optimizer = _adam(arguments)
    if arguments.drop_last and batch is None:
        raise UsageError("--drop-last with --batch-size 0: there is one batch of all records")
    if arguments.unshuffled and batch is None:
        raise UsageError("--unshuffled with --batch-size 0: there is one batch of all records")
    if arguments.unshuffled and arguments.upload_noise:
        raise UsageError(
            f"--unshuffled with --upload-noise {arguments.upload_noise:g}: no attack reads both"
        )
    return LocalTraining(
        arguments.learning_rate,
        arguments.epochs,
        batch,
        optimizer,
        plugins=_plugins(arguments),
        drop_last=arguments.drop_last,
        shuffle=not arguments.unshuffled,
    )


def _plugins(arguments: Arguments) -> tuple[Plugin, ...]:
    """What clients do beside their steps."""
    weights = class_weights(arguments.class_weights)
    plugins: list[Plugin] = [ClassWeights(weights)] if weights and not arguments.one_output else []
    if arguments.upload_noise:
        if arguments.optimizer != "sgd":
            raise UsageError(
                f"--upload-noise {arguments.upload_noise:g} is of clients with --optimizer sgd"
            )
        plugins.append(Upload(UNCLIPPED, arguments.upload_noise / UNCLIPPED))
    return tuple(plugins)


def class_weights(text: str | None) -> tuple[float, ...]:
    """Weights of labels; none if nothing is said of them."""
    if text is None:
        return ()
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = (0.0,)
    if not all(0 < weight < float("inf") for weight in weights):
        raise UsageError(
            f"--class-weights {text!r} must hold a positive number for every label, as 1,3"
        )
    return weights


def _adam(arguments: Arguments) -> Any:
    """Adam, or a recorded run's AdamW."""
    if arguments.momentum or arguments.proximal:
        raise UsageError("--momentum and --proximal are SGD's; --optimizer adam has neither")
    if arguments.weight_decay and not arguments.messages:
        raise UsageError(
            f"--weight-decay {arguments.weight_decay:g} with --optimizer adam: AdamW is read of "
            "recorded runs alone (--messages)"
        )
    return adam(arguments.weight_decay)


def federation(arguments: Arguments) -> plan.Federation:
    """How simulated clients train."""
    named = not arguments.clients.isdecimal()
    if not arguments.clients or (not named and not is_count(arguments.clients)):
        raise UsageError(f"--clients {arguments.clients!r} must be a number of clients or a column")
    return plan.Federation(
        0 if named else int(arguments.clients),
        arguments.records,
        widths(arguments.hidden),
        arguments.rounds,
        training(arguments),
        _epsilons(arguments.epsilon),
    )


def _epsilons(text: str) -> tuple[float, ...]:
    try:
        values = [float(part) for part in names("epsilon", text) if part != "none"]
    except ValueError:
        values = [-1.0]
    if not all(0 < value < float("inf") for value in values):
        raise UsageError(f"--epsilon {text!r} must hold positive numbers, as none,10,1")
    return tuple(sorted(set(values), reverse=True))
