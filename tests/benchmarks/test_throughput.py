"""The throughput program: what it times, and what it makes of another program's answer."""

import json
import math
import sys

import pytest

from benchmarks import throughput
from benchmarks.speed import beside, machine, specimens, table, timings
from benchmarks.speed.beside import Attacks, Duration, Messages, Rounds, lines, time_other

SMALL = {"features": 6, "hidden": (4,), "classes": 2, "rounds": 2, "repeats": 1}


@pytest.fixture
def printing(tmp_path):
    """A command that prints what it is given."""

    def command(found: object) -> str:
        script = tmp_path / "other.py"
        script.write_text(f"print('starting')\nprint({json.dumps(found)!r})\n")
        return f"{sys.executable} {script} {{records}}"

    return command


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (Attacks(**SMALL, steps=40), ["cos, an iteration", "closed_form, whole"]),
        (Rounds(**SMALL, clients=2, batch_size=5), ["simulate, a round"]),
        (Messages(**SMALL, batch_size=5, orders=2), ["gls, a message"]),
    ],
)
def test_every_kind_is_timed(arguments, names):
    timings = arguments.time(12)
    assert list(timings) == names
    assert all(0 < t.best <= t.median or math.isnan(t.best) for t in timings.values())


def test_time_between_runs_is_that_of_an_iteration_or_is_not_known():
    short, long = Duration(5.0, 6.0, 1.0), Duration(9.0, 14.0, 1.0)
    assert beside._between(short, long, 4) == Duration(1.0, 2.0, 1.0)
    unknown = beside._between(short, Duration(5.0, 14.0), 4)
    assert math.isnan(unknown.best)
    assert math.isnan(unknown.median)


@pytest.mark.parametrize("unit", ["ms", "s"])
def test_ratios_are_of_minima_in_one_unit(monkeypatch, printing, unit):
    times = iter(
        [
            {"a part": Duration(2.0, 3.0), "b, whole": Duration(50.0, 60.0, others=10)},
            {"a part": Duration(4.0, 5.0), "b, whole": Duration(40.0, 60.0, others=10)},
        ]
    )
    monkeypatch.setattr(Attacks, "time", lambda self, records: next(times))
    scale = {"ms": 1.0, "s": 1e-3}[unit]
    other = printing({f"{unit}_min": 8.0 * scale, f"{unit}_median": 9.0 * scale})
    part, whole = lines(Attacks(beside=other), 5)
    assert part == ["a part", "5", "2.00", "3.00", "0.0", "8.00", "9.00", "4.0"]
    assert whole == ["b, whole", "5", "40.00", "60.00", "0.0", "80.00", "90.00", "2.0"]


@pytest.mark.parametrize("found", [{"ms_min": 1.0}, [1.0], "slow"])
def test_an_answer_without_times_is_shown(printing, found):
    with pytest.raises(ValueError, match=r"--beside .* printed no JSON line with ms_min"):
        time_other(printing(found), 3)


def test_a_program_that_is_missing_ends_the_command(monkeypatch, capsys):
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "throughput",
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
            "--beside",
            "/no/such/program",
        ],
    )
    assert throughput.main() == 2
    assert "--beside '/no/such/program' cannot be run" in capsys.readouterr().err
