"""Timings as a table, beside those of another run, and as a roofline."""

import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.speed.machine import Limits
from benchmarks.speed.timings import LOW, Timing

COLUMNS = (
    *("experiment", "program", "methods", "at once", "ms", "per second", "GFLOP/s"),
    *("of product", "of copy", "compile s", "why below a quarter"),
)
TEXTS = (0, 1, 2, 10)


def table_of(timings: Sequence[Timing], limits: Limits) -> Table:
    """One line a program: its rate, and its share of what products and copies reach here."""
    peak = ", ".join(f"{rate / 1e9:.4g} GFLOP/s in {dtype}" for dtype, rate in limits.flops.items())
    title = f"{limits.device}; products {peak}; copy {limits.bandwidth / 1e9:.3g} GB/s"
    table = Table(title=title)
    for place, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if place in TEXTS else "right", overflow="fold")
    for timing in timings:
        table.add_row(*_line(timing, limits))
    return table


def _line(timing: Timing, limits: Limits) -> list[str]:
    products = timing.flops / limits.flops.get(timing.dtype, math.nan)
    copied = timing.bytes / timing.seconds / limits.bandwidth
    return [
        timing.experiment,
        timing.program,
        _shortened(timing.methods),
        str(timing.members),
        f"{1e3 * timing.seconds:.3g}",
        f"{timing.per_second:.3g}",
        *("" if math.isnan(v) else f"{v:.3g}" for v in (timing.flops / 1e9,)),
        *("" if math.isnan(v) else f"{v:.1%}" for v in (products, copied)),
        f"{timing.compile_s:.1f}",
        timing.limit,
    ]


def _shortened(methods: str) -> str:
    names = methods.split(",")
    return methods if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"


def compared(before: Sequence[Timing], now: Sequence[Timing]) -> Table:
    """Both runs' times of programs that both have, and how many times faster the later is."""
    old = {(t.experiment, t.program, t.size): t for t in before}
    first, last = (each[0].device if each else "" for each in (before, now))
    table = Table(title=f"milliseconds a member: {first}, then {last}")
    for name in ("experiment", "program", "at once", "before", "at once", "now", "times faster"):
        table.add_column(name, justify="left" if name in ("experiment", "program") else "right")
    for timing in now:
        other = old.get((timing.experiment, timing.program, timing.size))
        if other is None or not (timing.members and other.members):
            continue
        each = [1e3 * t.seconds / t.members for t in (other, timing)]
        table.add_row(
            timing.experiment,
            timing.program,
            *(str(other.members), f"{each[0]:.3g}", str(timing.members), f"{each[1]:.3g}"),
            f"{each[0] / each[1]:.3g}",
        )
    return table


def draw_roofline(timings: Sequence[Timing], limits: Limits, path: Path) -> None:
    """Operations per second against operations per byte, under what the machine attains."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    across = np.geomspace(0.05, 2000, 200)
    for dtype, style in (("float32", "-"), ("float64", "--")):
        roof = [limits.attainable(dtype, intensity) for intensity in across]
        axes.loglog(across, roof, style, color="black", lw=1, label=f"attainable in {dtype}")
    drawn = [t for t in timings if math.isfinite(t.intensity) and t.flops > 0]
    for experiment in dict.fromkeys(t.experiment for t in drawn):
        mine = [t for t in drawn if t.experiment == experiment]
        axes.loglog(
            [t.intensity for t in mine], [t.flops for t in mine], "o", ms=5, label=experiment
        )
    for timing in drawn:
        if timing.share >= LOW or timing.seconds > 1:
            place = timing.intensity, timing.flops
            axes.annotate(
                timing.program, place, fontsize=6, xytext=(3, 3), textcoords="offset points"
            )
    axes.set_xlabel("operations per byte of products' operands")
    axes.set_ylabel("operations per second")
    axes.set_title(limits.device)
    axes.legend(fontsize=7)
    figure.savefig(path)
    plt.close(figure)
