"""What all commands share: how they end, and what they say of bad input."""

import dataclasses
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxfl.domains import check, hints_of

INTERRUPTED = 130
"""Exit code of a command that was asked to end."""


class UsageError(ValueError):
    """A request that cannot be run; its text is one line for the user."""


def check_once(words: Sequence[str], *fields: str) -> None:
    """Raise `UsageError` if an option that holds several values stands there twice: the last would
    count alone, and the others be lost."""
    names = [word.split("=")[0].replace("_", "-") for word in words]
    for name in map(option, fields):
        if names.count(name) > 1:
            raise UsageError(f"{name} is given {names.count(name)} times; give all its values once")


def exit_code(work: Callable[[], int], options: Any, kept: str = "") -> int:
    """A command's exit code: what `work` returns, 1 if results could not be read or written, 2 on
    bad input, 130 if interrupted. Of these three the user is told in one line.

    Args:
      work: the command.
      options: record of the command's options; an error of an argument by the name of one is told
        as of that option.
      kept: what a failure or an interruption leaves, "finished rows are kept".
    """
    left = f"; {kept}" if kept else ""
    try:
        return work()
    except (ValueError, ConnectionError, FileNotFoundError) as error:
        return say(f"error: {_of_options(str(error), options)}", 2)
    except (OSError, sqlite3.Error) as error:  # a full disk, a damaged file
        return say(f"error: {error}{left}", 1)
    except KeyboardInterrupt:
        repeat(0)
        return say(f"interrupted{left}", INTERRUPTED)


def _of_options(told: str, options: Any) -> str:
    """An error that begins with an argument's name, as of the option by that name."""
    begun = re.match(r"(\w+)=", told)
    if begun is None or begun[1] not in {field.name for field in dataclasses.fields(options)}:
        return told
    return f"{option(begun[1])} {told[begun.end() :]}"


def save_figure(figure: Any, path: str) -> None:
    """Write a matplotlib figure to the file that `--figure` names. Raises `UsageError` if its
    suffix stands for no format."""
    try:
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    except ValueError as error:
        raise UsageError(f"--figure {path!r}: {error}") from error


def say(text: str, code: int) -> int:
    """Tell the user of an error, in one line; returns the exit code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(" ".join(text.split()), markup=False)
    return code


def option(name: str) -> str:
    """A field as it stands on the command line."""
    return f"--{name.replace('_', '-')}"


def check_options(arguments: Any) -> None:
    """Raise `ValueError` unless every field of a command's record is what its annotation says
    (`jaxfl.domains`)."""
    for name, hint in hints_of(arguments.__class__).items():
        check(option(name), getattr(arguments, name), hint)


def check_writable(name: str, text: str) -> None:
    """Raise `UsageError` unless a file of this name can be written, before anything is measured."""
    path = Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{option(name)} {text!r} is no file that can be written")


def listen_for_requests_to_end() -> None:
    """Take a scheduler's request to end as Ctrl-C, and make both again until they are heard: Python
    ignores what is raised while memory is being collected."""
    for name in ("SIGINT", "SIGTERM", "SIGALRM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _interrupt)


def _interrupt(*_: Any) -> None:
    repeat(0.5)
    raise KeyboardInterrupt


def repeat(seconds: float) -> None:
    """Have `_interrupt` called again after so many seconds; 0 for never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def run_command(command: Callable[[], int]) -> None:
    """End the process by a command's exit code; it hears requests to end."""
    listen_for_requests_to_end()
    code = command()
    if code == INTERRUPTED:
        # Threads may still compile: when Python ends, XLA aborts the process that has such.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
