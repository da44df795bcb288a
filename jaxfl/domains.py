"""What a value may be, written where it is declared: `steps: Count = 500`, or `x: Num[Array,
"records features"]`.

Type checkers see the plain type. `checked` looks at the rest when a public function is called, and
names the argument, its value and the mend; of a settings record it looks at every field. Axes are
named as jaxtyping names them; those of one name in one call are of one length. `Num` stands for any
numbers, NaN among them. What depends on more than one value is `jaxfl._check`'s. Traced values are
passed over, but for their shapes: under `jit`, `vmap` or `grad` a bad value is data, not an
exception.
"""

import collections.abc
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import (
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import jax
import numpy as np
from jaxtyping import AbstractArray

from jaxfl.products import full_precision
from jaxfl.watching import watched_call

Array = jax.Array
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Domain:
    """What a value must be.

    Attributes:
      must: words that complete "steps=0 must be".
      holds: whether a value, which is not traced, is one.
      place: of a tree, the path and a description of the first leaf that is none.
    """

    must: str
    holds: Callable[[Any], bool]
    place: Callable[[Any], tuple[str, str]] | None = None

    def refusal(self, name: str, value: Any) -> str:
        """What is said of a value that is none."""
        shown = f"={' '.join(repr(value).split()):.80}"
        if self.place is not None and not jax.tree_util.all_leaves([value]):
            path, shown = self.place(value)
            name += path
        return f"{name}{shown} must be {self.must}"


def _is_integer(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return False
    return isinstance(value, (int, np.integer)) or (_dtype_kind(value) in "iu" and _is_one(value))


def _is_one(value: Any) -> bool:
    return np.shape(value) == ()


def _dtype_kind(value: Any) -> str:
    """As NumPy's, with "f" for bfloat16 and its kin, "k" for keys of `jax.random`, and "-" for
    what has no type or one of another library's."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return "-"
    try:
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            return "k"
        return "f" if jax.dtypes.issubdtype(dtype, np.floating) else np.dtype(dtype).kind
    except TypeError:
        return "-"


def _is_number(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_, str)) or value is None:
        return False
    plain = isinstance(value, (int, float))
    return plain or (_is_one(value) and _dtype_kind(value) in "iuf")


def _number_where(holds: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and bool(holds(float(value)))


def numbers_where(holds: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Whether a number, or every one of an array, is such that `holds`."""
    return lambda value: (
        (_is_number(value) or _dtype_kind(value) in "iuf")
        and bool(np.all(holds(np.asarray(value, np.float64))))
    )


def _is_key(value: Any) -> bool:
    kind = _dtype_kind(value)
    return (kind == "k" and value.ndim == 0) or (kind == "u" and np.shape(value) == (2,))


def _is_numeric(value: Any) -> bool:
    """Whether a value is an array of numbers or becomes one."""
    if isinstance(value, jax.Array):
        return _dtype_kind(value) in "biuf"
    if value is None or isinstance(value, (str, bytes, dict)):
        return False
    try:
        return _dtype_kind(np.asarray(value)) in "biuf"
    except (TypeError, ValueError):  # ragged rows
        return False


def _kind_of_entries(value: Any) -> str:
    return _dtype_kind(value if isinstance(value, jax.Array) else np.asarray(value))


def _leaves_are_floating(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    return bool(leaves) and all(_dtype_kind(leaf) == "f" for leaf in leaves)


def _leaf_not_floating(tree: Any) -> tuple[str, str]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if _dtype_kind(leaf) != "f":
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            return jax.tree_util.keystr(path), f" is of {kind} and"
    return "", " has no arrays and"


def _makes_transformations(optimizer: Callable[..., Any]) -> bool:
    """What it raises by itself is raised."""
    try:
        hash(optimizer)
        inspect.signature(optimizer).bind(0.1)
    except TypeError:
        return False
    except ValueError:  # it says nothing of its arguments
        pass
    made = optimizer(0.1)
    return hasattr(made, "init") and hasattr(made, "update") and not _needs_more(made)


def _needs_more(transformation: Any) -> bool:
    """Whether its steps take more than gradients and parameters, as a line search takes losses."""
    number = jax.ShapeDtypeStruct((), np.float32)
    try:
        jax.eval_shape(lambda p: transformation.update(p, transformation.init(p), p), number)
    except TypeError as error:
        return "keyword-only argument" in str(error)
    except Exception:  # of one parameter alone: it is for a tree with names
        return False
    return False


@runtime_checkable
class Whole(Protocol):
    """A record that says whether its fields go together."""

    def check_whole(self, name: str) -> None:
        """Raise `ValueError`, with the record called `name`, if they do not."""


_at_least_1 = Domain("an integer of at least 1", lambda v: _is_integer(v) and int(v) >= 1)
Count = Annotated[int, _at_least_1]
TracedCount = Annotated[int | Array, _at_least_1]
MOST_INDEX = 2**31
"""Places and numbers of rounds lie below: JAX counts in 32 bits."""
Index = Annotated[int, Domain("an integer of at least 0", lambda v: _is_integer(v) and int(v) >= 0)]
Number = Annotated[float | Array, Domain("one finite number", _number_where(np.isfinite))]
_positive = Domain("positive and finite", _number_where(lambda v: 0 < v < np.inf))
Positive = Annotated[float | Array, _positive]
PositiveFloat = Annotated[float, _positive]
_not_negative = Domain("at least 0 and finite", _number_where(lambda v: 0 <= v < np.inf))
NotNegative = Annotated[float | Array, _not_negative]
NotNegativeFloat = Annotated[float, _not_negative]
_between = Domain("between 0 and 1, neither included", _number_where(lambda v: 0 < v < 1))
Fraction = Annotated[float, _between]
Share = Annotated[float, Domain("at least 0 and below 1", _number_where(lambda v: 0 <= v < 1))]
TracedFraction = Annotated[float | Array, _between]
Probability = Annotated[
    float | Array, Domain("between 0 and 1", _number_where(lambda v: 0 <= v <= 1))
]
EachNumber = Annotated[float | Array, Domain("finite", numbers_where(np.isfinite))]
"""Numbers of a plug-in: one, or one for each client."""
EachPositive = Annotated[
    float | Array,
    Domain("positive and finite", numbers_where(lambda v: (v > 0) & (v < np.inf))),
]
EachNotNegative = Annotated[
    float | Array,
    Domain("at least 0 and finite", numbers_where(lambda v: (v >= 0) & (v < np.inf))),
]
Key = Annotated[Array, Domain("one key, as jax.random.key(0)", _is_key)]
Params = Annotated[
    Any,
    Domain(
        "a tree of floating-point arrays, as a model's parameters",
        _leaves_are_floating,
        _leaf_not_floating,
    ),
]
Optimizer = Annotated[
    Callable[..., Any],
    Domain(
        "a hashable function from a learning rate to a transformation of optax that needs no "
        "losses: optax.adam, and not optax.adam(0.1) or optax.lbfgs",
        lambda v: callable(v) and _makes_transformations(v),
    ),
]
Shape = Annotated[
    tuple[int, ...],
    Domain(
        "a tuple of integers of at least 1",
        lambda v: isinstance(v, tuple) and all(_is_integer(n) and n >= 1 for n in v),
    ),
]

_KINDS = {
    bool: Domain("True or False", lambda v: isinstance(v, (bool, np.bool_))),
    int: Domain("an integer", _is_integer),
    float: Domain("one number", _is_number),
    jax.Array: Domain("an array of numbers", _is_numeric),
    np.ndarray: Domain("an array of numbers", _is_numeric),
    collections.abc.Callable: Domain("a function", callable),
}
_ENTRIES = {
    "Num": _KINDS[jax.Array],
    "Int": Domain("an array of integers", lambda v: _is_numeric(v) and _kind_of_entries(v) in "iu"),
    "Bool": Domain("an array of booleans", lambda v: _is_numeric(v) and _kind_of_entries(v) == "b"),
}


def _domain(hint: Any) -> Domain:
    """The domain that an annotation, which is no union, stands for."""
    origin = get_origin(hint)
    if origin is Annotated:
        return next(d for d in hint.__metadata__ if isinstance(d, Domain))
    if origin is Literal:
        options = get_args(hint)
        return Domain(
            f"one of {', '.join(map(repr, options))}",
            lambda v: any(type(v) is type(o) and v == o for o in options),
        )
    kind = hint if origin is None else origin
    if kind in _KINDS:
        return _KINDS[kind]
    if _has_axes(kind):
        return next(domain for name, domain in _ENTRIES.items() if kind.__name__.startswith(name))
    if kind is collections.abc.Mapping:
        return Domain("a mapping", lambda v: isinstance(v, collections.abc.Mapping))
    if kind in (tuple, collections.abc.Sequence):
        types_, words = ((tuple,), "a tuple") if kind is tuple else ((tuple, list), "a sequence")
        count = 0 if kind is not tuple or Ellipsis in get_args(hint) else len(get_args(hint))
        return Domain(
            f"{words} of {count}" if count else words,
            lambda v: (
                (isinstance(v, types_) or _dtype_kind(v) in "biuf") and len(v) in (count or len(v),)
            ),
        )
    if isinstance(kind, type) and not getattr(kind, "_is_protocol", False):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        how = getattr(kind, "MADE_BY", "")
        return Domain(f"{article} {kind.__name__}{how}", lambda v: isinstance(v, kind))
    return Domain("anything", lambda v: True)


def _options(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Annotated and not any(isinstance(m, Domain) for m in hint.__metadata__):
        return _options(get_args(hint)[0])  # what others annotate, such as parsers of options
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


Sizes = dict[str, tuple[int, str]]
"""Lengths of named axes, and where each was first seen."""


def check(name: str, value: Any, hint: Any, sizes: Sizes | None = None) -> None:
    """Raise `ValueError` unless a value is what an annotation says, and so are its fields, if it is
    a record, and its entries, if it is a tuple, a sequence or a mapping.

    Args:
      name: what the value is called.
      value: anything.
      hint: its annotation.
      sizes: lengths of axes in the call or record so far, to which the value's are added.
    """
    options = _options(hint)
    if Any in options or (value is None and type(None) in options):
        return
    domains = {o: _domain(o) for o in options if o is not type(None)}
    traced = isinstance(value, jax.core.Tracer)
    fitting = next((o for o, domain in domains.items() if traced or domain.holds(value)), None)
    if fitting is None:
        musts = " or ".join(domain.must for domain in domains.values())
        first = next(iter(domains.values()))
        raise ValueError(dataclasses.replace(first, must=musts).refusal(name, value))
    if _has_axes(fitting):
        _check_axes(name, np.shape(value), fitting.dim_str, {} if sizes is None else sizes)
    if not traced:
        for place, held, its_hint, its_sizes in _held(value, fitting):
            check(f"{name}{place}", held, its_hint, its_sizes)
        if isinstance(value, Whole):
            value.check_whole(name)


def _held(value: Any, hint: Any) -> Iterator[tuple[str, Any, Any, Sizes]]:
    """What a value holds: where, what, of which annotation, beside which axes."""
    sizes: Sizes = {}
    if get_origin(hint) is Annotated and get_args(hint)[0] is Any:
        return  # of any type, which its domain knows: a module of another library, say
    if dataclasses.is_dataclass(value):
        for field, its_hint in hints_of(value.__class__).items():
            yield f".{field}", getattr(value, field), its_hint, sizes
    elif get_origin(hint) in (tuple, collections.abc.Sequence):
        *hints, last = get_args(hint)
        alike = last is Ellipsis or not hints
        for place, held in enumerate(value):
            its_hint = (hints or [last])[0] if alike else get_args(hint)[place]
            yield f"[{place}]", held, its_hint, {}
    elif get_origin(hint) is collections.abc.Mapping:
        for key, held in value.items():
            yield f"[{key!r}]", held, get_args(hint)[1], {}


def _has_axes(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)


def _check_axes(name: str, shape: tuple[int, ...], axes: str, sizes: Sizes) -> None:
    """Raise `ValueError` unless a shape has these axes, as "records features" or "... classes"."""
    before, rest, after = axes.partition("...")
    ends = before.split(), after.split()
    count = len(ends[0]) + len(ends[1])
    if len(shape) != count and not (rest and len(shape) >= count):
        raise ValueError(f"{name} has shape {shape}; it must be [{', '.join(axes.split())}]")
    if 0 in shape:
        raise ValueError(f"{name} has shape {shape}; it must hold something")
    for axis, size in zip(
        ends[0] + ends[1],
        (*shape[: len(ends[0])], *shape[len(shape) - len(ends[1]) :]),
        strict=True,
    ):
        wanted, place = (int(axis), "") if axis.isdigit() else sizes.setdefault(axis, (size, name))
        if size != wanted:
            beside = f", with {wanted} {axis} as in {place}" if place else ""
            raise ValueError(
                f"{name} has shape {shape}; it must be [{', '.join(axes.split())}]{beside}"
            )


@functools.cache
def hints_of(declared: Any) -> dict[str, Any]:
    """Annotations of a function's arguments, or of a record's fields."""
    hints = get_type_hints(declared, include_extras=True)
    if dataclasses.is_dataclass(declared):
        return {field.name: hints[field.name] for field in dataclasses.fields(declared)}
    return {name: hint for name, hint in hints.items() if name != "return"}


@functools.cache
def returned_by(function: Callable[..., Any]) -> Any:
    """Annotation of a function's result, or None."""
    return get_type_hints(function, include_extras=True).get("return")


def checked(function: Function) -> Function:
    """A public function whose arguments are what its annotations say, or `ValueError`; and whose
    result has the axes that they say. Its `prepare`, if any, is given all arguments first. Products
    are in full precision (`jaxfl.products`); whoever watches calls sees it (`jaxfl.watching`)."""
    signature = inspect.signature(function)
    prepare: Any = getattr(function, "prepare", tuple)

    @functools.wraps(function)
    def boundary(*arguments: Any, **named: Any) -> Any:
        hints, sizes = hints_of(function), Sizes()
        for name, value in signature.bind(*arguments, **named).arguments.items():
            if name in hints:
                check(name, value, hints[name], sizes)
        with full_precision():
            arguments, named = prepare((arguments, named))
            watched = watched_call(boundary, arguments, named)
            result = function(*arguments, **named) if watched is None else watched()
        if _has_axes(returned := returned_by(function)):
            shown = f"what {function.__name__} returns"
            _check_axes(shown, np.shape(result), returned.dim_str, sizes)
        return result

    return boundary  # type: ignore[return-value]
