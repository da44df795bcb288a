"""What a table's note says of its columns, so that nobody has to find out by the results."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from jaxfl.datasets.cells import are_numbers, is_missing

UNKNOWN = "(missing)"
MOST_IN_ONE_BIN = 0.9
"""Share of the records in one bin of several from which on a table says so."""
MANY_CLASSES = 20
"""Numbers that are taken for classes without a word."""
FEWEST_NUMBERED = 10
"""Rows of which a column that counts them is no chance."""
WHOLE = re.compile(r"[1-9][0-9]{0,5}(\.0*)?|0(\.0*)?")
"""Whole numbers, with zeros after a point or without; zeros before one say that it is a code."""
REPEATED = re.compile(r"(.+)\.\d+")
"""How the second column of a name is called."""


def of_bins(name: str, places: np.ndarray, bins: Sequence[str]) -> list[str]:
    """What is to be said of bins that nearly all records share."""
    counts = np.bincount(places, minlength=len(bins))
    if counts.max() < MOST_IN_ONE_BIN * len(places):
        return []
    fullest = bins[int(counts.argmax())]
    return [
        f"of {len(bins)} bins of equal width of {name!r} one, {fullest}, holds {counts.max()} of "
        f"{len(places)} records: an answer tells little"
    ]


def _of_classes(name: str, texts: Sequence[str], classes: int | None, decimal: str) -> list[str]:
    """What is to be said of a target of many numbers that are taken for classes."""
    if classes is None or classes <= MANY_CLASSES or not are_numbers(texts, decimal):
        return []
    return [f"{name!r} was taken for {classes} classes, one for each of its numbers"]


def of_missing(name: str, texts: Sequence[str], options: Sequence[str]) -> list[str]:
    """What is to be said of rows without a value of the column that an attack is to infer."""
    count = sum(map(is_missing, texts))
    if not count:
        return []
    counts_as = f"the value {UNKNOWN!r}" if UNKNOWN in options else "the mean of the others"
    return [f"{count} of {len(texts)} rows have no {name!r}, which counts as {counts_as}"]


def of_columns(
    target: str,
    texts: Mapping[str, Sequence[str]],
    classes: int | None,
    decimal: str,
    client: str | None,
    cells: Mapping[str, Sequence[str]],
) -> list[str]:
    """What is to be said of the target, of columns `texts` beside each other, and of the column of
    all `cells` that names clients."""
    of_target = _of_classes(target, texts[target], classes, decimal)
    beside = [*_of_names(list(texts)), *_of_copies(target, texts)]
    within = [note for name, column in texts.items() for note in _of_cells(name, column, decimal)]
    of_clients = [] if client is None else _of_spellings(client, cells[client], decimal)
    return [*of_target, *beside, *within, *of_clients]


def _of_cells(name: str, texts: Sequence[str], decimal: str) -> list[str]:
    """What is to be said of a column that numbers the rows, or spells one text in two ways."""
    if are_numbers(texts, decimal):
        counts = len(texts) >= FEWEST_NUMBERED and any(
            all(text == str(first + row) for row, text in enumerate(texts)) for first in (0, 1)
        )
        return [f"{name!r} numbers the rows: leave it out (drop)"] if counts else []
    return _of_spellings(name, texts, decimal)


def _of_spellings(name: str, texts: Sequence[str], decimal: str) -> list[str]:
    """Which two texts differ in capitals, space or a point at the end alone, or as numbers are
    written."""
    spelt: dict[str, list[str]] = {}
    for text in sorted({text for text in texts if not is_missing(text)}):
        spelt.setdefault(_plain(text, decimal), []).append(text)
    two = next((ways for ways in spelt.values() if len(ways) > 1), None)
    if two is None:
        return []
    return [f"{name!r} holds {two[0]!r} and {two[1]!r}, which count as different values"]


def _plain(text: str, decimal: str) -> str:
    """A text without what its writers differ in."""
    plain = " ".join(text.casefold().split()).rstrip(".")
    return plain.split(".")[0] if decimal == "." and WHOLE.fullmatch(plain) else plain


def _of_names(names: Sequence[str]) -> list[str]:
    """What is to be said of columns that may be of one name in the file."""
    matches = [match for name in names if (match := REPEATED.fullmatch(name))]
    return [
        f"two columns may be called {match[1]!r} in the file; here the second is {match[0]!r}"
        for match in matches
        if match[1] in names
    ]


def _of_copies(target: str, texts: Mapping[str, Sequence[str]]) -> list[str]:
    """What is to be said of columns that name the target of every row, one value for each of its
    values: of them nothing is left to learn."""
    answers = texts[target]
    values = len(set(answers))
    if not 1 < values <= len(answers) / 2:
        return []
    copies = [
        name
        for name, column in texts.items()
        if name != target
        and len(set(column)) == values
        and len(set(zip(column, answers, strict=True))) == values
    ]
    return [
        f"{name!r} names {target!r} of every row: is it the same column twice?" for name in copies
    ]
