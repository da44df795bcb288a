"""One model in one file, as named arrays: nothing in a file is run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.domains import checked
from jaxfl.files import read_npz

NESTED = ("state_dict", "model_state_dict", "model", "params")
"""Where checkpoints keep the model beside an optimiser's state and the like."""
UNNAMED = re.compile(r"arr_(\d+)")
"""Names that NumPy gives to arrays without."""


@checked
def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by name and in the order of the model that was saved.

    Args:
      path: ".npz" (NumPy, Flower, NVFlare), ".safetensors", or ".pt", ".pth", ".bin" (a state_dict
        of PyTorch, alone or in a checkpoint; needs torch, which reads it with `weights_only`).

    Raises:
      ValueError: if the file has another ending, cannot be read, needs code to be loaded, or holds
        no arrays of numbers.
      FileNotFoundError: if there is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r} is no file")
    readers = {".npz": read_npz, ".safetensors": _safetensors}
    readers |= dict.fromkeys((".pt", ".pth", ".bin"), _torch)
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"path={str(path)!r} ends in none of {', '.join(readers)}")
    arrays = reader(path)
    odd = [name for name, array in arrays.items() if array.dtype.kind not in "fiub"]
    if odd or not arrays:
        held = f"{odd[0]!r}, which is of {arrays[odd[0]].dtype}" if odd else "no arrays"
        raise ValueError(f"path={str(path)!r} holds {held}; it must hold a model's numbers")
    return _in_order(arrays)


def _in_order(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`arr_10` stands after `arr_9`."""
    if not all(UNNAMED.fullmatch(name) for name in arrays):
        return arrays
    return {name: arrays[name] for name in sorted(arrays, key=natural)}


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts `layer10` after `layer9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """Such files forget the order of the model: names come as `natural` sorts them."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file, safe_open(path, "flax") as flax:

            def array(name: str) -> np.ndarray:
                if file.get_slice(name).get_dtype() == "BF16":  # which NumPy does not know
                    return np.asarray(flax.get_tensor(name), np.float32)
                return np.asarray(file.get_tensor(name))

            return {name: array(name) for name in sorted(file.keys(), key=natural)}
    except (SafetensorError, TypeError, ValueError, KeyError) as error:
        raise ValueError(f"path={str(path)!r} is no readable safetensors file ({error})") from error


def _torch(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"path={str(path)!r} is PyTorch's own format, which torch alone reads: install torch, "
            "or save the state_dict by safetensors.torch.save_file"
        ) from None
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling fails in many ways
        first = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"path={str(path)!r} holds no state_dict that loads without running code ({first}); "
            "save model.state_dict()"
        ) from error
    while isinstance(held, Mapping) and (inner := next((n for n in NESTED if n in held), None)):
        held = held[inner]
    if not isinstance(held, Mapping):
        raise ValueError(
            f"path={str(path)!r} holds a {type(held).__name__}; save model.state_dict()"
        )
    return {str(name): _numbers(path, name, value, torch) for name, value in held.items()}


def _numbers(path: Path, name: Any, value: Any, torch: Any) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        raise ValueError(
            f"path={str(path)!r} holds {name!r}, a {type(value).__name__}; save model.state_dict()"
        )
    value = value.detach()
    return np.asarray(value.float() if value.dtype == torch.bfloat16 else value)
