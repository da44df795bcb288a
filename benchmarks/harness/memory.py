"""The memory that this process holds."""

import resource
import sys
from pathlib import Path

_PROCESS = Path("/proc/self")


class Meter:
    """What this process comes to hold from the meter's making on. It forgets the peak before."""

    def __init__(self) -> None:
        self._resident, self._mappings = resident_mib(), held_mappings()
        forget_peak()

    def read(self, computations: int) -> dict[str, float]:
        """The peak in MiB; how much it lies above what was held before; and what is held now that
        was not (memory, and memory mappings), divided by the computations that share it."""
        peak, count = peak_mib(), max(computations, 1)
        return {
            "peak_mib": peak,
            "added_mib": peak - self._resident,
            "kept_mib": round((resident_mib() - self._resident) / count, 1),
            "kept_mappings": round((held_mappings() - self._mappings) / count, 1),
        }


def forget_peak() -> bool:
    """Let `peak_mib` begin anew, for the whole process; whether the system can (Linux can)."""
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def resident_mib() -> int:
    """Resident memory of this process, MiB; its peak where the system tells no other."""
    resident = _status("VmRSS")
    return peak_mib() if resident is None else resident


def peak_mib() -> int:
    """Largest resident memory of this process since `forget_peak`, or since it began, MiB."""
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kibibytes / (2**20 if sys.platform == "darwin" else 2**10))


def held_mappings() -> int:
    """Memory mappings of this process; 0 where they are not known, and not limited."""
    try:
        with (_PROCESS / "maps").open("rb") as mappings:
            return sum(1 for _ in mappings)
    except OSError:  # no Linux
        return 0


def _status(name: str) -> int | None:
    """A line of Linux's account of this process, in MiB."""
    try:
        lines = (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    kibibytes = [int(line.split()[1]) for line in lines if line.startswith(f"{name}:")]
    return round(kibibytes[0] / 2**10) if kibibytes else None
