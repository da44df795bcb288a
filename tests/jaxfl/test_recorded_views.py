"""Sums and anonymous messages of a recorded run are those of the run itself."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxfl
from jaxfl import Federated, Keep, LocalTraining, Transcript
from jaxfl.recordings import Recording, RecordingWarning, read_rounds

MODEL = jaxfl.mlp(4, (6,), 2)
CLIENTS, PER_ROUND, ROUNDS = 5, 3, 4
KEY = jax.random.key(0)


def simulated() -> Transcript:
    """Five clients of eight records, of which three take part in a round."""
    rng = np.random.default_rng(0)
    parts = [
        (rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 2, 8)) for _ in range(CLIENTS)
    ]
    keep = Keep(clients="all")
    federated = Federated(ROUNDS, LocalTraining(0.5), clients_per_round=PER_ROUND, keep=keep)
    return jaxfl.simulate(MODEL, MODEL.init(KEY), jaxfl.stack_clients(parts), KEY, federated)


def _save(path: Path, tree: Any) -> None:
    leaves = jax.tree.leaves_with_path(tree)
    named = {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}
    np.savez(path, **named)


@pytest.fixture(scope="module")
def run() -> Transcript:
    return simulated()


@pytest.fixture(scope="module")
def folder(run: Transcript, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of what was sent, of what participants returned, and of the model after each round."""
    folder = tmp_path_factory.mktemp("run")
    for t in range(ROUNDS):
        _save(folder / f"round-{t}-sent.npz", jax.tree.map(lambda a, t=t: a[t], run.received))
        for c in np.flatnonzero(run.participation[t]):
            back = jax.tree.map(lambda a, t=t, c=c: a[t, c], run.returned)
            _save(folder / f"round-{t}-client-{c}.npz", back)
    _save(folder / f"round-{ROUNDS}-sent.npz", run.params)
    return folder


def took_part(run: Transcript) -> dict[int, list[str]]:
    return {t: [str(c) for c in np.flatnonzero(run.participation[t])] for t in range(ROUNDS)}


def near(a: Any, b: Any, tolerance: float = 1e-6) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance), a, b)


@pytest.mark.parametrize("alone", [False, True], ids=["clients", "global models alone"])
def test_sums_are_those_of_the_run(run: Transcript, folder: Path, alone: bool) -> None:
    recorded = read_rounds(folder, MODEL, **({"returned": None} if alone else {}))
    seen, everyone = recorded.aggregates(took_part(run) if alone else None)
    wanted = run.aggregates()
    assert everyone == tuple(map(str, range(CLIENTS)))
    np.testing.assert_array_equal(seen.participation, wanted.participation)
    np.testing.assert_array_equal(seen.rounds, wanted.rounds)
    assert seen.clients_per_round == wanted.clients_per_round == PER_ROUND
    near(seen.received, wanted.received, 0)
    near(seen.pseudo_gradient, wanted.pseudo_gradient)


def test_anonymous_messages_are_the_participants_in_another_order(
    run: Transcript, folder: Path
) -> None:
    seen, senders = read_rounds(folder, MODEL).anonymous(KEY)
    assert senders.shape == (ROUNDS, PER_ROUND)
    for t, names in enumerate(senders):
        assert sorted(names) == took_part(run)[t]
        places = names.astype(int)
        near(
            jax.tree.map(lambda a, t=t: a[t], seen.returned),
            jax.tree.map(lambda a, t=t, places=places: a[t, places], run.returned),
            0,
        )
    orders = {tuple(np.argsort(names)) for names in senders}
    assert len(orders) > 1  # not one order in all rounds


def test_ragged_rounds_are_summed_and_not_anonymous(run: Transcript, folder: Path) -> None:
    recorded = read_rounds(folder, MODEL)
    first = next(iter(recorded.clients))
    dropped = {c: dict(models) for c, models in recorded.returned.items()}
    gone = next(iter(dropped[first]))
    del dropped[first][gone]
    ragged = Recording(recorded.layout, recorded.sent, dropped)
    seen, everyone = ragged.aggregates()
    assert seen.participation[gone, everyone.index(first)] == 0
    with pytest.raises(ValueError, match="have from 2 to 3 participants"):
        ragged.anonymous(KEY)
    kept = [t for t in range(ROUNDS) if t != gone]
    assert ragged.anonymous(KEY, kept)[1].shape == (ROUNDS - 1, PER_ROUND)


def test_weights_that_differ_are_warned_about(run: Transcript, folder: Path) -> None:
    """Of sums that the server made; those of clients' models are made here."""
    present, unlike = took_part(run), dict.fromkeys("0123", 8) | {"4": 9}
    alone = read_rounds(folder, MODEL, returned=None)
    alone.aggregates(present, weights=dict.fromkeys("01234", 8))
    with pytest.warns(RecordingWarning, match="weights from 8 to 9"):
        alone.aggregates(present, weights=unlike)
    read_rounds(folder, MODEL).aggregates(weights=unlike)


def test_bad_input_is_named(run: Transcript, folder: Path) -> None:
    recorded, alone = read_rounds(folder, MODEL), read_rounds(folder, MODEL, returned=None)
    present = took_part(run)
    absent = str(next(c for c in range(CLIENTS) if not run.participation[0, c]))
    cases = {
        "participation={}": lambda: recorded.aggregates({}),
        "names nobody": lambda: alone.aggregates(),
        f"names '{absent}' in round 0": lambda: recorded.aggregates({0: [absent]}),
        r"weights\['4'\]=None": lambda: alone.aggregates(present, dict.fromkeys("0123", 8)),
        "names round 99": lambda: recorded.aggregates({99: ["0"]}),
        "each named once": lambda: alone.aggregates({0: ["0", "0"]}),
        "sequence of ids": lambda: alone.aggregates({0: "ana"}),
        "must be a mapping": lambda: alone.aggregates([["0"]]),
        r"weights\['0'\]='8'": lambda: alone.aggregates(present, dict.fromkeys("01234", "8")),
        "a round twice": lambda: recorded.anonymous(KEY, [0, 0]),
        "names round 9;": lambda: recorded.anonymous(KEY, [9]),
        "held of \\[\\]": lambda: alone.anonymous(KEY),
        "key": lambda: recorded.anonymous(0),
    }
    for words, call in cases.items():
        with pytest.raises(ValueError, match=words):
            call()
