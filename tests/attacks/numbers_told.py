"""By how many years ages are off that are read out of messages, of which bounds alone are known.

`python -m tests.attacks.numbers_told 3` prints a table over so many federations, where `JAXFL_DATA`
holds Adult: clients of 100 people, `age` unknown but for being between the table's bounds.
"""

import os
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.ensemble import RandomForestRegressor

from attacks import FitWarning, Knowledge, NumberDecoding, Status, UnknownColumn, decode_numbers
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients
from jaxfl.datasets import Dataset, load

RECORDS, PUBLIC, HIDDEN = 100, 2000, (64,)
RECIPES = {
    "full batches, 5 rounds": (LocalTraining(0.1), 5),
    "full batches, 20 rounds": (LocalTraining(0.1), 20),
    "batches of 20, 20 rounds": (LocalTraining(0.1, batch_size=20), 20),
}


def root_mean_square(errors: np.ndarray) -> float:
    return float(np.sqrt(np.square(errors).mean()))


def row(data: Dataset, training: LocalTraining, rounds: int, seed: int) -> tuple[float, ...]:
    """Root mean square errors in years: of the mean, of a forest on public people, of the attack,
    and what it says of itself; the median error; seconds; and the status."""
    column = data.column("age")
    (place,), numbers = column.positions, column.numbers
    assert numbers is not None
    order = np.random.default_rng(seed).permutation(len(data))
    rows, public = order[:RECORDS], order[RECORDS : RECORDS + PUBLIC]
    model, key = mlp(data.x.shape[1], HIDDEN, 2), jax.random.key(seed)
    client = stack_clients([(data.x[rows], data.y[rows])])
    run = simulate(model, model.init(key), client, key, Federated(rounds, training))
    x, truth = np.array(data.x[rows]), numbers.values(data.x[rows, place])
    x[:, place] = np.nan
    ends = numbers.features(np.asarray([[numbers.low], [numbers.high]]))
    known = Knowledge(x, data.y[rows], (UnknownColumn(jnp.asarray([place]), jnp.asarray(ends)),))
    begun = time.perf_counter()
    settings = NumberDecoding(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        answer = decode_numbers(model, run.messages(0), known, key, settings=settings)
    off = numbers.values(np.asarray(answer.values)) - truth
    seconds = time.perf_counter() - begun

    def beside(rows: np.ndarray) -> np.ndarray:
        return np.column_stack([np.delete(data.x[rows], place, 1), data.y[rows]])

    ages = numbers.values(data.x[public, place])
    forest = RandomForestRegressor(random_state=0).fit(beside(public), ages)
    of_guesses = [ages.mean() - truth, forest.predict(beside(rows)) - truth]
    errors = [root_mean_square(each) for each in (*of_guesses, off)]
    expected = float(answer.error) * numbers.deviation
    return *errors, expected, float(np.median(np.abs(off))), seconds, int(answer.status)


def table(seeds: int) -> None:
    """Print a row for every recipe; seconds are of the last federation, without compiling."""
    data = load("adult", os.environ["JAXFL_DATA"])
    for name, (training, rounds) in RECIPES.items():
        rows = [row(data, training, rounds, seed) for seed in range(seeds)]
        *figures, seconds, status = zip(*rows, strict=True)
        each = " | ".join(", ".join(f"{value:.2f}" for value in values) for values in figures)
        words = ", ".join(sorted({Status(s).name.lower() for s in status}))
        print(f"| {name} | {each} | {seconds[-1]:.0f} | {words} |", flush=True)


if __name__ == "__main__":
    table(int(sys.argv[1]))
