"""What a cell and a seed stand for: the victim, its surroundings, and what the adversary may know of them.

Shared by `attribute_experiment` (which lists a cell's settings) and `membership_experiment`.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import UnknownColumn
from benchmarks.jobs import Cell
from jaxfl import LocalTraining, Model, Upload, mlp
from jaxfl.datasets import Dataset, load

Array = jax.Array

PUBLIC_FRACTION, TRAIN_FRACTION, MOST_PUBLIC = 0.1, 0.8, 1000
TEST_RECORDS = 500


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Member:
    """One victim, one attribute, one seed. Leaves get a leading axis `[members]` in a group.

    Attributes:
      x: the victim's records `[records, features]`.
      y: its labels `[records]`.
      truth: index of each unknown attribute's true value `[records, columns]`; for scoring only.
      columns: the attributes; their priors are always there, the experiment hides them if unknown.
      label_prior: distribution of the labels `[classes]`; likewise.
      learning_rate: of the victim's SGD.
      step: learning rate times local steps, the step size of the one gradient that most methods take an update for.
      upload: what clients do to their updates, or None.
      key: everything random in this member.
    """

    x: Array
    y: Array
    truth: Array
    columns: tuple[UnknownColumn, ...]
    label_prior: Array
    learning_rate: Array
    step: Array
    upload: Upload | None
    key: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What else the training and its evaluation need.

    Attributes:
      x_test: held-out records `[test, features]`.
      y_test: their labels `[test]`.
      x_others: records of the other participants `[participants - 1, records, features]`.
      y_others: their labels `[participants - 1, records]`.
    """

    x_test: Array
    y_test: Array
    x_others: Array
    y_others: Array


def protected(cell: Cell) -> bool:
    """Whether clients do anything to their updates before they send them."""
    return cell["noise_multiplier"] > 0 or cell["bits"] > 0


def classifier(cell: Cell, data_dir: str | None) -> tuple[Dataset, Model]:
    """A cell's data, and the model for it; errors as `labelled_data`."""
    data = labelled_data(cell, data_dir)
    return data, mlp(
        data.x.shape[1], tuple(map(int, str(cell["hidden"]).split(","))), data.classes or 0
    )


def labelled_data(cell: Cell, data_dir: str | None) -> Dataset:
    """A cell's data.

    Raises:
      ValueError: if it has no classes.
    """
    data = dataset(cell.dataset, data_dir, cell["encoding"])
    if data.classes is None:
        raise ValueError(f"dataset={cell.dataset!r} is a regression; this experiment needs classes")
    return data


@functools.lru_cache(maxsize=6)
def dataset(name: str, data_dir: str | None, encoding: str) -> Dataset:
    """A source, loaded once."""
    return load(name, data_dir, encoding="scalar" if encoding == "scalar" else "onehot")


class Split(NamedTuple):
    """Row numbers of a seed's records.

    Attributes:
      victim: the victim's.
      others: the other participants' `[participants - 1, records]`.
      training: all that clients could hold; the known prior is theirs.
      test: held out.
    """

    victim: np.ndarray
    others: np.ndarray
    training: np.ndarray
    test: np.ndarray


def split(data: Dataset, cell: Cell, seed: int) -> Split:
    """Public records (10 %, at least 1,000 if there are enough), then training and test 8:2 (section 4.1).

    Raises:
      ValueError: if there are too few records for the participants.
    """
    order = np.random.default_rng(seed).permutation(len(data))
    public = _public_count(data)
    train = public + round(TRAIN_FRACTION * (len(data) - public))
    records, participants = cell["records"], cell["participants"]
    if records * participants > train - public:
        raise ValueError(
            f"records={records} x participants={participants} exceeds {train - public} training records of {data.name}"
        )
    held = order[public : public + records * participants].reshape(participants, records)
    return Split(held[0], held[1:], order[public:train], order[train:])


def public_rows(data: Dataset, seed: int) -> np.ndarray:
    """Records that a seed lets the adversary know, attribute included."""
    return np.random.default_rng(seed).permutation(len(data))[
        : min(_public_count(data), MOST_PUBLIC)
    ]


def _public_count(data: Dataset) -> int:
    return min(max(round(PUBLIC_FRACTION * len(data)), MOST_PUBLIC), len(data) // 3)


def draw(data: Dataset, cell: Cell, seed: int) -> tuple[Member, Surroundings]:
    """A cell's member for a seed."""
    rows = split(data, cell, seed)
    if not 1 <= cell["columns"] <= len(data.columns):
        raise ValueError(
            f"columns={cell['columns']} must lie between 1 and the {len(data.columns)} attributes of {data.name}"
        )
    others = np.setdiff1d(np.arange(len(data.columns)), cell["attribute"])
    attributes = [
        cell["attribute"],
        *np.random.default_rng(seed).permutation(others)[: cell["columns"] - 1].tolist(),
    ]
    values = [data.values_of(attribute) for attribute in attributes]
    rate = jnp.asarray(cell["learning_rate"], jnp.float32)
    training = LocalTraining(
        epochs=cell["epochs"],
        batch_size=None if cell["batch_size"] == "full" else cell["batch_size"],
    )
    upload = Upload(
        jnp.asarray(jnp.inf),
        jnp.asarray(cell["noise_multiplier"], jnp.float32),
        jnp.asarray(cell["bits"]),
    )
    member = Member(
        x=jnp.asarray(data.x[rows.victim]),
        y=jnp.asarray(data.y[rows.victim]),
        truth=jnp.asarray(np.stack([v[rows.victim] for v in values], 1)),
        columns=tuple(unknown_column(data, attribute, rows.training) for attribute in attributes),
        label_prior=jnp.asarray(
            np.bincount(data.y[rows.training], minlength=data.classes or 0) / len(rows.training),
            jnp.float32,
        ),
        learning_rate=rate,
        step=rate * training.steps(cell["records"]),
        upload=upload if protected(cell) else None,
        key=jax.random.key(seed),
    )
    test = rows.test[:TEST_RECORDS]
    return member, Surroundings(
        *map(jnp.asarray, (data.x[test], data.y[test], data.x[rows.others], data.y[rows.others]))
    )


def unknown_column(data: Dataset, attribute: int, records: np.ndarray) -> UnknownColumn:
    """An attribute of the data, with its distribution over some records as prior."""
    column, prior = data.column(attribute), data.prior(attribute, records)
    return UnknownColumn(
        jnp.asarray(column.positions), jnp.asarray(column.values), jnp.asarray(prior, jnp.float32)
    )
