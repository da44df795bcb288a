"""How far off are a client's numbers that an adversary reads from its messages?

A method here is `run(view, settings) -> Told`: it is given what the adversary has
(`benchmarks.scenarios.numbers.View`).
"""

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from attacks import FitWarning, Knowledge, NumberDecoding, Status, decode_numbers
from attacks.fit import STATES, Fit
from benchmarks.harness.clock import Clock
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome
from benchmarks.scenarios.numbers import Numbered, NumberSettings, View, draw
from jaxfl import LocalTraining

TENTH = 0.1
"""Deviations of the column within which a number is told."""


class Told(NamedTuple):
    """What a method says.

    Attributes:
      values: of every record `[records]`, in the feature's units.
      status: see `attacks.Status`.
      error: by which it takes them to be off, or NaN.
      fit: how well they explain the messages; None of guesses.
    """

    values: np.ndarray
    status: Status = Status.OK
    error: float = np.nan
    fit: Fit | None = None


def _mean(view: View, settings: None) -> Told:
    return Told(np.full(len(view.knowledge.x), _column(view).mean()))


def _imputation(view: View, settings: None) -> Told:
    return Told(imputed(view.knowledge, view.public_x, view.public_y))


def imputed(knowledge: Knowledge, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Numbers of the known records `[records]`, as a forest guesses them that has learned from
    records `x` of others, with labels `y`."""
    from sklearn.ensemble import RandomForestRegressor

    (position,) = np.asarray(knowledge.columns[0].positions)
    forest = RandomForestRegressor(random_state=0)

    def seen(x: Any, y: Any) -> np.ndarray:
        return np.column_stack([np.delete(np.asarray(x), position, 1), np.asarray(y)])

    forest.fit(seen(x, y), x[:, position])
    return forest.predict(seen(knowledge.x, knowledge.y))


def _column(view: View) -> np.ndarray:
    """The public records' numbers."""
    return view.public_x[:, int(view.knowledge.columns[0].positions[0])]


def _decoded(view: View, settings: NumberDecoding) -> Told:
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the row tells it
        seen = view.model, view.messages, view.knowledge, view.key
        answer = decode_numbers(*seen, settings=settings)
    status, error = Status(int(answer.status)), float(answer.error)
    return Told(np.asarray(answer.values), status, error, answer.fit)


def _with_recipe(settings: NumberDecoding, cell: NumberSettings) -> NumberDecoding:
    return dataclasses.replace(settings, training=cell.recipe)


GUESSES = _mean, _imputation
METHODS = (
    Method("mean", "the mean of public records", _mean, observes=False),
    Method(
        "imputation",
        "a random forest on public records: the number from the other columns and the label",
        _imputation,
        observes=False,
    ),
    Method(
        "decode_numbers",
        "least squares on windows that close in on each number",
        _decoded,
        NumberDecoding(LocalTraining()),
        filled=("training",),
        settles=_with_recipe,
        explains=True,
        x64=True,
    ),
)
METRICS = (
    Metric(
        "told", "records whose number is told to a tenth of the column's deviation", proportion=True
    ),
    Metric("rmse", "root mean square error, in the source's own units", less_is_better=True),
    Metric(
        "median_error",
        "half of the numbers are off by more, in the source's own units",
        less_is_better=True,
    ),
)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: one client, each method once."""
    cell, seed = jobs[0].cell, jobs[0].seed
    client = draw(cell.dataset, cell.settings, data_dir, seed)
    blind, imputed = (_scores(client, guess(client.view, None).values) for guess in GUESSES)
    blind["told"] = commonest(client.truth, TENTH * client.deviation)
    for job in jobs:
        clock = Clock()
        answer: Told = job.how.run(client.view, job.method_settings)
        spent = clock.read()
        if answer.status == Status.FAILED:
            yield [Outcome(job, metric.name, None, status="failed") for metric in METRICS]
            continue
        within = TENTH * client.deviation * client.unit
        detail: dict[str, Any] = {"scored_records": len(answer.values), "within": within}
        if np.isfinite(answer.error):
            detail |= {"expected_rmse": answer.error * client.unit}
        shared: dict[str, Any] = {
            **spent._asdict(),
            "dtype": "float64" if job.how.x64 else "float32",
            "status": STATES[answer.status],
            "note": client.note,
            "detail": detail,
            **_explained(answer.fit),
        }
        null = _null(job, client)
        scores = _scores(client, answer.values)
        guesses = ((blind[name], imputed[name], null.get(name)) for name in scores)
        yield [
            Outcome(job, name, value, majority=mean, imputation=forest, null=other, **shared)
            for (name, value), (mean, forest, other) in zip(scores.items(), guesses, strict=True)
        ]


def _null(job: Job, client: Numbered) -> dict[str, float]:
    """Scores of the same attack on another client's messages; none of a guess."""
    if not job.how.observes:
        return {}
    answer: Told = job.how.run(client.view._replace(messages=client.null), job.method_settings)
    return {} if answer.status == Status.FAILED else _scores(client, answer.values)


def _explained(fit: Fit | None) -> dict[str, float]:
    """What of a fit is a number."""
    if fit is None:
        return {}
    said = {"explained": float(fit.explained), "misfit": float(fit.misfit)}
    return {name: value for name, value in said.items() if np.isfinite(value)}


def _scores(client: Numbered, values: np.ndarray) -> dict[str, float]:
    off = np.abs(values - client.truth)
    return {
        "told": float((off <= TENTH * client.deviation).mean()),
        "rmse": float(np.sqrt((off**2).mean()) * client.unit),
        "median_error": float(np.median(off) * client.unit),
    }


def commonest(numbers: np.ndarray, within: float) -> float:
    """Share of numbers `[records]` that lie so near to one number: the best one to say of all."""
    ordered = np.sort(numbers)
    last = np.searchsorted(ordered, ordered + 2 * within, side="right")
    return float((last - np.arange(len(ordered))).max() / len(ordered))


EXPERIMENT = Experiment("numbers", NumberSettings, METHODS, METRICS, run, batched=False)
