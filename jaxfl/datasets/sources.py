"""Public sources: where each one lives, the checksum of its content, and its format
(`jaxfl.datasets.formats`).

Checksums are of the content, after decompression: copies are often compressed anew.
"""

import dataclasses
import fnmatch
import hashlib
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxfl.datasets import formats
from jaxfl.datasets.compressed import bounded, largest_of, unpacked
from jaxfl.datasets.dataset import Table


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """One file of a source, with its checksum.

    Attributes:
      name: file name as published; local copies may also be compressed (`name.gz`, `name.xz`).
      url: public home.
      member: the file inside the archive, or a pattern ("s*/*.pgm") for the contents of several,
        one after the other, ordered by the numbers in their names; None if it is no archive. Local
        copies of a member alone are taken as they are.
      sha256: of the content, or None where no copy could be had to compute it.
    """

    name: str
    url: str
    member: str | None = None
    sha256: str | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a data set comes from.

    Attributes:
      files: what to fetch.
      parse: from contents by file name to a table.
    """

    files: tuple[SourceFile, ...]
    parse: Callable[[Mapping[str, bytes]], Table]


def content(file: SourceFile, path: Path) -> bytes:
    """The content of a fetched file, decompressed and checked. Raises `ValueError` if it is
    truncated or altered."""
    mend = "delete it and fetch it again"
    try:
        data = path.read_bytes()
        most = largest_of(data)
        data = unpacked(unpacked(data, most), most)
        if (
            file.member is not None
            and path.name.removesuffix(".xz").removesuffix(".gz") != Path(file.member).name
        ):
            data = _member(data, file.member, most)
    except Exception as error:  # archives fail in many ways: links to themselves, passwords
        raise ValueError(
            f"{path.name} is truncated or not the archive expected ({error}); {mend}"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if file.sha256 is not None and digest != file.sha256:
        raise ValueError(
            f"{path.name} was altered: its content has sha256 {digest}, published {file.sha256}; "
            f"{mend}"
        )
    return data


def _member(archive: bytes, name: str, most: int) -> bytes:
    if archive[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            if "*" not in name:
                return bounded(opened.open(name), most)
            if sum(entry.file_size for entry in opened.infolist()) > most:
                raise ValueError(f"it holds more than {most} bytes")
            several = [path for path in opened.namelist() if fnmatch.fnmatch(path, f"*{name}")]
            return b"".join(
                opened.read(path)
                for path in sorted(several, key=lambda p: [int(n) for n in re.findall(r"\d+", p)])
            )
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        extracted = opened.extractfile(name)
        if extracted is None:
            raise KeyError(name)
        return bounded(extracted, most)


_SHOKRI = "https://github.com/privacytrustlab/datasets/raw/master/"
_FACES = "https://www.cl.cam.ac.uk/Research/DTG/attarchive/pub/data/"
_FLIGHTS = "https://www.kaggle.com/datasets/shubhambathwal/flight-price-prediction/"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


def _idx_files(home: str, sums: Mapping[str, str]) -> tuple[SourceFile, ...]:
    return tuple(
        SourceFile(name, f"{home}{name}.gz", None, digest) for name, digest in sums.items()
    )


def _cifar_files(folder: str, names: tuple[str, ...]) -> tuple[SourceFile, ...]:
    return tuple(
        SourceFile(f"{folder}{name}", _CIFAR, f"cifar-10-batches-bin/{name}", CIFAR_SUMS.get(name))
        for name in names
    )


CIFAR_SUMS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
}
"""Checksums of the batches of which a copy could be had."""

SOURCES = {
    "location30": Source(
        (
            SourceFile(
                "dataset_location.tgz",
                _SHOKRI + "dataset_location.tgz",
                "bangkok",
                "2ca8f7fc231251e089823e44d39f2d1eed124574cc351c7f80368cfe631dd718",
            ),
        ),
        formats.location30,
    ),
    "purchase100": Source(
        (SourceFile("dataset_purchase.tgz", _SHOKRI + "dataset_purchase.tgz", "dataset_purchase"),),
        formats.purchase100,
    ),
    "adult": Source(
        (
            SourceFile(
                "adult.data",
                _UCI + "adult.data",
                None,
                "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            ),
            SourceFile(
                "adult.test",
                _UCI + "adult.test",
                None,
                "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            ),
        ),
        formats.adult,
    ),
    "genome_hs3d": Source(
        (
            SourceFile(
                "IE_true.zip",
                "http://www.sci.unisannio.it/docenti/rampone/IE_true.zip",
                "IE_true.seq",
                "a4314f9199012f0a84e1fee007160e0bbf551b6c3d83fb0d74b2506fca2f114b",
            ),
        ),
        formats.genome_hs3d,
    ),
    "att_faces": Source(
        (
            SourceFile(
                "att_faces.zip",
                _FACES + "att_faces.zip",
                "s*/*.pgm",
                "d81dc0ce1b7cae73897b46ab3d4d0ee2d1ff72f033819ec7c2a184dbba14a58f",
            ),
        ),
        formats.att_faces,
    ),
    "flight_price": Source(
        (
            SourceFile(
                "Clean_Dataset.csv",
                _FLIGHTS + "Clean_Dataset.csv",
                None,
                "480a7bfcbd380b7ae13a7ab5f13f7e175b5574338a037d7be54b32a8665c3e84",
            ),
        ),
        formats.flight_price,
    ),
    "mnist": Source(
        _idx_files(
            _MNIST,
            {
                "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
        ),
        formats.mnist,
    ),
    "fashion_mnist": Source(
        _idx_files(
            _FASHION,
            {
                "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
        ),
        formats.fashion_mnist,
    ),
    "cifar10": Source(
        _cifar_files("", (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")),
        formats.cifar10,
    ),
    "cifar10_subset": Source(
        _cifar_files("cifar10/", ("data_batch_1.bin", "data_batch_2.bin")), formats.cifar10_subset
    ),
}

VERSION = "1.2.0"
"""Version of the prepared sets; to be raised when a parser changes."""


def cache_dir() -> Path:
    """Where prepared sets are kept: `JAXFL_CACHE`, by default `~/.cache/jaxfl`."""
    return Path(os.environ.get("JAXFL_CACHE") or Path.home() / ".cache" / "jaxfl")


def at_hand(name: str, data_dir: str | Path | None = None) -> bool:
    """True if a public source can be loaded without a download: its files are in `data_dir`, or it
    was prepared before."""
    folder = data_dir or os.environ.get("JAXFL_DATA")
    local = folder is not None and all(
        find(Path(folder), name, file) for file in SOURCES[name].files
    )
    return (
        local or (cache_dir() / name / VERSION).is_dir()
    )  # an unfinished preparation has another name


def find(folder: Path, name: str, file: SourceFile) -> Path | None:
    """A local copy of a file: `<folder>/<name>/<file>` or `<folder>/<file>`, compressed or not;
    None if there is none."""
    candidates = (
        parent / (file.name + suffix)
        for parent in (folder / name, folder)
        for suffix in ("", ".gz", ".xz")
    )
    return next((path for path in candidates if path.is_file()), None)
