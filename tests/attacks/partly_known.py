"""What `decode_partial` says of right and wrong messages.

`python -m tests.attacks.partly_known 16` prints it of clients of made-up records, of which some are
known, with public ones."""

import sys
import warnings
from collections import Counter
from typing import Any

import jax
import numpy as np

from attacks import FitWarning, Knowledge, PartialDecoding, Status, binary_column, decode_partial
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients

FEATURES, PUBLIC, ROUNDS, SECRET = 12, 600, 10, 4
FULL = LocalTraining(0.3)
MODEL = mlp(FEATURES, (48,), 3)
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    f"{what}, {known} of {records} known": (records, known, changed)
    for records, known in ((60, 30), (60, 10), (60, 4), (200, 20), (60, 55))
    for what, changed in (("right", {}), ("another client's messages", {"victim": 1}))
} | {
    "twice the others": (60, 30, {"others": 60}),
    "half the others": (60, 30, {"others": 15}),
    "a fifth more others": (60, 30, {"others": 36}),
    "half the rate": (60, 30, {"told": LocalTraining(0.15)}),
    "a rate a fifth higher": (60, 30, {"told": LocalTraining(0.36)}),
    "batches": (60, 30, {"true": LocalTraining(0.3, batch_size=15)}),
    "three epochs": (60, 30, {"true": LocalTraining(0.3, epochs=3)}),
}
"""Records of a client, how many of them are known, and what is otherwise than in truth."""


def people(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and bits, and labels that say nothing of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, FEATURES))
    x[:, ::2] = x[:, ::2] > 0
    return x.astype(np.float32), rng.integers(0, 3, count)


def one(
    records: int,
    known: int,
    seed: int,
    *,
    victim: int = 0,
    others: int | None = None,
    told: LocalTraining = FULL,
    true: LocalTraining = FULL,
) -> tuple[float, str]:
    """Share of known records whose bit is named, and the status."""
    (x, y), public = people(seed, records), people(seed + 100, PUBLIC)
    clients, key = stack_clients([(x, y), people(seed + 200, records)]), jax.random.key(seed)
    run = simulate(MODEL, MODEL.init(key), clients, key, Federated(ROUNDS, true))
    hidden = x[:known].copy()
    hidden[:, SECRET] = np.nan
    knowledge = Knowledge(hidden, y[:known], (binary_column(SECRET, 0.5),))
    settings = PartialDecoding(records - known if others is None else others, told)
    answer = decode_partial(MODEL, run.messages(victim), knowledge, *public, settings=settings)
    right = np.asarray(answer.values[0]) == x[:known, SECRET]
    return float(right.mean()), Status(int(answer.status)).name


def main(clients: int) -> None:
    """Print the table."""
    warnings.simplefilter("ignore", FitWarning)
    for name, (records, known, changed) in CASES.items():
        outcomes = [one(records, known, seed, **changed) for seed in range(clients)]
        states = dict(Counter(status for _, status in outcomes).most_common())
        print(
            f"{name}: {np.mean([share for share, _ in outcomes]):.2f} named, {states}", flush=True
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
