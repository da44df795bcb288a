"""Packages that not everyone needs."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def of_extra(extra: str) -> Iterator[None]:
    """Around an import of a package that an extra of this one installs.

    Raises:
      ModuleNotFoundError: with what installs it, if it is not there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("jaxfl", "attacks", "benchmarks"):
            raise
        words = f"{error.name} is not installed: pip install 'jaxfl[{extra}]'"
        raise ModuleNotFoundError(words, name=error.name) from error
