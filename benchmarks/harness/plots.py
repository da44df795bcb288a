"""Plots of a report: marks by setting, or curves where cells differ in a number that counts."""

import base64
import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.intervals import Interval

AXES = {
    "seen": "rounds seen",
    "interval": "rounds between query and gallery",
    "epoch": "epochs",
    "round": "rounds",
}
"""Settings that make an abscissa."""
ON_CURVES = ("f1", "precision", "matching_accuracy", "shared_accuracy")
"""Metrics drawn against them: the first that a table has."""
FIRST = {"epoch": "matching_accuracy"}
"""What is drawn before all these, by abscissa."""
MOST_NAMED = 40
"""Settings up to which a plot grows and names each."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table: one method in one cell over its seeds; texts ready to print.

    Attributes:
      place: the settings that tell its cell from the table's others.
    """

    setting: str
    place: tuple[tuple[str, Any], ...]
    method: str
    selection: str
    metric: str
    n: int
    mean: str
    interval: str
    chance: str
    majority: str
    imputation: str
    null: str
    guess: str
    learnt: str
    fit: str
    published: str
    train_accuracy: str
    test_accuracy: str
    compile_s: str
    run_s: str
    device: str
    versions: str
    note: str
    redo: str
    estimate: Interval
    majority_value: float
    published_value: float | None


def draw(title: str, lines: Sequence[Line]) -> str:
    """A table's plot as base64 PNG, or "" if there is nothing to be drawn."""
    shown = [line for line in lines if math.isfinite(line.estimate.mean)]
    metrics = {line.metric for line in shown}
    axis = next((a for a in AXES if len({dict(line.place).get(a) for line in shown}) > 1), None)
    metric = (
        next((m for m in (FIRST.get(str(axis)), *ON_CURVES) if m in metrics), None) or "accuracy"
    )
    shown = [line for line in shown if line.metric == metric]
    if metric == "accuracy":
        shown = [line for line in shown if line.selection != "oracle"]
    if not shown or (metric != "accuracy" and axis is None):
        return ""
    import matplotlib as mpl

    mpl.use("Agg")
    figure = (
        _marks(title, shown) if metric == "accuracy" else _curves(title, shown, str(axis), metric)
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()


def _marks(title: str, lines: Sequence[Line]) -> Any:
    """Means and intervals by setting and method, majority rate and published values beside them."""
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys(line.setting for line in lines))
    methods = list(dict.fromkeys(line.method for line in lines))
    across = 0.9 * min(len(settings), MOST_NAMED) + 3
    figure = Figure(figsize=(max(6.0, across), 3.6), layout="constrained")
    axes, at = figure.subplots(), {setting: place for place, setting in enumerate(settings)}
    for m, method in enumerate(methods):
        chosen = [line for line in lines if line.method == method]
        beside = 0.7 * (m / max(len(methods) - 1, 1) - 0.5)
        places = [at[line.setting] + beside for line in chosen]
        means, reach = [line.estimate.mean for line in chosen], _reach(chosen)
        style: dict[str, Any] = {"fmt": "o", "markersize": 4, "capsize": 2}
        drawn = axes.errorbar(places, means, yerr=reach, label=method, **style)
        known = _published(places, chosen)
        if known:
            axes.scatter(*known, marker="x", color=drawn[0].get_color(), zorder=3)
    levels = {line.setting: line.majority_value for line in reversed(lines)}
    left, right = ([at[setting] + side for setting in levels] for side in (-0.45, 0.45))
    axes.hlines(list(levels.values()), left, right, color="grey", linestyle=":")
    if len(settings) <= MOST_NAMED:
        names = [setting.replace(" ", "\n") for setting in settings]
        axes.set_xticks(range(len(settings)), names, fontsize=7)
    else:
        axes.set_xlabel("settings, in the table's order")
    axes.set(
        ylabel="accuracy", ylim=(-0.02, 1.04), title=f"{title} (dotted: majority, x: published)"
    )
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _reach(lines: Sequence[Line]) -> list[list[float]]:
    """How far intervals reach below and above their means, within [0, 1]."""
    of = [line.estimate for line in lines]
    below = [max(0.0, e.mean - max(e.low, 0)) for e in of]
    return [below, [max(0.0, min(e.high, 1) - e.mean) for e in of]]


def _published(places: Sequence[Any], lines: Sequence[Line]) -> list[tuple[Any, ...]]:
    """Places and published values of those lines that have one; nothing if none has."""
    values = [(p, line.published_value) for p, line in zip(places, lines, strict=True)]
    return list(zip(*(pair for pair in values if pair[1] is not None), strict=True))


def _curves(title: str, lines: Sequence[Line], axis: str, metric: str) -> Any:
    """Means and intervals against one setting, a panel for every value of the others; published
    values dashed."""
    from matplotlib.figure import Figure

    panels: dict[str, list[Line]] = {}
    for line in lines:
        if isinstance(dict(line.place).get(axis), (int, float)):
            panels.setdefault(" ".join(f"{k}={v}" for k, v in line.place if k != axis), []).append(
                line
            )
    methods = list(dict.fromkeys(line.method for line in lines))
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(3.6 * across + 1.6, 2.8 * down + 0.4), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for panel, (name, members) in zip(axes, panels.items(), strict=False):
        for m, method in enumerate(methods):
            mine = [line for line in members if line.method == method]
            _curve(panel, sorted(mine, key=lambda line: dict(line.place)[axis]), axis, f"C{m}")
        panel.set(title=name, xlabel=AXES[axis], ylim=(-0.02, 1.04))
        panel.title.set_fontsize(8)
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    axes[0].set_ylabel(metric.replace("_", " "))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, loc="outside right center")
    figure.suptitle(f"{title} (dashed: published)", fontsize=9)
    return figure


def _curve(panel: Any, lines: Sequence[Line], axis: str, color: str) -> None:
    """One method's curve with its band, and the published one."""
    if not lines:
        return
    at = [dict(line.place)[axis] for line in lines]
    means = [line.estimate.mean for line in lines]
    panel.plot(at, means, color=color, marker=".", label=lines[0].method)
    ends = [
        [end if math.isfinite(end) else line.estimate.mean for end in line.estimate[1:]]
        for line in lines
    ]
    panel.fill_between(at, *zip(*ends, strict=True), color=color, alpha=0.15, linewidth=0)
    known = _published(at, lines)
    if known:
        panel.plot(*known, color=color, linestyle="--", linewidth=1)
