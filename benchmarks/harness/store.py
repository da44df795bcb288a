"""Results on disk: SQLite, one row per (job, selection, metric), committed as soon as it is
measured."""

import contextlib
import csv
import dataclasses
import io
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

COLUMNS = (
    *(
        "suite",
        "table",
        "size",
        "dataset",
        "method",
        "selection",
        "metric",
        "seed",
        "value",
        "status",
    ),
    *("chance", "majority", "imputation", "null", "explained", "misfit", "published"),
    *("train_accuracy", "test_accuracy", "compile_s", "run_s"),
    *("device", "dtype", "versions", "code", "settings", "detail"),
)
"""Columns of `results.csv`, fixed."""

_VERSION = 4
"""Of the columns below: a folder that has others is refused."""
PATIENCE = 60.0
"""Seconds for which a writer waits for another one."""
_CREATE = f"""
CREATE TABLE IF NOT EXISTS results (
  job TEXT NOT NULL, {", ".join(f'"{name}"' for name in COLUMNS)},
  PRIMARY KEY (job, selection, metric)
)"""
_CREATE_IMAGES = """
CREATE TABLE IF NOT EXISTS images (
  job TEXT NOT NULL, caption TEXT NOT NULL, png BLOB NOT NULL, PRIMARY KEY (job, caption)
)"""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row: the job's key, a value for each of `COLUMNS`, and PNG images by caption."""

    job: str
    values: dict[str, Any]
    images: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


def write_whole(path: Path, text: str) -> Path:
    """Write a file that is either the old one or the whole new one, whatever happens."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", newline="")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def _connected(path: Path) -> sqlite3.Connection:
    """A connection that waits for other writers. SQLite waits by itself, but not where two put a
    new file into its write-ahead mode at once."""
    database = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            return database
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.02)


class Store:
    """An open results folder. Survives `kill -9`: a row is either whole or absent."""

    def __init__(self, folder: str | Path):
        """Open or create `folder/results.sqlite`.

        Raises:
          ValueError: if the folder cannot be written, or what stands there is not a store of this
            version.
        """
        self.folder = Path(folder)
        self.path = self.folder / "results.sqlite"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._database = _connected(self.path)
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise ValueError(
                    f"out={str(folder)!r} was written by another version of jaxfl; choose "
                    "another folder"
                )
            if not version and (self.folder / "results.csv").is_file():
                raise ValueError(
                    f"out={str(folder)!r} holds a results.csv, and {self.path.name} is empty or "
                    "missing: move results.csv away, which would be written anew, or choose "
                    "another folder"
                )
            self._database.execute(_CREATE)
            self._database.execute(_CREATE_IMAGES)
            self._database.execute(f"PRAGMA user_version={_VERSION}")
            self._database.execute(
                "BEGIN IMMEDIATE"
            )  # a folder that can only be read is found out now
            self._database.execute("ROLLBACK")
            self._database.execute(
                "SELECT job, " + ", ".join(f'"{c}"' for c in COLUMNS) + " FROM results LIMIT 1"
            )
        except OSError as error:
            raise ValueError(
                f"out={str(folder)!r} cannot be written ({error.strerror}); choose another folder"
            ) from error
        except sqlite3.Error as error:
            mend = "move results.sqlite away or choose another folder"
            raise ValueError(
                f"out={str(folder)!r} holds no usable results ({error}); {mend}"
            ) from error

    def finished(self) -> dict[str, str]:
        """Keys of the jobs of which nothing failed, each with the code that measured it
        (`benchmarks.harness.code`)."""
        query = "SELECT job, MAX(code) FROM results GROUP BY job HAVING SUM(value IS NULL) = 0"
        with self._reading():
            return dict(self._database.execute(query))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Raises `ValueError` on a file that is damaged; one that is locked, or a disk that fails,
        is no reason to move it away."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                raise
            raise ValueError(
                f"{self.path} cannot be read ({error}): move it away, or choose another folder"
            ) from error

    def failed(self, keys: set[str]) -> list[str]:
        """Distinct statuses of those of these jobs that have no value."""
        with self._reading():
            rows = self._database.execute("SELECT job, status FROM results WHERE value IS NULL")
            return sorted({status for key, status in rows if key in keys})

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows in one transaction, replacing what the same jobs left before."""
        names = ", ".join(f'"{c}"' for c in ("job", *COLUMNS))
        marks = ", ".join("?" * (len(COLUMNS) + 1))
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            rows = list(rows)
            for name in ("results", "images"):
                self._database.executemany(
                    f"DELETE FROM {name} WHERE job = ?",
                    [(key,) for key in {row.job for row in rows}],
                )
            pictures = [
                (row.job, caption, png) for row in rows for caption, png in row.images.items()
            ]
            self._database.executemany("INSERT OR REPLACE INTO images VALUES (?, ?, ?)", pictures)
            self._database.executemany(
                f"INSERT INTO results ({names}) VALUES ({marks})",
                [(r.job, *(r.values[c] for c in COLUMNS)) for r in rows],
            )

    def rows(self, keys: set[str] | None = None) -> list[dict[str, Any]]:
        """All rows, or those of jobs with these keys: ordered, with `settings` and `detail`
        parsed."""
        order = "suite, length([table]), [table], rowid"
        names = ", ".join(f'"{c}"' for c in ("job", *COLUMNS))
        with self._reading():
            cursor = self._database.execute(f"SELECT {names} FROM results ORDER BY {order}")
            rows = [
                dict(zip(COLUMNS, values, strict=True))
                for job, *values in cursor
                if keys is None or job in keys
            ]
        try:
            return [_parsed(row) for row in rows]
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"{self.path} holds a damaged row: {error}") from error

    def images(self) -> list[dict[str, Any]]:
        """All images, ordered: `suite`, `table`, `size`, `dataset`, `method`, `seed` of their job,
        `caption` and `png`."""
        names = ("suite", "table", "size", "dataset", "method", "seed")
        columns = ", ".join(f'first."{name}"' for name in names)
        with self._reading():
            cursor = self._database.execute(
                f"SELECT {columns}, caption, png FROM images JOIN (SELECT * FROM results GROUP BY "
                "job) AS first USING (job)"
                " ORDER BY images.rowid"
            )
            return [dict(zip((*names, "caption", "png"), values, strict=True)) for values in cursor]

    def write_csv(self) -> Path:
        """Write `results.csv` anew from the store."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(
            row | {n: json.dumps(row[n], sort_keys=True) for n in ("settings", "detail")}
            for row in self.rows()
        )
        return write_whole(self.folder / "results.csv", text.getvalue())

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _parsed(row: dict[str, Any]) -> dict[str, Any]:
    """Raises `TypeError` on a column of another kind."""
    for name, kinds in (("seed", int), ("value", (float, int, type(None)))):
        if not isinstance(row[name], kinds):
            raise TypeError(f"{name} is {row[name]!r}")
    return row | {name: json.loads(row[name]) for name in ("settings", "detail")}


@contextlib.contextmanager
def opened(folder: str | Path) -> Iterator[Store]:
    """A folder that holds results, closed afterwards.

    Raises:
      ValueError: if it holds none, or as `Store`.
    """
    path = Path(folder) / "results.sqlite"
    if not path.is_file() or not path.stat().st_size:
        what = "an empty results.sqlite" if path.is_file() else "no results.sqlite"
        raise ValueError(f"out={str(folder)!r} holds {what}; run python -m benchmarks.sweep first")
    store = Store(folder)
    try:
        yield store
    finally:
        store.close()
