"""What the messages of clients that take several steps a round say of a record.

A record's inputs to the first layer are the same in all steps, so that the sum of its gradients is
`errors [inputs, 1]'`, with the sum of its errors. Those are not known; but units that the record
never activates have none. So the rows of the gradient of these units lack the record: their rank is
less by one, and what they lack is the record's errors. Which units it never activates is known at
both ends of the client's way only, so that a few may be wrong.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attacks.records.evidence import Evidence, errors_of_first, extended
from attacks.records.spans import Span
from jaxfl import Model

Array = jax.Array
SAME_LABEL, OTHER_LABEL = 0.8, 0.5
"""Cosines of a record's summed errors with those of one step: of its label at least the first, of
all others at most the second."""
DETOURS, SPARE = 3, 2
"""Units that may be active on a client's way though they are at neither end; and by how many more
the others are than their rank, for a lacking dimension to prove something."""
ALIKE = 20.0
"""Times the least distance that is called the same."""
LEAST_PART = 1e-3
"""Least part of a record in the rows that its units lack; below it, the units lack another."""


@functools.partial(jax.jit, static_argnames="model")
def off_idle(model: Model, evidence: Evidence, x: Array) -> Array:
    """How far the units that a record never activates are from lacking one record `[records,
    classes]`, infinite for labels that are not its: about 1 for a right one."""
    off, cosines, _, _ = jax.vmap(lambda record: _judged(model, evidence, record))(x)
    others = jnp.where(jnp.eye(cosines.shape[-1], dtype=bool), -jnp.inf, cosines[:, None, :])
    labelled = (cosines >= SAME_LABEL) & (others.max(-1) <= OTHER_LABEL)
    return jnp.where(labelled, off[:, None], jnp.inf)


@functools.partial(jax.jit, static_argnames="model")
def summed_errors(model: Model, evidence: Evidence, x: Array) -> tuple[Array, Array]:
    """The sum of each record's errors in every round `[records, rounds, outputs]`, and the standard
    deviation of its length by the messages' noise `[records, rounds]`: the less of the others'
    errors the units that lack a record have, the more of these may be in it."""
    return jax.vmap(lambda record: _judged(model, evidence, record)[2:])(x)


def _judged(model: Model, evidence: Evidence, x: Array) -> tuple[Array, Array, Array, Array]:
    """How far from lacking it the units are that a record never activates, cosines of its errors
    with those of one step by label `[classes]`, the errors `[rounds, outputs]` and how unsure these
    are `[rounds]`."""
    layers = model.layers
    assert layers is not None

    def of_round(received: Any, returned: Any, span: Span) -> tuple[Array, Array, Array, Array]:
        before, after = (
            x @ end["kernel"] + end.get("bias", 0.0)
            for end in (layers.parameters(tree, layers.names[0]) for tree in (received, returned))
        )
        by_label = errors_of_first(model, received, before[None], len(x))[:, 0]
        # A unit may have been active on the way if it came as near as it moved.
        idle = (by_label == 0).all(0) & (jnp.maximum(before, after) < -jnp.abs(after - before))
        inputs = extended(model, layers.names[0], received, x)
        off, errors, unsure = _lacking(span, idle, inputs @ span.rows)
        lengths = jnp.linalg.norm(by_label, axis=-1) * jnp.linalg.norm(errors)
        cosines = by_label @ errors / jnp.maximum(lengths, jnp.finfo(x.dtype).tiny)
        return off, cosines, errors, unsure

    ends = evidence.params, evidence.returned
    off, cosines, errors, unsure = jax.vmap(of_round)(*ends, evidence.layer)
    return off.max(), cosines.mean(0), errors, unsure


def _lacking(span: Span, idle: Array, part: Array) -> tuple[Array, Array, Array]:
    """How far `idle` units `[outputs]` are from lacking a record that is `part` `[k]` of the rows,
    the errors `[outputs]` that they lack then, and how unsure these are. `DETOURS` of them may be
    active on the way all the same, though they are not at its ends: those without which the others
    lack a dimension."""
    there = span.inverse > 0
    # Rows of the gradient in the coordinates of its row space: `columns / inverse`.
    values = jnp.where(there, 1 / jnp.where(there, span.inverse, 1), 0)
    tiny = jnp.finfo(values.dtype).tiny

    def judged(idle: Array) -> tuple[Array, Array, Array]:
        lacking = jnp.where(idle[:, None], span.columns * values, 0)
        # Padding of the span is kept out of the null space.
        gram = lacking.T @ lacking + jnp.diag(jnp.where(there, 0.0, values.max() ** 2))
        smallest, vectors = jnp.linalg.eigh(gram)
        lacked = vectors[:, 0]
        share = part @ lacked
        share = jnp.where(share == 0, 1, share)
        errors = (span.columns * values) @ lacked / share
        # The direction is off by noise / sqrt(smallest) along each other one.
        others = jnp.square((span.columns * values) @ vectors[:, 1:]).sum(0)
        unsure = span.noise * jnp.sqrt((others / (smallest[1:] + tiny)).sum()) / jnp.abs(share)
        off = jnp.sqrt(jnp.maximum(smallest[0], 0) / jnp.maximum(idle.sum(), 1))
        told = jnp.abs(share) > LEAST_PART * jnp.linalg.norm(part)
        told &= idle.sum() >= there.sum() + SPARE
        # If they lack a second one as well, its errors are not told from this one's.
        second = jnp.sqrt(jnp.maximum(smallest[1:2].sum(), 0) / jnp.maximum(idle.sum(), 1))
        told &= (second > ALIKE * span.noise) | (len(smallest) < 2)
        return jnp.where(told, off / (span.noise + tiny), jnp.inf), errors, unsure

    def without_one(idle: Array, _: None) -> tuple[Array, Array]:
        columns = jnp.where(idle[:, None], span.columns, 0)
        gram = columns.T @ columns + jnp.diag(jnp.where(there, 1e-14, 1.0))
        # 1 for a unit without which the others lack a dimension.
        leverage = (columns * jnp.linalg.solve(gram, columns.T).T).sum(1)
        fewer = idle & (jnp.arange(len(idle)) != leverage.argmax())
        return fewer, fewer

    _, fewer = jax.lax.scan(without_one, idle, length=DETOURS)
    offs, errors, unsure = jax.vmap(judged)(jnp.concatenate([idle[None], fewer]))
    # The most units that lack it, if any do.
    best = jnp.where((offs <= offs.min() * ALIKE).any(), (offs <= offs.min() * ALIKE).argmax(), 0)
    return offs[best], errors[best], unsure[best]
