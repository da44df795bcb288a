"""Who holds which records of a table: the victim, other clients, the adversary, and tests."""

from typing import NamedTuple

import numpy as np

from jaxfl.datasets import Dataset

PUBLIC_FRACTION, TRAIN_FRACTION, MOST_PUBLIC = 0.1, 0.8, 1000
"""Shares of a table that are held back for the adversary, and of the rest that clients train on;
and how many records are held back at least, and the adversary has at most."""
SURE = 3
"""Standard deviations of a client's share of the training records that are taken off."""


class Split(NamedTuple):
    """Row numbers of a seed's records.

    Attributes:
      victim: the victim's.
      others: the other participants' `[participants - 1, records]`.
      training: all that clients could hold; the known prior is theirs.
      test: held out.
      null: another client's than the victim; some of them twice, if there are too few.
    """

    victim: np.ndarray
    others: np.ndarray
    training: np.ndarray
    test: np.ndarray
    null: np.ndarray


def split(data: Dataset, records: int, participants: int, seed: int) -> Split:
    """Public records (10 %, at least 1,000 if there are enough), then training and test 8:2 (Lyu
    2021, section 4.1).

    Where the table says whose a record is (`data.group`), a client has its own alone, and seeds
    take one client after the other for the victim; else clients are cut at random.

    Raises:
      ValueError: if there are too few records for the participants.
    """
    order = np.random.default_rng(seed).permutation(len(data))
    public = _public_count(data)
    train = public + training_rows(data)
    held, test = order[public:train], order[train:]
    if data.group is not None:
        clients = _grouped(data, held, records, participants, seed)
        return Split(clients[0], clients[1:participants], held, test, clients[1])
    if records * participants > len(held):
        raise ValueError(
            f"records={records} x participants={participants} exceeds "
            f"{len(held)} training records of {data.name}"
        )
    clients = held[: records * participants].reshape(participants, records)
    null = clients[1] if participants > 1 else np.resize(order[public + records :], records)
    return Split(clients[0], clients[1:], held, test, null)


def _grouped(
    data: Dataset, rows: np.ndarray, records: int, participants: int, seed: int
) -> np.ndarray:
    """Rows of clients `[participants, records]`, the victim first; of two at least."""
    assert data.group is not None
    by_group = [rows[data.group[rows] == group] for group in np.unique(data.group)]
    able = [mine[:records] for mine in by_group if len(mine) >= records]
    count = max(participants, 2)
    if len(able) < count:
        raise ValueError(
            f"records={records} x participants={count}: {len(able)} of {len(by_group)} clients of "
            f"{data.name} have so many training records"
        )
    return np.stack([able[(seed + place) % len(able)] for place in range(count)])


def training_rows(data: Dataset) -> int:
    """How many records clients can hold together."""
    return round(TRAIN_FRACTION * (len(data) - _public_count(data)))


def held_out_rows(data: Dataset) -> int:
    """How many records are left for tests."""
    return len(data) - _public_count(data) - training_rows(data)


def sure_records(data: Dataset) -> np.ndarray:
    """How many training records each client of `data.group` has, whatever the seed, but for one in
    some hundred."""
    assert data.group is not None
    counts, share = np.bincount(data.group), training_rows(data) / len(data)
    least = counts * share - SURE * np.sqrt(counts * share * (1 - share))
    return np.maximum(least, 0).astype(int)


def public_rows(data: Dataset, seed: int) -> np.ndarray:
    """Records that a seed lets the adversary know, attribute included."""
    order = np.random.default_rng(seed).permutation(len(data))
    return order[: min(_public_count(data), MOST_PUBLIC)]


def _public_count(data: Dataset) -> int:
    return min(max(round(PUBLIC_FRACTION * len(data)), MOST_PUBLIC), len(data) // 3)
