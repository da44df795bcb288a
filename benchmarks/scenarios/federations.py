"""Many clients train together, some are attacked (Driouich 2022 and 2023): who trains on what, what
is seen, and the models that their own recipe would make."""

import dataclasses
import operator
import time
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attacks import Knowledge, UnknownColumn
from benchmarks.scenarios.sources import source
from jaxfl import (
    DPSGD,
    ClientData,
    Federated,
    Keep,
    LocalTraining,
    Messages,
    Mixup,
    Model,
    PerClient,
    Plugin,
    evaluate,
    linear,
    local_update,
    logistic,
    mlp,
    simulate,
    stack_clients,
)
from jaxfl.accounting import epsilon, noise_multiplier
from jaxfl.datasets import Dataset, partitions

Array = jax.Array
DELTA = 1e-5
ADAM_RATE, BETWEEN_LOOKS = 1e-3, 100
"""Adam's rate in an optimum's training, and steps of the training between two looks at the fit."""
FACES_CLIENTS = 10
LEAF_RECORDS = 2000
"""Records of each of LEAF's clients (Driouich 2023, Appendix C)."""


@dataclasses.dataclass(frozen=True)
class FederationSettings:
    """Who trains, how, and what is seen.

    Attributes:
      model: "linear" (least squares) or "logistic" (Driouich 2022), or "mlp".
      hidden: widths of the hidden layers.
      batch_norm: whether normalisation by private batch statistics precedes each ReLU.
      clients: number of clients.
      records: at most so many per client, or 0 for all.
      training: what a client does in a round, before any defence; a client with fewer records than
        a batch trains on all of them.
      rounds: communication rounds.
      every: every n-th round is observed, from the first on.
      defense: "none", "dp", "mixup" or "dp+mixup".
      epsilon: of each client's whole training, at delta = 1e-5, where it is differentially private
        with gradients clipped to 1.
      attacked: clients that are attacked: so many, the largest if not all; of linear and logistic
        clients the first, by whose numbers Driouich 2022 reports.
      side: pixels down and across a face.
      fares: rows that are drawn of the fares.
      encoding: of their columns.
    """

    model: Literal["linear", "logistic", "mlp"] = "mlp"
    hidden: tuple[int, ...] = (256, 256, 256)
    batch_norm: bool = False
    clients: int = 10
    records: int = 0
    training: LocalTraining = LocalTraining(0.01, batch_size=512)
    rounds: int = 1000
    every: int = 10
    defense: Literal["none", "dp", "mixup", "dp+mixup"] = "none"
    epsilon: float = 10.0
    attacked: int = 10
    side: tuple[int, int] = (80, 70)
    fares: int = 8_000
    encoding: Literal["onehot", "scalar"] = "onehot"

    @property
    def observed(self) -> tuple[int, ...]:
        """Rounds whose messages are seen."""
        return tuple(range(0, self.rounds, self.every))


@dataclasses.dataclass(frozen=True)
class Federation:
    """One federation, trained.

    Attributes:
      data: the source.
      parts: row numbers of every client.
      model: the model.
      training: every client's recipe; they differ in the batch size of clients that have fewer
        records.
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
        x, y = jnp.asarray(self.data.x[rows]), jnp.asarray(self.data.y[rows])
        return ClientData(x, y, jnp.ones(len(rows), bool), jnp.asarray(c))

    def knowledge(self, c: int) -> tuple[Knowledge, np.ndarray]:
        """What an adversary knows of a client (all but its sensitive column, and that one's
        distribution), and the truth."""
        column = self.data.column(self.data.sensitive or 0)
        values, rows = self.data.values_of(column.name), self.parts[c]
        prior = np.bincount(values[np.concatenate(self.parts)], minlength=len(column.values))
        shares = jnp.asarray(prior / prior.sum(), jnp.float32)
        positions, candidates = jnp.asarray(column.positions), jnp.asarray(column.values)
        unknown = UnknownColumn(positions, candidates, shares)
        x = self.data.x[rows].copy()
        x[:, list(column.positions)] = np.nan
        return Knowledge(jnp.asarray(x), jnp.asarray(self.data.y[rows]), (unknown,)), values[rows]


def records_of(name: str, settings: FederationSettings, data_dir: str | None) -> Dataset:
    """A federation's data; a planted attribute in LEAF's, faces at the settings' size."""
    if name.startswith("leaf"):
        milder = {"spread": 0.1, "noise": 1.0} if name == "leaf_milder" else {}
        # Clients' distributions are drawn between their records: fewer are taken in `divide`, so
        # that these stay the same.
        drawn = {"clients": settings.clients, "records": LEAF_RECORDS, "attribute": True} | milder
        return source("leaf_synthetic", None, **drawn)
    if name == "att_faces":
        return source(name, data_dir, size=settings.side)
    if name == "flight_airlines":
        drawn = {"clients": settings.clients, "records": settings.fares}
        return source(name, data_dir, encoding=settings.encoding, **drawn)
    return source(name, data_dir)


def divide(name: str, data: Dataset, settings: FederationSettings, seed: int) -> list[np.ndarray]:
    """Row numbers of every client: by degree and age for Adult, by airline for fares, LEAF's own;
    overlapping for faces, of whom more than ten are copies of the ten (Driouich 2023, C.2); at
    random where the source names no clients. Those that are attacked come first."""
    rng = np.random.default_rng(seed)
    if name == "adult_bachelors":
        parts = partitions.by_group_and_rest(rng, data, settings.clients)
    elif name == "att_faces":
        different = min(settings.clients, FACES_CLIENTS)
        parts = partitions.overlapping_classes(rng, data.y, different)
        parts += [parts[c] for c in rng.integers(0, different, settings.clients - different)]
    elif data.group is None:
        parts = partitions.by_sizes(rng, len(data), [settings.records] * settings.clients)
    else:
        parts = partitions.by_group(data)
    if settings.attacked < len(parts) and settings.model == "mlp":
        parts = sorted(parts, key=len, reverse=True)
    limit = settings.records
    return [np.sort(rng.permutation(p)[:limit]) if limit else p for p in parts]


def model_of(data: Dataset, settings: FederationSettings) -> Model:
    """The shared model.

    Raises:
      ValueError: if it is logistic, and the data have not two classes.
    """
    features = int(np.prod(data.x.shape[1:]))
    if settings.model == "linear":
        return linear(features)
    if settings.model == "logistic":
        if data.classes != 2:
            raise ValueError(f"model='logistic' needs two classes, not classes={data.classes}")
        return logistic(features)
    task = "regression" if data.classes is None else "classification"
    classes = data.classes or 1
    return mlp(features, settings.hidden, classes, task=task, batch_norm=settings.batch_norm)


def recipe(settings: FederationSettings, records: int) -> LocalTraining:
    """What a client with that many records does in a round."""
    whole, mixup = settings.training.batch_size, "mixup" in settings.defense
    batch = None if whole is None else min(whole, records)
    plugins: tuple[Plugin, ...] = (Mixup(),) if mixup else ()
    training = dataclasses.replace(settings.training, batch_size=batch, plugins=plugins)
    if "dp" not in settings.defense:
        return training
    noise = noise_multiplier(settings.epsilon, **_accounted(training, records, settings.rounds))
    return dataclasses.replace(training, plugins=(*plugins, DPSGD(1.0, noise)))


def _accounted(training: LocalTraining, records: int, rounds: int) -> dict[str, Any]:
    """What the accountant has to know of a client's whole training."""
    return {
        "records": records,
        "batch_size": training.batch_size,
        "steps": training.steps(records) * rounds,
        "delta": DELTA,
        "mixup": training.mixup,
    }


def federate(
    name: str, settings: FederationSettings, data_dir: str | None, seed: int
) -> Federation:
    """Train a federation. Under differential privacy each client adds the noise that its own number
    of records asks for."""
    data = records_of(name, settings, data_dir)
    parts, model = divide(name, data, settings, seed), model_of(data, settings)
    dtype = jnp.result_type(float)
    init_key, train_key, key = jax.random.split(jax.random.key(seed), 3)
    start = jax.tree.map(lambda a: a.astype(dtype), model.init(init_key))
    recipes = [recipe(settings, len(rows)) for rows in parts]
    largest = max(zip(recipes, parts, strict=True), key=lambda pair: len(pair[1]))[0]
    noises = [r.privacy.noise_multiplier for r in recipes if r.privacy is not None]
    private = (PerClient(DPSGD(1.0, jnp.asarray(noises))),) if noises else ()
    attacked = tuple(range(min(settings.attacked, len(parts))))
    clients = stack_clients([(data.x[rows].astype(dtype), data.y[rows]) for rows in parts])
    began = time.perf_counter()
    keep = Keep(clients=attacked, rounds=settings.observed)
    common = largest.without(DPSGD)
    federated = Federated(settings.rounds, common, plugins=private, keep=keep)
    run = simulate(model, start, clients, train_key, federated)
    jax.block_until_ready(run.params)
    messages = [run.messages(c) for c in attacked]
    seconds = time.perf_counter() - began
    return Federation(data, parts, model, recipes, start, run.params, messages, key, seconds)


def optimum(federation: Federation, c: int, steps: int, fit: float | None = None) -> Any:
    """What a client would make of its records alone, without defences, from the common start: its
    optimal local model. See `trained_alone` for the rest."""
    data, training = federation.client(c), federation.training[c]
    key = jax.random.fold_in(federation.key, c)
    return trained_alone(federation.model, federation.start, data, training, key, steps, fit)


def trained_alone(
    model: Model,
    start: Any,
    data: ClientData,
    training: LocalTraining,
    key: Array,
    steps: int,
    fit: float | None = None,
) -> Any:
    """A model that is trained on one client's records alone.

    Args:
      model: the model.
      start: its parameters at first.
      data: the records.
      training: the client's recipe, whose defences are left out.
      key: draws batches.
      steps: so many steps of the recipe, in whole epochs.
      fit: train by Adam in place of the recipe's SGD, on the recipe's batches, until the model fits
        the records so well (see `fit_of`), for at most so many steps. Adam's moments begin anew
        after every look at the fit.
    """
    each = dataclasses.replace(training, epochs=1).steps(len(data.mask))
    if fit is None:
        alone = dataclasses.replace(training.without(), epochs=-(-steps // each))
        return local_update(model, start, data, key, alone)
    epochs = -(-BETWEEN_LOOKS // each)
    adam = LocalTraining(ADAM_RATE, epochs, training.batch_size, optax.adam)
    better = operator.le if model.classes is None else operator.ge
    params = start
    for look in range(-(-steps // (epochs * each))):
        params = local_update(model, params, data, jax.random.fold_in(key, look), adam)
        if better(fit_of(model, params, data), fit):
            break
    return params


def fit_of(model: Model, params: Any, data: ClientData) -> float:
    """Accuracy on records; of a regression, their mean absolute percentage error, as a share. NaN
    of a model that is not finite."""
    if model.classes is not None:
        return float(evaluate(model, params, data).accuracy)
    outputs, y = np.asarray(model.apply(params, data.x)), np.asarray(data.y)
    return float((np.abs(outputs[:, 0] - y) / np.abs(y)).mean())


def isolated(federation: Federation, c: int, rounds: int) -> Any:
    """The client's last model if the server sends it nothing but its own model back, in every
    round: FedAvg of it alone."""
    data = jax.tree.map(lambda a: a[None], federation.client(c))
    keep = Keep(rounds=(rounds - 1,))
    federated = Federated(rounds, federation.training[c], keep=keep)
    key = jax.random.fold_in(federation.key, c)
    run = simulate(federation.model, federation.start, data, key, federated)
    return jax.tree.map(lambda a: a[0, 0], run.returned)


def epsilon_of(federation: Federation, rounds: int, c: int) -> float:
    """What a client's private training spends over all rounds."""
    training, records = federation.training[c], len(federation.parts[c])
    assert training.privacy is not None
    noise = float(training.privacy.noise_multiplier)
    return epsilon(noise, **_accounted(training, records, rounds))
