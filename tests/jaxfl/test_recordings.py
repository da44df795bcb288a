"""Recordings of PyTorch and Flower, written by these themselves (`tests/recordings/write.py`)."""

import csv
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

import jaxfl
from attacks import Knowledge, binary_column, closed_form
from attacks.fit import MisfitWarning
from jaxfl.recordings import (
    RecordingWarning,
    layout_of,
    messages_from,
    read_arrays,
    read_rounds,
    rounds,
)

HERE = Path(__file__).parents[1] / "recordings"
FORMATS = HERE / "formats"
MODEL = jaxfl.mlp(8, (12,), 2)
SMOKER, DECODED = 6, 1.0
CLIENTS = ("ana", "ben", "eve")
NODES = {name: str(2**63 + 11 + i) for i, name in enumerate(CLIENTS)}
torch_reads = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch's own format is read by torch alone"
)


def records(*clients: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of clients."""
    with (HERE / "records.csv").open() as file:
        rows = [row for row in csv.reader(file) if row[0] in clients]
    values = np.asarray([row[1:] for row in rows], np.float32)
    return values[:, :-1], values[:, -1].astype(int)


def decoded(messages: jaxfl.Messages, *clients: str) -> float:
    """How many of these clients' records `closed_form` names the unknown column of."""
    x, y = records(*clients)
    truth = x[:, SMOKER].copy()
    x[:, SMOKER] = np.nan
    known = Knowledge(x, y, (binary_column(SMOKER),))
    answer = closed_form(MODEL, messages, known)
    return float((np.asarray(answer.values[0]) == truth).mean())


def run_of(framework: str, **options: Any) -> Any:
    return read_rounds(HERE / framework, MODEL, **options)


@pytest.mark.parametrize(
    "name",
    [
        "state.npz",
        "unnamed.npz",
        "state.safetensors",
        pytest.param("state.pt", marks=torch_reads),
        pytest.param("checkpoint.pt", marks=torch_reads),
    ],
)
def test_a_model_of_pytorch_gives_pytorchs_outputs(name: str) -> None:
    arrays = read_arrays(FORMATS / name)
    params = layout_of(MODEL, arrays).params(arrays)
    with np.load(FORMATS / "outputs.npz") as told:
        outputs = MODEL.apply(params, told["x"])
        np.testing.assert_allclose(outputs, told["outputs"], atol=1e-6)


def test_half_precision_is_read_as_it_was_rounded() -> None:
    whole, half = (read_arrays(FORMATS / f"{name}.safetensors") for name in ("state", "bfloat16"))
    for name, array in whole.items():
        assert half[name].dtype == np.float32
        np.testing.assert_allclose(half[name], array, rtol=2**-8)
        assert (half[name] != array).any()


class Cnn(nn.Module):
    """The network of `write.py`: convolution, normalisation, ReLU, dense layer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(3, (3, 3), padding="VALID")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
        return nn.Dense(4)(x.reshape(len(x), -1))


def test_images_are_brought_to_channels_last() -> None:
    model = jaxfl.from_flax(Cnn(), (6, 8, 2), jaxfl.cross_entropy, 4)
    arrays = read_arrays(FORMATS / "cnn.safetensors")
    layout = layout_of(model, arrays, layers={"1": "BatchNorm_0"})
    assert set(layout.dropped) == {f"1.{n}" for n in ("running_mean", "running_var")} | {
        "1.num_batches_tracked"
    }
    with np.load(FORMATS / "cnn_outputs.npz") as told:
        outputs = model.apply(layout.params(arrays), told["x"].transpose(0, 2, 3, 1))
        np.testing.assert_allclose(outputs, told["outputs"], atol=1e-5)


@pytest.mark.parametrize("client", CLIENTS)
def test_recorded_clients_are_decoded(client: str) -> None:
    assert decoded(run_of("pytorch").messages(client), client) == DECODED
    assert decoded(run_of("flower").messages(NODES[client]), client) == DECODED


def test_another_clients_file_is_not_explained() -> None:
    with pytest.warns(MisfitWarning):
        assert decoded(run_of("pytorch").messages("ben"), "eve") < 0.9


def test_participation_may_be_ragged() -> None:
    run = run_of("pytorch")
    assert run.clients == CLIENTS
    assert run.rounds == tuple(range(6))
    assert run.messages("ben").rounds.tolist() == [0, 1, 3, 4, 5]
    with pytest.raises(ValueError, match=r"names round 2; 'ben' took part in \[0, 1, 3, 4, 5\]"):
        run.messages("ben", [1, 2])
    with pytest.raises(ValueError, match="client='bob' is not recorded"):
        run.messages("bob")


@pytest.mark.parametrize(
    "given", [{"after": "round-{round}-weights"}, {"sent": "round-{round}-sent"}]
)
def test_checkpoints_alone_are_decoded(given: dict[str, str]) -> None:
    seen = run_of("flower", returned=None, **given).checkpoints()
    assert len(seen) == 5
    assert decoded(seen, *CLIENTS) == DECODED


def test_models_after_rounds_are_what_the_next_round_was_sent() -> None:
    run = run_of("flower", after="round-{round}-weights")
    assert run.rounds == tuple(range(2, 8))
    whole = run_of("flower").messages(NODES["eve"], [2, 3, 4, 5, 6])
    assert jax.tree.all(
        jax.tree.map(lambda a, b: (a == b).all(), run.messages(NODES["eve"]), whole)
    )


def test_a_model_after_the_round_is_not_what_was_sent() -> None:
    with pytest.raises(ValueError, match="is the global model after the round"):
        run_of("flower", sent="round-{round}-weights")


def copy_of(framework: str, folder: Path) -> Path:
    shutil.copytree(HERE / framework, folder, dirs_exist_ok=True)
    return folder


def test_sums_are_not_taken_for_clients(tmp_path: Path) -> None:
    folder = copy_of("pytorch", tmp_path)
    shutil.copy(folder / "round-1-client-ana.npz", folder / "round-1-client-eve.npz")
    with pytest.raises(ValueError, match="clients 'ana' and 'eve' returned the same model"):
        read_rounds(folder, MODEL)


def test_a_client_that_returns_the_global_model_is_told(tmp_path: Path) -> None:
    """What Flower gives of a run with secure aggregation, once: the aggregate in every place."""
    for t in range(1, 7):
        for kind, name in (("sent", "sent"), ("weights", "client-ana")):
            shutil.copy(
                HERE / "flower" / f"round-{t}-{kind}.npz", tmp_path / f"round-{t}-{name}.npz"
            )
    run = read_rounds(tmp_path, MODEL, transposed=True)
    with pytest.warns(RecordingWarning, match="only client of its federation, or its files hold"):
        run.messages("ana")


def test_lists_as_flowers_strategies_get_them() -> None:
    sent, back = (
        [list(read_arrays(HERE / "flower" / f"round-{t}-{name}.npz").values()) for t in (1, 2, 3)]
        for name in ("sent", f"client-{NODES['ana']}")
    )
    seen = messages_from(MODEL, sent, [back[0], None, back[2]], rounds=[1, 2, 3])
    whole = run_of("flower").messages(NODES["ana"], [1, 3])
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), seen, whole))


@pytest.mark.parametrize("hidden", [(12, 12), (13,)])
def test_another_model_is_refused(hidden: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"round-0-sent.safetensors: "):
        read_rounds(HERE / "pytorch", jaxfl.mlp(8, hidden, 2))


def test_what_is_open_is_asked() -> None:
    square = jaxfl.mlp(4, (4,), 4)
    shapes = [(4, 4), (4,), (4, 4), (4,)]
    unnamed = {f"arr_{i}": shape for i, shape in enumerate(shapes)}
    with pytest.raises(ValueError, match="every weight is square; say True"):
        layout_of(square, unnamed)
    assert layout_of(square, unnamed, transposed=True).placed[0].change == "transposed"
    names = ("first.weight", "first.bias", "last.weight", "last.bias")
    with pytest.raises(ValueError, match="open which comes first"):
        layout_of(square, dict(zip(names, shapes, strict=True)))
    told = layout_of(square, dict(zip(names, shapes, strict=True)), {"first": "Dense_1"})
    assert {p.name: p.path for p in told.placed}["last.bias"] == "Dense_0/bias"
    numbered = (f"layer{i}.{n}" for i in (9, 10) for n in ("weight", "bias"))
    layout = layout_of(square, dict(zip(numbered, shapes, strict=True)))
    assert {p.name: p.path for p in layout.placed}["layer9.bias"] == "Dense_0/bias"


def test_layers_out_of_order_are_found_by_shapes() -> None:
    names = {"out.weight": (2, 12), "out.bias": (2,), "in.weight": (12, 8), "in.bias": (12,)}
    assert {p.name: p.path for p in layout_of(MODEL, names).placed}["out.bias"] == "Dense_1/bias"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def pickled(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), a=np.asarray([{}], object))
    path.with_suffix(".npz").rename(path)


def junk(path: Path) -> None:
    path.write_bytes(b"no model at all")


@pytest.mark.parametrize("spoil", [truncated, junk])
@pytest.mark.parametrize(
    "name", ["state.npz", "state.safetensors", pytest.param("state.pt", marks=torch_reads)]
)
def test_damaged_files_are_refused(name: str, spoil: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    shutil.copy(FORMATS / name, path)
    spoil(path)
    with pytest.raises(ValueError, match=rf"path='.*{name}'"):
        read_arrays(path)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    pickled(tmp_path / "state.npz")
    with pytest.raises(ValueError, match=r"not a readable .npz file"):
        read_arrays(tmp_path / "state.npz")


@torch_reads
def test_a_module_that_needs_code_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no state_dict that loads without running code"):
        read_arrays(FORMATS / "module.pt")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_its_format_is_refused_with_the_mend() -> None:
    with pytest.raises(ValueError, match="install torch, or save the state_dict by safetensors"):
        read_arrays(FORMATS / "state.pt")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sent": "round-sent"}, "sent='round-sent' must hold {round} alone"),
        ({"returned": "round-{round}"}, "returned='round-{round}' must hold {round} and {client}"),
        ({"sent": "t-{round}"}, "sent='t-{round}' is the name of no file"),
        ({"sent": None}, "sent=None and after=None"),
        ({"layers": {"fc": "Dense_0"}}, "layers names 'fc'"),
        ({"layers": {"0": "Dense_7"}}, "layers names 'Dense_7'"),
        ({"transposed": False}, "transposed=False does not bring"),
        ({"returned_as": "sums"}, "returned_as='sums'"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("{", r"\{").replace("}", r"\}")):
        run_of("pytorch", **options)
    with pytest.raises(FileNotFoundError, match="folder='nowhere' is no folder"):
        read_rounds("nowhere", MODEL)


def test_a_model_after_a_round_that_is_missing_is_told(tmp_path: Path) -> None:
    folder = copy_of("flower", tmp_path)
    (folder / "round-3-weights.npz").unlink()
    with pytest.raises(ValueError, match=r"is of round 4, of which 'round-{round}-weights' has no"):
        read_rounds(folder, MODEL, after="round-{round}-weights")


def test_a_round_without_its_sent_model_is_refused(tmp_path: Path) -> None:
    folder = copy_of("pytorch", tmp_path)
    (folder / "round-3-sent.safetensors").unlink()
    with pytest.raises(ValueError, match=r"is of round 3, of which 'round-{round}-sent' has no"):
        read_rounds(folder, MODEL)


def clients_of_three_rounds(count: int, still: bool = False) -> tuple[list[Any], dict[str, Any]]:
    """Models sent and returned, of more clients than a small model has directions to go."""
    model, rng = jaxfl.mlp(5, (), 2), np.random.default_rng(0)
    sent = [model.init(jax.random.key(t)) for t in range(3)]

    def back(start: Any, stays: bool) -> Any:
        length = 0.0 if stays else 0.1
        return jax.tree.map(
            lambda a: np.asarray(a + length * rng.normal(size=a.shape), np.float32), start
        )

    returned = {
        f"c{c}": {t: back(start, still and t == c == 1) for t, start in enumerate(sent)}
        for c in range(count)
    }
    return sent, returned


def test_a_model_that_came_back_without_one_that_was_sent_is_named() -> None:
    sent, returned = clients_of_three_rounds(1)
    model, back = jaxfl.mlp(5, (), 2), list(returned["c0"].values())
    named = [{f"Dense_0/{k}": a for k, a in p["Dense_0"].items()} for p in [*sent, *back]]
    with pytest.raises(ValueError, match=r"received\[1\] is None, but returned\[1\] is a model"):
        messages_from(model, [named[0], None, named[2]], named[3:])


def test_layers_that_fit_one_alone_are_named() -> None:
    shapes = {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (4, 3), "b.bias": (4,)}
    with pytest.raises(ValueError, match="'a' and 'b' both fit 'Dense_0' of the model"):
        layout_of(jaxfl.mlp(3, (4,), 2), {name: np.zeros(s) for name, s in shapes.items()})


@pytest.mark.parametrize(("count", "still"), [(3, False), (14, False), (3, True)])
def test_what_was_sent_is_no_mean_by_chance(count: int, still: bool) -> None:
    sent, returned = clients_of_three_rounds(count, still)
    rounds.check_sent_before(dict(enumerate(sent)), returned)


def test_means_of_what_came_back_are_not_what_was_sent() -> None:
    sent, returned = clients_of_three_rounds(3)
    weights = (0.5, 0.3, 0.2)
    means = {
        t: jax.tree.map(
            lambda *a: sum(w * v for w, v in zip(weights, a, strict=True)),
            *(back[t] for back in returned.values()),
        )
        for t in range(3)
    }
    with pytest.raises(ValueError, match="sent in round 0 is a mean of what came back"):
        rounds.check_sent_before(means, returned)
    rounds.check_sent_before(means | {1: sent[1]}, returned)
    alone = {"c0": returned["c0"]}
    with pytest.raises(ValueError, match="every model that came back is what"):
        rounds.check_sent_before(returned["c0"], alone)
