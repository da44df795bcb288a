"""Records of tables with many columns, as vertices: no search by single attributes.

The records of one client are points of the span of their layer's inputs, and the values that a
schema allows are a box. A record whose columns are all answers of yes and no is a corner of the
box, so it is a vertex of what the span cuts out of the box. A linear programme with a random
objective ends at a vertex. It ends at a record far more often on a side of the box that few records
lie on: where a column has its largest value that few records have.
"""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from attacks.records.search import ABSENT
from attacks.records.spans import Span
from jaxfl.schema import Schema

DRAWN = 64
"""Linear programmes of a pass."""
SLACK = 1e-6
"""By which records may lie outside the box: the span is as exact as its noise."""


def vertices(schema: Schema, span: Span, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Where linear programmes end, each place once, as records of the schema.

    Args:
      schema: of the table.
      span: of the records as the first layer's inputs.
      rng: draws objectives and sides.

    Returns:
      Values of the listed attributes `[ends, listed]`, and measured columns as features `[ends,
      measured]`.
    """
    basis = np.asarray(span.rows)[:, : span.rank]
    features, bias = basis[: schema.features], basis[schema.features :]
    low, high = _box(schema)
    lengths = np.linalg.norm(features, axis=1)
    bounded = lengths > ABSENT
    # The squared length of a feature's projection is at most the number of records that have it.
    sides = np.flatnonzero(bounded & _is_listed(schema))
    if not len(sides):
        return schema.places(np.zeros((0, schema.features))), np.zeros((0, len(schema.measured)))
    rare = lengths[sides] ** -2.0
    ends = []
    for _ in range(DRAWN):
        side = rng.choice(sides, p=rare / rare.sum())
        least = np.where(np.arange(len(low)) == side, high, low)[bounded] - SLACK
        inside = LinearConstraint(features[bounded], least, high[bounded] + SLACK)
        whole = [LinearConstraint(bias, 1.0, 1.0)] if len(bias) else []
        objective = rng.normal(size=span.rank)
        end = milp(objective, bounds=Bounds(-np.inf, np.inf), constraints=[inside, *whole]).x
        if end is not None:
            ends.append(features @ end)
    x = np.reshape(ends, (-1, schema.features))
    places = schema.places(x)
    _, first = np.unique(places, axis=0, return_index=True)
    return places[first], x[first][:, schema.positions]


def _box(schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest value of every feature."""
    low, high = np.zeros(schema.features), np.zeros(schema.features)
    for listed in schema.listed:
        places = list(listed.positions)
        low[places], high[places] = listed.looks.min(0), listed.looks.max(0)
    for measured in schema.measured:
        ends = measured.feature(measured.low), measured.feature(measured.high)
        low[measured.position], high[measured.position] = ends
    return low, high


def _is_listed(schema: Schema) -> np.ndarray:
    chosen = np.ones(schema.features, bool)
    chosen[schema.positions] = False
    return chosen
