"""Does an update have a property? One affine detector per round, from records like the clients'
(Kerkouche 2023, section 5.2).

Threat model: a server behind secure aggregation. It knows the model of every round, the clients'
recipe and number of records, auxiliary records of their distribution, and what the property is: to
hold a given record, to hold more records with an attribute than others, or to misbehave in a given
way.

An affine feature of a sum is the sum of the features (Eq. 8), which is why detectors are affine:
what `observe` makes of an aggregate is the sum of its participants' features. Three ways to train
one:
  `logistic`: on shadow updates with and without the property, by SGD, as published.
  `lda`: Fisher's discriminant on shadow updates, in closed form, with shrinkage.
  `first_order`: the same discriminant without shadows. A client's update is nearly the sum of its
    records' gradients, so their covariance, and the gradient of what the property adds, say all; a
    few shadow pairs calibrate it.
Both shrink the covariance, of which updates fewer than parameters tell little, to one that is
diagonal in eigenbases of layers. Half of the auxiliary records make directions, the other half
calibrate. Between the rounds of one detector its class means follow the model to first order.

Where the steps are: shadow updates in `shadows`, what a direction is made of in `directions`,
settings in `detector_training`, the law of a feature by class, and features of sums (Eq. 8), in
`detector_laws`. Decoders of the sums are in `observations` (Eq. 3, 6, 10), `prolin` (5.2.4) and
`gibbs`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Num

from attacks.properties.detector_laws import Detectors, repeat_correlation
from attacks.properties.detector_training import DetectorTraining, FirstOrder, Lda, Logistic
from attacks.properties.directions import discriminant, logistic, record_gradients, scaled
from attacks.properties.shadows import (
    Prevalence,
    Property,
    first_order_updates,
    shadow_updates,
    slopes,
    target_loss,
)
from attacks.told_labels import warn_of_other_labels
from jaxfl import Behavior, LocalTraining, Model, _check
from jaxfl.domains import Count, Key, Params, checked
from jaxfl.models import check_labelled, check_parameters, check_records
from jaxfl.parallel import strategy_here

Array = jax.Array
LEAST_VARIANCE = 1e-6
"""Least variance of a class's feature, in parts of the other class's: a constant has no density."""


@checked
def train_detectors(  # noqa: PLR0913 - what the threat model grants, item by item
    model: Model,
    received: Params,
    x: Num[Array, "records ..."],
    y: Num[Array, "records ..."],
    prop: Property,
    key: Key,
    *,
    training: LocalTraining,
    records: Count,
    settings: DetectorTraining | None = None,
) -> Detectors:
    """A detector for every observed round.

    Args:
      model: the model (static).
      received: the model of each round, leaves `[rounds, ...]`.
      x: auxiliary records `[auxiliary, ...]`; half of them make directions, the others calibrate.
      y: their labels `[auxiliary]`.
      prop: the property.
      key: draws the halves and shadow clients.
      training: the clients' recipe.
      records: records per client (static).
      settings: see `DetectorTraining`.

    Warns:
      MisfitWarning: if the last model names the labels far more seldom than by chance.

    Raises:
      ValueError: if the records do not fit the model, half of them are fewer than a client has, the
        property is none, all or none of the records have its attribute, or a setting is out of
        range.
    """
    settings = settings or DetectorTraining()
    x, y = jnp.asarray(x), jnp.asarray(y)
    check_parameters(model, received, "received", 1)
    for path, leaf in jax.tree.leaves_with_path(received):
        _check.finite(**{f"received{jax.tree_util.keystr(path)}": leaf})
    check_labelled(model, jax.tree.map(lambda a: a[0], received), x, y)
    if prop.target is not None:
        _check_target(model, jax.tree.map(lambda a: a[0], received), prop.target, x.shape[1:])
    _check_apart(prop, len(x))
    last = jax.tree.map(lambda a: jnp.asarray(a)[1:][-1:], received)  # the first one is untrained
    warn_of_other_labels("train_detectors", model, last, x, y)
    if records > len(x) // 2:
        raise ValueError(
            f"x holds {len(x)} auxiliary records; shadow clients of records={records} need at "
            "least twice as many"
        )
    if settings.strategy is None:
        settings = dataclasses.replace(settings, strategy=strategy_here())
    half_key, repeated_key, *keys = jax.random.split(key, 5)
    fitted, calibrating = halves(half_key, len(x))
    repeated, _ = draw_clients(
        repeated_key, calibrating, records, settings.repeated, prop.prevalence
    )
    trainer = _Trainer(
        model, x, y, fitted, calibrating, repeated, prop, training, records, settings
    )
    return _train_detectors(trainer, received, tuple(keys))


def _check_apart(prop: Property, auxiliary: int) -> None:
    """Raise `ValueError` unless the property sets clients apart."""
    if prop.prevalence is not None:
        carriers = prop.prevalence.carriers
        _check.shape((auxiliary,), **{"prop.prevalence.carriers": carriers})
        if not _check.is_unseen(carriers) and len(np.unique(np.asarray(carriers))) < 2:
            raise ValueError(
                f"prop.prevalence.carriers is {np.asarray(carriers)[0]} for all auxiliary records; "
                "a detector needs records with and without the attribute"
            )
    elif (
        prop.target is None and not _check.is_unseen(prop.behavior) and prop.behavior == Behavior()
    ):
        raise ValueError(
            "prop=Property() sets nobody apart; give it a target, a prevalence or a behaviour"
        )


def _check_target(
    model: Model, params: Any, target: tuple[Array, Array], shape: tuple[int, ...]
) -> None:
    x, y = (jnp.asarray(a)[None] for a in target)
    _check.shape((1, *shape), **{"prop.target[0]": x})
    check_records(model, params, x, y, x_name="prop.target[0]", y_name="prop.target[1]")
    _check.finite(**{"prop.target[0]": x})
    _check.shape((1,), **{"prop.target[1]": y})
    if model.classes is not None:
        _check.labels(y, model.classes, name="prop.target[1]")


@jax.jit
def _train_detectors(trainer: "_Trainer", received: Any, keys: tuple[Array, ...]) -> Detectors:
    settings, (fit_key, round_key, follow_key) = trainer.settings, keys
    rounds = np.arange(len(jax.tree.leaves(received)[0]))
    trained_for, number = rounds[:: settings.every], rounds // settings.every
    models = jax.tree.map(lambda a: a[trained_for], received)
    directions = None
    if isinstance(settings.kind, FirstOrder):
        kind = settings.kind
        each = jax.lax.map(
            lambda a: trainer.first_order(kind, *a),
            (models, jax.random.split(fit_key, len(trained_for))),
        )
        back = np.subtract.outer(np.arange(len(trained_for)), np.arange(len(trained_for)))
        near = (back >= 0) & (back < kind.averaged)
        with jax.default_matmul_precision("highest"):
            directions = jnp.asarray(near / near.sum(1, keepdims=True)) @ each
    of_trained = models, jax.random.split(round_key, len(trained_for)), directions
    trained = jax.lax.map(lambda a: trainer.detector(*a), of_trained)
    direction, offset, mean, variance, step = (a[number] for a in trained[:-1])
    if settings.every > 1:
        # Rounds of one detector share records and dropout, so that what these do to its means
        # cancels.
        follow_keys = jax.random.split(follow_key, len(trained_for))[number]
        means = jax.lax.map(lambda a: trainer.expected(*a), (received, direction, follow_keys))
        # One step for a block: only roughly true where gradients are clipped, which fixes the
        # update and not its multiple.
        moved = step[:, None] * (means - means[trained_for][number])
        # The threshold moves with the means' middle.
        mean, offset = mean + moved - moved.mean(1, keepdims=True), offset - moved.mean(1)
    return Detectors(
        direction=direction,
        offset=offset,
        mean=mean,
        variance=variance,
        correlation=repeat_correlation(trained.again)[number],
        calibrated_on=jnp.asarray(settings.calibrating()),
        pool=jnp.asarray(len(trainer.calibrating) / trainer.records),
        rate=jnp.asarray(trainer.prop.rate, mean.dtype),
        detector_number=jnp.asarray(number),
    )


class _Detector(NamedTuple):
    """One round's, its feature's law on held-out shadows, the `step` that updates are of their mean
    gradient, and the repeated shadows' features, standardised."""

    direction: Array
    offset: Array
    mean: Array
    variance: Array
    step: Array
    again: Array


@struct.dataclass
class _Trainer:
    """What detectors of all rounds are made of: see `train_detectors`, and of its records the rows
    of `halves` and of repeated shadow clients."""

    model: Model = struct.field(pytree_node=False)
    x: Array
    y: Array
    fitted: Array
    calibrating: Array
    repeated: Array
    prop: Property
    training: LocalTraining
    records: int = struct.field(pytree_node=False)
    settings: DetectorTraining

    def first_order(self, kind: FirstOrder, params: Any, key: Array) -> Array:
        """Fisher's direction from gradients of records, of unit deviation on them."""
        order_key, mask_key, target_key = jax.random.split(key, 3)
        chosen = jax.random.permutation(order_key, self.fitted)[: kind.gradients]
        with jax.default_matmul_precision("highest"):
            gradients = record_gradients(
                self.model, params, self.x[chosen], self.y[chosen], mask_key
            )
            mean, loss = gradients.mean(0), self._target_loss(target_key)
            target = None if loss is None else ravel_pytree(jax.grad(loss)(params))[0]
            means = self._of_classes(chosen, gradients)
            without, with_ = first_order_updates(means, target, self.prop, self.records)
            direction = discriminant(gradients - mean, with_ - without, params, kind.shrinkage)
            return direction / ((gradients - mean) @ direction).std()

    def detector(self, params: Any, key: Array, first_order: Array | None) -> _Detector:
        """One round's, from the direction that gradients gave or else from shadows, calibrated."""
        kind, held = self.settings.kind, self.settings.calibrating()
        draw_key, other_key, pairs_key, again_key, fit_key, step_key = jax.random.split(key, 6)
        rows, with_property = self._rows(draw_key)
        other = with_property, pairs_key
        # Pairs share records and dropout but for the property, except where the published detector
        # draws both sides afresh.
        if isinstance(kind, Logistic):
            set_key, other_key = jax.random.split(other_key)
            other = self._rows(set_key)[1], other_key
        *sides, repeated = self._shadows(
            params, (rows, pairs_key), other, (self.repeated, again_key)
        )
        trained, held_out = [side[held:] for side in sides], [side[:held] for side in sides]
        with jax.default_matmul_precision("highest"):
            if isinstance(kind, Logistic):
                direction, offset = logistic(trained, held_out, fit_key, kind)
            else:
                fisher = _fisher(trained, params, kind) if isinstance(kind, Lda) else first_order
                direction, offset = scaled(jnp.asarray(fisher), held_out)
            features = [side @ direction + offset for side in held_out]
            mean, variance = (jnp.stack([of(f) for f in features]) for of in (jnp.mean, jnp.var))
            variance = jnp.maximum(
                variance, LEAST_VARIANCE * variance.max()
            )  # a free-rider's feature is a constant
            again = (repeated @ direction + offset - mean[0]) / jnp.sqrt(variance[0])
        step = (
            self._step(params, sides[0], rows, step_key)
            if self.settings.every > 1
            else jnp.ones(())
        )
        return _Detector(direction, offset, mean, variance, step, again)

    def expected(self, params: Any, direction: Array, key: Array) -> Array:
        """Means without and with the property of the feature of an update along its mean gradient,
        to first order `[2]`."""
        order_key, mask_key, target_key = jax.random.split(key, 3)
        chosen = jax.random.permutation(order_key, self.calibrating)[: self.settings.followed]
        with jax.default_matmul_precision("highest"):
            means = self._of_classes(chosen, self._slopes(params, direction, chosen, mask_key))
            loss = self._target_loss(target_key)
            flat, unravel = ravel_pytree(params)
            along = unravel(direction.astype(flat.dtype))
            target = None if loss is None else jax.jvp(loss, (params,), (along,))[1]
        return jnp.stack(first_order_updates(means, target, self.prop, self.records))

    def _of_classes(self, rows: Array, values: Array) -> tuple[Array, Array]:
        """Means over records of clients without and with the property `[...]`, of values of the
        first of these rows `[records, ...]`."""
        if self.prop.prevalence is None:
            return values.mean(0), values.mean(0)
        without, with_property = self.prop.prevalence.weights(rows[: len(values)])
        return without @ values, with_property @ values

    def _rows(self, key: Array) -> tuple[Array, Array]:
        """Records of shadow clients without and with the property `[pairs, records]`, but for its
        record: first those that calibrate."""
        calibrate_key, train_key = jax.random.split(key)
        held = self.settings.calibrating()
        sets = (
            draw_clients(calibrate_key, self.calibrating, self.records, held, self.prop.prevalence),
            draw_clients(
                train_key,
                self.fitted,
                self.records,
                self.settings.pairs - held,
                self.prop.prevalence,
            ),
        )
        without, with_property = (jnp.concatenate(side) for side in zip(*sets, strict=True))
        return without, with_property

    def _shadows(self, params: Any, *sets: tuple[Array, Array]) -> list[Array]:
        """Updates of sets of shadow clients, rows and key of each; the second set has the property.
        One program for all."""
        sizes = [len(rows) for rows, _ in sets]
        rows = jnp.concatenate([rows for rows, _ in sets])
        keys = jnp.concatenate([jax.random.split(key, len(rows)) for rows, key in sets])
        updates = shadow_updates(
            self.model,
            params,
            rows,
            jnp.asarray(np.repeat([i == 1 for i in range(len(sets))], sizes)),
            keys,
            self.prop,
            x=self.x,
            y=self.y,
            training=self.training,
            strategy=self.settings.strategy,
        )
        return jnp.split(updates, np.cumsum(sizes)[:-1])

    def _step(self, params: Any, updates: Array, rows: Array, key: Array) -> Array:
        """What multiple of the mean gradient honest updates are on average `[]`; the same is taken
        of those with the property.

        Halves of the shadows, each along the other's mean: so that noise of their own is not taken
        for length.
        """
        half = len(rows) // 2
        means = jnp.stack([updates[:half].mean(0), updates[half : 2 * half].mean(0)])
        others = rows[: 2 * half].reshape(2, half, -1)[::-1]
        with jax.default_matmul_precision("highest"):
            along = jax.lax.map(
                lambda a: self._slopes(params, *a).mean(), (means, others, jax.random.split(key))
            ).sum()
            return jnp.where(along > 0, 2 * jnp.maximum(means[0] @ means[1], 0) / along, 0)

    def _slopes(self, params: Any, direction: Array, rows: Array, key: Array) -> Array:
        x, y = self.x[rows.ravel()], self.y[rows.ravel()]
        return slopes(self.model, params, direction, x, y, key)

    def _target_loss(self, key: Array) -> Callable[[Any], Array] | None:
        if self.prop.target is None:
            return None
        return functools.partial(
            target_loss, self.model, target=self.prop.target, key=key, masks=self.settings.masks
        )


def _fisher(trained: list[Array], params: Any, kind: Lda) -> Array:
    """Fisher's direction from shadow updates without and with the property."""
    means = [side.mean(0) for side in trained]
    pairs = jnp.stack([side - mean for side, mean in zip(trained, means, strict=True)], axis=1)
    centred = pairs.reshape(-1, pairs.shape[-1])
    return discriminant(centred, means[1] - means[0], params, kind.shrinkage)


def halves(key: Array, count: int) -> tuple[Array, Array]:
    """Rows that make directions, and rows that calibrate them: a direction suits the records that
    it is made of better than the clients'."""
    fitted, calibrating = jnp.split(jax.random.permutation(key, count), [count // 2])
    return fitted, calibrating


@functools.partial(jax.jit, static_argnames=("size", "sets"))
def draw_clients(
    key: Array, rows: Array, size: int, sets: int, prevalence: Prevalence | None
) -> tuple[Array, Array]:
    """Sets of rows `[sets, size]`, of clients without and with the property; the same for both if
    no prevalence sets them apart, without repetition in a set."""
    keys = jax.random.split(key, sets)
    if prevalence is not None:
        return jax.lax.map(lambda k: prevalence.drawn(k, rows, size), keys)
    drawn = jax.lax.map(
        lambda k: jax.lax.top_k(jax.random.uniform(k, rows.shape, jnp.float32), size)[1], keys
    )
    return rows[drawn], rows[drawn]
