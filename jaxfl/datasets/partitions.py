"""Who holds which records: each partition returns one array of record indices per client, sorted as
drawn.

All take a NumPy generator where they draw; host code.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Num

from jaxfl.datasets.dataset import Dataset
from jaxfl.domains import Count, Positive, checked


@checked
def iid(rng: np.random.Generator, records: Count, clients: Count) -> list[np.ndarray]:
    """Shuffle `records` and cut them into `clients` nearly equal parts."""
    if clients > records:
        raise ValueError(f"clients={clients} exceeds the {records} records; every client needs one")
    return list(np.array_split(rng.permutation(records), clients))


@checked
def by_sizes(rng: np.random.Generator, records: Count, sizes: Sequence[Count]) -> list[np.ndarray]:
    """Shuffle `records` and deal out parts of the given sizes; what is left over is nobody's."""
    if sum(sizes) > records:
        raise ValueError(f"sizes={list(sizes)} sum to {sum(sizes)}; there are {records} records")
    return np.split(rng.permutation(records), np.cumsum(sizes))[:-1]


@checked
def by_column(dataset: Dataset, column: str | int) -> list[np.ndarray]:
    """One client per category of a categorical attribute (empty categories left out)."""
    values = dataset.values_of(column)
    return [np.flatnonzero(values == v) for v in np.unique(values)]


@checked
def by_group(dataset: Dataset) -> list[np.ndarray]:
    """The clients that the source itself names, such as the clusters' clients of LEAF's synthetic
    set."""
    if dataset.group is None:
        raise ValueError(
            f"dataset={dataset.name!r} assigns no clients to its records; use another partition"
        )
    return [np.flatnonzero(dataset.group == g) for g in np.unique(dataset.group)]


@checked
def by_group_and_rest(
    rng: np.random.Generator, dataset: Dataset, clients: Count
) -> list[np.ndarray]:
    """The clients that the source names, but for its last group, which the remaining clients share
    evenly (Driouich 2023)."""
    named = by_group(dataset)
    rest, count = named.pop(), clients - len(named)
    if count < 1 or count > len(rest):
        raise ValueError(
            f"clients={clients} leaves {count} clients for the last group's {len(rest)} records"
        )
    return [*named, *np.array_split(rng.permutation(rest), count)]


@checked
def overlapping_classes(
    rng: np.random.Generator,
    y: Num[np.ndarray, "records"],
    clients: Count,
    whole: int = 4,
    few: Sequence[Count] = (3, 5),
) -> list[np.ndarray]:
    """Every client holds all records of `whole` random classes and a few of every other class,
    drawn anew for each client, so that records are held by several (Driouich 2023, AT&T: the sizes
    of Table 4, 148 and 220 of 400 pictures, are those of 3 and 5; the text says 3 or 4).

    Args:
      rng: draws classes and records.
      y: labels `[records]`.
      clients: number of clients.
      whole: classes that a client holds in full.
      few: how many records of any other class a client holds; one number is drawn per client.

    Raises:
      ValueError: if labels are no whole numbers, there are fewer classes than `whole`, or `few`
        holds no number, or none of at least 1.
    """
    classes = _classes_of(y)
    if not len(few):
        raise ValueError("few=() leaves open how many records of other classes a client holds")
    if not 0 <= whole <= len(classes):
        raise ValueError(f"whole={whole} must lie between 0 and the {len(classes)} classes")
    parts = []
    for _ in range(clients):
        complete, number = rng.permutation(classes)[:whole], rng.choice(few)
        chosen = [
            rng.permutation(np.flatnonzero(y == k))[: None if k in complete else number]
            for k in classes
        ]
        parts.append(np.concatenate(chosen))
    return parts


@checked
def by_classes(
    rng: np.random.Generator,
    y: Num[np.ndarray, "records"],
    clients: Count,
    classes_per_client: Count,
) -> list[np.ndarray]:
    """Each client holds `classes_per_client` classes; a class is shared evenly by the clients that
    hold it.

    Classes are dealt round after round in random order, so every class is held as evenly often as
    can be.

    Raises:
      ValueError: if labels are no whole numbers, there are too few classes, or a client gets no
        record.
    """
    classes = _classes_of(y)
    if classes_per_client > len(classes):
        raise ValueError(
            f"classes_per_client={classes_per_client} exceeds the {len(classes)} classes"
        )
    held = _deal(rng, classes, clients, classes_per_client)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for k in classes:
        holders = [c for c in range(clients) if k in held[c]]
        if holders:
            for c, part in zip(
                holders,
                np.array_split(rng.permutation(np.flatnonzero(y == k)), len(holders)),
                strict=True,
            ):
                parts[c].append(part)
    return _nonempty([np.concatenate(p) for p in parts], "classes_per_client", classes_per_client)


def _deal(rng: np.random.Generator, classes: np.ndarray, clients: int, each: int) -> list[set[int]]:
    held: list[set[int]] = [set() for _ in range(clients)]
    deck: list[int] = []
    for c in range(clients):
        while len(held[c]) < each:
            fresh = [k for k in deck if k not in held[c]]
            if not fresh:
                deck += rng.permutation(classes).tolist()
                continue
            deck.remove(fresh[0])
            held[c].add(fresh[0])
    return held


@checked
def dirichlet(
    rng: np.random.Generator, y: Num[np.ndarray, "records"], clients: Count, alpha: Positive
) -> list[np.ndarray]:
    """Label skew: each class is divided among clients by proportions from Dirichlet(alpha) (Hsu et
    al. 2019).

    Small alpha gives few classes per client. Parts of a class are rounded at random, so that each
    client's mean is its proportion. A client left without records takes one from the largest.

    Raises:
      ValueError: if labels are no whole numbers, or there are more clients than records.
    """
    if clients > len(y):
        raise ValueError(f"clients={clients} exceeds the {len(y)} records; every client needs one")
    parts: list[list[int]] = [[] for _ in range(clients)]
    for k in _classes_of(y):
        rows = rng.permutation(np.flatnonzero(y == k))
        ends = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
        cuts = np.floor(ends + rng.random()).astype(int)
        for c, part in enumerate(np.split(rows, cuts)):
            parts[c] += part.tolist()
    for holding in parts:
        if not holding:
            holding.append(max(parts, key=len).pop())
    return [np.asarray(part) for part in parts]


def _classes_of(y: np.ndarray) -> np.ndarray:
    """The classes that occur. Raises `ValueError` if labels are no whole numbers."""
    odd = np.flatnonzero(y != np.rint(y))
    if len(odd):
        raise ValueError(f"y[{odd[0]}]={y[odd[0]]:g} is no class; labels are whole numbers")
    return np.unique(y)


def _nonempty(parts: list[np.ndarray], name: str, value: int) -> list[np.ndarray]:
    empty = [c for c, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise ValueError(
            f"{name}={value} leaves client {empty[0]} without records; use fewer clients"
        )
    return parts
