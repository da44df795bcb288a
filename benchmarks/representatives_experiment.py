"""What solvers make of the representatives' objective (Song 2020, Eq. 6 to 8), on one update of a client.

A cell's settings:
  images: records of the client, of three classes, and representatives of it.
  widths: of the shared model's convolutions. steps, batch_size, learning_rate: of its training before, on other records.
  tv_weight: lambda, beside a residual relative to the update's length. evaluations: of objective and gradient.

Methods: `adam`, with a projection; `lbfgsb`, SciPy's, as the paper; `adam_batched`, Adam on the updates of ten clients at once,
of which numbers and time are the mean. Metrics: `objective`, the best met, of which `run_s` is the time, compilation apart;
`class_mean_correlation` of representatives' and records' means of each class.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import Representatives, Representing, Virtual, representatives
from benchmarks.jobs import Cell, Job, Outcome
from benchmarks.linkability_experiment import load_images
from jaxfl import (
    Federated,
    LocalTraining,
    Messages,
    Model,
    local_update,
    one_client,
    simulate,
    stack_clients,
    trunk_cnn,
)

METHODS = ("adam", "lbfgsb", "adam_batched")
CLASSES, BEFORE, CLIENTS = 3, 1000, 10


def measured(cell: Cell) -> Any:
    """What is run for a cell: everything."""
    return cell.dataset, cell.settings


class Attacked(NamedTuple):
    """Attributes:
    model: the shared model.
    messages: one of each client.
    x, y: their records `[clients, images, ...]`.
    virtual: their recipe.
    """

    model: Model
    messages: Messages
    x: np.ndarray
    y: np.ndarray
    virtual: Virtual


def federate(cell: Cell, data_dir: str | None, seed: int, clients: int) -> Attacked:
    """One full-batch step of each client, from a model that others have trained."""
    data = load_images(cell.dataset, data_dir, "28,28")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data))
    before, rest = order[:BEFORE], order[BEFORE:]
    each, free, parts = cell["images"] // CLASSES, np.ones(len(rest), bool), []
    for _ in range(clients):
        held = rng.permutation(data.classes or 0)[:CLASSES]
        chosen = np.concatenate([np.flatnonzero(free & (data.y[rest] == c))[:each] for c in held])
        free[chosen] = False
        parts.append(rest[chosen])
    rows = np.stack(parts)
    model = trunk_cnn(
        data.x.shape[1:], data.classes or 0, widths=tuple(map(int, cell["widths"].split(",")))
    )
    keys = jax.random.split(jax.random.key(seed), 3)
    epochs = -(-cell["steps"] * cell["batch_size"] // BEFORE)
    others = one_client(data.x[before], data.y[before])
    recipe = LocalTraining(cell["learning_rate"], epochs, cell["batch_size"])
    params = jax.jit(local_update, static_argnums=0)(
        model, model.init(keys[0]), others, keys[1], recipe
    )
    training = LocalTraining(cell["learning_rate"])
    x, y = data.x[rows], data.y[rows]
    run = simulate(
        model, params, stack_clients(list(zip(x, y, strict=True))), keys[2], Federated(1, training)
    )
    received = jax.tree.map(lambda a: jnp.repeat(a, clients, 0), run.received)
    messages = Messages(
        received, jax.tree.map(lambda a: a[0], run.returned), jnp.zeros(clients, int)
    )
    return Attacked(model, messages, x, y, Virtual(training=training))


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature, one after the other."""
    for job in jobs:
        clients = CLIENTS if job.method == "adam_batched" else 1
        attacked = federate(job.cell, data_dir, job.seed, clients)
        settings = Representing(
            images=attacked.y.shape[1],
            tv_weight=job.cell["tv_weight"],
            evaluations=job.cell["evaluations"],
            solver="lbfgsb" if job.method == "lbfgsb" else "adam",
            virtual=attacked.virtual,
        )
        compiled, seconds, found = 0.0, 0.0, None
        for attempt in range(2):  # the first compiles
            began = time.perf_counter()
            found = jax.block_until_ready(_solve(attacked, settings, jax.random.key(job.seed)))
            compiled, seconds = (
                (time.perf_counter() - began, 0.0)
                if attempt == 0
                else (compiled, time.perf_counter() - began)
            )
        assert found is not None
        shared = {
            "run_s": seconds / clients,
            "compile_s": max(compiled - seconds, 0.0),
            "device": jax.devices()[0].device_kind,
            "dtype": "float32",
        }
        alike = [
            _resemblance(*of_one)
            for of_one in zip(np.asarray(found.x), attacked.x, attacked.y, strict=True)
        ]
        scores = {
            "objective": float(found.value.mean()),
            "class_mean_correlation": float(np.mean(alike)),
        }
        yield [Outcome(job, metric, value, **shared) for metric, value in scores.items()]


def _solve(attacked: Attacked, settings: Representing, key: Any) -> Representatives:
    y = jnp.asarray(attacked.y)
    return representatives(
        attacked.model, attacked.messages, y, key, attacked.x.shape[2:], settings=settings
    )


def _resemblance(images: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    means = [(images[y == k].mean(0), x[y == k].mean(0)) for k in np.unique(y)]
    return float(np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in means]))
