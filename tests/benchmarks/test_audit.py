"""The audit: of a table of one's own, and of recorded runs of PyTorch and Flower."""

import csv
import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import yaml

from benchmarks import audit
from benchmarks.audits import recorded, recorded_clients, request
from benchmarks.audits.options import Arguments
from benchmarks.harness.command_line import UsageError
from jaxfl import Federated, LocalTraining, Upload, mlp, sgd, simulate, stack_clients
from jaxfl.datasets import read_inputs
from jaxfl.recordings import read_rounds

RECORDINGS = Path(__file__).parents[1] / "recordings"
RECORDED = ["--csv", str(RECORDINGS / "records.csv"), "--target", "default", "--clients", "client"]
RECORDED += ["--hidden", "12", "--sensitive", "smoker", "--questions", "attribute,property"]
SMALL = ["--target", "default", "--sensitive", "smoker", "--hidden", "16", "--rounds", "6"]
SMALL += ["--clients", "2", "--records", "40", "--batch-size", "0", "--questions", "attribute"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People: numbers, a region, whether they smoke (which the label depends on), a label."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("audit") / "people.csv"
    numbers, smoker = rng.normal(size=(400, 4)).round(3), rng.integers(0, 2, 400)
    label = numbers @ [1, -1, 0.5, 0] + smoker + rng.normal(size=400) > 0.5
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "income", "debt", "visits", "region", "smoker", "default"])
        for number, smokes, y in zip(numbers, smoker, label, strict=True):
            region = "NESW"[rng.integers(4)]
            rows.writerow([*number, region, ("no", "yes")[smokes], ("no", "yes")[int(y)]])
    return path


def without(options: list[str], words: list[str]) -> list[str]:
    """Options but those that words say anew."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in words for word in pair]


def misspelt(words: list[str]) -> list[str]:
    """A command of a column that does not exist."""
    return ["smokr" if word == "smoker" else word for word in words]


def answer(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_table_is_audited_in_one_command_and_again_from_its_own_file(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "audit"
    words = ["--csv", str(table), *SMALL, "--epsilon", "none,1", "--seeds", "2", "--out", str(out)]
    words[words.index("attribute")] = "attribute,epsilon"
    assert audit.main(words) == 0
    said = answer(capsys)
    assert "Yes: someone who reads what a client sends, and holds its records" in said
    assert "epsilon 1 or less, where less is stronger) left the attack no better" in said
    page = (out / "report.html").read_text()
    for told in (
        "The noise promises an epsilon of 1 at most. Updates show",
        "guess: from other columns",
        "epsilon 1",
        "data:image/png",
        "no, yes",
        "results.csv",
    ):
        assert told in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"majority", "cos", "closed_form", "gls", "canaries"}
    measured = (out / "results.csv").read_text()
    assert audit.main(["--config", str(out / "audit.yaml")]) == 0
    assert (out / "results.csv").read_text() == measured  # its times too: nothing ran again
    assert answer(capsys).split("report:")[0].split("Yes")[1] in said


@pytest.mark.very_slow
def test_sums_sources_and_updates_without_names_are_asked(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--csv", str(table), *SMALL, "--epsilon", "none", "--seeds", "2", "--out"]
    words[words.index("attribute")] = "attribute,property,source,linkability"
    words[words.index("--clients") + 1], words[words.index("--records") + 1] = "6", "30"
    assert audit.main([*words, str(tmp_path)]) == 0
    page = " ".join((tmp_path / "report.html").read_text().split())
    with (tmp_path / "results.csv").open() as file:
        values = {
            (row["table"], row["method"], row["metric"]): float(row["value"])
            for row in csv.DictReader(file)
        }
    # One full-batch step a round is read exactly.
    assert values["source", "decode_sources", "source_accuracy"] > 0.98
    assert "named the right one of 6 clients for" in page
    assert values["property", "gibbs", "auc"] > 0.7
    assert "shows sums over 3 of 6 clients alone: whether a client holds many people" in page
    assert values["linkability", "matched_filter", "precision"] > 0.5
    assert "Where updates of 6 clients come without names" in page


@pytest.mark.parametrize(
    ("options", "reader"),
    [
        (["pytorch", "--client", "ana,eve"], "someone who reads what a client sends"),
        (
            ["pytorch", "--client", "ana", "--batch-size", "10"],
            "someone who reads what a client sends",
        ),
        (
            ["flower", "--returned", "", "--after", "round-{round}-weights"],
            "someone who has the global models alone",
        ),
    ],
)
def test_recorded_runs_are_audited(
    options: list[str], reader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is told a wrong recipe, which an exact answer overrules."""
    name, *others = options
    words = ["--messages", str(RECORDINGS / name), *RECORDED, "--out", str(tmp_path)]
    if "--batch-size" not in others:
        words += ["--batch-size", "0"]
    assert audit.main([*words, *others]) == 0
    said = answer(capsys)
    assert f"Yes: {reader}" in said
    assert read_share(said) == 1
    page = (tmp_path / "report.html").read_text()
    assert ("SGD on all of its records, not as told" in page) == ("--batch-size" in others)


def read_share(said: str) -> float:
    """Share of the recorded people of whom the column is named rightly."""
    right = re.search(r"names rightly 'smoker' of (\d+) of (\d+) people", said)
    assert right
    return int(right[1]) / int(right[2])


def write_run(folder: Path, training: LocalTraining, plugins: tuple[Any, ...] = ()) -> list[str]:
    """Record a federation of the table's clients that trains so; the words that audit it."""
    table = read_inputs(RECORDINGS / "records.csv", target="default", client="client")
    names = ("ana", "ben", "eve")
    clients = stack_clients([(table.of(name).x, table.of(name).y) for name in names])
    model, key = mlp(8, (12,), 2), jax.random.key(0)
    run = simulate(model, model.init(key), clients, key, Federated(20, training, plugins))
    for place, name in enumerate(names):
        seen = run.messages(place)
        for number in range(20):
            for file, tree in (("sent", seen.received), (f"client-{name}", seen.returned)):
                arrays = {
                    f"{layer}/{kind}": np.asarray(value[number])
                    for layer, kinds in tree.items()
                    for kind, value in kinds.items()
                }
                np.savez(folder / f"round-{number}-{file}.npz", **arrays)
    return ["--messages", str(folder), *RECORDED, "--out", str(folder / "audit")]


@pytest.mark.very_slow
def test_recorded_clients_that_clip_are_read_and_said_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write_run(tmp_path, LocalTraining(0.1), (Upload(clip=0.03),))
    assert audit.main([*words, "--batch-size", "0"]) == 0
    assert read_share(answer(capsys)) == 1
    assert (
        "updates are clipped, or its learning rate" in (tmp_path / "audit/report.html").read_text()
    )


@pytest.mark.very_slow
@pytest.mark.parametrize("told", [True, False])
def test_recorded_clients_with_momentum_are_explained_if_that_is_told(
    told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write_run(tmp_path, LocalTraining(0.05, 2, 16, sgd(0.9, 1e-3)))
    words += ["--client", "ana", "--batch-size", "16", "--epochs", "2", "--learning-rate", "0.05"]
    words += ["--momentum", "0.9", "--weight-decay", "0.001"] if told else []
    assert audit.main(words) == 0
    assert (read_share(answer(capsys)) >= 0.95) == told
    page = (tmp_path / "audit/report.html").read_text()
    assert ("Updates of ana are not explained" in page) == (not told)


@pytest.mark.very_slow
def test_recorded_clients_of_adam_in_batches_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write_run(tmp_path, LocalTraining(0.002, 2, 16, optax.adam))
    words += ["--client", "ana", "--batch-size", "16", "--epochs", "2"]
    words += ["--optimizer", "adam", "--learning-rate", "0.002"]
    assert audit.main(words) == 0
    assert read_share(answer(capsys)) >= 0.9
    assert "Updates of ana are not explained" not in (tmp_path / "audit/report.html").read_text()


@pytest.mark.parametrize("told", ["adam", "sgd"])
def test_recorded_clients_of_adam_are_read_whatever_was_told(
    told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--messages", str(RECORDINGS / "adam"), *RECORDED, "--out", str(tmp_path)]
    assert audit.main([*words, "--batch-size", "0", "--optimizer", told]) == 0
    said, page = answer(capsys), (tmp_path / "report.html").read_text()
    assert "Yes: someone who reads" in said
    for text in (said, page):  # where there is one client, a sum is its update
        assert "what everyone is sent in the next round: it is the only client" in text
    assert ("one step of Adam on all of its records, not as told" in page) == (told == "sgd")


@pytest.mark.slow
def test_updates_of_another_recipe_are_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels that were not the clients': nothing explains their updates."""
    with (RECORDINGS / "records.csv").open() as file:
        rows = list(csv.reader(file))
    with (tmp_path / "wrong.csv").open("w", newline="") as file:
        csv.writer(file).writerows([rows[0], *([*r[:-1], 1 - int(r[-1])] for r in rows[1:])])
    words = ["--messages", str(RECORDINGS / "pytorch"), *RECORDED, "--client", "ana"]
    words += ["--csv", str(tmp_path / "wrong.csv"), "--batch-size", "0", "--out", str(tmp_path)]
    assert audit.main(words) == 0
    said = "It cannot be told: these updates are not of clients that train as was said"
    assert said in answer(capsys)
    assert "are not explained. They say:" in (tmp_path / "report.html").read_text()


@pytest.mark.very_slow
def test_clients_are_those_that_a_column_names(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--csv", str(table), *SMALL, "--epsilon", "none", "--seeds", "4"]
    words[words.index("--clients") + 1] = "region"
    words[words.index("--records") + 1] = "0"
    assert audit.main([*words, "--out", str(tmp_path)]) == 0
    assert "Yes: someone who reads" in answer(capsys)
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"[34], each of [34]\d records; by &#39;region&#39;", page)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--csv", "nowhere.csv"], "--csv 'nowhere.csv' is no file"),
        (["--target", "wealth"], "--target 'wealth' is not a column"),
        (["--sensitive", "sex"], "--sensitive 'sex' is not a column"),
        (["--sensitive", ""], "--sensitive '' is missing"),
        (["--clients", "none"], "--clients 'none' is not a column"),
        (["--clients", "0"], "--clients '0' must be a number of clients or a column"),
        (["--clients", "age"], "--clients 'age' names 377 in people, of whom 0 have 40 records"),
        (["--clients", "smoker"], "--sensitive 'smoker' is the target, the client or dropped"),
        (["--clients", "100", "--records", "0"], "so that 21 clients can be had"),
        (["--records", "5"], "--records 5 must be at least 10"),
        (["--hidden", "big"], "--hidden 'big' must hold widths"),
        (["--epsilon", "0"], "--epsilon '0' must hold positive numbers"),
        (["--batch-size", "-1"], "--batch-size=-1 must be an integer of at least 0"),
        (["--learning-rate", "0"], "--learning-rate=0.0 must be positive"),
        (["--momentum", "1"], "--momentum 1.0 must be between 0 and 1"),
        (["--momentum", "0.9", "--optimizer", "adam"], "--optimizer adam has neither"),
        (["--rounds", "0"], "--rounds=0 must be an integer of at least 1"),
        (["--seeds", "few"], "--seeds 'few'"),
        (["--questions", "records"], "--questions 'records' must hold attribute"),
        (["--messages", "nowhere", "--clients", ""], "--messages 'nowhere' is no folder"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--sensitive", "smoker,smoker"], "--sensitive 'smoker,smoker' holds 'smoker' more than"),
        (["--questions", "attribute,attribute"], "holds 'attribute' more than once"),
        (["--seeds", "0,0"], "--seeds '0,0' must name seeds, none negative and none twice"),
        (["--hidden", "4,²"], "--hidden '4,²' must hold widths"),
        (["--clients", "²"], "--clients '²' is not a column of"),
        (["--out", __file__], "is no folder"),
        (["--out", "/proc/nowhere"], "--out '/proc/nowhere' cannot be made: No such file"),
        (["--batch-size", "41", "--drop-last"], "--drop-last True with --batch-size 41 leaves out"),
        (["--drop-last"], "--drop-last with --batch-size 0"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ["--csv", str(table), *without(SMALL, words), "--out", str(tmp_path / "audit")]
    assert audit.main([*first, *words]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: ")
    assert said in told
    assert "\n" not in told


def test_a_column_of_one_value_has_nothing_to_be_told(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "constant.csv"
    path.write_text(table.read_text().replace(",yes,", ",no,"))
    assert audit.main(["--csv", str(path), *SMALL, "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "has the value 'no' nearly everywhere, and no other in 1% of the records" in told


@pytest.mark.parametrize(
    "held",
    [
        *("[1, 2]", "rounds: many", "wealth: 3", "a: [", "3", "", "1: x\nfoo: y"),
        *("csv: a\ncsv: b", "target: null", "[1, 2]: x", "? {a: b}\n: c"),
    ],
)
def test_a_bad_configuration_is_refused(
    held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(held)
    assert audit.main(["--config", str(path)]) == 2
    assert re.match(r"error: --config '.*audit.yaml' (is no|holds|has)", capsys.readouterr().err)


def test_a_request_that_cannot_be_run_leaves_the_settings_of_the_last(
    table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "audit"
    words = ["--csv", str(table), *SMALL, "--out", str(out)]
    assert audit.main(misspelt(words)) == 2
    assert not out.exists()
    out.mkdir()
    (out / "audit.yaml").write_text("kept")
    assert audit.main(misspelt(words)) == 2
    words = ["--messages", str(RECORDINGS / "pytorch"), *RECORDED, "--out", str(out)]
    assert audit.main(misspelt(words)) == 2
    assert (out / "audit.yaml").read_text() == "kept"


def test_a_recorded_client_that_is_named_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be its own control."""
    words = ["--messages", str(RECORDINGS / "pytorch"), *RECORDED, "--client", "ana,ana"]
    assert audit.main([*words, "--out", str(tmp_path)]) == 2
    assert "--client 'ana,ana' holds 'ana' more than once" in capsys.readouterr().err
    table = read_inputs(RECORDINGS / "records.csv", "default", "client")
    run = read_rounds(str(RECORDINGS / "pytorch"), mlp(8, (12,), 2))
    with pytest.raises(ValueError, match="client='ana' is named more than once"):
        recorded_clients.clients_of(run, table, ("ana", "ana"))


@pytest.mark.slow
def test_training_that_diverges_is_no_clean_bill(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--csv", str(table), *SMALL, "--epsilon", "none", "--seeds", "1", "--rounds", "2"]
    assert audit.main([*words, "--learning-rate", "1e30", "--out", str(tmp_path)]) in (0, 1)
    said = answer(capsys)
    assert "It cannot be told: training, or every attack, ended with numbers that are not" in said
    assert "no leak here was shown" not in said


def test_a_configuration_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(f"csv: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']")
    assert audit.main(["--config", str(path)]) == 2
    assert not (tmp_path / "made").exists()
    assert yaml.safe_dump({"csv": "a"})  # what audits write is what they read


def test_the_values_of_a_column_are_those_of_the_table_not_of_the_client(tmp_path: Path) -> None:
    """A value that no record of the client has is a candidate all the same."""
    with (RECORDINGS / "records.csv").open() as file:
        header, *records = csv.reader(file)
    place = header.index("smoker")
    with (tmp_path / "inputs.csv").open("w", newline="") as file:
        changed = ([*r[:place], "2", *r[place + 1 :]] if r[0] == "ben" else r for r in records)
        csv.writer(file).writerows([header, *changed])
    table = read_inputs(tmp_path / "inputs.csv", "default", "client")
    run = read_rounds(RECORDINGS / "pytorch", mlp(8, (12,), 2))
    clients = recorded_clients.clients_of(run, table, ["ana"])
    found = recorded.read(mlp(8, (12,), 2), clients, ["smoker"], LocalTraining(0.1)).finding
    assert found.values == ("0", "1", "2")
    assert found.levels[0].estimate.mean > 0.95


def test_a_folder_keeps_the_results_of_another_recorded_run(tmp_path: Path) -> None:
    """Its rows are kept nowhere else."""
    folder = tmp_path / "audit"
    folder.mkdir()
    first = Arguments(csv="a.csv", target="y", sensitive="s", messages="run", out=str(folder))
    request.keep_settings(first, folder)
    (folder / "results.csv").write_text("rows")
    request.keep_settings(first, folder)
    for changed in ({"client": "ana"}, {"messages": None}, {"csv": "b.csv"}):
        with pytest.raises(UsageError, match=f"holds another audit, with {next(iter(changed))}="):
            request.keep_settings(dataclasses.replace(first, **changed), folder)
    (folder / "audit.yaml").unlink()
    with pytest.raises(UsageError, match="holds another audit"):
        request.keep_settings(first, folder)
