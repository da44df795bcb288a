"""Loss and accuracy of a model on a set of records."""

import functools

import jax
import jax.numpy as jnp
from flax import struct

from jaxfl.clients import OneClient, check_records_of_one
from jaxfl.domains import Params, checked
from jaxfl.models import Model, zero_rows

Array = jax.Array


@struct.dataclass
class Evaluation:
    """How a model does on records.

    Attributes:
      loss: mean loss over the records; NaN of none.
      accuracy: fraction of records classified correctly; NaN of none, for regression and for a
        diverged model.
    """

    loss: Array
    accuracy: Array


@checked
def evaluate(model: Model, params: Params, data: OneClient) -> Evaluation:
    """Loss and accuracy of one model on one client's (or any) records; `vmap` it over models or
    clients. A `Model` that is made anew is compiled anew.

    Args:
      model: the model (static).
      params: its parameters.
      data: `x [records, ...]`, `y [records]`, `mask [records]`; of labels `[records, classes]` that
        are shares of classes, the largest is what is to be predicted.

    Raises:
      ValueError: on parameters that are not the model's, or records that it does not take.
    """
    check_records_of_one(model, params, data, "data")
    return _evaluate(model, params, data)


@functools.partial(jax.jit, static_argnums=0)
def _evaluate(model: Model, params: Params, data: OneClient) -> Evaluation:
    count = jnp.where(data.mask.any(), data.mask.sum(), jnp.nan)
    x, y = zero_rows(data.x, data.mask), zero_rows(data.y, data.mask)
    outputs = model.apply(params, x, mask=data.mask)
    loss = jnp.where(data.mask, model.loss(outputs, y), 0).sum() / count
    if model.classes is None:
        return Evaluation(loss, jnp.full_like(loss, jnp.nan))
    predicted = outputs.argmax(-1) if outputs.shape[-1] > 1 else outputs[..., 0] > 0
    labels = y.argmax(-1) if y.ndim > predicted.ndim else y
    # The largest of several NaN is the first class, which may well be right.
    return Evaluation(
        loss,
        jnp.where(jnp.isfinite(loss), (data.mask & (predicted == labels)).sum() / count, jnp.nan),
    )
