"""Directions that all records but one are orthogonal to, told by the errors alone.

With one hidden layer and two classes all errors of a record point along one known vector, the
difference c of the output layer's columns, but for units that the record does not activate. So
`G / c = sum_i a_i [x_i, 1]'` with `a_i >= 0` (or `<= 0`, by the label) and zeros at about half of
the units. The cone of combinations of the columns that are nowhere negative has the `a_i` among its
edges, and because of their many zeros a linear programme with a random objective often ends at one.
Its combination v of the inputs, `G v / c = a_i`, is orthogonal to all records but i. Nothing of the
schema enters.

Clients that take several steps a round sum such errors: c changes a little on the way, and units
where it may change its sign are left out.

Edges of one record are told from those of several by the rank. Units at which an edge is 0 have no
error of its record, and their rows of the gradient lack the record. The rows are more than the
rank, and span the inputs of all other records.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy.optimize import linprog

from attacks.records.spans import Span
from jaxfl import Model

ZERO = 1e-4
"""Part of an edge's largest number, below which a number of the edge is taken for 0; and by how
much the cosine of two edges may lie below 1 for one edge found twice."""
SPARE = 3
"""Zeros of an edge beyond those that any has; so many units that are 0 by no coincidence."""
IDLE, EQUAL = 0.3, 1e-6
"""After one step: share of the units that a record does not activate, at least, and what the
squared cosine of its errors relative to c with a constant lacks of 1."""
SCALES = (0.5, 1.0, 1.5)
"""Powers of the singular values by which objectives are drawn: large ones end at the same edges
often, small ones seldom at any."""
MOST_USED = 16
"""Directions that are looked at together."""
LACKING = 20.0
"""In units of the noise, what units that lack a record may have left of it."""
STILL_THERE = 0.5
"""Share of a record's errors that what is left has of one that is not taken."""
LEVERAGE = 0.99
"""Largest leverage of one of the units that lack a record. Edges of two records are 0 where both
records are idle and at one more unit, which alone tells the two apart: its leverage is 1."""


@struct.dataclass
class Isolated:
    """Directions `[MOST_USED, inputs]` that the records looked for are orthogonal to, padded with
    zeros.

    Attributes:
      directions: of length 1.
      spread: what makes their standard deviation `[MOST_USED, k, inputs]`: a record's inputs times
        it are as long as its product with the direction is unsure.
    """

    directions: Any
    spread: Any

    @staticmethod
    def none(inputs: int, k: int) -> "Isolated":
        """What is isolated of no record."""
        return Isolated(np.zeros((MOST_USED, inputs)), np.zeros((MOST_USED, k, inputs)))


def slopes_of(model: Model, received: Any, returned: Any) -> np.ndarray | None:
    """c `[units]` of one round, 0 where it may change its sign on the way; None for models of other
    than two classes or of more hidden layers."""
    layers = model.layers
    if layers is None or len(layers.names) != 2 or model.classes != 2:
        return None
    ends = [
        np.asarray(layers.parameters(tree, layers.names[1])["kernel"], np.float64)
        for tree in (received, received if returned is None else returned)
    ]
    if ends[0].shape[1] != 2:
        return None
    before, after = (kernel[:, 1] - kernel[:, 0] for kernel in ends)
    steady = np.minimum(abs(before), abs(after)) > abs(after - before)
    return np.asarray(np.where(steady, before, 0.0))


def edges(
    gradient: np.ndarray,
    rank: int,
    slopes: np.ndarray,
    rng: np.random.Generator,
    programmes: int,
    *,
    one_step: bool,
) -> np.ndarray:
    """Directions `[found, inputs]` of edges with many zeros, by so many linear programmes.

    Args:
      gradient: of the first layer in one round `[units, inputs]`.
      rank: number of different records.
      slopes: see `slopes_of`.
      rng: draws the objectives.
      programmes: how many.
      one_step: whether the errors of a record are exactly c where it activates a unit.
    """
    used = (slopes != 0) & gradient.any(1)
    if used.sum() < rank + SPARE:
        return np.zeros((0, gradient.shape[1]))
    slopes = slopes[used]
    left, values, right = np.linalg.svd(gradient[used] / slopes[:, None], full_matrices=False)
    left, values, right = left[:, :rank], values[:rank], right[:rank]
    # A combination is 1 in sum, which bounds the cone.
    cone = {"A_ub": -left, "b_ub": np.full(len(left), 1e-7), "A_eq": left.sum(0)[None], "b_eq": 1.0}
    directions = []
    for _ in range(programmes):
        objective = rng.normal(size=rank) * values ** rng.choice(SCALES)
        end = linprog(objective, **cone, bounds=(None, None), method="highs").x
        if end is None:
            continue
        errors = np.abs(left @ end)
        idle = errors <= ZERO * errors.max()
        enough = rank - 1 + SPARE if not one_step else max(rank - 1 + SPARE, IDLE * len(errors))
        if idle.sum() >= enough and (not one_step or _equal(errors[~idle])):
            directions.append((end / values) @ right)
    return np.reshape(directions, (-1, gradient.shape[1]))


def _equal(errors: np.ndarray) -> bool:
    """Whether errors relative to c are all one number."""
    return bool(1 - errors.sum() ** 2 / (len(errors) * (errors**2).sum()) <= EQUAL)


def distinct(gradient: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Directions of one record each `[kept, inputs]`, by what they leave of the gradient."""
    kept: list[np.ndarray] = []
    seen: list[np.ndarray] = []
    for direction in directions:
        errors = gradient @ direction
        errors /= max(float(np.linalg.norm(errors)), np.finfo(float).tiny)
        if all(abs(errors @ other) < 1 - ZERO for other in seen):
            seen, kept = [*seen, errors], [*kept, direction]
    return np.reshape(kept, (-1, gradient.shape[1]))


def isolated(gradient: np.ndarray, span: Span, directions: np.ndarray) -> Isolated:
    """Directions as exact as the units that lack their records tell them, and how exact that is;
    without those that no longer isolate a record.

    Args:
      gradient: of the first layer in one round `[units, inputs]`.
      span: its spans, arrays without rounds.
      directions: `[<= MOST_USED, inputs]`.
    """
    rank, rows = span.rank, np.asarray(span.rows)[:, : span.rank]
    answer = Isolated.none(gradient.shape[1], span.rows.shape[1])
    told = [_lacking(gradient, span, direction) for direction in directions]
    for place, (values, right) in enumerate(each for each in told if each is not None):
        answer.directions[place] = rows @ right[-1]
        spread = float(span.noise) / values[:-1, None] * right[:-1]
        answer.spread[place, : rank - 1] = spread @ rows.T
    return answer


def _lacking(
    gradient: np.ndarray, span: Span, direction: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Singular values, and right vectors in the span's rows, of the units that a direction says to
    lack its record; None unless they lack exactly one record."""
    rows = np.asarray(span.rows)[:, : span.rank]
    coordinates = gradient @ rows
    errors = np.abs(coordinates @ (rows.T @ direction))
    idle = (errors < ZERO * errors.max()) & gradient.any(1)
    if idle.sum() < span.rank - 1 + SPARE:
        return None
    left, values, right = np.linalg.svd(coordinates[idle], full_matrices=False)
    noise = float(span.noise)
    lacks = values[-1] <= LACKING * noise * np.sqrt(idle.sum())
    no_other = values[-2] > LACKING * noise and (left[:, :-1] ** 2).sum(1).max() < LEVERAGE
    return (values, right) if lacks and no_other else None


def proven(gradient: np.ndarray, span: Span, directions: np.ndarray) -> np.ndarray:
    """Directions `[kept, inputs]` of which enough units lack exactly one record: more than any edge
    has zeros at. Arguments as of `isolated`, any number of directions."""
    kept = [_lacking(gradient, span, direction) is not None for direction in directions]
    return directions[np.asarray(kept, bool)]


def of_the_rest(gradient: np.ndarray, left: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Directions `[kept, inputs]` of records that are not taken yet: what is left has their errors
    still.

    Args:
      gradient, left: of everything, and what is left of it `[units, inputs]`.
      directions: `[n, inputs]`.
    """
    before, after = (np.linalg.norm(g @ directions.T, axis=0) for g in (gradient, left))
    return directions[after > STILL_THERE * before]


def orthogonal_part(gradients: np.ndarray, rows: np.ndarray, used: Isolated) -> np.ndarray:
    """Gradients `[n, inputs]` without what is along the directions in their span, of which `rows`
    `[inputs, rank]` are a basis: of the other records."""
    there = used.directions[np.any(used.directions != 0, axis=1)]
    basis = np.linalg.qr(rows @ (rows.T @ there.T))[0]
    return gradients - (gradients @ basis) @ basis.T


def off_directions(used: Isolated, inputs: Any) -> Any:
    """How far inputs `[inputs]`, their 1 for the bias included, are from being orthogonal to each
    direction `[MOST_USED]`, in standard deviations."""
    spread = jax.lax.stop_gradient(jnp.linalg.norm(used.spread @ inputs, axis=-1))
    return used.directions @ inputs / (spread + jnp.finfo(spread.dtype).tiny)
