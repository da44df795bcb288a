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

import jax
import numpy as np

from attacks.fit import Status
from attacks.path import check_linear
from attacks.records.acceptance import Passed, between_whole, half_widths, untold_numbers
from attacks.records.gradients import check_readable, gradients_of_rounds, looked_at
from attacks.records.progress import Reading, RecordSearch, Task
from attacks.records.reading import read
from attacks.records.spans import energy, scales_of, told_by
from jaxfl import LocalTraining, Messages, Model
from jaxfl.domains import Key, checked
from jaxfl.schema import Schema
from jaxfl.watching import on_host

Array = jax.Array
NONE_PASSES = (
    "; no record of the schema passes: the messages are of another model, recipe or schema "
    "(activation, training.learning_rate, momentum, batches), or a longer search is needed"
)


@dataclasses.dataclass(frozen=True)
class Records:
    """What was read of a client's table.

    Attributes:
      x: records `[found, features]`, float64, as the model takes them.
      y: their labels `[found]`.
      table: the same in the table's own units, a column each `[found]`.
      copies: how often the client has each record `[found]`; a class that weighs twice as much in
        the loss looks like two copies of each of its records.
      certified: whether a record passes all tests and no other would `[found]`: what it is before
        every layer that is looked at lies in the messages' spans, so does its error, its weight is
        right, no other value of any listed attribute would pass, and without it the messages' rank
        is less by one. Columns without such proof are in `open`; where none is, the record may be
        another reading of one that is certified, or, of clients of several steps, not all records
        are found.
      open: per record, names of the columns of which another value would pass too.
      precision: half-width of measured columns in the table's units `[found, measured]`: as far as
        any test lets a right record be, `attacks.records.spans.MARGIN` standard deviations, within
        the schema's range; 0 where only one whole number is so near.
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


@on_host("it decides by values what is searched next; linear programmes by HiGHS")
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
    """All records of a client, with their labels.

    Of a client that takes one full-batch step a round, everything is tested: columns, label, how
    often it has the record, and whether a record is left. Of one that takes several steps, in
    batches or epochs, the first layer alone is read: the label is the likelier one, and copies are
    not told. There a combination of records (a - b + c) may pass as well if the schema allows it,
    so that nothing is certified before all records are found. Tests measure by the noise that
    messages show beyond their spans; where that nearly hides the records, a certificate may be
    wrong.

    Args:
      model: a classifier whose layers are dense and whose first one takes the records (static).
      messages: the client's. Recorded in float64 where gradients were sent (see
        `Messages.from_gradients`): a float32 model that is returned has lost some of their bits.
      schema: of its table.
      training: its recipe; of optimisers any that is linear: SGD, with momentum or weight decay
        or both.
      key: draws where the search begins.
      settings: see `RecordSearch`.

    Returns:
      The records. Not traceable: how many there are is a result.

    Raises:
      ValueError: if the model has other layers than dense ones, mixes records, has no classes or
        does not take the schema's records as they are; if messages are of another model; if the
        recipe has another optimiser than a linear one.
    """
    settings = settings or RecordSearch()
    check_readable(model, messages, schema)
    check_linear(training.optimizer, messages.model_shapes)
    params = jax.tree.map(lambda a: np.asarray(a, np.float64), messages.received)
    gradients = gradients_of_rounds(model, messages, training)
    several = training.epochs > 1 or training.batch_size is not None
    returned = jax.tree.map(lambda a: np.asarray(a, np.float64), messages.returned)
    gradients = gradients[:1] if several else gradients
    place = 0 if several else looked_at(len(gradients))
    rank, gap = told_by(gradients[place], scales_of(gradients[place]))
    task = Task(model, schema, params, gradients, returned if several else None, settings)
    if not rank or not np.isfinite(energy(gradients)):
        nothing = Passed.none(schema)
        reading = Reading(gradients, nothing, nothing, 0, 0.0, (0,), np.zeros((0, 0)))
        return _answer(task, reading, 0.0, _untold(gradients, gap))
    return _answer(task, read(task, key), energy(gradients), "")


def _untold(gradients: list[np.ndarray], gap: float) -> str:
    if not all(np.isfinite(g).all() for g in gradients):
        return "the messages hold numbers that are not finite"
    if not any(g.any() for g in gradients):
        return "no model came back changed: there is nothing to read"
    widths = " and ".join(str(g.shape[1]) for g in gradients[: max(len(gradients) - 1, 1)])
    return (
        f"the messages do not tell how many records there are: singular values fall by no more "
        f"than {gap:.3g} anywhere; there are as many records as units ({widths}), or noise hides "
        "them"
    )


def _answer(task: Task, reading: Reading, whole: float, untold: str) -> Records:
    schema, several = task.schema, task.returned is not None
    taken, factor = reading.taken, _underestimated(reading)
    taken = taken.opened(untold_numbers(schema, taken.x, factor * taken.deviation))
    reading = dataclasses.replace(reading, taken=taken)
    passed = taken.and_these(reading.opened) if max(reading.ranks) else taken
    left = energy(reading.left) / whole if whole else 1.0
    reason = untold or _shortfall(schema, reading, passed, left, several)
    if reading.is_contradicted or (several and reason):
        passed = passed.uncertified()
    status = Status.FAILED if untold else Status.MISFIT if reason else Status.OK
    return Records(
        passed.x,
        passed.y,
        schema.table(passed.x),
        passed.copies,
        passed.certified,
        passed.open,
        _half_width(schema, passed, factor),
        reading.count,
        left,
        reading.noise / whole if whole else 0.0,
        status,
        reason or f"all {reading.count} records were found and certified{_beyond(schema, passed)}",
    )


def _underestimated(reading: Reading) -> float:
    """By how much the messages' errors exceed the noise beyond their spans, if all records are
    found: what is left is those errors. Errors within the spans are seen only then."""
    if max(reading.ranks) or not reading.noise:
        return 1.0
    return max(1.0, float(np.sqrt(energy(reading.left) / reading.noise)))


def _half_width(schema: Schema, passed: Passed, factor: float) -> np.ndarray:
    """See `Records.precision`; of what is no whole number, how far the nearest one is."""
    ranges = np.asarray([attribute.high - attribute.low for attribute in schema.measured])
    widths = np.minimum(half_widths(schema, factor * passed.deviation), ranges)
    units, means = np.reshape([[a.deviation, a.mean] for a in schema.measured], (-1, 2)).T
    values = passed.x[:, schema.positions] * units + means
    between = between_whole(schema, passed.x, passed.deviation)
    return np.where(between, np.abs(values - np.rint(values)), widths)


def _between(schema: Schema, passed: Passed) -> str:
    """A column that the schema calls whole and the messages do not; nothing if there is none."""
    between = between_whole(schema, passed.x, passed.deviation)
    for j, attribute in enumerate(schema.measured):
        for row in np.flatnonzero(between[:, j])[:1]:
            value = attribute.value(passed.x[row, attribute.position])
            return (
                f"; {attribute.column!r} is whole by the schema and {value:.7g} by the messages: "
                "it is no whole number, or its mean and deviation are others"
            )
    return ""


def _beyond(schema: Schema, passed: Passed) -> str:
    """A column with certified numbers out of the schema's range; nothing if there is none."""
    for attribute in schema.measured:
        values = attribute.value(passed.x[passed.certified, attribute.position])
        slack = 1e-6 * (attribute.high - attribute.low)
        outside = (values < attribute.low - slack) | (values > attribute.high + slack)
        for value in values[outside][:1]:
            return (
                f"; {attribute.column!r} is {value:.7g} in one of them, beyond the schema's "
                f"{attribute.low:g} to {attribute.high:g}"
            )
    return ""


def _shortfall(schema: Schema, reading: Reading, passed: Passed, left: float, several: bool) -> str:
    """What is wrong with an answer; nothing if it is whole."""
    taken, count, total = reading.taken, reading.count, reading.total
    if reading.is_contradicted:
        return (
            f"{left:.2g} of the messages' energy is left and tells of no record, or of more than "
            "weights do: messages are noisier than they look, or records were clipped; nothing is "
            "certified"
        )
    certified = int(taken.certified.sum())
    if certified < count:
        told = ", and none is certified before all are" if several else " and certified"
        said = (
            f"{certified} of {count} records were found{told}, {len(passed) - certified} more with "
            f"open columns; they leave {left:.2g} of the messages' energy"
        )
        return said + (_between(schema, passed) or ("" if len(passed) else NONE_PASSES))
    copies = int(taken.copies.sum())
    if total > 1 and copies != total:
        why = (
            "the others leave no trace above the noise"
            if copies < total
            else "updates are sums and no means, or weigh records by their class"
        )
        return (
            f"a record's weight is that of 1 in {total}, and {copies} were found: {why}, or "
            "training.learning_rate is not the client's"
        )
    return ""
