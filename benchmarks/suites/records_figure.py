"""What stops whole records from being read, as one figure:
`python -m benchmarks.suites.records_figure --out results --figure records.svg`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tyro

from benchmarks.harness.command_line import (
    UsageError,
    check_writable,
    exit_code,
    run_command,
    save_figure,
)
from benchmarks.harness.intervals import Interval, wilson_interval
from benchmarks.harness.store import opened

METHOD = "reconstruct_records"
METRICS = ("complete", "records_exact")


@dataclasses.dataclass(frozen=True)
class Bar:
    """What is read under one defence.

    Attributes:
      name: of the defence.
      complete: share of batches of which all is read, with Wilson's interval.
      records: mean share of records that are exact.
      batches: how many.
    """

    name: str
    complete: Interval
    records: float
    batches: int


def name_of(settings: Mapping[str, Any]) -> str:
    """A defence in words, by the flat settings of its cell."""
    noise, bits = settings["upload.noise_multiplier"], settings["upload.bits"]
    parts = [
        f"noise {noise:g}" if noise else "",
        f"{bits} bits a number" if bits else "",
        "float16" if settings["half"] else "",
        settings["training.plugins"],
    ]
    return ", ".join(filter(None, parts)) or "nothing"


def bars(rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Rows of `records/defenses`, one bar a defence, in the order in which they were run."""
    by_name: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        of_suite = (row["table"], row["method"], row["dataset"]) == ("defenses", METHOD, "adult")
        if of_suite and row["metric"] in METRICS and row["value"] is not None:
            named = by_name.setdefault(name_of(row["settings"]), {m: [] for m in METRICS})
            named[row["metric"]].append(float(row["value"]))
    told = {name: named for name, named in by_name.items() if named["complete"]}
    return [_bar(name, *(named[m] for m in METRICS)) for name, named in told.items()]


def _bar(name: str, complete: list[float], exact: list[float]) -> Bar:
    whole = wilson_interval(round(sum(complete)), len(complete))
    return Bar(name, whole, sum(exact) / max(len(exact), 1), len(complete))


def draw(shown: Sequence[Bar]) -> Any:
    """A matplotlib figure of bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 0.8 + 0.27 * len(shown)), layout="constrained")
    axes, places = figure.subplots(), range(len(shown))
    whole = [bar.complete for bar in shown]
    ends = [[i.mean - i.low for i in whole], [i.high - i.mean for i in whole]]
    style: dict[str, Any] = {"fmt": "o", "markersize": 4, "capsize": 2}
    axes.errorbar([i.mean for i in whole], places, xerr=ends, label="batches complete", **style)
    axes.plot([bar.records for bar in shown], places, "x", label="records exact")
    axes.set_yticks(places, [f"{bar.name} ({bar.batches})" for bar in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlim=(-0.03, 1.03), xlabel="share (batches in brackets)")
    axes.legend(fontsize=8)
    return figure


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Draw what stops whole records from the results in a folder."""

    out: str = "results"
    """The folder."""
    figure: str = "records.svg"
    """File to write; its suffix tells the format."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code as `benchmarks.sweep` does."""
    arguments = tyro.cli(Arguments, args=argv, prog="python -m benchmarks.suites.records_figure")
    return exit_code(lambda: _answered(arguments), arguments)


def _answered(arguments: Arguments) -> int:
    out, figure = arguments.out, arguments.figure
    check_writable("figure", figure)
    with opened(out) as store:
        shown = bars([row for row in store.rows() if row["suite"] == "records"])
    if not shown:
        raise UsageError(
            f"--out {out!r} holds no rows of records/defenses by {METHOD}; run python -m "
            "benchmarks.sweep records/defenses first"
        )
    save_figure(draw(shown), figure)
    return 0


if __name__ == "__main__":
    run_command(main)
