"""Audits of columns that hold numbers, of which bounds are known."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import audit
from benchmarks.audits import notes, recorded_numbers
from benchmarks.measurements.numbers import commonest
from jaxfl.datasets import read_inputs
from tests.benchmarks.test_audit import RECORDED, RECORDINGS, SMALL, answer, table, without

__all__ = ["table"]  # a fixture
AGE = ["--sensitive", "age"]


def row(method: str, metric: str, value: float, epsilon: float = np.inf) -> dict:
    """A row of one column, as far as its note asks."""
    return {
        "method": method,
        "metric": metric,
        "value": value,
        "status": "ok",
        "majority": 0.15,
        "imputation": 0.2 if metric == "told" else 7.0,
        "null": 0.1,
        "settings": {"epsilon": epsilon, "decode_numbers.nodes": 9},
        "detail": {"within": 1.36, "scored_records": 100},
    }


def test_numbers_are_said_in_their_own_units_beside_guesses() -> None:
    rows = [row("decode_numbers", "told", 0.8), row("decode_numbers", "median_error", 0.6)]
    rows += [row("decode_numbers", "told", 0.1, 3.0), row("decode_numbers", "median_error", 9.0, 3)]
    (told,) = notes.numbered("age", rows)
    assert told.leaks
    assert (
        "to within 1.36 of 80 of 100 people without protection and 10 of 100 people with epsilon 3"
        in told.note
    )
    assert "is that near for 15 of 100, and a guess from the other columns for 20" in told.note
    assert "off by more than 0.6 without protection and 9 with epsilon 3" in told.note
    (guessed,) = notes.numbered("age", [row("decode_numbers", "told", 0.2), *rows[1:]])
    assert not guessed.leaks
    assert notes.numbered("age", []) == []


def test_the_best_number_to_say_of_all_is_where_most_are_near() -> None:
    rng = np.random.default_rng(0)
    numbers = np.concatenate([rng.normal(size=200), np.full(50, 3.0)])
    centres = np.linspace(-4, 4, 4_001)
    best = max((np.abs(numbers - centre) <= 0.2).mean() for centre in centres)
    assert commonest(numbers, 0.2) == pytest.approx(best, abs=0.01)
    assert commonest(numbers, 0.2) >= best


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--optimizer", "adam"], "'age' has 148 values.*--optimizer adam is not among them"),
        (["--unshuffled", "--batch-size", "8"], "'age' has 148 values.*--unshuffled is not among"),
    ],
)
def test_clients_whose_numbers_cannot_be_asked_for_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--messages", str(RECORDINGS / "pytorch"), *without(RECORDED, ["--sensitive"])]
    asked += [*AGE, *words]
    assert audit.main([*asked, "--out", str(tmp_path)]) == 2
    assert re.search(said, " ".join(capsys.readouterr().err.split()))


def test_a_column_of_few_values_is_asked_value_by_value() -> None:
    inputs = read_inputs(RECORDINGS / "records.csv", "default", "client")
    assert recorded_numbers.are_numbers(inputs, ["age"])
    assert not recorded_numbers.are_numbers(inputs, ["smoker"])
    assert not recorded_numbers.are_numbers(inputs, ["age", "smoker"])


@pytest.mark.very_slow
def test_numbers_of_a_recorded_run_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--messages", str(RECORDINGS / "pytorch"), *without(RECORDED, ["--sensitive"]), *AGE]
    words += ["--client", "ana", "--batch-size", "0", "--out", str(tmp_path)]
    assert audit.main(words) == 0
    told = " ".join(answer(capsys).split())
    counts = re.search(r"names rightly 'age' \(to within 0.0996\) of (\d+) of 40 people", told)
    assert counts is not None, told
    assert int(counts[1]) == 40
    with (tmp_path / "results.csv").open() as file:
        assert {line["method"] for line in csv.DictReader(file)} == {"decode_numbers"}
    page = (tmp_path / "report.html").read_text()
    assert "right is what is off by 0.0996 at most" in page


@pytest.mark.very_slow
def test_numbers_of_a_simulated_federation_are_read(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    column = table.read_text().splitlines()[0].split(",")[0]
    words = ["--csv", str(table), *without(SMALL, ["--sensitive", "--questions"])]
    words += ["--sensitive", column, "--questions", "attribute,numbers", "--epsilon", "none"]
    assert audit.main([*words, "--seeds", "1", "--out", str(tmp_path)]) == 0
    assert f"the numbers of {column!r}" in answer(capsys)
    page = (tmp_path / "report.html").read_text()
    assert f"Numbers of &#39;{column}&#39;, not their ranges" in page
