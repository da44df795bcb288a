"""The throughput program: what it times, and what it makes of another program's answer."""

import csv
import dataclasses
import json
import math
import sys

import pytest

from benchmarks import throughput
from benchmarks.harness.operations import Operations
from benchmarks.speed import beside, growth, machine, table, timings
from benchmarks.speed.beside import Attacks, Duration, Messages, Rounds, line, time_other, timed
from benchmarks.suites import SUITES, specimens

SMALL = {"features": 6, "hidden": (4,), "classes": 2, "rounds": 2, "repeats": 1}


@pytest.fixture
def printing(tmp_path):
    """A command that prints what it is given."""

    def command(found: object) -> str:
        script = tmp_path / "other.py"
        script.write_text(f"print('starting')\nprint({json.dumps(found)!r})\n")
        return f"{sys.executable} {script} {{records}}"

    return command


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (Attacks(**SMALL, steps=40), ["cos, an iteration", "closed_form, whole"]),
        (Rounds(**SMALL, clients=2, batch_size=5), ["simulate, a round"]),
        (
            Rounds(**SMALL, clients=9, batch_size=5, clients_per_round=3, rounds_on_device=1),
            ["simulate, a round"],
        ),
        pytest.param(
            *(Messages(**SMALL, batch_size=5, orders=2), ["gls, a message"]),
            marks=pytest.mark.very_slow,
        ),
    ],
)
def test_every_kind_is_timed(arguments, names):
    timings = arguments.time(12)
    assert list(timings) == names
    assert all(0 < t.best <= t.median or math.isnan(t.best) for t in timings.values())


def test_more_devices_than_there_are_is_one_line(capsys):
    assert throughput.main(["rounds", "--devices", "99"]) == 2
    printed = capsys.readouterr()
    assert "--devices 99 are more than the" in printed.out + printed.err


def test_time_between_runs_is_that_of_an_iteration_or_is_not_known():
    short = Duration(5.0, 6.0, 1.0, operations=30.0)
    long = Duration(9.0, 14.0, 1.0, operations=70.0)
    assert beside._between(short, long, 4) == Duration(1.0, 2.0, 1.0, operations=10.0)
    unknown = beside._between(short, Duration(5.0, 14.0), 4)
    assert math.isnan(unknown.best)
    assert math.isnan(unknown.median)


@pytest.mark.parametrize("unit", ["ms", "s"])
def test_ratios_are_of_minima_in_one_unit(monkeypatch, printing, unit):
    times = iter(
        [
            {
                "a part": Duration(2.0, 3.0, operations=2e8),
                "b, whole": Duration(50.0, 60.0, others=10, operations=1e9, dtype=None),
            },
            {
                "a part": Duration(4.0, 5.0, operations=2e8),
                "b, whole": Duration(40.0, 60.0, others=10, operations=1e9, dtype=None),
            },
        ]
    )
    monkeypatch.setattr(Attacks, "time", lambda self, records: next(times))
    scale = {"ms": 1.0, "s": 1e-3}[unit]
    other = printing({f"{unit}_min": 8.0 * scale, f"{unit}_median": 9.0 * scale})
    limits = machine.Limits("a core", {"float32": 2e11, "float64": 1e11}, 1e10)
    part, whole = (line(*each, limits) for each in timed(Attacks(beside=other), 5))
    assert part == ["a part", "5", "2.00", "3.00", "0.0", "0.2", "50%", "8.00", "9.00", "4.0"]
    assert whole == ["b, whole", "5", "40.00", "60.00", "0.0", "1", "", "80.00", "90.00", "2.0"]


@pytest.mark.parametrize("found", [{"ms_min": 1.0}, [1.0], "slow"])
def test_an_answer_without_times_is_shown(printing, found):
    with pytest.raises(ValueError, match=r"--beside .* printed no JSON line with ms_min"):
        time_other(printing(found), 3)


def test_a_program_that_is_missing_ends_the_command(capsys):
    words = [
        "rounds",
        "--records",
        "12",
        "--clients",
        "2",
        "--features",
        "3",
        "--hidden",
        "2",
        "--batch-size",
        "5",
    ]
    assert throughput.main([*words, "--beside", "/no/such/program"]) == 2
    assert "--beside '/no/such/program' cannot be run" in capsys.readouterr().err


def test_every_method_of_every_suite_is_timed():
    timed = {(job.cell.experiment.name, job.method) for job in specimens.jobs_of("tiny")}
    experiments = {t.experiment.name: t.experiment for s in SUITES.values() for t in s.tables}
    every = {(e.name, m.name) for e in experiments.values() for m in e.methods}
    assert timed == every
    default = {(job.cell.experiment.name, job.method) for job in specimens.jobs_of("default")}
    assert default == timed


LIMITS = machine.Limits("here", {"float32": 1e9, "float64": 5e8}, 1e8)


def timing(**changed):
    known = {
        **{"experiment": "attributes", "program": "Attack cos", "methods": "cos", "size": "tiny"},
        **{"device": "here", "dtype": "float32", "members": 2, "seconds": 0.5, "compile_s": 1.0},
        **{"products": 4e8, "factorisations": 0.0, "elementwise": 1e8, "bytes": 1e7, "steps": 10.0},
    }
    return timings.Timing(**known | changed)


def test_what_is_attainable_goes_with_operations_per_byte():
    assert LIMITS.attainable("float32", 100.0) == 1e9
    assert LIMITS.attainable("float32", 2.0) == 2e8
    assert LIMITS.attainable("float64", 100.0) == 5e8
    assert timing().flops == 1e9
    assert timing().intensity == 50
    assert timing().per_second == 4


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"share": 0.3}, ""),
        ({"share": 0.01, "steps": 1e6}, "steps are short: 0 us each"),
        ({"share": 0.1, "elementwise": 1e9}, "numbers one by one"),
        ({"share": 0.1, "factorisations": 1e9}, "factorisations"),
        ({"share": 0.2, "bytes": 2e7}, "bytes"),
        ({"share": 0.2}, "products of small matrices"),
    ],
)
def test_a_low_share_has_its_reason(changed, reason):
    told = timings._limit(timing(**changed), Operations(), LIMITS)
    assert reason in told
    assert bool(told) == bool(reason)
    told = timings._limit(timing(**changed), Operations(open_loops=2), LIMITS)
    assert told == "2 open loops, counted once: it does more than that"


def test_a_table_is_written_read_and_set_beside_another(tmp_path):
    path = tmp_path / "before.csv"
    before = [timing(seconds=1.0, share=0.5), timing(program="Train", products=math.nan)]
    timings.write(path, before)
    again = timings.read(path)
    assert again[0] == before[0]
    assert math.isnan(again[1].products)
    (line,) = list(zip(*(c.cells for c in table.compared(again, [timing()]).columns), strict=True))
    assert line[-1] == "2"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is no table of timings"):
        timings.read(path)


@pytest.mark.very_slow
def test_programs_of_a_method_are_timed_beside_the_machines_limits(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(throughput, "prepare_devices", lambda cores: None)
    monkeypatch.setattr(throughput, "measure_limits", lambda: machine.measure_limits(64, 1 << 16))
    out = tmp_path / "here.csv"
    words = ["methods", "attributes", "--size", "tiny", "--methods", "majority"]
    assert throughput.main([*words, "--out", str(out), "--repeats", "1"]) == 0
    measured = timings.read(out)
    assert {t.program for t in measured} == {"Train", "Attack majority", "impute"}
    assert all(t.seconds > 0 for t in measured)
    train = next(t for t in measured if t.program == "Train")
    assert train.members == 2
    assert train.share > 0
    assert next(t for t in measured if t.program == "impute").limit == "on the host: scikit-learn"
    assert out.with_suffix(".svg").read_text().startswith("<?xml")
    assert "Attack majority" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "--experiments 'nothing' is not timed; choose from attributes"),
        (["--methods", "nobody"], "--methods 'nobody' is not timed; choose from"),
        (["--repeats", "0"], "repeats=0 must be an integer of at least 1"),
        (["--members", "-1"], "members=-1 must be an integer of at least 0"),
        (["--compare", "/no/such/file"], "'/no/such/file' is no table of timings"),
    ],
)
def test_bad_arguments_are_named(words, message, monkeypatch, capsys):
    monkeypatch.setattr(throughput, "prepare_devices", lambda cores: None)
    assert throughput.main(["methods", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_what_fails_is_a_line_and_the_others_go_on(monkeypatch):
    first, second = list(specimens.jobs_of("tiny"))[:2]

    def fail(jobs, data_dir):
        raise ValueError("nothing to see")

    broken = dataclasses.replace(first.cell.experiment, run=fail)
    job = dataclasses.replace(first, cell=dataclasses.replace(first.cell, experiment=broken))
    lines = timings.measure([job, second], "tiny", LIMITS, repeats=1)
    assert lines[0].limit == "ValueError: nothing to see"
    assert f"Attack {second.method}" in {line.program for line in lines}


def test_exponents_are_those_of_a_power_of_the_size():
    points = [growth.Point("records", "a", n, 2e-3 * n**1.5) for n in (10, 100, 1000)]
    assert growth.exponents(points) == pytest.approx((1.5, 1.5))
    points = [*points, growth.Point("records", "a", 10_000, 2e-3 * 1000**1.5 * 10**3)]
    whole, last = growth.exponents(points)
    assert 1.5 < whole < last == pytest.approx(3)
    assert all(map(math.isnan, growth.exponents(points[:1])))
    hidden = growth.Point("records", "a", 20, math.nan)  # by the machine's noise
    assert all(map(math.isnan, growth.exponents([points[0], hidden])))


def test_growth_is_written_as_it_is_measured(monkeypatch, tmp_path, capsys):
    def linear(settings):
        for times in settings.times:
            yield growth.Point("rounds", "simulate", times, 0.5 * times)
            yield growth.Point("rounds", "square", times, 0.1 * times**2)

    monkeypatch.setitem(growth.MEASURED, "rounds", linear)
    out = tmp_path / "growth.csv"
    assert throughput.main(["growth", "rounds", "--times", "1", "4", "--out", str(out)]) == 0
    assert out.read_text().splitlines()[-1] == "rounds,square,4,1.6"
    assert out.with_suffix(".svg").read_text().startswith("<?xml")
    shown = capsys.readouterr().out
    assert "1: 0.5, 4: 2" in shown
    assert "2.00" in shown
    assert throughput.main(["growth", "rounds", "--out", str(tmp_path / "no" / "g.csv")]) == 2


@pytest.mark.slow
def test_what_programs_of_a_sweep_hold_is_written_as_it_goes_on(tmp_path, capsys):
    out = tmp_path / "programs.csv"
    words = ["programs", "--cells", "3", "--every", "2", "--out", str(out), "--method"]
    assert throughput.main([*words, "majority"]) == 0
    head, *lines = csv.reader(out.read_text().splitlines())
    assert head == ["cells", "resident_mib", "peak_mib", "mappings"]
    assert [line[0] for line in lines] == ["2", "3"]
    for _, resident, peak, mappings in lines:
        assert 100 < int(resident) <= int(peak) + 1
        assert int(mappings) > 100
    assert throughput.main([*words, "nonesuch"]) == 2
    assert "nonesuch" in capsys.readouterr().err


@pytest.mark.very_slow
def test_records_and_rounds_grow():
    settings = growth.Growth(records=(20, 30), times=(1,), repeats=1)
    points = list(settings.of_records())
    assert {p.size for p in points} == {20, 30}
    assert len({p.what for p in points}) == 3
    assert all(p.seconds > 0 or math.isnan(p.seconds) for p in points)
