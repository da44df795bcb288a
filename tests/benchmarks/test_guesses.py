"""Three guesses beside every accuracy, the fit beside every answer, and what is said of both; and
what ends a sweep loses nothing."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from attacks import FitWarning, Knowledge, binary_column, impute
from benchmarks.harness.experiment import Metric
from benchmarks.harness.intervals import Interval
from benchmarks.harness.report import sections, verdict
from benchmarks.harness.store import Store
from benchmarks.sweep import main


def rows_of(folder):
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    methods = "majority,statistics,closed_form"
    words = ["quick/attributes", "--where", "dataset=purchase_like", "--methods", methods]
    assert main([*words, "--seeds", "2", "--out", str(folder)]) == 0
    return folder


@pytest.mark.very_slow
def test_every_attack_stands_beside_three_guesses(swept):
    for row in rows_of(swept):
        guesses = [row[name] for name in ("majority", "imputation")]
        assert all(0 <= float(value) <= 1 for value in guesses)
        assert (row["null"] == "") == (row["method"] == "majority")
        explains = row["method"] == "closed_form"
        assert (row["explained"] == "") != explains
        if explains:
            assert row["status"] == "ok"
            assert float(row["misfit"]) < 1


@pytest.mark.slow
def test_another_clients_messages_tell_no_more_than_a_guess(swept):
    read = [row for row in rows_of(swept) if row["method"] == "closed_form"]
    assert np.mean([float(row["value"]) for row in read]) == 1
    records = json.loads(read[0]["detail"])["scored_records"]
    guessed = np.mean([float(row["null"]) for row in read])
    rate = np.mean([float(row["majority"]) for row in read])
    assert guessed < rate + 3 * 0.5 / np.sqrt(records)


@pytest.mark.slow
def test_the_report_says_whether_something_was_learnt(swept):
    page = (swept / "report.html").read_text()
    for word in ("imputation", "null", "learnt", "not learnt", "fit"):
        assert word in page


@pytest.mark.parametrize(("less_is_better", "best"), [(False, max), (True, min)])
def test_of_errors_the_best_guess_is_the_least(swept, less_is_better, best):
    with closing(Store(swept)) as store:
        rows = [row for row in store.rows() if row["method"] == "statistics"]
    metric = Metric("accuracy", "", True, less_is_better=less_is_better)
    (section,) = sections(rows, {"accuracy": metric})
    for line in section.lines:
        mine = [r for r in rows if r["selection"] == line.selection and r["metric"] == line.metric]
        means = [np.mean([r[name] for r in mine]) for name in ("majority", "imputation", "null")]
        assert float(line.guess.split()[0]) == pytest.approx(best(means), abs=1e-3)


def test_one_seed_is_no_evidence_of_others(swept):
    with closing(Store(swept)) as store:
        rows = store.rows()
    for seeds, said in (({0}, {"one seed"}), ({0, 1}, {"learnt", "not learnt"})):
        (section,) = sections(
            [row for row in rows if row["seed"] in seeds],
            {"accuracy": Metric("accuracy", "", True)},
        )
        told = {line.learnt for line in section.lines if line.method != "majority"}
        assert told
        assert told <= said


def test_learnt_is_above_all_guesses_by_the_intervals():
    guesses = [Interval(0.6, 0.55, 0.65), Interval(0.9, 0.85, 0.95), Interval(np.nan, 0, 1)]
    assert verdict(Interval(0.97, 0.96, 0.98), guesses, 3) == "learnt"
    assert verdict(Interval(0.97, 0.94, 0.99), guesses, 3) == "not learnt"
    assert verdict(Interval(np.nan, 0, 1), guesses, 3) == ""
    assert verdict(Interval(0.9, 0.8, 1.0), guesses[2:], 3) == ""


@pytest.mark.slow
def test_imputation_uses_other_columns_and_the_label():
    rng = np.random.default_rng(0)
    x = (rng.random((400, 8)) < 0.5).astype(np.float32)
    y = rng.integers(0, 3, 400)
    by_column, by_label, alone = x.copy(), x.copy(), x.copy()
    by_column[:, 4] = x[:, 1]
    by_label[:, 4] = y == 2
    public, known = slice(0, 300), slice(300, None)

    def right(x, labels=True):
        given = x[known].copy()
        given[:, 4] = np.nan
        knowledge = Knowledge(given, y[known] if labels else None, (binary_column(4),))
        (values,) = impute(knowledge, x[public], y[public])
        return (values == x[known][:, 4]).mean()

    assert right(by_column) == 1
    assert right(by_label) == 1
    assert right(by_label, labels=False) < 0.8
    assert right(alone) < 0.65
    knowledge = Knowledge(x, y, (binary_column(4),))
    with pytest.raises(ValueError, match="y_public=None"):
        impute(knowledge, x)
    with pytest.raises(ValueError, match="y_public holds 'a'; labels must be numbers"):
        impute(knowledge, x, np.full(len(x), "a"))
    coded = np.where(np.arange(x.shape[1]) == 4, 5 + 4 * x, x)
    from_one, shifted = x.copy(), np.random.default_rng(1).normal(size=x.shape)
    from_one[:, 4] += 1
    for other, share in ((coded, 100), (from_one, round(100 * x[:, 4].mean())), (shifted, 100)):
        with pytest.warns(FitWarning, match=rf"{share}% of x_public have none of the values"):
            impute(knowledge, other, y)
    with pytest.warns(FitWarning, match="no public record has the label 0 of knowledge.y"):
        impute(knowledge, x, y + 1)
    with pytest.raises(ValueError, match="y_public holds 1 values that are not finite"):
        impute(knowledge, x, np.where(np.arange(400) == 7, np.nan, y))


@pytest.mark.slow
def test_a_request_to_end_keeps_rows_and_writes_the_report(tmp_path):
    words = ["quick", "--seeds", "3", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sweep", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    for _ in range(600):
        time.sleep(0.1)
        if (tmp_path / "results.sqlite").exists():
            break
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted: finished rows are kept" in printed
    assert re.search(r"\d+ of \d+ jobs finished in", printed)
    assert (tmp_path / "results.csv").is_file()
    assert (tmp_path / "report.html").is_file()


LOST = """
import gc, os, signal, time
from benchmarks.harness import command_line

def collecting(phase, info):
    gc.callbacks.clear()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)

command_line.listen_for_requests_to_end()
gc.callbacks.append(collecting)
gc.collect()
print("lost")
try:
    time.sleep(30)
except KeyboardInterrupt:
    command_line.repeat(0)  # else the alarm may end a process that is slow to end
    print("heard")
"""


def test_a_request_to_end_is_heard_though_memory_is_being_collected():
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["lost", "heard"]


@pytest.mark.slow
def test_what_cannot_be_written_is_one_line(tmp_path, capsys):
    words = ["quick/learning_rate", "--methods", "majority", "--seeds", "1"]
    (tmp_path / "results.csv").mkdir()
    assert main([*words, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "finished rows are kept" in said
    assert not list(tmp_path.glob(".results.csv*"))
    assert main([*words, "--out", ""]) == 2
    assert "names no folder" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", ["4294967296,", "1000000000000"])
def test_seeds_beyond_32_bits_are_refused(seeds, capsys):
    assert main(["quick", "--dry-run", "--seeds", seeds]) == 2
    assert "too many or too large" in capsys.readouterr().err
