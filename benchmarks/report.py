"""Results as one self-contained HTML page: `python -m benchmarks.report [--out results]`."""

import base64
import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import tyro

from attacks.metrics import Interval, accuracy_interval, student_interval
from benchmarks import plots
from benchmarks.plots import Line
from benchmarks.store import Store

DERIVED = (
    *("rounds_used", "objective", "note", "public_records", "condition", "residual"),
    *("scored_records", "simulation_s", "epsilon_of_most_records", "epsilon_of_fewest_records"),
    *("unexplained", "detectors_s", "correlation"),
)
"""Entries of `settings` that a run adds; they do not tell cells apart."""


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
    rows: Iterable[dict[str, Any]], images: Iterable[dict[str, Any]] = ()
) -> list[Section]:
    """Rows and images of the store as tables."""
    by_table: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_table.setdefault((row["suite"], row["table"], row["size"]), []).append(row)
    pictures: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for image in images:
        caption = f"{image['dataset']}, {image['method']}, seed {image['seed']}: {image['caption']}"
        place = image["suite"], image["table"], image["size"]
        pictures.setdefault(place, []).append((caption, base64.b64encode(image["png"]).decode()))
    return [
        dataclasses.replace(_section(key, members), pictures=tuple(pictures.get(key, ())))
        for key, members in by_table.items()
    ]


def _section(key: tuple[str, str, str], rows: list[dict[str, Any]]) -> Section:
    suite, table, size = key
    cells = [
        {"dataset": r["dataset"]} | {k: v for k, v in r["settings"].items() if k not in DERIVED}
        for r in rows
    ]
    names = list(dict.fromkeys(k for cell in cells for k in cell))
    varying = _varying(names, cells)
    values = {
        k: next(cell[k] for cell in cells if k in cell) for k in names
    }  # older rows may lack a setting
    shared = ", ".join(f"{k}={value}" for k, value in values.items() if k not in varying)
    by_line: dict[Any, list[dict[str, Any]]] = {}
    for row, cell in zip(rows, cells, strict=True):
        place = tuple((k, cell.get(k)) for k in varying)
        by_line.setdefault((place, row["method"], row["selection"], row["metric"]), []).append(row)
    order = sorted(
        by_line.items(), key=lambda item: json.dumps([_sortable(v) for _, v in item[0][0]])
    )
    lines = tuple(_line(place, members) for (place, *_), members in order)
    return Section(f"{suite}/{table}, {size} size", shared, lines)


def _varying(names: list[str], cells: list[dict[str, Any]]) -> list[str]:
    """Settings that tell the cells apart; one that follows from the others before it is left out."""
    varying: list[str] = []
    for name in sorted(names, key=lambda k: k == "steps"):
        by_others: dict[str, set[str]] = {}
        for cell in cells:
            others = json.dumps([cell.get(k) for k in varying])
            by_others.setdefault(others, set()).add(json.dumps(cell.get(name)))
        if any(len(values) > 1 for values in by_others.values()):
            varying.append(name)
    return varying


def _sortable(value: Any) -> Any:
    return f"{value:020.6f}" if isinstance(value, (int, float)) else str(value)


def _line(place: Sequence[tuple[str, Any]], rows: list[dict[str, Any]]) -> Line:
    first = rows[0]
    values = [r["value"] for r in rows if r["value"] is not None]
    failed = [r for r in rows if r["value"] is None]
    proportion = first["metric"].endswith("accuracy")
    scored = first["settings"].get("scored_records", first["settings"].get("records", 1))
    estimate = accuracy_interval(values, scored) if proportion else student_interval(values)
    majority = _mean([r["majority"] for r in rows])
    published = first["published"]
    other_size = (
        first["size"] != "paper" and published is not None and "records" in first["settings"]
    )
    note = "; ".join(
        dict.fromkeys(
            [*(r["settings"].get("note", "") for r in rows), *(r["status"] for r in failed)]
        )
    )
    return Line(
        setting=" ".join(f"{k}={v}" for k, v in place) or first["dataset"],
        place=tuple(place),
        method=first["method"],
        selection=first["selection"],
        metric=first["metric"],
        n=len(values),
        mean=_text(estimate.mean),
        interval=_interval(estimate, proportion),
        chance=_text(_mean([r["chance"] for r in rows])),
        majority=_text(majority),
        published=""
        if published is None
        else f"{published:g}" + (" (other size)" if other_size else ""),
        train_accuracy=_text(_mean([r["train_accuracy"] for r in rows])),
        test_accuracy=_text(_mean([r["test_accuracy"] for r in rows])),
        compile_s=_text(_mean([r["compile_s"] for r in rows]), 1),
        run_s=_text(_mean([r["run_s"] for r in rows])),
        device="; ".join(dict.fromkeys(f"{r['device']}, {r['dtype']}" for r in rows)),
        versions="; ".join(dict.fromkeys(r["versions"] for r in rows)),
        note=note.strip("; ") + (f" ({len(failed)} failed)" if failed else ""),
        redo=_redo(rows),
        estimate=estimate,
        majority_value=majority,
        published_value=published,
    )


def _mean(values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else math.nan


def _text(value: float, digits: int = 3) -> str:
    return (
        "" if math.isnan(value) else f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:.5g}"
    )


def _interval(estimate: Interval, proportion: bool) -> str:
    if not math.isfinite(estimate.low) or estimate.low == estimate.high:
        return ""
    if not proportion:
        return f"[{_text(estimate.low)}, {_text(estimate.high)}]"
    return f"[{max(estimate.low, 0):.3f}, {min(estimate.high, 1):.3f}]"


def _redo(rows: list[dict[str, Any]]) -> str:
    """The command that measures this line again, and nothing else."""
    first = rows[0]
    numbers = sorted({r["seed"] for r in rows})
    seeds = (
        ",".join(map(str, numbers)) if len(numbers) > 1 else f"{numbers[0]},"
    )  # "3," is the seed 3, "3" a count
    where = [f"dataset={first['dataset']}"]
    where += [f"{k}={v}" for k, v in first["settings"].items() if k not in DERIVED]
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


def write(rows: list[dict[str, Any]], folder: Path, images: Iterable[dict[str, Any]] = ()) -> Path:
    """Write `report.html`, one file that needs nothing beside it."""
    shown = [
        dataclasses.replace(section, plot=plots.draw(section.title, section.lines))
        for section in sections(rows, images)
    ]
    text = (
        resources.files("benchmarks")
        .joinpath("templates/report.html.jinja")
        .read_text(encoding="utf-8")
    )
    page = (
        jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        .from_string(text)
        .render(sections=shown)
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def main(out: str = "results") -> int:
    """Write results.csv and report.html anew from the results in a folder.

    Args:
        out: the folder.
    """
    try:
        store = Store.existing(out)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(store.write_csv(), write(store.rows(), store.folder, store.images()))
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, prog="python -m benchmarks.report"))
