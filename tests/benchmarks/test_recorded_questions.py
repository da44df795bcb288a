"""What an audit asks of a recorded run beside its sensitive columns."""

import csv
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import audit
from benchmarks.audits.recorded_clients import Client, clients_of
from benchmarks.audits.recorded_links import links_of
from benchmarks.audits.recorded_questions import QUESTIONS, Run
from jaxfl import Federated, LocalTraining, Messages, mlp, simulate, stack_clients
from jaxfl.datasets import Inputs, read_inputs
from jaxfl.recordings import read_rounds
from tests.benchmarks.test_audit import RECORDED, RECORDINGS, answer, without

pytestmark = pytest.mark.slow
NAMES, RECORDS, ROUNDS, NOBODY = ("ana", "ben", "eve", "kim"), 30, 6, 200
MODEL, TRAINING = mlp(6, (16,), 2), LocalTraining(0.3)


def federation(training: LocalTraining = TRAINING) -> Run:
    """Clients as their server has them, and people of nobody."""
    rng, key = np.random.default_rng(0), jax.random.key(0)
    x = rng.normal(size=(len(NAMES) * RECORDS + NOBODY, 6)).astype(np.float32)
    x[:, 0] = x[:, 0] > 0
    y = (x[:, 0] + x[:, 1] + rng.normal(size=len(x)) > 0.5).astype(np.int32)
    whose = np.repeat([*NAMES, ""], [RECORDS] * len(NAMES) + [NOBODY])
    table = Inputs(tuple("abcdef"), x, y, tuple(map(str, whose)))
    held = [(x[whose == name], y[whose == name]) for name in NAMES]
    run = simulate(MODEL, MODEL.init(key), stack_clients(held), key, Federated(ROUNDS, training))
    clients = []
    for place, name in enumerate(NAMES):
        rest = whose != name
        others = dataclasses.replace(table, x=x[rest], y=y[rest], clients=tuple(whose[rest]))
        messages = run.messages(place)
        clients.append(Client(name, messages, table.of(name), others, table))
    return Run(MODEL, training, clients, [["a"]])


def noise(messages: Messages, seed: int) -> Messages:
    """Messages of nobody: updates as long as the client's, in random directions."""
    rng = np.random.default_rng(seed)

    def one(received: jax.Array, returned: jax.Array) -> jax.Array:
        size = float(jnp.abs(returned - received).mean())
        return received + size * rng.normal(size=received.shape).astype(np.float32)

    returned = jax.tree.map(one, messages.received, messages.returned)
    return dataclasses.replace(messages, returned=returned)


def test_people_and_updates_are_told() -> None:
    run = federation()
    for name, question in QUESTIONS.items():
        assert question.missing(run) == ""
        rows, told = question.ask(run)
        assert [row["client"] for row in rows] == list(NAMES)
        assert {row["question"] for row in rows} == {name}
        assert {row["status"] for row in rows} == {"ok"}
        assert told.leaks, told.note
    assert "100 of" not in told.note
    rows, told = QUESTIONS["source"].ask(run)
    assert f"for {len(NAMES) * RECORDS} of {len(NAMES) * RECORDS} people, after 5" in told.note
    assert "by chance 25 of 100" in told.note


def test_updates_that_tell_nothing_tell_nothing() -> None:
    run = federation()
    blind = [
        dataclasses.replace(client, messages=noise(client.messages, seed))
        for seed, client in enumerate(run.clients)
    ]
    for name, question in QUESTIONS.items():
        rows, told = question.ask(dataclasses.replace(run, clients=blind))
        assert not told.leaks, told.note
        if name != "linkability":
            assert {row["status"] for row in rows} == {"misfit"}
            assert "are not confirmed by the updates" in told.note


def test_updates_are_linked_without_records_of_nobody_too() -> None:
    run = federation()
    table = run.clients[0].table
    rows = np.asarray(table.clients) != ""
    held = dataclasses.replace(
        table, x=table.x[rows], y=table.y[rows], clients=tuple(np.asarray(table.clients)[rows])
    )
    alone = [dataclasses.replace(client, table=held) for client in run.clients]
    for asked, method in (
        (run, "matched_filter"),
        (dataclasses.replace(run, clients=alone), "update"),
    ):
        answered = QUESTIONS["linkability"].ask(asked)
        assert {row["method"] for row in answered.rows} == {method}
        assert answered.told.leaks


def test_sources_are_asked_of_those_who_took_part_together() -> None:
    run = federation()
    kept = ([0, 1, 2, 3], [0, 1, 2, 3], [0, 3, 4], [5])
    absent = [
        dataclasses.replace(client, messages=client.messages.select(rounds))
        for client, rounds in zip(run.clients, kept, strict=True)
    ]
    rows, told = QUESTIONS["source"].ask(dataclasses.replace(run, clients=absent))
    assert [row["client"] for row in rows] == ["ana", "ben", "eve"]
    assert "after 2 rounds" in told.note
    links = links_of(absent)
    assert [(link.earlier, link.later) for link in links] == [(0, 1), (1, 2), (2, 3)]
    assert [link.queries for link in links] == [("ana", "ben"), ("ana", "ben"), ("ana", "ben")]
    assert links[0].gallery == ("ana", "ben", "eve")


def test_what_cannot_be_asked_is_said() -> None:
    run = federation()
    nameless = dataclasses.replace(
        run.clients[0].table, clients=("",) * len(run.clients[0].table.y)
    )
    for changed, names, said in (
        ({"clients": run.clients[:1]}, ("source", "linkability"), "of another one|two clients"),
        ({"clients": ()}, tuple(QUESTIONS), "updates"),
        ({"training": LocalTraining(0.3, batch_size=8)}, ("membership",), "--batch-size 0"),
        ({"training": LocalTraining(0.3, optimizer=optax.adam)}, ("membership", "source"), "SGD"),
        (
            {"clients": [dataclasses.replace(c, table=nameless) for c in run.clients]},
            ("membership", "source"),
            "--clients",
        ),
    ):
        for name in names:
            missing = QUESTIONS[name].missing(dataclasses.replace(run, **changed))
            assert any(text in missing for text in said.split("|")), (name, missing)


def test_a_recorded_run_of_pytorch_is_asked_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--messages", str(RECORDINGS / "pytorch"), *without(RECORDED, ["--questions"])]
    assert audit.main([*words, "--batch-size", "0", "--out", str(tmp_path)]) == 0
    told = answer(capsys)
    assert "Other questions were answered better than by chance: whether a known person" in told
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["question"] for row in rows} == {"attribute", *QUESTIONS}
    page = " ".join((tmp_path / "report.html").read_text().split())
    assert "Whether a known person is among a client&#39;s records was named rightly for" in page
    assert "Not asked: which clients hold many people of one kind" in page


def test_a_question_that_fails_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(run: Run) -> None:
        raise ValueError("messages[1] are messages[0]")

    monkeypatch.setitem(QUESTIONS, "source", dataclasses.replace(QUESTIONS["source"], ask=ask))
    words = ["--messages", str(RECORDINGS / "pytorch"), *without(RECORDED, ["--questions"])]
    words += ["--questions", "attribute,source", "--batch-size", "0", "--out", str(tmp_path)]
    assert audit.main(words) == 0
    assert "Not answered: source (messages[1] are" in (tmp_path / "report.html").read_text()


def test_rounds_in_which_nobody_took_part_are_left_out_by_number() -> None:
    table = read_inputs(RECORDINGS / "records.csv", "default", "client")
    run = read_rounds(RECORDINGS / "pytorch", mlp(8, (12,), 2), returned=None)
    numbers = run.checkpoints().rounds.tolist()
    present = dict.fromkeys(numbers[1:], ("ana", "ben", "eve"))
    (everyone,) = clients_of(run, table, (), present)
    assert everyone.messages.rounds.tolist() == numbers[1:]


def test_questions_of_simulated_clients_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--messages", str(RECORDINGS / "pytorch"), *without(RECORDED, ["--questions"])]
    assert audit.main([*words, "--questions", "attribute,records"]) == 2
    assert "holds records, which is asked of simulated clients" in capsys.readouterr().err
