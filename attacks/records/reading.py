"""Records are taken out of a client's gradients one after another, until nothing but noise is
left."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import jax
import numpy as np

from attacks.records.acceptance import (
    Passed,
    different,
    examined,
    neighbours,
    once_each,
    passing,
    rivalled,
    rounded,
    total_of,
)
from attacks.records.evidence import Evidence
from attacks.records.isolation import (
    MOST_USED,
    distinct,
    edges,
    isolated,
    of_the_rest,
    orthogonal_part,
    proven,
    slopes_of,
)
from attacks.records.progress import (
    Reading,
    Task,
    blur_of,
    evidence_of,
    layers_of,
    noise_energy,
    ranks_after,
    ranks_of,
    taken_out,
    without,
)
from attacks.records.search import SIGHT, Moves, Sight, moves_of, occurring, search, sight_of
from attacks.records.spans import MARGIN, Span, energy, span_of
from attacks.records.vertices import vertices
from jaxfl.schema import Schema

Array = jax.Array
MOST_SETS = 64
"""Sets of records, of those that pass, that are tried as all that is left."""
WORSE = 4.0
"""By which factor more of the messages' energy is left with another value in place of one that is
certified by what is left."""


def read(task: Task, key: Array) -> Reading:
    """Takes records out until nothing is left, or passes are used up. Where the layer that is
    looked at gives no more, the other one is: records that the second layer's errors do not tell
    apart, those of the first may."""
    place = len(layers_of(task)) - 1
    nothing = Passed.none(task.schema)
    total = 0 if task.returned is None else 1
    ranks, none = ranks_of(task, task.gradients), np.zeros((0, task.gradients[0].shape[-1]))
    reading = Reading(task.gradients, nothing, nothing, total, 0.0, ranks, none)
    budget = task.settings.passes
    while max(reading.ranks) and budget > 0:
        place = place if reading.ranks[place] else int(np.argmax(reading.ranks))
        key, pass_key, edge_key = jax.random.split(key, 3)
        before = len(reading.taken)
        reading = _next(task, reading, place, pass_key)
        progress = len(reading.taken) > before
        if not progress:
            reading = _isolating(task, reading, edge_key)
        budget -= 1 if progress else 2
        place = place if progress else (place + 1) % len(reading.ranks)
    return reading


def _isolating(task: Task, reading: Reading, key: Array) -> Reading:
    """With more directions that isolate records, by the first round's errors."""
    received, returned = (
        None if tree is None else jax.tree.map(lambda a: a[0], tree)
        for tree in (task.params, task.returned)
    )
    slopes = slopes_of(task.model, received, returned)
    if slopes is None or reading.ranks[0] < 2:
        return reading
    gradient, span = _undisturbed(task, reading)
    more = edges(
        gradient,
        span.rank,
        slopes,
        _drawing(key),
        task.settings.programmes,
        one_step=task.returned is None,
    )
    more = proven(gradient, span, more)
    directions = distinct(gradient, np.concatenate([reading.directions, more]))
    return dataclasses.replace(reading, directions=directions)


def _undisturbed(task: Task, reading: Reading) -> tuple[np.ndarray, Span]:
    """The first layer's gradient in the first round, and its spans: of what is left, or of
    everything where a client takes several steps. What is left there has the errors of estimates in
    it, and units that lack a record no longer lack it exactly."""
    gradients, ranks = reading.left, reading.ranks
    if task.returned is not None:
        gradients, ranks = task.gradients, ranks_of(task, task.gradients)
    return gradients[0][0], span_of(gradients[0][0], ranks[0])


def _drawing(key: Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))


def _next(task: Task, reading: Reading, place: int, key: Array) -> Reading:
    """After one more pass."""
    evidence = evidence_of(task, reading, place)
    noise = reading.noise or noise_energy(evidence, reading.left)
    narrow_key, look_key = jax.random.split(key)
    looking = _narrowed(task, reading, evidence, narrow_key)
    passed, total = _pass(task, *looking, look_key, reading.total)
    reading = dataclasses.replace(reading, noise=noise, total=total)
    apart = passed.certified & _each_alone(task, reading, evidence, passed, total)
    opened, more = passed.where(~apart).uncertified(), passed.where(apart)
    if not len(more):
        opened = once_each(task.schema, reading.opened.and_these(opened))
        more = _apart(task, reading, evidence, opened)
    if not len(more):
        reading = dataclasses.replace(reading, opened=opened)
        more, opened = _settled(task, reading, evidence), more
    if not len(more):
        return reading
    taken, left, blur = taken_out(task, reading, more, evidence)
    done = energy(left) <= MARGIN**2 * noise
    ranks = tuple(0 for _ in reading.ranks) if done else ranks_after(task, reading, more, left)
    # Numbers fitted together show what each alone hid: what is no record lowers no rank.
    if task.returned is None and ranks[place] > reading.ranks[place] - len(more):
        return dataclasses.replace(reading, opened=more.uncertified())
    known = dataclasses.replace(reading, taken=taken, opened=opened, blur=blur)
    return dataclasses.replace(known, left=left, ranks=ranks)


def _narrowed(
    task: Task, reading: Reading, evidence: Evidence, key: Array
) -> tuple[Evidence, Evidence]:
    """The evidence on all records but some that directions isolate, drawn anew each time; and that
    with the span of these alone, which the search looks at."""
    rank = reading.ranks[0]
    if not len(reading.directions) or evidence.place or rank < 2:
        return evidence, evidence
    rng, (gradient, span) = _drawing(key), _undisturbed(task, reading)
    valid = proven(gradient, span, of_the_rest(gradient, reading.left[0][0], reading.directions))
    size = min(int(np.ceil(rng.uniform(0.5, 1) * len(valid))), rank - 1, MOST_USED)
    used = isolated(gradient, span, valid[rng.permutation(len(valid))[:size]])
    evidence = dataclasses.replace(evidence, isolated=used)
    size = int(np.any(used.directions != 0, axis=1).sum())
    if not size:
        return evidence, evidence
    rows = np.asarray(evidence.first.rows)[:, : evidence.first.rank]
    stacked = orthogonal_part(np.concatenate(list(reading.left[0])), rows, used)
    span = span_of(stacked, max(evidence.first.rank - size, 1))
    return evidence, dataclasses.replace(evidence, first=span)


def _pass(
    task: Task, evidence: Evidence, seen: Evidence, key: Array, total: int
) -> tuple[Passed, int]:
    """One search in what is `seen`, and which of what it comes upon pass by the `evidence`."""
    model, schema = task.model, task.schema
    rounds_key, start_key = jax.random.split(key)
    rng = _drawing(rounds_key)
    rounds = list(range(len(evidence.layer.noise)))
    rounds = sorted(rng.permutation(rounds)[: task.settings.rounds].tolist())
    sight = sight_of(seen, rounds, schema.features, rng)
    if task.returned is not None:  # no equations for errors that are sums
        sight = dataclasses.replace(sight, basis=0 * sight.basis)
    moves = moves_of(model, seen, schema, occurring(schema, seen), rounds)
    places, numbers = _tried(task, seen, (sight, moves), start_key)
    if not len(places):
        return Passed.none(schema), total
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
    opened, also = rivalled(model, schema, evidence, (sight, moves), places[rows], findings)
    certified = np.asarray([not columns for columns in opened])
    x = rounded(schema, findings.x, findings.deviation)
    return Passed(x, y, copies[rows, y], certified, opened, also, findings.deviation), total


def _tried(
    task: Task, seen: Evidence, looking: tuple[Sight, Moves], key: Array
) -> tuple[np.ndarray, np.ndarray]:
    """Records to be tested: listed values `[tried, listed]` and numbers `[tried, measured]`. Where
    attributes are more than the search has equations, changing one at a time leads nowhere."""
    if len(task.schema.listed) > SIGHT:
        return vertices(task.schema, seen.first, _drawing(key))
    settings = task.settings
    state = search(task.model, *looking, key, settings.starts, settings.sweeps)
    return different(task.schema, jax.tree.map(np.asarray, state))


def _each_alone(
    task: Task, reading: Reading, evidence: Evidence, passed: Passed, total: int
) -> np.ndarray:
    """Which of the certified records `[passed]` are parts of the messages of their own: each takes
    one from the rank, and any two take two. Two readings of one record do not."""
    rows = np.flatnonzero(passed.certified)

    def falls_by(chosen: np.ndarray) -> bool:
        some = passed.where(np.isin(np.arange(len(passed)), chosen))
        left = without(task, reading.left, some, total, evidence)
        fallen = reading.ranks[evidence.place] - ranks_of(task, left)[evidence.place]
        return fallen >= len(chosen) or energy(left) <= MARGIN**2 * reading.noise

    if not len(rows) or falls_by(rows):
        return passed.certified
    last = _last(task, reading, evidence, passed, total)
    if last is not None:
        return last
    rows = np.asarray([row for row in rows if falls_by(np.asarray([row]))], int)
    pairs = [pair for pair in itertools.combinations(rows, 2) if not falls_by(np.asarray(pair))]
    rows = np.setdiff1d(rows, np.ravel(pairs))
    if len(rows) and not falls_by(rows):
        rows = rows[:0]
    return np.isin(np.arange(len(passed)), rows)


def _last(
    task: Task, reading: Reading, evidence: Evidence, passed: Passed, total: int
) -> np.ndarray | None:
    """Which of the certified records `[passed]` are all that is left: as many as the rank, which
    leave noise alone, where any others of them leave more. None if no records do."""
    rows, rank = np.flatnonzero(passed.certified), reading.ranks[evidence.place]
    if not 0 < rank < len(rows) or math.comb(len(rows), rank) > MOST_SETS:
        return None
    chosen = np.zeros((math.comb(len(rows), rank), len(passed)), bool)
    for mask, some in zip(chosen, itertools.combinations(rows, rank), strict=True):
        mask[list(some)] = True
    lefts = [
        energy(without(task, reading.left, passed.where(mask), total, evidence)) for mask in chosen
    ]
    best, other = np.argsort(lefts)[:2]
    unsure = reading.noise + reading.blur + blur_of(task, evidence, passed.where(chosen[best]))
    explains = lefts[best] <= MARGIN**2 * unsure
    return chosen[best] if explains and lefts[other] > WORSE * lefts[best] else None


def _apart(task: Task, reading: Reading, evidence: Evidence, opened: Passed) -> Passed:
    """The first open record whose rivals are other records of the client's, not other readings of
    it: without it they pass still. None if there is none."""
    left, total, place = reading.left, reading.total, evidence.place
    for row, (columns, rivals) in enumerate(zip(opened.open, opened.rivals, strict=True)):
        names = {a.columns for a in task.schema.listed if set(a.columns) & set(columns)}
        if not len(rivals) or len(names) > len(rivals) or task.returned is not None:
            continue
        if _has_untold_numbers(task.schema, columns):
            continue
        one = opened.where(np.arange(len(opened)) == row)
        rest = without(task, left, one, total, evidence)
        ranks = ranks_of(task, rest)
        if ranks[place] != reading.ranks[place] - 1 or not ranks[place]:
            continue
        alone = evidence_of(task, dataclasses.replace(reading, left=rest, ranks=ranks), place)
        still, _ = passing(examined(task.model, task.schema, alone, rivals), total)
        if still.any(1).all():
            return dataclasses.replace(one, certified=np.ones(1, bool), open=((),))
    return Passed.none(task.schema)


def _has_untold_numbers(schema: Schema, columns: Sequence[str]) -> bool:
    """Whether measured columns are among open ones: no other record would settle them."""
    return any(attribute.column in columns for attribute in schema.measured)


def _settled(task: Task, reading: Reading, evidence: Evidence) -> Passed:
    """The last records, certified by what they leave of the messages: noise, and more with any
    neighbour of theirs. None if they do not."""
    opened = reading.opened
    if len(opened) != max(reading.ranks) or task.returned is not None:
        return Passed.none(task.schema)
    if any(_has_untold_numbers(task.schema, columns) for columns in opened.open):
        return Passed.none(task.schema)
    rest = energy(without(task, reading.left, opened, reading.total, evidence))
    if rest > MARGIN**2 * reading.noise:
        return Passed.none(task.schema)
    places = task.schema.places(opened.x)
    for row, columns in enumerate(opened.open):
        others = neighbours(task.schema, places[row], columns)
        numbers = np.repeat(opened.x[row : row + 1, task.schema.positions], len(others), 0)
        records = task.schema.records(others, numbers)
        fitted = examined(task.model, task.schema, evidence, records)
        for x in np.asarray(fitted.x):
            swapped = opened.x.copy()
            swapped[row] = x
            trial = dataclasses.replace(opened, x=swapped)
            if energy(without(task, reading.left, trial, reading.total, evidence)) < WORSE * rest:
                return Passed.none(task.schema)
    certain = np.ones(len(opened), bool)
    return dataclasses.replace(opened, certified=certain, open=((),) * len(opened))
