"""An attack from outside: registered in a few lines, it is swept, listed, reported and bound by the
laws."""

import csv
import dataclasses
import sqlite3

import pytest

from benchmarks import report, sweep
from benchmarks.harness import code
from benchmarks.harness.experiment import Method, Metric
from benchmarks.harness.jobs import Cell, Job, Outcome, Place, Suite, Table
from benchmarks.harness.runner import FAILURES
from benchmarks.measurements.attributes import EXPERIMENT
from benchmarks.scenarios.victims import VictimSettings
from examples.new_attack import METHOD, OWN, Pull, pull
from tests.laws.cases import cases


def places(size, data_dir):
    settings = VictimSettings(0, 40, rounds=6, phases=("pre1", "pre5"))
    return [Place("breast_cancer", settings, {"pull": Pull(-1.0)})]


TABLE = Table("toy", "An attack from outside", OWN, places, ("majority", "pull"))
SUITE = Suite("own", (TABLE,))
SUITES = {"own": SUITE}
ANOTHER = Suite("quick", (TABLE,))


def test_it_is_swept_listed_and_reported(tmp_path, capsys):
    assert sweep.main(["own", "--seeds", "2", "--out", str(tmp_path)], SUITES) == 0
    with (tmp_path / "results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "pull"]
    assert {row["selection"] for row in rows} == {"objective", "oracle"}
    assert all(row["status"] == "ok" and '"pull.sign": -1.0' in row["settings"] for row in rows)
    assert "pull" in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    assert sweep.main(["--list"], SUITES) == 0
    assert "attributes/pull: the sign of a column's update" in capsys.readouterr().out


def test_the_command_line_takes_it_by_its_module(tmp_path, capsys):
    place = f"{__name__}:SUITE"
    assert sweep.main([f"{place}/toy", "--seeds", "1", "--out", str(tmp_path)]) == 0
    with (tmp_path / "results.csv").open() as file:
        assert {"pull", "majority"} == {row["method"] for row in csv.DictReader(file)}
    assert report.main([place, "--out", str(tmp_path)]) == 0
    assert sweep.main(["--list", place]) == 0
    listed = capsys.readouterr().out
    assert listed.count("own/toy: An attack from outside") == 1
    assert "quick/attributes" in listed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no.such.module:SUITE", "'no.such.module' cannot be imported (No module named 'no')"),
        (f"{__name__}:NOTHING", f"{__name__!r} has no 'NOTHING'"),
        (f"{__name__}:METHOD", "is a Method, and no benchmarks.harness.jobs.Suite"),
        (":SUITE", "must read module:NAME"),
        ("module:", "must read module:NAME"),
        (f"{__name__}:ANOTHER", "is named 'quick' as another one is"),
        (f"{__name__}:SUITE/charm", "'charm'"),
    ],
)
def test_what_is_no_suite_is_refused(name, words, capsys):
    assert sweep.main([name]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("law", cases(OWN, "pull"))
def test_it_is_bound_by_the_laws(law):
    law()


def test_what_does_not_exist_is_refused_by_name():
    (cell,) = TABLE.cells("own", "small", None)
    with pytest.raises(ValueError, match="method='brand_new_attack' is unknown to attributes"):
        Job(cell, "brand_new_attack", 0)
    with pytest.raises(ValueError, match="method='gls' cannot run here: one step a round"):
        Job(cell, "gls", 0)
    with pytest.raises(ValueError, match="metric='charm' is unknown to attributes"):
        Outcome(Job(cell, "pull", 0), "charm", 0.5)
    with pytest.raises(ValueError, match="are no VictimSettings"):
        dataclasses.replace(cell, settings=Pull())
    with pytest.raises(ValueError, match="of method 'pull' are no Pull"):
        dataclasses.replace(cell, method_settings=(("pull", VictimSettings(0, 1)),))
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        VictimSettings(0, 40, colour="red")
    with pytest.raises(ValueError, match="method='charm' is unknown"):
        Table("t", "", OWN, places, ("charm",))
    with pytest.raises(ValueError, match="'pull' is there twice"):
        OWN.with_methods(METHOD)
    with pytest.raises(ValueError, match=r"'push' has traits=3; they must be Reading"):
        EXPERIMENT.with_methods(Method("push", "", traits=3))
    with pytest.raises(ValueError, match="metric 'a' is there twice"):
        dataclasses.replace(OWN, metrics=(Metric("a", ""), Metric("a", "")))
    assert isinstance(cell, Cell)


def test_the_command_line_refuses_it_too(capsys):
    assert sweep.main(["own", "--methods", "charm"], SUITES) == 2
    assert "--methods 'charm' is unknown here" in capsys.readouterr().err
    assert sweep.main(["own", "--where", "colour=red"], SUITES) == 2
    assert "'colour' is no column or setting here" in capsys.readouterr().err


def test_a_method_that_fails_leaves_the_others_their_rows(tmp_path, capsys):
    def fail(view, settings):
        raise RuntimeError("boom")

    broken = Method("broken", "raises", fail)
    experiment = OWN.with_methods(broken)
    table = Table("toy", "One of them fails", experiment, places, ("majority", "broken", "pull"))
    suites = {"own": Suite("own", (table,))}
    assert sweep.main(["own", "--seeds", "1", "--out", str(tmp_path)], suites) == 1
    with (tmp_path / "results.csv").open() as file:
        rows = {row["method"]: row["status"] for row in csv.DictReader(file)}
    assert rows == {"majority": "ok", "broken": "RuntimeError: boom", "pull": "ok"}
    log = (tmp_path / FAILURES).read_text()
    assert "own/toy breast_cancer broken seeds 0\n" in log
    assert 'raise RuntimeError("boom")' in log, "where it failed is not told"
    assert f"where: {tmp_path / FAILURES}" in capsys.readouterr().out


def test_a_job_of_which_anything_failed_is_run_again(tmp_path):
    met = []

    def fail_once(view, settings):
        met.append(len(met))
        if len(met) == 1:
            raise RuntimeError("boom")
        return pull(view, Pull())

    def statuses():
        with (tmp_path / "results.csv").open() as file:
            return {row["status"] for row in csv.DictReader(file)}

    flaky = Method("flaky", "raises when first called", fail_once)

    def untouched(size, data_dir):
        return [dataclasses.replace(place, method_settings={}) for place in places(size, data_dir)]

    table = Table("toy", "Fails once", EXPERIMENT.with_methods(flaky), untouched, ("flaky",))
    suites = {"own": Suite("own", (table,))}
    command = ["own", "--seeds", "1", "--out", str(tmp_path)]
    assert sweep.main(command, suites) == 1
    assert statuses() == {"RuntimeError: boom"}
    with sqlite3.connect(tmp_path / "results.sqlite") as database:  # a row that is fine beside it
        row = database.execute("SELECT * FROM results").fetchone()
        names = [column[1] for column in database.execute("PRAGMA table_info(results)")]
        fine = dict(zip(names, row, strict=True)) | {
            "status": "ok",
            "value": 0.5,
            "metric": "other",
        }
        marks = ", ".join("?" * len(names))
        database.execute(f"INSERT INTO results VALUES ({marks})", list(fine.values()))
    assert sweep.main(command, suites) == 0
    assert statuses() == {"ok"}


def test_rows_of_other_code_are_measured_again(tmp_path, capsys, monkeypatch):
    ask = ["own", "--methods", "majority", "--seeds", "2", "--out", str(tmp_path)]
    assert sweep.main(ask, SUITES) == 0
    assert sweep.main(ask, SUITES) == 0
    assert "running the other 0" in capsys.readouterr().out
    monkeypatch.setattr(code, "_ours", lambda: "another attack")
    code._digest_of.cache_clear()
    assert sweep.main([*ask, "--seeds", "3", "--keep-rows"], SUITES) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "2 jobs in" in told
    assert "other code and are kept" in told
    assert "running the other 1" in told
    assert "measured by 2 versions of the code" in (tmp_path / "report.html").read_text()
    assert sweep.main(ask, SUITES) == 0
    assert "are measured again" in " ".join(capsys.readouterr().out.split())
    monkeypatch.undo()
    code._digest_of.cache_clear()


def test_only_what_a_method_does_is_its_code():
    plain = code.statements("def f(x):\n    return x + 1\n")
    told = '"""What."""\ndef f(x):\n    """How."""\n    # Why.\n    return (x + 1)\n'
    assert code.statements(told) == plain
    assert code.statements("def f(x):\n    return x + 2\n") != plain


def test_an_attack_from_outside_has_its_own_modules_code():
    (cell,) = TABLE.cells("own", "small", None)
    inside = code.code_of(Job(cell, "majority", 0))
    assert inside == code.code_of(Job(cell, "majority", 1))
    assert inside != code.code_of(Job(cell, "pull", 0))
