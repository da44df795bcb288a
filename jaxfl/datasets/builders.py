"""TensorFlow Datasets builders of our own: prepared once as array_record, read
without TensorFlow."""

import contextlib
import hashlib
import os
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from jaxfl.datasets.dataset import Table
from jaxfl.datasets.sources import SOURCES, VERSION, Source, SourceFile, cache_dir, content, find

_PREPARING = threading.Lock()
"""Standard output and the cache belong to the process; one thread at a time redirects the one and
fills the other."""


def prepared(name: str, data_dir: str | Path | None) -> Table:
    """The table of a public source, prepared on first use.

    Args:
      name: a key of `SOURCES`.
      data_dir: folder with local copies, `<data_dir>/<name>/<file>` or `<data_dir>/<file>`, gzipped
        or not; by default `JAXFL_DATA`. Files that are not there are downloaded.

    Raises:
      ValueError: if `data_dir` does not exist, or a file is truncated or altered.
      ConnectionError: if a file is neither there nor to be downloaded.
    """
    folder = data_dir or os.environ.get("JAXFL_DATA")
    if folder is not None and not Path(folder).is_dir():
        raise ValueError(
            f"data_dir={str(folder)!r} is not a folder; give the folder that holds the sources' "
            "files"
        )
    source = SOURCES[name]
    local = {
        file.name: path
        for file in source.files
        if folder and (path := find(Path(folder), name, file))
    }
    # A present local copy is always read and checked, so that a bad one is never hidden by what was
    # prepared before.
    contents = {
        file.name: content(file, local[file.name]) for file in source.files if file.name in local
    }

    # What was prepared of other files, which a source without checksums allows, is another set.
    told = "".join(hashlib.sha256(contents[key]).hexdigest() for key in sorted(contents))
    folder = cache_dir() / hashlib.sha256(told.encode()).hexdigest()[:16] if told else cache_dir()

    def builder() -> tfds.core.DatasetBuilder:
        return _builder(name, source)(
            data_dir=str(folder), contents=contents, file_format="array_record"
        )

    tfds.disable_progress_bar()
    with _PREPARING, contextlib.redirect_stdout(sys.stderr):  # TFDS prints what it prepares
        try:
            builder().download_and_prepare()
        except OSError:  # another process may have been first to move its copy into place
            if not builder().is_prepared():
                raise
        return _read(builder())


NUMBER = "<f4"
"""How numbers are kept, as bytes."""
BLOCK = 1024
"""Rows of the files in one example."""
DESCRIPTION = ("names", "categories", "classes", "codes", "note", "shape")
"""Fields of a table that describe its columns; they are kept as the prepared set's metadata."""


def _builder(source_name: str, source: Source) -> type[tfds.core.GeneratorBasedBuilder]:
    """A builder class for one source, whose examples are blocks of the files' rows: one at a time
    TensorFlow Datasets takes ten times as long."""

    # Unregistered: the class depends on its source, and TFDS would refuse a second one.
    with tfds.core.registered.skip_registration():

        class Builder(tfds.core.GeneratorBasedBuilder):
            name = source_name
            VERSION = tfds.core.Version(VERSION)

            def __init__(self, *, contents: dict[str, bytes], **arguments: Any):
                self._contents = contents
                super().__init__(**arguments)

            def _info(self) -> tfds.core.DatasetInfo:
                numbers = tfds.features.Scalar(dtype=np.object_)  # the bytes of little float32s
                features = {"values": numbers, "y": numbers, "row": np.int64}
                return tfds.core.DatasetInfo(
                    builder=self,
                    features=tfds.features.FeaturesDict(features),
                    metadata=tfds.core.MetadataDict(),
                )

            def _split_generators(
                self, dl_manager: tfds.download.DownloadManager
            ) -> dict[str, Any]:
                contents = dict(self._contents)
                for file in source.files:
                    if file.name not in contents:
                        contents[file.name] = content(file, _download(file, dl_manager))
                table = source.parse(contents)
                self.info.metadata.update({field: getattr(table, field) for field in DESCRIPTION})
                return {"records": self._generate_examples(table)}

            def _generate_examples(self, table: Table) -> Iterator[tuple[int, dict[str, Any]]]:
                values, y = table.values.astype(NUMBER), table.y.astype(NUMBER)
                for row in range(0, len(y), BLOCK):
                    block = slice(row, row + BLOCK)
                    held = {"values": values[block].tobytes(), "y": y[block].tobytes()}
                    yield row, {**held, "row": row}

    return Builder


def _download(file: SourceFile, manager: tfds.download.DownloadManager) -> Path:
    try:
        # TFDS repeats a failed request for minutes; an address that cannot be reached should say so
        # at once.
        urllib.request.urlopen(file.url, timeout=20).close()
        return Path(manager.download(file.url))
    except (OSError, tfds.download.DownloadError) as error:
        mend = f"put {file.name} into a folder and name it with data_dir (--data-dir, JAXFL_DATA)"
        raise ConnectionError(
            f"{file.url} could not be downloaded ({type(error).__name__}: {error}); {mend}"
        ) from error


def _read(builder: tfds.core.DatasetBuilder) -> Table:
    source = builder.as_data_source(split="records")
    blocks = source.__getitems__(list(range(len(source))))
    blocks = sorted(blocks, key=lambda block: block["row"])  # TFDS shuffles by a hash of the key
    y, values = (
        np.frombuffer(b"".join(block[name] for block in blocks), NUMBER).astype(np.float32)
        for name in ("y", "values")
    )
    values = values.reshape(len(y), -1)
    about = builder.info.metadata
    codes, shape = (
        None if about[name] is None else tuple(about[name]) for name in ("codes", "shape")
    )
    categories = tuple(tuple(c) for c in about["categories"])
    names, classes = tuple(about["names"]), about["classes"]
    return Table(
        builder.name, values, y, names, categories, classes, codes, note=about["note"], shape=shape
    )
