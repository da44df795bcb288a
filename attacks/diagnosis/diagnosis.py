"""What a diagnosis is."""

import dataclasses

from attacks.diagnosis.numbers import Finding
from attacks.fit import Fit


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What messages say of a client, the strongest first.

    Attributes:
      findings: what was found.
      fit: of the recipe that was told, or None if nothing is known of the records.
      attack: which attack to use, and how.
    """

    findings: tuple[Finding, ...]
    fit: Fit | None
    attack: str

    def __str__(self) -> str:
        lines = [f"{f.cause}: {f.evidence}" for f in self.findings]
        return "\n".join([*lines, f"use: {self.attack}"])
