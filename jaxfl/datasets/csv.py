"""The user's own CSV as a source like any other."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxfl.datasets import csv_notes
from jaxfl.datasets.cells import (
    DecimalMark,
    are_numbers,
    exact_number_of,
    is_missing,
    number_of,
    read_cells,
    read_numbers,
)
from jaxfl.datasets.csv_notes import UNKNOWN
from jaxfl.datasets.dataset import Table
from jaxfl.domains import Count, checked

NOTES = "; "
"""What stands between the facts of a table's note."""
Kind = Literal["numeric", "categorical"]
BOOLEANS = frozenset({"true", "false"})
LIKE_CODES = re.compile(r"[-+]?0[0-9]")
LIKE_NUMBERS = re.compile(
    r"[-+−–]?\s?[$€£¥]?\s?([0-9]+|[0-9]{1,3}([.,\s'’][0-9]{3})+)([.,][0-9]+)?([eE][-+]?[0-9]+)?"
    r"\s*[%$€£¥]?"
)
MOSTLY = 0.9
"""Share of a column's texts that look like numbers, from which on they were meant as such."""


@checked
def read_csv(  # noqa: PLR0913 - what nobody overrides is inferred
    path: str | Path,
    target: str,
    *,
    task: Literal["classification", "regression"] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    drop: Sequence[str] = (),
    max_categories: Count = 20,
    sensitive: str | None = None,
    client: str | None = None,
    bins: Count = 4,
    text_encoding: str = "utf-8",
    separator: str | None = None,
    decimal: DecimalMark = ".",
    standardize: bool = True,
) -> Table:
    """Read a CSV file with a header, compressed (gzip, bzip2, xz, or a zip of one file) or not.

    Of columns of one name the second is called `name.1`, and so on, as pandas does.

    A column is numeric if all its values are numbers and it has more than two distinct ones,
    categorical otherwise, and where zeros before some numbers say that they are codes ("01"), of
    which there are `max_categories` at most. Missing values ("", "?", "NA", "NaN", "null", "none")
    become the mean of a numeric column and a category of their own, `(missing)`, of a categorical
    one. Rows without a target, or without a client where a column names it, are left out; the
    table's note counts them. One number in several spellings ("1", "1.0") is one category or class,
    unless zeros before it say that it is a code; so is a truth value ("True", "true").

    Args:
      path: the file.
      target: name of the column to predict.
      task: "classification" or "regression"; by default regression if the target is numeric with
        more than `max_categories` distinct values.
      kinds: "numeric" or "categorical" by column name, overriding what is inferred.
      categories: the possible values of a column, by its name. Values outside become `(missing)`.
      drop: columns to leave out.
      max_categories: the most categories an inferred categorical column may have.
      sensitive: the column that an attack is to infer; a numeric one is cut into bins, as Lyu 2021
        does (section 3).
      client: the column that says whose a record is; it is no feature, and becomes the table's
        `group`, its values numbered in their order.
      bins: number of bins of equal width of a numeric sensitive column, two at least.
      text_encoding: of the file, as "latin-1"; a mark at its beginning tells UTF-16 too.
      separator: of cells; by default whichever of comma, semicolon, tab and bar cuts the first rows
        into equally many cells, the most.
      decimal: what stands before a number's decimals. With "," points stand between thousands.
      standardize: whether numbers are brought to mean 0 and deviation 1; else they stay as they are
        in the file.

    Raises:
      ValueError: if a named column does not exist, is named for two things that exclude each other,
        a row has another length than the header, a numeric column holds text or numbers beyond
        float32, a column has too many categories or texts that were meant as numbers, none of a
        column's stated categories occurs, or the file is not of its encoding.
      FileNotFoundError: if there is no such file.
    """
    header, rows = read_cells(Path(path), text_encoding, separator)
    kinds, categories = dict(kinds or {}), dict(categories or {})
    asked = {"target": [target], "sensitive": [] if sensitive is None else [sensitive]}
    asked |= {"client": [] if client is None else [client]}
    asked |= {"kinds": list(kinds), "categories": list(categories), "drop": list(drop)}
    _check_columns(path, header, asked)
    _check_sense(target, client, drop, kinds, categories, bins)
    features = _features(path, header, {target, client, *drop}, sensitive)
    rows, notes = _whole_rows(path, header, rows, target, client)

    cells = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    y, classes = _target(target, cells[target], task, max_categories, decimal)
    columns: list[tuple[Any, Any]] = []
    for name in features:
        texts = cells[name]
        declared = "categorical" if name in categories else kinds.get(name)
        if (declared or _kind(texts, decimal, max_categories)) == "categorical":
            limit = None if declared else max_categories
            column = _codes(name, texts, categories.get(name), limit, decimal)
        elif name == sensitive:
            column = _binned(_numbers(name, texts, decimal), bins)
            notes += csv_notes.of_bins(name, *column)
        else:
            column = _numbers(name, texts, decimal), ()
        if name == sensitive:
            notes += csv_notes.of_missing(name, texts, column[1])
        columns.append(column)
    used = {name: cells[name] for name in [*features, target]}
    notes += csv_notes.of_columns(target, used, classes, decimal, client, cells)
    return Table(
        Path(path).stem,
        np.stack([values for values, _ in columns], 1).astype(np.float64),
        y,
        tuple(features),
        tuple(options for _, options in columns),
        classes,
        group=None if client is None else np.unique(cells[client], return_inverse=True)[1],
        note=NOTES.join(notes),
        standardize=standardize,
        sensitive=sensitive,
    )


def _check_columns(
    path: str | Path, header: Sequence[str], asked: Mapping[str, Sequence[str]]
) -> None:
    """Raise `ValueError` on a name that is no column, with the argument that asked for it."""
    for argument, names in asked.items():
        for name in names:
            if name not in header:
                raise ValueError(
                    f"{argument}={name!r} is not a column of {path}; columns: {', '.join(header)}"
                )


def _check_sense(
    target: str,
    client: str | None,
    drop: Sequence[str],
    kinds: Mapping[str, Kind],
    categories: Mapping[str, Sequence[str]],
    bins: int,
) -> None:
    """Raise `ValueError` on arguments that exclude each other."""
    if target == client:
        raise ValueError(f"client={client!r} is the target; another column says whose a record is")
    for argument, name in (("target", target), ("client", client)):
        if name in drop:
            raise ValueError(f"drop={list(drop)} holds {name!r}, which is the {argument}")
    for name, options in categories.items():
        if kinds.get(name) == "numeric":
            raise ValueError(f"categories[{name!r}] are of a column that kinds calls numeric")
        repeated = [option for option, count in Counter(options).items() if count > 1]
        if repeated:
            raise ValueError(f"categories[{name!r}] holds {repeated[0]!r} more than once")
    if bins < 2:
        raise ValueError(f"bins={bins} tell no numbers apart; give 2 or more")


def _features(
    path: str | Path, header: Sequence[str], left_out: set[str | None], sensitive: str | None
) -> list[str]:
    features = [name for name in header if name not in left_out]
    if not features:
        raise ValueError(f"path={str(path)!r} has no column besides the target and what is dropped")
    if sensitive is not None and sensitive not in features:
        raise ValueError(
            f"sensitive={sensitive!r} is the target, the client or dropped; it must be among the "
            "features"
        )
    return features


def _whole_rows(
    path: str | Path,
    header: Sequence[str],
    rows: list[list[str]],
    target: str,
    client: str | None,
) -> tuple[list[list[str]], list[str]]:
    """Rows that have a target, and a client where one is asked for; and what is to be said of the
    others."""
    notes = []
    for name in filter(None, (target, client)):
        at = header.index(name)
        left = [row for row in rows if not is_missing(row[at])]
        if not left:
            raise ValueError(f"path={str(path)!r} has no row with a value of {name!r}")
        if len(left) < len(rows):
            lost = next(row[at] for row in rows if is_missing(row[at]))
            said = f"such as {lost!r}" if lost else "an empty cell"
            without = f"{len(rows) - len(left)} of {len(rows)} rows have no {name!r} ({said})"
            notes.append(f"{without} and are left out")
        rows = left
    return rows, notes


def _kind(texts: Sequence[str], decimal: str, limit: int = 0) -> Kind:
    """What a column is taken for; of numbers with zeros before them at most `limit` are codes."""
    if not are_numbers(texts, decimal):
        return "categorical"
    there = {text for text in texts if not is_missing(text)}
    if len(there) <= limit and any(map(LIKE_CODES.match, there)):
        return "categorical"
    several = len({number_of(text, decimal) for text in texts} - {None}) > 2
    return "numeric" if several else "categorical"


def _numbers(name: str, texts: Sequence[str], decimal: str) -> np.ndarray:
    values = read_numbers(name, texts, decimal)
    if np.isnan(values).all():
        raise ValueError(f"column {name!r} has no value at all; drop it")
    return np.where(np.isfinite(values), values, values[np.isfinite(values)].mean())


def _binned(values: np.ndarray, bins: int) -> tuple[np.ndarray, tuple[str, ...]]:
    edges = np.linspace(values.min(), values.max(), bins + 1)
    return np.digitize(values, edges[1:-1]), tuple(
        f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)
    )


def are_ranges(options: Sequence[str]) -> bool:
    """Whether categories are the bins of a number."""
    ends = [option.split(" to ") for option in options]
    if not ends or not all(len(pair) == 2 and are_numbers(pair, ".") for pair in ends):
        return False
    numbers = [[number_of(end, ".") for end in pair] for pair in ends]
    return all(low is not None and high is not None and low < high for low, high in numbers)


def _codes(
    name: str,
    texts: Sequence[str],
    options: Sequence[str] | None,
    limit: int | None,
    decimal: str,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Places of a column's values among its categories, and these; `limit` of inferred ones."""
    if options is None:
        texts = _one_spelling(texts, decimal)
        known = tuple(sorted({text for text in texts if not is_missing(text)}))
        if limit is not None:
            _check_inferred(name, texts, known, limit, decimal)
    else:
        known = tuple(options)
        texts = _spelled_as(known, texts, decimal)
        if not set(texts) & set(known):
            raise ValueError(
                f"categories[{name!r}]={list(known)}: no row has any of them; there are "
                f"{', '.join(sorted(set(texts))[:5])}"
            )
    codes = np.asarray([known.index(t) if t in known else len(known) for t in texts])
    return codes, known if (codes < len(known)).all() else (*known, UNKNOWN)


def _check_inferred(
    name: str, texts: Sequence[str], known: Sequence[str], limit: int, decimal: str
) -> None:
    """Raise `ValueError` on texts that were meant as numbers, or are too many."""
    _check_meant(name, texts, decimal)
    there = [text for text in texts if not is_missing(text)]
    numbers = [text for text in there if LIKE_NUMBERS.fullmatch(text)]
    mend = "leave the column out, clean the file or declare the column categorical"
    others = sorted({text for text in there if not LIKE_NUMBERS.fullmatch(text)})
    if len(known) <= limit:
        return
    if numbers and not others:
        raise ValueError(
            f"column {name!r} has {len(known)} distinct numbers, of which 64 bits tell fewer than "
            f"three apart; {mend}"
        )
    if numbers and len(numbers) >= MOSTLY * len(there):
        raise ValueError(
            f"column {name!r} holds numbers, but for {', '.join(map(repr, others[:5]))}; {mend}"
        )
    raise ValueError(
        f"column {name!r} has {len(known)} distinct texts, more than max_categories={limit}; {mend}"
    )


def _check_meant(name: str, texts: Sequence[str], decimal: str) -> None:
    """Raise `ValueError` on texts that were meant as numbers."""
    there = [text for text in texts if not is_missing(text)]
    numbers = [text for text in there if LIKE_NUMBERS.fullmatch(text)]
    odd = [text for text in numbers if not are_numbers([text], decimal)]
    if odd and len(numbers) >= MOSTLY * len(there):
        raise ValueError(
            f"column {name!r} holds texts such as {odd[0]!r} that look like numbers and are none "
            f"with decimal={decimal!r}; name the other mark, take separators of thousands out of "
            "the file, leave the column out or declare the column categorical"
        )


def _one_spelling(texts: Sequence[str], decimal: str) -> list[str]:
    """Texts in which a number, or a truth value, is spelled in one way: the most frequent one, and
    the shorter of two. A zero before another digit says that numbers are codes."""
    there = {text for text in texts if not is_missing(text)}
    if {text.lower() for text in there} <= BOOLEANS:
        values: dict[str, object] = {text: text.lower() for text in there}
    elif are_numbers(texts, decimal) and not any(map(LIKE_CODES.match, there)):
        values = {text: exact_number_of(text, decimal) for text in there}
    else:
        return list(texts)
    frequent = sorted(Counter(texts).items(), key=lambda pair: (-pair[1], len(pair[0]), pair[0]))
    spelled: dict[object, str] = {}
    for text, _ in frequent:
        if text in values:
            spelled.setdefault(values[text], text)
    return [spelled[values[text]] if text in values else text for text in texts]


def _spelled_as(options: Sequence[str], texts: Sequence[str], decimal: str) -> list[str]:
    """Texts in which a number is spelled as the option that it is, where options are numbers."""
    if not are_numbers(options, decimal):
        return list(texts)
    spelled = {exact_number_of(option, decimal): option for option in options}

    def of(text: str) -> str:
        if text in options or not are_numbers([text], decimal):
            return text
        return spelled.get(exact_number_of(text, decimal), text)

    return [of(text) for text in texts]


def _target(
    name: str, texts: Sequence[str], task: str | None, limit: int, decimal: str
) -> tuple[np.ndarray, int | None]:
    numeric = _kind(texts, decimal) == "numeric"
    if task == "regression" or (task is None and numeric and len(set(texts)) > limit):
        y = _numbers(name, texts, decimal)
        return (y - y.mean()) / (y.std() or 1), None
    if task is None:
        _check_meant(name, texts, decimal)
    texts = _one_spelling(texts, decimal)

    def order(text: str) -> tuple[int, float, str]:
        numbers = are_numbers([text], decimal)
        return (0, number_of(text, decimal) or 0.0, text) if numbers else (1, 0.0, text)

    options = sorted(set(texts), key=order)
    return np.asarray([options.index(t) for t in texts]), len(options)
