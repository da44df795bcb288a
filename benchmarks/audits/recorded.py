"""What a recorded run gives away: files of models and a table of the records behind them."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Knowledge,
    Reconstruction,
    Status,
    UnknownColumn,
    diagnose,
    impute,
)
from attacks.fit import STATES, FitWarning
from benchmarks.audits import recorded_notes
from benchmarks.audits.coding import other_coding
from benchmarks.audits.decoders import as_told, decode
from benchmarks.audits.findings import Finding, level_of_clients
from benchmarks.audits.recorded_clients import Client
from benchmarks.audits.recorded_numbers import (
    are_numbers,
    notes_of_numbers,
    row_of_numbers,
    within,
)
from benchmarks.measurements.attributes.uncommon import NULL_STATUS, UNCOMMON, uncommon
from jaxfl import LocalTraining, Model
from jaxfl.datasets import Inputs
from jaxfl.models import log_probabilities

SUMS = "sums over clients"
OF_BATCHES = ("gls", "gls_unrolled", "decode_numbers")
"""Methods that are told of batches."""
COLUMNS = ("method", "value", "status", "majority", "imputation", "null", "test_accuracy")
"""Of each client's outcome, in the file beside the page."""


def row_of_sums(attribute: str, value: float | None, majority: float) -> dict[str, Any]:
    """What sums tell of an attribute, in the file beside the page: of how many clients, not of how
    many records."""
    none = dict.fromkeys(COLUMNS)
    status = "diverged" if value is None else "ok"
    told = {"method": "gibbs", "value": value, "status": status, "majority": majority}
    return {"client": SUMS, "question": "property", "attribute": attribute} | none | told


class Read(NamedTuple):
    """What is read of columns that stand for one attribute.

    Attributes:
      finding: of all clients.
      notes: what the messages say where they are not of the stated recipe.
    """

    finding: Finding
    notes: list[str]


def read(
    model: Model,
    clients: Sequence[Client],
    columns: Sequence[str],
    training: LocalTraining,
    done: Callable[[dict[str, Any]], None] = lambda row: None,
    doubted: Callable[[str], None] = lambda client: None,
) -> Read:
    """Attack every client. Each one's row is given away as soon as it is there, and its name before
    it is asked, for minutes, why its updates are not explained."""
    rows, notes, attribute = [], [], " + ".join(columns)
    numbers = are_numbers(clients[0].table, columns)
    for place, client in enumerate(clients):
        recipe = client.recipe(training)
        ask = row_of_numbers if numbers else _row
        row, told = ask(model, client, clients[place - 1], columns, recipe)
        row["test_accuracy"] = _accuracy(model, client)
        rows.append(row)
        if row["method"] in OF_BATCHES:
            notes += recorded_notes.side_by_side(client, training, recipe)
        kept = {name: row[name] for name in COLUMNS}
        of = {"client": client.name, "question": "attribute", "attribute": attribute}
        done(of | kept)
        if row["status"] not in ("ok", "unchecked"):
            doubted(client.name)
        notes += told()
    labels = np.concatenate([client.records.y for client in clients])
    usual = float(np.bincount(labels).max() / len(labels))
    finding = Finding(attribute, (), (level_of_clients(rows),), usual)
    positions, values, _ = clients[0].table.values_of(columns)
    notes += recorded_notes.copies(attribute, clients, positions)
    if numbers:
        near = within(clients[0].table, attribute)
        notes = [*notes_of_numbers(attribute, near, rows), *notes]
        return Read(dataclasses.replace(finding, within=near), notes)
    named = tuple(map(recorded_notes.value, values))
    return Read(dataclasses.replace(finding, values=named), notes)


def _row(
    model: Model,
    client: Client,
    other: Client,
    columns: Sequence[str],
    training: LocalTraining,
) -> tuple[dict[str, Any], Callable[[], list[str]]]:
    """One client's outcome, as a row of the sweep's results, and what else its messages say, which
    may take minutes."""
    records = client.records
    positions, values, _ = client.table.values_of(columns)
    truth = in_table = (records.x[:, None, positions] == values).all(2).argmax(1)
    x = records.x.copy()
    x[:, positions] = np.nan
    column = UnknownColumn(jnp.asarray(positions), jnp.asarray(values))
    known = Knowledge(jnp.asarray(x), jnp.asarray(records.y), (column,))
    method, answer = decode(model, client.messages, known, training)
    null = decode(model, other.messages, known, training)[1] if other is not client else None
    status, recoded = STATES[Status(int(answer.status))], []
    if status == "ok":
        coding = other_coding(np.asarray(answer.values[0]), truth, len(values))
        recoded = recorded_notes.renamed(client.name, columns, values, coding)
        truth = truth if coding is None else coding.truth

    def notes() -> list[str]:
        if status == "ok":
            steps = as_told(method, model, client.messages, known, training)
            told = recorded_notes.as_others(client.name, method, answer, training, steps)
            return [*recoded, *told, *recorded_notes.short(client.name, answer.fit)]
        if status == "unchecked":
            return [recorded_notes.unchecked(client.name, answer.reason)]
        turned = recorded_notes.turned(client.name, answer)
        if turned:
            return turned
        return [recorded_notes.why(client.name, diagnose(model, client.messages, known, training))]

    return {
        "client": client.name,
        "method": method,
        "value": _right(answer, truth) if status != "diverged" else None,
        "status": status,
        "majority": float(np.bincount(truth).max() / len(truth)),
        "imputation": _imputed(known, client.others, in_table),
        "null": _right(null, truth) if null and null.status != Status.FAILED else None,
        "detail": _detail(answer, null, truth, len(values)),
    }, notes


def _right(answer: Reconstruction, truth: np.ndarray) -> float:
    return float((np.asarray(answer.values[0]) == truth).mean())


def _detail(
    answer: Reconstruction, null: Reconstruction | None, truth: np.ndarray, candidates: int
) -> dict[str, Any]:
    counts = uncommon(np.asarray(answer.values[0])[:, None], truth[:, None], candidates)
    told = {NULL_STATUS: STATES[Status(int(null.status))]} if null else {}
    of_values = dict(zip(UNCOMMON, map(int, counts), strict=True))
    return {"scored_records": len(truth)} | told | of_values


def _imputed(known: Knowledge, others: Inputs, truth: np.ndarray) -> float | None:
    if not len(others.y):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # one table has one coding
        (values,) = impute(known, others.x, others.y)
    return float((values == truth).mean())


def _accuracy(model: Model, client: Client) -> float:
    """Accuracy of a client's last model, on records that are not the client's own."""
    others, last = client.others, jax.tree.map(lambda a: a[-1], client.messages.returned)
    return accuracy(model, last, others) if len(others.y) else math.nan


def accuracy(model: Model, params: Any, records: Inputs) -> float:
    """Share of records whose label a model names."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params)
    named = np.asarray(log_probabilities(model.apply(params, records.x))).argmax(1)
    return float((named == records.y).mean())
