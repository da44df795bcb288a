"""Calls of public functions can be watched: what is called, with what, and how long it takes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jaxfl import _check

Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Watcher(NamedTuple):
    """Who watches.

    Attributes:
      wants: whether calls of a function are watched; the calls that others make are looked at.
      call: given a function, its arguments and its named ones, makes the call and returns its
        result. Calls within are not watched.
    """

    wants: Callable[[Callable[..., Any]], bool]
    call: Call


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher | None) -> Iterator[None]:
    """Calls inside go by way of `watcher`, but for those of a function that is being traced."""
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


def watched_call(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Callable[[], Any] | None:
    """The call by way of who watches it, if anybody does."""
    watcher = _watcher.get()
    if watcher is None or not watcher.wants(function) or _check.is_traced(arguments, named):
        return None

    def call() -> Any:
        with watching(None):
            return watcher.call(function, arguments, named)

    return call
