"""The folder of results: two writers at once, and a disk that is full."""

import errno
import sqlite3
import threading
from pathlib import Path

import pytest

from benchmarks.harness.store import COLUMNS, Row, Store, write_whole


def row(job, value=0.5):
    empty = dict.fromkeys(COLUMNS) | {"settings": "{}", "detail": "{}", "status": "ok"}
    return Row(job, empty | {"selection": "none", "metric": "accuracy", "value": value, "seed": 0})


def jobs(store):
    return {key for (key,) in store._database.execute("SELECT job FROM results")}


def test_two_sweeps_into_one_folder_lose_no_row(tmp_path):
    failures = []

    def write(name):
        try:
            store = Store(tmp_path)
            for number in range(100):
                store.add([row(f"{name}{number}"), row("both", number / 100)])
            store.close()
        except Exception as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    store = Store(tmp_path)
    expected = {f"{name}{number}" for name in "ab" for number in range(100)}
    assert jobs(store) == expected | {"both"}
    store.close()


def test_a_full_disk_keeps_every_row_that_was_written(tmp_path):
    store = Store(tmp_path)
    store.add([row("first")])
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count={pages}")
    large = Row("large", row("large").values, {"picture": bytes(1_000_000)})
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.add([row("second"), large])
    assert jobs(store) == {"first"}
    store.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE results SET seed = 'x'", "holds a damaged row: seed is 'x'"),
        ("UPDATE results SET value = 'high'", "holds a damaged row: value is 'high'"),
        ("UPDATE results SET settings = '{'", "holds a damaged row"),
        ("DROP TABLE results", r"results\.sqlite cannot be read .*move it away"),
    ],
)
def test_a_damaged_store_is_named(damage, said, tmp_path):
    store = Store(tmp_path)
    store.add([row("first")])
    with store._database:
        store._database.execute(damage)
    with pytest.raises(ValueError, match=said):
        store.rows()
    store.close()


def test_a_file_that_does_not_fit_leaves_the_old_one(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "results.csv", "old")

    def full(self, *arguments, **options):
        Path.write_bytes(self, b"half of the")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["results.csv"]
