"""What do solvers make of the representatives' objective? (Song 2020, Eq. 6 to 8; on one update of
a client)

A method here has only settings: the solver, and how many clients' updates it is given at once, of
which numbers and time are the mean.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import Representatives, Representing, Virtual, representatives
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome
from benchmarks.scenarios.pictures import shared_model
from benchmarks.scenarios.sources import pictures
from jaxfl import (
    Federated,
    LocalTraining,
    Messages,
    Model,
    local_update,
    one_client,
    simulate,
    stack_clients,
)

CLASSES = 3
"""Classes of a client's records."""


@dataclasses.dataclass(frozen=True)
class SolverSettings:
    """One update of each client.

    Attributes:
      widths: of the shared model's convolutions.
      before, steps: records of others that it is trained on before, and steps of that training.
      training: of the same.
      representing: how representatives are searched for; a client has as many images.
    """

    widths: tuple[int, ...] = (8, 16, 32, 64)
    before: int = 1000
    steps: int = 150
    training: LocalTraining = LocalTraining(0.05, batch_size=100)
    representing: Representing = Representing(images=30)


@dataclasses.dataclass(frozen=True)
class Solver:
    """A solver, and of how many clients at once."""

    solver: str
    clients: int = 1


class Updates(NamedTuple):
    """One update of each client, and what made it.

    Attributes:
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


def draw(
    name: str, settings: SolverSettings, data_dir: str | None, seed: int, clients: int
) -> Updates:
    """One full-batch step of each client, from a model that others have trained."""
    data = pictures(name, data_dir, (28, 28))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data))
    before, rest = order[: settings.before], order[settings.before :]
    each, free, parts = settings.representing.images // CLASSES, np.ones(len(rest), bool), []
    for _ in range(clients):
        held = rng.permutation(data.classes or 0)[:CLASSES]
        chosen = [np.flatnonzero(free & (data.y[rest] == c))[:each] for c in held]
        free[np.concatenate(chosen)] = False
        parts.append(rest[np.concatenate(chosen)])
    rows = np.stack(parts)
    model = shared_model(data, settings.widths)
    init_key, before_key, key = jax.random.split(jax.random.key(seed), 3)
    epochs = -(
        -settings.steps * (settings.training.batch_size or settings.before) // settings.before
    )
    recipe = dataclasses.replace(settings.training, epochs=epochs)
    others = one_client(data.x[before], data.y[before])
    train = jax.jit(local_update, static_argnums=0)
    params = train(model, model.init(init_key), others, before_key, recipe)
    training = LocalTraining(settings.training.learning_rate)
    x, y = data.x[rows], data.y[rows]
    stacked = stack_clients(list(zip(x, y, strict=True)))
    run = simulate(model, params, stacked, key, Federated(1, training))
    received = jax.tree.map(lambda a: jnp.repeat(a, clients, 0), run.received)
    returned = jax.tree.map(lambda a: a[0], run.returned)
    messages = Messages(received, returned, jnp.zeros(clients, int))
    return Updates(model, messages, x, y, Virtual(training=training))


METHODS = (
    Method("adam", "Adam with a projection", settings=Solver("adam")),
    Method("lbfgsb", "SciPy's L-BFGS-B, as the paper", settings=Solver("lbfgsb")),
    Method(
        "adam_batched", "Adam on the updates of ten clients at once", settings=Solver("adam", 10)
    ),
)
METRICS = (
    Metric("objective", "the best met; `run_s` is its time, compilation apart"),
    Metric("class_mean_correlation", "of representatives' and records' means of each class"),
)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs one after the other."""
    for job in jobs:
        solver: Solver = job.method_settings
        updates = draw(job.cell.dataset, job.cell.settings, data_dir, job.seed, solver.clients)
        settings = dataclasses.replace(
            job.cell.settings.representing,
            images=updates.y.shape[1],
            solver=solver.solver,
            virtual=updates.virtual,
        )
        times, answer = [], None
        for _ in range(2):  # the first compiles
            began = time.perf_counter()
            answer = jax.block_until_ready(_solve(updates, settings, jax.random.key(job.seed)))
            times.append(time.perf_counter() - began)
        assert answer is not None
        shared: dict[str, Any] = {
            "run_s": times[1] / solver.clients,
            "compile_s": max(times[0] - times[1], 0.0),
            "dtype": "float32",
        }
        trios = zip(np.asarray(answer.x), updates.x, updates.y, strict=True)
        alike = float(np.mean([_resemblance(*trio) for trio in trios]))
        scores = {"objective": float(answer.value.mean()), "class_mean_correlation": alike}
        yield [Outcome(job, metric, value, **shared) for metric, value in scores.items()]


def _solve(updates: Updates, settings: Representing, key: Any) -> Representatives:
    y, shape = jnp.asarray(updates.y), updates.x.shape[2:]
    return representatives(updates.model, updates.messages, y, key, shape, settings=settings)


def _resemblance(images: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    means = [(images[y == k].mean(0), x[y == k].mean(0)) for k in np.unique(y)]
    return float(np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in means]))


EXPERIMENT = Experiment("solvers", SolverSettings, METHODS, METRICS, run, alone=True)
