"""What becomes of a spoilt call."""

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attacks import Status
from benchmarks.laws.bad_input.harmless import reason

NAMED, HARMLESS, NO_ANSWER, SILENT = "named", "harmless", "says that it has no answer", "silent"
DATA = ("NaN", "infinity", "a leaf of NaN", "an entry -1")
"""What is done to an argument that diverged, or of an attack that failed: it may give no answer."""


def outcome(
    function: Callable[..., Any], place: str, done: str, arguments: Mapping[str, Any]
) -> str:
    """One of the four above, or what else was raised."""
    if reason(function, place, done):
        return HARMLESS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            answer = function(**arguments)
        except ValueError as error:
            parts = re.findall(r"[A-Za-z_]+", place)
            named = any(re.search(rf"\b{part}\b", str(error)) for part in parts)
            return NAMED if named else f"not named: {str(error)[:150]}"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:150]}"
    return NO_ANSWER if has_none(answer) else SILENT


def has_none(answer: Any) -> bool:
    """Whether an answer says that there is none: by its status, `Status.FAILED`; by -1 or NaN in it
    if it has no status. Messages that hold NaN are data."""
    if dataclasses.is_dataclass(answer):
        answer = {f.name: getattr(answer, f.name) for f in dataclasses.fields(answer)}
    if isinstance(answer, dict) and "status" in answer:
        return bool(np.any(np.asarray(answer["status"]) == Status.FAILED))
    if isinstance(answer, (dict, tuple, list)):
        held = answer.values() if isinstance(answer, dict) else answer
        return any(has_none(each) for each in held)
    array = np.asarray(answer)
    return array.dtype.kind in "if" and bool((~np.isfinite(array) | (array == -1)).any())
