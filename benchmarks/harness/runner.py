"""Running groups: outcomes become rows as they come, and a failure becomes a row's status."""

import dataclasses
import functools
import importlib
import io
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.harness.engines import ENGINES
from benchmarks.harness.estimates import estimate
from benchmarks.harness.jobs import Group, Job, Outcome
from benchmarks.harness.store import Row, Store

Published = Callable[[Job, str], float | None]
"""From a job and a metric to the published value."""


def run_groups(
    console: Console,
    engine: str,
    store: Store,
    groups: Sequence[Group],
    data_dir: str | None,
    published: Published,
) -> None:
    """Run groups on an engine, with a bar; every outcome is in the store as soon as it
    is measured."""
    versions = _versions()
    # TensorFlow Datasets exchanges `__import__` while it is loaded, which the bar's thread would
    # trip over.
    importlib.import_module("jaxfl.datasets.builders")
    clock = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Progress(TextColumn("{task.description}"), BarColumn(), *clock, console=console) as bar:
        task = bar.add_task("", total=sum(estimate(job).seconds for g in groups for job in g.jobs))
        run = functools.partial(run_safely, data_dir=data_dir)
        for group, outcomes in ENGINES[engine](run, groups):
            store.add(_row(outcome, versions, published) for outcome in outcomes)
            bar.update(task, description=f"{group.label} {outcomes[0].job.method}"[:70])
            done = dict.fromkeys(outcome.job for outcome in outcomes)
            bar.advance(task, sum(estimate(job).seconds for job in done))


def run_safely(group: Group, data_dir: str | None) -> Iterator[Sequence[Outcome]]:
    """A group's outcomes, with the wall time of each job; a failure becomes the status of the jobs
    that have none yet, whatever its kind."""
    done: set[Job] = set()
    began = time.perf_counter()
    try:
        for outcomes in group.experiment.run(group.jobs, data_dir):
            finished = {outcome.job for outcome in outcomes} - done
            done |= finished
            seconds = (time.perf_counter() - began) / max(len(finished), 1)
            spent = {"wall_s": round(seconds, 3), "peak_mib": _peak()}
            device = jax.devices()[0].device_kind
            yield [
                dataclasses.replace(o, device=device, detail={**o.detail, **spent})
                for o in outcomes
            ]
            began = time.perf_counter()
    except Exception as error:
        status = f"{type(error).__name__}: {error}".splitlines()[0]
        metric = group.experiment.metrics[0].name
        failed = [job for job in group.jobs if job not in done]
        yield [Outcome(job, metric, None, status=status) for job in failed]


def _peak() -> int:
    """Largest memory of this process so far, MiB."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kibibytes / (2**20 if sys.platform == "darwin" else 2**10))


def _versions() -> str:
    import jaxfl

    return f"jax {jax.__version__}, numpy {np.__version__}, jaxfl {jaxfl.__version__}"


def _row(outcome: Outcome, versions: str, published: Published) -> Row:
    job, cell = outcome.job, outcome.job.cell
    note = {"note": outcome.note} if outcome.note else {}
    same = (
        *("selection", "metric", "value", "status", "chance", "majority"),
        *("train_accuracy", "test_accuracy", "compile_s", "run_s", "device", "dtype"),
    )
    values: dict[str, Any] = {
        "suite": cell.suite,
        "table": cell.table,
        "size": cell.size,
        "dataset": cell.dataset,
        "method": job.method,
        "seed": job.seed,
        "published": published(job, outcome.metric),
        "versions": versions,
        "settings": json.dumps(job.settings, sort_keys=True),
        "detail": json.dumps({**outcome.detail, **note}, sort_keys=True),
        **{name: getattr(outcome, name) for name in same},
    }
    return Row(job.key, values, {caption: _png(i) for caption, i in outcome.images.items()})


def _png(image: np.ndarray) -> bytes:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, np.clip(image, 0, 1), cmap="gray", vmin=0, vmax=1, format="png")
    return buffer.getvalue()
