"""Validation at the public boundary: each check raises one line naming the argument, its value and
the mend.

Traced arrays are passed over: under `jit`, `vmap` or `grad` a bad value is data, not an exception.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import optax

Settings = TypeVar("Settings")


def is_traced(*arrays: Any) -> bool:
    """True if any leaf of `arrays` is a tracer, so that its value cannot be looked at."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be one number") from None


def instance(kind: type, **named: Any) -> None:
    """Raise `ValueError` unless every named value is of a type."""
    for name, value in named.items():
        if not isinstance(value, kind):
            raise ValueError(f"{name}={value!r:.60} must be a {kind.__name__}")


def settings(kind: type[Settings], given: Settings | None) -> Settings:
    """The settings given, or the defaults of their kind for None. Raises `ValueError` on anything
    else, an empty dictionary too."""
    if given is None:
        return kind()
    instance(kind, settings=given)
    return given


def alike(what: str, expected: Any, given: Any) -> None:
    """Raise `ValueError` unless two pytrees have the same structure and shapes; at trace time."""
    wanted, found = (jax.tree.map(np.shape, tree) for tree in (expected, given))
    if wanted != found:
        raise ValueError(f"{what} gave shapes {found}; they must be {wanted}")


def positive_integer(**named: Any) -> None:
    """Raise `ValueError` unless every named value is an integer of at least 1."""
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{name}={value!r} must be an integer of at least 1")


def positive(**named: Any) -> None:
    """Raise `ValueError` unless every named number is positive and finite."""
    for name, value in named.items():
        if not is_traced(value) and not 0 < _number(name, value) < float("inf"):
            raise ValueError(f"{name}={value!r} must be positive and finite")


def not_negative(**named: Any) -> None:
    """Raise `ValueError` unless every named number is at least 0 and finite."""
    for name, value in named.items():
        if not is_traced(value) and not 0 <= _number(name, value) < float("inf"):
            raise ValueError(f"{name}={value!r} must be at least 0 and finite")


def number(**named: Any) -> None:
    """Raise `ValueError` unless every named value is one finite number."""
    for name, value in named.items():
        if not is_traced(value) and not np.isfinite(_number(name, value)):
            raise ValueError(f"{name}={value!r} must be finite")


def index(length: int, what: str, **named: Any) -> None:
    """Raise `ValueError` unless every named value is an integer in `0..length-1`, the places of
    `what`."""
    for name, value in named.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, np.integer))
            or not 0 <= value < length
        ):
            raise ValueError(f"{name}={value!r} does not exist; {what} run from 0 to {length - 1}")


def plain_sgd(optimizer: Any) -> None:
    """Raise `ValueError` unless an update is the learning rate times a sum of gradients."""
    if optimizer is not optax.sgd:
        raise ValueError(
            f"optimizer={optimizer!r} is not optax.sgd, of whose updates alone gradients are read"
        )


def fraction(**named: Any) -> None:
    """Raise `ValueError` unless every named value lies between 0 and 1, neither included."""
    for name, value in named.items():
        if not is_traced(value) and not 0 < _number(name, value) < 1:
            raise ValueError(f"{name}={value!r} must lie between 0 and 1, neither included")


def one_of(options: Sequence[str], **named: Any) -> None:
    """Raise `ValueError` unless every named value is among `options`."""
    for name, value in named.items():
        if value not in options:
            raise ValueError(
                f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, options))}"
            )


def shape(expected: tuple[int | None, ...], **named: Any) -> None:
    """Raise `ValueError` unless every named array has the expected shape (None: any length)."""
    for name, array in named.items():
        actual = np.shape(array)
        if len(actual) != len(expected) or any(
            e is not None and e != a for e, a in zip(expected, actual, strict=True)
        ):
            wanted = tuple("any" if e is None else e for e in expected)
            raise ValueError(
                f"{name} has shape {actual}; it must have shape {wanted}".replace("'any'", "any")
            )


def finite(where: Any = None, **named: Any) -> None:
    """Raise `ValueError` if a named array holds NaN or infinity (in the rows that
    `where` selects)."""
    for name, array in named.items():
        if is_traced(array, where):
            continue
        values = np.asarray(array)
        try:
            bad = ~np.isfinite(values)
        except TypeError:
            raise ValueError(
                f"{name} holds {values.dtype} values ({str(array)[:40]}); they must be numbers"
            ) from None
        if where is not None:
            bad &= np.asarray(where).reshape(
                np.shape(where) + (1,) * (values.ndim - np.ndim(where))
            )
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"{name} holds {int(bad.sum())} values that are not finite (the first, "
                f"{values[place]}, at {place}); "
                "remove or impute them"
            )


def labels(y: Any, classes: int, where: Any = None, name: str = "y") -> None:
    """Raise `ValueError` if a label is no integer in `0..classes-1` (in the rows that `where`
    selects)."""
    if is_traced(y, where):
        return
    values = np.asarray(y)
    bad = ~((values >= 0) & (values < classes) & (values == np.round(values)))  # NaN is none of it
    if where is not None:
        bad &= np.asarray(where)
    if bad.any():
        raise ValueError(
            f"{name} holds the label {values[bad][0]}; labels must be integers in 0..{classes - 1}"
        )


def probabilities(y: Any, where: Any = None, name: str = "y") -> None:
    """Raise `ValueError` if a row of `y [..., classes]` is no distribution (among the rows that
    `where` selects)."""
    if is_traced(y, where):
        return
    values = np.asarray(y, np.float64)
    bad = ~((values >= 0).all(-1) & (np.abs(values.sum(-1) - 1) < 1e-3))  # NaN is none of it
    if where is not None:
        bad &= np.asarray(where)
    if bad.any():
        raise ValueError(
            f"{name} holds the row {values[bad][0].tolist()}, taken for class probabilities; rows "
            "must be non-negative and sum to 1"
        )


def key(**named: Any) -> None:
    """Raise `ValueError` unless every named value is one key of `jax.random`."""
    for name, value in named.items():
        dtype = getattr(value, "dtype", None)
        typed = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
        if not (typed and value.ndim == 0) and not (dtype == np.uint32 and value.shape == (2,)):
            raise ValueError(f"{name}={value!r:.60} must be one key, as jax.random.key(0)")


def floating(**named: Any) -> None:
    """Raise `ValueError` unless every leaf of every named tree is an array of floating-point
    numbers, of which there is at least one."""
    for name, tree in named.items():
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        if not leaves:
            raise ValueError(f"{name} has no arrays; give the model's parameters")
        for path, leaf in leaves:
            place, dtype = f"{name}{jax.tree_util.keystr(path)}", getattr(leaf, "dtype", None)
            if dtype is None or not jax.dtypes.issubdtype(dtype, np.floating):
                kind = type(leaf).__name__ if dtype is None else dtype
                raise ValueError(f"{place} is of {kind}; parameters must be floating-point arrays")


def distribution(length: int, **named: Any) -> None:
    """Raise `ValueError` unless every named array is a probability vector of that length."""
    for name, array in named.items():
        shape((length,), **{name: array})
        if is_traced(array):
            continue
        values = np.asarray(array, np.float64)
        if not np.isfinite(values).all() or (values < 0).any() or abs(values.sum() - 1) > 1e-4:
            raise ValueError(
                f"{name}={values.tolist()} must be non-negative and sum to 1; it sums to "
                f"{values.sum():g}"
            )
