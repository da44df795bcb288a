"""Bad values for every argument and field of the public surface, made from its annotations."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxfl import domains

Spoilt = tuple[str, str, Any]
"""Where within an argument, what is done to it, and the argument so spoilt."""

BAD_COUNTS: tuple[Any, ...] = (0, -1, 1.5, "3", True, float("nan"), np.ones(2, int))
BAD_NUMBERS: tuple[Any, ...] = ("0.1", float("nan"), True, np.ones(2), [0.1])
BAD_BY_WORDS: dict[str, tuple[Any, ...]] = {
    "an integer of at least 1": BAD_COUNTS,
    "an integer of at least 0": BAD_COUNTS[1:],
    "one finite number": (*BAD_NUMBERS, float("inf")),
    "positive and finite": (*BAD_NUMBERS, float("inf"), 0.0, -1.0),
    "at least 0 and finite": (*BAD_NUMBERS, float("inf"), -1.0),
    "between 0 and 1, neither included": (*BAD_NUMBERS, 0.0, 1.0, -0.5),
    "between 0 and 1": (*BAD_NUMBERS, 1.5, -0.5),
    "finite": ("0.1", float("nan"), float("inf")),
    "positive, infinity for none": ("1", float("nan"), 0.0, -1.0),
    "one key, as jax.random.key(0)": (0, "key", jax.random.split(jax.random.key(0)), np.ones(2)),
    "a tuple of integers of at least 1": ([4], 4, (0,), (-1,), (1.5,), "4"),
    "True or False": (1, 0.0, "yes"),
    "an integer": (1.5, "3", float("nan")),
    "one number": ("0.1", [0.1]),
    "a function": (3, "sgd"),
}
BAD_BITS: tuple[Any, ...] = (-1, 17, 1.5, "8", float("nan"))
JUNK: tuple[Any, ...] = (3.5, "junk", {})
PROBES = (*BAD_COUNTS, *BAD_NUMBERS, *JUNK, float("inf"), -0.5, (), None)
"""Values that are tried on a domain that is not ours. Those that it refuses are bad."""


def bad_values(value: Any, hint: Any) -> Iterator[Spoilt]:
    """Where within an argument, what is done to it, and the argument so spoilt."""
    options = domains._options(hint)
    for place, done, bad in _bad_values(value, hint, options):
        if place or len(options) == 1 or not any(_fits(bad, o) for o in options):
            yield place, done, bad


def _bad_values(value: Any, hint: Any, options: Sequence[Any]) -> Iterator[Spoilt]:
    if type(None) not in options and Any not in options:
        yield "", "None", None
    hint = next((o for o in options if _fits(value, o)), options[0])
    if get_origin(hint) is Annotated:
        yield from _of_domain(
            value, next(m for m in hint.__metadata__ if isinstance(m, domains.Domain))
        )
    elif get_origin(hint) is Literal:
        yield from (("", repr(bad), bad) for bad in ("nonsense", 3))
    elif hint in (jax.Array, np.ndarray) or domains._has_axes(hint):
        yield from _of_array(value)
    elif hint in (bool, int, float) or get_origin(hint) in domains._KINDS:
        yield from (("", repr(bad), bad) for bad in _bad_of(domains._domain(hint)))
    elif hint is not Any:
        yield from (("", repr(bad), bad) for bad in JUNK if not _fits(bad, hint))
    yield from _within(value, hint)


def _fits(value: Any, option: Any) -> bool:
    return option is not type(None) and option is not Any and domains._domain(option).holds(value)


def _of_domain(value: Any, domain: domains.Domain) -> Iterator[Spoilt]:
    if domain.must.startswith("a tree"):
        yield from _of_tree(value)
    elif "from 0 (off)" in domain.must:
        yield from (("", repr(bad), bad) for bad in BAD_BITS)
    else:
        of_clients = domain.must.startswith("one client")
        bad = JUNK if of_clients else _bad_of(domain)
        yield from (("", repr(each), each) for each in bad)


def _bad_of(domain: domains.Domain) -> Sequence[Any]:
    if domain.must in BAD_BY_WORDS:
        return BAD_BY_WORDS[domain.must]
    return [probe for probe in PROBES if not _held_by(domain, probe)]


def _held_by(domain: domains.Domain, probe: Any) -> bool:
    try:
        return bool(domain.holds(probe))
    except (TypeError, ValueError):
        return False


def _of_array(value: Any) -> Iterator[Spoilt]:
    array = np.asarray(value)
    yield "", "text", "junk"
    if not array.size:
        return
    yield "", "texts", np.full(array.shape, "a")
    yield "", "another axis", array[None]
    yield "", "one axis more", array[..., None]
    if array.ndim:
        yield "", "an axis less", array.sum(0)
        yield "", "a row less", array[:-1]
        yield "", "no rows", array[:0]
    if array.ndim > 1:
        yield "", "a column less", array[..., :-1]
    if np.issubdtype(array.dtype, np.floating):
        for name, bad in (("NaN", np.nan), ("infinity", np.inf)):
            spoilt = np.array(array)
            spoilt.reshape(-1)[-1:] = bad
            yield "", name, spoilt
    elif array.dtype != bool:
        for bad in (-1, 10**6):
            spoilt = np.array(array)
            spoilt.reshape(-1)[-1:] = bad
            yield "", f"an entry {bad}", spoilt


def _of_tree(tree: Any) -> Iterator[Spoilt]:
    leaves, structure = jax.tree.flatten(tree)
    yield "", "no leaves", {}
    yield "", "integers", jax.tree.map(lambda a: jnp.asarray(a, int), tree)
    yield "", "one more leaf", {"model": tree, "more": jnp.ones(2)}
    for name, change in (
        ("a leaf without its last row", _shorter),
        ("a leaf of NaN", _not_a_number),
    ):
        yield "", name, jax.tree.unflatten(structure, [*leaves[:-1], change(leaves[-1])])
    if isinstance(tree, dict):
        yield "", "a leaf less", dict(list(tree.items())[:-1])


def _shorter(leaf: Any) -> Any:
    return leaf[..., :-1]


def _not_a_number(leaf: Any) -> Any:
    return np.full_like(np.asarray(leaf), np.nan)  # of float64 too, where its types are off


def _of_record(value: Any) -> Iterator[Spoilt]:
    for field, its_hint in domains.hints_of(value.__class__).items():
        held = getattr(value, field)
        values = bad_values(held, its_hint) if its_hint is not Any else _of_any(held)
        for place, name, bad in values:
            with contextlib.suppress(ValueError):  # refused when it is made
                yield f".{field}{place}", name, dataclasses.replace(value, **{field: bad})


def _within(value: Any, hint: Any) -> Iterator[Spoilt]:
    if dataclasses.is_dataclass(value) and not isinstance(value, nn.Module):
        yield from _of_record(value)
    elif get_origin(hint) in (tuple, Sequence) and isinstance(value, (tuple, list)):
        *hints, last = get_args(hint)
        for i, held in enumerate(value):
            its_hint = get_args(hint)[i] if hints and last is not Ellipsis else (hints or [last])[0]
            for place, name, bad in bad_values(held, its_hint):
                spoilt = [*value[:i], bad, *value[i + 1 :]]
                yield f"[{i}]{place}", name, type(value)(spoilt)
    elif isinstance(value, Mapping) and get_origin(hint) is Mapping:
        for key, held in value.items():
            for place, name, bad in bad_values(held, get_args(hint)[1]):
                yield f"[{key!r}]{place}", name, {**value, key: bad}


def _of_any(held: Any) -> Iterator[Spoilt]:
    """Fields of any type that hold models, as messages do."""
    leaves = jax.tree.leaves(held)
    if leaves and all(isinstance(leaf, jax.Array) for leaf in leaves):
        yield from _of_tree(held)


def cases(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Calls with one argument spoilt: what is to be named, what was done, the arguments.

    Args:
      function: one that is `jaxfl.domains.checked`.
      arguments: of a valid call.
    """
    hints = domains.hints_of(inspect.unwrap(function))
    for name, value in arguments.items():
        for place, done, bad in bad_values(value, hints.get(name, Any)):
            yield f"{name}{place}", done, {**arguments, name: bad}
