"""The audit of a recorded run, told what sums show: who holds many people with a value."""

import csv
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import audit
from benchmarks.audits.recorded_sums import (
    Game,
    Participation,
    game_of,
    read_participation,
    summed_participation,
    told_by_sums,
)
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients
from jaxfl.datasets import Inputs, read_inputs
from jaxfl.recordings import Recording, read_rounds

pytestmark = pytest.mark.slow
CLIENTS, RECORDS, ROUNDS = 8, 60, 40
MANY, FEW = 0.7, 0.2
NAMES = tuple(f"site{number}" for number in range(CLIENTS))


def people(rng, records, share):
    """Binary columns, the first of which is asked about, and a label that depends on it."""
    x = (rng.random((records, 6)) < 0.5).astype(np.float32)
    x[:, 0] = rng.permutation(records) < round(share * records)
    y = ((x[:, 0] + x[:, 1] + rng.random(records)) > 1.5).astype(np.int32)
    return x, y


def recorded(
    folder: Path,
    shares: Sequence[float],
    nobody: int,
    per_round: int | None = CLIENTS // 2,
    called: Sequence[str] = NAMES,
) -> list[str]:
    """A run whose clients are drawn in every round, and its table, which calls them so; the words
    that audit it."""
    rng, model, key = np.random.default_rng(0), mlp(6, (16,), 2), jax.random.key(0)
    held = [people(rng, RECORDS, share) for share in shares]
    federated = Federated(ROUNDS, LocalTraining(0.3), clients_per_round=per_round)
    run = simulate(model, model.init(key), stack_clients(held), key, federated)
    present = np.asarray(run.participation)
    for number in range(ROUNDS):
        trees = {"sent": jax.tree.map(lambda a, t=number: a[t], run.received)}
        for place in np.flatnonzero(present[number]):
            returned = jax.tree.map(lambda a, t=number, c=place: a[t, c], run.returned)
            trees[f"client-{NAMES[place]}"] = returned
        for file, tree in trees.items():
            arrays = {f"{n}/{k}": np.asarray(v) for n, at in tree.items() for k, v in at.items()}
            np.savez(folder / f"round-{number}-{file}.npz", **arrays)
    whose = [*zip(called, held, strict=True), ("", people(rng, nobody, 0.45))]
    with (folder / "people.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["smoker", "b", "c", "d", "e", "f", "default", "site"])
        for name, (x, y) in whose if nobody else whose[:-1]:
            table.writerows(
                [*row.astype(int), label, name] for row, label in zip(x, y, strict=True)
            )
    words = ["--messages", str(folder), "--csv", str(folder / "people.csv"), "--target", "default"]
    words += ["--sensitive", "smoker", "--clients", "site", "--hidden", "16", "--batch-size", "0"]
    return [*words, "--learning-rate", "0.3", "--client", NAMES[-1], "--out", str(folder / "audit")]


def told_of_smokers(run: Recording, table: Inputs, present: Participation) -> str:
    """What sums tell, in words."""
    game = game_of(run, table, ["smoker"], present)
    assert isinstance(game, Game)
    return told_by_sums(mlp(6, (16,), 2), game, LocalTraining(0.3)).told.note


def page(folder: Path) -> str:
    return " ".join((folder / "audit/report.html").read_text().split())


@pytest.mark.very_slow
def test_sums_of_a_recorded_run_tell_who_holds_many(tmp_path: Path) -> None:
    shares = [MANY if number % 2 else FEW for number in range(CLIENTS)]
    assert audit.main(recorded(tmp_path, shares, nobody=600)) == 0
    told = page(tmp_path)
    assert "sums over 4 of 8 clients alone: whether a client holds many people with smoker" in told
    assert "(70 of 100 people on average; the others 20 of 100)" in told
    right = re.search(r"told rightly, after 40 rounds, of (\d) of 8 clients", told)
    assert right
    assert int(right[1]) >= 7
    assert "better than by chance: which clients hold many people with a value, by sums" in told
    assert "So secure aggregation alone does not hide it." in told


def test_global_models_and_who_took_part_are_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a server has behind secure aggregation; the last round has no sum."""
    shares = [MANY if number % 2 else FEW for number in range(CLIENTS)]
    words = recorded(tmp_path, shares, nobody=600)
    lines = participants(tmp_path).read_text().splitlines()
    run = read_rounds(str(tmp_path), mlp(6, (16,), 2), returned=None)
    table = read_inputs(str(tmp_path / "people.csv"), "default", "site")
    assert "who took part in which round (--participation)" in game_of(run, table, ["smoker"])
    present = summed_participation(run, read_participation(str(tmp_path / "present.csv")))
    told = told_of_smokers(run, table, present)
    right = re.search(r"told rightly, after 39 rounds, of (\d) of 8 clients", told)
    assert right
    assert int(right[1]) >= 7
    assert "taken to count alike" not in told
    rows = dataclasses.replace(table, x=table.x[1:], y=table.y[1:], clients=table.clients[1:])
    told = told_of_smokers(run, rows, present)
    assert "Clients hold from 59 to 60 people, and were taken to count alike" in told
    idle = {**run.sent, 5: run.sent[4]}  # nobody took part in round 4
    quiet = dataclasses.replace(run, sent=idle)
    some = {t: names for t, names in present.items() if t != 4}
    assert 4 not in summed_participation(quiet, some)
    begun = dataclasses.replace(run, sent={t: run.sent[t] for t in run.sent if t > 0})
    with pytest.raises(ValueError, match="names round 0, of which no sum is recorded"):
        summed_participation(begun, present)
    kept_after = summed_participation(begun, present, after=True)
    assert list(kept_after) == [t for t in present if t > 0]
    told_rounds = [line.split(",") for line in lines[1:]]
    later = [
        [lines[0], *(f"{int(number) + 1},{name}" for number, name in told_rounds)],
        [*lines, lines[-1]],
    ]
    for text, said in zip(later, ("nobody in round 0", "twice: row"), strict=True):
        (tmp_path / "later.csv").write_text("\n".join(text))
        with pytest.raises(ValueError, match=said):
            summed_participation(run, read_participation(str(tmp_path / "later.csv")))
    (tmp_path / "alien.csv").write_text("\n".join([*lines, "9,zz"]))
    assert audit.main(global_models(words, tmp_path / "alien.csv")) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "names 'zz' in round 9, of whom the table has no record; it has those of" in told
    assert audit.main([*words, "--participation", str(tmp_path / "nobody.csv")]) == 2
    assert "nobody.csv' is no file" in " ".join(capsys.readouterr().err.split())


def global_models(words: Sequence[str], present: Path) -> list[str]:
    """The words that audit what secure aggregation leaves."""
    place = words.index("--client")
    alone = [*words[:place], *words[place + 2 :]]
    return [*alone, "--returned=", "--participation", str(present)]


def participants(folder: Path) -> Path:
    """Who took part by the files of a run, as a table."""
    present = [path.stem.split("-") for path in sorted(folder.glob("round-*-client-*.npz"))]
    lines = ["round,client", *(f"{number},{name}" for _, number, _, name in present)]
    (folder / "present.csv").write_text("\n".join(lines))
    return folder / "present.csv"


def test_where_clients_are_absent_sums_lead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No set of records is behind all global models, so that no client is attacked."""
    shares = [MANY if number % 2 else FEW for number in range(CLIENTS)]
    words = recorded(tmp_path, shares, nobody=600)
    assert audit.main(global_models(words, participants(tmp_path))) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 1: sums over clients, smoker: ok" in said
    assert "Yes: which clients hold many people with a value, by sums alone. Behind" in said
    assert "Values of single people were not asked for" in said
    assert "not explained" not in said
    told = page(tmp_path)
    assert told.count("Behind secure aggregation") == 1
    assert "The global models before and after 39 rounds, and who took part in each" in told
    assert "Attacker right" not in told
    with (tmp_path / "audit/results.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["client"], row["method"], row["majority"]) == ("sums over clients", "gibbs", "0.5")
    assert float(row["value"]) >= 7 / 8


def test_nothing_is_asked_where_clients_are_absent_and_nobody_is_public(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = recorded(tmp_path, [MANY, FEW] * (CLIENTS // 2), nobody=0)
    assert audit.main(global_models(words, participants(tmp_path))) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "says that clients were absent from rounds" in said
    assert "needs 120 records of nobody" in said
    alone = [*global_models(words, participants(tmp_path)), "--questions", "attribute"]
    assert audit.main(alone) == 2
    assert "--questions 'attribute' leaves out" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "audit").exists()


@pytest.mark.very_slow
def test_those_who_took_part_in_every_round_are_one_client(tmp_path: Path) -> None:
    """Others of whom the table has records do not count, and guesses are learned from them."""
    words = recorded(tmp_path, [MANY, FEW] * (CLIENTS // 2), nobody=0, per_round=None)
    present = participants(tmp_path)
    rng = np.random.default_rng(1)
    with (tmp_path / "people.csv").open("a", newline="") as file:
        x, y = people(rng, RECORDS, MANY)
        rows = ([*r.astype(int), label, "elsewhere"] for r, label in zip(x, y, strict=True))
        csv.writer(file).writerows(rows)
    assert audit.main(global_models(words, present)) == 0
    with (tmp_path / "audit/results.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["client"], row["status"]) == ("all who took part, together", "ok")
    assert row["imputation"]
    assert "60 of the table&#39;s 540 records are of nobody who took part" in page(tmp_path)
    assert float(row["value"]) > float(row["majority"]) + 0.1
    assert re.search(
        r"4\d\d of 480 people are like another one of them in the answer", page(tmp_path)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is no file"),
        ("round,site\n1,a", "lacks the column 'client'; it has round, site"),
        ("round,client\none,a", "holds the round 'one'"),
        ("round,client\n1,a\n2,", "names no client in row 3"),
    ],
)
def test_a_table_of_participants_is_checked(text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "present.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_participation(str(path))


def test_participants_are_read_by_round(tmp_path: Path) -> None:
    (tmp_path / "present.csv").write_text("round,client\n1,a\n1,b\n3,a\n")
    assert read_participation(str(tmp_path / "present.csv")) == {1: ["a", "b"], 3: ["a"]}
    assert read_participation(None) is None


def test_sums_tell_who_holds_many_by_messages_alone(tmp_path: Path) -> None:
    """Of a table that names each other's records for half of the clients, half is told rightly."""
    shares = [MANY if number % 2 else FEW for number in range(CLIENTS)]
    called = [*NAMES[3::-1], *NAMES[4:]]
    assert audit.main(recorded(tmp_path, shares, nobody=600, called=called)) == 0
    told = page(tmp_path)
    right = re.search(r"told rightly, after 40 rounds, of (\d) of 8 clients", told)
    assert right
    assert 3 <= int(right[1]) <= 5
    assert "That this leaks is not shown." in told


def test_sums_tell_nothing_of_clients_that_are_all_there(tmp_path: Path) -> None:
    shares = [MANY if number % 2 else FEW for number in range(CLIENTS)]
    assert audit.main(recorded(tmp_path, shares, nobody=600, per_round=None)) == 0
    assert "which needs rounds in which some clients are absent" in page(tmp_path)


@pytest.mark.parametrize(
    ("share", "nobody", "missing"),
    [
        (MANY, 50, "needs 120 records of nobody for a client&#39;s 60"),
        (FEW, 600, "needs clients, and records of nobody, that differ in the column"),
    ],
)
def test_what_sums_need_is_said(share: float, nobody: int, missing: str, tmp_path: Path) -> None:
    shares = [share if number % 2 else FEW for number in range(CLIENTS)]
    assert audit.main(recorded(tmp_path, shares, nobody)) == 0
    assert missing in page(tmp_path)
