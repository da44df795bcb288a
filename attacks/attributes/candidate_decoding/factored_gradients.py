"""Gradients of records, by layers or written out, and their products: no gradient is formed where a
model names its dense layers."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from attacks.path import local_path, on_path
from jaxfl import LocalTraining, Model
from jaxfl.models import inputs_and_errors, record_gradient

Array = jax.Array
TOGETHER = 16
"""Records whose gradients are written out at once, where that is done for their lengths alone."""
TILE = 192
"""Records on a side of a tile of a Gram matrix. Tiles of 128 to 256 take alike long, since a core's
cache holds what they are made of."""


Term = tuple[Array, Array]
"""Inputs and errors of a layer, each `[records, width]`; a record's outer product is its
gradient."""


class FactoredGradients(NamedTuple):
    """Gradients of records, or their changes, as sums of outer products of a layer's inputs and
    errors, none of them written out; or, of models that name no dense layers, written out as one
    layer's inputs.

    Attributes:
      layers: of every layer, pairs of inputs, the bias as a last input of one, and errors, each
        `[records, width]`.
      matrices: any tree like the parameters as such layers `[inputs, errors]`.
    """

    layers: list[list[Term]]
    matrices: Callable[[Any], list[Array]]

    def inner(self, others: "FactoredGradients") -> Array:
        """Products with other records' gradients `[records, others]`."""
        return _products(self._pairs(others))

    def gram(self) -> Array:
        """Products with each other `[records, records]`. Where the backend is a CPU, those of many
        records are taken tile by tile on one side of the diagonal."""
        records = len(self.layers[0][0][0])
        if jax.default_backend() == "cpu" and records > 2 * TILE:
            return _by_tiles(self, records)
        same = _products([(term, term) for terms in self.layers for term in terms])
        crossed = [pair for terms in self.layers for pair in itertools.combinations(terms, 2)]
        if not crossed:
            return same
        one_way = _products(crossed)
        return same + one_way + one_way.T

    def squares(self) -> Array:
        """Squared norms `[records]`."""
        return functools.reduce(
            jnp.add, [(a * c).sum(1) * (b * d).sum(1) for (a, b), (c, d) in self._pairs(self)]
        )

    def expected(self, scores: Array) -> "FactoredGradients":
        """Expected gradients of every record, from those of its candidates, which come one after
        another, with weights `scores [records, K]`."""
        scores = scores[..., None]

        def mixed(inputs: Array, errors: Array) -> list[Term]:
            every, weighted = (a.reshape(*scores.shape[:2], -1) for a in (inputs, errors))
            weighted = weighted * scores
            return [(every[:, k], weighted[:, k]) for k in range(scores.shape[1])]

        return self._replace(
            layers=[[pair for term in layer for pair in mixed(*term)] for layer in self.layers]
        )

    def _pairs(self, others: "FactoredGradients") -> list[tuple[Term, Term]]:
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


def _products(pairs: list[tuple[Term, Term]]) -> Array:
    return functools.reduce(jnp.add, [(a @ c.T) * (b @ d.T) for (a, b), (c, d) in pairs])


def _by_tiles(gradients: FactoredGradients, records: int) -> Array:
    """`FactoredGradients.gram`, of tiles of like size, the last ones padded."""
    sides = round(records / TILE)
    side = -(-records // sides)
    padding = (0, sides * side - records), (0, 0)
    padded = jax.tree.map(lambda a: jnp.pad(a, padding), gradients.layers)

    def rows(place: Array) -> FactoredGradients:
        cut = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=place, slice_size=side)
        return gradients._replace(layers=jax.tree.map(cut, padded))

    def add(gram: Array, places: tuple[Array, Array]) -> tuple[Array, None]:
        below, above = places
        tile = rows(below).inner(rows(above))
        gram = jax.lax.dynamic_update_slice(gram, tile.T, (above, below))
        return jax.lax.dynamic_update_slice(gram, tile, (below, above)), None

    below, above = (jnp.asarray(side * a) for a in np.tril_indices(sides))
    dtype = jnp.result_type(*jax.tree.leaves(padded))
    empty = jnp.zeros((sides * side,) * 2, dtype)
    return jax.lax.scan(add, empty, (below, above))[0][:records, :records]


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


def gradient_differences(
    model: Model, params: Any, x: Array, y: Array, absence: bool
) -> tuple[FactoredGradients, Any, Array]:
    """By how much gradients of candidates `x [records, K, ...]`, `y [records, K]` exceed those of
    each record's first `[records * (K - 1)]`; the sum of the first ones' gradients, a tree like the
    parameters; and the mean length of the last ones'. With `absence` the first are zero. From the
    differences of inputs and errors, as in `gradient_changes`."""
    records, count = x.shape[:2]
    each = factored_gradients(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
    # What is written out is a layer's inputs, and its errors are ones.
    varying = int(model.layers is not None)
    present = jnp.ones(count, x.dtype).at[0].set(0.0 if absence else 1.0)[:, None]

    def others(a: Array) -> Array:
        return a[:, 1:].reshape(records * (count - 1), -1)

    def of_layer(term: Term) -> tuple[list[Term], Array]:
        every = [a.reshape(records, count, -1) for a in term]
        every[varying] *= present
        (inputs, errors), (first_inputs, first_errors) = every, (a[:, :1] for a in every)
        changes = [(inputs - first_inputs, errors)]
        if varying:
            changes.append((jnp.broadcast_to(first_inputs, inputs.shape), errors - first_errors))
        first = first_inputs[:, 0].T @ first_errors[:, 0]
        return [(others(inputs), others(errors)) for inputs, errors in changes], first

    changes, first = zip(*(of_layer(term) for (term,) in each.layers), strict=True)
    # The stacks hold every parameter once, so that their transpose puts it back in its place.
    stacks = jax.eval_shape(each.matrices, params)
    sums = [a.astype(stack.dtype) for a, stack in zip(first, stacks, strict=True)]
    base = jax.linear_transpose(each.matrices, params)(sums)[0]
    lengths = jnp.sqrt(each.squares()).reshape(records, count)
    return each._replace(layers=list(changes)), base, lengths[:, -1].mean()


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
    """Of all candidates' gradients, each the mean over `models` (parameters with a leading axis
    `[models]`): their inner products `[records * K, records * K]`, and what gives their products
    with any tree like the parameters `[records * K]`.

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
