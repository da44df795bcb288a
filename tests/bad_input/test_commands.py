"""Bad input on every command line: every option is spoilt in every way that its type makes bad, and
is named in one line, or declared harmless; none ends in a traceback."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks import audit, compare, report, sweep, throughput
from benchmarks.audits import recorded, recorded_run, simulated
from benchmarks.harness import store as stores
from benchmarks.harness.command_line import exit_code
from benchmarks.speed import beside, estimates, memory
from benchmarks.suites import frontier_figure
from jaxfl import domains
from tests.bad_input.commands import Command, accept, bad_texts, outcome

RECORDINGS = Path(__file__).parents[1] / "recordings"
TABLE = {"csv": str(RECORDINGS / "records.csv"), "target": "default", "sensitive": "smoker"}
TIMING = {"repeats": "3"}
RESULTS = "{results}"  # a folder that holds rows
VALID = {
    "sweep": Command(sweep.main, sweep.Arguments, {"out": "{folder}"}),
    "audit": Command(audit.main, audit.Arguments, TABLE | {"clients": "3", "out": "{folder}"}),
    "audit of messages": Command(
        audit.main,
        audit.Arguments,
        TABLE
        | {"messages": str(RECORDINGS / "pytorch"), "clients": "client", "hidden": "12"}
        | {"out": "{folder}"},
    ),
    "throughput": Command(throughput.main, throughput.Methods, TIMING, ("methods",)),
    "throughput programs": Command(
        throughput.main,
        throughput.Programs,
        {"cells": "2", "method": "majority", "out": f"{RESULTS}/programs.csv"},
        ("programs",),
    ),
    "throughput attacks": Command(throughput.main, throughput.Attacks, TIMING, ("attacks",)),
    "throughput rounds": Command(throughput.main, throughput.Rounds, TIMING, ("rounds",)),
    "throughput messages": Command(throughput.main, throughput.Messages, TIMING, ("messages",)),
    "report": Command(report.main, report.Arguments, {"out": RESULTS}),
    "estimates": Command(estimates.main, estimates.Arguments, {"out": RESULTS}),
    "frontier_figure": Command(
        frontier_figure.main,
        frontier_figure.Arguments,
        {"out": RESULTS, "figure": f"{RESULTS}/figure.svg"},
    ),
    "compare": Command(
        compare.main,
        compare.Arguments,
        {"old": f"{RESULTS}/results.csv", "new": f"{RESULTS}/results.csv"},
    ),
}
"""A valid call of every command, before its folders are known."""


def harmless(name, field, text):
    """Why a text that looks bad is none."""
    if field in ("out", "figure") and text:
        return "a folder or a file of this name is made"
    if field in ("data_dir", "messages") and Path(text).is_dir():
        return "a folder that holds no source, or no recording of these clients"
    if (field, text) == ("separator", ","):
        return "it is the table's"
    if not text.strip(", "):
        return {
            ("audit", "drop"): "no column is left out",
            ("audit of messages", "drop"): "no column is left out",
            ("audit", "hidden"): "logistic regression",
            ("audit", "epsilon"): "no private training",
            ("audit of messages", "client"): "all clients",
            ("audit of messages", "clients"): "one client's, and the column of clients is an input",
            ("audit of messages", "hidden"): "logistic regression, which is refused by the arrays",
            ("audit of messages", "returned"): "global models alone, as --help says",
        }.get((name, field))
    return None


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * n.startswith("audit")) for n in VALID],
)
def test_bad_input_is_named(name, tmp_path, monkeypatch):
    command = prepared(VALID[name], tmp_path, monkeypatch)
    field = next(iter(command.valid))
    assert outcome(command, field, command.valid[field]) == "accepted"
    bad = []
    for field, hint in domains.hints_of(command.record).items():
        for text in bad_texts(hint, tmp_path):
            what = outcome(command, field, text)
            refused = what.startswith("code 2") or what == "accepted"
            if what != "named" and not (refused and harmless(name, field, text)):
                bad.append(f"{field}={text[:40]!r}: {what}")
    assert not bad, "\n".join(bad)


def prepared(command, folder, monkeypatch):
    """A command whose work is replaced, in folders of its own."""
    monkeypatch.chdir(folder)
    for module in (sweep, simulated, recorded_run, throughput):
        monkeypatch.setattr(module, "prepare_devices", lambda **_: None)
    for module in (sweep, simulated):
        monkeypatch.setattr(module, "run_groups", accept)
    monkeypatch.setattr(throughput, "measure_limits", accept)
    for record in (beside.Attacks, beside.Rounds, beside.Messages):
        monkeypatch.setattr(record, "time", lambda record, records: {"a": beside.Duration(1, 1)})
    monkeypatch.setattr(memory, "local", lambda run, groups: ())
    monkeypatch.setattr(recorded, "decode", accept)
    monkeypatch.setattr(estimates.estimates, "write", accept)
    monkeypatch.setattr(frontier_figure, "points", lambda rows, axis: [1])
    monkeypatch.setattr(frontier_figure, "draw", lambda rows: Figure())
    results = folder / "results"
    store = stores.Store(results)
    rows = store.write_csv()
    store.close()
    columns = rows.read_text().rstrip("\n").split(",")
    rows.write_text("\n".join([",".join(columns), ",".join("0" for _ in columns)]))
    valid = {
        name: text.format(folder=folder / "out", results=results)
        for name, text in command.valid.items()
    }
    return Command(command.main, command.record, valid, command.chosen)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("client='bob' is not recorded", "--client 'bob' is not recorded"),
        ("text_encoding='u' is none", "--text-encoding 'u' is none"),
        ("csv is no results.csv", "csv is no results.csv"),
        ("path='x' is no file", "path='x' is no file"),
    ],
)
def test_an_argument_is_told_as_the_option_by_its_name(raised, told, capsys):
    def fail():
        raise ValueError(raised)

    assert exit_code(fail, audit.Arguments) == 2
    assert capsys.readouterr().err == f"error: {told}\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [(audit, ["--drop", "a", "--drop=b"]), (sweep, ["--where", "a=1", "--where", "b=2"])],
)
def test_an_option_of_several_values_stands_once(command, words, capsys):
    assert command.main(words) == 2
    told = f"error: {words[0]} is given 2 times; give all its values once\n"
    assert capsys.readouterr().err == told
