"""A federation behind secure aggregation, of which some clients have a property
(Kerkouche 2023)."""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from attacks import Prevalence, Property
from benchmarks.scenarios.sources import source
from benchmarks.scenarios.splits import public_rows, split
from benchmarks.scenarios.victims import private_training
from jaxfl import (
    Aggregates,
    Behavior,
    ClientData,
    Federated,
    Keep,
    LocalTraining,
    Model,
    PerClient,
    clipped_sgd,
    evaluate,
    lenet,
    mlp,
    one_client,
    simulate,
)
from jaxfl.datasets import Dataset

Array = jax.Array
BEHAVIORS = {
    "membership": Behavior(),
    "prevalence": Behavior(),
    "inversion": Behavior(update=-1.0),
    "ascent": Behavior(gradient=-1.0),
    "free_rider": Behavior(update=0.0),
}
TEST_RECORDS = 1000


@dataclasses.dataclass(frozen=True)
class TableSettings:
    """Clients that hold records of a table, and train a perceptron (beyond the paper).

    Attributes:
      attribute: 0-based number of the attribute of which some clients hold more records with the
        second most frequent value.
      spread: share of such records of clients with and without the property, in parts of the
        table's, above and below 1. Where the table says whose a record is, shares are as they are.
      hidden: widths of the hidden layers.
      epsilon: of each client's whole training if it took part in every round, at delta = 1e-5, by
        DP-SGD with gradients clipped to 1; infinity: its training is not private.
    """

    attribute: int
    spread: float = 0.5
    hidden: tuple[int, ...] = (64,)
    epsilon: float = math.inf


@dataclasses.dataclass(frozen=True)
class SumsSettings:
    """Who has the property, and what the server sees.

    Attributes:
      panel: of the paper's figures.
      property: "membership" (of one record in the positive clients' data), "inversion" (they send
        their update inverted), "ascent" (they climb the loss), "free_rider" (they send nothing) or
        "prevalence" (more of their records have an attribute; of a table alone).
      clients, positives, clients_per_round: number of clients, of those with the property, of
        participants in a round.
      records: of every client.
      training: of every client.
      clip: largest norm of a step's gradient, 0 for any.
      factor: what a positive client of "inversion" multiplies its update by; detectors are trained
        for -1.
      auxiliary: records that the adversary has; half of them make directions, the others calibrate.
      rounds: communication rounds.
      tabular: of clients with records of a table; None for images.
    """

    panel: str
    property: Literal["membership", "inversion", "ascent", "free_rider", "prevalence"]
    records: int
    clients: int = 50
    positives: int = 5
    clients_per_round: int = 10
    training: LocalTraining = LocalTraining(0.01, epochs=2, batch_size=10)
    clip: float = 0.0
    factor: float = -0.5
    auxiliary: int = 6000
    rounds: int = 300
    tabular: TableSettings | None = None

    def recipe(self) -> LocalTraining:
        """What honest clients do in a round."""
        training = self.training
        if self.tabular is not None:
            training = private_training(training, self.tabular.epsilon, self.records, self.rounds)
        if not self.clip:
            return training
        return dataclasses.replace(training, optimizer=clipped_sgd(self.clip))


@struct.dataclass
class Drawn:
    """One seed's federation. Leaves get a leading axis `[seeds]` in a group.

    Attributes:
      x: the clients' records `[clients, records, ...]`.
      y: their labels `[clients, records]`.
      positives: who has the property `[clients]`.
      behavior: what each of the clients does `[clients]`.
      prop: what is asked of a client, and how frequent the adversary takes it to be: as frequent as
        it is.
      x_auxiliary: the adversary's records `[auxiliary, ...]`.
      y_auxiliary: their labels `[auxiliary]`.
      x_test: held-out records `[test, ...]`.
      y_test: their labels `[test]`.
      key: everything random.
    """

    x: Array
    y: Array
    positives: Array
    behavior: Behavior
    prop: Property
    x_auxiliary: Array
    y_auxiliary: Array
    x_test: Array
    y_test: Array
    key: Array


def model_of(data: Dataset, settings: SumsSettings) -> Model:
    """The shared model."""
    if settings.tabular is not None:
        return mlp(data.x.shape[1], settings.tabular.hidden, data.classes or 0)
    return lenet("mnist" if data.x.shape[-1] == 1 else "cifar10")


def records_of(name: str, data_dir: str | None) -> Dataset:
    """The source of all records."""
    return source(name, data_dir)


def normalised(x: np.ndarray) -> np.ndarray:
    """Pixels as the authors' code has them: less the mean of MNIST's, over their deviation, also of
    Fashion-MNIST; of colours to [-1, 1]."""
    return (x - 0.1307) / 0.3081 if x.shape[-1] == 1 else (x - 0.5) / 0.5


def draw(data: Dataset, settings: SumsSettings, seed: int) -> Drawn:
    """A federation for a seed.

    Raises:
      ValueError: if the source has too few records, or its clients hold alike many with the
        attribute.
    """
    if settings.tabular is not None:
        return _draw_of_table(data, settings, settings.tabular, seed)
    return _draw_of_images(data, settings, seed)


def rarer_value(data: Dataset, attribute: str | int) -> int:
    """The second most frequent value of an attribute: what `TableSettings` means.

    Raises:
      ValueError: if it has one value.
    """
    prior = data.prior(attribute)
    if np.count_nonzero(prior) < 2:
        raise ValueError(f"attribute={attribute!r} of {data.name} has one value")
    return int(np.argsort(prior)[-2])


def _draw_of_table(data: Dataset, settings: SumsSettings, table: TableSettings, seed: int) -> Drawn:
    """Clients that differ in how many of their records have an attribute."""
    rng, attribute = np.random.default_rng(seed), table.attribute
    carries = data.values_of(attribute) == rarer_value(data, attribute)
    clients, records = settings.clients, settings.records
    rows = split(data, records, clients, seed)
    if data.group is None:
        positives = np.isin(np.arange(clients), rng.permutation(clients)[: settings.positives])
        each = carries.mean() * (1 + table.spread * np.asarray([-1.0, 1.0]))
        shares = np.minimum(each, 1.0)
        drawn = rng.binomial(records, shares[positives.astype(int)])
        parts = _with_counts(rows.training, carries, drawn, records)
    else:
        parts = np.concatenate([rows.victim[None], rows.others])
        held = carries[parts].mean(1)
        positives = held > parting_share(held, clients - settings.positives)
        sides = [held[positives == has] for has in (False, True)]
        shares = np.asarray([side.mean() if len(side) else 0.0 for side in sides])
    if not (positives.any() and shares[0] < shares[1]):
        raise ValueError(
            f"tabular.attribute={attribute}: clients of {data.name} all have a share of "
            f"{shares[0]:.3g} of records with its second most frequent value"
        )
    known = public_rows(data, seed)[: settings.auxiliary]
    prevalence = Prevalence(carries[known], *map(float, shares))
    prop = jax.tree.map(
        jnp.asarray, Property(BEHAVIORS[settings.property], None, positives.mean(), prevalence)
    )
    among = BEHAVIORS[settings.property].among(positives)
    x, y = jnp.asarray(data.x[parts]), jnp.asarray(data.y[parts])
    known_of, held_out = (
        (jnp.asarray(data.x[chosen]), jnp.asarray(data.y[chosen]))
        for chosen in (known, rows.test[:TEST_RECORDS])
    )
    key = jax.random.key(seed)
    return Drawn(x, y, jnp.asarray(positives), among, prop, *known_of, *held_out, key)


def parting_share(shares: np.ndarray, below: int) -> float:
    """A share below which lie about so many of `shares`, and at which no two alike are parted: NaN
    if all are alike."""
    ranked = np.sort(shares)
    steps = np.flatnonzero(np.diff(ranked) > 0)
    if not len(steps):
        return np.nan
    at = steps[np.abs(steps + 1 - below).argmin()]
    return float((ranked[at] + ranked[at + 1]) / 2)


def _with_counts(
    rows: np.ndarray, carries: np.ndarray, counts: np.ndarray, records: int
) -> np.ndarray:
    """Rows of clients `[clients, records]`, of which so many `[clients]` have the attribute, or as
    many as there are."""
    mine, others = rows[carries[rows]], rows[~carries[rows]]
    if records * len(counts) > len(rows):
        raise ValueError(
            f"records={records} for clients={len(counts)} exceed {len(rows)} training records"
        )
    counts = counts.copy()
    while counts.sum() > len(mine):
        counts[counts.argmax()] -= 1
    while (records - counts).sum() > len(others):
        counts[counts.argmin()] += 1
    ends, rest = np.cumsum(counts), np.cumsum(records - counts)
    return np.stack(
        [
            np.concatenate([mine[end - n : end], others[last - (records - n) : last]])
            for n, end, last in zip(counts, ends, rest, strict=True)
        ]
    )


def _draw_of_images(data: Dataset, settings: SumsSettings, seed: int) -> Drawn:
    """Clients of whom some hold one record, or misbehave (Kerkouche 2023)."""
    rng = np.random.default_rng(seed)
    clients, records, auxiliary = settings.clients, settings.records, settings.auxiliary
    if auxiliary + clients * records + TEST_RECORDS + 1 > len(data):
        raise ValueError(
            f"clients={clients} x records={records} and auxiliary={auxiliary} exceed {data.name}"
        )
    order = rng.permutation(len(data))
    known, order = order[:auxiliary], order[auxiliary:]
    parts = order[: clients * records].reshape(clients, -1).copy()
    test = order[parts.size : parts.size + TEST_RECORDS]
    chosen = rng.permutation(clients)[: settings.positives]
    positives = np.isin(np.arange(clients), chosen)
    target = None
    if settings.property == "membership":
        shared = parts[np.flatnonzero(positives)[0], 0]
        parts[positives, 0] = shared
        target = jnp.asarray(normalised(data.x[shared])), jnp.asarray(data.y[shared])

    def held(rows: np.ndarray) -> tuple[Array, Array]:
        return jnp.asarray(normalised(data.x[rows])), jnp.asarray(data.y[rows])

    share, behavior = positives.mean(), BEHAVIORS[settings.property]
    prop = jax.tree.map(jnp.asarray, Property(behavior, target, share))
    if settings.property == "inversion":
        behavior = dataclasses.replace(behavior, update=settings.factor)
    key, (x, y) = jax.random.key(seed), held(parts)
    among = behavior.among(positives)
    return Drawn(x, y, jnp.asarray(positives), among, prop, *held(known), *held(test), key)


@dataclasses.dataclass(frozen=True)
class Train:
    """Trains a federation behind secure aggregation. Cells that differ in data or behaviour alone
    share a program: it takes no more of what was drawn than it needs."""

    model: Model
    training: LocalTraining
    rounds: int
    clients_per_round: int

    def __call__(
        self, inputs: tuple[Array, Array, Behavior, Array, Array, Array]
    ) -> tuple[Aggregates, Array]:
        """All that the server sees, and the accuracy of the final model on held-out records; from
        `x`, `y`, `behavior`, `x_test`, `y_test` and `key` of what was drawn."""
        x, y, behavior, x_test, y_test, key = inputs
        federated = Federated(
            self.rounds,
            self.training,
            plugins=(PerClient(behavior),),
            clients_per_round=self.clients_per_round,
            keep=Keep(clients=(), sums=True),
        )
        init_key, train_key, _ = jax.random.split(key, 3)
        clients = ClientData(x, y, jnp.ones(y.shape, bool), jnp.arange(len(y)))
        run = simulate(self.model, self.model.init(init_key), clients, train_key, federated)
        return run.aggregates(), evaluate(
            self.model, run.params, one_client(x_test, y_test)
        ).accuracy


def detector_key(key: Array) -> Array:
    """What is random in the training of detectors."""
    return jax.random.split(key, 3)[2]
