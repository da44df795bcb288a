"""The frontier as one figure, a panel per axis: `python -m benchmarks.suites.frontier_figure --out
results --figure frontier.svg`."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import tyro

from benchmarks.harness.command_line import (
    UsageError,
    check_writable,
    exit_code,
    run_command,
    save_figure,
)
from benchmarks.harness.intervals import Interval, accuracy_interval
from benchmarks.harness.jobs import Table
from benchmarks.harness.store import opened
from benchmarks.suites.frontier import METHODS, SETTINGS, SUITE, place_of, places


@dataclasses.dataclass(frozen=True)
class Point:
    """One method at one place of an axis.

    Attributes:
      place: the value of the axis's setting.
      accuracy: mean and interval over seeds.
      majority: mean over seeds.
    """

    place: Any
    accuracy: Interval
    majority: float


def points(rows: Sequence[dict[str, Any]], axis: str) -> dict[str, list[Point]]:
    """A table's rows (of one size) as one line per method, in the order in which the suite lists
    the places."""
    by_place: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    mine = [row for row in rows if row["table"] == axis and row["metric"] == "accuracy"]
    for row in (row for row in mine if row["value"] is not None):
        place = row["method"], place_of(row["settings"], axis)
        by_place.setdefault(place, []).append(row)
    order = _order(rows, axis)
    lines: dict[str, list[Point]] = {}
    for method in METHODS:
        line = [_point(p, by_place[method, p]) for p in order if (method, p) in by_place]
        if line:
            lines[method] = line
    return lines


def _point(place: Any, rows: Sequence[dict[str, Any]]) -> Point:
    interval = accuracy_interval(
        [row["value"] for row in rows], rows[0]["detail"]["scored_records"]
    )
    return Point(place, interval, sum(row["majority"] for row in rows) / len(rows))


def draw(rows: Sequence[dict[str, Any]]) -> Any:
    """A matplotlib figure of all axes that have rows."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    tables = [table for table in SUITE.tables if points(rows, table.name)]
    columns = min(3, len(tables))
    down = -(-len(tables) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * down), layout="constrained")
    panels = figure.subplots(down, columns, squeeze=False).reshape(-1)
    for panel, table in zip(panels, tables, strict=False):
        _draw_axis(panel, rows, table)
    for panel in panels[len(tables) :]:
        panel.set_visible(False)
    entries = [panel.get_legend_handles_labels() for panel in panels]
    named = {text: handle for pair in entries for handle, text in zip(*pair, strict=True)}
    style: dict[str, Any] = {"loc": "outside lower center", "ncols": len(named), "fontsize": 8}
    figure.legend(list(named.values()), list(named), **style)
    figure.supylabel("attribute accuracy", fontsize=9)
    return figure


def _draw_axis(panel: Any, rows: Sequence[dict[str, Any]], table: Table) -> None:
    """One axis: a curve per method, the majority dotted."""
    lines = points(rows, table.name)
    level = {p.place: p.majority for line in lines.values() for p in line}
    order = [place for place in _order(rows, table.name) if place in level]
    across = range(len(order))
    panel.plot(across, [level[p] for p in order], ":", color="grey", label="majority")
    style = {"fmt": "o-", "markersize": 3, "capsize": 2}
    for number, method in enumerate(METHODS):
        if method == "majority" or method not in lines:
            continue
        x = [order.index(p.place) for p in lines[method]]
        of = [p.accuracy for p in lines[method]]
        low = [max(0.0, a.mean - max(a.low, 0)) for a in of]
        high = [max(0.0, min(a.high, 1) - a.mean) for a in of]
        means = [a.mean for a in of]
        panel.errorbar(x, means, yerr=[low, high], color=f"C{number}", label=method, **style)
    panel.set_xticks(across, [str(p) for p in order], fontsize=7)
    panel.set_title(table.title, fontsize=7, wrap=True)
    panel.set(ylim=(0.2, 1.03), xlabel=SETTINGS.get(table.name, table.name))


def _order(rows: Sequence[dict[str, Any]], axis: str) -> list[Any]:
    """The axis' places, in the suite's order."""
    return places(axis, list(dict.fromkeys(row["size"] for row in rows)))


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Draw the frontier from the results in a folder."""

    out: str = "results"
    """The folder."""
    figure: str = "frontier.svg"
    """File to write; its suffix tells the format."""
    size: Literal["small", "paper"] = "paper"
    """Size of the suite."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code as `benchmarks.sweep` does."""
    arguments = tyro.cli(Arguments, args=argv, prog="python -m benchmarks.suites.frontier_figure")
    return exit_code(lambda: _answered(arguments), arguments)


def _answered(arguments: Arguments) -> int:
    out, size, figure = arguments.out, arguments.size, arguments.figure
    check_writable("figure", figure)
    with opened(out) as store:
        rows = [row for row in store.rows() if row["suite"] == "frontier" and row["size"] == size]
    if not any(points(rows, table.name) for table in SUITE.tables):
        raise UsageError(
            f"--out {out!r} holds no rows of frontier at {size} size; run python -m "
            "benchmarks.sweep frontier first"
        )
    save_figure(draw(rows), figure)
    return 0


if __name__ == "__main__":
    run_command(main)
