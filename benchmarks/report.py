"""Write results.csv and report.html anew: `python -m benchmarks.report [--out results]`."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro

from benchmarks.harness import report
from benchmarks.harness.command_line import UsageError, exit_code, run_command
from benchmarks.harness.store import opened
from benchmarks.suites import SUITES, metrics_of
from benchmarks.suites.outside import with_outside


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Write results.csv and report.html anew from the results in a folder."""

    suites: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Suites of your own whose results are there, as module:NAME."""
    out: str = "results"
    """The folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code as `benchmarks.sweep` does."""
    arguments = tyro.cli(Arguments, args=argv, prog="python -m benchmarks.report")
    return exit_code(lambda: _answered(arguments), arguments)


def _answered(arguments: Arguments) -> int:
    for name in arguments.suites:
        if ":" not in name:
            raise UsageError(f"suite {name!r} is no module:NAME of your own; a folder is --out")
    metrics = metrics_of(with_outside(arguments.suites, SUITES))
    with opened(arguments.out) as store:
        page = report.write(store.rows(), store.folder, metrics, store.images())
        print(store.write_csv(), page)
    return 0


if __name__ == "__main__":
    run_command(main)
