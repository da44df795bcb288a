"""A table that holds a model's inputs as they were: nothing is scaled, nothing is coded."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.datasets.cells import DecimalMark, read_cells, read_numbers
from jaxfl.domains import checked

MOST_LABELS = 100_000
"""A model has an output for each."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Records as a model was given them.

    Attributes:
      names: of the inputs.
      x: inputs `[records, inputs]`, float32.
      y: labels `[records]`, int32, as the model's outputs count them.
      clients: whose each record is; "" where the file does not say.
    """

    names: tuple[str, ...]
    x: np.ndarray
    y: np.ndarray
    clients: tuple[str, ...]

    def of(self, client: str) -> "Inputs":
        """One client's records; all of them if the file names no clients.

        Raises:
          ValueError: if the client has none.
        """
        if set(self.clients) == {""}:
            return self
        rows = [i for i, name in enumerate(self.clients) if name == client]
        if not rows:
            known = ", ".join(sorted(set(self.clients))[:10])
            raise ValueError(
                f"client={client!r} has no records; the table has those of {known}: call it as "
                "there, or name others"
            )
        names = tuple(self.clients[i] for i in rows)
        return Inputs(self.names, self.x[rows], self.y[rows], names)

    def values_of(self, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What columns may be together: their positions `[D]`, the values that occur `[K, D]`, and
        which of these every record has `[records]`.

        Raises:
          ValueError: if a column does not exist, or they are of one value.
        """
        if isinstance(columns, str):
            raise ValueError(f"columns={columns!r} is one name; give a sequence of names")
        for column in columns:
            if column not in self.names:
                raise ValueError(
                    f"column={column!r} does not exist; columns: {', '.join(self.names)}"
                )
        positions = np.asarray([self.names.index(column) for column in columns])
        values, places = np.unique(self.x[:, positions], axis=0, return_inverse=True)
        if len(values) < 2:
            raise ValueError(f"columns={tuple(columns)} are {values[0]} everywhere")
        return positions, values, places.reshape(-1)


@checked
def read_inputs(
    path: str | Path,
    target: str,
    client: str | None = None,
    *,
    drop: Sequence[str] = (),
    separator: str | None = None,
    text_encoding: str = "utf-8",
    decimal: DecimalMark = ".",
) -> Inputs:
    """Read a table of numbers whose columns, in their order, are a model's inputs.

    Args:
      path: the file, with a header.
      target: the column of labels, 0, 1, 2, ... as the model's outputs count them.
      client: the column that says whose a record is, or None.
      drop: columns that the model is not given.
      separator, text_encoding, decimal: see `read_csv`.

    Raises:
      ValueError: if a column does not exist, or is both target and client, a cell holds no number,
        or a label is no such integer.
      FileNotFoundError: if there is no such file.
    """
    header, rows = read_cells(Path(path), text_encoding, separator)
    told: dict[str, Sequence[str]] = {"target": [target], "drop": drop}
    told |= {"client": [] if client is None else [client]}
    for argument, names in told.items():
        for name in names:
            if name not in header:
                raise ValueError(
                    f"{argument}={name!r} is not a column of {path}; columns: {', '.join(header)}"
                )
    if client == target:
        raise ValueError(f"client={client!r} is the target; name the column that says whose it is")
    left = [name for name in header if name not in {target, client, *drop}]
    if not left:
        raise ValueError(f"path={str(path)!r} has no column that the model could be given")

    def cells(name: str) -> list[str]:
        return [row[header.index(name)] for row in rows]

    x = np.stack([_whole(name, cells(name), decimal) for name in left], 1).astype(np.float32)
    labels = _whole(target, cells(target), decimal, is_target=True)
    if (labels < 0).any() or (labels != np.rint(labels)).any():
        odd = labels[(labels < 0) | (labels != np.rint(labels))][0]
        raise ValueError(f"target={target!r} holds the label {odd:g}; labels are 0, 1, 2, ...")
    if labels.max(initial=0) >= MOST_LABELS:
        raise ValueError(
            f"target={target!r} holds the label {labels.max():.0f}; labels are 0, 1, 2, ..., below "
            f"{MOST_LABELS}"
        )
    clients = tuple(cells(client)) if client is not None else ("",) * len(rows)
    return Inputs(tuple(left), x, labels.astype(np.int32), clients)


def _whole(name: str, texts: list[str], decimal: str, is_target: bool = False) -> Any:
    """Numbers, none of which is missing."""
    try:
        values = read_numbers(name, texts, decimal)
    except ValueError as error:
        said = str(error).partition("; ")[0]
        mend = f"drop={name!r}, or client={name!r} if it says whose a record is"
        raise ValueError(
            f"{said}; the model was given numbers alone{'' if is_target else f': {mend}'}"
        ) from None
    missing = np.isnan(values)
    if missing.any():
        row = int(missing.argmax())
        raise ValueError(
            f"column {name!r} holds {texts[row]!r} in row {row + 2}; the model was given a number"
        )
    return values
