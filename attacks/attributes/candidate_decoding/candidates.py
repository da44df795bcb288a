"""Candidates: what each record could be, their weights, and their gradients by layers or written
out."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from attacks.attributes.knowledge import Knowledge, UnknownColumn, erase
from attacks.path import local_path, on_path
from jaxfl import LocalTraining, Model
from jaxfl.domains import checked
from jaxfl.models import check_labelled, inputs_and_errors, record_gradient

Array = jax.Array
TOGETHER = 16
"""Records whose gradients are written out at once, where that is done for their lengths alone."""


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


def split(a: Array, records: int) -> tuple[Array, Array, Array]:
    """Base `[records, w]`, other candidates `[unknowns, w]`, and their difference from the base, of
    `[records * K, w]`."""
    a = a.reshape(records, -1, a.shape[-1])
    return (
        a[:, 0],
        a[:, 1:].reshape(-1, a.shape[-1]),
        (a[:, 1:] - a[:, :1]).reshape(-1, a.shape[-1]),
    )


def input_products(base: Array, difference: Array, repeat: int) -> tuple[Array, Array, Array]:
    """`a0.b0`, `a0.Db` and `Da.Db` over unknowns `[unknowns, unknowns]`."""
    bases, across = base @ base.T, base @ difference.T
    if repeat > 1:
        bases, across = (jnp.repeat(a, repeat, axis=0) for a in (bases, across))
        bases = jnp.repeat(bases, repeat, axis=1)
    return bases, across, difference @ difference.T


def first_inputs(model: Model, x: Array, y: Array, params: Any) -> Any:
    """Products of the first layer's inputs: no parameter comes before it, so they are the same in
    every round."""
    if model.layers is None:
        return None
    records, count = x.shape[:2]
    inputs, _ = inputs_and_errors(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
    base, _, difference = split(inputs[model.layers.names[0]], records)
    return base, difference, input_products(base, difference, count - 1)


class FactoredGradients(NamedTuple):
    """Gradients of records, or their changes, as sums of outer products of a layer's inputs and
    errors, none of them written out; or, of models that name no dense layers, written out as one
    layer's inputs.

    Attributes:
      layers: of every layer, pairs of inputs, the bias as a last input of one, and errors, each
        `[records, width]`.
      matrices: any tree like the parameters as such layers `[inputs, errors]`.
    """

    layers: list[list[tuple[Array, Array]]]
    matrices: Callable[[Any], list[Array]]

    def inner(self, others: "FactoredGradients") -> Array:
        """Products with other records' gradients `[records, others]`."""
        return functools.reduce(
            jnp.add, [(a @ c.T) * (b @ d.T) for (a, b), (c, d) in self._pairs(others)]
        )

    def squares(self) -> Array:
        """Squared norms `[records]`."""
        return functools.reduce(
            jnp.add, [(a * c).sum(1) * (b * d).sum(1) for (a, b), (c, d) in self._pairs(self)]
        )

    def expected(self, scores: Array) -> "FactoredGradients":
        """Expected gradients of every record, from those of its candidates, which come one after
        another, with weights `scores [records, K]`."""
        scores = scores[..., None]

        def mixed(inputs: Array, errors: Array) -> list[tuple[Array, Array]]:
            every, weighted = (a.reshape(*scores.shape[:2], -1) for a in (inputs, errors))
            weighted = weighted * scores
            return [(every[:, k], weighted[:, k]) for k in range(scores.shape[1])]

        return self._replace(
            layers=[[pair for term in layer for pair in mixed(*term)] for layer in self.layers]
        )

    def _pairs(
        self, others: "FactoredGradients"
    ) -> list[tuple[tuple[Array, Array], tuple[Array, Array]]]:
        return [
            pair
            for layer in zip(self.layers, others.layers, strict=True)
            for pair in itertools.product(*layer)
        ]

    def along(self, target: Any) -> Array:
        """Products with a tree like the parameters `[records]`."""
        layers = zip(self.layers, self.matrices(target), strict=True)
        return functools.reduce(
            jnp.add, [((a @ matrix) * b).sum(1) for terms, matrix in layers for a, b in terms]
        )


def factored_gradients(
    model: Model, params: Any, x: Array, y: Array, depth: int | None = None
) -> FactoredGradients:
    """Gradients of the losses of records `x [records, ...]`, `y [records]`; if `depth` is given, of
    the first so many dense layers alone, which the model must name then."""
    layers = model.layers
    if layers is None:
        written = jax.vmap(lambda x, y: record_gradient(model, params, x, y))(x, y)
        one = jnp.ones((len(x), 1), written.dtype)
        return FactoredGradients([[(written, one)]], lambda tree: [ravel_pytree(tree)[0][:, None]])
    inputs, errors = inputs_and_errors(model, params, x, y)
    names = layers.names[:depth]
    biased = {name: "bias" in layers.parameters(params, name) for name in names}

    def matrices(tree: Any) -> list[Array]:
        leaves = [layers.parameters(tree, name) for name in names]
        return [
            jnp.concatenate([at["kernel"], at["bias"][None]]) if "bias" in at else at["kernel"]
            for at in leaves
        ]

    one = jnp.ones((len(x), 1), x.dtype)
    with_bias = [jnp.concatenate([inputs[n], one], 1) if biased[n] else inputs[n] for n in names]
    return FactoredGradients(
        [[(i, errors[n])] for i, n in zip(with_bias, names, strict=True)], matrices
    )


def gradient_changes(
    model: Model, before: Any, after: Any, x: Array, y: Array, depth: int | None = None
) -> FactoredGradients:
    """By how much records' gradients at one model exceed those at one before, from the changes of
    inputs and errors: differences of products would be mostly rounding where the models
    are close."""
    early, late = (factored_gradients(model, params, x, y, depth) for params in (before, after))
    changes = [
        [(i1 - i0, e1), (i0, e1 - e0)]
        for ((i0, e0),), ((i1, e1),) in zip(early.layers, late.layers, strict=True)
    ]
    # What enters the first layer, or is written out, changes in one factor alone.
    changes[0] = changes[0][:1] if model.layers is None else changes[0][1:]
    return FactoredGradients(changes, early.matrices)


def mean_lengths(model: Model, models: Any, x: Array, y: Array) -> Array:
    """Mean length of the gradients of records `x [records, ...]`, `y [records]` at every model
    `[models]`."""

    def at(params: Any) -> Array:
        if model.layers is not None:
            return jnp.sqrt(factored_gradients(model, params, x, y).squares()).mean()
        return jax.lax.map(
            lambda one: jnp.linalg.norm(record_gradient(model, params, *one)),
            (x, y),
            batch_size=TOGETHER,
        ).mean()

    return jax.lax.map(at, models)


def candidate_gradients(
    model: Model, params: Any, x: Array, y: Array
) -> tuple[Array, Callable[[Any], Array]]:
    """Inner products of all candidates' gradients `[records * K, records * K]`, and their products
    with any tree like the parameters `[records * K]`. No gradient is formed where the model names
    its dense layers."""
    gradients = factored_gradients(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
    return gradients.inner(gradients), gradients.along


def of_layers(model: Model, tree: Any, depth: int | None) -> Any:
    """What belongs to the first `depth` dense layers of a tree like the parameters; all of it with
    None."""
    if depth is None:
        return tree
    assert model.layers is not None
    return [model.layers.parameters(tree, name) for name in model.layers.names[:depth]]


def mean_gradients(
    model: Model, models: Any, x: Array, y: Array
) -> tuple[Array, Callable[[Any], Array]]:
    """As `candidate_gradients`, of gradients averaged over `models`, parameters with a leading axis
    `[models]`.

    Where the model names its dense layers, gradients are written out but for the first: its inputs
    are the same in all models, so that only its errors need averaging.
    """
    x, y = x.reshape(-1, *x.shape[2:]), y.reshape(-1)
    layers = model.layers
    if layers is None:
        every = _mean(
            lambda params: jax.vmap(lambda x, y: record_gradient(model, params, x, y))(x, y), models
        )
        return every @ every.T, lambda target: every @ ravel_pytree(target)[0]
    first, *later = layers.names

    def factors(params: Any) -> tuple[Array, Array, list[dict[str, Array]]]:
        inputs, errors = inputs_and_errors(model, params, x, y)
        written = [
            {
                part: inputs[name][:, :, None] * errors[name][:, None]
                if part == "kernel"
                else errors[name]
                for part in layers.parameters(params, name)
            }
            for name in later
        ]
        return inputs[first], errors[first], written

    inputs, errors, written = _mean(factors, models)
    rows = [part.reshape(len(x), -1) for part in jax.tree.leaves(written)]
    gram = (inputs @ inputs.T + ("bias" in layers.parameters(models, first))) * (errors @ errors.T)
    gram += sum(row @ row.T for row in rows)

    def project(target: Any) -> Array:
        at = layers.parameters(target, first)
        parts = jax.tree.leaves([layers.parameters(target, name) for name in later])
        first_layer = ((inputs @ at["kernel"] + at.get("bias", 0)) * errors).sum(1)
        return first_layer + sum(
            row @ part.reshape(-1) for row, part in zip(rows, parts, strict=True)
        )

    return gram, project


def _mean(function: Callable[[Any], Any], models: Any) -> Any:
    """Over the first axis of `models`, one at a time."""
    count = len(jax.tree.leaves(models)[0])
    zero = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype),
        jax.eval_shape(function, jax.tree.map(lambda a: a[0], models)),
    )
    total, _ = jax.lax.scan(
        lambda total, one: (jax.tree.map(jnp.add, total, function(one)), None), zero, models
    )
    return jax.tree.map(lambda a: a / count, total)


def difference_jacobian(
    model: Model, params: Any, x: Array, y: Array, absence: bool = False
) -> tuple[Array, Array]:
    """Gradient differences of the other candidates from the base `[unknowns, parameters]`, and the
    sum of the base's gradients `[parameters]`, explicitly; for any model. With `absence` the base's
    gradients are zero."""
    every = jax.vmap(jax.vmap(lambda x, y: record_gradient(model, params, x, y)))(x, y)
    if absence:
        every = every.at[:, 0].set(0)
    return (every[:, 1:] - every[:, :1]).reshape(-1, every.shape[-1]), every[:, 0].sum(0)


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


def candidates_at_centre(
    model: Model,
    received: Any,
    update: Any,
    training: LocalTraining,
    x: Array,
    y: Array,
    depth: int | None = None,
) -> FactoredGradients:
    """Gradients of all candidates `x [records, K, ...]`, `y [records, K]` at the centre of the
    client's path."""
    centre = on_path(received, update, local_path(training, len(x)).centre)
    return factored_gradients(model, centre, x.reshape(-1, *x.shape[2:]), y.reshape(-1), depth)
