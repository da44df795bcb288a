"""The formats of public sources: from a source's files to a table.

Each function takes contents by file name `{name: bytes}`, decompressed and checked.
"""

import csv
import io
import re
from collections.abc import Mapping

import numpy as np

from jaxfl.datasets.dataset import Table

BINARY = ("0", "1")
IDX = ("images-idx3-ubyte", "labels-idx1-ubyte")


def integers(text: bytes) -> np.ndarray:
    """A table of whole numbers between commas `[rows, columns]`."""
    return np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.int32, quotechar='"', ndmin=2)


def location30(contents: Mapping[str, bytes]) -> Table:
    """5,010 records of 446 binary columns, 30 classes; the label comes first and counts from 1."""
    rows = integers(contents["dataset_location.tgz"])
    names = tuple(f"place_{j}" for j in range(rows.shape[1] - 1))
    return Table("location30", rows[:, 1:], rows[:, 0] - 1, names, (BINARY,) * len(names), 30)


def purchase100(contents: Mapping[str, bytes]) -> Table:
    """197,324 records of 600 binary columns, 100 classes; the label comes first and counts
    from 1."""
    rows = integers(contents["dataset_purchase.tgz"])
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


def adult(contents: Mapping[str, bytes]) -> Table:
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


def genome_hs3d(contents: Mapping[str, bytes]) -> Table:
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


def att_faces(contents: Mapping[str, bytes]) -> Table:
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


def flight_price(contents: Mapping[str, bytes]) -> Table:
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


def mnist(contents: Mapping[str, bytes]) -> Table:
    """60,000 training digits, then 10,000 test digits, 28 x 28, in [0, 1]."""
    return _digits("mnist", contents)


def fashion_mnist(contents: Mapping[str, bytes]) -> Table:
    """60,000 training garments, then 10,000 test garments, 28 x 28, in [0, 1]."""
    return _digits("fashion_mnist", contents)


def _digits(name: str, contents: Mapping[str, bytes]) -> Table:
    images, labels = (
        [_idx(contents[f"{part}-{kind}"]) for part in ("train", "t10k")] for kind in IDX
    )
    return _images(name, np.concatenate(images), np.concatenate(labels), (28, 28, 1))


CIFAR_BYTES = 1 + 32 * 32 * 3


def cifar10(contents: Mapping[str, bytes]) -> Table:
    """50,000 training images, then 10,000 test images, 32 x 32 in three colours, in [0, 1]."""
    return _cifar("cifar10", contents)


def cifar10_subset(contents: Mapping[str, bytes]) -> Table:
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
