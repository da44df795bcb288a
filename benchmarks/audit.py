"""What one's own server could learn from one's own clients, and what stops it:
`python -m benchmarks.audit`.

From a table alone the federation is simulated; with `--messages` a recorded run is attacked. The
answer goes to `--out` (default `audit/`): `report.html`, every number as CSV, and `audit.yaml`, by
which the same audit is made again.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import tyro
from rich.console import Console

from benchmarks.audits import options, page
from benchmarks.audits.options import Arguments
from benchmarks.audits.recorded_run import audit_recorded
from benchmarks.audits.request import PROG
from benchmarks.audits.simulated import audit_simulated
from benchmarks.harness.command_line import UsageError, check_once, exit_code, run_command

KEPT = "finished rows are kept; run the same command to go on"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code as `benchmarks.sweep` does."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _answered(words), Arguments, _kept(words))


def _kept(words: list[str]) -> str:
    """What an interruption leaves."""
    try:
        told = options.configured(words).messages is not None
    except (UsageError, OSError):
        return ""
    of_recording = told or any(word.split("=")[0] == "--messages" for word in words)
    return "run the same command again" if of_recording else KEPT


def _answered(words: list[str]) -> int:
    check_once(words, "sensitive", "drop", "client", "questions", "epsilon")
    arguments = tyro.cli(Arguments, args=words, prog=PROG, default=options.configured(words))
    options.check(arguments)
    console = Console(width=None if sys.stdout.isatty() else 130)
    audit = audit_recorded if arguments.messages else audit_simulated
    made = audit(console, arguments)
    path = page.write(made.page, Path(arguments.out) / "report.html")
    for sentence in made.page.answer:
        console.print(sentence, highlight=False, markup=False)
    console.print(f"report: {path}", highlight=False)
    return int(made.failed)


if __name__ == "__main__":
    run_command(main)
