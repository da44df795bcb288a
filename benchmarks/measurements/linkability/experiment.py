"""Two federations, each method once, and what its descriptors link (Song 2020, section VII-B)."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from attacks.users import linkability as link
from benchmarks.harness.clock import Clock
from benchmarks.harness.experiment import Experiment
from benchmarks.harness.jobs import Job, Outcome, by_method
from benchmarks.measurements.linkability.methods import METHODS, METRICS
from benchmarks.measurements.linkability.scores import linked
from benchmarks.measurements.linkability.work import Linking, LinkSettings
from benchmarks.scenarios.anonymous import Anonymous, draw

Array = jax.Array


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: two federations, each method once for all that is asked of
    it. What methods share is in the run time of the first that needs it."""
    cell, seed = jobs[0].cell, jobs[0].seed
    began = time.perf_counter()
    drawn = draw(cell.dataset, cell.settings, data_dir, seed)
    simulated = time.perf_counter() - began
    epochs = sorted({job.cell.settings.epoch for job in jobs})
    linking = Linking(drawn.view, cell.settings, epochs, _granted(cell.settings, drawn))
    for method, rule, wanted in by_method(jobs):
        clock = Clock()
        descriptors = method.run(linking, rule)
        jax.block_until_ready(descriptors)
        shared: dict[str, Any] = {
            "test_accuracy": drawn.test_accuracy,
            **clock.read()._asdict(),
            "dtype": "float32",
            "note": drawn.data.note,
        }
        if method.explains:
            explained = float(linking.representatives[0].explained.mean())
            shared["explained"] = explained if math.isfinite(explained) else None
        mine, other, *losses = descriptors
        outcomes = []
        for job in wanted:
            settings = job.cell.settings
            detail: dict[str, Any] = {"simulation_s": round(simulated, 1)}
            at = mine, other
            for loss in losses:
                place = epochs.index(settings.epoch)
                at = mine[place], other[place]
                detail["loss"] = round(float(loss[settings.epoch - 1]), 3)
                detail["loss_of_guessing"] = round(math.log(2 * settings.clients), 3)
            compared = [link.unit(each, rule.centred) for each in at]
            scores = linked(drawn, *compared, interval=settings.interval, pairs=settings.pairs)
            for metric, value in scores.items():
                known = cell.experiment.metric(metric).chance
                chance = 1 / settings.clients if known is None else known
                outcomes.append(Outcome(job, metric, value, chance=chance, detail=detail, **shared))
        yield outcomes


def _granted(settings: LinkSettings, drawn: Anonymous) -> tuple[Array, Array] | None:
    """The labels of all clients, where the server is taken to know them."""
    if settings.labels != "known":
        return None
    return drawn.clients.labels(drawn.data), drawn.shadow.labels(drawn.data)


EXPERIMENT = Experiment(
    "linkability",
    LinkSettings,
    METHODS,
    METRICS,
    run,
    asked=("interval", "epoch"),
    batched=False,
)
