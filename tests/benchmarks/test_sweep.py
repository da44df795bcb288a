"""The command line's contract: what is selected, what is kept, and what bad input says."""

import csv
import dataclasses
import io
import json
import math
import shlex
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
from matplotlib.image import imread

from benchmarks import report, sweep
from benchmarks.compare import compared
from benchmarks.harness import estimates
from benchmarks.harness import report as reports
from benchmarks.harness.jobs import Job, Outcome
from benchmarks.harness.runner import _row
from benchmarks.harness.store import COLUMNS, Store
from benchmarks.suites import METRICS, SUITES, lyu2021
from benchmarks.suites.grids import published_rows
from tests.benchmarks.cells import cell_of, outcomes_of

TINY = [
    "quick/attributes",
    "--where",
    "dataset=breast_cancer",
    "--methods",
    "random,majority,cos",
    "--seeds",
    "2",
]


def run(*arguments):
    return sweep.main(list(arguments))


def rows_of(folder):
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    assert run(*TINY, "--out", str(folder)) == 0
    return folder


def test_a_sweep_writes_its_three_files(finished):
    rows = rows_of(finished)
    assert tuple(rows[0]) == COLUMNS
    assert {r["method"] for r in rows} == {"random", "majority", "cos"}
    assert {r["selection"] for r in rows if r["method"] == "cos"} == {"objective", "oracle"}
    assert {r["seed"] for r in rows} == {"0", "1"}
    assert all(r["status"] == "ok" and 0 <= float(r["value"]) <= 1 for r in rows)
    assert all(json.loads(r["settings"])["records"] == 50 for r in rows)
    page = (finished / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert 'src="http' not in page
    assert "python -m benchmarks.sweep quick/attributes" in page


def test_oracle_is_never_below_the_objectives_choice(finished):
    values = {}
    for r in rows_of(finished):
        values.setdefault((r["method"], r["seed"]), {})[r["selection"]] = float(r["value"])
    assert all(v["oracle"] >= v["objective"] for v in values.values() if "oracle" in v)


def test_resuming_runs_nothing_again_and_more_seeds_only_those(finished, capsys):
    before = rows_of(finished)
    assert run(*TINY, "--out", str(finished)) == 0
    assert "6 of 6 jobs are finished" in capsys.readouterr().out
    assert rows_of(finished) == before
    assert run(*TINY[:-1], "0,1,5", "--out", str(finished)) == 0
    assert "6 of 9 jobs are finished" in capsys.readouterr().out
    after = rows_of(finished)
    assert [r for r in after if r["seed"] != "5"] == before


@pytest.mark.very_slow
def test_small_batches_are_decoded(tmp_path):
    where = ["--where", "phases=pre5", "--methods", "majority,gls", "--seeds", "1"]
    assert run("quick/minibatch", *where, "--out", str(tmp_path)) == 0
    found = {r["method"]: float(r["value"]) for r in rows_of(tmp_path)}
    assert found["gls"] > found["majority"] + 0.2


def test_a_whole_number_selects_what_is_set_with_a_point(capsys):
    words = ("song2020/clusters", "--methods", "bias", "--seeds", "1", "--dry-run", "--where")
    for asked, jobs in (("epsilon=1", 2), ("epsilon=1.0,10", 4), ("epsilon=inf", 2)):
        assert run(*words, asked) == 0
        assert f"{jobs} jobs" in capsys.readouterr().out


def test_report_is_written_anew_from_the_store(finished, capsys):
    (finished / "report.html").unlink()
    assert report.main(["--out", str(finished)]) == 0
    assert (finished / "report.html").is_file()
    assert report.main(["--out", str(finished / "nothing")]) == 2
    assert "holds no results.sqlite" in capsys.readouterr().err


def test_rows_beside_an_empty_store_are_kept(finished, tmp_path, capsys):
    text = (finished / "results.csv").read_text()
    (tmp_path / "results.csv").write_text(text)
    (tmp_path / "results.sqlite").touch()
    assert report.main(["--out", str(tmp_path)]) == 2
    assert "holds an empty results.sqlite" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"move results\.csv away"):
        Store(tmp_path)
    assert (tmp_path / "results.csv").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "suite 'nosuch' is unknown; choose from quick, lyu2021"),
        (["quick/table9"], "table 'table9' is not in quick; choose from attributes"),
        (["--methods", "magic"], "--methods 'magic' is unknown here"),
        (
            ["--where", "colour=red"],
            "--where 'colour' is no column or setting here; choose from attribute, clients, "
            "closed_form.by_round",
        ),
        (["--where", "records"], "--where 'records' must read key=value"),
        (["--where", "records=7"], "nothing to run"),
        (["--seeds", ""], "--seeds '' must be a count"),
        (["--data-dir", "/nowhere"], "--data-dir '/nowhere' is not a folder"),
        (["--seeds", "x"], "--seeds 'x' must be a count"),
        (["--seeds", "0"], "must name seeds"),
        (["--seeds", "0,0"], "none negative and none twice"),
        (["--seeds", ","], "must be a count"),
    ],
)
def test_bad_requests_exit_with_2(arguments, message, capsys, tmp_path):
    assert run(*arguments, "--out", str(tmp_path / "out")) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_unusable_output_folders(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(*TINY, "--out", str(tmp_path / "file")) == 2
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "results.sqlite").write_bytes(b"half a database, not more" * 100)
    assert run(*TINY, "--out", str(tmp_path)) == 2
    assert "holds no usable results" in capsys.readouterr().err
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("PRAGMA user_version=99")
    other.close()
    (tmp_path / "b").mkdir()
    (tmp_path / "other.sqlite").rename(tmp_path / "b" / "results.sqlite")
    assert run(*TINY, "--out", str(tmp_path / "b")) == 2
    assert "another version" in capsys.readouterr().err


def test_missing_data_fails_its_cells_and_keeps_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAXFL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_location.tgz").write_bytes(b"cut")
    arguments = ["lyu2021/table3", "--where", "records=25", "--methods", "majority", "--seeds", "1"]
    assert (
        run(*arguments, "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out")) == 2
    )
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 2
    assert all(r["value"] == "" and "truncated" in r["status"] for r in rows)
    assert (
        "failed: ValueError: dataset_location.tgz is truncated"
        in capsys.readouterr().out.replace("\n", " ")
    )


@pytest.mark.slow
def test_a_killed_sweep_keeps_every_finished_row_and_goes_on(tmp_path):
    command = [sys.executable, "-m", "benchmarks.sweep", *TINY, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    kept = 0
    for _ in range(600):
        time.sleep(0.1)
        if (tmp_path / "results.sqlite").exists():
            try:
                kept = (
                    sqlite3.connect(tmp_path / "results.sqlite")
                    .execute("SELECT count(*) FROM results")
                    .fetchone()[0]
                )
            except sqlite3.OperationalError:
                continue
        if kept:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert kept
    store = Store(tmp_path)
    before = store.rows()
    store.close()
    assert len(before) >= kept
    assert run(*TINY, "--out", str(tmp_path)) == 0
    rows = rows_of(tmp_path)
    assert len({(r["method"], r["seed"], r["selection"]) for r in rows}) == len(rows) == 8
    store = Store(tmp_path)
    assert store.rows()[: len(before)] == before
    store.close()


def test_list_and_dry_run(capsys):
    assert run("--list") == 0
    listed = capsys.readouterr().out
    named = [f"{suite.name}/{table.name}" for suite in SUITES.values() for table in suite.tables]
    assert all(name in listed for name in named)
    assert run("lyu2021/table3", "--size", "paper", "--dry-run") == 0
    plan = capsys.readouterr().out
    assert "144 jobs in 3 groups" in plan
    assert "records=300" in plan
    assert "gls" not in plan  # what cells say is of the methods that run


@pytest.mark.parametrize("size", ["paper", "small"])
def test_every_published_number_belongs_to_a_cell(size):
    metrics = ("accuracy", "candidate_accuracy", "counts_variance", "cramers_v_squared")
    values, suite = [], SUITES["lyu2021"]
    for table in suite.tables:
        for cell in table.cells("lyu2021", size, None):
            training = getattr(cell.settings, "training", None)
            printed = "scalar" if "genome" in cell.dataset and training else "onehot"
            if cell.settings.encoding != printed:
                assert suite.published(cell, "cos", "accuracy") is None
            elif training is None or training.learning_rate != 1.0:
                found = [suite.published(cell, n, m) for n in table.methods for m in metrics]
                values += [v for v in found if v is not None]
    sizes, rows = lyu2021.SIZES[size], published_rows("lyu2021")
    few = dict.fromkeys(("table9", "table13"), lyu2021.FEW) if size == "small" else {}
    printed = [row for row in rows if int(row["records"] or 50) in few.get(row["table"], sizes)]
    expected = [float(row["value"]) for row in printed]
    if size == "small":  # batches of 32 do not fit the smallest victims
        assert len(expected) >= len(values) >= len(expected) - 8
    else:
        assert sorted(values) == sorted(expected)


def test_some_published_numbers():
    suite = SUITES["lyu2021"]
    found = {
        (c.settings.training.batch_size, c.settings.attribute, c.settings.records): suite.published(
            c, "cos", "accuracy"
        )
        for c in suite.table("table12").cells("lyu2021", "paper", None)
    }
    assert found[8, 69, 300] == 0.5967
    assert found[None, 1, 50] == 0.94


def test_job_keys_are_stable_and_distinct():
    cell, again = cell_of("quick/attributes"), cell_of("quick/attributes")
    assert Job(cell, "cos", 0).key == Job(again, "cos", 0).key
    other = cell_of("quick/attributes", method_settings={"cos": {"steps": 7}})
    assert Job(other, "cos", 0).key != Job(cell, "cos", 0).key
    assert Job(other, "random", 0).key == Job(cell, "random", 0).key  # which `cos` does not concern
    assert len({Job(cell, m, s).key for m in ("cos", "random") for s in range(3)}) == 6


def test_the_redo_command_selects_just_that_line(finished):
    rows = Store(finished).rows()
    line = next(
        line
        for s in reports.sections(rows, METRICS)
        for line in s.lines
        if line.method == "cos" and line.selection == "oracle"
    )
    arguments = shlex.split(line.redo)[3:]
    import tyro

    groups = sweep.select(tyro.cli(sweep.Arguments, args=arguments))
    jobs = [job for g in groups for job in g.jobs]
    assert {job.method for job in jobs} == {"cos"}
    assert {job.cell.dataset for job in jobs} == {"breast_cancer"}
    assert len({job.cell for job in jobs}) == 1


def test_rows_of_an_older_version_may_lack_a_setting(finished):
    store = Store(finished)
    rows = store.rows()
    store.close()
    older = [
        r | {"settings": {k: v for k, v in r["settings"].items() if k != "cos.steps"}}
        for r in rows
        if r["seed"] == 0
    ]
    sections = reports.sections([*older, *(r for r in rows if r["seed"] != 0)], METRICS)
    assert sum(line.n for line in sections[0].lines) == len(rows)


def test_images_are_kept_and_shown(tmp_path):
    job = Job(cell_of("driouich2023/table1"), "last", 3)
    outcome = Outcome(job, "ssim", 0.5, images={"a <face>": np.eye(4)})
    store = Store(tmp_path)
    for value in (0.5, 0.6):  # measured again, replaced
        row = _row(dataclasses.replace(outcome, value=value), "versions", lambda job, metric: None)
        store.add([row])
    (image,) = store.images()
    assert image["caption"] == "a <face>"
    assert np.allclose(imread(io.BytesIO(image["png"]))[..., 0], np.eye(4))
    page = reports.write(store.rows(), store.folder, METRICS, store.images()).read_text()
    assert page.count("data:image/png") == 1
    assert "seed 3: a &lt;face&gt;" in page
    store.close()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"columns": 31}, "columns=31 must lie between 1 and the 30 attributes"),
        ({"phases": ("gap10",)}, "phases='gap10' needs more than rounds=6"),
        ({"phases": ("pre3",)}, "phases='pre3' is unknown"),
        ({"records": 400}, "records=400 x participants=1 exceeds"),
    ],
)
def test_settings_that_cannot_be_run_are_named(changed, message):
    few = {"attribute": 0, "records": 20, "rounds": 6, "phases": ("pre2",)}
    cell = cell_of("quick/attributes", few | changed, {"cos": {"steps": 5}}, "breast_cancer")
    with pytest.raises(ValueError, match=message):
        outcomes_of([Job(cell, "cos", 0)])


def test_a_value_that_is_not_finite_is_a_failure():
    outcome = Outcome(Job(cell_of("quick/attributes"), "cos", 0), "accuracy", math.nan)
    assert outcome.value is None
    assert outcome.status == "diverged"


def test_two_runs_are_compared_row_by_row(finished, tmp_path, capsys):
    path = finished / "results.csv"
    assert compared(path, path, 1e-6).differences == []
    rows = rows_of(finished)
    rows[1]["value"] = str(float(rows[1]["value"]) + 0.5)
    with (tmp_path / "changed.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows[1:])
    lines = compared(path, tmp_path / "changed.csv", 1e-6).differences
    assert any("rows, then" in line for line in lines)
    assert any(" then " in line and "rows" not in line for line in lines)
    text = path.read_text()
    for damage in (text[: text.rstrip().rfind("\n") + 40], text.replace(",ok,", ",x,ok,", 1)):
        (tmp_path / "damaged.csv").write_text(damage)
        with pytest.raises(ValueError, match=r"damaged\.csv is no results\.csv: .*other columns"):
            compared(path, tmp_path / "damaged.csv", 1e-6)
    (tmp_path / "status.csv").write_text(text.replace(",ok,", ",not_converged,"))
    changed = compared(path, tmp_path / "status.csv", 1e-6).differences
    assert len(changed) == text.count(",ok,") > 0


def test_nobody_holds_a_record_of_another_part():
    from benchmarks.scenarios import splits, victims

    for seed in range(3):
        settings = victims.VictimSettings(0, 20, participants=3)
        data = victims.records_of(settings, "breast_cancer", None)
        rows = splits.split(data, settings.records, settings.participants, seed)
        parts = [rows.victim, *rows.others, rows.test, splits.public_rows(data, seed)]
        together = np.concatenate(parts)
        assert len(np.unique(together)) == len(together)
        assert set(rows.victim) <= set(rows.training)


def test_estimates_come_from_measured_rows(finished, tmp_path, monkeypatch):
    store = Store(finished)
    lines = estimates.refreshed(store.rows())
    store.close()
    assert {line["method"] for line in lines} == {"random", "majority", "cos"}
    assert all(line["seconds"] >= 0 and line["added_mib"] >= 0 for line in lines)
    path = tmp_path / "seconds.csv"
    estimates.write(lines, path)
    estimates.write([lines[0] | {"seconds": 7.0}], path)  # one anew, the others kept
    monkeypatch.setattr(estimates, "PATH", path)
    estimates._measured.cache_clear()
    found = {line["method"]: line["seconds"] for line in lines} | {lines[0]["method"]: 7.0}
    for name, seconds in found.items():
        job = Job(cell_of("quick/attributes", dataset="breast_cancer"), name, 0)
        assert estimates.estimate(job)[::2] == (seconds, True)
    other = Job(cell_of("quick/learning_rate"), "cos", 0)
    assert estimates.estimate(other)[::2] == (found["cos"], False)
    estimates._measured.cache_clear()


def test_every_suite_has_measured_rows():
    estimates._measured.cache_clear()
    assert {suite for suite, *_ in estimates._measured()} == set(SUITES)
