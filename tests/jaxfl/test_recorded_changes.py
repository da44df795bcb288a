"""Recordings of clients that return changes or gradients, and files that hold something else than
they are called."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxfl
from jaxfl.recordings import RecordingWarning, messages_from, read_arrays, read_rounds
from tests.jaxfl.test_recordings import DECODED, HERE, MODEL, decoded, run_of


def test_changes_and_gradients_are_models() -> None:
    models = run_of("pytorch").messages("ana")
    sent, back = (
        [jax.tree.map(lambda a, t=t: np.asarray(a[t]), tree) for t in range(6)]
        for tree in (models.received, models.returned)
    )
    for name, sign in (("changes", 1), ("gradients", -1)):
        changes = [
            jax.tree.map(lambda w, v, sign=sign: sign * (v.astype(float) - w), *pair)
            for pair in zip(sent, back, strict=True)
        ]
        flat = [_named(tree) for tree in sent], [_named(tree) for tree in changes]
        again = messages_from(MODEL, *flat, returned_as=name)
        for leaf, other in zip(
            *map(jax.tree.leaves, (again.returned, models.returned)), strict=True
        ):
            assert leaf.dtype == np.float64
            np.testing.assert_array_equal(np.asarray(leaf, np.float32), other)


def written(folder: Path, returned_as: str) -> Path:
    """The recording of PyTorch, as of clients that return changes or gradients."""
    sign = 1 if returned_as == "changes" else -1
    for sent in (HERE / "pytorch").glob("*-sent.*"):
        shutil.copy(sent, folder)
        start = read_arrays(sent)
        for path in (HERE / "pytorch").glob(f"{sent.stem.removesuffix('sent')}client-*"):
            back = read_arrays(path)
            np.savez(folder / path.name, **{n: sign * (a - start[n]) for n, a in back.items()})
    return folder


@pytest.mark.parametrize("returned_as", ["changes", "gradients"])
def test_changes_of_the_other_sign_are_doubted(returned_as: Any, tmp_path: Path) -> None:
    other = "gradients" if returned_as == "changes" else "changes"
    with pytest.warns(RecordingWarning, match="goes against the global model's next step"):
        read_rounds(written(tmp_path, returned_as), MODEL, returned_as=other)


def test_changes_weighed_by_records_are_doubted(tmp_path: Path) -> None:
    for path in written(tmp_path, "changes").glob("*client*"):
        changes = read_arrays(path)
        path.unlink()
        np.savez(path.with_suffix(".npz"), **{name: 50 * a for name, a in changes.items()})
    with pytest.warns(RecordingWarning, match="too long for the global model's next step"):
        read_rounds(tmp_path, MODEL, returned_as="changes")


@pytest.mark.parametrize("returned_as", ["changes", "gradients"])
def test_files_called_another_kind_than_they_are_are_doubted(
    returned_as: Any, tmp_path: Path
) -> None:
    folder = written(tmp_path, returned_as)
    with pytest.warns(RecordingWarning, match=r"called models .* may be changes"):
        read_rounds(folder, MODEL)
    with pytest.warns(RecordingWarning, match=rf"called {returned_as} .* may be models"):
        run_of("pytorch", returned_as=returned_as)
    seen = read_rounds(folder, MODEL, returned_as=returned_as).messages("ana")
    assert {leaf.dtype for leaf in jax.tree.leaves(seen.received)} == {np.dtype(np.float64)}
    assert decoded(seen, "ana") == DECODED


def test_quantised_models_are_refused(tmp_path: Path) -> None:
    models = run_of("pytorch").messages("ana")
    small = jax.tree.map(lambda a: np.asarray(a * 50, np.int8), models.returned)
    with pytest.raises(ValueError, match=r"returned\['Dense_0'\]\['bias'\] holds int8: quantised"):
        jaxfl.Messages.from_arrays(models.received, small)
    for path in (HERE / "pytorch").iterdir():
        arrays = read_arrays(path)
        name = f"{path.stem}.npz"
        np.savez(tmp_path / name, **{n: np.asarray(a * 50, np.int8) for n, a in arrays.items()})
    with pytest.raises(ValueError, match=r"round-0-sent.npz: array '0.weight' holds int8"):
        read_rounds(tmp_path, MODEL)


def _named(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}
