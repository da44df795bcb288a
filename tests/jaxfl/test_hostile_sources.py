"""Files of sources that were replaced, that hold what they must not, or that were made to harm."""

import gzip
import tarfile

import pytest

from jaxfl.datasets import Table, compressed, formats, load, sources
from jaxfl.datasets.builders import prepared


def _toy_source(monkeypatch, **file):
    source = sources.Source(
        (sources.SourceFile("toy.csv", "http://localhost/toy.csv", **file),),
        lambda contents: Table(
            "toy", formats.integers(contents["toy.csv"])[:, 1:], *_labels(contents)
        ),
    )
    monkeypatch.setitem(sources.SOURCES, "toy", source)


def _labels(contents):
    return formats.integers(contents["toy.csv"])[:, 0] - 1, ("a",), ((),), 2


def test_a_replaced_file_is_prepared_anew(tmp_path, cache, monkeypatch):
    """Of a source without a checksum."""
    _toy_source(monkeypatch)
    for first in (3, 4):
        (tmp_path / "toy.csv").write_text(f"1,{first}\n2,9\n")
        table = prepared("toy", tmp_path)
        assert table.values[0, 0] == first


def test_labels_that_are_no_class_are_refused(tmp_path, cache, monkeypatch):
    """As a label 0 where labels count from 1, or one beyond the last."""
    _toy_source(monkeypatch)
    for label in (0, 3):
        (tmp_path / "toy.csv").write_text(f"1,3\n{label},9\n")
        with pytest.raises(ValueError, match=r"table\.y holds the label"):
            load("toy", tmp_path)


def _bomb(path):
    path.write_bytes(gzip.compress(bytes(10_000)))


def _loop(path):
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("toy.csv")
        link.type, link.linkname = tarfile.SYMTYPE, "toy.csv"
        archive.addfile(link)


@pytest.mark.parametrize("spoil", [_bomb, _loop])
def test_hostile_archives_are_refused(tmp_path, monkeypatch, spoil):
    monkeypatch.setattr(compressed, "MOST_BYTES", 1000)
    monkeypatch.setattr(compressed, "MOST_GROWTH", 2)
    spoil(tmp_path / "toy.tar.gz")
    file = sources.SourceFile("toy.tar.gz", "http://localhost/toy.tar.gz", "toy.csv")
    with pytest.raises(ValueError, match="truncated or not the archive expected"):
        sources.content(file, tmp_path / "toy.tar.gz")
