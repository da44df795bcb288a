"""A table's columns as an adversary does not know them.

Threat model: of every attribute attack: the adversary knows a client's records but for some
columns, and which values each of these may have.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Num

from attacks.attributes.knowledge import Knowledge, UnknownColumn
from jaxfl import _check
from jaxfl.domains import checked
from jaxfl.schema import Listed, Schema

UNLIKE = 1e-3
"""How far a record may lie from a value that is its own."""


@dataclasses.dataclass(frozen=True)
class Hidden:
    """Records of which some columns are hidden, and the truth.

    Attributes:
      knowledge: what attacks take.
      truth: per hidden column the index of each record's value among its candidates `[records]`:
        what an answer's `values` are to be compared with.
    """

    knowledge: Knowledge
    truth: tuple[Int[np.ndarray, "records"], ...]


@checked
def hide(
    x: Num[np.ndarray, "records features"],
    y: Num[np.ndarray, "records"],
    schema: Schema,
    columns: Sequence[str],
    *,
    priors: Mapping[str, Num[np.ndarray, "candidates"]] | None = None,
) -> Hidden:
    """What an adversary knows of a client's records that has all but some columns.

    Args:
      x: the client's records `[records, features]`.
      y: their labels `[records]`.
      schema: what each column may be (`jaxfl.datasets.Dataset.schema`).
      columns: names of the columns that the adversary does not know. Columns that another one tells
        (a category and its number) are hidden together.
      priors: distributions of columns, by their names, that the adversary knows: of the candidates
        in the schema's order `[candidates]` (`jaxfl.datasets.Dataset.prior`, of categories).

    Raises:
      ValueError: if a column does not exist, is hidden twice, or holds numbers too many to be
        listed; or the records are not of the schema.
    """
    if not columns:
        raise ValueError("columns=() names no unknown column; give at least one")
    priors, hidden = dict(priors or {}), [_listed(schema, name) for name in columns]
    odd = [name for name in priors if name not in columns]
    if odd:
        raise ValueError(f"priors={odd[0]!r} is none of columns={tuple(columns)}")
    _check.shape((None, schema.features), x=x)
    x, unknown, truth = np.array(x, np.result_type(x, np.float32)), [], []
    for name, attribute in zip(columns, hidden, strict=True):
        places = list(attribute.positions)
        distance = np.abs(x[:, None, places] - attribute.looks).sum(-1)
        if np.isnan(distance).any():
            raise ValueError(f"columns={tuple(columns)} hides {name!r} twice, or x is NaN there")
        if (distance.min(1) > UNLIKE).any():
            odd_row = int(distance.min(1).argmax())
            raise ValueError(
                f"x[{odd_row}] holds {x[odd_row, places]} for {name!r}, which is none of the "
                "schema's values; are its records of another scaling or coding?"
            )
        if name in priors:
            _check.distribution(len(attribute.looks), **{f"priors[{name!r}]": priors[name]})
        prior = jnp.asarray(priors[name], jnp.float32) if name in priors else None
        candidates = jnp.asarray(attribute.looks, jnp.float32)
        unknown.append(UnknownColumn(jnp.asarray(places), candidates, prior))
        truth.append(distance.argmin(1))
        x[:, places] = np.nan
    return Hidden(Knowledge(jnp.asarray(x), jnp.asarray(y), tuple(unknown)), tuple(truth))


def _listed(schema: Schema, name: str) -> Listed:
    for attribute in schema.listed:
        if name in attribute.columns:
            return attribute
    if name in schema.columns:
        raise ValueError(
            f"columns={name!r} holds too many numbers to be listed; cut it into bins "
            "(sensitive=...), or give an UnknownColumn with candidates"
        )
    raise ValueError(
        f"columns={name!r} does not exist; the schema has {', '.join(schema.columns[:20])}"
    )
