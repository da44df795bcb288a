"""Bad input, made out of a valid call: every argument, and every field of a record, is spoilt in
every way that its annotation makes bad, and has to be named."""

from benchmarks.laws.bad_input.generator import cases
from benchmarks.laws.bad_input.outcomes import DATA, HARMLESS, NAMED, NO_ANSWER, SILENT, outcome

__all__ = ["DATA", "HARMLESS", "NAMED", "NO_ANSWER", "SILENT", "cases", "outcome"]
