"""Data: sets that need no files, public sources, and the user's own CSV, all through `load`.

>>> data = load("breast_cancer")
>>> data.x.shape, data.classes
((569, 30), 2)
"""

import inspect
import re
from pathlib import Path
from typing import Any

from jaxfl._extras import of_extra
from jaxfl.datasets import partitions
from jaxfl.datasets.csv import read_csv
from jaxfl.datasets.dataset import Column, Dataset, Encoding, Table, encode, resized
from jaxfl.datasets.embedded import TABLES
from jaxfl.datasets.federations import DERIVED
from jaxfl.datasets.inputs import Inputs, read_inputs
from jaxfl.datasets.sources import SOURCES
from jaxfl.domains import checked

OF_TABLES = re.compile(r".*\.(csv|tsv|txt|data)(\.(gz|bz2|xz|zip))?")
OPTIONS = tuple(inspect.signature(read_csv).parameters)[1:]


@checked
def load(
    name: str | Path,
    data_dir: str | Path | None = None,
    *,
    encoding: Encoding = "onehot",
    **options: Any,
) -> Dataset:
    """Load a data set.

    Args:
      name: an embedded set ("breast_cancer", "diabetes", "digits", "leaf_synthetic",
        "pictures_like", "purchase_like"), a public source ("adult", "att_faces", "cifar10",
        "fashion_mnist", "flight_price", "genome_hs3d", "location30", "mnist", "purchase100"), a
        part of one ("cifar10_subset"), one as a paper uses it ("adult_bachelors",
        "flight_airlines"), or the path of a table (ending in ".csv", ".tsv", ".txt" or ".data",
        compressed as ".gz", ".bz2", ".xz" or ".zip" or not).
      data_dir: folder with local copies of public sources; by default the environment's
        `JAXFL_DATA`. What is not there is downloaded; prepared sets are kept under `JAXFL_CACHE`
        (`~/.cache/jaxfl`).
      encoding: "onehot", "scalar" or "dummies", how an attribute's categories are coded (see
        `encode`).
      **options: of the generators (`leaf_synthetic`, `pictures_like`, `purchase_like`), of
        `flight_airlines`, of `read_csv` (`target`, ...), or `size=(height, width)`, to which images
        are resized.

    Raises:
      ValueError: on an unknown name, an unusable `data_dir`, or a truncated or altered file.
      ConnectionError: if a public source is neither at hand nor to be downloaded.
    """
    if isinstance(name, Path) or OF_TABLES.fullmatch(name.lower()):
        if "target" not in options:
            raise ValueError(
                f"name={str(name)!r} needs target=..., the name of the column to predict"
            )
        odd = sorted(set(options) - set(OPTIONS))
        if odd:
            raise ValueError(f"{odd[0]}=... is no option of a table; it has {', '.join(OPTIONS)}")
        return encode(read_csv(name, **options), encoding)
    if name in TABLES:
        return encode(TABLES[name](**options), encoding)
    if name in DERIVED:
        source, derive = DERIVED[name]
        return encode(derive(_source(source, data_dir), **options), encoding)
    if name in SOURCES:
        size = options.pop("size", None)
        if options:
            raise ValueError(
                f"{next(iter(options))}=... is no option of {name}; public sources take none "
                "but size"
            )
        data = encode(_source(name, data_dir), encoding)
        return data if size is None else resized(data, size)
    known = ", ".join(sorted((*TABLES, *SOURCES, *DERIVED)))
    raise ValueError(
        f"name={name!r} is no data set; choose one of {known}, or the path of a .csv file"
    )


def _source(name: str, data_dir: str | Path | None) -> Table:
    with of_extra("data"):
        from jaxfl.datasets.builders import prepared  # TensorFlow Datasets is slow to import

    return prepared(name, data_dir)


__all__ = [
    "Column",
    "Dataset",
    "Encoding",
    "Inputs",
    "Table",
    "encode",
    "load",
    "partitions",
    "read_csv",
    "read_inputs",
]
