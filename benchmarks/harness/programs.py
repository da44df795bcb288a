"""What a measurement runs: its programs are watched, counted, and lowered for other devices."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.clock import Clock
from benchmarks.harness.engines import Compiled, run_members
from benchmarks.harness.operations import Operations, equations, operations
from jaxfl import local_update, simulate
from jaxfl.products import full_precision
from jaxfl.watching import Watcher, watching

PLATFORMS = ("cuda", "tpu")
REDUCED = ("dot_general", "conv_general_dilated")
"""Equations that accelerators compute in less than float32 where nothing is said."""
HOST_CALLS = ("debug_print", "infeed", "outfeed")
"""Equations for which a device waits for the host, beside callbacks."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A pure function of arrays, as one member of a group runs it, or one call of an attack.

    Attributes:
      name: of the function.
      function: from arrays to its result.
      shapes: of the arrays.
      x64: whether 64-bit types are on.
      static: all else that it depends on, such as settings.
      on_host: why it looks at values, if it says so (`jaxfl.watching.on_host`).
    """

    name: str
    function: Callable[..., Any] = dataclasses.field(compare=False)
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    x64: bool
    static: Any = None
    on_host: str = ""

    @functools.cached_property
    def traced(self) -> Any:
        """Its stages, at `jax.jit(...).trace`.

        Raises:
          HostError: if it looks at values, as a solver outside JAX does.
        """
        try:
            with jax.enable_x64(self.x64):
                return jax.jit(self.function).trace(*self.shapes)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
            raise HostError(f"{self.name} looks at values on the host") from error

    @property
    def operations(self) -> Operations:
        """What it has to compute. Raises `HostError` as `traced`."""
        return operations(self.traced.jaxpr)

    def lower(self, platforms: tuple[str, ...] = PLATFORMS) -> Any:
        """Lowered for other devices, which need not be there. Raises `HostError` as `traced`."""
        with jax.enable_x64(self.x64):
            return self.traced.lower(lowering_platforms=platforms)

    def host_calls(self) -> list[str]:
        """See `host_calls`. Raises `HostError` as `traced`."""
        return host_calls(self.traced.jaxpr)

    def reduced(self) -> list[str]:
        """See `reduced_products`. Raises `HostError` as `traced`."""
        return reduced_products(self.traced.jaxpr)


def reduced_products(jaxpr: Any) -> list[str]:
    """Products of float32 numbers that a device may make in less."""
    return [
        f"{equation.primitive.name} of {[v.aval.shape for v in equation.invars]}"
        for equation in equations(jaxpr)
        if equation.primitive.name in REDUCED
        and all(v.aval.dtype == jnp.float32 for v in equation.invars)
        and not _is_full(equation.params["precision"])
    ]


def host_calls(jaxpr: Any) -> list[str]:
    """Operations for which a device waits for the host, by name."""
    return [
        equation.primitive.name
        for equation in equations(jaxpr)
        if "callback" in equation.primitive.name or equation.primitive.name in HOST_CALLS
    ]


class HostError(ValueError):
    """A function has no program of its own: it needs values while it is traced."""


def _is_full(precision: Any) -> bool:
    each = precision if isinstance(precision, tuple) else (precision,)
    return all(p == jax.lax.Precision.HIGHEST for p in each)


class Call(NamedTuple):
    """One run of a program.

    Attributes:
      program: of one member.
      members: that ran.
      seconds: of the fastest warm run, all members together; NaN if there was none.
      compile_s: that the first run spent compiling.
    """

    program: Program
    members: int
    seconds: float
    compile_s: float


@contextmanager
def watched(calls: list[Call], *, repeats: int = 1) -> Iterator[None]:
    """Everything that runs inside as one program is put into `calls`: groups of members, and
    attacks and trainings that are called on arrays.

    Args:
      calls: a list, which grows.
      repeats: warm runs of each that is not among `calls` yet; 0 for none, where times are not
        wanted.
    """

    def call(function: Callable[..., Any], arguments: Any, named: dict[str, Any]) -> Any:
        if function is run_members:
            program, members = _of_members(*arguments, **named)
        else:
            program, members = program_of(function, arguments, named)[0], 1
        run = functools.partial(function, *arguments, **named)
        first, times = _spent(run), [np.nan]
        if not any(each.program == program for each in calls):
            times += [_spent(run).seconds for _ in range(repeats)]
        calls.append(Call(program, members, float(np.fmin.reduce(times)), first.compile_s))
        return first.result

    with watching(Watcher(_is_program, call)):
        yield


def _is_program(function: Callable[..., Any]) -> bool:
    return function in (run_members, simulate, local_update) or is_attack(function)


def is_attack(function: Callable[..., Any]) -> bool:
    """Whether a `jaxfl.domains.checked` function is an attack: of `attacks`, or of whoever adds
    one."""
    module = function.__module__
    return module != "attacks.metrics" and module.partition(".")[0] not in ("jaxfl", "benchmarks")


class _Spent(NamedTuple):
    result: Any
    seconds: float
    compile_s: float


def _spent(run: Callable[[], Any]) -> _Spent:
    """Result and time of one run; of a group compilation is apart. What a group spends on moving
    its members is not counted."""
    clock, began = Clock(), time.perf_counter()
    result = jax.block_until_ready(run())
    seconds = time.perf_counter() - began
    if isinstance(result, Compiled):
        seconds = result.run_s * len(jax.tree.leaves(result.results)[0])
    return _Spent(result, seconds, clock.read().compile_s)


def _of_members(
    function: Callable[[Any], Any], members: Any, *, x64: bool = False
) -> tuple[Program, int]:
    leaves, structure = jax.tree.flatten(members)
    shapes = tuple(_shape(leaf, leaf.shape[1:], x64) for leaf in leaves)
    method = getattr(getattr(function, "method", None), "name", "")
    name = getattr(function, "__name__", type(function).__name__) + (f" {method}" if method else "")

    def of_arrays(*arrays: Any) -> Any:
        with full_precision():
            return function(jax.tree.unflatten(structure, arrays))

    return Program(name, of_arrays, shapes, x64, function), len(leaves[0])


def program_of(
    function: Callable[..., Any], arguments: Any, named: dict[str, Any]
) -> tuple[Program, list[Any]]:
    """One call of an attack as a function of those of its arrays that may be traced; and these."""
    x64: bool = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    leaves, structure = jax.tree.flatten((arguments, named))
    places = [i for i, leaf in enumerate(leaves) if _is_traced(leaf)]

    def of_arrays(*arrays: Any) -> Any:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        inner, options = jax.tree.unflatten(structure, filled)
        result = function(*inner, **options)
        return [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]

    shapes = tuple(_shape(leaves[i], leaves[i].shape, x64) for i in places)
    static = str(structure), str([leaf for leaf in leaves if not _is_traced(leaf)])
    why = getattr(function, "on_host", "")
    program = Program(function.__name__, of_arrays, shapes, x64, static, why)
    return program, [leaves[i] for i in places]


def _is_traced(leaf: Any) -> bool:
    """Numbers and keys; labels, rounds and names may decide what is computed."""
    if not isinstance(leaf, (jax.Array, np.ndarray)):
        return False
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return is_key or jnp.issubdtype(leaf.dtype, jnp.floating)


def _shape(leaf: Any, shape: tuple[int, ...], x64: bool) -> jax.ShapeDtypeStruct:
    dtype = (
        leaf.dtype
        if x64 or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else (jax.dtypes.canonicalize_dtype(leaf.dtype))
    )
    return jax.ShapeDtypeStruct(shape, dtype)
