"""Compressed files, whose content is bounded before it is unpacked."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from typing import Any

from jaxfl.files import MOST_BYTES, MOST_GROWTH

OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
"""What opens a file, by the bytes it begins with."""
ZIP, OF_MACS = b"PK\x03\x04", "__MACOSX/"
"""What a zip archive begins with; and a folder of what macOS keeps of files beside them."""


def unpacked(data: bytes, most: int | None = None) -> bytes:
    """The content of a file that is compressed by gzip, bzip2 or xz; of any other the file itself.

    Raises:
      ValueError: if it is larger than `most` bytes.
      OSError, EOFError, lzma.LZMAError: if it is damaged.
    """
    most = largest_of(data) if most is None else most
    for mark, opener in OPENERS.items():
        if data.startswith(mark):
            with opener(io.BytesIO(data)) as opened:
                return bounded(opened, most)
    return data


def only_member(data: bytes) -> bytes:
    """The one file in a zip archive; of any other file the file itself.

    Raises:
      ValueError: if there is not one, or it is too large.
      zipfile.BadZipFile, RuntimeError: if it is damaged or has a password.
    """
    if not data.startswith(ZIP):
        return data
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        names = [n for n in opened.namelist() if not n.endswith("/") and not n.startswith(OF_MACS)]
        if len(names) != 1:
            raise ValueError(f"the archive holds {len(names)} files, not one")
        return bounded(opened.open(names[0]), largest_of(data))


def largest_of(data: bytes) -> int:
    """Bytes that a file may unpack to."""
    return max(MOST_BYTES, MOST_GROWTH * len(data))


def bounded(file: Any, most: int) -> bytes:
    """The content of an open file. Raises `ValueError` if it is larger than so many bytes."""
    data: bytes = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it holds more than {most} bytes")
    return data
