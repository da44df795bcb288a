"""Sets of rounds that an attack may use, by name."""

EVERY_ROUND = "all"
"""The phase of all rounds, however many there are."""

PHASES = {
    "pre1": (0,),
    "pre2": (0, 1),
    "pre5": (0, 1, 2, 3, 4),
    "gap10": (9, 19, 29, 39, 49),
    "last5": (-5, -4, -3, -2, -1),
    "first20": tuple(range(20)),
    "first50": tuple(range(50)),
}
"""Sets of rounds (Lyu 2021, section 4.2, and two of our own), 0-based; negative ones count from the
last."""


def rounds_of(phase: str, rounds: int) -> tuple[int, ...]:
    """The rounds of a phase, or of several joined by "+", counted from 0.

    Raises:
      ValueError: on an unknown phase, or one that needs more rounds.
    """
    chosen: set[int] = set()
    for part in phase.split("+"):
        if part == EVERY_ROUND:
            chosen |= set(range(rounds))
            continue
        if part not in PHASES:
            raise ValueError(f"phases={part!r} is unknown; choose from {', '.join(PHASES)}, all")
        chosen |= {t if t >= 0 else rounds + t for t in PHASES[part]}
    if min(chosen) < 0 or max(chosen) >= rounds:
        raise ValueError(f"phases={phase!r} needs more than rounds={rounds}")
    return tuple(sorted(chosen))


def kept_rounds(phases: tuple[str, ...], rounds: int) -> tuple[int, ...]:
    """Rounds of the phases, and the last for evaluation."""
    return tuple(sorted({t for name in phases for t in rounds_of(name, rounds)} | {rounds - 1}))
