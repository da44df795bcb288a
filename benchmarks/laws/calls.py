"""Laws of the attacks that a method calls, on the arguments that it calls them with.

What is watched are functions that are `jaxfl.domains.checked`: those of `attacks`, and those of
whoever adds one.
"""

import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from attacks import Fit
from benchmarks.harness.engines import run_members
from benchmarks.harness.experiment import Method
from benchmarks.harness.programs import HostError, Program, is_attack, program_of
from benchmarks.laws import bad_input
from benchmarks.laws.bad_input.harmless import Harmless, reason
from benchmarks.laws.law import Law, require
from benchmarks.laws.programs import never_waits
from jaxfl.products import full_precision
from jaxfl.watching import Watcher, watching

Array = jax.Array
Result = TypeVar("Result")
APART = 0.05
"""By which answers may differ that are equal but for rounding: searches magnify it."""
NOTHING = 1e-4
"""Numbers below are as good as 0."""


@dataclasses.dataclass(frozen=True)
class CallTrial:
    """A call of an attack.

    Attributes:
      function: the attack.
      arguments: by name.
      x64: whether 64-bit types are on.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    x64: bool

    @property
    def on_host(self) -> bool:
        """Whether it says that it looks at values."""
        return bool(getattr(self.function, "on_host", ""))

    @functools.cached_property
    def program(self) -> tuple[Program, list[Any]]:
        """From those arrays that may be traced to those of its answer; and the former."""
        with jax.enable_x64(self.x64):
            return program_of(_telling(self.function), (), self.arguments)

    def answer(self, *, jitted: bool = False, x64: bool = False) -> list[np.ndarray]:
        """Arrays of its answer: called from a notebook, or inside an outer `jit`; with 64-bit types
        on, or as they are."""
        program, arrays = self.program
        run = jax.jit(program.function) if jitted else program.function
        with jax.enable_x64(self.x64 or x64):
            return _arrays(_quietly(run, *arrays))

    def together(self) -> list[np.ndarray]:
        """The same of two equal calls at once `[2, ...]`."""
        program, arrays = self.program
        several = jax.jit(jax.vmap(program.function))
        with jax.enable_x64(self.x64):
            twice = [jnp.stack([a, a]) for a in arrays]
            never_waits(_quietly(several.trace, *twice))
            return _arrays(_quietly(several, *twice))


def _telling(attack: Callable[..., Any]) -> Callable[..., Any]:
    """The attack; of a misfit it is told whether there is one, beyond which rounding decides. A
    model is told as one vector: what has no slope, as a bias has before batch normalisation, is
    moved by rounding alone."""

    @functools.wraps(attack)
    def run(*arguments: Any, **named: Any) -> Any:
        answer = attack(*arguments, **named)
        return jax.tree.map(_told, answer, is_leaf=lambda part: isinstance(part, (Fit, dict)))

    return run


def _told(part: Any) -> Any:
    if isinstance(part, Fit):
        told = jnp.where(jnp.isnan(part.misfit), jnp.nan, part.misfit > 1)
        return dataclasses.replace(part, misfit=told)
    return ravel_pytree(part)[0] if isinstance(part, dict) else part


def _quietly(run: Callable[..., Result], *arguments: Any) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*arguments)


def _arrays(leaves: list[Array]) -> list[np.ndarray]:
    keys = jax.dtypes.prng_key
    return [np.asarray(leaf) for leaf in leaves if not jnp.issubdtype(leaf.dtype, keys)]


def apart(answer: list[np.ndarray], other: list[np.ndarray]) -> float:
    """By how much answers differ, in the array where they do most: relative to the largest number;
    of whole numbers, which may be names, it is the share of those that are not equal, if less."""
    if [a.shape for a in answer] != [b.shape for b in other]:
        return np.inf
    return max((_apart(a, b) for a, b in zip(answer, other, strict=True)), default=0.0)


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    if not one.size:
        return 0.0
    known = np.isfinite(one)
    if (known != np.isfinite(other)).any():
        return np.inf
    unequal = 1.0 if one.dtype.kind == "f" else float((one != other).mean())
    one, other = one[known].astype(float), other[known].astype(float)
    scale = max(np.abs(one).max(initial=0.0), NOTHING)
    return min(float(np.abs(one - other).max(initial=0.0) / scale), unequal)


@dataclasses.dataclass
class Calls:
    """What was called. It grows.

    Attributes:
      trials: the first call of each attack, by its name.
      groups: first members of groups, by what these ran, and whether with 64-bit types.
    """

    trials: dict[str, CallTrial] = dataclasses.field(default_factory=dict)
    groups: dict[tuple[Callable[..., Any], bool], Any] = dataclasses.field(default_factory=dict)

    def add(self, others: "Calls") -> None:
        """Those of others too."""
        self.trials = others.trials | self.trials
        self.groups = others.groups | self.groups

    def clear(self) -> None:
        """Forget all."""
        self.trials, self.groups = {}, {}

    def all(self) -> list[CallTrial]:
        """Those of groups among them."""
        while self.groups:
            (function, x64), member = self.groups.popitem()
            with jax.enable_x64(x64), full_precision():
                for trial in _within(function, member, x64):
                    self.trials.setdefault(_name(trial.function), trial)
        return list(self.trials.values())


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


@contextlib.contextmanager
def called(calls: Calls) -> Iterator[None]:
    """Attacks that are called inside are put into `calls`."""

    def call(function: Callable[..., Any], arguments: Any, named: dict[str, Any]) -> Any:
        if function is run_members:
            member = jax.tree.map(lambda a: a[0], arguments[1])
            calls.groups.setdefault((arguments[0], named.get("x64", False)), member)
        else:
            bound = inspect.signature(function).bind(*arguments, **named).arguments
            x64: bool = jax.config.jax_enable_x64  # type: ignore[attr-defined]
            calls.trials.setdefault(_name(function), CallTrial(function, dict(bound), x64))
        return function(*arguments, **named)

    def wanted(function: Callable[..., Any]) -> bool:
        return function is run_members or is_attack(function)

    with watching(Watcher(wanted, call)):
        yield


def _within(function: Callable[..., Any], member: Any, x64: bool) -> list[CallTrial]:
    """Attacks that a group's function calls. Arguments are results of a program, which computes
    nothing else."""
    attacks: list[tuple[Callable[..., Any], Any, list[Any]]] = []

    def call(attack: Callable[..., Any], arguments: Any, named: dict[str, Any]) -> Any:
        bound = dict(inspect.signature(attack).bind(*arguments, **named).arguments)
        leaves, structure = jax.tree.flatten(bound)
        attacks.append((attack, structure, leaves))
        return attack(*arguments, **named)

    def arrays_of(member: Any) -> list[list[Array]]:
        with watching(Watcher(is_attack, call, traced=True)):
            function(member)
        return [[a for a in leaves if isinstance(a, jax.Array)] for _, _, leaves in attacks]

    try:
        arrays = _quietly(jax.jit(arrays_of), member)
    except jax.errors.UnexpectedTracerError:  # within a loop: what it is called with has no program
        return []
    trials = []
    for (attack, structure, leaves), known in zip(attacks, arrays, strict=True):
        rest = iter(known)
        filled = [next(rest) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        trials.append(CallTrial(attack, jax.tree.unflatten(structure, filled), x64))
    return trials


Trials = Callable[[], list[CallTrial]]


def an_outer_jit_changes_nothing(trials: Trials) -> None:
    """But for rounding; what looks at values says so (`jaxfl.watching.on_host`)."""
    for trial in _of_programs(trials):
        gap = apart(trial.answer(), trial.answer(jitted=True))
        name = trial.function.__name__
        require(gap < APART, f"an outer jit changes what {name} answers by {gap:.0%}")


def vmap_is_a_loop(trials: Trials) -> None:
    """Two equal calls at once answer what one does."""
    for trial in _of_programs(trials):
        one, both = trial.answer(), trial.together()
        for place in (0, 1):
            gap = apart(one, [a[place] for a in both])
            name = trial.function.__name__
            require(gap < APART, f"vmap changes what {name} answers by {gap:.0%}")


def _of_programs(trials: Trials) -> Iterator[CallTrial]:
    for trial in trials():
        if trial.on_host or not trial.program[1]:
            continue
        try:
            trial.program[0].traced  # noqa: B018 - it is tried
        except HostError as error:
            require(False, f"{error}, and no `on_host` says why")
        yield trial


def same_arguments_same_answer(trials: Trials) -> None:
    """To the last bit."""
    for trial in trials():
        gap = apart(trial.answer(), trial.answer())
        require(gap == 0, f"{trial.function.__name__} answers the same call in two ways")


def answers_with_64_bit_types_on(trials: Trials) -> None:
    """With arrays of the same shape, finite where they were: what is drawn is drawn in 64 bits, and
    may be another number."""
    for trial in trials():
        plain, wide = trial.answer(), trial.answer(x64=True)
        name = trial.function.__name__
        shapes = [[a.shape for a in each] for each in (plain, wide)]
        require(shapes[0] == shapes[1], f"64-bit types change the shapes of {name}: {shapes}")
        finite = all(np.isfinite(b[np.isfinite(a)]).all() for a, b in zip(plain, wide, strict=True))
        require(finite, f"with 64-bit types on {name} answers numbers that are not finite")


def bad_input_is_named(trials: Trials, harmless: Sequence[Harmless] = ()) -> None:
    """By argument: every argument, and every field of a record, is spoilt in every way that its
    annotation makes bad, but for what is declared to be good. What diverged, and what failed, may
    give no answer."""
    for trial in trials():
        with jax.enable_x64(trial.x64):
            cases = bad_input.cases(trial.function, trial.arguments)
            bad = (case for case in cases if not reason(trial.function, *case[:2], harmless))
            told = [what for case in bad if (what := _unnamed(trial.function, *case))]
        require(not told, f"{trial.function.__name__} {'; '.join(told[:3])}")


def it_calls_what_is_checked(trials: Trials) -> None:
    """Else the laws of calls bind nothing."""
    require(trials(), "the method calls no function that is `jaxfl.domains.checked`")


def _unnamed(
    function: Callable[..., Any], place: str, done: str, spoilt: dict[str, Any]
) -> str | None:
    """What a bad call comes to, if it is not named."""
    what = bad_input.outcome(function, place, done, spoilt)
    is_data = what == bad_input.NO_ANSWER and done in bad_input.DATA
    return None if what == bad_input.NAMED or is_data else f"{place} [{done}]: {what}"


LAWS: tuple[Callable[[Trials], None], ...] = (
    an_outer_jit_changes_nothing,
    vmap_is_a_loop,
    answers_with_64_bit_types_on,
    same_arguments_same_answer,
    bad_input_is_named,
    it_calls_what_is_checked,
)
"""They compile what is called anew, or call it many times more. Rows ask the same of what is
measured (`same_seed_same_row`), and bad input is generated for all that is public."""


def laws_of(method: Method, trials: Trials, harmless: Sequence[Harmless] = ()) -> dict[str, Law]:
    """Laws of what a method calls, by name; of a guess, and of an oracle, there are none."""
    if method.oracle or not method.observes:
        return {}
    checks = {law.__name__: functools.partial(law, trials) for law in LAWS}
    checks["bad_input_is_named"] = functools.partial(bad_input_is_named, trials, harmless)
    return {name: Law(name, method.name, check) for name, check in checks.items()}
