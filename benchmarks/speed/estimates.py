"""Measured times become estimates: `python -m benchmarks.speed.estimates --out results
[other folders]`."""

import dataclasses
from collections.abc import Sequence

import tyro

from benchmarks.harness import estimates
from benchmarks.harness.command_line import exit_code, run_command
from benchmarks.harness.store import opened


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Write the table of seconds per job anew from results; tables that they lack stay."""

    out: tuple[str, ...] = ("results",)
    """Folders of results."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code as `benchmarks.sweep` does."""
    arguments = tyro.cli(Arguments, args=argv, prog="python -m benchmarks.speed.estimates")
    return exit_code(lambda: _answered(arguments), arguments)


def _answered(arguments: Arguments) -> int:
    rows = []
    for folder in arguments.out:
        with opened(folder) as store:
            rows += store.rows()
    lines = estimates.refreshed(rows)
    estimates.write(lines)
    print(f"{len(lines)} lines of {estimates.PATH.name}")
    return 0


if __name__ == "__main__":
    run_command(main)
