"""What an audit says of a recorded run, and of options that do not go together."""

import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from attacks import Diagnosis, Finding, Fit, Reconstruction
from attacks.diagnosis.advice import advice
from benchmarks import audit
from benchmarks.audits import recipe, recorded, recorded_clients, recorded_notes
from benchmarks.audits.coding import other_coding
from benchmarks.audits.options import Arguments, in_options, of_files
from jaxfl import ClassWeights, LocalTraining, mlp
from jaxfl.datasets import read_inputs
from jaxfl.domains import hints_of
from jaxfl.recordings import read_rounds
from tests.benchmarks.test_audit import RECORDED, RECORDINGS, without
from tests.jaxfl.test_recorded_changes import written

SLOW, LAST = pytest.mark.slow, pytest.mark.very_slow
EMPTY = Reconstruction((), (), None, 0.0, np.zeros(0), np.zeros(0), 0, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hidden", "7"], r"By --csv the model takes 8 inputs \(.*by --hidden '7'"),
        (["--drop", "smoker", "--sensitive", "owner"], "A column too many goes to --drop"),
        (["--sensitive", "default"], "'default' is the target, the client or dropped"),
        (["--one-output"], "--one-output is of a model that returns one number"),
        (["--class-weights", "1,2,3"], "'1,2,3' has 3 entries; --csv has labels up to 1"),
        (["--class-weights", "1,3", "--label-smoothing", "0.1"], "do not go together"),
        (["--hidden", "", "--dropout", "0.5"], "--dropout 0.5 is of hidden layers"),
        (["--upload-noise", "0.1", "--optimizer", "adam"], "is of clients with --optimizer sgd"),
        (["--unshuffled", "--batch-size", "0"], "--unshuffled with --batch-size 0"),
        (["--unshuffled", "--upload-noise", "0.1"], "--unshuffled with --upload-noise 0.1"),
        (["--class-weights", "1,0"], "'1,0' must hold a positive number for every label, as 1,3"),
    ],
)
def test_files_of_another_model_name_the_options(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--messages", str(RECORDINGS / "pytorch"), *without(RECORDED, words), *words]
    assert audit.main([*asked, "--out", str(tmp_path)]) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("column", [None, "client"])
def test_no_record_of_a_client_teaches_the_guesses_of_it(column: str | None) -> None:
    """Nor any where the table does not say whose its records are."""
    dropped = () if column else ("client",)
    table = read_inputs(RECORDINGS / "records.csv", "default", column, drop=dropped)
    for returned in ("round-{round}-client-{client}", None):
        run = read_rounds(RECORDINGS / "pytorch", mlp(8, (12,), 2), returned=returned)
        for client in recorded_clients.clients_of(run, table, ["ana"] if returned else ()):
            held = {row.tobytes() for row in client.records.x}
            assert len(client.records.y) == (40 if column and returned else 150)
            assert not [row for row in client.others.x if row.tobytes() in held]


def test_the_target_says_not_whose_a_record_is() -> None:
    with pytest.raises(ValueError, match="client='default' is the target"):
        read_inputs(RECORDINGS / "records.csv", "default", "default")


def test_another_rate_than_told_is_said() -> None:
    assert recorded_notes.other_rate("a", 0.1, LocalTraining(0.1)) == []
    told = recorded_notes.other_rate("a", 0.1, LocalTraining(0.3))
    assert told == ["a takes steps at rate 0.1, not 0.3 as told."]


def test_files_of_changes_and_layers_are_told_by_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--messages", str(RECORDINGS / "pytorch"), *RECORDED, "--out", str(tmp_path)]
    told = ["--layers", "0=Dense_0, 2=Dense_1", "--transposed", "yes", "--client", "ana"]
    assert audit.main([*asked, *told]) == 0
    for words, said in (
        (["--layers", "0"], "--layers '0' must hold layers, as fc1=Dense_0"),
        (["--layers", "fc1=Dense_0"], "--layers names 'fc1'; there are 0, 2"),
        (["--layers", "0=Dense_0,0=Dense_1"], "holds '0' more than once"),
        (["--transposed", "no"], "--transposed no does not bring weights"),
        (["--returned", "", "--returned-as", "changes"], "--returned '' has no files"),
    ):
        assert audit.main([*asked, *words]) == 2
        assert said in capsys.readouterr().err


def test_a_table_with_values_the_other_way_round_is_no_clean_bill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (RECORDINGS / "records.csv").read_text().splitlines()
    place, header = lines[0].split(",").index("smoker"), lines[0]
    rows = [line.split(",") for line in lines[1:]]
    flipped = [",".join([*r[:place], f"{1 - float(r[place]):g}", *r[place + 1 :]]) for r in rows]
    table = tmp_path / "flipped.csv"
    table.write_text("\n".join([header, *flipped]) + "\n")
    words = ["--messages", str(RECORDINGS / "pytorch"), *without(RECORDED, ["--csv"])]
    asked = [*words, "--csv", str(table), "--client", "ana"]
    assert audit.main([*asked, "--out", str(tmp_path / "audit")]) == 0
    assert "names rightly 'smoker' of 40 of 40 people" in " ".join(capsys.readouterr().out.split())
    page = " ".join((tmp_path / "audit/report.html").read_text().split())
    assert "0 was trained as 1, 1 was trained as 0" in page


@pytest.mark.slow
def test_updates_of_the_other_sign_are_told(tmp_path: Path) -> None:
    words = ["--messages", str(written(tmp_path, "changes")), *RECORDED, "--client", "ana"]
    words += ["--batch-size", "0", "--returned-as", "gradients", "--out", str(tmp_path / "audit")]
    assert audit.main(words) == 0
    page = " ".join((tmp_path / "audit/report.html").read_text().split())
    assert "explained by steps against its gradients, at rate -0.1" in page


@pytest.mark.parametrize("right", [0.95, 1.0])
def test_values_have_other_names_only_where_chance_is_none(right: float) -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 60)
    named = np.where(rng.random(60) < right, (truth + 1) % 3, rng.integers(0, 3, 60))
    coding = other_coding(named, truth, 3)
    assert coding is not None
    assert coding.renamed.tolist() == [1, 2, 0]
    assert other_coding(truth, truth, 3) is None
    assert other_coding(rng.integers(0, 3, 60), truth, 3) is None
    rare = (np.arange(60) < 3).astype(int)  # saying the same of all is nearly as often right
    assert other_coding(1 - rare, rare, 2) is None
    assert other_coding(np.ones(3, int) - truth[:3] % 2, truth[:3] % 2, 2) is None
    each = np.arange(6)
    assert other_coding((each + 1) % 6, each, 6) is None  # one person of every value
    misread = np.where(np.arange(60) < 2, 4, truth)
    assert other_coding(misread, np.where(np.arange(60) < 2, 3, truth), 5) is None


def test_what_is_said_of_files_names_the_options() -> None:
    told = "after the round. Name these files by after=, not by sent="
    assert of_files(told) == "after the round. Name these files by --after, not by --sent"
    told = "transposed=None leaves open whether 'a' is it; say True (PyTorch) or False"
    assert of_files(told) == "It is open whether 'a' is it; say --transposed yes (PyTorch) or no"


def test_errors_of_a_table_name_the_options() -> None:
    error = ValueError(
        "column 'day' has 9 distinct texts with decimal='.'; client='who' or path='a.csv': leave "
        "the column out, clean the file or declare the column categorical; 5 rows"
    )
    assert str(in_options(error)) == (
        "column 'day' has 9 distinct texts with --decimal '.'; --clients 'who' or --csv 'a.csv': "
        "leave the column out (--drop) or clean the file; 5 rows"
    )


@pytest.mark.parametrize(
    ("folder", "words", "least"),
    [
        pytest.param("one_output", "--activation tanh --one-output", 40, marks=LAST),
        pytest.param("smoothing", "--activation gelu --label-smoothing 0.1", 40, marks=LAST),
        pytest.param("weights", "--activation leaky_relu --class-weights 1,3", 40, marks=SLOW),
        pytest.param("dropout", "--dropout 0.2", 30, marks=LAST),  # 28 at most by chance
    ],
)
def test_losses_and_networks_of_pytorch_are_read_as_told(
    folder: str, words: str, least: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--messages", str(RECORDINGS / folder), *RECORDED, "--batch-size", "0"]
    assert audit.main([*asked, *words.split(), "--out", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    counts = re.search(r"names rightly 'smoker' of (\d+) of 40 people", told)
    assert counts is not None
    assert int(counts[1]) >= least
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["ok"]


@pytest.mark.parametrize(
    ("folder", "words", "option"),
    [
        ("one_output", ["--one-output"], "another activation"),
        ("smoothing", ["--activation", "gelu"], "label smoothing"),
        ("weights", ["--activation", "leaky_relu"], "class weights"),
    ],
)
@pytest.mark.very_slow
def test_what_was_not_told_is_asked_for_by_its_option(
    folder: str, words: list[str], option: str, tmp_path: Path
) -> None:
    asked = ["--messages", str(RECORDINGS / folder), *RECORDED, "--batch-size", "0"]
    assert audit.main([*asked, *words, "--out", str(tmp_path)]) == 0
    page = " ".join((tmp_path / "report.html").read_text().split())
    assert "It cannot be told" in page
    assert f"Tell it by {recorded_notes.OPTION_OF[option]}, and ask again" in page


def test_messages_that_a_second_look_explains_are_said_to_be_barely_outside() -> None:
    explained = Diagnosis((Finding("as told", "the recipe explains the messages", 1.0),), None, "")
    assert "asked again the recipe explains them" in recorded_notes.why("ana", explained)
    noised = Diagnosis((Finding("noise", "what is left has no direction", 0.9),), None, "")
    assert "Tell it by --upload-noise" in recorded_notes.why("ana", noised)
    assert recorded_notes.WHO_TOOK_PART in recorded_notes.why(recorded_clients.EVERYONE, noised)


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """The table with Flower's names of the clients."""
    names = {"ana": 2**63 + 11, "ben": 2**63 + 12, "eve": 2**63 + 13}
    text = (RECORDINGS / "records.csv").read_text()
    for name, node in names.items():
        text = text.replace(f"\n{name},", f"\n{node},")
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    return path


CHECKPOINTS = ["--after", "round-{round}-weights", "--returned", ""]
BATCHES = ["--batch-size", "16", "--epochs", "2"]


@pytest.mark.parametrize(
    ("folder", "words", "least"),
    [
        # Clipped by Flower: each update is a step at a rate of its own.
        pytest.param("flower_clipped", ["--batch-size", "0"], 150, marks=LAST),
        # Two of three clients a round, FedAdam's models of 64 bits.
        pytest.param("flower_batches", BATCHES, 147, marks=LAST),
        # Noise of a quarter to four tenths of an update's length; by chance 99 one time in 1,000.
        pytest.param(
            "flower_noised", ["--batch-size", "0", "--upload-noise", "0.00097"], 105, marks=LAST
        ),
        pytest.param("flower_checkpoints", [*CHECKPOINTS, *BATCHES], 105, marks=LAST),
    ],
)
def test_runs_of_flower_are_read_as_told(
    folder: str, words: list[str], least: int, nodes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--messages", str(RECORDINGS / folder), *without(RECORDED, ["--csv", *words])]
    out = nodes.parent / "out"
    assert audit.main([*asked, "--csv", str(nodes), *words, "--out", str(out)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    counts = re.search(r"names rightly 'smoker' of (\d+) of 150 people", told)
    assert counts is not None, told
    assert int(counts[1]) >= least
    with (out / "results.csv").open() as file:
        assert {row["status"] for row in csv.DictReader(file)} == {"ok"}


def test_batches_of_clients_side_by_side_are_batches_of_all() -> None:
    """Where global models alone are seen, a step is of every client's batch."""
    table, model = read_inputs(RECORDINGS / "records.csv", "default", "client"), mlp(8, (12,), 2)
    kept = "round-{round}-weights"
    run = read_rounds(RECORDINGS / "flower_checkpoints", model, returned=None, after=kept)
    (everyone,) = recorded_clients.clients_of(run, table)
    told = LocalTraining(0.1, 2, 16)
    assert everyone.recipe(told) == dataclasses.replace(told, batch_size=48)
    assert everyone.recipe(dataclasses.replace(told, batch_size=59)).batch_size == 150
    assert everyone.recipe(dataclasses.replace(told, batch_size=60)).batch_size is None
    assert everyone.recipe(LocalTraining(0.1)) == LocalTraining(0.1)
    noised = recipe.training(Arguments(upload_noise=0.01))
    deviations = [
        float(each.plugins[0].clip * each.plugins[0].noise_multiplier)
        for each in (noised, everyone.recipe(noised))
    ]
    # The mean weighs clients of 40, 60 and 50 records.
    assert deviations == pytest.approx([0.01, 0.01 * np.hypot(40, np.hypot(60, 50)) / 150])
    (note,) = recorded_notes.side_by_side(everyone, told, everyone.recipe(told))
    assert "Steps of 3 clients side by side, in batches of 16" in note
    assert not recorded_notes.side_by_side(everyone, LocalTraining(0.1), LocalTraining(0.1))


def test_weights_of_one_logit_are_no_shares_of_a_batch() -> None:
    """Of two outputs PyTorch divides by the sum of weights, of one by the number of records."""
    table = read_inputs(RECORDINGS / "records.csv", "default", "client")
    y, logits = np.asarray([0, 1, 1]), np.asarray([[0.5], [-1.0], [2.0]], np.float32)
    softplus = np.log1p(np.exp(np.where(y == 1, -1, 1) * logits[:, 0]))
    one = Arguments(one_output=True, class_weights="1,3")
    assert recipe.model_of(one, table).loss(logits, y) == pytest.approx([1, 3, 3] * softplus)
    assert recipe.training(one).plugins == ()
    parts = np.asarray([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]])
    of_each = [recipe.model_of(one, table).loss(logits, np.full(3, k)) for k in (0, 1)]
    soft = recipe.model_of(one, table).loss(logits, parts)
    assert soft == pytest.approx((parts.T * np.asarray(of_each)).sum(0), rel=1e-5)
    two = dataclasses.replace(one, one_output=False)
    assert recipe.training(two).plugins == (ClassWeights((1.0, 3.0)),)


def test_a_model_of_one_output_is_right_of_both_labels() -> None:
    table, model = read_inputs(RECORDINGS / "records.csv", "default", "client"), mlp(8, (), 1)
    kernel = np.zeros((8, 1))
    kernel[0] = 1
    params = {"Dense_0": {"kernel": kernel, "bias": np.zeros(1)}}
    right = ((table.x[:, 0] > 0) == table.y).mean()
    assert recorded.accuracy(model, params, table) == pytest.approx(right)
    assert not np.isclose(right, (table.y == 0).mean())


def test_causes_that_have_options_are_those_of_the_diagnosis() -> None:
    other, told = advice("anything else", LocalTraining(0.1), None), set(recorded_notes.OPTION_OF)
    unknown = [cause for cause in told if advice(cause, LocalTraining(0.1), None) == other]
    assert unknown == ["rate and weight decay"]  # two causes at once
    words = {name.replace("_", "-") for name in hints_of(Arguments)}
    said = re.findall(r"--([\w-]+)", " ".join(recorded_notes.OPTION_OF.values()))
    assert set(said) <= words


@pytest.mark.slow
def test_steps_of_adamw_are_read_by_the_decay_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--optimizer", "adam", "--learning-rate", "0.01", "--weight-decay", "0.01"]
    asked = ["--messages", str(RECORDINGS / "adamw"), *without(RECORDED, words), *words]
    assert audit.main([*asked, "--out", str(tmp_path)]) == 0
    assert "names rightly 'smoker' of 40 of 40 people" in " ".join(capsys.readouterr().out.split())


UNSHUFFLED = ["--batch-size", "16", "--epochs", "2"]
SGD = ["--momentum", "0.9"]
ADAM = ["--optimizer", "adam", "--learning-rate", "0.01"]


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        pytest.param("unshuffled", [*SGD, "--unshuffled"], marks=SLOW),
        pytest.param("unshuffled", SGD, marks=LAST),
        pytest.param("unshuffled_adam", [*ADAM, "--unshuffled"], marks=LAST),
    ],
)
@pytest.mark.very_slow
def test_batches_in_the_order_of_the_table_are_read_exactly(
    folder: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of SGD whether they are told of or not."""
    words = [*UNSHUFFLED, *words]
    asked = ["--messages", str(RECORDINGS / folder), *without(RECORDED, words), *words]
    assert audit.main([*asked, "--out", str(tmp_path)]) == 0
    assert "names rightly 'smoker' of 40 of 40 people" in " ".join(capsys.readouterr().out.split())
    page = " ".join((tmp_path / "report.html").read_text().split())
    assert ("cuts its batches from its records" in page) == ("--unshuffled" not in words)


def test_an_answer_that_falls_short_is_said_on_the_page() -> None:
    fit = Fit(np.asarray(0.9964), np.asarray(1.0), np.asarray(0.005))
    (note,) = recorded_notes.short("a", fit)
    assert "leaves 0.0036 of them unexplained, where a right one leaves 0 at most: some" in note
    right = dataclasses.replace(fit, explained=np.asarray(1.0))
    assert recorded_notes.short("a", right) == []
