"""How fast attacks and simulation are here, and how far from the machine's limits:
`python -m benchmarks.throughput [methods|growth|programs|attacks|rounds|messages]`.

Warm, on made-up and embedded data, compile time apart:
  methods: every program of every method and of the clients' training, beside what products of
    matrices and copies reach on this device; as a table, a CSV file and a roofline.
  growth: time against victims, rounds and records, with exponents; as a table, a CSV file and a
    picture.
  programs: memory of a sweep whose cells each compile; as a table and a CSV file.
  attacks: `cos` in milliseconds per iteration, `closed_form` as a whole (MLP
    features-hidden-classes).
  rounds: a FedAvg round of `simulate`.
  messages: `gls`, per message that it reads.
The last three take `--beside "COMMAND"`, another program that times the same (see
`benchmarks.speed.beside`). Fix the number of cores from outside (`taskset -c 1`).
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import tyro
from rich.console import Console

from benchmarks.harness.command_line import (
    check_options,
    check_writable,
    exit_code,
    run_command,
)
from benchmarks.harness.devices import prepare_devices
from benchmarks.harness.jobs import Job
from benchmarks.speed import table, timings
from benchmarks.speed.beside import Attacks, Messages, Rounds, show
from benchmarks.speed.growth import Growth
from benchmarks.speed.machine import measure_limits
from benchmarks.speed.memory import Programs
from benchmarks.suites.specimens import Size, jobs_of
from jaxfl.domains import Count, Index

FULL = {"cpu": 16}
"""Members of the full size, by backend."""
ACCELERATOR_FULL = 256


@dataclasses.dataclass(frozen=True)
class Methods:
    """Time every program of every method."""

    experiments: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of experiments, as "attributes"; all if none."""
    methods: tuple[str, ...] = ()
    """Names of methods; all if none."""
    size: Size = "default"
    """tiny: seconds a program; default: the small size of the suites; full: the same with as many
    members as an accelerator holds."""
    members: Index = 0
    """Victims or federations at once; 0: as the size has it (2, 4, and at the full size 16, or 256
    on an accelerator)."""
    repeats: Count = 3
    """Warm runs of each, of which the fastest counts."""
    out: str = "throughput.csv"
    """The CSV file; the roofline stands beside it as .svg."""
    compare: str | None = None
    """A CSV file of an earlier run, which is set beside this one."""

    def jobs(self) -> list[Job]:
        """What is asked for. Raises `ValueError` on a name that does not exist."""
        jobs = list(jobs_of(self.size))
        for name, asked, known in (
            ("experiments", self.experiments, [job.cell.experiment.name for job in jobs]),
            ("methods", self.methods, [job.method for job in jobs]),
        ):
            unknown = [each for each in asked if each not in known]
            if unknown:
                choices = ", ".join(dict.fromkeys(known))
                raise ValueError(f"{name}={unknown[0]!r} is not timed; choose from {choices}")
        return [
            job
            for job in jobs
            if (not self.experiments or job.cell.experiment.name in self.experiments)
            and (not self.methods or job.method in self.methods)
        ]

    def show(self, console: Console) -> None:
        """Measure, print and write. Raises `ValueError` on bad arguments."""
        check_writable("out", self.out)
        before = timings.read(Path(self.compare)) if self.compare is not None else []
        jobs, limits = self.jobs(), measure_limits()
        full = FULL.get(jax.default_backend(), ACCELERATOR_FULL)
        members = self.members or {"tiny": 2, "default": 4, "full": full}[self.size]
        measured = timings.measure(
            jobs,
            self.size,
            limits,
            members=members,
            repeats=self.repeats,
            tell=lambda job: console.print(f"[dim]{job.cell.experiment.name} {job.method}[/dim]"),
            keep=lambda done: timings.write(Path(self.out), done),
        )
        table.draw_roofline(measured, limits, Path(self.out).with_suffix(".svg"))
        console.print(table.table_of(measured, limits))
        if before:
            console.print(table.compared(before, measured))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code as `benchmarks.sweep` does."""
    arguments = tyro.cli(
        Methods | Growth | Programs | Attacks | Rounds | Messages,
        args=argv,
        default=Methods(),
        prog="python -m benchmarks.throughput",
    )
    return exit_code(lambda: _answered(arguments), arguments)


def _answered(arguments: Methods | Growth | Programs | Attacks | Rounds | Messages) -> int:
    check_options(arguments)
    prepare_devices(cores=False)
    console = Console(width=None if sys.stdout.isatty() else 160)
    if isinstance(arguments, (Methods, Growth, Programs)):
        arguments.show(console)
    else:
        show(arguments, console)
    return 0


if __name__ == "__main__":
    run_command(main)
