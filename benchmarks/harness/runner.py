"""Running groups: outcomes become rows as they come, and a failure becomes a row's status."""

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.harness.cluster import on_ray
from benchmarks.harness.code import code_of
from benchmarks.harness.engines import Engine, local
from benchmarks.harness.estimates import estimate
from benchmarks.harness.jobs import Group, Job, Outcome
from benchmarks.harness.memory import Meter
from benchmarks.harness.store import Row, Store

FAILURES = "failures.log"
"""In a results folder: where methods failed."""
Published = Callable[[Job, str], float | None]
"""From a job and a metric to the published value."""


def engine_of(name: str, address: str | None = None) -> Engine:
    """What runs groups: "local", or "ray" on the cluster at an address.

    Raises:
      ValueError: if an address is given that nothing looks at.
    """
    if name == "ray":
        return functools.partial(on_ray, address=address)
    if address is not None:
        raise ValueError(f"address={address!r} has no meaning for engine={name!r}")
    return local


def run_groups(
    console: Console,
    engine: Engine,
    store: Store,
    groups: Sequence[Group],
    data_dir: str | None,
    published: Published,
) -> None:
    """Run groups on an engine, with a bar; every outcome is in the store as soon as it
    is measured."""
    versions = _versions()
    # TensorFlow Datasets exchanges `__import__` while it is loaded, which the bar's thread would
    # trip over. Embedded data does without it.
    with contextlib.suppress(ImportError):
        importlib.import_module("jaxfl.datasets.builders")
    clock = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Progress(TextColumn("{task.description}"), BarColumn(), *clock, console=console) as bar:
        left = {job.unit: estimate(job).seconds for g in groups for job in g.jobs}
        task = bar.add_task("", total=sum(left.values()))
        run = functools.partial(run_safely, data_dir=data_dir)
        for group, outcomes in engine(run, groups):
            store.add(_row(outcome, versions, published) for outcome in outcomes)
            _log(store.folder, outcomes)
            bar.update(task, description=f"{group.label} {outcomes[0].job.method}"[:70])
            units = {outcome.job.unit for outcome in outcomes}
            bar.advance(task, sum(left.pop(unit, 0.0) for unit in units))


def unfinished(
    groups: Sequence[Group], finished: Mapping[str, str], keep: bool = False
) -> tuple[list[Group], int]:
    """What is left to run of groups, and how many of its jobs were measured by other code.

    Args:
      groups: what is asked for.
      finished: by the key of a finished job the code that measured it (`Store.finished`).
      keep: take rows of other code for finished too.
    """
    jobs = {job.key: job for group in groups for job in group.jobs}
    others = {key for key, job in jobs.items() if finished.get(key, code_of(job)) != code_of(job)}
    done = {key for key in jobs if key in finished and (keep or key not in others)}
    left = (group.without(done) for group in groups)
    return [group for group in left if group.jobs], len(others)


def resumption(
    jobs: int, left: int, others: int, folder: str | Path, keep: bool | None = None
) -> list[str]:
    """What a resumed run says of the rows that it meets in a folder.

    Args:
      jobs: asked for.
      left: to run.
      others: measured by other code, see `unfinished`.
      folder: of the results.
      keep: whether rows of other code are kept; None where there is no choice.
    """
    lines = []
    if others:
        again = "are measured again" + (" (--keep-rows keeps them)" if keep is False else "")
        fate = "are kept" if keep else again
        lines += [f"{others} jobs in {folder} were measured by other code and {fate}"]
    if left < jobs:
        done = f"{jobs - left} of {jobs} jobs are finished in {folder}"
        lines += [f"{done}; running the other {left}"]
    return lines


def run_safely(group: Group, data_dir: str | None) -> Iterator[Sequence[Outcome]]:
    """A group's outcomes, with the wall time of what each job needs. A method that fails, in
    whatever way, gives its jobs a status; the others go on without it, unless they fail by the
    same."""
    left, told = list(group.jobs), ""
    while left:
        done: set[Job] = set()
        try:
            yield from _timed(_in_32_bits(group.experiment.run(left, data_dir)), done)
            return
        except Exception as error:
            status = f"{type(error).__name__}: {error}".splitlines()[0]
            trace = "".join(traceback.format_exception(error))
        left = [job for job in left if job not in done]
        tried = left[0].how, left[0].method_settings
        first = [job for job in left if (job.how, job.method_settings) == tried]
        failed, told = left if status == told and not done else first, status
        metric = group.experiment.metrics[0].name
        yield [Outcome(job, metric, None, status=status, trace=trace) for job in failed]
        left = [job for job in left if job not in failed]


def _log(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Where methods failed, at the end of the folder's `failures.log`: each place once a call."""
    jobs: dict[str, list[Job]] = {}
    for outcome in outcomes:
        if outcome.trace:
            jobs.setdefault(outcome.trace, []).append(outcome.job)
    for trace, failed in jobs.items():
        cell, seeds = failed[0].cell, sorted({job.seed for job in failed})
        where = f"{cell.suite}/{cell.table} {cell.dataset} {failed[0].method}"
        heading = f"{time.strftime('%F %T')} {where} seeds {','.join(map(str, seeds))}"
        with open(folder / FAILURES, "a", encoding="utf-8") as log:
            log.write(f"{heading}\n{failed[0].settings}\n{trace}\n")


def _in_32_bits(batches: Iterator[Sequence[Outcome]]) -> Iterator[Sequence[Outcome]]:
    """Outcomes computed with 64-bit types off but where a method asks for them, whether or not the
    caller has them on: rows are the same."""
    while True:
        with jax.enable_x64(False):
            outcomes = next(batches, None)
        if outcomes is None:
            return
        yield outcomes


def _timed(batches: Iterator[Sequence[Outcome]], done: set[Job]) -> Iterator[Sequence[Outcome]]:
    """Outcomes with the seconds and the memory that each job took and where; jobs that have any
    are put into `done`."""
    began, meter = time.perf_counter(), Meter()
    for outcomes in batches:
        finished = {outcome.job for outcome in outcomes} - done
        done |= finished
        seconds = (time.perf_counter() - began) / max(len({job.unit for job in finished}), 1)
        memory = meter.read(len({job.computation for job in finished}))
        spent = {"wall_s": round(seconds, 3), **memory}
        yield [
            dataclasses.replace(o, device=device_name(), detail={**o.detail, **spent})
            for o in outcomes
        ]
        began, meter = time.perf_counter(), Meter()


def _versions() -> str:
    import jaxfl

    others = ("jax", "jaxlib", "flax", "optax", "numpy")
    versions = (f"{name} {metadata.version(name)}" for name in others)
    return ", ".join([*versions, f"jaxfl {jaxfl.__version__}{_revision()}"])


def _revision() -> str:
    """Revision of the checkout that this file is part of; an installed package has none."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        for words in (
            ["ls-files", "--error-unmatch", __file__],
            ["describe", "--always", "--dirty"],
        ):
            done = subprocess.run([*git, *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" ({done.stdout.strip()})"


@functools.cache
def device_name() -> str:
    """Name of the default device: an accelerator's kind, or a processor's name with its threads."""
    kind: str = jax.devices()[0].device_kind
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return kind
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} threads" if kind == "cpu" and names else kind


def _row(outcome: Outcome, versions: str, published: Published) -> Row:
    job, cell = outcome.job, outcome.job.cell
    note = {"note": outcome.note} if outcome.note else {}
    same = (
        *("selection", "metric", "value", "status", "chance", "majority", "imputation", "null"),
        *("explained", "misfit"),
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
        "code": code_of(job),
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
