"""What a recorded run gives away: files of models and a table of the records behind them."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Decoding,
    Diagnosis,
    Knowledge,
    Reconstruction,
    Status,
    UnknownColumn,
    diagnose,
    impute,
)
from attacks.diagnosis.advice import IN_ORDER
from attacks.fit import STATES, FitWarning
from benchmarks.audits.coding import Coding, other_coding
from benchmarks.audits.decoders import as_told, decode
from benchmarks.audits.findings import Finding, level_of_clients
from benchmarks.audits.recorded_clients import EVERYONE, Client
from benchmarks.measurements.attributes.uncommon import NULL_STATUS, UNCOMMON, uncommon
from jaxfl import LocalTraining, Model
from jaxfl.datasets import Inputs
from jaxfl.models import log_probabilities

SUMS = "sums over clients"
WHO_TOOK_PART = ". Were the same clients there in every round? --participation says who took part"
OUTSIDE = (
    "are not what the recipe leaves of this answer, and asked again the recipe explains them. So "
    "it is with one right client in a hundred, and with more that draw the same batches in every "
    "round."
)
OF_ALL = ". Batches are those of all clients together: tell the size of one client's"
OTHER_RATE = 0.02
"""Share by which a rate that was read differs from the one told, from which on the page says it."""
NEARLY_ALL = 0.99
"""Share of the updates' energy by which steps of the other sign explain them."""
OPTION_OF = {
    "several steps": "--batch-size and --epochs",
    "epochs": "--epochs",
    "batches": "--batch-size",
    "momentum": "--momentum",
    IN_ORDER: "--unshuffled",
    "weight decay": "--weight-decay",
    "class weights": "--class-weights",
    "label smoothing": "--label-smoothing",
    "another activation": "--activation",
    "Adam": "--optimizer adam",
    "learning rate": "--learning-rate",
    "rate and weight decay": "--learning-rate and --weight-decay",
    "noise": "--upload-noise",
}
"""Of causes that `attacks.diagnose` names."""
COLUMNS = ("method", "value", "status", "majority", "imputation", "null", "test_accuracy")
"""Of each client's outcome, in the file beside the page."""


def row_of_sums(attribute: str, value: float | None, majority: float) -> dict[str, Any]:
    """What sums tell of an attribute, in the file beside the page: of how many clients, not of how
    many records."""
    none = dict.fromkeys(COLUMNS)
    status = "diverged" if value is None else "ok"
    told = {"method": "gibbs", "value": value, "status": status, "majority": majority}
    return {"client": SUMS, "attribute": attribute} | none | told


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
    for place, client in enumerate(clients):
        recipe = client.recipe(training)
        row, told = _row(model, client, clients[place - 1], columns, recipe)
        rows.append(row)
        notes += _side_by_side(client, training, recipe) if "gls" in row["method"] else []
        kept = {name: row[name] for name in COLUMNS}
        done({"client": client.name, "attribute": attribute} | kept)
        if row["status"] not in ("ok", "unchecked"):
            doubted(client.name)
        notes += told()
    positions, values, _ = clients[0].table.values_of(columns)
    notes += _copies(attribute, clients, positions)
    labels = np.concatenate([client.records.y for client in clients])
    usual = float(np.bincount(labels).max() / len(labels))
    named = tuple(map(_value, values))
    return Read(Finding(attribute, named, (level_of_clients(rows),), usual), notes)


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
        recoded = _renamed(client.name, columns, values, coding)
        truth = truth if coding is None else coding.truth

    def notes() -> list[str]:
        if status == "ok":
            steps = as_told(method, model, client.messages, known, training)
            told = _as_others(client.name, method, answer, training, steps)
            return [*recoded, *told, *_short(client.name, answer)]
        if status == "unchecked":
            return [f"No answer to the updates of {client.name} can be checked: {answer.reason}."]
        turned = _turned(client.name, answer)
        if turned:
            return turned
        return [_why(client.name, diagnose(model, client.messages, known, training))]

    last = jax.tree.map(lambda a: a[-1], client.messages.returned)
    return {
        "client": client.name,
        "method": method,
        "value": _right(answer, truth) if status != "diverged" else None,
        "status": status,
        "majority": float(np.bincount(truth).max() / len(truth)),
        "imputation": _imputed(known, client.others, in_table),
        "null": _right(null, truth) if null and null.status != Status.FAILED else None,
        "test_accuracy": _accuracy(model, last, client.others),
        "detail": _detail(answer, null, truth, len(values)),
    }, notes


def _side_by_side(client: Client, told: LocalTraining, taken: LocalTraining) -> list[str]:
    """That batches of several clients are taken for one's."""
    if taken.batch_size in (None, told.batch_size):
        return []
    return [
        f"Steps of {client.together} clients side by side, in batches of {told.batch_size}, are "
        f"taken for those of one client in batches of {taken.batch_size}. That is not exact: "
        "larger clients take more steps, and their records count more."
        + ("" if told.shuffle else " Nor are these batches cut in the order of the table.")
    ]


def _why(client: str, diagnosis: Diagnosis) -> str:
    """What a client's updates say that are not explained."""
    if diagnosis.findings and diagnosis.findings[0].cause == "as told":
        more = "".join(f" {f.cause}: {f.evidence}." for f in diagnosis.findings[1:])
        return f"Updates of {client} {OUTSIDE}{more}"
    hint = f"{OF_ALL}{WHO_TOOK_PART}" if client == EVERYONE else ""
    return f"Updates of {client} are not explained. They say: {_asked_why(diagnosis)}{hint}"


def _asked_why(diagnosis: Diagnosis) -> str:
    """What updates say of their client, and the option that tells of the first cause."""
    cause = diagnosis.findings[0].cause if diagnosis.findings else ""
    if cause not in OPTION_OF or "TensorFloat" in diagnosis.findings[0].evidence:
        return "; ".join(str(diagnosis).splitlines())
    findings = "; ".join(f"{f.cause}: {f.evidence}" for f in diagnosis.findings)
    return f"{findings}. Is that so? Tell it by {OPTION_OF[cause]}, and ask again"


def _short(client: str, answer: Reconstruction) -> list[str]:
    """That some of an answer's values are wrong, as its fit says."""
    left, allowed = 1 - float(answer.fit.explained), 1 - float(answer.fit.allowed)
    if not left > allowed:
        return []
    return [
        f"Updates of {client} contradict nothing that was told, but the answer leaves {left:.2g} "
        f"of them unexplained, where a right one leaves {allowed:.2g} at most: some of its values "
        "are wrong."
    ]


def _turned(client: str, answer: Reconstruction) -> list[str]:
    """That a client's updates have the other sign, where its answer explains them so."""
    rate = answer.learning_rate if isinstance(answer, Decoding) else jnp.zeros(())
    if rate.ndim or not rate < 0 or not answer.fit.explained > NEARLY_ALL:
        return []
    return [
        f"Updates of {client} are explained by steps against its gradients, at rate {rate:.3g}: "
        "they have the other sign. Do the files hold received - returned (--returned-as gradients) "
        "or returned - received (changes)? Or was what came back taken for what was sent?"
    ]


def _renamed(
    client: str, columns: Sequence[str], values: np.ndarray, coding: Coding | None
) -> list[str]:
    """That the table's values are not those of training."""
    if coding is None:
        return []
    pairs = [
        f"{_value(values[place])} was trained as {_value(values[other])}"
        for place, other in enumerate(coding.renamed)
        if place != other
    ]
    return [
        f"The table has other values of {' + '.join(columns)!r} than {client} trained on: "
        f"{', '.join(pairs)}. They are counted as in training; is the column coded the other way "
        "round?"
    ]


def _value(value: np.ndarray) -> str:
    return " ".join(f"{number:g}" for number in value)


def _copies(attribute: str, clients: Sequence[Client], positions: np.ndarray) -> list[str]:
    """How many people no update tells apart."""
    alike = 0
    for client in clients:
        rest = np.delete(client.records.x, positions, 1), client.records.y[:, None]
        _, counts = np.unique(np.concatenate(rest, 1), axis=0, return_counts=True)
        alike += int(counts[counts > 1].sum())
    if not alike:
        return []
    people = sum(len(client.records.y) for client in clients)
    among = "them" if clients[0].name == EVERYONE else "the same client"
    return [
        f"{alike} of {people} people are like another one of {among} in the answer and in all "
        f"columns but {attribute!r}: of such people updates tell how many have which value, not "
        "who."
    ]


def _as_others(
    client: str, method: str, answer: Reconstruction, training: LocalTraining, steps_as_told: bool
) -> list[str]:
    """In what a client whose updates are explained trains otherwise than was told."""
    notes = []
    if not steps_as_told and method == "gls_unrolled":
        notes.append(
            f"{client} cuts its batches from its records as the table has them (--unshuffled); "
            "they hide less than drawn ones do."
        )
    elif not steps_as_told:
        optimizer = "Adam" if method == "decode_adam" else "SGD"
        notes.append(f"{client} takes one step of {optimizer} on all of its records, not as told.")
    if isinstance(answer, Decoding) and answer.learning_rate.ndim:
        notes.append(
            f"{client} takes one step of another size in every round: its updates are clipped, or "
            "its learning rate follows a schedule."
        )
    elif isinstance(answer, Decoding) and not notes:
        notes += _other_rate(client, float(answer.learning_rate), training)
    return notes


def _other_rate(client: str, rate: float, training: LocalTraining) -> list[str]:
    """That a client's steps are of another size than was told."""
    told = float(training.learning_rate)
    if abs(rate / told - 1) < OTHER_RATE:
        return []
    return [f"{client} takes steps at rate {rate:.3g}, not {told:g} as told."]


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


def _accuracy(model: Model, params: Any, others: Inputs) -> float:
    """Accuracy of a client's last model, on records that are not the client's own."""
    if not len(others.y):
        return math.nan
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params)
    named = np.asarray(log_probabilities(model.apply(params, others.x))).argmax(1)
    return float((named == others.y).mean())
