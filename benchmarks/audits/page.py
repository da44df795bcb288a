"""An audit as one self-contained page."""

import base64
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import jinja2

from benchmarks.audits.findings import Finding
from benchmarks.audits.sentences import protection
from benchmarks.harness.store import write_whole


@dataclasses.dataclass(frozen=True)
class Page:
    """What a page shows, in its order.

    Attributes:
      title: whose audit.
      answer: sentences that need no vocabulary.
      asked: what was asked, line by line.
      seen: who saw and knew what, line by line.
      findings: of every column.
      over: of whom the likely range is, other "clients" or "people" like these.
      controlled: whether another client's updates are the control.
      new_people: on whose records the model's accuracy is measured.
      notes: what else a reader must know.
      details: file with every single number, beside the page.
      command: what makes the page again.
    """

    title: str
    answer: Sequence[str]
    asked: Mapping[str, str]
    seen: Sequence[str]
    findings: Sequence[Finding]
    over: str
    controlled: bool
    new_people: str
    notes: Sequence[str]
    details: str
    command: str


class Audited(NamedTuple):
    """An audit that has ended.

    Attributes:
      page: what it tells.
      failed: whether a job failed, and may be tried again.
    """

    page: Page
    failed: bool = False


def write(page: Page, path: Path) -> Path:
    """Write a page that needs nothing beside it."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"percent": _percent, "protection": protection}
    template = resources.files("benchmarks.audits").joinpath("templates/audit.html.jinja")
    plots = [_drawn(finding) if len(finding.levels) > 1 else "" for finding in page.findings]
    text = environment.from_string(template.read_text(encoding="utf-8")).render(
        page=page, plots=plots
    )
    return write_whole(path, text)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if math.isfinite(share) else ""


def _drawn(finding: Finding) -> str:
    """Leakage and accuracy against protection, as base64 PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    levels, figure = finding.levels, pyplot.figure(figsize=(7, 3.2), layout="constrained")
    axes, places = figure.subplots(), range(len(levels))
    read = [tuple(100 * v for v in level.estimate) for level in levels]
    ends = [[max(m - low, 0) for m, low, _ in read], [max(high - m, 0) for m, _, high in read]]
    named = f"attacker right about {finding.column}"
    axes.errorbar(places, [m for m, _, _ in read], ends, fmt="o", capsize=4, label=named)
    guesses, models = [level.guess for level in levels], [level.model for level in levels]
    axes.plot(places, [100 * g for g in guesses], "k--", label="best guess, or the control")
    axes.plot(places, [100 * m for m in models], "gs", label="model right about new people")
    names = [protection(level.epsilon) for level in levels]
    axes.set(ylim=(0, 103), ylabel="of 100 people", xlabel="protection, none to strong")
    axes.set(xticks=list(places), xticklabels=names)
    axes.legend(loc="lower left", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110)
    pyplot.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()
