"""Candidates: what each record could be, and their weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attacks.attributes.knowledge import Knowledge, UnknownColumn, erase
from jaxfl import Model
from jaxfl.domains import checked
from jaxfl.models import check_labelled

Array = jax.Array


@checked
def candidate_records(model: Model, knowledge: Knowledge) -> tuple[Array, Array]:
    """Every record with every candidate in its place: `x [records, K, features]`, `y [records, K]`.

    With unknown labels candidates are (value, label) pairs, the label running fastest.
    """
    column, base = knowledge.columns[0], erase(knowledge)
    x = jax.vmap(lambda v: base.at[:, column.positions].set(v))(column.candidates).swapaxes(0, 1)
    if knowledge.y is not None:
        check_labelled(model, jax.eval_shape(model.init, jax.random.key(0)), base, knowledge.y)
        return x, jnp.broadcast_to(knowledge.y[:, None], x.shape[:2])
    classes = model.classes or 0
    y = jnp.tile(jnp.arange(classes), x.shape[1])
    return jnp.repeat(x, classes, axis=1), jnp.broadcast_to(y, (len(x), len(y)))


def joint_column(columns: tuple[UnknownColumn, ...]) -> UnknownColumn:
    """Several columns as one, whose values are all combinations, the last column's running fastest;
    their priors, where all are known, as if they were independent."""
    counts = [len(column.candidates) for column in columns]
    places = np.stack(np.unravel_index(np.arange(np.prod(counts)), counts))
    values = [column.candidates[p] for column, p in zip(columns, places, strict=True)]
    priors = [
        column.prior[p]
        for column, p in zip(columns, places, strict=True)
        if column.prior is not None
    ]
    return UnknownColumn(
        jnp.concatenate([column.positions for column in columns]),
        jnp.concatenate(values, 1),
        functools.reduce(jnp.multiply, priors) if len(priors) == len(columns) else None,
    )


def prior_weights(model: Model, knowledge: Knowledge, count: int) -> Array:
    """Prior weights of the candidates but the base, for every record; uniform where unknown."""
    column = knowledge.columns[0]
    values = len(column.candidates)
    prior = jnp.full(values, 1 / values) if column.prior is None else column.prior
    if knowledge.y is None:
        classes = count // values
        labels = (
            jnp.full(classes, 1 / classes)
            if knowledge.label_prior is None
            else knowledge.label_prior
        )
        prior = jnp.outer(prior, labels).reshape(-1)
    return jnp.tile(prior[1:], len(knowledge.x))


def with_first(weights: Array) -> Array:
    """Weights of all candidates `[records, K]`, which sum to 1, from those of all but the first
    `[records, K - 1]`."""
    return jnp.concatenate([1 - weights.sum(1, keepdims=True), weights], 1)


def with_absence(prior: Array, present: float, records: int) -> Array:
    """Prior weights where being absent is the base: those of all real candidates, times the
    fraction present."""
    return present * with_first(prior.reshape(records, -1)).reshape(-1)
