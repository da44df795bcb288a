"""The memory that this process holds at most."""

import resource
import sys
from pathlib import Path

_PROCESS = Path("/proc/self")


def forget_peak() -> bool:
    """Let `peak_mib` begin anew, for the whole process; whether the system can (Linux can)."""
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def peak_mib() -> int:
    """Largest resident memory of this process since `forget_peak`, or since it began, MiB."""
    try:
        lines = (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 2**10)
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kibibytes / (2**20 if sys.platform == "darwin" else 2**10))
