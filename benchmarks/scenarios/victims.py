"""One client is attacked: it trains alone or in a federation, and the adversary knows its records
but for some columns (Lyu 2021, section 4.1)."""

import dataclasses
import functools
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from attacks import Knowledge, UnknownColumn
from benchmarks.harness.engines import run_members
from benchmarks.harness.trees import stack, take
from benchmarks.scenarios.phases import kept_rounds
from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.splits import split
from benchmarks.scenarios.streams import Stream, stream
from jaxfl import (
    DPSGD,
    ClientData,
    Federated,
    Keep,
    LocalTraining,
    Messages,
    Model,
    Transcript,
    Upload,
    evaluate,
    mlp,
    one_client,
    simulate,
)
from jaxfl.accounting import noise_multiplier
from jaxfl.datasets import Dataset

Array = jax.Array

TEST_RECORDS = 500
"""Records of others, at most, on which the shared model's accuracy is measured."""
DELTA, CLIP = 1e-5, 1.0
"""Delta of private training, below one over the number of records, and the bound of a record's
gradient."""


@dataclasses.dataclass(frozen=True)
class VictimSettings:
    """Who is attacked, and what the adversary knows.

    Attributes:
      attribute: 0-based number of the unknown attribute.
      records: |D_v|, records of the victim.
      columns: unknown attributes; the first is `attribute`, the seed draws the others.
      known: of how many records the adversary knows the other attributes; of all with None.
      participants: clients in the federation; 1 is an isolated victim. Each has as many records as
        the victim.
      encoding: of categories.
      hidden: widths of the hidden layers.
      rounds: communication rounds.
      training: of every client.
      upload: what clients do to their updates.
      epsilon: of each client's whole training, at delta = 1e-5, by DP-SGD with gradients clipped to
        1; infinity: its training is not private.
      phases: sets of rounds that the attack may use, by name.
      simulated_phases: the same for methods that simulate the training; empty for `phases`.
      prior: whether the adversary knows the attribute's distribution (and the labels', where these
        are unknown).
      labels: whether it knows the labels.
    """

    attribute: int
    records: int
    columns: int = 1
    known: int | None = None
    participants: int = 1
    encoding: Literal["onehot", "scalar"] = "onehot"
    hidden: tuple[int, ...] = (128,)
    rounds: int = 100
    training: LocalTraining = LocalTraining(0.1)
    upload: Upload = Upload()
    epsilon: float = math.inf
    phases: tuple[str, ...] = ("pre1", "pre2", "pre5", "gap10", "last5")
    simulated_phases: tuple[str, ...] = ()
    prior: Literal["known", "unknown"] = "known"
    labels: Literal["known", "unknown"] = "known"

    @property
    def several_steps(self) -> bool:
        """Whether a client takes more than one step a round."""
        return self.training.steps(self.records) > 1

    @property
    def private(self) -> bool:
        """Whether clients train with differential privacy."""
        return math.isfinite(self.epsilon)

    @property
    def recipe(self) -> LocalTraining:
        """What a client does in a round, its privacy included."""
        return private_training(self.training, self.epsilon, self.records, self.rounds)

    @property
    def protected(self) -> bool:
        """Whether clients do anything to their updates before they send them."""
        return self.upload != Upload()


def check_drawn(training: LocalTraining, records: int) -> None:
    """Raise `ValueError` on batches that are not drawn: what epsilon they promise is accounted for
    as if they were."""
    if training.repeats_batches(records):
        raise ValueError(
            "training.shuffle=False: private training is accounted for with batches that are drawn"
        )


def private_training(
    training: LocalTraining, epsilon: float, records: int, rounds: int
) -> LocalTraining:
    """A recipe with DP-SGD at delta = 1e-5, gradients clipped to 1, for a client of so many records
    that takes part in so many rounds; unchanged for an infinite epsilon."""
    if not math.isfinite(epsilon):
        return training
    check_drawn(training, records)
    steps = training.steps(records) * rounds
    privacy = DPSGD(CLIP, _noise(epsilon, records, training.batch_size, steps))
    return dataclasses.replace(training, plugins=(*training.plugins, privacy))


@functools.lru_cache(maxsize=256)
def _noise(epsilon: float, records: int, batch: int | None, steps: int) -> float:
    accounted: dict[str, Any] = {"records": records, "batch_size": batch, "steps": steps}
    return noise_multiplier(epsilon, delta=DELTA, **accounted)


@struct.dataclass
class Victim:
    """One victim with one seed. Leaves get a leading axis `[members]` in a group.

    Attributes:
      x: its records `[records, features]`.
      y: their labels `[records]`.
      truth: index of each unknown attribute's true value `[known, columns]`, of the records that
        the adversary knows, which are the first; for scoring only.
      columns: the attributes, with their priors.
      label_prior: distribution of the labels `[classes]`.
      training: its recipe.
      upload: what clients do to their updates, or None.
      key: everything random.
    """

    x: Array
    y: Array
    truth: Array
    columns: tuple[UnknownColumn, ...]
    label_prior: Array
    training: LocalTraining
    upload: Upload | None
    key: Array

    def knowledge(self, prior: bool = True, labels: bool = True) -> Knowledge:
        """What the adversary knows: all but the columns, and priors and labels if it is granted
        them."""
        columns = self.columns
        if not prior:
            columns = tuple(dataclasses.replace(column, prior=None) for column in columns)
        x = self.x[: len(self.truth)]
        if labels:
            return Knowledge(x, self.known_labels, columns)
        return Knowledge(x, None, columns, self.label_prior if prior else None)

    @property
    def known_labels(self) -> Array:
        """Labels of the records that the adversary knows `[known]`."""
        return self.y[: len(self.truth)]

    @property
    def others(self) -> int:
        """How many of its records the adversary does not know."""
        return len(self.y) - len(self.truth)


@struct.dataclass
class Surroundings:
    """What else the training and its evaluation need.

    Attributes:
      x_test: held-out records `[test, features]`.
      y_test: their labels `[test]`.
      x_others: records of the other participants `[participants - 1, records, features]`.
      y_others: their labels `[participants - 1, records]`.
      x_null: records of another client than the victim `[records, features]`, none of them the
        victim's.
      y_null: their labels `[records]`.
    """

    x_test: Array
    y_test: Array
    x_others: Array
    y_others: Array
    x_null: Array
    y_null: Array


@dataclasses.dataclass(frozen=True)
class Train:
    """Trains a victim, in its federation or alone, which is what isolation makes of it (Lyu 2021,
    3.1).

    Attributes:
      model: the model.
      rounds: communication rounds.
      kept: the rounds whose messages are kept, the last one among them.
      null: whether another client's messages are wanted too.
    """

    model: Model
    rounds: int
    kept: tuple[int, ...]
    null: bool

    def __call__(
        self, inputs: tuple[Victim, Surroundings]
    ) -> tuple[Messages, Messages | None, Array, Array]:
        """The victim's messages, those of another client if they are wanted, and the accuracy of
        the victim's last model on its own and on held-out records."""
        victim, around = inputs
        x = jnp.concatenate([victim.x[None], around.x_others])
        y = jnp.concatenate([victim.y[None], around.y_others])
        together = self.null and len(y) > 1
        run = self._train(victim, x, y, (0, 1) if together else (0,))
        messages, null = run.messages(0), run.messages(1) if together else None
        if self.null and not together:
            another = self._train(victim, around.x_null[None], around.y_null[None], (0,))
            null = another.messages(0)
        last = jax.tree.map(lambda a: a[-1], messages.returned)
        fit = evaluate(self.model, last, one_client(victim.x, victim.y))
        test = evaluate(self.model, last, one_client(around.x_test, around.y_test))
        return messages, null, fit.accuracy, test.accuracy

    def _train(self, victim: Victim, x: Array, y: Array, kept: tuple[int, ...]) -> Transcript:
        """A run of clients with records `x [clients, records, features]`, all else the
        victim's."""
        init_key, train_key = jax.random.split(stream(victim.key, Stream.TRAINING))
        clients = ClientData(x, y, jnp.ones(y.shape, bool), jnp.arange(len(y)))
        plugins = () if victim.upload is None else (victim.upload,)
        keep = Keep(clients=kept, rounds=self.kept)
        federated = Federated(self.rounds, victim.training, plugins, keep=keep)
        return simulate(self.model, self.model.init(init_key), clients, train_key, federated)


class Run(NamedTuple):
    """Trained victims. Leaves have a leading axis `[members]`.

    Attributes:
      model: their model.
      victims: who they are.
      messages: theirs, of the rounds `kept`.
      null: of another client each, none of whose records is the victim's: an attack on these knows
        nothing of the victim but what it knew before. None if they were not wanted.
      kept: the rounds whose messages were kept.
      train_accuracy: of the last model on the victim's records.
      test_accuracy: of the same model on held-out records.
    """

    model: Model
    victims: Victim
    messages: Messages
    null: Messages | None
    kept: tuple[int, ...]
    train_accuracy: np.ndarray
    test_accuracy: np.ndarray

    def seen(
        self, rows: np.ndarray, rounds: tuple[int, ...]
    ) -> tuple[Victim, Messages, Messages | None]:
        """Some victims, their messages of some rounds, and another client's of the same."""
        places = np.asarray([self.kept.index(t) for t in rounds], int)
        both = take(take((self.messages, self.null), rows), (slice(None), places))
        return take(self.victims, rows), *both


def train(
    data: Dataset,
    drawn: list[tuple[VictimSettings, int]],
    phases: tuple[str, ...],
    *,
    null: bool = False,
) -> Run:
    """Draw and train victims as one compiled program.

    Args:
      data: whose records they have.
      drawn: settings and seed of every victim, alike but for what is traced.
      phases: sets of rounds whose messages are kept, by name.
      null: whether another client's messages are wanted too.
    """
    settings = drawn[0][0]
    model = mlp(data.x.shape[1], settings.hidden, data.classes or 0)
    kept = kept_rounds(phases, settings.rounds)
    members = [draw(data, settings, seed) for settings, seed in drawn]
    victims, around = stack(members)
    trained = run_members(Train(model, settings.rounds, kept, null), (victims, around)).results
    messages, another, own, test = trained
    return Run(model, victims, messages, another, kept, np.asarray(own), np.asarray(test))


def records_of(settings: VictimSettings, name: str, data_dir: str | None) -> Dataset:
    """The data set of a victim's records; it has classes."""
    return classified(name, data_dir, encoding=settings.encoding)


def draw(data: Dataset, settings: VictimSettings, seed: int) -> tuple[Victim, Surroundings]:
    """A victim for a seed.

    Raises:
      ValueError: if the source has too few records or attributes.
    """
    rows = split(data, settings.records, settings.participants, seed)
    if not 1 <= settings.columns <= len(data.columns):
        raise ValueError(
            f"columns={settings.columns} must lie between 1 and "
            f"the {len(data.columns)} attributes of {data.name}"
        )
    known = settings.records if settings.known is None else settings.known
    if not 1 <= known <= settings.records:
        raise ValueError(
            f"known={settings.known} must lie between 1 and records={settings.records}"
        )
    attributes = attributes_of(data, settings, seed)
    values = [data.values_of(attribute)[rows.victim[:known]] for attribute in attributes]
    labels = np.bincount(data.y[rows.training], minlength=data.classes or 0)
    victim = Victim(
        x=jnp.asarray(data.x[rows.victim]),
        y=jnp.asarray(data.y[rows.victim]),
        truth=jnp.asarray(np.stack(values, 1)),
        columns=tuple(unknown_column(data, attribute, rows.training) for attribute in attributes),
        label_prior=jnp.asarray(labels / len(rows.training), jnp.float32),
        training=_traced(settings.recipe),
        upload=_traced(settings.upload) if settings.protected else None,
        key=jax.random.key(seed),
    )
    test = rows.test[:TEST_RECORDS]
    held = [a[r] for r in (test, rows.others, rows.null) for a in (data.x, data.y)]
    return victim, Surroundings(*map(jnp.asarray, held))


def attributes_of(data: Dataset, settings: VictimSettings, seed: int) -> list[int]:
    """Numbers of the unknown attributes."""
    others = np.setdiff1d(np.arange(len(data.columns)), settings.attribute)
    more = np.random.default_rng(seed).permutation(others)[: settings.columns - 1].tolist()
    return [settings.attribute, *more]


def _traced(record: Any) -> Any:
    """A record whose numbers are arrays, so that programs are shared by all their values."""
    return jax.tree.map(
        lambda a: jnp.asarray(a, jnp.float32 if isinstance(a, float) else jnp.int32), record
    )


def unknown_column(data: Dataset, attribute: int, records: np.ndarray) -> UnknownColumn:
    """An attribute of the data, with its distribution over some records as prior."""
    column, prior = data.column(attribute), data.prior(attribute, records)
    return UnknownColumn(
        jnp.asarray(column.positions), jnp.asarray(column.values), jnp.asarray(prior, jnp.float32)
    )
