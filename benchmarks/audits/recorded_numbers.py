"""Numbers of a recorded client's records: of a column that has more values than can be asked for
one by one, its bounds are known."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    DecodedNumbers,
    FitWarning,
    Knowledge,
    NumberDecoding,
    Status,
    UnknownColumn,
    decode_numbers,
    diagnose,
)
from attacks.fit import STATES
from benchmarks.audits import recorded_notes
from benchmarks.audits.optimizers import is_adam
from benchmarks.audits.recorded_clients import Client
from benchmarks.harness.command_line import UsageError
from benchmarks.measurements.attributes.uncommon import NULL_STATUS
from benchmarks.measurements.numbers import TENTH, commonest, imputed
from jaxfl import LocalTraining, Messages, Model
from jaxfl.datasets import Inputs

MOST_VALUES = 100
"""Values of a column that are asked for one by one; of more, numbers are, between bounds."""
MOST_RECORDS = 2_000
"""Of a client whose numbers are asked for: the time grows with their cube."""


def are_numbers(table: Inputs, columns: Sequence[str]) -> bool:
    """Whether columns that stand for one attribute are one of many values."""
    return len(columns) == 1 and len(table.values_of(columns)[1]) > MOST_VALUES


def within(table: Inputs, column: str) -> float:
    """How near a number must be to be told: a tenth of the column's deviation."""
    return TENTH * float(table.x[:, table.names.index(column)].std(dtype=np.float64))


def check_asked(column: str, training: LocalTraining, clients: Sequence[Client]) -> None:
    """Raise `UsageError` on clients whose numbers cannot be asked for."""
    values = len(clients[0].table.values_of([column])[1])
    most = max(len(client.records.y) for client in clients)
    in_order = any(c.recipe(training).repeats_batches(len(c.records.y)) for c in clients)
    refused = [
        (is_adam(training.optimizer), "--optimizer adam is not among them"),
        (in_order, "--unshuffled is not among them"),
        (most > MOST_RECORDS, f"a client has {most} records, and {MOST_RECORDS} can be asked for"),
    ]
    for refuses, why in refused:
        if refuses:
            raise UsageError(
                f"--sensitive {column!r} has {values} values, so that its numbers are asked for, "
                f"which is possible of clients of SGD that draw their batches: {why}. Round the "
                f"column in training to {MOST_VALUES} values or fewer, or ask for another one"
            )


def row_of_numbers(
    model: Model,
    client: Client,
    other: Client,
    columns: Sequence[str],
    training: LocalTraining,
) -> tuple[dict[str, Any], Callable[[], list[str]]]:
    """One client's outcome in the one column that is asked for, as a row of the sweep's results
    without the model's accuracy, and what else its messages say, which may take minutes."""
    (column,) = columns
    table, records, near = client.table, client.records, within(client.table, column)
    place = table.names.index(column)
    truth, x = records.x[:, place].astype(np.float64), records.x.copy()
    x[:, place] = np.nan
    ends = jnp.asarray([[table.x[:, place].min()], [table.x[:, place].max()]])
    unknown = UnknownColumn(jnp.asarray([place]), ends)
    known = Knowledge(jnp.asarray(x), jnp.asarray(records.y), (unknown,))
    answer = _decoded(model, client.messages, known, training)
    null = _decoded(model, other.messages, known, training) if other is not client else None
    status, others = STATES[Status(int(answer.status))], client.others
    guessed = imputed(known, others.x, others.y) if len(others.y) else None

    def told(values: Any) -> float:
        return float((np.abs(np.asarray(values) - truth) <= near).mean())

    def notes() -> list[str]:
        if status == "ok":
            return recorded_notes.short(client.name, answer.fit)
        if status == "unchecked":
            return [recorded_notes.unchecked(client.name, answer.reason)]
        found = diagnose(model, client.messages, training=training)
        return [recorded_notes.why(client.name, found)]

    return {
        "client": client.name,
        "method": "decode_numbers",
        "value": told(answer.values) if status != "diverged" else None,
        "status": status,
        "majority": commonest(truth, near),
        "imputation": None if guessed is None else told(guessed),
        "null": told(null.values) if null and null.status != Status.FAILED else None,
        "detail": {
            "scored_records": len(truth),
            "off": np.abs(np.asarray(answer.values) - truth),
            "expected": float(answer.error),
            "guess_off": None if guessed is None else np.abs(guessed - truth),
            **({NULL_STATUS: STATES[Status(int(null.status))]} if null else {}),
        },
    }, notes


def _decoded(
    model: Model, messages: Messages, known: Knowledge, training: LocalTraining
) -> DecodedNumbers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the page tells it
        settings = NumberDecoding(training)
        return decode_numbers(model, messages, known, jax.random.key(0), settings=settings)


def notes_of_numbers(column: str, near: float, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How far off a column's numbers are, in words."""
    sure = [row for row in rows if row["status"] == "ok"] or rows  # as in the share of right ones
    told = [row["detail"] for row in sure if row["value"] is not None]
    if not told:
        return []
    off = np.concatenate([detail["off"] for detail in told])
    guesses = [detail["guess_off"] for detail in told if detail["guess_off"] is not None]
    least, most = (f"{end(detail['expected'] for detail in told):.3g}" for end in (min, max))
    expected = least if least == most else f"{least} to {most}"
    compared = (
        f"; of those that are guessed from the other columns, by more than "
        f"{np.median(np.concatenate(guesses)):.3g}"
        if guesses
        else ""
    )
    return [
        f"{column!r} has numbers, of which the attacker knows the bounds alone. Right is what is "
        f"off by {near:.3g} at most, a tenth of the column's standard deviation. Half of the "
        f"numbers that are read are off by more than {np.median(off):.3g}{compared}. Their root "
        f"mean square error is {np.sqrt(np.square(off).mean()):.3g}, and the attack itself expects "
        f"{expected}."
    ]
