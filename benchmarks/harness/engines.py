"""How groups run on this machine: `local` yields the outcomes of each group as they come."""

import ctypes
import functools
import gc
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.harness.jobs import Group, Outcome
from benchmarks.harness.memory import held_mappings
from benchmarks.harness.operations import operations
from benchmarks.harness.trees import lengthened
from jaxfl.parallel import map_clients, strategy_here
from jaxfl.products import full_precision
from jaxfl.watching import watched_call

ACCELERATOR_CHUNK, MOST_AT_ONCE = 16, 256
"""Members that run at once on each accelerator: where its memory is not known, and at most."""
COPIES = 64
"""Assumed number of arrays that a member holds at a time, each as large as its largest."""

NARROWER = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
"""What results of 64 bits come back in."""

MOST_PROGRAMS, MOST_MAPPINGS = 96, 30_000
"""Compiled programs kept at a time, and memory mappings of this process beyond which none is kept
on CPU. There a program holds hundreds, some a thousand, of the 65,530 that Linux grants a process
by default; beyond, the compiler dies ("Cannot allocate memory")."""


class Compiled(NamedTuple):
    """Results of a compiled call, and what it took.

    Attributes:
      results: stacked over members.
      compile_s: seconds spent compiling (0 if an equal program was compiled before).
      run_s: wall seconds of the call, divided by the members.
    """

    results: Any
    compile_s: float
    run_s: float


def run_members(function: Callable[[Any], Any], members: Any, *, x64: bool = False) -> Compiled:
    """Run a pure function on every member of a group as one compiled call.

    Members are shared by the local devices, or keep to the default one where there is one
    (`jax.default_device`), and run one after the other on each CPU core, as many at once as its
    memory bears on an accelerator. Products are made in full precision (`jaxfl.products`).

    Args:
      function: from one member to a pytree of arrays. Hashable: equal functions share their
        compiled program.
      members: a pytree whose leaves have the leading axis `[members]`.
      x64: allow 64-bit arithmetic inside; results come back in 32 bits.
    """
    watched = watched_call(run_members, (function, members), {"x64": x64})
    return _run_members(function, members, x64=x64) if watched is None else watched()


def _run_members(function: Callable[[Any], Any], members: Any, *, x64: bool = False) -> Compiled:
    """Watched by nobody."""
    count = len(jax.tree.leaves(members)[0])
    default = jax.config.jax_default_device  # type: ignore[attr-defined]  # which jax.default_device sets, for this thread
    devices = tuple(jax.local_devices() if default is None else [default])[:count]
    surplus = -count % len(devices)  # the last member is repeated until every device has as many
    placed = jax.device_put(
        lengthened(members, surplus) if surplus else members, _sharding(devices)
    )
    leaves, structure = jax.tree.flatten(placed)
    _drop_programs()
    start = time.perf_counter()
    with jax.enable_x64(x64), full_precision():
        program = _compile(
            function,
            devices,
            structure,
            tuple((leaf.shape, leaf.dtype) for leaf in leaves),
            (x64, jax.config.jax_default_matmul_precision),  # type: ignore[attr-defined]
        )
        compiled = time.perf_counter()
        results = jax.block_until_ready(program(placed))
    end = time.perf_counter()
    # Back on one device: slicing an array that is spread over devices would make them wait for each
    # other.
    gathered = jax.device_put(results, devices[0])
    return Compiled(
        jax.tree.map(lambda a: a[:count], gathered), compiled - start, (end - compiled) / count
    )


def _sharding(devices: tuple[jax.Device, ...]) -> NamedSharding:
    mesh = jax.make_mesh(
        (len(devices),), ("members",), axis_types=(AxisType.Auto,), devices=devices
    )
    return NamedSharding(mesh, PartitionSpec("members"))


def _drop_programs() -> None:
    """Forget compiled programs, ours and JAX's, where a CPU's hold too many memory mappings."""
    if jax.default_backend() != "cpu":
        return
    if held_mappings() > MOST_MAPPINGS:
        _compile.cache_clear()
        jax.clear_caches()
        gc.collect()  # cycles of references keep some programs alive
        _return_memory()


def _return_memory() -> None:
    """Give what was freed back to the system: the allocator of Linux keeps it otherwise, in pieces
    that the next programs do not fit into."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


@functools.lru_cache(maxsize=MOST_PROGRAMS)
def _compile(
    function: Callable[[Any], Any],
    devices: tuple[jax.Device, ...],
    structure: Any,
    signature: tuple[Any, ...],
    precision: tuple[bool, str | None],
) -> Any:
    """One program per function and shapes; `precision`, of types and of products, only tells
    programs of equal shapes apart."""
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in signature]
    strategy = strategy_here(_at_once(function, structure.unflatten(shapes), devices[0]))
    sharding = _sharding(devices)
    # Members share nothing, so the check for values that differ between devices has nothing to
    # protect.
    program = jax.shard_map(
        lambda members: _narrowed(map_clients(function, members, strategy)),
        mesh=sharding.mesh,
        in_specs=sharding.spec,
        out_specs=sharding.spec,
        check_vma=False,
    )
    shapes = structure.unflatten(
        [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in signature]
    )
    return jax.jit(program).lower(shapes).compile()


def _narrowed(results: Any) -> Any:
    """Results in 32 bits, made so within the program. Where 64-bit types are off, a 64-bit array
    that is copied to another device keeps the name of its type, and its memory does not."""

    def narrow(leaf: Any) -> Any:
        narrower = NARROWER.get(str(jnp.result_type(leaf)))
        return leaf if narrower is None else jnp.asarray(leaf, narrower)

    return jax.tree.map(narrow, results)


def _at_once(function: Callable[[Any], Any], members: Any, device: jax.Device) -> int:
    """How many members an accelerator runs at once: half its memory, at most."""
    memory = (device.memory_stats() or {}).get("bytes_limit")
    if memory is None:
        return ACCELERATOR_CHUNK
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), members)
    largest = operations(jax.make_jaxpr(function)(one)).largest
    return min(max(memory // (2 * COPIES * 4 * max(largest, 1)), 1), MOST_AT_ONCE)


def forget_programs() -> None:
    """Forget compiled groups: what they call may have been exchanged since."""
    _compile.cache_clear()


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`functools.cache` for what takes long: threads that ask for the same thing wait for the one
    that asked first."""
    answers: dict[Any, Future[Any]] = {}
    lock = threading.Lock()

    @functools.wraps(function)
    def ask(*arguments: Any) -> Any:
        with lock:
            first = arguments not in answers
            answer = answers.setdefault(arguments, Future())
        if first:
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:
                answers.pop(arguments)  # the next one may try again
                answer.set_exception(error)
        return answer.result()

    return ask


Run = Callable[[Group], Iterator[Sequence[Outcome]]]
Engine = Callable[[Run, Sequence[Group]], Iterator[tuple[Group, Sequence[Outcome]]]]


def local(run: Run, groups: Sequence[Group]) -> Iterator[tuple[Group, Sequence[Outcome]]]:
    """Groups in this process: batched ones, and those that must be alone, one after the other on
    all its devices; then the others side by side, one to an accelerator.

    CPU cores run all groups one after the other: two CPU devices that take singular values at once
    wait for each other for good (jaxlib 0.10).
    """
    apart = (
        [group for group in groups if not (group.experiment.alone or group.experiment.batched)]
        if jax.default_backend() != "cpu"
        else []
    )
    for group in groups:
        if group not in apart:
            for outcomes in with_room(run, group):
                yield group, outcomes
    yield from _side_by_side(run, apart)


def with_room(run: Run, group: Group) -> Iterator[Sequence[Outcome]]:
    """A group's outcomes, with room for more programs made between them: not every experiment runs
    by `run_members`."""
    _drop_programs()
    for outcomes in run(group):
        yield outcomes
        _drop_programs()


def _side_by_side(run: Run, groups: Sequence[Group]) -> Iterator[tuple[Group, Sequence[Outcome]]]:
    """Groups in threads, one for each device; JAX computes outside Python's lock."""
    waiting: queue.SimpleQueue[Group] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[Group, Sequence[Outcome]] | BaseException | None] = (
        queue.SimpleQueue()
    )
    stopped = threading.Event()
    for group in groups:
        waiting.put(group)

    def work(device: jax.Device) -> None:
        try:
            with jax.default_device(device):
                _run_waiting(waiting, run, results, stopped)
            results.put(None)
        except BaseException as error:  # raised again below, where the caller is
            results.put(error)

    workers = jax.local_devices()[: len(groups)]
    try:
        for device in workers:  # daemons: an interrupted sweep does not wait for what they are at
            threading.Thread(target=work, args=(device,), daemon=True).start()
        left = len(workers)
        while left:
            item = results.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        stopped.set()


def _run_waiting(
    waiting: queue.SimpleQueue[Group],
    run: Run,
    results: queue.SimpleQueue[Any],
    stopped: threading.Event,
) -> None:
    """Run groups and put down what they give until none waits."""
    while not stopped.is_set():
        try:
            group = waiting.get_nowait()
        except queue.Empty:
            return
        for outcomes in run(group):
            results.put((group, outcomes))
