"""How time grows with victims, rounds and records: measured points, their exponents, a picture."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness.command_line import check_writable
from benchmarks.speed.beside import Attacks, Messages, Rounds
from benchmarks.speed.machine import Limits
from benchmarks.speed.timings import measure, write
from benchmarks.suites.specimens import jobs_of
from jaxfl.domains import Count

Axis = Literal["victims", "rounds", "records"]
VICTIMS = 4
"""Victims at once of the first point, to which each method adds their null messages."""
METHODS = ("statistics", "cos", "closed_form")
"""Methods whose victims grow in number."""
BATCH = 64
"""Records of a step of the clients that `gls` reads."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One measured time: a line of the CSV file.

    Attributes:
      axis: what grows.
      what: is timed.
      size: how many victims, rounds or records.
      seconds: the fastest warm run, as a whole.
    """

    axis: str
    what: str
    size: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Growth:
    """Time against victims, rounds and records, and the exponents."""

    axes: tyro.conf.Positional[tuple[Axis, ...]] = ()
    """What grows; all three if none is named."""
    times: tuple[Count, ...] = (1, 2, 5, 10)
    """Multiples of the default number of victims and rounds."""
    records: tuple[Count, ...] = (100, 300, 1000, 3000, 10_000)
    """Records of the victim."""
    repeats: Count = 2
    """Timed runs of each, of which the fastest counts."""
    out: str = "growth.csv"
    """The CSV file; the picture stands beside it as .svg."""

    def show(self, console: Console) -> None:
        """Measure, print and write. Raises `ValueError` on a file that cannot be written."""
        check_writable("out", self.out)
        points: list[Point] = []
        for axis in self.axes or get_args(Axis):
            for point in MEASURED[axis](self):
                console.print(f"[dim]{axis} {point.size} {point.what} {point.seconds:.3g} s[/dim]")
                points.append(point)
                write(Path(self.out), points, Point)
        draw(points, Path(self.out).with_suffix(".svg"))
        console.print(table_of(points))

    def of_victims(self) -> Iterator[Point]:
        """Victims of one group; most of what a method does is one program."""
        device = jax.devices()[0].device_kind
        nowhere = Limits(device, {"float32": math.inf, "float64": math.inf}, math.inf)
        jobs = [job for job in jobs_of("default") if job.cell.experiment.name == "attributes"]
        first = {job.method: job for job in reversed(jobs)}
        for times, method in itertools.product(self.times, METHODS):
            timed = measure(
                [first[method]], "default", nowhere, members=VICTIMS * times, repeats=self.repeats
            )
            attack = next(t for t in timed if t.program.endswith(f" {method}"))
            yield Point("victims", method, attack.members, attack.seconds)

    def of_rounds(self) -> Iterator[Point]:
        """Rounds of training, and messages that attacks match at once."""
        for times in self.times:
            training = Rounds(rounds=10 * times, repeats=self.repeats)
            (per_round,) = training.time(2000).values()
            seconds = training.rounds * per_round.best / 1e3
            yield Point("rounds", "simulate, all rounds", training.rounds, seconds)
            matched = Attacks(rounds=5 * times, repeats=self.repeats)
            yield from _points("rounds", matched.rounds, matched, 100)

    def of_records(self) -> Iterator[Point]:
        """Records of one victim."""
        for records in self.records:
            attacks = Attacks(repeats=self.repeats)
            yield from _points("records", records, attacks, records)
            decoding = Messages(
                batch_size=min(BATCH, records),
                rounds=2,
                hidden=attacks.hidden,
                repeats=self.repeats,
            )
            (per_message,) = decoding.time(records).values()
            seconds = decoding.rounds * per_message.best / 1e3
            yield Point("records", f"gls, {decoding.rounds} messages", records, seconds)


MEASURED: dict[Axis, Callable[[Growth], Iterator[Point]]] = {
    "victims": Growth.of_victims,
    "rounds": Growth.of_rounds,
    "records": Growth.of_records,
}


def _points(axis: Axis, size: int, attacks: Attacks, records: int) -> Iterator[Point]:
    for what, duration in attacks.time(records).items():
        yield Point(axis, what, size, duration.best / 1e3)


def exponents(points: Sequence[Point]) -> tuple[float, float]:
    """Exponents of time in size: over all points by least squares, and between the last two; NaN
    where the points do not tell."""
    known = sorted({p.size: p.seconds for p in points if p.seconds > 0}.items())
    if len(known) < 2:
        return math.nan, math.nan
    sizes, seconds = np.log(np.asarray(known)).T
    whole = float(np.polyfit(sizes, seconds, 1)[0])
    return whole, float((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))


def curves(points: Sequence[Point]) -> dict[tuple[str, str], list[Point]]:
    """Points by axis and what is timed."""
    by_curve: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        by_curve.setdefault((point.axis, point.what), []).append(point)
    return by_curve


def table_of(points: Sequence[Point]) -> Table:
    """A line a curve: its points and exponents."""
    table = Table(title=f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    for name in ("grows", "what", "size: seconds"):
        table.add_column(name)
    for name in ("exponent", "of the last two"):
        table.add_column(name, justify="right")
    for (axis, what), curve in curves(points).items():
        shown = ", ".join(f"{p.size:,}: {p.seconds:.3g}" for p in curve)
        table.add_row(axis, what, shown, *(f"{e:.2f}" for e in exponents(curve)))
    return table


def draw(points: Sequence[Point], path: Path) -> None:
    """A panel an axis, both scales logarithmic."""
    import matplotlib.pyplot as plt

    drawn = list(dict.fromkeys(point.axis for point in points))
    figure, panels = plt.subplots(
        1, len(drawn), figsize=(4.5 * len(drawn), 4), layout="constrained", squeeze=False
    )
    for panel, axis in zip(panels[0], drawn, strict=True):
        for (_, what), curve in curves([p for p in points if p.axis == axis]).items():
            name = f"{what}: {exponents(curve)[0]:.2f}"
            panel.loglog(
                [p.size for p in curve], [p.seconds for p in curve], "o-", ms=4, label=name
            )
        panel.set_xlabel(axis)
        panel.set_ylabel("seconds")
        panel.legend(fontsize=7, title="exponent")
    figure.savefig(path)
    plt.close(figure)
