"""Public records, by which others that are not known are judged
(`attacks.attributes.candidate_decoding.partial`)."""

import warnings

import jax
import numpy as np

from attacks.attributes.hiding import UNLIKE
from attacks.attributes.knowledge import Knowledge
from attacks.fit import FitWarning
from attacks.fixed_draws import SEED
from jaxfl import _check

Array = jax.Array
HELD_OUT = 5
"""One of so many is held out."""


def check_values(x_public: Array, knowledge: Knowledge) -> None:
    """Raise `ValueError` if public records have listed values of an unknown column that are none
    of its candidates; warn if all have the same."""
    if _check.is_unseen(x_public, *jax.tree.leaves(knowledge.columns)):
        return
    for number, column in enumerate(knowledge.columns):
        looks = np.asarray(column.candidates)
        held = np.asarray(x_public)[:, np.asarray(column.positions)]
        values, first = np.unique(held, axis=0, return_index=True)
        distances = np.abs(values[:, None] - looks).max(-1).min(1)
        # A number that candidates stand for in steps has more values than these.
        if len(values) <= len(looks) and distances.max() > UNLIKE:
            row = int(first[distances.argmax()])
            raise ValueError(
                f"x_public[{row}] holds {held[row]} in the places of columns[{number}], which is "
                "none of its candidates; give both in the model's own scale and coding"
            )
        if len(values) == 1:
            warnings.warn(
                f"decode_partial: all of x_public have {values[0]} in the places of "
                f"columns[{number}]. Is the column missing there? What other values do to a "
                "message is then taken for signal",
                FitWarning,
                stacklevel=4,
            )


def held_out_of(x: Array, y: Array) -> tuple[np.ndarray, np.ndarray]:
    """Places of public records that are held out, drawn once for all, and of the others. Copies of
    one record are on one side, if they can be seen: a record whose copy is known has no noise."""
    first = np.arange(len(x))
    if not _check.is_unseen(x, y):
        whole = np.concatenate([np.asarray(x).reshape(len(x), -1), np.asarray(y)[:, None]], 1)
        _, places, which = np.unique(whole, axis=0, return_index=True, return_inverse=True)
        first = places[which.reshape(-1)]
    drawn = np.random.default_rng(SEED).permutation(len(x))[first]
    out = drawn < max(len(x) // HELD_OUT, drawn.min() + 1)
    return np.flatnonzero(out), np.flatnonzero(~out)
