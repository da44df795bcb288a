"""What a law is."""

import dataclasses
from collections.abc import Callable
from typing import Any


class BrokenLawError(AssertionError):
    """A method breaks a law."""


def require(condition: Any, why: str) -> None:
    """Raise `BrokenLawError` with the reason unless a condition holds."""
    if not condition:
        raise BrokenLawError(why)


@dataclasses.dataclass(frozen=True)
class Law:
    """A law of one method: calling it does nothing, or raises `BrokenLawError`.

    Attributes:
      name: of the law.
      method: that is bound by it.
      check: what is called.
    """

    name: str
    method: str
    check: Callable[[], None]

    def __call__(self) -> None:
        """Raises `BrokenLawError` where the method breaks it."""
        self.check()

    def __str__(self) -> str:
        return f"{self.method}-{self.name}"
