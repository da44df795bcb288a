"""Write results.csv and report.html anew: `python -m benchmarks.report [--out results]`."""

import dataclasses
from collections.abc import Sequence

import tyro

from benchmarks.harness import report
from benchmarks.harness.command_line import exit_code, run_command
from benchmarks.harness.store import opened
from benchmarks.suites import METRICS


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Write results.csv and report.html anew from the results in a folder."""

    out: str = "results"
    """The folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code as `benchmarks.sweep` does."""
    arguments = tyro.cli(Arguments, args=argv, prog="python -m benchmarks.report")
    return exit_code(lambda: _answered(arguments))


def _answered(arguments: Arguments) -> int:
    with opened(arguments.out) as store:
        page = report.write(store.rows(), store.folder, METRICS, store.images())
        print(store.write_csv(), page)
    return 0


if __name__ == "__main__":
    run_command(main)
