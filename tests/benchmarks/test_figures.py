"""What the report draws, and its intervals."""

import base64
import dataclasses
import io
import math

import numpy as np
import pytest
from matplotlib.image import imread

from benchmarks import sweep
from benchmarks.harness import plots
from benchmarks.harness.intervals import (
    Interval,
    accuracy_interval,
    student_interval,
    wilson_interval,
)
from benchmarks.harness.store import Store
from benchmarks.suites import frontier_figure, records_figure


def test_intervals():
    assert wilson_interval(8, 10).low == pytest.approx(
        0.490, abs=1e-3
    )  # Wilson 1927; NIST e-Handbook's formula
    assert student_interval([1, 2, 3, 4, 5]).high == pytest.approx(
        3 + 2.776 * np.sqrt(2.5 / 5), abs=1e-3
    )  # t(.975, 4)
    assert accuracy_interval([1.0, 1.0], 50).low == pytest.approx(wilson_interval(100, 100).low)
    assert student_interval([0.3]).low == -np.inf
    rng = np.random.default_rng(0)
    covered = [student_interval(rng.normal(0.5, 0.1, 5)) for _ in range(2000)]
    assert 0.93 < np.mean([i.low <= 0.5 <= i.high for i in covered]) < 0.97


@pytest.mark.very_slow
def test_the_frontier_figure_shows_every_axis_that_has_rows(tmp_path, capsys):
    where = [
        "--where",
        "records=25,75",
        "bits=0,1",
        "--methods",
        "majority,closed_form",
        "--seeds",
        "1",
    ]
    assert frontier_figure.main(["--out", str(tmp_path)]) == 2
    assert "holds no results.sqlite" in capsys.readouterr().err
    assert sweep.main(["frontier/records", *where, "--out", str(tmp_path)]) == 0
    figure = tmp_path / "frontier.svg"
    words = ["--out", str(tmp_path), "--figure", str(figure)]
    assert frontier_figure.main(words) == 2
    assert "no rows of frontier at paper size" in capsys.readouterr().err
    assert frontier_figure.main([*words, "--size", "small"]) == 0
    assert "<svg" in figure.read_text()
    store = Store(tmp_path)
    lines = frontier_figure.points(store.rows(), "records")
    store.close()
    assert [p.place for p in lines["closed_form"]] == [25, 75]
    assert [p.accuracy.mean for p in lines["closed_form"]] == [1.0, 1.0]
    assert all(p.accuracy.mean == p.majority or p.majority < 1 for p in lines["majority"])


def test_the_figure_of_records_has_a_bar_for_each_defence(tmp_path):
    def row(metric, value, **changed):
        flat = {"upload.noise_multiplier": 0.0, "upload.bits": 0, "half": False}
        settings = flat | {"training.plugins": ""} | changed
        place = {"table": "defenses", "method": "reconstruct_records", "dataset": "adult"}
        place |= {"settings": settings}
        return place | {"metric": metric, "value": value}

    noise = {"upload.noise_multiplier": 1e-5}
    rows = [row("complete", value) for value in (1.0, 1.0)] + [row("records_exact", 1.0)]
    rows += [row("complete", 0.0, **noise), row("records_exact", 0.75, **noise)]
    shown = records_figure.bars([*rows, row("complete", None, half=True)])
    assert [bar.name for bar in shown] == ["nothing", "noise 1e-05"]
    assert [(b.complete.mean, b.records, b.batches) for b in shown] == [(1, 1, 2), (0, 0.75, 1)]
    assert records_figure.draw(shown).axes
    assert records_figure.main(["--out", str(tmp_path)]) == 2


def test_the_figure_copes_with_what_is_there():
    def row(method, columns, value):
        return {
            **{
                "suite": "frontier",
                "table": "columns",
                "size": "small",
                "metric": "accuracy",
                "method": method,
            },
            **{
                "value": value,
                "majority": 0.6,
                "settings": {"columns": columns},
                "detail": {"scored_records": 75},
            },
        }

    frontier_figure.draw(
        [row("closed_form", 1, 1.0), row("gauss_newton", 5, 0.9), row("cos", 20, None)]
    )
    assert frontier_figure.points([row("cos", 1, None)], "columns") == {}


def test_cells_along_a_number_are_drawn_as_curves():
    def line(seen, method, metric="f1", published=None):
        estimate = Interval(0.5 + seen / 100, 0.4, 0.7)
        texts = {f.name: "" for f in dataclasses.fields(plots.Line)}
        own = {
            "place": (("panel", "a"), ("seen", seen)),
            "setting": f"panel=a seen={seen}",
            "method": method,
            "metric": metric,
        }
        return plots.Line(
            **texts
            | own
            | {
                "n": 2,
                "estimate": estimate,
                "majority_value": math.nan,
                "published_value": published,
            }
        )

    along = [line(seen, method, published=0.6) for seen in (10, 20) for method in ("gibbs", "box")]
    picture = imread(io.BytesIO(base64.b64decode(plots.draw("fig3", along))))
    marks = [line(seen, "gibbs", metric="accuracy") for seen in (10, 20)]
    assert picture.ndim == 3
    assert plots.draw("fig3", along) != plots.draw(
        "fig3", [line(seen, "gibbs") for seen in (10, 20)]
    )
    assert plots.draw("table3", marks) != ""
    assert plots.draw("one point has no curve", [line(10, "gibbs")]) == ""
    # What is learned over epochs is how pairs are matched.
    epochs = [
        dataclasses.replace(line(e, "gibbs", m), place=(("epoch", e),))
        for e in (1, 20)
        for m in ("precision", "matching_accuracy")
    ]
    assert plots.draw("fig5", epochs) == plots.draw(
        "fig5", [e for e in epochs if e.metric == "matching_accuracy"]
    )


def test_accuracies_that_count_no_records_have_an_interval_over_seeds():
    assert accuracy_interval([0.9, 0.9], 0).mean == pytest.approx(0.9)
    assert accuracy_interval([0.9], 0)[1:] == (0, 1)
    assert accuracy_interval([0.9, 1.0], 0).high == 1  # Student's t alone would say 1.59
