"""Public sources: where each one lives, the checksum of its content, and how it is parsed.

Checksums are of the content, after decompression: copies are often compressed anew.
"""

import csv
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

import numpy as np

from jaxfl.datasets.compressed import bounded, largest_of, unpacked
from jaxfl.datasets.dataset import Table

BINARY = ("0", "1")


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


def _integers(text: bytes) -> np.ndarray:
    return np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.int32, quotechar='"', ndmin=2)


def _location30(contents: Mapping[str, bytes]) -> Table:
    """5,010 records of 446 binary columns, 30 classes; the label comes first and counts from 1."""
    rows = _integers(contents["dataset_location.tgz"])
    names = tuple(f"place_{j}" for j in range(rows.shape[1] - 1))
    return Table("location30", rows[:, 1:], rows[:, 0] - 1, names, (BINARY,) * len(names), 30)


def _purchase100(contents: Mapping[str, bytes]) -> Table:
    """197,324 records of 600 binary columns, 100 classes; the label comes first and counts
    from 1."""
    rows = _integers(contents["dataset_purchase.tgz"])
    if rows.shape[1] != 601:
        raise ValueError(
            f"dataset_purchase.tgz has {rows.shape[1]} columns; Purchase-100 has 601. Fetch it "
            "again"
        )
    names = tuple(f"product_{j}" for j in range(600))
    return Table("purchase100", rows[:, 1:], rows[:, 0] - 1, names, (BINARY,) * 600, 100)


ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *(
        "relationship",
        "race",
        "sex",
        "capital-gain",
        "capital-loss",
        "hours-per-week",
        "native-country",
    ),
)
ADULT_NUMBERS = frozenset(
    {"age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"}
)


def _adult(contents: Mapping[str, bytes]) -> Table:
    """48,842 records of 14 columns (`adult.data`, then `adult.test`), income above 50K; "?" is a
    category of its own."""
    text = contents["adult.data"] + contents["adult.test"]
    rows = [
        row
        for row in csv.reader(io.StringIO(text.decode()), skipinitialspace=True)
        if len(row) == 15
    ]
    columns = list(zip(*rows, strict=True))
    values, categories = [], []
    for name, column in zip(ADULT_COLUMNS, columns, strict=False):
        options = () if name in ADULT_NUMBERS else tuple(sorted(set(column)))
        place = {option: k for k, option in enumerate(options)}
        values.append([place[v] for v in column] if options else [float(v) for v in column])
        categories.append(options)
    y = np.asarray([label.startswith(">50K") for label in columns[-1]])
    return Table("adult", np.asarray(values, np.float32).T, y, ADULT_COLUMNS, tuple(categories), 2)


BASES = ("A", "C", "G", "T")
ACCEPTOR, BEFORE, LENGTH = 68, 8, 20
"""Position of the annotated AG in HS3D's 140-base windows (0-based), bases taken before it, bases
in all (61 to 80)."""


def _genome_hs3d(contents: Mapping[str, bytes]) -> Table:
    """Acceptor sites, 20 bases around AG (positions 61 to 80), against decoys.

    HS3D's own negatives could not be had in full, so decoys are cut from the same windows the way
    HS3D defines them: an AG that is not the annotated site, without repeats and without the bases
    of any true site.
    """
    lines = contents["IE_true.zip"].decode("latin-1").splitlines()
    windows = [
        s for line in lines if ": " in line and len(s := line.rsplit(": ", 1)[1].strip()) == 140
    ]
    start = ACCEPTOR - BEFORE
    sites = [w[start : start + LENGTH] for w in windows]
    others = (
        w[m.start() - BEFORE : m.start() - BEFORE + LENGTH]
        for w in windows
        for m in re.finditer("AG", w)
        if m.start() != ACCEPTOR and m.start() >= BEFORE and m.start() - BEFORE + LENGTH <= len(w)
    )
    decoys = [d for d in dict.fromkeys(others) if d not in set(sites)]
    code = {base: k for k, base in enumerate(BASES)}
    values = np.asarray([[code[b] for b in s] for s in (*sites, *decoys)])
    y = np.arange(len(values)) < len(sites)
    names = tuple(f"base_{j}" for j in range(LENGTH))
    note = f"HS3D acceptors with {len(decoys)} decoy negatives cut from the same windows"
    return Table(
        "genome_hs3d", values, y, names, (BASES,) * LENGTH, 2, codes=(1, 2, 3, 4), note=note
    )


FACE_SHAPE, FACE_BYTES = (112, 92, 1), 10_318


def _att_faces(contents: Mapping[str, bytes]) -> Table:
    """400 grey faces of 40 persons, ten each, in [0, 1] (binary PGM, 8 bit)."""
    data = np.frombuffer(contents["att_faces.zip"], np.uint8)
    if data.size != 400 * FACE_BYTES:
        raise ValueError(
            f"att_faces.zip holds {data.size} bytes of images, not {400 * FACE_BYTES}; fetch it "
            "again"
        )
    height, width, _ = FACE_SHAPE
    pixels = data.reshape(400, FACE_BYTES)[:, -height * width :] / np.float32(255)
    return Table("att_faces", pixels, np.repeat(np.arange(40), 10), (), (), 40, shape=FACE_SHAPE)


FLIGHT_NUMBERS = frozenset({"duration", "days_left"})


def _flight_price(contents: Mapping[str, bytes]) -> Table:
    """300,153 one-way fares in India, 10 columns without the flight's number; the target is the
    price over its mean."""
    rows = list(csv.DictReader(io.StringIO(contents["Clean_Dataset.csv"].decode())))
    names = tuple(name for name in rows[0] if name not in ("", "flight", "price"))
    values, categories = [], []
    for name in names:
        column = [row[name] for row in rows]
        options = () if name in FLIGHT_NUMBERS else tuple(sorted(set(column)))
        place = {option: k for k, option in enumerate(options)}
        values.append([place[v] for v in column] if options else [float(v) for v in column])
        categories.append(options)
    price = np.asarray([float(row["price"]) for row in rows], np.float32)
    return Table(
        "flight_price",
        np.asarray(values, np.float32).T,
        price / price.mean(),
        names,
        tuple(categories),
        None,
    )


def _images(
    name: str, pixels: np.ndarray, y: np.ndarray, shape: tuple[int, ...], note: str = ""
) -> Table:
    """Pixels `[records, ...]` of one byte, as numbers in [0, 1]."""
    values = pixels.reshape(len(pixels), -1) / np.float32(255)
    return Table(name, values, y, (), (), 10, shape=shape, note=note)


def _idx(data: bytes) -> np.ndarray:
    """An array of bytes in LeCun's idx format."""
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _mnist(contents: Mapping[str, bytes]) -> Table:
    """60,000 training digits, then 10,000 test digits, 28 x 28, in [0, 1]."""
    return _digits("mnist", contents)


def _fashion_mnist(contents: Mapping[str, bytes]) -> Table:
    """60,000 training garments, then 10,000 test garments, 28 x 28, in [0, 1]."""
    return _digits("fashion_mnist", contents)


def _digits(name: str, contents: Mapping[str, bytes]) -> Table:
    images, labels = (
        [_idx(contents[f"{part}-{kind}"]) for part in ("train", "t10k")] for kind in IDX
    )
    return _images(name, np.concatenate(images), np.concatenate(labels), (28, 28, 1))


CIFAR_BYTES = 1 + 32 * 32 * 3


def _cifar10(contents: Mapping[str, bytes]) -> Table:
    """50,000 training images, then 10,000 test images, 32 x 32 in three colours, in [0, 1]."""
    return _cifar("cifar10", contents)


def _cifar10_subset(contents: Mapping[str, bytes]) -> Table:
    """The first 20,000 training images of CIFAR-10."""
    return _cifar(
        "cifar10_subset", contents, "the first 20,000 of CIFAR-10's 50,000 training images"
    )


def _cifar(name: str, contents: Mapping[str, bytes], note: str = "") -> Table:
    rows = np.frombuffer(b"".join(contents[file] for file in sorted(contents)), np.uint8).reshape(
        -1, CIFAR_BYTES
    )
    pixels = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return _images(name, pixels, rows[:, 0], (32, 32, 3), note)


_SHOKRI = "https://github.com/privacytrustlab/datasets/raw/master/"
_FACES = "https://www.cl.cam.ac.uk/Research/DTG/attarchive/pub/data/"
_FLIGHTS = "https://www.kaggle.com/datasets/shubhambathwal/flight-price-prediction/"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"

IDX = ("images-idx3-ubyte", "labels-idx1-ubyte")


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
        _location30,
    ),
    "purchase100": Source(
        (SourceFile("dataset_purchase.tgz", _SHOKRI + "dataset_purchase.tgz", "dataset_purchase"),),
        _purchase100,
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
        _adult,
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
        _genome_hs3d,
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
        _att_faces,
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
        _flight_price,
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
        _mnist,
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
        _fashion_mnist,
    ),
    "cifar10": Source(
        _cifar_files("", (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")),
        _cifar10,
    ),
    "cifar10_subset": Source(
        _cifar_files("cifar10/", ("data_batch_1.bin", "data_batch_2.bin")), _cifar10_subset
    ),
}

VERSION = "1.1.0"
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
