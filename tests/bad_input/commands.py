"""Bad values for every option of every command, made from the annotations of its record."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from benchmarks.harness.command_line import option
from jaxfl import domains

NO_NUMBERS = ("x", "", "nan", "1.5.0")
BAD_TEXTS = {
    "an integer of at least 1": (*NO_NUMBERS, "0", "-1", "1.5", "1e3"),
    "an integer of at least 0": (*NO_NUMBERS, "-1", "1.5", "1e3"),
    "an integer": (*NO_NUMBERS, "1.5", "1e3"),
    "positive and finite": (*NO_NUMBERS, "0", "-1", "inf"),
    "at least 0 and finite": (*NO_NUMBERS, "-1", "inf"),
    "at least 0 and below 1": (*NO_NUMBERS, "-0.1", "1", "inf"),
}
JUNK = ("", ",", "=", "nonsense", "-1", "[]", "{", "é" * 3000, "a\nb", "\udcff", "*", "{round", "'")
"""One is longer than any file's name may be, one a byte that is no text."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command, its record, the words of a valid call, and a word that chooses the record."""

    main: Callable[[list[str]], int]
    record: type
    valid: dict[str, str]
    chosen: tuple[str, ...] = ()

    def words(self, **spoilt: str) -> list[str]:
        """Of a call."""
        words = [(option(name), text) for name, text in (self.valid | spoilt).items()]
        places = {"--old": 0, "--new": 1}  # which have no name on the command line
        first = sorted((pair for pair in words if pair[0] in places), key=lambda p: places[p[0]])
        named = [f"{name}={text}" for name, text in words if name not in places]
        return [*self.chosen, *named, *(["--"] if first else []), *(text for _, text in first)]


def paths(folder: Path) -> tuple[str, ...]:
    """What is no file of the kind that is asked for."""
    for name, content in (("empty", b""), ("binary", bytes(range(256))), ("text.csv", b"a,b\n1")):
        (folder / name).write_bytes(content)
    names = ("missing/file", "", "empty", "binary", "text.csv")
    return tuple(str(folder / name) for name in names)


def bad_texts(hint: Any, folder: Path) -> tuple[str, ...]:
    """What an option of a type cannot be, or is unlikely to be."""
    kinds = [kind for kind in domains._options(hint) if kind is not type(None)]
    if get_origin(kinds[0]) is tuple:
        return bad_texts(get_args(kinds[0])[0], folder)
    if get_origin(kinds[0]) is Literal:
        return "nonsense", ""
    if kinds[0] in (str, Path):
        return (*JUNK, *paths(folder))
    return () if kinds[0] is bool else BAD_TEXTS[domains._domain(kinds[0]).must]


class AcceptedError(Exception):
    """A command got as far as its work."""


def accept(*arguments: Any, **named: Any) -> None:
    """In place of a command's work."""
    raise AcceptedError


def outcome(command: Command, name: str, text: str) -> str:
    """ "named", "accepted", or what else a call came to."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = command.main(command.words(**{name: text}))
    except AcceptedError:
        return "accepted"
    except SystemExit as ended:
        told = said.getvalue()
        return "named" if ended.code == 2 and option(name) in told else f"parser: {told}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"[:200]
    if code == 0:
        return "accepted"
    told = said.getvalue()
    one_line = told.startswith("error: ") and told.count("\n") == 1
    one_line &= not re.match(rf"error: {name}\b", told)  # an argument of Python, not an option
    shown = {option(name)}
    shown |= {each for each in (text, repr(text), " ".join(text.split()), str(Path(text))) if each}
    if code in (1, 2) and one_line and any(each in told for each in shown):
        return "named"
    return f"code {code}, not named: {told[:200]}"
