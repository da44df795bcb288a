"""Whole records out of a client's messages, certified (beyond the papers; the algebra of dense
layers is that of Phong et al. 2018 and of SPEAR, Dimitrov et al. 2024).

Threat model: an honest-but-curious server or an eavesdropper on one client's channel. It knows the
model, the client's recipe and the schema of its table (columns, categories, ranges, scaling), and
nothing of any record: no column, no label, not even how many there are.

A record that is found is taken out of the message, so that the next is found more easily, and what
is left of the message says whether all are found.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import struct

from attacks.fit import Status
from attacks.records.acceptance import (
    CHUNK,
    MARGIN,
    Passed,
    different,
    examined,
    padded,
    passing,
    rivalled,
    rounded,
    total_of,
)
from attacks.records.by_products import scales_of, told_by
from attacks.records.evidence import Evidence, parts_of
from attacks.records.gradients import check_dense, dense_gradients, features_of, looked_at
from attacks.records.search import moves_of, occurring, search, sight_of
from attacks.records.spans import rank_of, span_of
from jaxfl import LocalTraining, Messages, Model, _check
from jaxfl.domains import Count, Key, checked
from jaxfl.schema import Schema

Array = jax.Array


@struct.dataclass
class RecordSearch:
    """Settings of `reconstruct_records`.

    Attributes:
      starts: random records from which each pass descends (static).
      sweeps: how often a pass changes every attribute of each (static).
      passes: of the search at most; those in which nothing is found count double (static).
      rounds: how many of the messages a pass looks at; what it finds is held against all (static).
    """

    starts: Count = struct.field(pytree_node=False, default=128)
    sweeps: Count = struct.field(pytree_node=False, default=8)
    passes: Count = struct.field(pytree_node=False, default=24)
    rounds: Count = struct.field(pytree_node=False, default=2)


@dataclasses.dataclass(frozen=True)
class Records:
    """What was read of a client's table.

    Attributes:
      x: records `[found, features]`, float64, as the model takes them.
      y: their labels `[found]`.
      table: the same in the table's own units, a column each `[found]`.
      copies: how often the client has each record `[found]`.
      certified: whether a record's own evidence proves it `[found]`: what it is before every layer
        that is looked at lies in the messages' spans, so does its error, its weight is right, and
        no other value of any listed attribute would pass. Columns without such proof are in `open`.
      open: per record, names of the columns of which another value would pass too.
      precision: half-width of measured columns in the table's units, three standard deviations
        `[found, measured]`.
      count: how many different records the messages hold; 0 if they do not tell.
      left: share of the messages' energy that the records found do not account for.
      allowed: the share that is the messages' own noise.
      status: OK if all records were found and certified, and explain the messages but for their
        noise; FAILED if the messages do not tell how many there are; MISFIT otherwise.
      reason: the status in words.
    """

    x: np.ndarray
    y: np.ndarray
    table: Mapping[str, np.ndarray]
    copies: np.ndarray
    certified: np.ndarray
    open: tuple[tuple[str, ...], ...]
    precision: np.ndarray
    count: int
    left: float
    allowed: float
    status: Status
    reason: str

    def __len__(self) -> int:
        return len(self.x)

    @property
    def complete(self) -> bool:
        """Whether all records were found and certified, and nothing but noise is left of the
        messages."""
        return self.status == Status.OK


@checked
def reconstruct_records(
    model: Model,
    messages: Messages,
    schema: Schema,
    training: LocalTraining,
    key: Key,
    *,
    settings: RecordSearch | None = None,
) -> Records:
    """All records of a client that takes one full-batch step a round, with their labels.

    Args:
      model: a classifier whose layers are dense and whose first one takes the records (static).
      messages: the client's. Recorded in float64 where gradients were sent (see
        `Messages.from_gradients`): a float32 model that is returned has lost some of their bits.
      schema: of its table.
      training: its recipe: plain SGD, one step a round.
      key: draws where the search begins.
      settings: see `RecordSearch`.

    Returns:
      The records. Not traceable: how many there are is a result.

    Raises:
      ValueError: if the model has other layers than dense ones, mixes records, has no classes or
        does not take the schema's records; if messages are of another model; if the recipe takes
        several steps a round or another optimiser.
    """
    settings = settings or RecordSearch()
    _check_setting(model, messages, schema, training)
    params = jax.tree.map(lambda a: np.asarray(a, np.float64), messages.received)
    gradients = dense_gradients(model, messages, float(training.learning_rate))
    return _read(_Task(model, schema, params, settings), gradients, key)


@dataclasses.dataclass(frozen=True)
class _Task:
    """What stays the same while records are taken out of the messages."""

    model: Model
    schema: Schema
    params: Any
    settings: RecordSearch


def _check_setting(
    model: Model, messages: Messages, schema: Schema, training: LocalTraining
) -> None:
    check_dense(model, messages)
    if model.classes is None:
        raise ValueError("model has classes=None; labels of a regression cannot be enumerated")
    first = features_of(model, messages)
    if first != schema.features:
        raise ValueError(
            f"schema.features={schema.features}; the model's first layer takes {first}"
        )
    _check.plain_sgd(training.optimizer)
    if training.epochs > 1 or training.batch_size is not None:
        raise ValueError(
            f"training takes epochs={training.epochs} of batch_size={training.batch_size}; "
            "reconstruct_records reads clients that take one full-batch step a round"
        )


def _read(task: _Task, gradients: list[np.ndarray], key: Array) -> Records:
    place = looked_at(len(gradients))
    stacked = np.concatenate(list(gradients[0]))
    scales = scales_of(gradients[place]), float(np.linalg.norm(stacked, 2))
    taken = opened = Passed.none(task.schema)
    rank, gap = told_by(gradients[place], scales[0])
    if not rank:
        return _answer(task, taken, 0, (1.0, 0.0), _untold(gradients, gap))
    left, budget, total, noise = gradients, task.settings.passes, 0, 0.0
    while rank and budget > 0:
        evidence = _evidence(task, left, rank, total, scales[1])
        noise = noise or _noise_energy(evidence, left)
        key, pass_key = jax.random.split(key)
        passed, total = _pass(task, evidence, pass_key, total)
        opened, more = passed.where(~passed.certified), passed.where(passed.certified)
        budget -= 1 if len(more) else 2
        if len(more):
            taken, left = taken.and_these(more), _without(task, left, more, total)
            rank = told_by(left[place], scales[0])[0] if _energy(left) > MARGIN**2 * noise else 0
    energies = _energy(left) / _energy(gradients), noise / _energy(gradients)
    found = taken.and_these(opened) if rank else taken
    answer = _answer(task, found, len(taken) + rank, energies, "")
    return answer if rank or taken.copies.sum() == total else _of_another_rate(answer, total)


def _of_another_rate(answer: Records, total: int) -> Records:
    """Weights of all records sum to 1 if the step size is the client's."""
    reason = (
        f"the records' weights sum to {answer.copies.sum() / total:.3g}, not 1: "
        "training.learning_rate is not the client's, and copies mean nothing"
    )
    return dataclasses.replace(answer, status=Status.MISFIT, reason=reason)


def _energy(gradients: list[np.ndarray]) -> float:
    return sum(float(np.square(layer).sum()) for layer in gradients)


def _untold(gradients: list[np.ndarray], gap: float) -> str:
    if not any(g.any() for g in gradients):
        return "no model came back changed: there is nothing to read"
    widths = " and ".join(str(g.shape[1]) for g in gradients[:-1])
    return (
        f"the messages do not tell how many records there are: singular values fall by no more "
        f"than {gap:.3g} anywhere; there are as many records as units ({widths}), or noise hides "
        "them"
    )


def _evidence(
    task: _Task, gradients: list[np.ndarray], rank: int, total: int, scale: float
) -> Evidence:
    """The spans of what is left, of a known number of records. The first layer's has as many
    dimensions as it shows: records of categories depend on each other."""
    place, stacked = looked_at(len(gradients)), np.concatenate(list(gradients[0]))
    values = np.linalg.svd(stacked, compute_uv=False)
    first, _ = rank_of(values, scale, min(rank, *stacked.shape))
    spans = [span_of(gradient, rank) for gradient in gradients[place]]
    layer = jax.tree.map(lambda *leaves: np.stack(leaves), *spans)
    first = first or min(rank, *stacked.shape)
    return Evidence(task.params, span_of(stacked, first), layer, float(total), place)


def _noise_energy(evidence: Evidence, gradients: list[np.ndarray]) -> float:
    """Of all numbers of the messages that moved, by the errors of the layers looked at."""
    first, others = np.square(evidence.first.noise), np.square(evidence.layer.noise).mean()
    noises = [first] + [others] * (len(gradients) - 1)
    return float(sum(n * np.count_nonzero(g) for n, g in zip(noises, gradients, strict=True)))


def _pass(task: _Task, evidence: Evidence, key: Array, total: int) -> tuple[Passed, int]:
    """One search, and which of what it comes upon pass."""
    model, schema, settings = task.model, task.schema, task.settings
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    rounds = list(range(len(evidence.layer.noise)))
    rounds = sorted(rng.permutation(rounds)[: settings.rounds].tolist())
    sight = sight_of(evidence, rounds, schema.features, rng)
    moves = moves_of(model, evidence, schema, occurring(schema, evidence), rounds)
    state = search(model, sight, moves, key, settings.starts, settings.sweeps)
    places, numbers = different(schema, jax.tree.map(np.asarray, state))
    findings = examined(model, schema, evidence, schema.records(places, numbers))
    if not total:
        total = total_of(findings, evidence.layer.rank // len(evidence.layer.noise))
        evidence = dataclasses.replace(evidence, count=float(total))
        findings = examined(model, schema, evidence, np.asarray(findings.x))
    passed, copies = passing(findings, total)
    rows = np.flatnonzero(passed.any(1))
    if not len(rows):
        return Passed.none(schema), total
    y = np.where(passed, findings.off_errors, np.inf).argmin(1)[rows]
    findings = jax.tree.map(lambda a: a[rows], findings)
    opened = rivalled(model, schema, evidence, (sight, moves), places[rows], findings)
    certified = np.asarray([not columns for columns in opened])
    x = rounded(schema, findings.x, findings.deviation)
    return Passed(x, y, copies[rows, y], certified, opened, findings.deviation), total


def _without(
    task: _Task, gradients: list[np.ndarray], found: Passed, total: int
) -> list[np.ndarray]:
    """Gradients without the parts of records that are found."""
    left = [gradient.copy() for gradient in gradients]
    for begin in range(0, len(found), CHUNK):
        piece = slice(begin, begin + CHUNK)
        x, y = padded(found.x[piece]), padded(found.y[piece])
        weights = np.zeros(CHUNK)
        weights[: len(found.x[piece])] = found.copies[piece] / total
        for t in range(len(gradients[0])):
            params = jax.tree.map(lambda a, t=t: a[t], task.params)
            with jax.enable_x64(True):
                parts = parts_of(task.model, params, x, y)
            for layer, (inputs, errors) in zip(left, parts, strict=True):
                layer[t] -= np.asarray(errors).T @ (weights[:, None] * np.asarray(inputs))
    return left


def _answer(
    task: _Task, found: Passed, count: int, energies: tuple[float, float], untold: str
) -> Records:
    schema = task.schema
    units = np.asarray([attribute.deviation for attribute in schema.measured])
    certified = int(found.certified.sum())
    if untold:
        status, reason = Status.FAILED, untold
    elif certified < count:
        status = Status.MISFIT
        reason = (
            f"{certified} of {count} records were found and certified, {len(found) - certified} "
            "more with open columns"
        )
    elif energies[0] > MARGIN**2 * energies[1]:
        status = Status.MISFIT
        reason = f"the records leave {energies[0]:.2g} of the messages' energy unexplained"
    else:
        status, reason = Status.OK, f"all {count} records were found and certified"
    return Records(
        found.x,
        found.y,
        schema.table(found.x),
        found.copies,
        found.certified,
        found.open,
        3 * found.deviation * units,
        count,
        *energies,
        status,
        reason,
    )
