"""Calls of public functions can be watched: what is called, with what, and how long it takes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from jaxfl import _check

Function = TypeVar("Function", bound=Callable[..., Any])
Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Watcher(NamedTuple):
    """Who watches.

    Attributes:
      wants: whether calls of a function are watched; the calls that others make are looked at.
      call: given a function, its arguments and its named ones, makes the call and returns its
        result, or one in its place. This watcher does not see calls within; others do.
      traced: whether it watches calls of a function that is being traced, too.
    """

    wants: Callable[[Callable[..., Any]], bool]
    call: Call
    traced: bool = False


_watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Calls inside go by way of `watcher`, and then of those who watch around it."""
    before = _watchers.set((*_watchers.get(), watcher))
    try:
        yield
    finally:
        _watchers.reset(before)


def watched_call(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Callable[[], Any] | None:
    """The call by way of the innermost who watches it, if anybody does."""
    watchers = _watchers.get()
    traced = bool(watchers) and _check.is_unseen(arguments, named)
    wanting = [w for w in watchers if w.wants(function) and (w.traced or not traced)]
    if not wanting:
        return None

    def call() -> Any:
        before = _watchers.set(tuple(w for w in watchers if w is not wanting[-1]))
        try:
            return wanting[-1].call(function, arguments, named)
        finally:
            _watchers.reset(before)

    return call


def on_host(why: str) -> Callable[[Function], Function]:
    """Marks a public function that looks at values, as a solver outside JAX does, so that it has no
    program that `jit` could make of it; `why` is told where others have their speed."""

    def mark(function: Function) -> Function:
        function.on_host = why  # type: ignore[attr-defined]
        return function

    return mark
