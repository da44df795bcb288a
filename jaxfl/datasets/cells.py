"""A table's file as texts, and the numbers that cells hold."""

import codecs
import csv
import io
import itertools
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal

import numpy as np

from jaxfl.datasets.compressed import only_member, unpacked

DecimalMark = Literal[".", ","]
MISSING = frozenset({"", "?", "na", "n/a", "nan", "+nan", "-nan", "null", "none"})
DAMAGED = (
    *(ValueError, OSError, EOFError, RuntimeError),
    *(lzma.LZMAError, zipfile.BadZipFile, zlib.error),
)
"""What unpacking a damaged file may raise."""
SEPARATORS = ",;\t|"
LOOKED_AT = 20
"""Rows from which a file's separator is guessed."""
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?inf(inity)?", re.I)
COMMA_NUMBER = re.compile(
    r"[-+]?(([1-9][0-9]{0,2}(\.[0-9]{3})+|[0-9]+)(,[0-9]*)?|,[0-9]+)([eE][-+]?[0-9]+)?"
    r"|[-+]?inf(inity)?",
    re.I,
)
"""A number with a decimal comma; points stand between thousands."""


def is_missing(text: str) -> bool:
    """Whether a cell says that it holds nothing."""
    return text.lower() in MISSING


def number_of(text: str, decimal: str = ".") -> float | None:
    """The number that a cell holds, or None for a missing value.

    Raises:
      ValueError: on text.
    """
    if is_missing(text):
        return None
    if decimal == ",":
        pattern, plain = COMMA_NUMBER, text.replace(".", "").replace(",", ".")
    else:
        pattern, plain = NUMBER, text
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is no number")
    return float(plain)


def exact_number_of(text: str, decimal: str = ".") -> Decimal | None:
    """As `number_of`, with all digits."""
    if number_of(text, decimal) is None:
        return None
    plain = text.replace(".", "").replace(",", ".") if decimal == "," else text
    return Decimal(plain)


def are_numbers(texts: Sequence[str], decimal: str = ".") -> bool:
    """Whether all cells but missing ones hold numbers."""
    try:
        numbers = {number_of(text, decimal) for text in texts}
    except ValueError:
        return False
    return bool(numbers - {None})


def read_numbers(name: str, texts: Sequence[str], decimal: str = ".") -> np.ndarray:
    """Numbers of a column, NaN for missing ones. Raises `ValueError` on text, naming the column."""
    try:
        values = [number_of(text, decimal) for text in texts]
    except ValueError as error:
        mend = "leave the column out, declare it categorical or clean the file"
        raise ValueError(f"column {name!r} is numeric but {error}; {mend}") from None
    numbers = np.asarray([np.nan if value is None else value for value in values])
    if (np.abs(numbers) > np.finfo(np.float32).max).any():  # NaN stands for a missing one
        largest = np.nanmax(np.abs(numbers))
        raise ValueError(f"column {name!r} holds {largest:g}, beyond float32; clean the file")
    return numbers


def read_cells(
    path: Path, encoding: str, separator: str | None
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a file, as texts (see `read_csv`)."""
    text = _text(path, encoding)
    told = re.match(r'"?sep=(.)"?\r?\n', text)  # a line by which spreadsheets name it
    if told is not None:
        text, separator = "\n" + text[told.end() :], separator or told[1]
    guessed = _separator(text) if separator is None else None
    separator = guessed or separator
    if separator is None or len(separator) != 1:
        raise ValueError(f"separator={separator!r} must be one character")
    try:
        lines = list(_lines(text, separator))
    except csv.Error as error:
        raise ValueError(f"path={str(path)!r} is no table ({error})") from None
    if len(lines) < 2:
        raise ValueError(
            f"path={str(path)!r} needs a header and at least one row; it has {len(lines)} lines"
        )
    header = _distinct(lines[0][1])
    if len(header) == 1 and separator not in lines[0][1][0] and guessed is None:
        raise ValueError(
            f"separator={separator!r} does not stand in the header {header[0][:60]!r} of {path}"
        )
    for number, row in lines[1:]:
        if len(row) != len(header):
            raise ValueError(
                f"path={str(path)!r} has {len(row)} cells in row {number}; the header has "
                f"{len(header)}, with separator={separator!r}"
            )
    return header, [row for _, row in lines[1:]]


def _lines(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of the line on which each begins, empty ones left out."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    begins = 1
    for row in reader:
        if row:
            yield begins, [cell.strip() for cell in row]
        begins = reader.line_num + 1


def _separator(text: str) -> str:
    """What separates the cells of the first rows into equally many, the most; else what the header
    holds most."""
    widths = {}
    for separator in SEPARATORS:
        try:
            rows = [row for _, row in itertools.islice(_lines(text, separator), LOOKED_AT)]
        except csv.Error:
            continue
        if rows and len({len(row) for row in rows}) == 1:
            widths[separator] = len(rows[0])
    if max(widths.values(), default=0) > 1:
        return max(widths, key=widths.__getitem__)
    return max(SEPARATORS, key=text.partition("\n")[0].count)


def _text(path: Path, encoding: str) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r} is no file")
    try:
        content = only_member(unpacked(path.read_bytes()))
    except DAMAGED as e:
        raise ValueError(f"path={str(path)!r} cannot be unpacked ({e})") from None
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    used = "utf-16" if marked else "utf-8-sig" if encoding == "utf-8" else encoding
    try:
        return content.decode(used)
    except (UnicodeError, LookupError) as error:
        raise ValueError(
            f"path={str(path)!r} is no text in {encoding} ({error}); name its encoding, as "
            "text_encoding='latin-1'"
        ) from None


def _distinct(names: Sequence[str]) -> list[str]:
    """Names, of which a repeated one gets a number."""
    distinct: list[str] = []
    for name in names:
        numbers = (f"{name}.{n}" for n in itertools.count(1))
        free = itertools.chain([name], (each for each in numbers if each not in names))
        distinct.append(next(each for each in free if each not in distinct))
    return distinct
