"""Estimated cost of the jobs of `attribute_experiment`, for plans and progress."""

import itertools
from typing import Any

from benchmarks.attribute_experiment import SELECTING, SIMULATED, measured, phases_of
from benchmarks.jobs import Cost, Job
from benchmarks.phases import rounds_of

COMPILE_SECONDS = {
    **{"random": 0.4, "majority": 0.2, "public100": 1.6, "public1000": 1.6, "stats": 2.0},
    **{
        "simulation": 1.5,
        "l2_lbfgs": 6.0,
        "cos": 3.5,
        "mixture": 4.0,
        "closed_form": 3.5,
        "gauss_newton": 5.0,
        "gls": 6.0,
        "cos_unrolled": 4.5,
    },
}
"""Per program, read off runs on two CPU cores."""


def cost(job: Job, features: int, classes: int, *, strangers: bool = False) -> Cost:
    """Estimated cost of a job.

    Operations are counted from the matrix products of each method; the factors for what small products lose were read off
    runs on two CPU cores. With `strangers`, membership is decoded too: all candidates of twice the records are unknowns.
    """
    cell, records = job.cell, job.cell["records"]
    names = phases_of(job)
    rounds = sum(len(rounds_of(name, cell["rounds"])) for name in names)
    widths = (features, *map(int, str(cell["hidden"]).split(",")), classes)
    layers = [a * b for a, b in itertools.pairwise(widths)]
    weights, behind = sum(layers), sum(layers[1:])
    forward = 2.0 * records * weights
    batch = records if cell["batch_size"] == "full" else cell["batch_size"]
    small = max(1.0, 24 / batch)  # batches of few records run at a fraction of the machine's speed
    unknowns = (
        records
        * (3 if cell.dataset.startswith("genome") else 1)
        * (2 if cell["labels"] == "unknown" else 1)
    )
    if strangers:
        unknowns = 4 * unknowns
    gram = 2.0 * records * min(records, 2 * features) * widths[1]
    drawn = sum(
        min(len(rounds_of(name, cell["rounds"])), cell["unrolled_rounds"]) for name in names
    )
    # Gradients behind the first layer are written out, unless they are taken at one point.
    inner = sum(widths[:2]) + behind if cell["gls_points"] > 1 else 2 * sum(widths)
    projected = 2.0 * (unknowns * 2) ** 2 * inner + 4.0 * unknowns * weights * cell["gls_orders"]
    work = {
        "random": 0.0,
        "majority": 0.0,
        "public100": 200 * 3 * 2.0 * 100 * weights,
        "public1000": 200 * 3 * 2.0 * 1000 * weights,
        "stats": 4.0 * forward * rounds,
        "closed_form": rounds * 12.0 * unknowns**2 * sum(widths) + 4.0 * unknowns**3,
        "l2_lbfgs": cell["evaluations"] * rounds * 4 * forward,
        "cos": cell["steps"] * rounds * (gram + 12.0 * records * behind),
        "mixture": cell["steps"] * rounds * (gram + 12.0 * records * behind),
        "gauss_newton": rounds * 20 * 50 * 8 * forward,
        "gls": cell["gls_passes"]
        * rounds
        * (cell["epochs"] * cell["gls_orders"] * 6 * forward * small + projected),
        # Simulated training is repeated once more to save memory.
        "cos_unrolled": cell["epochs"]
        * cell["unrolled_steps"]
        * drawn
        * cell["unrolled_orders"]
        * 12
        * forward
        * small,
    }
    training = cell["epochs"] * cell["rounds"] * cell["participants"] * 3 * forward * small
    memory = (
        8.0 * len({t for name in names for t in rounds_of(name, cell["rounds"])}) * weights
        + 4.0 * records * features
    )
    simulation = (
        cell.dataset,
        cell["encoding"],
        cell["hidden"],
        records,
        cell["batch_size"],
        cell["participants"],
    )
    program: tuple[Any, ...] = (job.method, strangers, *simulation[:4])
    if job.method in (*SELECTING, "stats"):
        program += (
            cell["prior"],
            cell["labels"],
            *(simulation[4:5] if job.method in SIMULATED else ()),
        )
    measurement: tuple[Any, ...] = (measured(cell), job.seed, job.method)
    if job.method.startswith("public"):  # shared by all victims of a seed
        measurement = (cell.dataset, cell["encoding"], cell["attribute"], job.seed, job.method)
        program = (job.method, cell.dataset, cell["encoding"], cell["attribute"])
    return Cost(
        operations={(measured(cell), job.seed): training, measurement: work[job.method]},
        compiling={simulation: COMPILE_SECONDS["simulation"], program: COMPILE_SECONDS[job.method]},
        memory=memory,
    )
