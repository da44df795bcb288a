"""The frontier as one figure, a panel per axis: `python -m benchmarks.frontier_figure --out results
--figure frontier.svg`."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Literal

import tyro

from attacks.metrics import Interval, accuracy_interval
from benchmarks.store import Store
from benchmarks.suites.frontier import METHODS, SETTINGS, TABLES


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
    setting = SETTINGS.get(axis, axis)
    found: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for row in rows:
        if row["table"] == axis and row["metric"] == "accuracy" and row["value"] is not None:
            found.setdefault((row["method"], row["settings"][setting]), []).append(row)
    lines: dict[str, list[Point]] = {}
    for method in METHODS:
        line = [
            _point(place, found[method, place])
            for place in _places(rows, axis)
            if (method, place) in found
        ]
        if line:
            lines[method] = line
    return lines


def _places(rows: Sequence[dict[str, Any]], axis: str) -> list[Any]:
    """The axis' places, in the suite's order."""
    table = next(table for table in TABLES if table.name == axis)
    sizes = dict.fromkeys(row["size"] for row in rows)
    return list(
        dict.fromkeys(
            cell[SETTINGS.get(axis, axis)] for size in sizes for cell in table.cells(size, None)
        )
    )


def _point(place: Any, rows: Sequence[dict[str, Any]]) -> Point:
    interval = accuracy_interval([row["value"] for row in rows], rows[0]["settings"]["records"])
    return Point(place, interval, sum(row["majority"] for row in rows) / len(rows))


def draw(rows: Sequence[dict[str, Any]]) -> Any:
    """A matplotlib figure of all axes that have rows."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    axes = [table for table in TABLES if points(rows, table.name)]
    columns = min(3, len(axes))
    figure = Figure(figsize=(3.6 * columns, 2.9 * -(-len(axes) // columns)), layout="constrained")
    panels = figure.subplots(-(-len(axes) // columns), columns, squeeze=False).reshape(-1)
    colours = {method: f"C{i}" for i, method in enumerate(METHODS)}
    for panel, table in zip(panels, axes, strict=False):
        lines = points(rows, table.name)
        level = {p.place: p.majority for line in lines.values() for p in line}
        places = [place for place in _places(rows, table.name) if place in level]
        panel.plot(
            range(len(places)), [level[p] for p in places], ":", color="grey", label="majority"
        )
        for method, line in lines.items():
            if method == "majority":
                continue
            x = [places.index(p.place) for p in line]
            means = [p.accuracy.mean for p in line]
            low = [max(0.0, p.accuracy.mean - max(p.accuracy.low, 0)) for p in line]
            high = [max(0.0, min(p.accuracy.high, 1) - p.accuracy.mean) for p in line]
            panel.errorbar(
                x,
                means,
                yerr=[low, high],
                fmt="o-",
                markersize=3,
                capsize=2,
                color=colours[method],
                label=method,
            )
        panel.set_xticks(range(len(places)), [str(p) for p in places], fontsize=7)
        panel.set_title(table.title, fontsize=7, wrap=True)
        panel.set(ylim=(0.2, 1.03), xlabel=SETTINGS.get(table.name, table.name))
    for panel in panels[len(axes) :]:
        panel.set_visible(False)
    named = {
        text: handle
        for panel in panels
        for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=len(named), fontsize=8
    )
    figure.supylabel("attribute accuracy", fontsize=9)
    return figure


def main(
    out: str = "results", figure: str = "frontier.svg", size: Literal["small", "paper"] = "paper"
) -> int:
    """Draw the frontier from the results in a folder.

    Args:
        out: the folder.
        figure: file to write; its suffix tells the format.
        size: of the suite.
    """
    try:
        store = Store.existing(out)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [row for row in store.rows() if row["suite"] == "frontier" and row["size"] == size]
    store.close()
    if not any(points(rows, table.name) for table in TABLES):
        print(
            f"error: --out {out!r} holds no rows of frontier at {size} size; run python -m benchmarks.sweep frontier first",
            file=sys.stderr,
        )
        return 2
    draw(rows).savefig(figure, metadata={"Date": None} if figure.endswith(".svg") else None)
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, prog="python -m benchmarks.frontier_figure"))
