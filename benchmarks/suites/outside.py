"""Suites from outside this package, named on a command line as `module:NAME`."""

import importlib
from collections.abc import Iterable, Mapping

from benchmarks.harness.command_line import UsageError
from benchmarks.harness.jobs import Suite


def with_outside(names: Iterable[str], suites: Mapping[str, Suite]) -> dict[str, Suite]:
    """All suites that may be asked for, those from outside also by the name that they are asked
    for with.

    Args:
      names: of suites or tables, such as "quick", "my_attacks:SUITE" and "my_attacks:SUITE/toy".
      suites: of this package.

    Raises:
      UsageError: if there is no such module, nothing of this name in it, no `Suite`, or if another
        suite has its name. What else its module raises is raised.
    """
    known = dict(suites)
    for place in _places(names):
        suite = known[place] = _suite_at(place)
        if known.setdefault(suite.name, suite) is not suite:
            raise UsageError(f"suite {place!r} is named {suite.name!r} as another one is")
    return known


def _places(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.partition("/")[0] for name in names if ":" in name))


def _suite_at(place: str) -> Suite:
    name, _, attribute = place.partition(":")
    if not name or not attribute:
        raise UsageError(f"suite {place!r} must read module:NAME")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"suite {place!r}: {name!r} cannot be imported ({error})") from error
    suite = getattr(module, attribute, None)
    if suite is None:
        raise UsageError(f"suite {place!r} is not there: {name!r} has no {attribute!r}")
    if not isinstance(suite, Suite):
        kind = type(suite).__name__
        raise UsageError(f"suite {place!r} is a {kind}, and no benchmarks.harness.jobs.Suite")
    return suite
