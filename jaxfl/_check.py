"""What an annotation of `jaxfl.domains` cannot say: whether values go together with a model or with
each other. Each check raises one line naming the argument, its value and the mend.

Unseen arrays are passed over: under `jit`, `vmap` or `grad` a bad value is data, not an exception.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

QUANTISED_BYTES = 4
"""Integers of fewer are not how numbers of a model are written."""


def is_unseen(*arrays: Any) -> bool:
    """True if the value of any leaf of `arrays` cannot be looked at: it is a tracer, or lies in
    part on devices of other processes."""
    leaves = jax.tree.leaves(arrays)
    return any(isinstance(leaf, jax.core.Tracer) or _lies_elsewhere(leaf) for leaf in leaves)


def _lies_elsewhere(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array):
        return False
    return not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def alike(what: str, expected: Any, given: Any) -> None:
    """Raise `ValueError` unless two pytrees have the same structure and shapes; at trace time."""
    wanted, shapes = (jax.tree.map(np.shape, tree) for tree in (expected, given))
    if wanted != shapes:
        raise ValueError(f"{what} gave shapes {shapes}; they must be {wanted}")


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
        if is_unseen(array, where):
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


def finite_parameters(name: str, params: Any) -> None:
    """Raise `ValueError` if a parameter is NaN or infinite."""
    for path, leaf in jax.tree.leaves_with_path(params):
        if not is_unseen(leaf) and not np.isfinite(np.asarray(leaf)).all():
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} holds values that are not finite: the model "
                "has diverged; start from another"
            )


def labels(y: Any, classes: int, where: Any = None, name: str = "y") -> None:
    """Raise `ValueError` if a label is no integer in `0..classes-1` (in the rows that `where`
    selects)."""
    if is_unseen(y, where):
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
    if is_unseen(y, where):
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


def within(least: float, most: float, **named: Any) -> None:
    """Raise `ValueError` unless the entries of every named array lie between two numbers."""
    for name, array in named.items():
        values = np.zeros(()) if is_unseen(array) else np.asarray(array)
        if ((values < least) | (values > most)).any():
            raise ValueError(f"{name} holds entries that lie not between {least} and {most}")


def at_least(least: float, **named: Any) -> None:
    """Raise `ValueError` unless no entry of any named array is below a number."""
    for name, array in named.items():
        if not is_unseen(array) and not (np.asarray(array) >= least).all():
            raise ValueError(
                f"{name} holds {np.asarray(array).min()}; its entries must be at least {least}"
            )


def different(**named: Any) -> None:
    """Raise `ValueError` if an entry of any named array is there twice."""
    for name, array in named.items():
        if is_unseen(array):
            continue
        values, counts = np.unique(np.asarray(array), return_counts=True)
        if (counts > 1).any():
            raise ValueError(f"{name} holds {values[counts > 1][0]} twice; name each once")


def zeros_or_ones(**named: Any) -> None:
    """Raise `ValueError` unless every named array holds 0 and 1, or booleans, alone."""
    for name, array in named.items():
        if not is_unseen(array) and not np.isin(np.asarray(array), (0, 1)).all():
            raise ValueError(f"{name} must hold 0 and 1 alone")


def unquantised(name: str, array: Any) -> None:
    """Raise `ValueError` on integers of few bits."""
    if np.issubdtype(array.dtype, np.integer) and array.dtype.itemsize < QUANTISED_BYTES:
        raise ValueError(
            f"{name} holds {array.dtype}: quantised numbers; give the numbers that they stand for, "
            "(value - zero point) x scale"
        )


def as_models(name: str, tree: Any) -> Any:
    """A pytree of arrays of JAX. Raises `ValueError` on what is no number, and on integers of few
    bits: they are quantised, and mean nothing without their scales."""

    def as_floats(path: Any, leaf: Any) -> Any:
        place = f"{name}{jax.tree_util.keystr(path)}"
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place} holds no numbers ({error})".replace("\n", " ")) from None
        if jnp.issubdtype(array.dtype, jnp.inexact):
            return array
        unquantised(place, array)
        return array.astype(jnp.result_type(float))

    return jax.tree.map_with_path(as_floats, tree)


def of_one_type(tree: Any, other: Any) -> tuple[Any, Any]:
    """Two pytrees of arrays of JAX, of which no leaf has fewer bits in one than in the other."""

    def widened(leaves: list[Any], others: list[Any]) -> list[Any]:
        pairs = zip(leaves, others, strict=True)
        return [one.astype(jnp.promote_types(one.dtype, two.dtype)) for one, two in pairs]

    trees, leaves = (tree, other), (jax.tree.leaves(tree), jax.tree.leaves(other))
    with jax.enable_x64(True):
        wide = widened(*leaves), widened(*leaves[::-1])
    first, second = (
        jax.tree.unflatten(jax.tree.structure(of), w) for of, w in zip(trees, wide, strict=True)
    )
    return first, second


def of_rounds(prefix: str, rounds: Any, **models: Any) -> None:
    """Raise `ValueError` unless pytrees are of one structure, with floating-point leaves `[rounds,
    ...]` of the same shapes, and round numbers are at least 0."""
    (first, tree), *others = models.items()
    leaves = jax.tree.leaves_with_path(tree)
    if not leaves:
        raise ValueError(
            f"{prefix}{first} has no arrays; give the model's parameters, one leading entry per "
            "round"
        )
    for name, other in others:
        if repr(jax.tree.structure(tree)) != repr(jax.tree.structure(other)):
            raise ValueError(
                f"{prefix}{first} and {name} have different tree structures; record both from the "
                "same model"
            )
    for name, model in models.items():
        for (path, leaf), (_, like) in zip(jax.tree.leaves_with_path(model), leaves, strict=True):
            place = f"{prefix}{name}{jax.tree_util.keystr(path)}"
            if np.shape(leaf)[:1] != (len(rounds),):
                raise ValueError(
                    f"{place} has shape {np.shape(leaf)}; leaves must begin with an axis of "
                    f"rounds, here {len(rounds)} (of a single round: leaf[None])"
                )
            shape((len(rounds), *np.shape(like)[1:]), **{place: leaf})
            if not jax.dtypes.issubdtype(leaf.dtype, np.floating):
                raise ValueError(
                    f"{place} is of {leaf.dtype}; it must be of floating-point numbers"
                )
    at_least(0, **{f"{prefix}rounds": rounds})


def distribution(length: int, **named: Any) -> None:
    """Raise `ValueError` unless every named array is a probability vector of that length."""
    for name, array in named.items():
        shape((length,), **{name: array})
        if is_unseen(array):
            continue
        values = np.asarray(array, np.float64)
        if not np.isfinite(values).all() or (values < 0).any() or abs(values.sum() - 1) > 1e-4:
            raise ValueError(
                f"{name}={values.tolist()} must be non-negative and sum to 1; it sums to "
                f"{values.sum():g}"
            )
