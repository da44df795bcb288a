"""Pytrees of arrays in `.npz` files, read without pickle and without trust."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

Array = jax.Array
BFLOAT16 = ":bfloat16"
"""Marks arrays of that type in files, which hold their bits as integers."""
MOST_BYTES, MOST_GROWTH = 2**30, 100
"""How large a file's content may be, and how much larger than the file: what was written by
`write_tree` is as large as its file."""


def write_tree(path: str | Path, tree: dict[str, Any]) -> None:
    """Write a pytree as one array per leaf, named by its path. Raises `ValueError` on a folder."""
    arrays: dict[str, Any] = {}
    for at, leaf in jax.tree.leaves_with_path(tree):
        name = "/".join(_escaped(jax.tree_util.keystr((part,), simple=True)) for part in at)
        array = np.asarray(leaf)
        if array.dtype == jnp.bfloat16:  # which NumPy's files do not know
            name, array = name + BFLOAT16, array.view(np.uint16)
        arrays[name] = array
    if Path(path).is_dir():
        raise ValueError(f"path={str(path)!r} is a folder; name a file")
    with Path(path).open("wb") as file:  # by its name alone NumPy would write to another one
        np.savez(file, **arrays)


def _escaped(name: str) -> str:
    """Parameter names may hold the separator, as Haiku's do."""
    return name.replace("%", "%25").replace("/", "%2F")


def _unescaped(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")


def _check_declared(archive: Any, size: int) -> None:
    """Raise `ValueError` if arrays are declared larger than what the file holds of them, or the
    file's content far larger than itself: memory is taken before it is read."""
    if sum(entry.file_size for entry in archive.infolist()) > max(MOST_BYTES, MOST_GROWTH * size):
        raise ValueError("its content is far larger than the file")
    for entry in archive.infolist():
        with archive.open(entry) as member:
            version = np.lib.format.read_magic(member)
            read = np.lib.format.read_array_header_1_0
            read = read if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(member)
            if math.prod(shape) * dtype.itemsize + member.tell() != entry.file_size:
                raise ValueError(f"{entry.filename} declares another size than it has")


def _named(name: str, array: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """An entry's place in the tree, and what was written there."""
    if name.endswith(BFLOAT16) and array.dtype == np.uint16:
        name, array = name.removesuffix(BFLOAT16), array.view(jnp.bfloat16)
    return tuple(map(_unescaped, name.split("/"))), array


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file as they stand in it. Raises `ValueError` on any other file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            _check_declared(arrays.zip, path.stat().st_size)
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # tampered archives fail in many ways
        raise ValueError(f"path={str(path)!r} is not a readable .npz file ({error})") from error


def read_tree(path: str | Path) -> dict[str, Any]:
    """What `write_tree` wrote, as nested dictionaries. Raises `ValueError` on any other file."""

    def placed(array: np.ndarray) -> Array:
        with jax.enable_x64(jax.config.read("jax_enable_x64") or array.dtype == np.float64):
            return jnp.asarray(array)

    held = [_named(name, array) for name, array in read_npz(Path(path)).items()]
    try:
        return unflatten_dict({place: placed(array) for place, array in held})
    except Exception as error:  # of another type, or a name that is a folder's too
        raise ValueError(f"path={str(path)!r} is not a readable .npz file ({error})") from error
