"""What rows of an audit say in words."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from benchmarks.audits import findings, notes, sentences
from benchmarks.harness.intervals import Interval
from benchmarks.measurements.attributes.uncommon import UNCOMMON, uncommon
from jaxfl.datasets.csv import are_ranges


def row(value: float, epsilon: float = math.inf, **others: Any) -> dict[str, Any]:
    guesses = {"majority": 0.6, "imputation": 0.7, "null": 0.5}
    told = {"method": "gls", "value": value, "status": "ok", "test_accuracy": 0.8}
    told |= {"detail": {"scored_records": 100}, "settings": {"epsilon": str(epsilon)}}
    return told | guesses | others


def found(*levels: tuple[float, float]) -> findings.Finding:
    rows = [
        row(value + noise, epsilon) for epsilon, value in levels for noise in (-0.01, 0.0, 0.01)
    ]
    return findings.finding_of("sex", ("f", "m"), 0.6, rows)


def test_the_weakest_protection_that_holds_is_named() -> None:
    """One that fails under a stronger one does not count."""
    assert found((math.inf, 0.9), (10, 0.8), (3, 0.7), (1, 0.6)).stopped_by.epsilon == 3
    assert found((math.inf, 0.9), (10, 0.6), (3, 0.8), (1, 0.6)).stopped_by.epsilon == 1
    assert found((math.inf, 0.9), (10, 0.6), (3, 0.6), (1, 0.8)).stopped_by is None
    leaking = found((math.inf, 0.9), (1, 0.8))
    assert "No protection that was tried" in sentences.stopped([leaking])
    assert "'sex'" in sentences.stopped([leaking])


def test_a_null_that_its_messages_contradict_is_no_guess() -> None:
    """Of 20 people another client's answer names .9 by chance."""
    detail = {"scored_records": 20, "null_status": "misfit"}
    rows = [row(1.0, majority=0.55, imputation=0.55, null=0.9, detail=detail)]
    (level,) = findings.finding_of("sex", ("f", "m"), 0.6, rows).levels
    assert level.learnt
    assert level.guess == 0.55
    assert level.people == 20
    told = sentences.leaked(
        [findings.Finding("sex", ("f", "m"), (level,), 0.6)], sentences.of_clients(8)
    )
    assert "of 20 of 20 people (without updates, 11 of 20 can be guessed)" in told
    for changed in ({"detail": detail | {"null_status": "ok"}}, {"status": "misfit"}):
        finding = findings.finding_of("sex", ("f", "m"), 0.6, [rows[0] | changed])
        assert finding.levels[0].guess == 0.9


def test_few_clients_do_not_show_that_a_protection_holds() -> None:
    """Accuracies so far apart that no leak is shown, and on average far above any guess."""
    rows = [row(v) for v in (0.98, 0.97, 0.99)] + [row(v, 10) for v in (0.99, 0.6)]
    finding = findings.finding_of("sex", ("f", "m"), 0.6, rows)
    assert not finding.levels[1].learnt
    assert finding.stopped_by is None
    assert "No protection that was tried is shown to keep 'sex' secret" in sentences.stopped(
        [finding]
    )


def test_only_what_beats_every_guess_is_learnt() -> None:
    for value, learnt in ((0.9, True), (0.7, False), (0.5, False)):
        assert found((math.inf, value)).levels[0].learnt is learnt
    assert found((math.inf, 0.9)).levels[0].guess == pytest.approx(0.7)
    newcombe = Interval(0.2, 0.0899, 0.3058)  # by hand, of 90 and 70 of 100
    one_client = findings.finding_of("sex", (), 0.6, [row(0.9)])
    assert one_client.levels[0].margin == pytest.approx(newcombe, abs=1e-3)
    failed = findings.finding_of("sex", (), 0.6, [row(0.9) | {"value": None}])
    assert not failed.levels[0].learnt


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"status": "unchecked"}, "they contradict no answer"),
        ({"status": "misfit"}, "not of clients that train as was said"),
        ({"status": "diverged", "value": None}, "ended with numbers that are not finite"),
        ({}, "no better than by guessing"),
    ],
)
def test_an_answer_in_doubt_is_no_clean_bill(others: dict[str, Any], said: str) -> None:
    finding = findings.finding_of("sex", (), 0.6, [row(0.6) | others])
    assert said in sentences.leaked([finding], sentences.of_clients(8))


def test_what_can_be_guessed_without_updates_is_no_control() -> None:
    finding = findings.finding_of("sex", ("f", "m"), 0.6, [row(0.99, null=0.8) for _ in range(3)])
    told = sentences.leaked([finding], sentences.of_clients(5))
    assert "without updates, 70 of 100 can be guessed, and another client's updates give 80" in told
    finding = findings.finding_of("sex", ("f", "m"), 0.6, [row(0.99) for _ in range(3)])
    told = sentences.leaked([finding], sentences.of_clients(5))
    assert "(without updates, 70 of 100 can be guessed)" in told


def test_a_column_in_doubt_gets_no_clean_bill_beside_another() -> None:
    sure = findings.finding_of("race", ("a", "b"), 0.6, [row(0.6) for _ in range(3)])
    failed = findings.finding_of("sex", (), 0.6, [row(0.9) | {"value": None}])
    misfit = findings.finding_of("sex", (), 0.6, [row(0.7, status="misfit") for _ in range(3)])
    for unsure, why in ((failed, "not finite"), (misfit, "not of clients that train as")):
        for both in ([sure, unsure], [unsure, sure]):
            told = sentences.leaked(both, sentences.of_clients(5))
            assert "names 'race' no better than by guessing" in told
            assert "It cannot be told of 'sex'" in told
            assert why in told
        read = findings.finding_of("age", (), 0.6, [row(0.99) for _ in range(3)])
        told = sentences.leaked([unsure, read], sentences.of_clients(5))
        assert told.startswith("Yes: ")
        assert "It cannot be told of 'sex'" in told


def test_a_protection_whose_answer_is_in_doubt_is_said_to_be() -> None:
    rows = [row(v) for v in (0.98, 0.97, 0.99)]
    rows += [row(v, 1, status="unchecked") for v in (0.5, 0.51, 0.49)]
    told = sentences.stopped([findings.finding_of("sex", ("f", "m"), 0.6, rows)])
    assert "left the attack no better than a guess (there rounding and noise may be as" in told
    unsure = findings.finding_of("sex", ("f", "m"), 0.6, [row(0.5, status="misfit")])
    assert "cannot be told either" in sentences.stopped([unsure])


def of_client(name: str, value: float, guess: float, **others: Any) -> dict[str, Any]:
    told = {"client": name, "majority": guess, "imputation": guess, "null": 0.5}
    return row(value) | told | others


def test_guesses_that_differ_do_not_hide_what_all_clients_show() -> None:
    """Two clients, all of whose records are named, of which one was easily guessed."""
    for majorities in ((0.5, 0.95), (0.5, *[0.97] * 5)):
        rows = [of_client(str(i), 1.0, guess) for i, guess in enumerate(majorities)]
        level = findings.level_of_clients(rows)
        assert level.learnt
        finding = findings.Finding("sex", ("f", "m"), (level,), 0.6)
        assert sentences.leaked([finding], sentences.of_clients(8)).startswith("Yes")


def test_people_count_alike_whoever_holds_them() -> None:
    """A client of one person is guessed in full, and hides nothing of the others."""
    rows = [of_client("A", 1.0, 0.6, detail={"scored_records": 20})]
    together = [*rows, of_client("B", 1.0, 1.0, detail={"scored_records": 1})]
    one, both = map(findings.level_of_clients, (rows, together))
    assert one.learnt
    assert both.learnt
    assert both.guesses["majority"] == pytest.approx(13 / 21)
    assert both.estimate.low == pytest.approx(findings.wilson_interval(21, 21).low)


def test_the_few_with_another_value_are_counted_apart() -> None:
    truth = np.asarray([0] * 7 + [1, 1, 2])[:, None]
    values = np.asarray([0] * 6 + [1] + [1, 0, 2])[:, None]
    assert uncommon(values, truth, 3).tolist() == [3, 2, 1]
    assert uncommon(values[:7], truth[:7], 3).tolist() == [0, 0, 1]
    both = uncommon(np.concatenate([values, values[::-1]], 1), np.concatenate([truth] * 2, 1), 3)
    assert both.tolist() == [6, 2, 4]
    detail = {"scored_records": 100, **dict(zip(UNCOMMON, (4, 3, 1), strict=True))}
    rows = [row(0.98, majority=0.96, detail=detail) for _ in range(2)]
    (note,) = notes.of_the_few(findings.finding_of("hiv", ("0", "1"), 0.6, rows))
    assert "named 6 of 8 without protection (2 of the rest were said to have another)" in note
    even = [each | {"majority": 0.6} for each in rows]
    for others in (even, [row(0.98, majority=0.96)]):
        assert not notes.of_the_few(findings.finding_of("hiv", ("0", "1"), 0.6, others))


def test_what_leaks_beside_the_columns_is_in_the_answer() -> None:
    plain = {"table": "membership", "method": "closed_form", "metric": "accuracy", "chance": 0.5}
    plain |= {"settings": {"epsilon": "inf"}, "detail": {"scored_records": 40}}
    leaks = ["whether a known person is among a client's records"]
    for value, expected in ((1.0, leaks), (0.5, [])):
        assert notes.answered_beside([row(value) | plain]) == expected
    private = {"settings": {"epsilon": "1"}}
    assert not notes.answered_beside([row(1.0) | plain | private])
    # A share of few pairs of updates, in one run.
    linked = {"method": "matched_filter", "metric": "precision", "detail": {}}
    assert not notes.answered_beside([row(0.5) | plain | linked | {"table": "linkability"}])
    finding = findings.finding_of("sex", ("f", "m"), 0.6, [row(0.5) for _ in range(3)])
    told = sentences.answer([finding], (), sentences.of_clients(3), leaks)
    assert told[1] == "It was tried with 3 updates of one client."
    assert told[2].startswith("So no leak of these columns was shown")
    assert "better than by chance: whether a known person" in told[3]


def test_a_target_that_is_nearly_the_same_everywhere_is_no_useless_model() -> None:
    rows = [row(0.9, test_accuracy=1.0) for _ in range(3)]
    assert not notes.of_rows((), [findings.finding_of("sex", (), 0.99, rows)], ())
    rows = [row(0.9, test_accuracy=0.99) for _ in range(3)]
    assert notes.of_rows((), [findings.finding_of("sex", (), 0.99, rows)], ())


def test_rows_without_a_size_or_a_value_are_left_out() -> None:
    rows = [of_client("A", 1.0, 0.6), of_client("B", 1.0, 0.6, detail={})]
    assert findings.level_of_clients(rows).estimate.mean == 1
    lost = findings.level_of_clients([*rows, of_client("C", 0.0, 0.6) | {"value": None}])
    assert lost.estimate.mean == 1


def test_ranges_of_a_number_are_said_to_be_ranges() -> None:
    assert are_ranges(("0 to 74.75", "74.75 to 1e+03"))
    assert not are_ranges(("0", "1"))
    assert not are_ranges(("9 to 5", "1 to 2"))
    finding = findings.finding_of("age", ("0 to 1", "1 to 2"), 0.6, [row(0.95) for _ in range(3)])
    told = sentences.leaked([dataclasses.replace(finding, ranges=True)], sentences.of_clients(3))
    assert "names rightly 'age' (which of 2 ranges) of 95 of 100 people" in told


def test_each_client_counts_by_the_method_that_read_it() -> None:
    rows = [
        of_client("A", 1.0, 0.6, method="closed_form"),
        of_client("B", 1.0, 0.7, method="gls"),
        of_client("C", 0.5, 0.6, method="gls", status="misfit"),
    ]
    level = findings.level_of_clients(rows)
    assert (level.method, level.estimate.mean, level.doubt) == ("gls, closed_form", 1.0, "")
    told = sentences.leaked(
        [findings.Finding("sex", ("f", "m"), (level,), 0.6)], sentences.of_clients(8)
    )
    assert told.startswith("Yes")
    assert "Of C it cannot be told: these updates are not of clients" in told
    alone = findings.level_of_clients(rows[2:])
    assert alone.doubt == "misfit"
    assert not alone.untold


def test_what_may_leak_is_no_clean_bill() -> None:
    rows = [of_client("A", 0.6, 0.5), of_client("B", 0.58, 0.55)]
    finding = findings.Finding("sex", ("f", "m"), (findings.level_of_clients(rows),), 0.6)
    assert not finding.levels[0].learnt
    told = sentences.leaked([finding], sentences.of_clients(8))
    assert "So few people, or so few clients, do not show it" in told
    assert "no leak here was shown" not in sentences.stopped([finding])


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ([2.996, 3.5], "Updates show 2.99 to 3.5 or more"),
        ([0.0, 1.0], "Updates show 0 to 1 or more"),
        ([0.0], "Updates show nothing of it"),
        ([2.5], "Updates show 2.5 or more"),
        ([3.2, 3.5], "more than is promised"),
        ([None], "nothing was measured"),
    ],
)
def test_what_updates_show_of_a_promise(bounds: list[float | None], words: str) -> None:
    told = {"table": "epsilon", "metric": "epsilon_bound", "settings": {"epsilon": 3.0}}
    (note,) = notes.of_rows([told | {"value": bound} for bound in bounds], (), ())
    assert "epsilon of 3 " in note
    assert words in note
    assert ("look for a fault" in note) == (words == "more than is promised")
