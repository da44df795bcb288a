"""Weights of classes in a batch's loss, as PyTorch's losses take them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxfl.domains import Params, Positive
from jaxfl.models import Model, zero_rows
from jaxfl.plugins import Plugin

Array = jax.Array


@struct.dataclass
class ClassWeights(Plugin):
    """Every step follows a weighted mean of the losses of its batch, sum_n w(y_n) loss_n / sum_n
    w(y_n): what `torch.nn.CrossEntropyLoss(weight=...)` does.

    A loss that is weighted, and then averaged over records, is a `Model` with another `loss`.

    Attributes:
      weights: w of every class; traced. Labels must be integers.
    """

    weights: tuple[Positive, ...]

    def step_gradient(
        self, model: Model, params: Params, x: Array, y: Array, mask: Array, key: Array
    ) -> Params:
        """See `jaxfl.Plugin`."""
        if model.classes != len(self.weights):
            raise ValueError(
                f"ClassWeights.weights has {len(self.weights)} entries; the model has "
                f"{model.classes} classes"
            )
        if y.ndim != 1:
            raise ValueError(f"ClassWeights takes integer labels; a batch's have shape {y.shape}")
        x, y = zero_rows(x, mask), zero_rows(y, mask)
        weights = jnp.where(mask, self.of(y), 0)
        least = jnp.finfo(weights.dtype).tiny

        def loss(params: Any) -> Array:
            losses = model.loss(model.apply(params, x, key=key, mask=mask), y)
            return (weights * losses).sum() / jnp.maximum(weights.sum(), least)

        return jax.grad(loss)(params)

    def of(self, y: Array) -> Array:
        """The weights of records by their labels `y [...]`."""
        return jnp.stack([jnp.asarray(w) for w in self.weights])[y.astype(int)]

    def in_loss(self, model: Model, y: Array) -> Model:
        """The model whose mean loss over all records of labels `y [records]` is their weighted
        mean."""
        mean, weighted = self.of(y).mean(), self.weighted(model)
        return dataclasses.replace(
            weighted, loss=lambda outputs, labels: weighted.loss(outputs, labels) / mean
        )

    def weighted(self, model: Model) -> Model:
        """The model whose losses are weighted. Of class probabilities each part weighs by its own
        class, as in PyTorch."""

        def loss(outputs: Array, y: Array) -> Array:
            if y.ndim < outputs.ndim:
                return self.of(y) * model.loss(outputs, y)
            each = [
                jnp.asarray(weight) * y[..., k] * model.loss(outputs, jnp.full(y.shape[:-1], k))
                for k, weight in enumerate(self.weights)
            ]
            return jnp.stack(each).sum(0)

        return dataclasses.replace(model, loss=loss)
