"""What solvers make of the representatives' objective (paper 003, Eq. 6 to 8), on one update of one client.

A cell's settings:
  images: records of the client, of three classes, and representatives of it.
  widths: of the shared model's convolutions. steps, batch_size, learning_rate: of its training before, on other records.
  tv_weight: lambda, beside a residual relative to the update's length. evaluations: of objective and gradient.

Methods: `adam`, with a projection; `lbfgsb`, SciPy's, as the paper. Metrics: `objective`, the best met, of which `run_s` is the
time, compilation apart; `class_mean_correlation` of representatives' and records' means of each class.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks.gradient_matching import Virtual
from attacks.representatives import Representatives, Representing, representatives
from benchmarks.jobs import Cell, Job, Outcome
from benchmarks.linkability_experiment import load_images
from jaxfl import Federated, LocalTraining, Messages, Model, local_update, one_client, simulate, stack_clients, trunk_cnn

METHODS: tuple[Literal["adam", "lbfgsb"], ...] = ("adam", "lbfgsb")
CLASSES, BEFORE = 3, 1000


def measured(cell: Cell) -> Any:
    """What is run for a cell: everything."""
    return cell.dataset, cell.settings


class Client(NamedTuple):
    """Attributes:
    model: the shared model.
    messages: the client's only one.
    x, y: its records.
    virtual: its recipe.
    """

    model: Model
    messages: Messages
    x: np.ndarray
    y: np.ndarray
    virtual: Virtual


def client(cell: Cell, data_dir: str | None, seed: int) -> Client:
    """One full-batch step of a client, from a model that others have trained."""
    data = load_images(cell.dataset, data_dir, "28,28")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data))
    before, rest = order[:BEFORE], order[BEFORE:]
    held, each = rng.permutation(data.classes or 0)[:CLASSES], cell["images"] // CLASSES
    rows = np.concatenate([rest[data.y[rest] == c][:each] for c in held])
    model = trunk_cnn(data.x.shape[1:], data.classes or 0, widths=tuple(map(int, cell["widths"].split(","))))
    keys = jax.random.split(jax.random.key(seed), 3)
    epochs = -(-cell["steps"] * cell["batch_size"] // BEFORE)
    others = one_client(data.x[before], data.y[before])
    recipe = LocalTraining(cell["learning_rate"], epochs, cell["batch_size"])
    params = jax.jit(local_update, static_argnums=0)(model, model.init(keys[0]), others, keys[1], recipe)
    training = LocalTraining(cell["learning_rate"])
    run = simulate(model, params, stack_clients([(data.x[rows], data.y[rows])]), keys[2], Federated(1, training))
    return Client(model, run.messages(0), data.x[rows], data.y[rows], Virtual(training=training))


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature, one after the other."""
    for job in jobs:
        attacked = client(job.cell, data_dir, job.seed)
        settings = Representing(
            images=len(attacked.y),
            tv_weight=job.cell["tv_weight"],
            evaluations=job.cell["evaluations"],
            solver="adam" if job.method == "adam" else "lbfgsb",
            virtual=attacked.virtual,
        )
        compiled, seconds, found = 0.0, 0.0, None
        for attempt in range(2):  # the first compiles
            began = time.perf_counter()
            found = jax.block_until_ready(_solve(attacked, settings, jax.random.key(job.seed)))
            compiled, seconds = (time.perf_counter() - began, 0.0) if attempt == 0 else (compiled, time.perf_counter() - began)
        assert found is not None
        shared = {
            "run_s": seconds,
            "compile_s": max(compiled - seconds, 0.0),
            "device": jax.devices()[0].device_kind,
            "dtype": "float32",
        }
        scores = {"objective": float(found.value[0]), "class_mean_correlation": _resemblance(np.asarray(found.x[0]), attacked)}
        yield [Outcome(job, metric, value, **shared) for metric, value in scores.items()]


def _solve(attacked: Client, settings: Representing, key: Any) -> Representatives:
    y = jnp.asarray(attacked.y)[None]
    return representatives(attacked.model, attacked.messages, y, key, attacked.x.shape[1:], settings=settings)


def _resemblance(images: np.ndarray, attacked: Client) -> float:
    means = [(images[attacked.y == k].mean(0), attacked.x[attacked.y == k].mean(0)) for k in np.unique(attacked.y)]
    return float(np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in means]))
