"""The seeds that a command names."""

from benchmarks.harness.command_line import UsageError

MOST_SEEDS, MOST_SEED = 100_000, 2**32 - 1
"""Keys of JAX hold 32 bits of a seed: larger ones would repeat smaller ones."""


def seeds_of(text: str) -> list[int]:
    """The seeds that `--seeds` names. Raises `UsageError` if it names none."""
    try:
        numbers = [int(part) for part in text.split(",") if part]
    except ValueError:
        numbers = []
    counted = "," not in text and max(numbers, default=0) > MOST_SEEDS
    if counted or max(numbers, default=0) > MOST_SEED:
        raise UsageError(
            f"--seeds {text!r} is too many or too large: at most {MOST_SEEDS} seeds, none above "
            f"{MOST_SEED}"
        )
    if not numbers:
        raise UsageError(f"--seeds {text!r} must be a count (5) or a list (0,3,7)")
    seeds = numbers if "," in text else list(range(numbers[0]))
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds {text!r} must name seeds, none negative and none twice")
    return seeds
