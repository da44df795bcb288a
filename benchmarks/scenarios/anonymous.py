"""Two federations: the clients', whose updates arrive without names, and the server's own, whose
senders it knows (Song 2020, section VI)."""

import dataclasses
import functools
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import Virtual
from benchmarks.scenarios.pictures import shared_model
from benchmarks.scenarios.sources import classified, pictures
from benchmarks.scenarios.victims import private_training
from jaxfl import (
    Federated,
    Keep,
    LocalTraining,
    Model,
    evaluate,
    mlp,
    one_client,
    simulate,
    stack_clients,
)
from jaxfl.datasets import Dataset

Array = jax.Array
TEST_RECORDS = 1000


@dataclasses.dataclass(frozen=True)
class AnonymousSettings:
    """Who holds what, and which updates are seen.

    Attributes:
      split: "classes" (three random classes a client, in equal parts), "iid", "named" (as the
        source says whose a record is; the server's own federation shares what these clients leave),
        or "persons" (for faces: a few persons' images in full, and one of every other person).
      disjoint: whether the server's own federation knows other classes than the clients'.
      clients, records: of either federation; records of each client where the split does not fix
        their number.
      training: of every client.
      widths: of the shared model's convolutions.
      side: pixels down and across.
      hidden: widths of the hidden layers of a perceptron, for records of a table; None for images.
      epsilon: of each client's whole training, at delta = 1e-5, by DP-SGD with gradients clipped to
        1; infinity: its training is not private.
      first, window: updates of so many rounds from this (0-based) one on are linked.
      trunk_round: the siamese network on representatives begins with the shared model of this
        round, one of these.
      shadow_every: every n-th round of the window is learned from, in the server's own
        federation.
    """

    split: Literal["classes", "iid", "named", "persons"] = "classes"
    disjoint: bool = False
    clients: int = 10
    records: int = 100
    training: LocalTraining = LocalTraining(0.002)
    widths: tuple[int, ...] = (32, 64, 128, 256)
    side: tuple[int, int] = (28, 28)
    hidden: tuple[int, ...] | None = None
    epsilon: float = math.inf
    first: int = 120
    window: int = 51
    trunk_round: int = 150
    shadow_every: int = 2

    @property
    def recipe(self) -> LocalTraining:
        """What a client does in a round, its privacy included."""
        end = self.first + self.window
        return private_training(self.training, self.epsilon, self.records, end)


class Updates(NamedTuple):
    """What a federation sends.

    Attributes:
      received: the shared models of the observed rounds, leaves `[rounds, ...]`.
      pseudo_gradient: shuffled or not, leaves `[rounds, participants, ...]`.
    """

    received: Any
    pseudo_gradient: Any


class Side(NamedTuple):
    """One of the two federations: the clients', or the server's own.

    Attributes:
      params: the shared model at the end.
      updates: in the observed rounds.
      senders: who sent each `[rounds, participants]`.
      parts: row numbers of each client.
    """

    params: Any
    updates: Updates
    senders: Array
    parts: list[np.ndarray]

    def labels(self, data: Dataset) -> Array:
        """How many records of each class the sender of each update has
        `[rounds, participants, classes]`."""
        held = [np.bincount(data.y[part], minlength=data.classes or 0) for part in self.parts]
        return jnp.asarray(held)[self.senders]


class View(NamedTuple):
    """What the server has, and no more.

    Attributes:
      model: the shared model.
      shape: of a record.
      virtual: how it predicts updates: as if all clients had as many records as the smallest.
      clients: updates without names.
      shadow: updates of its own federation.
      senders: who sent each of the latter `[rounds, participants]`.
      x, y: records and labels of its own federation.
      key: what is random in attacks.
    """

    model: Model
    shape: tuple[int, ...]
    virtual: Virtual
    clients: Updates
    shadow: Updates
    senders: Array
    x: np.ndarray
    y: np.ndarray
    key: Array


@dataclasses.dataclass(frozen=True)
class Anonymous:
    """Both federations.

    Attributes:
      data: pixels in [-1, 1].
      clients, shadow: the two sides.
      view: the server's, of both.
      test_accuracy: of the shared model, on records of nobody; None if there are none.
    """

    data: Dataset
    clients: Side
    shadow: Side
    view: View
    test_accuracy: float | None


def draw(name: str, settings: AnonymousSettings, data_dir: str | None, seed: int) -> Anonymous:
    """Train both federations, from the model that the server sent out first (Song 2020, section
    VI-A).

    Raises:
      ValueError: if the source has too few records, or `trunk_round` is none of the window's.
    """
    if not 0 <= settings.trunk_round - settings.first < settings.window:
        raise ValueError(
            f"trunk_round={settings.trunk_round} must be one of window={settings.window} rounds "
            f"from {settings.first} on"
        )
    if settings.hidden is None:
        data = pictures(name, data_dir, settings.side)
        model = shared_model(data, settings.widths)
    else:
        data = classified(name, data_dir)
        model = mlp(data.x.shape[1], settings.hidden, data.classes or 0)
    mine, other = _divide(np.random.default_rng(seed), data, settings)
    # The fourth is unused; taking it out would move the others.
    init_key, client_key, shuffle_key, _, shadow_key, key = jax.random.split(
        jax.random.key(seed), 6
    )
    clients = _side(settings, data, mine, model, (init_key, client_key), anonymous=shuffle_key)
    shadow = _side(settings, data, other, model, (init_key, shadow_key), anonymous=None)
    test = np.setdiff1d(mine, np.concatenate(clients.parts))[:TEST_RECORDS]
    accuracy = None
    if len(test):
        held = one_client(data.x[test], data.y[test])
        accuracy = float(evaluate(model, clients.params, held).accuracy)
    virtual = Virtual(training=settings.training, records=min(map(len, clients.parts)))
    rows = np.concatenate(shadow.parts)
    view = View(
        model,
        data.x.shape[1:],
        virtual,
        clients.updates,
        shadow.updates,
        shadow.senders,
        data.x[rows],
        data.y[rows],
        key,
    )
    return Anonymous(data, clients, shadow, view, accuracy)


def _divide(
    rng: np.random.Generator, data: Dataset, settings: AnonymousSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the clients' federation and of the server's own."""
    order = rng.permutation(len(data))
    if settings.split == "named":
        whose = _whose(data, settings)
        return order[whose[order] >= 0], order[whose[order] < 0]
    if not settings.disjoint:
        mine, other = np.array_split(order, 2)
        return mine, other
    classes = rng.permutation(data.classes or 0)
    chosen = np.isin(data.y[order], classes[: len(classes) // 2])
    return order[chosen], order[~chosen]


def _whose(data: Dataset, settings: AnonymousSettings) -> np.ndarray:
    """The client that holds each record, of those that the source names and that have enough
    `[records]`; -1 of records that none of them holds.

    Raises:
      ValueError: if the source names none, or too few have so many records.
    """
    if data.group is None:
        raise ValueError(f"split='named': {data.name} does not say whose its records are")
    held = [np.flatnonzero(data.group == name) for name in np.unique(data.group)]
    able = [rows[: settings.records] for rows in held if len(rows) >= settings.records]
    if len(able) < settings.clients:
        raise ValueError(
            f"clients={settings.clients} of records={settings.records}: {len(able)} of {data.name} "
            "have so many"
        )
    whose = np.full(len(data), -1)
    for client, rows in enumerate(able[: settings.clients]):
        whose[rows] = client
    return whose


def _parts(
    rng: np.random.Generator, y: np.ndarray, rows: np.ndarray, settings: AnonymousSettings
) -> list[np.ndarray]:
    """Row numbers of every client, among `rows`."""
    labels, count = y[rows], settings.records
    classes = np.unique(labels)
    parts = []
    taken = np.zeros(len(rows), bool)
    for _ in range(settings.clients):
        if settings.split in {"iid", "named"}:
            chosen = rng.permutation(np.flatnonzero(~taken))[:count]
        elif settings.split == "classes":
            held = rng.permutation(classes)[:3]
            sizes = [count // 3 + (k < count % 3) for k in range(3)]
            pools = [rng.permutation(np.flatnonzero((labels == c) & ~taken)) for c in held]
            pairs = zip(pools, sizes, strict=True)
            chosen = np.concatenate([pool[:size] for pool, size in pairs])
        else:
            whole = rng.permutation(classes)[: max(len(classes) // 10, 1)]
            some = [
                rng.permutation(np.flatnonzero(labels == c))[: None if c in whole else 1]
                for c in classes
            ]
            chosen = np.concatenate(some)
        if settings.split != "persons":
            taken[chosen] = True
            if len(chosen) < count:
                raise ValueError(
                    f"records={count} for each of clients={settings.clients} exceed the source"
                )
        parts.append(rows[chosen])
    return parts


def _side(
    settings: AnonymousSettings,
    data: Dataset,
    rows: np.ndarray,
    model: Model,
    keys: tuple[Array, Array],
    anonymous: Array | None,
) -> Side:
    """A federation, from keys of its first model and its training: the clients', seen through the
    window and shuffled by the key `anonymous`; or the server's own."""
    init_key, train_key = keys
    # NumPy divides the records, seeded from a key that `simulate` only folds into keys of its own.
    seed = int(jax.random.randint(train_key, (), 0, 2**31 - 1))
    if settings.split == "named" and anonymous is not None:
        whose = _whose(data, settings)[rows]
        parts = [rows[whose == client] for client in range(settings.clients)]
    else:
        parts = _parts(np.random.default_rng(seed), data.y, rows, settings)
    end = settings.first + settings.window
    keep = Keep(rounds=tuple(range(settings.first, end)))
    federated = Federated(end, settings.recipe, keep=keep)
    clients = stack_clients([(data.x[part], data.y[part]) for part in parts])
    run = simulate(model, model.init(init_key), clients, train_key, federated)
    if anonymous is not None:
        sent, senders = run.anonymous(anonymous)
        return Side(run.params, Updates(run.received, sent.pseudo_gradient), senders, parts)
    every = settings.shadow_every
    received, sent = _every((run.received, run.pseudo_gradient), every)
    shape = jax.tree.leaves(sent)[0].shape[:2]
    senders = jnp.broadcast_to(run.clients, shape)
    return Side(run.params, Updates(received, sent), senders, parts)


@functools.partial(jax.jit, static_argnums=1)
def _every(models: Any, so_many: int) -> Any:
    return jax.tree.map(lambda a: a[::so_many], models)
