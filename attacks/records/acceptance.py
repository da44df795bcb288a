"""Which records that a search comes upon pass: what their own evidence says, and whether another
record would pass too."""

import dataclasses
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks.records.averaged import off_idle
from attacks.records.evidence import UNBOUNDED, Evidence, Findings, examine
from attacks.records.search import FIRST_WEIGHT, Moves, Sight, State, buckets, rivals
from attacks.records.spans import MARGIN, Span
from jaxfl import Model
from jaxfl.schema import Listed, Schema

SHARE = 0.05
"""Relative error of a record's weight that is more than any certificate allows."""
EXACT = 1e-6
"""Relative error of a record's weight by the arithmetic of the client, beside the noise."""
MOST_COPIES = 4
"""Copies of each record, on average, that are looked for."""
ROUNDED = 1e-12
"""Part of the largest feature that float64 leaves of a difference of two records outside a span
that holds the difference."""
FEATURES = 4 * float(np.finfo(np.float32).eps)
"""Part of a number that a client's float32 leaves open."""
LOOSE = 1e-3 * UNBOUNDED
"""Deviation of a feature that is taken for none at all."""
SEEN = 1e-4
"""Part of a unit vector that the search in float32 takes for nothing: rounding leaves less."""
CHUNK = 32
"""Records that are examined in one call."""


@dataclasses.dataclass(frozen=True)
class Passed:
    """Records that passed.

    Attributes:
      x: `[passed, features]`.
      y: labels `[passed]`.
      copies: how often the client has each `[passed]`.
      certified: whether no other would pass in its place `[passed]`.
      open: names of columns of which another value passes, for each.
      rivals: records that pass in its place `[rivals, features]`, for each.
      deviation: of measured columns by the noise, in features `[passed, measured]`.
    """

    x: np.ndarray
    y: np.ndarray
    copies: np.ndarray
    certified: np.ndarray
    open: tuple[tuple[str, ...], ...]
    rivals: tuple[np.ndarray, ...]
    deviation: np.ndarray

    @staticmethod
    def none(schema: Schema) -> "Passed":
        """The result of no record."""
        empty = np.zeros((0, schema.features)), np.zeros(0, int), np.zeros(0, int)
        return Passed(*empty, np.zeros(0, bool), (), (), np.zeros((0, len(schema.measured))))

    def and_these(self, more: "Passed") -> "Passed":
        """Both."""
        joined: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            a, b = getattr(self, field.name), getattr(more, field.name)
            joined[field.name] = a + b if isinstance(a, tuple) else np.concatenate([a, b])
        return Passed(**joined)

    def where(self, chosen: np.ndarray) -> "Passed":
        """Some of them, by a mask."""
        kept: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            a = getattr(self, field.name)
            pairs = zip(a, chosen, strict=True)
            kept[field.name] = (
                tuple(v for v, c in pairs if c) if isinstance(a, tuple) else a[chosen]
            )
        return Passed(**kept)

    def opened(self, more: Sequence[Set[str]]) -> "Passed":
        """The same with more columns open, for each: who has one is certified no more."""
        columns = tuple(
            tuple(sorted({*before, *now})) for before, now in zip(self.open, more, strict=True)
        )
        sure = np.asarray([not now for now in more], bool)
        return dataclasses.replace(self, certified=self.certified & sure, open=columns)

    def uncertified(self) -> "Passed":
        """The same, none of them certified."""
        return dataclasses.replace(self, certified=np.zeros(len(self), bool))

    def __len__(self) -> int:
        return len(self.x)


def different(schema: Schema, state: State) -> tuple[np.ndarray, np.ndarray]:
    """Where the starts ended, each place once, best first."""
    places = np.zeros((len(state.cost), len(schema.listed)), int)
    for bucket, chosen in zip(buckets(schema), state.places, strict=True):
        places[:, bucket] = chosen
    order = np.argsort(state.cost)
    _, first = np.unique(places[order], axis=0, return_index=True)
    kept = order[np.sort(first)]
    return places[kept], np.asarray(state.numbers, np.float64)[kept]


def examined(model: Model, schema: Schema, evidence: Evidence, x: np.ndarray) -> Findings:
    """`examine` in pieces of one shape; where clients take several steps a round, what it lets pass
    is judged by idle units too."""
    measured, counted = tuple(schema.positions), tuple(p for _, p, _ in schema.counted)
    with jax.enable_x64(True):
        findings = pieces(
            lambda piece: examine(model, evidence, piece, measured, counted), np.asarray(x)
        )
        if evidence.returned is None:
            return findings
        inside = np.flatnonzero(findings.off_inputs <= MARGIN)
        off_errors = np.full_like(findings.off_errors, np.inf)
        if len(inside):
            judged = pieces(lambda piece: off_idle(model, evidence, piece), findings.x[inside])
            off_errors[inside] = judged
    ones = np.ones_like(findings.whole)
    return findings._replace(off_errors=off_errors, whole=ones, whole_deviation=0 * ones)


def pieces(function: Callable[..., Any], *rows: np.ndarray) -> Any:
    """What a function of `CHUNK` rows of arrays `[rows, ...]` gives of all, its leaves `[rows,
    ...]`."""
    (x, *_) = rows
    parts = [
        function(*(padded(each[begin : begin + CHUNK]) for each in rows))
        for begin in range(0, len(x), CHUNK)
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *parts)


def passing(findings: Findings, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Which labels of the records tried pass all tests `[records, classes]`, and how many copies
    there would be of each.

    Args:
      findings: what the evidence says of them.
      total: number of the client's records with their copies; 0 if unknown: weights are not tested.
    """
    findings = jax.tree.map(np.asarray, findings)
    whole = findings.whole.mean(-1)
    passed = (findings.off_inputs <= MARGIN)[:, None] & (findings.off_errors <= MARGIN)
    passed &= np.isfinite(whole) & (whole > 1 - SHARE)
    copies = np.maximum(np.rint(total / np.where(passed, whole, np.inf)), 1)
    if total:
        off = np.abs(findings.whole * copies[..., None] - total)
        allowed = MARGIN * findings.whole_deviation * copies[..., None] + EXACT * total
        passed &= np.all((off <= allowed) & (allowed < SHARE * total), axis=-1)
    return np.asarray(passed), copies.astype(int)


def total_in(evidence: Evidence) -> int:
    """Number of a client's records with their copies, in units of which weights are; 0 if
    unknown."""
    return 1 if evidence.returned is not None else int(evidence.count)


def total_of(findings: Findings, count: int) -> int:
    """Number of a client's records with their copies, from that of different ones on: that of which
    the weights of most records are whole parts, and few; 0 if none passes. A large number has a
    part for nearly any weight, so that each record counts less by its copies.

    Args:
      findings: what the evidence says of records.
      count: number of different ones.
    """
    findings = jax.tree.map(np.asarray, findings)
    rows = passing(findings, 0)[0].any(1)
    if not rows.any():
        return 0
    findings = jax.tree.map(lambda a: a[rows], findings)
    totals = range(count, MOST_COPIES * count + 1)

    def support(total: int) -> float:
        passed, copies = passing(findings, total)
        return float((passed / copies).max(1).sum())

    return max(totals, key=support)


def rounded(schema: Schema, x: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Whole numbers where the messages leave no other."""
    x, kept = x.copy(), unsure_by(schema, deviation) > 0
    kept |= between_whole(schema, x, deviation)
    for j, attribute in enumerate(schema.measured):
        if attribute.whole:
            value = attribute.value(x[:, attribute.position])
            value = np.where(kept[:, j], value, np.rint(value))
            x[:, attribute.position] = attribute.feature(value)
    return x


def between_whole(schema: Schema, x: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Numbers `[records, measured]` that the schema calls whole and the messages do not: the
    nearest whole one is farther than the noise and the client's float32 let a right one be."""
    between = np.zeros(deviation.shape, bool)
    for j, attribute in enumerate(schema.measured):
        if attribute.whole:
            value = attribute.value(x[:, attribute.position])
            near = MARGIN * deviation[:, j] * attribute.deviation
            near += FEATURES * (np.abs(value) + abs(attribute.mean))
            between[:, j] = np.abs(value - np.rint(value)) > near
    return between


def untold_numbers(schema: Schema, x: np.ndarray, deviation: np.ndarray) -> list[set[str]]:
    """Measured columns of each record `[records]` that the messages leave open: half of their range
    passes at least, nothing bounds them, or no number passes that the schema allows."""
    widths = half_widths(schema, deviation)
    ranges = np.asarray([attribute.high - attribute.low for attribute in schema.measured])
    untold = (widths >= ranges / 2) | (deviation > LOOSE) | between_whole(schema, x, deviation)
    names = [attribute.column for attribute in schema.measured]
    return [{name for name, open_ in zip(names, row, strict=True) if open_} for row in untold]


def half_widths(schema: Schema, deviation: np.ndarray) -> np.ndarray:
    """How far measured columns `[records, measured]` may be off, in the table's units; 0 where only
    one whole number is so near."""
    units = np.asarray([attribute.deviation for attribute in schema.measured])
    whole = np.asarray([attribute.whole for attribute in schema.measured], bool)
    widths = MARGIN * deviation * units
    return np.where(whole & (widths < 0.5), 0.0, widths + 0.5 * whole)


def unsure_by(schema: Schema, deviation: np.ndarray) -> np.ndarray:
    """Deviation of measured columns `[records, measured]`; 0 where only one whole number is
    near."""
    return np.where(half_widths(schema, deviation) > 0, deviation, 0.0)


def rivalled(
    model: Model,
    schema: Schema,
    evidence: Evidence,
    search: tuple[Sight, Moves],
    places: np.ndarray,
    findings: Findings,
) -> tuple[tuple[tuple[str, ...], ...], tuple[np.ndarray, ...]]:
    """Columns of each record `[records]` of which another value passes too, and the records that
    have it. What the search sees, in float32, tells most; the closest are examined.

    Args:
      model: the model.
      schema: of the table.
      evidence: what is seen.
      search: what the search looked at, and its tables.
      places: the records' listed attributes `[records, listed]`.
      findings: what the evidence says of them.
    """
    numbers = np.asarray(findings.x)[:, schema.positions]
    changeable = _changeable(schema, evidence.first, np.asarray(findings.x))
    costs, values = np.full(places.shape, np.inf), np.zeros(places.shape, int)
    if changeable.any():
        costs, values = _closest(model, schema, search, places, numbers)
        costs = np.where(changeable, costs, np.inf)
    limit = np.maximum(MARGIN * findings.expected * (1 + FIRST_WEIGHT), SEEN) ** 2
    rows, attributes = np.nonzero(costs <= limit[:, None])
    untold = untold_numbers(schema, np.asarray(findings.x), np.asarray(findings.deviation))
    opened = [a | b for a, b in zip(_loose(schema, findings), untold, strict=True)]
    also: list[list[np.ndarray]] = [[] for _ in places]
    if len(rows):
        others = places[rows].copy()
        others[np.arange(len(rows)), attributes] = values[rows, attributes]
        tried = examined(model, schema, evidence, schema.records(others, numbers[rows]))
        passes, _ = passing(tried, total_in(evidence))
        for k in np.flatnonzero(passes.any(1)):
            opened[rows[k]].update(schema.listed[attributes[k]].columns)
            also[rows[k]].append(np.asarray(tried.x)[k])
    names = tuple(tuple(sorted(columns)) for columns in opened)
    return names, tuple(np.reshape(each, (-1, schema.features)) for each in also)


def _changeable(schema: Schema, span: Span, x: np.ndarray) -> np.ndarray:
    """Listed attributes `[listed]` of which two records of the span can have two values, all others
    being equal: the difference must lie in the span itself, as near as each of two records that
    pass, numbers free."""
    measured = schema.positions
    free = np.linalg.qr(span.beyond_rows[measured].T)[0] if measured else np.zeros((1, 0))
    beyond = span.beyond_rows - (span.beyond_rows @ free) @ free.T if measured else span.beyond_rows
    lengths = np.linalg.norm(span.rows * span.inverse, axis=1)
    inputs = np.concatenate([x, np.ones((len(x), len(span.rows) - x.shape[1]))], 1)
    longest = 2 * np.linalg.norm((inputs @ span.rows) * span.inverse, axis=1).max()
    ranges = [a.feature(a.high) - a.feature(a.low) for a in schema.measured]
    longest += np.dot(np.abs(ranges), lengths[measured])
    changeable = []
    for attribute in schema.listed:
        places, looks = list(attribute.positions), attribute.looks
        one, other = np.triu_indices(len(looks), 1)
        least = np.linalg.norm((looks[one] - looks[other]) @ beyond[places], axis=1).min()
        length = longest + 2 * np.abs(looks).max() * lengths[places].sum()
        near = MARGIN * span.noise * np.sqrt(span.free[0]) * length
        changeable.append(least <= near + ROUNDED * np.abs(looks).max())
    return np.asarray(changeable, bool)


def _loose(schema: Schema, findings: Findings) -> list[set[str]]:
    """Listed numbers of each record that another value of all numbers together could take the place
    of."""
    return [
        {
            column
            for (column, _, gap), loose in zip(schema.counted, row, strict=True)
            if not MARGIN * loose < gap / 2
        }
        for row in np.asarray(findings.looseness)
    ]


def _closest(
    model: Model,
    schema: Schema,
    search: tuple[Sight, Moves],
    places: np.ndarray,
    numbers: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """`attacks.records.search.rivals` in pieces of one shape, attributes in the schema's order."""
    costs, values = np.zeros(places.shape), np.zeros(places.shape, int)
    for begin in range(0, len(places), CHUNK):
        piece = slice(begin, begin + CHUNK)
        whole = padded(places[piece])
        chosen = tuple(jnp.asarray(whole[:, bucket]) for bucket in buckets(schema))
        near = jnp.asarray(padded(numbers[piece]), jnp.float32)
        for bucket, (cost, value) in zip(
            buckets(schema), rivals(model, *search, chosen, near), strict=True
        ):
            count = len(places[piece])
            costs[piece, bucket], values[piece, bucket] = cost[:count], value[:count]
    return costs, values


def once_each(schema: Schema, passed: Passed) -> Passed:
    """Each record once, by its listed attributes."""
    _, first = np.unique(schema.places(passed.x), axis=0, return_index=True)
    chosen = np.zeros(len(passed), bool)
    chosen[first] = True
    return passed.where(chosen)


def neighbours(schema: Schema, places: np.ndarray, columns: tuple[str, ...]) -> np.ndarray:
    """Records that differ in one of these columns: numbers by one value, categories by any."""
    others = []
    for j, attribute in enumerate(schema.listed):
        if not set(attribute.columns) & set(columns):
            continue
        for value in _nearby(attribute, int(places[j])):
            other = places.copy()
            other[j] = value
            others.append(other)
    return np.asarray(others)


def _nearby(attribute: Listed, place: int) -> list[int]:
    count = len(attribute.values)
    if len(attribute.positions) == 1:
        return [p for p in (place - 1, place + 1) if 0 <= p < count]
    return [p for p in range(count) if p != place]


def padded(rows: np.ndarray) -> np.ndarray:
    """At most `CHUNK` rows and copies of the first, so that all programs have one shape."""
    return np.concatenate([rows, np.repeat(rows[:1], CHUNK - len(rows), 0)])
