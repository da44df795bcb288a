"""Who holds which pictures where a generator is to learn one client's (Song 2020, sections VII-C to
VII-E)."""

import dataclasses
from typing import Literal, NamedTuple

import numpy as np
from scipy import ndimage

from jaxfl import LocalTraining
from jaxfl.datasets import Dataset

VICTIM, ANGLE = 0, 30.0
GLASSES = {
    **dict.fromkeys((2, 6, 14, 27, 28, 31, 34, 37), range(1, 11)),
    **{
        4: (1, 2, 3, 8, 9),
        7: (4, 5, 10),
        13: (1, 2, 5, 6, 7, 8, 9, 10),
        17: (1, 2, 5, 6, 7, 8, 9, 10),
    },
    **{19: (1, 2, 3, 6, 10), 20: (1, 2, 3, 5, 7, 8, 9, 10), 36: (9, 10)},
}
"""Pictures with glasses, by person, both counted from 1 as the files are."""
WEARERS = (4, 19)


@dataclasses.dataclass(frozen=True)
class GeneratedSettings:
    """Who holds what, and how the shared model is trained.

    Attributes:
      property: what sets the victim apart: "rotated" (its digits are turned by 30 degrees),
        "glasses" (it has the pictures with glasses of persons 4 and 19, others those without), or
        "classes" (nothing but its classes).
      clients, records: number of clients, and of records of each (of digits).
      classes_held: random classes of a client (of digits).
      training: of every client.
      rounds: of it, in all of which the adversary plays.
      widths: of the shared model's convolutions.
      side: pixels down and across.
      auxiliary: records of the adversary's own (of digits; of faces it has 64, whatever is set).
      judged: records of nobody that the independent classifiers learn from, at most (of digits).
    """

    property: Literal["rotated", "glasses", "classes"] = "classes"
    clients: int = 10
    records: int = 100
    classes_held: int = 3
    training: LocalTraining = LocalTraining(0.01, batch_size=32)
    rounds: int = 300
    widths: tuple[int, ...] = (32, 64, 128, 256)
    side: tuple[int, int] = (28, 28)
    auxiliary: int = 1000
    judged: int = 6000


class World(NamedTuple):
    """Who has what.

    Attributes:
      parts: images `[records, height, width, 1]` in [-1, 1] and labels `[records]` of each client,
        the victim first.
      auxiliary: the adversary's.
      test: on which the shared model is judged.
      judges: images, labels and whether they are like the victim's, of nobody: for the independent
        classifiers.
      classes: number of classes.
    """

    parts: list[tuple[np.ndarray, np.ndarray]]
    auxiliary: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    judges: tuple[np.ndarray, np.ndarray, np.ndarray]
    classes: int


def turned(images: np.ndarray) -> np.ndarray:
    """Images `[images, height, width, channels]` in [-1, 1], turned about their middle."""
    return ndimage.rotate(images, ANGLE, axes=(2, 1), reshape=False, order=1, cval=-1.0).clip(-1, 1)


def digits(data: Dataset, settings: GeneratedSettings, seed: int) -> World:
    """Clients with random classes each; the first one's digits are turned, if that is
    the property."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data))
    held, each = settings.classes_held, settings.records
    auxiliary, order = np.split(order, [settings.auxiliary])
    test, order = np.split(order, [1000])
    judges, order = np.split(order, [min(settings.judged, len(order) // 3)])
    free = np.ones(len(order), bool)
    parts = []
    for _ in range(settings.clients):
        classes = rng.permutation(data.classes or 0)[:held]
        rows = np.concatenate(
            [np.flatnonzero(free & (data.y[order] == c))[: each // held] for c in classes]
        )
        free[rows] = False
        parts.append((data.x[order[rows]], data.y[order[rows]]))
    x, y = data.x[judges], data.y[judges]
    if settings.property == "rotated":
        parts[VICTIM] = turned(parts[VICTIM][0]), parts[VICTIM][1]
        like = np.arange(len(x)) % 2 == 0
        x = np.where(like[:, None, None, None], turned(x), x)
    else:
        like = np.isin(y, parts[VICTIM][1])
    return World(
        parts,
        (data.x[auxiliary], data.y[auxiliary]),
        (data.x[test], data.y[test]),
        (x, y, like),
        data.classes or 0,
    )


def faces(data: Dataset, settings: GeneratedSettings, seed: int) -> World:
    """Only the first client has pictures with glasses, those of `WEARERS`; each other client has a
    few persons. The adversary has two pictures without glasses of each person who has any. The
    judges have the other persons' pictures with glasses, and up to four of each person without; the
    shared model is judged on the latter too. Few persons have both kinds."""
    rng = np.random.default_rng(seed)
    number = np.tile(np.arange(1, 11), 40)
    glasses = np.asarray(
        [n in GLASSES.get(person + 1, ()) for person, n in zip(data.y, number, strict=True)]
    )
    wearer = np.isin(data.y + 1, WEARERS)
    mine, wearing = np.flatnonzero(wearer & glasses), np.flatnonzero(~wearer & glasses)
    drawn = [
        rng.permutation(np.flatnonzero(~glasses & (data.y == person)))
        for person in rng.permutation(40)
    ]
    auxiliary = np.concatenate([rows[:2] for rows in drawn])
    known = np.concatenate([rows[2:6] for rows in drawn if not wearer[rows].any()])
    left = np.concatenate([rows[2 if wearer[rows].any() else 6 :] for rows in drawn])
    parts = [
        (data.x[rows], data.y[rows]) for rows in (mine, *np.array_split(left, settings.clients - 1))
    ]
    judges = np.concatenate([known, wearing])
    return World(
        parts,
        (data.x[auxiliary], data.y[auxiliary]),
        (data.x[known], data.y[known]),
        (data.x[judges], data.y[judges], glasses[judges]),
        40,
    )


def unworn(world: World) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pictures of `WEARERS` without glasses, whoever of the world of `faces` has them."""
    kept = []
    for x, y in (*world.parts[1:], world.auxiliary):
        rows = np.isin(y + 1, WEARERS)
        kept.append((x[rows], y[rows]))
    return kept
