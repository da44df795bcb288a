"""A federation behind secure aggregation, and a game in each of its rounds: on which of two data
sets did one of the participants train? (Ngo et al. 2024)"""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.streams import Stream, stream
from jaxfl import (
    Aggregates,
    ClientData,
    Federated,
    Keep,
    LocalTraining,
    Model,
    mlp,
    simulate,
    stack_clients,
)

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class SumGamesSettings:
    """Who takes part, and what the two data sets of a game are.

    Attributes:
      asked: "client" (one data set is the participant's, the other shares no record with it) or
        "record" (the other has another record in place of one).
      clients, clients_per_round: number of clients, and of participants in a round.
      records: of every client.
      rounds: communication rounds, one game in each.
      references: clients that the server makes of records of its own.
      hidden: widths of the hidden layers.
      training: of every client.
    """

    asked: Literal["client", "record"] = "client"
    clients: int = 200
    clients_per_round: int = 11
    records: int = 20
    rounds: int = 100
    references: int = 200
    hidden: tuple[int, ...] = (64,)
    training: LocalTraining = LocalTraining(0.1)


class View(NamedTuple):
    """What the server has.

    Attributes:
      model: the shared model.
      aggregates: sums of all rounds.
      candidates: the two data sets of each round, in random order `[rounds, 2, records, ...]`.
      others: clients of the server's own `[references, records, ...]`.
      training: the clients' recipe.
      key: what is random in attacks.
    """

    model: Model
    aggregates: Aggregates
    candidates: ClientData
    others: ClientData
    training: LocalTraining
    key: Array


class Games(NamedTuple):
    """One game a round.

    Attributes:
      view: the server's.
      second: whether the participant trained on the second data set `[rounds]`.
      note: what a reader must know of the data.
    """

    view: View
    second: np.ndarray
    note: str


def draw(name: str, settings: SumGamesSettings, data_dir: str | None, seed: int) -> Games:
    """The federation of a seed, and its games.

    Raises:
      ValueError: if the table has too few records.
    """
    data = classified(name, data_dir)
    x = data.x.reshape(len(data), -1)
    parts = _parts(len(data), settings, seed)
    model = mlp(x.shape[1], settings.hidden, data.classes or 0)
    init_key, key = jax.random.split(jax.random.key(seed))
    federated = Federated(
        settings.rounds,
        settings.training,
        clients_per_round=settings.clients_per_round,
        keep=Keep(clients=(), sums=True),
    )
    held, own, fresh = (_stacked(x, data.y, rows) for rows in parts)
    run = simulate(model, model.init(init_key), held, stream(key, Stream.TRAINING), federated)
    aggregates = run.aggregates()
    coin = np.random.default_rng(np.asarray(jax.random.key_data(stream(key, Stream.COINS))))
    asked = np.stack([coin.choice(np.flatnonzero(who)) for who in aggregates.participation])
    nameless = jnp.zeros(settings.rounds, int)  # an id would tell who takes part
    true, other = (dataclasses.replace(d, id=nameless) for d in (held.take(asked), fresh))
    if settings.asked == "record":
        other = jax.tree.map(lambda a, b: a.at[:, 0].set(b[:, 0]) if a.ndim > 1 else a, true, fresh)
    second = coin.random(settings.rounds) < 0.5
    order = np.where(second[:, None], [[1, 0]], [[0, 1]])
    pairs = jax.tree.map(lambda a, b: jnp.stack([a, b], 1), true, other)
    candidates = jax.tree.map(lambda a: a[np.arange(settings.rounds)[:, None], order], pairs)
    view = View(
        *(model, aggregates, candidates, own, settings.training, stream(key, Stream.ATTACK))
    )
    return Games(view, second, data.note)


def _parts(
    available: int, settings: SumGamesSettings, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the clients, of the server's own clients and of data sets that nobody trains on,
    `[..., records]` each."""
    counts = settings.clients, settings.references, settings.rounds
    rows = np.random.default_rng(seed).permutation(available)
    records = settings.records
    needed = (sum(counts[:2]) + (counts[2] if settings.asked == "client" else 0)) * records
    if settings.asked == "record":
        needed += counts[2]
    if needed > available:
        raise ValueError(
            f"clients={counts[0]} and references={counts[1]} of records={records}, with another "
            f"{settings.asked} in rounds={counts[2]}, need {needed} records; there are {available}"
        )
    held, own, rest = np.split(rows, np.cumsum(counts[:2]) * records)
    each = records if settings.asked == "client" else 1
    fresh = rest[: counts[2] * each].reshape(counts[2], each)
    return held.reshape(counts[0], records), own.reshape(counts[1], records), fresh


def _stacked(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> ClientData:
    return stack_clients([(x[part], y[part]) for part in rows])
