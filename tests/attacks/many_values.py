"""How fast, and how well, a numeric column of 41 values is read.

`python -m tests.attacks.many_values 3` prints a table over so many federations, where `JAXFL_DATA`
holds Adult: clients of 160 people of 20 to 60 years, one full-batch step a round, `age` unknown.
"""

import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from attacks import ClosedForm, Knowledge, Status, UnknownColumn, closed_form
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients
from jaxfl.datasets import Dataset, load

RECORDS, RATE, FIRST, VALUES = 160, 0.1, 3, 41
SIZES = ((64, 40), (32, 20))
"""Hidden units and rounds."""


def row(data: Dataset, hidden: int, rounds: int, seed: int) -> tuple[float, float, str]:
    """Share of ages named exactly, seconds of the call, and status."""
    (place,) = data.column("age").positions
    ages = np.unique(data.x[:, place])[FIRST:][:VALUES]
    able = np.flatnonzero(np.isin(data.x[:, place], ages))
    rows = np.random.default_rng(seed).permutation(able)[: 2 * RECORDS].reshape(2, RECORDS)
    model, key = mlp(data.x.shape[1], (hidden,), 2), jax.random.key(seed)
    clients = stack_clients([(data.x[r], data.y[r]) for r in rows])
    run = simulate(model, model.init(key), clients, key, Federated(rounds, LocalTraining(RATE)))
    x, truth = np.array(data.x[rows[0]]), np.searchsorted(ages, data.x[rows[0], place])
    x[:, place] = np.nan
    column = UnknownColumn(jnp.asarray([place]), jnp.asarray(ages[:, None]))
    known = Knowledge(jnp.asarray(x), jnp.asarray(data.y[rows[0]]), (column,))
    begun = time.perf_counter()
    answer = closed_form(model, run.messages(0), known, settings=ClosedForm(RATE))
    right = float((np.asarray(answer.values[0]) == truth).mean())
    return right, time.perf_counter() - begun, Status(int(answer.status)).name.lower()


def table(seeds: int) -> None:
    """Print a row for every size; seconds are of the last federation, without compiling."""
    data = load("adult", os.environ["JAXFL_DATA"])
    for hidden, rounds in SIZES:
        rows = [row(data, hidden, rounds, seed) for seed in range(seeds)]
        right, seconds, told = zip(*rows, strict=True)
        each = ", ".join(f"{value:.3f}" for value in right)
        words = ", ".join(sorted(set(told)))
        print(f"| {hidden} units, {rounds} rounds | {each} | {seconds[-1]:.1f} | {words} |")


if __name__ == "__main__":
    table(int(sys.argv[1]))
