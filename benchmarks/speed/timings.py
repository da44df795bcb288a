"""How fast every program of a measurement runs, and how far from the machine's limits."""

import csv
import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from attacks import FitWarning
from benchmarks.harness.jobs import Job
from benchmarks.harness.operations import Operations
from benchmarks.harness.programs import Call, HostError, watched
from benchmarks.speed.machine import Limits

LOW = 0.25
"""Share of what is attainable below which a reason is given."""
SHORT = 20e-6
"""Seconds at the machine's limits below which a step is too short to keep it busy."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """One program, warm, compile time apart: a line of the table and of the CSV file.

    Attributes:
      experiment: that it is part of.
      program: a function; of a group of victims, what each of them runs.
      methods: that run it, separated by commas.
      size: "tiny", "default" or "full".
      device: that it ran on.
      dtype: "float64" if 64-bit types are on around it, else "float32". An attack that switches
        them on itself, as `gls` does with `drift`, computes in more than that when called alone.
      members: victims, clients or updates that it handles at once.
      seconds: of one run, all members together; the fastest.
      compile_s: of the first run.
      products, factorisations, elementwise: operations of one run, see `Operations`.
      bytes: that products and factorisations read and write.
      steps: of innermost loops, of all members.
      share: operations per second, relative to what is attainable at so many operations per byte.
      limit: why the share is low, or why there is none.
      peak_mib: most memory of the device that was in use until its job ended; 0: not known.
    """

    experiment: str
    program: str
    methods: str
    size: str
    device: str
    dtype: str
    members: int
    seconds: float
    compile_s: float
    products: float = math.nan
    factorisations: float = math.nan
    elementwise: float = math.nan
    bytes: float = math.nan
    steps: float = math.nan
    share: float = math.nan
    limit: str = ""
    peak_mib: float = 0.0

    @property
    def per_second(self) -> float:
        """Members."""
        return self.members / self.seconds

    @property
    def work(self) -> float:
        """All operations; NaN where they are not counted."""
        return self.products + self.factorisations + self.elementwise

    @property
    def flops(self) -> float:
        """Operations per second."""
        return self.work / self.seconds

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.work / self.bytes if self.bytes else math.inf


def measure(
    jobs: Sequence[Job],
    size: str,
    limits: Limits,
    *,
    members: int = 1,
    repeats: int = 3,
    tell: Callable[[Job], None] = lambda job: None,
    keep: Callable[[list[Timing]], None] = lambda done: None,
) -> list[Timing]:
    """Every program that jobs run: of several of one name, the one that takes longest.

    Args:
      jobs: of one size.
      size: its name.
      limits: of the machine.
      members: seeds that run at once, of experiments that take several.
      repeats: warm runs.
      tell: is called with each job before it runs.
      keep: is called after each with all timings so far, so that nothing is lost.
    """
    calls: list[Call] = []
    users: dict[Place, list[str]] = {}
    slowest: dict[Place, Timing] = {}
    done: list[Timing] = []
    for job in jobs:
        tell(job)
        began, experiment = len(calls), job.cell.experiment
        failed = _run(job, members if experiment.batched else 1, calls, repeats)
        timed = [_timing(job, call, size, limits) for call in calls[began:] if _is_new(call, calls)]
        timed += [_failed(job, size, limits, failed)] if failed else []
        for timing in (t for t in timed if t.work != 0):
            place = experiment.name, timing.program
            slowest[place] = _slower(slowest.get(place), timing)
        ran = [call.program.name for call in calls[began:]] + ([job.method] if failed else [])
        for place in ((experiment.name, name) for name in ran):
            users.setdefault(place, []).append(job.method)
        named = {place: ",".join(dict.fromkeys(names)) for place, names in users.items()}
        done = [dataclasses.replace(t, methods=named[place]) for place, t in slowest.items()]
        keep(done)
    return done


Place = tuple[str, str]
"""Names of an experiment and of a program."""


def _is_new(call: Call, calls: list[Call]) -> bool:
    """Whether it is the first of its program, which alone was timed."""
    return next(each for each in calls if each.program == call.program) is call


def _slower(known: Timing | None, timing: Timing) -> Timing:
    return known if known and not timing.seconds > known.seconds else timing


def _run(job: Job, members: int, calls: list[Call], repeats: int) -> str:
    """Put what a job runs into `calls`; why it failed, if it did."""
    jobs = [dataclasses.replace(job, seed=seed) for seed in range(members)]
    watching = watched(calls, repeats=repeats)
    try:
        with warnings.catch_warnings(), jax.enable_x64(False), watching:
            warnings.simplefilter("ignore", FitWarning)
            list(job.cell.experiment.run(jobs, None))
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _failed(job: Job, size: str, limits: Limits, why: str) -> Timing:
    name = job.cell.experiment.name
    return Timing(
        name, job.method, job.method, size, limits.device, "", 0, math.nan, 0.0, limit=why
    )


def _timing(job: Job, call: Call, size: str, limits: Limits) -> Timing:
    program = call.program
    known: dict[str, Any] = {
        "experiment": job.cell.experiment.name,
        "program": program.name,
        "methods": job.method,
        "size": size,
        "device": limits.device,
        "dtype": "float64" if program.x64 else "float32",
        "members": call.members,
        "seconds": call.seconds,
        "compile_s": call.compile_s,
        "peak_mib": _peak(),
    }
    try:
        counted = program.operations
    except HostError:
        return Timing(**known, limit=f"on the host: {program.on_host or 'it looks at values'}")
    scaled = {
        name: call.members * getattr(counted, name)
        for name in ("products", "factorisations", "elementwise", "bytes", "steps")
    }
    timing = Timing(**known, **scaled)
    attainable = limits.attainable(timing.dtype, timing.intensity)
    timing = dataclasses.replace(timing, share=timing.flops / attainable)
    return dataclasses.replace(timing, limit=_limit(timing, counted, limits))


def _limit(timing: Timing, counted: Operations, limits: Limits) -> str:
    """Why a share is low, in one line."""
    if counted.open_loops:
        return f"{counted.open_loops} open loops, counted once: it does more than that"
    if timing.share >= LOW:
        return ""
    steps = max(timing.steps, timing.members)
    floor = timing.share * timing.seconds / steps
    work = {
        "products": timing.products,
        "factorisations": timing.factorisations,
        "numbers one by one": timing.elementwise,
    }
    most = max(work, key=lambda name: work[name])
    if floor < SHORT:
        taken = f"{1e6 * timing.seconds / steps:.0f} us each"
        return f"steps are short: {taken}, {1e6 * floor:.2g} us at the limit"
    if most != "products":
        return f"most work is of {most}"
    if timing.bytes / timing.seconds > LOW * limits.bandwidth:
        return "bytes: operands are read more often than a copy would"
    return "products of small matrices"


def _peak() -> float:
    stats = jax.local_devices()[0].memory_stats() or {}
    return round(stats.get("peak_bytes_in_use", 0) / 2**20, 1)


def write(path: Path, records: Sequence[Any], kind: type = Timing) -> None:
    """Records of one kind as CSV, one line each."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(kind)])
        writer.writeheader()
        writer.writerows(dataclasses.asdict(record) for record in records)


def read(path: Path) -> list[Timing]:
    """What `write` wrote.

    Raises:
      ValueError: if the file is none of its.
    """
    kinds: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Timing)}
    try:
        lines = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        if set(lines.fieldnames or ()) != set(kinds):
            raise ValueError("its columns are others")
        return [Timing(**{name: kinds[name](v) for name, v in line.items()}) for line in lines]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is no table of timings ({error})") from error
