"""Memory of a sweep whose cells each compile programs of their own."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness.command_line import check_writable
from benchmarks.harness.engines import local
from benchmarks.harness.jobs import Job, group
from benchmarks.harness.memory import held_mappings, resident_mib
from benchmarks.harness.runner import run_safely
from benchmarks.harness.settings import replace
from benchmarks.measurements import attributes
from benchmarks.speed.timings import write
from benchmarks.suites.specimens import specimen_of
from jaxfl.domains import Count

FEWEST = 30
"""Records of the first cell's victim; each cell has one more than the last, and new programs."""


@dataclasses.dataclass(frozen=True)
class Held:
    """What this process holds after so many cells: a line of the CSV file.

    Attributes:
      cells: that have run.
      resident_mib: memory of this process.
      peak_mib: the most so far.
      mappings: of memory; 0 where they are not known.
    """

    cells: int
    resident_mib: int
    peak_mib: int
    mappings: int


@dataclasses.dataclass(frozen=True)
class Programs:
    """Memory of a sweep whose cells each compile, after every so many."""

    cells: Count = 300
    """How many; each victim has another number of records."""
    method: str = "closed_form"
    """Method that infers attributes; the data are digits."""
    every: Count = 25
    """Cells between two lines."""
    out: str = "programs.csv"
    """The CSV file."""

    def show(self, console: Console) -> None:
        """Run, print and write. Raises `ValueError` on a method that does not exist, or a file that
        cannot be written."""
        check_writable("out", self.out)
        lines: list[Held] = []
        for line in self.held():
            console.print(f"[dim]{line.cells} cells {line.resident_mib} MiB[/dim]")
            lines.append(line)
            write(Path(self.out), lines, Held)
        table = Table(*(field.name for field in dataclasses.fields(Held)))
        for line in lines:
            table.add_row(*map(str, dataclasses.astuple(line)))
        console.print(table)

    def held(self) -> Iterator[Held]:
        """A line after every so many cells, and after the last."""
        specimen = specimen_of(attributes.EXPERIMENT, self.method, "default")
        cells = [
            dataclasses.replace(
                specimen,
                dataset="digits",
                settings=replace(specimen.settings, {"attribute": 20, "records": FEWEST + more}),
            )
            for more in range(self.cells)
        ]
        groups = group(Job(cell, self.method, 0) for cell in cells)
        ran, most = local(lambda members: run_safely(members, None), groups), 0
        for count, (_, outcomes) in enumerate(ran, 1):
            failed = [outcome.status for outcome in outcomes if outcome.value is None]
            if failed:
                raise ValueError(f"method={self.method!r}: {failed[0]}")
            most = max(most, *(int(outcome.detail["peak_mib"] or 0) for outcome in outcomes))
            if count % self.every == 0 or count == self.cells:
                yield Held(count, resident_mib(), most, held_mappings())
