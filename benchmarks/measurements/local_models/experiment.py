"""How answers are scored: models in every way that a cell asks for, others in their own."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Status,
    infer_from_model,
    invert_model,
    least_loss,
)
from attacks.fit import STATES, status_of
from attacks.metrics import zest_similarity
from benchmarks.harness.clock import Clock
from benchmarks.harness.experiment import Experiment, Method
from benchmarks.harness.intervals import equivalent_count
from benchmarks.harness.jobs import Job, Outcome, Value, by_method
from benchmarks.harness.trees import stack
from benchmarks.measurements.local_models.methods import MEASURE, METHODS, METRICS
from benchmarks.measurements.local_models.scores import (
    Score,
    accuracy_of,
    fit,
    likeness,
    majority_of,
    matched_likeness,
    mean,
    source_scores,
    strips,
)
from benchmarks.measurements.local_models.work import (
    Images,
    LocalModels,
    LocalModelSettings,
    Modelling,
    Sources,
    Values,
    Work,
)
from benchmarks.scenarios.federations import (
    epsilon_of,
    federate,
)
from benchmarks.scenarios.nulls import null_of

SHOWN, GREY = 8, 0.5
"""Images in a row of the report; the colour of an image without any."""


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: one federation, from which all methods work."""
    cell, seed = jobs[0].cell, jobs[0].seed
    federation = federate(cell.dataset, cell.settings, data_dir, seed)
    work = Work(federation, cell.settings)
    for method, attack, wanted in by_method(jobs):
        asked = {name for job in wanted for name in job.cell.settings.measures}
        if EXPERIMENT.traits_of(method).uses_decoded:
            work.decoded(attack)
        clock = Clock()
        answer = work.answer(method, attack)
        scores, pictures = _scores(method, attack, work, asked)
        spent = work.spent.get((method.name, attack)) or clock.read()
        shared: dict[str, Any] = {
            "run_s": spent.run_s / work.count,
            "compile_s": spent.compile_s,
            "selection": "oracle" if method.oracle else "none",
            "dtype": answer.dtype if isinstance(answer, Values) else "float32",
            "note": federation.data.note,
            "images": pictures,
        }
        detail: dict[str, Value] = {"simulation_s": round(federation.seconds, 1), **_spent(work)}
        shared |= _fit_of(answer)
        facts = {
            metric: shared | score._asdict() | {"detail": detail | _scored(metric, work)}
            for metric, score in scores.items()
        }
        yield [
            Outcome(job, metric, **facts[metric])
            for job in wanted
            for metric in scores
            if metric not in MEASURE or MEASURE[metric] in job.cell.settings.measures
        ]


def _fit_of(answer: Any) -> dict[str, Any]:
    """How well an answer explains messages: mean over clients, and the worst misfit."""
    if isinstance(answer, LocalModels) and answer.unexplained is not None:
        status = "misfit" if answer.misfit else "ok"
        return {"explained": 1 - mean(answer.unexplained), "status": status}
    if not isinstance(answer, (Sources, Values)) or answer.fit is None:
        return {}
    misfit = float(jnp.nanmax(answer.fit.misfit))
    states = np.asarray(status_of(jnp.zeros_like(answer.fit.misfit, bool), answer.fit))
    worst = next((s for s in (Status.MISFIT, Status.UNCHECKED) if (states == s).any()), Status.OK)
    return {
        "explained": mean([float(e) for e in answer.fit.explained]),
        "misfit": misfit if math.isfinite(misfit) else None,
        "status": STATES[worst],
    }


def _scored(metric: str, work: Work) -> dict[str, Value]:
    """How many records a mean of proportions is worth."""
    limit = work.settings.targets or None if MEASURE.get(metric) == "source" else None
    sizes = [len(rows[:limit]) for rows in work.federation.parts[: work.count]]
    return {"scored_records": equivalent_count(sizes)}


def _spent(work: Work) -> dict[str, Value]:
    """Epsilon of the clients with most and with fewest records, where training is private."""
    federation = work.federation
    if federation.training[0].privacy is None:
        return {}
    sizes = [len(rows) for rows in federation.parts]
    places = {"most": sizes.index(max(sizes)), "fewest": sizes.index(min(sizes))}
    rounds = work.settings.rounds
    return {
        f"epsilon_of_{name}_records": round(epsilon_of(federation, rounds, place), 3)
        for name, place in places.items()
    }


def _scores(
    method: Method, attack: Any, work: Work, asked: set[str]
) -> tuple[dict[str, Score], dict[str, np.ndarray]]:
    """Scores by metric, and pictures."""
    federation, answer = work.federation, work.answer(method, attack)
    if isinstance(answer, LocalModels):
        return _of_models(method, answer.params, work, asked)
    if isinstance(answer, Images):
        score, pictures = _of_images(work, answer.images)
        return {"ssim": score}, pictures
    if isinstance(answer, Sources):
        return dict(source_scores(answer.answers, *work.targets, federation)), {}

    def of_others() -> Sequence[np.ndarray]:
        values: Sequence[np.ndarray] = method.run(work.of_others, attack).values
        return values

    observes = method.observes and work.count > 1
    score = _of_attributes(work, answer.values, of_others if observes else None)
    return {"attribute_accuracy": score}, {}


def _of_attributes(
    work: Work, values: Sequence[np.ndarray], of_others: Callable[[], Sequence[np.ndarray]] | None
) -> Score:
    """Score of a sensitive column's values of every attacked client, and of those that the same
    attack reads out of another client's messages, if there is another."""
    truths = [work.federation.knowledge(c)[1] for c in range(work.count)]

    def right(named: Sequence[np.ndarray]) -> float:
        return mean([accuracy_of(*pair) for pair in zip(named, truths, strict=True)])

    null = None if of_others is None else null_of(lambda: right(of_others()))
    majority = mean([majority_of(truth) for truth in truths])
    return Score(right(values), majority, imputation=work.imputed, null=null)


def _of_models(
    method: Method, params: list[Any], work: Work, asked: set[str]
) -> tuple[dict[str, Score], dict[str, np.ndarray]]:
    federation, count = work.federation, work.count
    scores = dict(fit(federation, params))
    pictures: dict[str, np.ndarray] = {}
    if "zest" in asked:
        theirs = [work.explained(c, params[c]) for c in range(count)]
        pairs = zip(theirs, work.explanations, strict=True)
        scores["zest"] = Score(mean([float(zest_similarity(*pair)) for pair in pairs]))
    if "attribute" in asked:

        def read(models: list[Any]) -> list[np.ndarray]:
            known = [federation.knowledge(c)[0] for c in range(count)]
            pairs = zip(models, known, strict=True)
            return [np.asarray(infer_from_model(federation.model, p, k)) for p, k in pairs]

        others = functools.partial(read, [*params[1:], params[0]]) if count > 1 else None
        scores["attribute_accuracy"] = _of_attributes(work, read(params), others)
    if "source" in asked and EXPERIMENT.traits_of(method).names_sources:
        stacked = stack(params)
        named = np.asarray(least_loss(federation.model, stacked, *work.asked))
        scores |= dict(source_scores([named], *work.targets, federation))
    if "samples" in asked:
        scores["ssim"], pictures = _inverted(method, params, work)
    return scores, pictures


def _of_images(work: Work, answers: list[jax.Array]) -> tuple[Score, dict[str, np.ndarray]]:
    """Likeness of images of every attacked client, each image matched with one of its records;
    chance is that of plain grey."""
    data, parts = work.federation.data, work.federation.parts
    held = [jnp.asarray(data.x[parts[c]]) for c in range(work.count)]
    matched = [matched_likeness(*pair) for pair in zip(answers, held, strict=True)]
    greys = [
        matched_likeness(jnp.full_like(images, GREY), records)[0]
        for images, records in zip(answers, held, strict=True)
    ]
    caption = (
        "images out of the first update of client 0, and below each the record it is matched with"
    )
    below = np.asarray(held[0])[matched[0][1][:SHOWN]]
    pictures = {caption: strips(np.asarray(answers[0])[:SHOWN], below)}
    return Score(mean([score for score, _ in matched]), chance=mean(greys)), pictures


def _inverted(method: Method, params: list[Any], work: Work) -> tuple[Score, dict[str, np.ndarray]]:
    """Likeness of images out of models. Chance is that of plain grey, with which inversion
    begins."""
    federation, inversion = work.federation, work.settings.inversion
    rate = inversion.learning_rate * EXPERIMENT.traits_of(method).inversion_scale
    inversion = dataclasses.replace(inversion, learning_rate=rate)
    scores, greys, pictures = [], [], {}
    for c in range(work.count):
        key = work.view.key_of(c) if work.settings.batch_norm else None
        shape = federation.data.x.shape[1:]
        images = invert_model(federation.model, params[c], shape, key, settings=inversion).images
        scores.append(likeness(federation, c, images))
        greys.append(likeness(federation, c, jnp.full_like(images, inversion.start)))
        if c == 0:
            rows = federation.parts[c]
            x, y = federation.data.x[rows], federation.data.y[rows]
            shown = np.unique(y)[:SHOWN]
            firsts = np.stack([x[np.flatnonzero(y == k)[0]] for k in shown])
            caption = (
                "a record of each class, and what the model of "
                f"client 0 ({method.name}) takes for the class"
            )
            pictures = {caption: strips(firsts, np.asarray(images)[shown])}
    return Score(mean(scores), chance=mean(greys)), pictures


EXPERIMENT = Experiment(
    "local_models",
    LocalModelSettings,
    METHODS,
    METRICS,
    run,
    asked=("measures",),
    batched=False,
    traits=Modelling,
)
