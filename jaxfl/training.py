"""What a client does in a round: the one definition of local training, used by the simulation and
by attacks."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxfl import _check
from jaxfl.clients import ClientData, OneClient, check_records_of_one
from jaxfl.domains import (
    Count,
    Fraction,
    Key,
    NotNegative,
    Number,
    Optimizer,
    Params,
    Positive,
    check,
    checked,
)
from jaxfl.models import Model, mean_loss
from jaxfl.plugins import HoldsPlugins, Plugin, Plugins, check_plugins, overriding
from jaxfl.plugins.defenses import DPSGD, Mixup

Array = jax.Array
SENDING, LATER = 2**32 - 1, 2**32 - 2
"""Streams of what is sent, and of the plug-ins after the first: no id and no step is that large."""


@struct.dataclass
class LocalTraining(HoldsPlugins):
    """Local training of one round.

    Attributes:
      learning_rate: step size (traced: sweeping it does not recompile).
      epochs: passes over the client's records (static).
      batch_size: records per step, or None for the whole set (static). The last batch of an epoch
        holds what is left, and the step follows the mean loss over the records it really has.
      optimizer: `optimizer(learning_rate) -> optax.GradientTransformation`, fresh in every round
        (static; functions are told apart by identity, so a lambda made anew compiles anew).
      plugins: what the recipe has clients do beside that, in order; at most one of them makes its
        own gradients.
      drop_last: leave out the last batch of an epoch if it is not full, as data loaders of PyTorch
        do if asked; a client with fewer records than a batch takes its one batch all the same
        (static).
      shuffle: whether the records are in a fresh order in every epoch; else batches are cut from
        them as they stand, the same in every epoch and round, as data loaders of PyTorch do unless
        asked (static).
    """

    learning_rate: Number = 0.1
    epochs: Count = struct.field(pytree_node=False, default=1)
    batch_size: Count | None = struct.field(pytree_node=False, default=None)
    optimizer: Optimizer = struct.field(pytree_node=False, default=optax.sgd)
    plugins: tuple[Plugin, ...] = ()
    drop_last: bool = struct.field(pytree_node=False, default=False)
    shuffle: bool = struct.field(pytree_node=False, default=True)

    @property
    def privacy(self) -> DPSGD | None:
        """Differential privacy among the plug-ins, if there is any."""
        return next((plugin for plugin in self.plugins if isinstance(plugin, DPSGD)), None)

    @property
    def mixup(self) -> bool:
        """Whether mixup is among the plug-ins."""
        return any(isinstance(plugin, Mixup) for plugin in self.plugins)

    def without(self, *kinds: type[Plugin]) -> "LocalTraining":
        """The recipe without plug-ins of these kinds; without any, if none is named."""
        kept = (p for p in self.plugins if kinds and not isinstance(p, kinds))
        return dataclasses.replace(self, plugins=tuple(kept))

    def steps(self, records: int) -> int:
        """Number of optimiser steps per round of a client with that many records."""
        return self.epochs * len(self.batch_sizes(records))

    def batch_sizes(self, records: int) -> list[int]:
        """Records in each batch of an epoch of a client with that many, at least 1."""
        check("records", records, Count)
        size = min(self.batch_size or records, records)
        left = 0 if self.drop_last else records % size
        return [size] * (records // size) + [left] * (left > 0)

    def draws_batches(self, records: int) -> bool:
        """Whether chance decides which records of a client with so many share a batch."""
        return self.shuffle and len(self.batch_sizes(records)) > 1

    def repeats_batches(self, records: int) -> bool:
        """Whether a client with so many records has several batches, the same in every epoch."""
        return not self.shuffle and len(self.batch_sizes(records)) > 1

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        check_plugins(self.plugins)


@checked
@functools.cache
def clipped_sgd(norm: float) -> Callable[..., optax.GradientTransformation]:
    """An optimiser for `LocalTraining`: SGD on gradients whose norm is at most `norm`."""
    check("norm", norm, Positive)

    def clipped(learning_rate: float | Array) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(norm), optax.sgd(learning_rate))

    clipped.__name__ = f"clipped_sgd({norm!r})"  # by which results of a sweep are told apart
    return clipped


@checked
def sgd(
    momentum: float = 0.0, weight_decay: float = 0.0, proximal: float = 0.0
) -> Callable[..., optax.GradientTransformation]:
    """An optimiser for `LocalTraining`: SGD as `torch.optim.SGD` has it, and FedProx.

    Args:
      momentum: what is left of a gradient in the next step, in [0, 1).
      weight_decay: so much of the model is added to each gradient.
      proximal: mu of FedProx (Li et al. 2020, Eq. 2): the loss has mu / 2 times the squared
        distance from the received model in it.

    Raises:
      ValueError: on numbers out of range.
    """
    for name, value in (("weight_decay", weight_decay), ("proximal", proximal)):
        check(name, value, NotNegative)
    if momentum:
        check("momentum", momentum, Fraction)
    if not (momentum or weight_decay or proximal):
        return optax.sgd
    return _sgd(float(momentum), float(weight_decay), float(proximal))


@functools.cache
def _sgd(
    momentum: float, weight_decay: float, proximal: float
) -> Callable[..., optax.GradientTransformation]:
    """Equal ones compile once."""

    def made(learning_rate: float | Array) -> optax.GradientTransformation:
        parts = [optax.add_decayed_weights(weight_decay)] if weight_decay else []
        parts += [_towards_received(proximal)] if proximal else []
        return optax.chain(*parts, optax.sgd(learning_rate, momentum or None))

    made.__name__ = f"sgd({momentum!r}, {weight_decay!r}, {proximal!r})"
    return made


def _towards_received(strength: float) -> optax.GradientTransformation:
    def init(params: Any) -> Any:
        return params

    def pull(gradient: Any, received: Any, params: Any) -> tuple[Any, Any]:
        pulled = jax.tree.map(lambda g, p, r: g + strength * (p - r), gradient, params, received)
        return pulled, received

    return optax.GradientTransformation(init, pull)


@checked
def local_update(
    model: Model, params: Params, data: OneClient, key: Key, training: LocalTraining
) -> Params:
    """Train on one client's records and return its model. Plug-ins change batches and gradients
    here; what they make of recipe and update is `client_round`'s.

    Pure and differentiable in `params`, `data.x`, `data.y` and `training.learning_rate`; safe under
    `jit`, `vmap` and `grad`. The result depends neither on the padding nor on its length.

    Args:
      model: the model (static).
      params: the received model.
      data: one client, without client axis: `x [records, ...]`, `y [records, ...]`, `mask
        [records]`.
      key: draws the order of records in each epoch, if they are shuffled, dropout, pairs of mixup
        and noise.
      training: see `LocalTraining`.

    Returns:
      The returned model, a pytree like `params`. A client without records returns what it received.

    Raises:
      ValueError: if `data` has a client axis or fields of different lengths, and on settings that
        make no sense or labels outside the classes; traced ones are not looked at.
    """
    check_records_of_one(model, params, data, "data")
    data, training = jax.tree.map(jnp.asarray, data), in_arrays(training)
    return _local_update(model, params, data, key, training)


@functools.partial(jax.jit, static_argnames="model")
def _local_update(
    model: Model, params: Any, data: ClientData, key: Array, training: LocalTraining
) -> Any:
    optimizer = training.optimizer(training.learning_rate)
    records = data.mask.shape[0]
    batch_size = records if training.batch_size is None else min(training.batch_size, records)
    batches = -(-records // batch_size)

    def step(
        carry: tuple[Any, Any], batch: tuple[Array, Array, Array]
    ) -> tuple[tuple[Any, Any], None]:
        params, state = carry
        rows, mask, key = batch
        x, y = (data.x, data.y) if batches == 1 else (data.x[rows], data.y[rows])
        gradient = batch_gradient(model, params, x, y, mask, key, training)
        if training.privacy is not None:
            # The sum's noise is that of a nominal batch: a short one's mean would be noisier.
            share = mask.sum() / jnp.minimum(data.mask.sum(), batch_size)
            gradient = jax.tree.map(lambda g: share.astype(g.dtype) * g, gradient)
        updates, new_state = optimizer.update(gradient, state, params)
        new = optax.apply_updates(params, updates), new_state
        # A batch of nothing but padding is no step, whatever the optimiser's momentum says.
        return jax.tree.map(lambda a, b: jnp.where(mask.any(), a, b), new, carry), None

    def epoch(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], None]:
        order_key, dropout_key = jax.random.split(key)
        if batches == 1:  # the gradient of the whole set has no order
            rows, mask = jnp.arange(records), data.mask
        else:
            order = batch_order(order_key if training.shuffle else None, data.mask)
            rows = jnp.pad(order, (0, batches * batch_size - records))
            mask = data.mask[rows] & (jnp.arange(len(rows)) < records)
            if training.drop_last:
                held = data.mask.sum()
                full = held // batch_size * batch_size
                mask &= jnp.arange(len(rows)) < jnp.where(full > 0, full, held)
        keys = jax.vmap(lambda i: jax.random.fold_in(dropout_key, i))(jnp.arange(batches))
        return jax.lax.scan(
            step, carry, (rows.reshape(batches, -1), mask.reshape(batches, -1), keys)
        )

    keys = jax.vmap(lambda e: jax.random.fold_in(key, e))(jnp.arange(training.epochs))
    (params, _), _ = jax.lax.scan(epoch, (params, optimizer.init(params)), keys)
    return params


def batch_gradient(
    model: Model, params: Any, x: Array, y: Array, mask: Array, key: Array, training: LocalTraining
) -> Any:
    """The gradient that one step follows, of the records `x [batch, ...]` where `mask` is True."""
    for plugin in overriding("batch", training.plugins):
        key, own_key = jax.random.split(key)
        changed = plugin.batch(model, x, y, mask, own_key)
        if not isinstance(changed, tuple) or len(changed) != 3:
            raise ValueError(f"{type(plugin).__name__}.batch gave no tuple (model, x, y)")
        model, x, y = changed
    for plugin in overriding("step_gradient", training.plugins):
        gradient = plugin.step_gradient(model, params, x, y, mask, key)
        _check.alike(f"{type(plugin).__name__}.step_gradient", params, gradient)
        # Where 64-bit types are on, a plug-in's own numbers are wider than the model.
        return jax.tree.map(_no_wider, gradient, params)
    return jax.grad(lambda p: mean_loss(model, p, x, y, key=key, mask=mask))(params)


def _no_wider(gradient: Array, parameter: Array) -> Array:
    """A gradient in float32, or in its parameter's type, if that is wider."""
    widest = jnp.promote_types(jnp.float32, parameter.dtype)
    narrow = jnp.promote_types(gradient.dtype, widest) == widest
    return gradient if narrow else gradient.astype(widest)


@checked
def client_round(
    model: Model,
    params: Params,
    data: OneClient,
    key: Key,
    training: LocalTraining,
    plugins: tuple[Plugin, ...] = (),
    send_key: Key | None = None,
) -> Params:
    """What a client returns in a round: `local_update`, and what plug-ins make of it.

    Args:
      model: the model (static).
      params: the received model.
      data: one client, without client axis.
      key: as for `local_update`.
      training: the recipe.
      plugins: what the client does beside the recipe.
      send_key: draws what is random in what is sent; by default a stream of `key` apart from
        training's.

    Raises:
      ValueError: as `local_update`.
    """
    check_records_of_one(model, params, data, "data")
    training, plugins = in_arrays(training), jax.tree.map(as_array, Plugins(plugins))
    send_key = jax.random.fold_in(key, SENDING) if send_key is None else send_key
    return _client_round(model, params, data, key, training, plugins, send_key)


@functools.partial(jax.jit, static_argnames="model")
def _client_round(
    model: Model,
    params: Any,
    data: ClientData,
    key: Array,
    training: LocalTraining,
    plugins: tuple[Plugin, ...],
    send_key: Array,
) -> Any:
    every = (*training.plugins, *plugins)
    for plugin in overriding("recipe", every):
        training = plugin.recipe(training)
        check(f"{type(plugin).__name__}.recipe", training, LocalTraining)
    training = dataclasses.replace(training, plugins=every)  # `local_update` runs hooks of steps
    returned = local_update(model, params, data, key, training)
    senders = overriding("send", every)
    if not senders:
        return returned
    update = jax.tree.map(jnp.subtract, params, returned)
    later_key = jax.random.fold_in(send_key, LATER)
    for place, plugin in enumerate(senders):
        # `split` numbers its keys as `fold_in` does: a plug-in's own are apart from the next one's.
        own_key = jax.random.fold_in(later_key, place) if place else send_key
        sent = plugin.send(update, own_key)
        _check.alike(f"{type(plugin).__name__}.send", update, sent)
        update = sent
    return jax.tree.map(jnp.subtract, params, update)


def in_arrays(training: LocalTraining) -> LocalTraining:
    """The recipe's numbers as arrays of one type, a learning rate of 1 as one of 1.0."""
    rate = jnp.asarray(training.learning_rate, jnp.result_type(float))
    return jax.tree.map(as_array, dataclasses.replace(training, learning_rate=rate))


def as_array(number: Any) -> Any:
    """Floating-point numbers as arrays of one type: a Python float and an array would compile
    twice."""
    array = jnp.asarray(number)
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    return array.astype(jnp.result_type(float)) if floating else array


def batch_order(key: Array | None, mask: Array) -> Array:
    """A random order of the rows `[records]`, or without a key as they stand: those where `mask` is
    True first, padding last.

    Each row's rank is drawn from a stream that is stable under longer padding, so padding changes
    nothing; and in 32 bits, so 64-bit types change nothing.
    """
    if key is None:
        return jnp.argsort(~mask)
    ranks = jax.random.uniform(key, mask.shape, jnp.float32)
    return jnp.argsort(jnp.where(mask, ranks, jnp.inf))
