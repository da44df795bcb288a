"""The user's own CSV as a source like any other."""

import codecs
import csv
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from jaxfl.datasets.dataset import Table
from jaxfl.domains import Count, checked

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
UNKNOWN = "(missing)"
Kind = Literal["numeric", "categorical"]


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
    decimal: Literal[".", ","] = ".",
    standardize: bool = True,
) -> Table:
    """Read a CSV file with a header.

    Of columns of one name the second is called `name.1`, and so on, as pandas does.

    A column is numeric if all its values are numbers and it has more than two distinct ones,
    categorical otherwise. Missing values ("", "?", "NA", "NaN", "null", "none") become the mean of
    a numeric column and a category of their own, `(missing)`, of a categorical one; rows without a
    target are dropped.

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
      bins: number of bins of equal width of a numeric sensitive column.
      text_encoding: of the file, as "latin-1"; a mark at its beginning tells UTF-16 too.
      separator: of cells; by default whichever of comma, semicolon, tab and bar the header holds
        most.
      decimal: what stands before a number's decimals.
      standardize: whether numbers are brought to mean 0 and deviation 1; else they stay as they are
        in the file.

    Raises:
      ValueError: if a named column does not exist, a row has another length than the header, a
        numeric column holds text or numbers beyond float32, a column has too many categories, or
        the file is not of its encoding.
      FileNotFoundError: if there is no such file.
    """
    header, rows = read_cells(Path(path), text_encoding, separator)
    if decimal == ",":
        rows = [[_pointed(cell) for cell in row] for row in rows]
    kinds, categories = dict(kinds or {}), dict(categories or {})
    asked = {"target": [target], "sensitive": [] if sensitive is None else [sensitive]}
    asked |= {"client": [] if client is None else [client]}
    asked |= {"kinds": list(kinds), "categories": list(categories), "drop": list(drop)}
    _check_columns(path, header, asked)
    features = _features(path, header, {target, client, *drop}, sensitive)
    at = header.index(target)
    rows = [row for row in rows if row[at].lower() not in MISSING]
    if not rows:
        raise ValueError(f"path={str(path)!r} has no row with a value of {target!r}")
    y, classes = _target(target, [row[at] for row in rows], task, max_categories)
    values, options = [], []
    for name in features:
        place = header.index(name)
        texts = [row[place] for row in rows]
        declared = "categorical" if name in categories else kinds.get(name)
        if (declared or ("numeric" if _is_numeric(texts) else "categorical")) == "categorical":
            limit = None if name in kinds else max_categories
            column = _codes(name, texts, categories.get(name), limit)
        elif name == sensitive:
            column = _binned(_numbers(name, texts), bins)
        else:
            column = _numbers(name, texts), ()
        values.append(column[0])
        options.append(column[1])
    return Table(
        Path(path).stem,
        np.stack(values, 1).astype(np.float32),
        y,
        tuple(features),
        tuple(options),
        classes,
        group=None if client is None else _group([row[header.index(client)] for row in rows]),
        standardize=standardize,
        sensitive=sensitive,
    )


def _group(names: Sequence[str]) -> np.ndarray:
    return np.unique(np.asarray(names), return_inverse=True)[1]


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


def _text(path: Path, encoding: str) -> str:
    content = path.read_bytes()
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if marked else "utf-8-sig" if encoding == "utf-8" else encoding
    try:
        return content.decode(encoding)
    except (UnicodeError, LookupError) as error:
        raise ValueError(
            f"path={str(path)!r} is no text in {encoding} ({error}); name its encoding, as "
            "text_encoding='latin-1'"
        ) from None


def _pointed(cell: str) -> str:
    """A cell whose decimal comma is a point, if it holds a number."""
    pointed = cell.replace(".", "").replace(",", ".")
    return pointed if re.fullmatch(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", pointed) else cell


def read_cells(
    path: Path, encoding: str, separator: str | None
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a file, as texts (see `read_csv`)."""
    text = _text(path, encoding)
    if separator is None:
        separator = max(",;\t|", key=text.partition("\n")[0].count)
    if len(separator) != 1:
        raise ValueError(f"separator={separator!r} must be one character")
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        lines = [[cell.strip() for cell in row] for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"path={str(path)!r} is no table ({error})") from None
    if len(lines) < 2:
        raise ValueError(
            f"path={str(path)!r} needs a header and at least one row; it has {len(lines)} lines"
        )
    header, rows = _distinct(lines[0]), lines[1:]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(
                f"path={str(path)!r} has {len(row)} cells in row {number}; the header has "
                f"{len(header)}"
            )
    return header, rows


def _distinct(names: Sequence[str]) -> list[str]:
    """Names, of which a repeated one gets a number."""
    distinct: list[str] = []
    for name in names:
        numbers = (f"{name}.{n}" for n in itertools.count(1))
        free = itertools.chain([name], (each for each in numbers if each not in names))
        distinct.append(next(each for each in free if each not in distinct))
    return distinct


def _number(text: str) -> float | None:
    """The number that a cell holds, or None for a missing value. Raises `ValueError` on text."""
    return None if text.lower() in MISSING else float(text)


def _is_numeric(texts: Sequence[str]) -> bool:
    try:
        return len({_number(t) for t in texts} - {None}) > 2
    except ValueError:
        return False


def read_numbers(name: str, texts: Sequence[str]) -> np.ndarray:
    """Numbers of a column, NaN for missing ones. Raises `ValueError` on text, naming the column."""
    try:
        values = np.asarray([np.nan if (v := _number(t)) is None else v for t in texts])
    except ValueError as error:
        raise ValueError(
            f"column {name!r} is numeric but {error}; declare it categorical or clean the file"
        ) from None
    if (np.abs(values) > np.finfo(np.float32).max).any():  # NaN stands for a missing one
        largest = np.nanmax(np.abs(values))
        raise ValueError(f"column {name!r} holds {largest:g}, beyond float32; clean the file")
    return values


def _numbers(name: str, texts: Sequence[str]) -> np.ndarray:
    values = read_numbers(name, texts)
    if np.isnan(values).all():
        raise ValueError(f"column {name!r} has no value at all; drop it")
    return np.where(np.isfinite(values), values, values[np.isfinite(values)].mean())


def _binned(values: np.ndarray, bins: int) -> tuple[np.ndarray, tuple[str, ...]]:
    edges = np.linspace(values.min(), values.max(), bins + 1)
    return np.digitize(values, edges[1:-1]), tuple(
        f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)
    )


def _codes(
    name: str, texts: Sequence[str], options: Sequence[str] | None, limit: int | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    known = (
        tuple(options)
        if options is not None
        else tuple(sorted({t for t in texts if t.lower() not in MISSING}))
    )
    if limit is not None and options is None and len(known) > limit:
        raise ValueError(
            f"column {name!r} has {len(known)} distinct texts, more than max_categories={limit}; "
            "drop it or declare it categorical"
        )
    codes = np.asarray([known.index(t) if t in known else len(known) for t in texts])
    return codes, known if (codes < len(known)).all() else (*known, UNKNOWN)


def _target(
    name: str, texts: Sequence[str], task: str | None, limit: int
) -> tuple[np.ndarray, int | None]:
    regression = task == "regression" or (
        task is None and _is_numeric(texts) and len(set(texts)) > limit
    )
    if regression:
        y = _numbers(name, texts)
        return (y - y.mean()) / (y.std() or 1), None
    options = sorted(
        set(texts), key=lambda t: (0, float(t), t) if t.lstrip("-").isdigit() else (1, 0.0, t)
    )
    return np.asarray([options.index(t) for t in texts]), len(options)
