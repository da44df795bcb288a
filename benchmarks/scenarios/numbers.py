"""One client whose records are known but for a numeric attribute; it trains alone or in a
federation."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import Knowledge, UnknownColumn
from benchmarks.scenarios.sources import source
from benchmarks.scenarios.splits import public_rows, split
from benchmarks.scenarios.streams import Stream, stream
from benchmarks.scenarios.victims import private_training
from jaxfl import (
    Federated,
    Keep,
    LocalTraining,
    Messages,
    Model,
    Transcript,
    mlp,
    simulate,
    stack_clients,
)

Array = jax.Array
Task = Literal["classification", "regression"]


@dataclasses.dataclass(frozen=True)
class NumberSettings:
    """Who trains, and what is unknown of its records.

    Attributes:
      attribute: 0-based number of the unknown attribute, which is numeric.
      records: of each client.
      participants: clients in the federation; 1 is a client alone.
      hidden: widths of the hidden layers.
      rounds: communication rounds, all of which are seen.
      training: of every client.
      epsilon: of each client's whole training, as in `VictimSettings`.
    """

    attribute: int
    records: int
    participants: int = 1
    hidden: tuple[int, ...] = (64,)
    rounds: int = 20
    training: LocalTraining = LocalTraining(0.1)
    epsilon: float = math.inf

    @property
    def recipe(self) -> LocalTraining:
        """What a client does in a round, its privacy included."""
        return private_training(self.training, self.epsilon, self.records, self.rounds)


class View(NamedTuple):
    """What the adversary has.

    Attributes:
      model: the shared model.
      messages: the client's, of all rounds.
      knowledge: its records; of the column the bounds alone, which are those of the whole source.
      public_x, public_y: records of others, the column included.
      key: what is random in an attack.
    """

    model: Model
    messages: Messages
    knowledge: Knowledge
    public_x: np.ndarray
    public_y: np.ndarray
    key: Array


class Numbered(NamedTuple):
    """A client and its numbers.

    Attributes:
      view: the adversary's.
      null: messages of another client, none of whose records is the client's.
      truth: the client's numbers `[records]`, in the feature's units.
      unit: of the source's numbers, how much one of the feature's is.
      deviation: of all records' numbers, in the feature's units.
      note: what a reader must know of the data.
    """

    view: View
    null: Messages
    truth: np.ndarray
    unit: float
    deviation: float
    note: str


def draw(name: str, settings: NumberSettings, data_dir: str | None, seed: int) -> Numbered:
    """The client of a seed, and what is seen.

    Raises:
      ValueError: if the attribute is not numeric, or the table has too few records.
    """
    data = source(name, data_dir)
    column = data.column(settings.attribute)
    if column.numbers is None:
        raise ValueError(
            f"attribute={settings.attribute} of {name} is categorical; it is no number"
        )
    (position,) = column.positions
    drawn = split(data, settings.records, settings.participants, seed)
    public = public_rows(data, seed)
    x, y = data.x[drawn.victim], data.y[drawn.victim]
    start_key, training_key = jax.random.split(jax.random.key(seed))
    kind: Task = "classification" if data.classes else "regression"
    model = mlp(data.x.shape[1], settings.hidden, data.classes or 1, task=kind)

    def run_of(clients: Sequence[np.ndarray]) -> Transcript:
        kept = Keep(clients=tuple(range(min(len(clients), 2))))
        federated = Federated(settings.rounds, settings.recipe, keep=kept)
        records = stack_clients([(data.x[rows], data.y[rows]) for rows in clients])
        return simulate(model, model.init(start_key), records, training_key, federated)

    run = run_of([drawn.victim, *drawn.others])
    alone = settings.participants == 1
    null = run_of([drawn.null]).messages(0) if alone else run.messages(1)
    truth, numbers = x[:, position].copy(), data.x[:, position]
    known = x.copy()
    known[:, position] = np.nan
    ends = jnp.asarray([[numbers.min()], [numbers.max()]])
    knowledge = Knowledge(
        jnp.asarray(known), jnp.asarray(y), (UnknownColumn(jnp.asarray([position]), ends),)
    )
    key = stream(training_key, Stream.ATTACK)
    seen = run.messages(0), knowledge, data.x[public], data.y[public], key
    units = column.numbers.deviation, float(numbers.std())
    return Numbered(View(model, *seen), null, truth, *units, data.note)
