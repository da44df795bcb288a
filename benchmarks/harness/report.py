"""Results as one self-contained HTML page."""

import base64
import dataclasses
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from benchmarks.harness import plots
from benchmarks.harness.experiment import Metric
from benchmarks.harness.intervals import Interval, accuracy_interval, student_interval
from benchmarks.harness.plots import Line
from benchmarks.harness.settings import constant, short_names, varying
from benchmarks.harness.store import write_whole

GUESSES = ("majority", "imputation", "null")
"""Guesses: an attack on messages must beat all three to have learnt something from messages."""


@dataclasses.dataclass(frozen=True)
class Section:
    """One table of one suite at one size.

    Attributes:
      title: "lyu2021/table3, paper size".
      shared: settings that all its cells have in common.
      lines: its lines.
      plot: PNG as base64, or "".
      pictures: what attacks reconstructed, caption and PNG as base64.
    """

    title: str
    shared: str
    lines: tuple[Line, ...]
    plot: str = ""
    pictures: tuple[tuple[str, str], ...] = ()


def sections(
    rows: Iterable[dict[str, Any]],
    metrics: Mapping[str, Metric],
    images: Iterable[dict[str, Any]] = (),
) -> list[Section]:
    """Rows and images of the store as tables. `metrics` says what metrics mean, by name."""
    by_table: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_table.setdefault((row["suite"], row["table"], row["size"]), []).append(row)
    pictures: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for image in images:
        caption = f"{image['dataset']}, {image['method']}, seed {image['seed']}: {image['caption']}"
        place = image["suite"], image["table"], image["size"]
        pictures.setdefault(place, []).append((caption, base64.b64encode(image["png"]).decode()))
    return [
        dataclasses.replace(_section(key, members, metrics), pictures=tuple(pictures.get(key, ())))
        for key, members in by_table.items()
    ]


def _section(
    key: tuple[str, str, str], rows: list[dict[str, Any]], metrics: Mapping[str, Metric]
) -> Section:
    suite, table, size = key
    cells = [{"dataset": row["dataset"]} | row["settings"] for row in rows]
    names = varying(cells, last={f"{row['method']}." for row in rows})
    short = short_names(name for cell in cells for name in cell)
    shared = ", ".join(f"{short[k]}={v}" for k, v in sorted(constant(cells).items()))
    by_line: dict[Any, list[dict[str, Any]]] = {}
    for row, cell in zip(rows, cells, strict=True):
        place = tuple((short[k], cell[k]) for k in names if k in cell)
        line = place, row["method"], row["selection"], row["metric"]
        by_line.setdefault(line, []).append(row)
    order = sorted(by_line.items(), key=lambda item: [_sortable(v) for _, v in item[0][0]])
    lines = tuple(_line(place, members, metrics) for (place, *_), members in order)
    return Section(f"{suite}/{table}, {size} size", shared, lines)


def _sortable(value: Any) -> Any:
    return f"{value:020.6f}" if isinstance(value, (int, float)) else str(value)


def _line(
    place: Sequence[tuple[str, Any]], rows: list[dict[str, Any]], metrics: Mapping[str, Metric]
) -> Line:
    first = rows[0]
    values = [r["value"] for r in rows if r["value"] is not None]
    failed = [r for r in rows if r["value"] is None]
    metric = metrics.get(first["metric"])
    proportion = metric is not None and metric.proportion
    scored = first["detail"].get("scored_records", 0)
    estimate = accuracy_interval(values, scored) if proportion else student_interval(values)
    majority = _mean([r["majority"] for r in rows])
    learnt = ""
    if proportion and first["null"] is not None:
        learnt = verdict(estimate, [_guess(rows, name, scored) for name in GUESSES], len(values))
    published = first["published"]
    other_size = (
        first["size"] != "paper" and published is not None and "records" in first["settings"]
    )
    means: dict[str, Any] = {name: _text(_mean([r[name] for r in rows])) for name in _MEANS}
    return Line(
        **_who(place, first),
        **means,
        n=len(values),
        mean=_text(estimate.mean),
        interval=_interval(estimate, proportion),
        majority=_text(majority),
        guess=_best_guess(rows, metric is not None and metric.less_is_better),
        learnt=learnt,
        fit=_fit(rows),
        published=""
        if published is None
        else f"{published:g}" + (" (other size)" if other_size else ""),
        compile_s=_text(_mean([r["compile_s"] for r in rows]), 1),
        run_s=_text(_mean([r["run_s"] for r in rows])),
        device="; ".join(dict.fromkeys(f"{r['device']}, {r['dtype']}" for r in rows)),
        versions="; ".join(dict.fromkeys(r["versions"] for r in rows)),
        note=_note(rows, failed),
        redo=_redo(rows),
        estimate=estimate,
        majority_value=majority,
        published_value=published,
    )


ONE_SEED = "one seed"
"""In place of whether something is learnt: what one client's records tell is not of others'."""
_MEANS = ("chance", "imputation", "null", "train_accuracy", "test_accuracy")
"""Columns of which a line holds the mean."""


def _who(place: Sequence[tuple[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    """What a line is of."""
    setting = " ".join(f"{k}={v}" for k, v in place) or row["dataset"]
    names = ("method", "selection", "metric")
    return {"setting": setting, "place": tuple(place)} | {name: row[name] for name in names}


def _guess(rows: list[dict[str, Any]], name: str, scored: int) -> Interval:
    return accuracy_interval([r[name] for r in rows if r[name] is not None], scored)


def verdict(estimate: Interval, guesses: Sequence[Interval], seeds: int) -> str:
    """Whether an attack has learnt something: its interval lies above those of all guesses.

    Args:
      estimate: its accuracy.
      guesses: accuracies of guesses; not finite where one was not measured.
      seeds: over how many the accuracy is a mean.
    """
    best = max((g.high for g in guesses if math.isfinite(g.mean)), default=math.nan)
    if not math.isfinite(best) or not math.isfinite(estimate.mean):
        return ""
    if seeds == 1:
        return ONE_SEED
    return "learnt" if estimate.low > best else "not learnt"


def _best_guess(rows: list[dict[str, Any]], less_is_better: bool) -> str:
    """The best of the three and its name."""
    means = {name: _mean([row[name] for row in rows]) for name in GUESSES}
    known = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    name = (min if less_is_better else max)(known, key=lambda name: known[name], default=None)
    return "" if name is None else f"{_text(known[name])} {name}"


def _fit(rows: list[dict[str, Any]]) -> str:
    """How well answers explain the messages, in words."""
    judged = [row for row in rows if row["explained"] is not None]
    told = [f"{_mean([row['explained'] for row in judged]):.3g}"] if judged else []
    scored = judged or rows
    for doubt in ("misfit", "unchecked"):
        rows_in_doubt = sum(row["status"] == doubt for row in scored)
        told += [f"{rows_in_doubt} of {len(scored)} {doubt}"] if rows_in_doubt else []
    return ", ".join(told)


def _note(rows: list[dict[str, Any]], failed: list[dict[str, Any]]) -> str:
    """What a reader must know of the data, and why rows failed."""
    told = [*(row["detail"].get("note", "") for row in rows), *(row["status"] for row in failed)]
    codes = len({row["code"] for row in rows})
    told += [f"seeds were measured by {codes} versions of the code"] if codes > 1 else []
    text = "; ".join(filter(None, dict.fromkeys(told)))
    return text + (f" ({len(failed)} failed)" if failed else "")


def _mean(values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else math.nan


def _text(value: float, digits: int = 3) -> str:
    return (
        "" if math.isnan(value) else f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:.5g}"
    )


def _interval(estimate: Interval, proportion: bool) -> str:
    nothing = proportion and estimate.low <= 0 and estimate.high >= 1
    if nothing or not math.isfinite(estimate.low) or estimate.low == estimate.high:
        return ""
    if not proportion:
        return f"[{_text(estimate.low)}, {_text(estimate.high)}]"
    return f"[{estimate.low:.3f}, {estimate.high:.3f}]"


def _redo(rows: list[dict[str, Any]]) -> str:
    """The command that measures this line again, and nothing else."""
    first = rows[0]
    numbers = sorted({r["seed"] for r in rows})
    seeds = (
        ",".join(map(str, numbers)) if len(numbers) > 1 else f"{numbers[0]},"
    )  # "3," is the seed 3, "3" a count
    where = [f"dataset={first['dataset']}"]
    where += [f"{k}={v}" for k, v in first["settings"].items()]
    command = [
        "python",
        "-m",
        "benchmarks.sweep",
        f"{first['suite']}/{first['table']}",
        "--size",
        first["size"],
    ]
    command += ["--methods", first["method"], "--seeds", seeds]
    return shlex.join([*command, "--where", *where, "--out", "again"])


def write(
    rows: list[dict[str, Any]],
    folder: Path,
    metrics: Mapping[str, Metric],
    images: Iterable[dict[str, Any]] = (),
) -> Path:
    """Write `report.html`, one file that needs nothing beside it."""
    shown = [
        dataclasses.replace(section, plot=plots.draw(section.title, section.lines))
        for section in sections(rows, metrics, images)
    ]
    template = resources.files("benchmarks.harness").joinpath("templates/report.html.jinja")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(template.read_text(encoding="utf-8")).render(sections=shown)
    return write_whole(folder / "report.html", page)
