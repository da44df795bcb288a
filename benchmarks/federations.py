"""The federations of Driouich 2022 and 2023: who trains on what, what is seen, and every model that stands for a client's own.

A cell's settings:
  model: "linear" (least squares; Driouich 2022) or "mlp".
  hidden: widths of the hidden layers, "256,256,256"; none if empty.
  batch_norm: whether normalisation by private batch statistics precedes each ReLU.
  clients: number of clients.
  records: at most so many per client, or 0 for all.
  batch_size: records per local step; "full" for all.
  epochs: local epochs per round.
  learning_rate: of the clients' SGD.
  rounds, every: communication rounds, of which every so-manieth is observed, from the first.
  defense: "none", "dp", "mixup" or "dp+mixup".
  epsilon: of each client's whole training, at delta = 1e-5, where it is differentially private with gradients clipped to 1.
  attacked: clients whose models and attributes are attacked: so many, the largest if not all; of linear clients the first, by
    whose numbers Driouich 2022 reports.
  optimum_steps: SGD steps from the common start that make the local optimum.
  side: pixels down and across a face, "80,70".
"""

import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import Knowledge, UnknownColumn
from benchmarks.jobs import Cell
from jaxfl import (
    DPSGD,
    ClientData,
    Federated,
    LocalTraining,
    Messages,
    Model,
    Record,
    linear,
    local_update,
    mlp,
    simulate,
    stack_clients,
)
from jaxfl.accounting import epsilon, noise_multiplier
from jaxfl.datasets import Dataset, load, partitions

Array = jax.Array
DELTA = 1e-5
LEAF_RECORDS = 2000
"""Records of each of LEAF's clients (Driouich 2023, Appendix C)."""


@dataclasses.dataclass(frozen=True)
class Federation:
    """One federation, trained.

    Attributes:
      data: the source.
      parts: row numbers of every client.
      model: the model.
      training: every client's recipe; they differ in the batch size of clients that have fewer records.
      start: the common initial model.
      final: the global model after the last round.
      messages: of the attacked clients, in the observed rounds.
      key: what is random in attacks.
      seconds: of the simulation, compilation included.
    """

    data: Dataset
    parts: list[np.ndarray]
    model: Model
    training: list[LocalTraining]
    start: Any
    final: Any
    messages: list[Messages]
    key: Array
    seconds: float

    def client(self, c: int) -> ClientData:
        """The records of a client."""
        rows = self.parts[c]
        mask = jnp.ones(len(rows), bool)
        return ClientData(
            jnp.asarray(self.data.x[rows]), jnp.asarray(self.data.y[rows]), mask, jnp.asarray(c)
        )

    def knowledge(self, c: int) -> tuple[Knowledge, np.ndarray]:
        """What an adversary knows of a client (all but its sensitive column, and that one's distribution), and the truth."""
        column = self.data.column(self.data.sensitive or 0)
        values, rows = self.data.values_of(column.name), self.parts[c]
        prior = np.bincount(values[np.concatenate(self.parts)], minlength=len(column.values))
        unknown = UnknownColumn(
            jnp.asarray(column.positions),
            jnp.asarray(column.values),
            jnp.asarray(prior / prior.sum(), jnp.float32),
        )
        x = self.data.x[rows].copy()
        x[:, list(column.positions)] = np.nan
        return Knowledge(jnp.asarray(x), jnp.asarray(self.data.y[rows]), (unknown,)), values[rows]


def source(cell: Cell, data_dir: str | None) -> Dataset:
    """A cell's data; a planted attribute in LEAF's, faces at the cell's size and flat."""
    if cell.dataset.startswith("leaf"):
        milder = {"spread": 0.1, "noise": 1.0} if cell.dataset == "leaf_milder" else {}
        # Clients' distributions are drawn between their records: fewer are taken in `divide`, so that these stay the same.
        options = {"clients": cell["clients"], "records": LEAF_RECORDS, "attribute": True, **milder}
        return _load("leaf_synthetic", None, tuple(options.items()))
    if cell.dataset == "att_faces":
        side = tuple(map(int, str(cell["side"]).split(",")))
        return _load("att_faces", data_dir, (("size", side),))
    own = (("clients", cell["clients"]),) if cell.dataset == "flight_airlines" else ()
    return _load(cell.dataset, data_dir, own)


@functools.lru_cache(maxsize=4)
def _load(name: str, data_dir: str | None, options: tuple[tuple[str, Any], ...]) -> Dataset:
    return load(name, data_dir, **dict(options))


def divide(data: Dataset, cell: Cell, seed: int) -> list[np.ndarray]:
    """Row numbers of every client: by degree and age for Adult, by airline for fares, LEAF's own; overlapping for faces. Those
    that are attacked come first."""
    rng = np.random.default_rng(seed)
    if cell.dataset == "adult_bachelors":
        parts = partitions.by_group_and_rest(rng, data, cell["clients"])
    elif cell.dataset == "att_faces":
        parts = partitions.overlapping_classes(rng, data.y, cell["clients"])
    else:
        parts = partitions.by_group(data)
    if cell["attacked"] < len(parts) and cell["model"] != "linear":
        parts = sorted(parts, key=len, reverse=True)
    limit = cell["records"]
    return [np.sort(rng.permutation(p)[:limit]) if limit else p for p in parts]


def model_of(data: Dataset, cell: Cell) -> Model:
    """A cell's model."""
    features = int(np.prod(data.x.shape[1:]))
    if cell["model"] == "linear":
        return linear(features)
    hidden = tuple(int(width) for width in str(cell["hidden"]).split(",") if width)
    task = "regression" if data.classes is None else "classification"
    return mlp(features, hidden, data.classes or 1, task=task, batch_norm=bool(cell["batch_norm"]))


def recipe(cell: Cell, records: int) -> LocalTraining:
    """What a client with that many records does in a round."""
    batch = None if cell["batch_size"] == "full" else min(cell["batch_size"], records)
    defense = str(cell["defense"])
    training = LocalTraining(cell["learning_rate"], cell["epochs"], batch, mixup="mixup" in defense)
    if "dp" not in defense:
        return training
    steps = training.steps(records) * cell["rounds"]
    known = {
        "records": records,
        "batch_size": batch,
        "steps": steps,
        "delta": DELTA,
        "mixup": training.mixup,
    }
    noise = noise_multiplier(cell["epsilon"], **known)
    return dataclasses.replace(training, privacy=DPSGD(1.0, noise))


def observed(cell: Cell) -> tuple[int, ...]:
    """Rounds whose messages are seen."""
    return tuple(range(0, cell["rounds"], cell["every"]))


def federate(cell: Cell, data_dir: str | None, seed: int) -> Federation:
    """Train a cell's federation. Under differential privacy all clients add as much noise as the one that needs most."""
    data = source(cell, data_dir)
    parts, model = divide(data, cell, seed), model_of(data, cell)
    dtype = jnp.result_type(float)
    init_key, train_key, key = jax.random.split(jax.random.key(seed), 3)
    start = jax.tree.map(lambda a: a.astype(dtype), model.init(init_key))
    recipes = [recipe(cell, len(rows)) for rows in parts]
    noises = [r.privacy.noise_multiplier for r in recipes if r.privacy is not None]
    if noises:
        privacy = DPSGD(1.0, max(noises))
        recipes = [dataclasses.replace(r, privacy=privacy) for r in recipes]
    common = max(zip(recipes, parts, strict=True), key=lambda pair: len(pair[1]))[0]
    attacked = tuple(range(min(cell["attacked"], len(parts))))
    clients = stack_clients([(data.x[rows].astype(dtype), data.y[rows]) for rows in parts])
    began = time.perf_counter()
    record = Record(clients=attacked, rounds=observed(cell))
    run = simulate(
        model,
        start,
        clients,
        train_key,
        Federated(rounds=cell["rounds"], training=common, record=record),
    )
    jax.block_until_ready(run.params)
    messages = [run.messages(c) for c in attacked]
    return Federation(
        data, parts, model, recipes, start, run.params, messages, key, time.perf_counter() - began
    )


def optimum(federation: Federation, c: int, steps: int, x: Array | None = None) -> Any:
    """What the client's recipe, without defences, makes of its records alone, from the common start: its optimal local model.

    Args:
      federation: the federation.
      c: the client.
      steps: at least so many SGD steps, in whole epochs.
      x: records to train on in place of its own.
    """
    data, training = federation.client(c), federation.training[c]
    each = dataclasses.replace(training, epochs=1).steps(len(data.mask))
    alone = dataclasses.replace(training, epochs=-(-steps // each), privacy=None, mixup=False)
    data = data if x is None else dataclasses.replace(data, x=jnp.asarray(x))
    return _train(
        federation.model, federation.start, data, jax.random.fold_in(federation.key, c), alone
    )


def isolated(federation: Federation, c: int, rounds: int) -> Any:
    """The client's last model if the server sends it nothing but its own model back, in every round: FedAvg of it alone."""
    data = jax.tree.map(lambda a: a[None], federation.client(c))
    federated = Federated(rounds, federation.training[c], record=Record(rounds=(rounds - 1,)))
    run = simulate(
        federation.model, federation.start, data, jax.random.fold_in(federation.key, c), federated
    )
    return jax.tree.map(lambda a: a[0, 0], run.returned)


_train = jax.jit(local_update, static_argnames="model")


def epsilon_of(federation: Federation, cell: Cell, c: int) -> float:
    """What a client's private training spends over all rounds."""
    training, records = federation.training[c], len(federation.parts[c])
    assert training.privacy is not None
    steps = training.steps(records) * cell["rounds"]
    noise = float(training.privacy.noise_multiplier)
    known = {
        "records": records,
        "batch_size": training.batch_size,
        "steps": steps,
        "delta": DELTA,
        "mixup": training.mixup,
    }
    return epsilon(noise, **known)
