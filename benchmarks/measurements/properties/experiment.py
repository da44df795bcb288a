"""How decoders of sums are scored: a batch of federations, each method once for all prefixes."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks.metrics import ranking
from attacks.properties.surprise import most_surprise
from benchmarks.harness.engines import Compiled
from benchmarks.harness.experiment import Experiment, Method
from benchmarks.harness.jobs import Cell, Job, Outcome, by_method
from benchmarks.measurements.properties.methods import (
    METHODS,
    METRICS,
    Decoding,
    PropertySettings,
)
from benchmarks.measurements.properties.work import Trained, decoded, surprises, train

Array = jax.Array
Scores = dict[str, float]
"""By metric."""
Decoder = Callable[[Method, Any], Compiled]
Ranked = list[dict[int, Scores]]
"""How well a method ranks, by seed and number of seen rounds."""


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group: all seeds in one batch, each method once for all numbers of seen
    rounds."""
    cell, seeds = jobs[0].cell, list(dict.fromkeys(job.seed for job in jobs))
    trained = train(cell.settings, cell.dataset, seeds, data_dir)
    seen = tuple(sorted({t for job in jobs for t in job.cell.settings.prefixes}))
    decode = functools.cache(functools.partial(decoded, trained, seen))
    surprised = functools.cache(functools.partial(surprises, trained, seen))
    for method, attack, wanted in by_method(jobs):
        traits = EXPERIMENT.traits_of(method)
        done, far = None, None
        if traits.reports:
            scores = [{t: _detector(trained, s, t) for t in seen} for s in range(len(seeds))]
        else:
            far = surprised()
            if traits.best_of:
                scores = _best(trained, seen, cell, traits.best_of, decode)
            else:
                done = decode(method, attack)
                scores = _ranked(trained, seen, method, done)
        shared: dict[str, Any] = {
            "selection": "oracle" if method.oracle else "none",
            "compile_s": done and done.compile_s,
            "run_s": done and done.run_s,
            "dtype": "float32",
            "note": trained.note,
        }
        outcomes = []
        for job in wanted:
            s, prefixes = seeds.index(job.seed), job.cell.settings.prefixes
            facts = shared | {"test_accuracy": float(trained.test_accuracy[s])}
            facts["detail"] = _detail(trained, s)
            facts = _doubted(facts, [far[s][t] for t in prefixes] if far else [])
            outcomes += _outcomes(job, trained, s, [scores[s][t] for t in prefixes], facts)
        yield outcomes


def _outcomes(
    job: Job, trained: Trained, s: int, scores: Sequence[Scores], facts: dict[str, Any]
) -> list[Outcome]:
    """Means over prefixes; beside the accuracy that of saying the same of all clients."""
    positives = np.asarray(trained.drawn.positives[s])
    usual = {"accuracy": float(max(positives.mean(), 1 - positives.mean()))}
    return [
        Outcome(job, metric, value, majority=usual.get(metric), **facts)
        for metric, value in _averaged(scores).items()
    ]


def _detail(trained: Trained, s: int) -> dict[str, float]:
    """Seconds of what methods share, how good detectors are, and how many of the records have the
    attribute, where that is the property."""
    correlation = round(float(trained.detectors.correlation[s, -1]), 3)
    prevalence, shares = trained.drawn.prop.prevalence, {}
    if prevalence is not None:
        shares = {"without": prevalence.without, "with": prevalence.with_property}
    told = {f"share_{name}": float(np.asarray(share)[s]) for name, share in shares.items()}
    return trained.detail | {"correlation": correlation} | told


def _doubted(facts: dict[str, Any], surprises: Sequence[float]) -> dict[str, Any]:
    """Facts with what sums say against any answer: the worst prefix's `attacks.surprise`."""
    worst = max(filter(math.isfinite, surprises), key=abs, default=math.nan)
    if math.isnan(worst):
        return facts
    status = "misfit" if abs(worst) > most_surprise(len(surprises)) else "ok"
    return facts | {"status": status, "detail": facts["detail"] | {"surprise": round(worst, 2)}}


def _best(
    trained: Trained, seen: Sequence[int], cell: Cell, names: Sequence[str], decode: Decoder
) -> Ranked:
    """The best F1 of several methods."""
    methods, given = map(cell.experiment.method, names), dict(cell.method_settings)
    ours = [_ranked(trained, seen, m, decode(m, given.get(m.name, m.settings))) for m in methods]
    return [
        {t: max((ranked[s][t] for ranked in ours), key=lambda r: r["f1"]) for t in seen}
        for s in range(len(ours[0]))
    ]


def _averaged(scores: Sequence[Scores]) -> Scores:
    """Mean over numbers of seen rounds; without the Brier score of what is no probability."""
    means = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    return {name: v for name, v in means.items() if name != "brier" or np.isfinite(v)}


def _ranked(trained: Trained, seen: Sequence[int], method: Method, done: Compiled) -> Ranked:
    positives = np.asarray(trained.drawn.positives)
    threshold = EXPERIMENT.traits_of(method).threshold
    return [
        {t: vars(ranking(row, truth, threshold)) for t, row in zip(seen, rows, strict=True)}
        for rows, truth in zip(np.asarray(done.results), positives, strict=True)
    ]


def _detector(trained: Trained, s: int, seen: int) -> Scores:
    """Scores of a seed's detector of the last seen round."""
    detectors = trained.detectors
    mean, variance = (np.asarray(a[s, seen - 1]) for a in (detectors.mean, detectors.variance))
    return {
        "separation": float((mean[1] - mean[0]) / np.sqrt(variance.mean())),
        "overlap": float(trained.overlaps[s, seen - 1]),
        "norm": float(jnp.linalg.norm(detectors.direction[s, seen - 1])),
    }


EXPERIMENT = Experiment(
    "properties",
    PropertySettings,
    METHODS,
    METRICS,
    run,
    asked=("seen",),
    traits=Decoding,
)
