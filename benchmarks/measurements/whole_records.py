"""Which records does a client have, with nothing known but the schema of its table?

A method here is `run(view, settings) -> Guess`: it is given what the adversary has
(`benchmarks.scenarios.whole_records.View`), and no truth. Records are matched one to one, so that
as many columns as possible agree.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import linear_sum_assignment

from attacks import RecordMatching, RecordSearch, match_records, reconstruct_records
from benchmarks.harness.clock import Clock
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome
from benchmarks.scenarios.whole_records import Victim, View, WholeRecordsSettings, draw
from jaxfl import Schema

CLOSE = 0.319
"""Standard deviations within which TabLeak (Vero et al. 2023) calls a number right."""


class Guess(NamedTuple):
    """What a method says the client has.

    Attributes:
      x, y: records `[guessed, features]` and labels `[guessed]`.
      certified: which of them it calls certain.
      open: columns that it says it does not know, for each.
      precision: half-width of measured columns in the table's units `[guessed, measured]`.
    """

    x: np.ndarray
    y: np.ndarray
    certified: np.ndarray
    open: Sequence[tuple[str, ...]]
    precision: np.ndarray


def _guess(view: View, x: np.ndarray, y: np.ndarray) -> Guess:
    """Guess of a method that is never certain."""
    nothing = np.zeros((len(x), len(view.schema.measured)))
    return Guess(x, y, np.zeros(len(x), bool), [()] * len(x), nothing)


def _spans(view: View, settings: RecordSearch) -> Guess:
    read = reconstruct_records(
        view.model,
        view.messages,
        view.schema,
        view.training,
        view.key,
        settings=settings,
    )
    rows = np.repeat(np.arange(len(read)), read.copies)
    opened = [read.open[row] for row in rows]
    return Guess(read.x[rows], read.y[rows], read.certified[rows], opened, read.precision[rows])


def _matched(view: View, settings: RecordMatching) -> Guess:
    matched = match_records(
        view.model,
        view.messages,
        view.schema,
        view.records,
        view.training,
        view.key,
        settings=settings,
    )
    return _guess(view, matched.x, matched.y)


def _marginals(view: View, settings: None) -> Guess:
    """Every column, and the label, of another public record: what is common, and no record."""
    x, y = view.public
    attributes = [list(a.positions) for a in view.schema.listed]
    attributes += [[a.position] for a in view.schema.measured]
    *rows, labelled = _generator(view).integers(0, len(x), (len(attributes) + 1, view.records))
    drawn = np.zeros((view.records, x.shape[1]))
    for positions, chosen in zip(attributes, rows, strict=True):
        drawn[:, positions] = x[chosen][:, positions]
    return _guess(view, drawn, y[labelled])


def _public(view: View, settings: None) -> Guess:
    x, y = view.public
    rows = _generator(view).choice(len(x), view.records, replace=len(x) < view.records)
    return _guess(view, x[rows].astype(float), y[rows])


def _generator(view: View) -> np.random.Generator:
    """Another one for every seed, so that guesses vary over seeds as attacks do."""
    return np.random.default_rng(np.asarray(jax.random.key_data(view.key)))


METHODS = (
    Method("public", "as many public records, drawn at random", _public, observes=False),
    Method(
        "marginals",
        "each column, and the label, of another record",
        _marginals,
        observes=False,
    ),
    Method(
        "match_records",
        "cosine gradient matching of all columns and labels, their number known",
        _matched,
        RecordMatching(),
    ),
    Method(
        "reconstruct_records",
        "records that the messages' spans prove",
        _spans,
        RecordSearch(),
        x64=True,
    ),
)
METRICS = (
    Metric("complete", "every record of the batch, all columns and the label", True, 0.0),
    Metric("records_exact", "records with all columns and the label", True, 0.0),
    Metric("precision", "right ones of the records returned; 0 where none are", True),
    Metric("records_but_open", "records right in all columns but those called open", True),
    Metric("column_accuracy", "columns, numbers within .319 deviations (TabLeak's accuracy)", True),
    Metric("certified", "records that are called certain", True),
    Metric("certified_wrong", "records called certain that the client does not have"),
)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: one client, each method once."""
    cell, seed = jobs[0].cell, jobs[0].seed
    victim = draw(cell.dataset, cell.settings, data_dir, seed)
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(victim.view.messages))
    for job in jobs:
        if job.how.observes and not finite:
            yield [Outcome(job, m.name, None, status="messages not finite") for m in METRICS]
            continue
        clock = Clock()
        guess = job.how.run(victim.view, job.method_settings)
        spent = clock.read()
        scores = scored(victim, guess)
        shared: dict[str, Any] = {
            **spent._asdict(),
            "dtype": "float64" if job.how.x64 else "float32",
            "note": victim.note,
            "test_accuracy": victim.accuracy,
            "detail": {
                "scored_records": len(victim.y),
                "returned_records": len(guess.x),
                "cancelling": victim.cancelling,
            },
        }
        returned = shared | {"detail": shared["detail"] | {"scored_records": len(guess.x)}}
        yield [
            Outcome(job, metric, value, **(returned if metric == "precision" else shared))
            for metric, value in scores.items()
        ]


def scored(victim: Victim, guess: Guess) -> dict[str, float]:
    """All metrics."""
    count = len(victim.y)
    right, close = _agreement(victim, guess)
    labels = guess.y[:, None] == victim.y[None]
    rows, columns = linear_sum_assignment(-(right.sum(-1) + labels))
    exact = right[rows, columns].all(-1) & labels[rows, columns]
    names = victim.view.schema.columns
    known = np.asarray([[name not in opened for name in names] for opened in guess.open])
    known = known.reshape(len(guess.x), len(names)).astype(bool)
    but_open = (right[rows, columns] | ~known[rows]).all(-1) & labels[rows, columns]
    nearest, truth = linear_sum_assignment(-close.sum(-1))
    # Against any record, not the matched one: a record is wrong if no one has it.
    has = (right.all(-1) & labels).any(1)
    return {
        "complete": float(exact.sum() == count == len(guess.x)),
        "records_exact": exact.sum() / count,
        "precision": exact.sum() / max(len(guess.x), 1),
        "records_but_open": but_open.sum() / count,
        "column_accuracy": close[nearest, truth].sum() / (count * len(names)),
        "certified": min(guess.certified.sum() / count, 1.0),
        "certified_wrong": float((guess.certified & ~has).sum()),
    }


def _agreement(victim: Victim, guess: Guess) -> tuple[np.ndarray, np.ndarray]:
    """Whether columns agree exactly, and nearly: `[guessed, records, columns]`. Numbers that are
    not whole agree within the stated precision."""
    schema: Schema = victim.view.schema
    tables = schema.table(guess.x), schema.table(victim.x.astype(float))
    spread = schema.table(victim.view.public[0].astype(float))
    measured = {a.column: j for j, a in enumerate(schema.measured)}
    right, close = [], []
    for name in schema.columns:
        mine, true = (table[name] for table in tables)
        if mine.dtype.kind != "f":
            right.append(mine[:, None] == true[None])
            close.append(right[-1])
            continue
        gap = np.abs(mine[:, None] - true[None])
        allowed = np.full(len(mine), 1e-6 + 1e-6 * np.abs(mine))
        if name in measured:
            allowed = allowed + guess.precision[:, measured[name]]
        right.append(gap <= allowed[:, None])
        close.append(gap <= CLOSE * spread[name].std())
    return np.stack(right, -1), np.stack(close, -1)


EXPERIMENT = Experiment("whole_records", WholeRecordsSettings, METHODS, METRICS, run, batched=False)
