"""Model-based attribute inference (Driouich 2022, Algorithm 4; Driouich 2023, Eq. 3): the value
under which a model fits best.

Threat model: an adversary that holds some model a client trained (the global one, the last
returned, a reconstructed or the optimal local one) and knows the client's public columns and
targets. It never sees a message's gradient.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Int

from attacks.attributes.knowledge import Knowledge, check_one_column, check_records_known, erase
from jaxfl import Model
from jaxfl.domains import Params, checked
from jaxfl.models import check_parameters

Array = jax.Array


@checked
def infer_from_model(model: Model, params: Params, knowledge: Knowledge) -> Int[Array, "records"]:
    """`argmin_v |F(theta; x, v) - y|^2` for every record, over the candidates of the unknown
    column.

    F is the prediction of a regression, the probability of a binary classifier with one logit, or
    the vector of probabilities, y then being one-hot. Batch statistics, where the model uses any,
    are those of the records with the column at its prior mean: statistics of a batch in which all
    records share one candidate would cancel it.

    Args:
      model: the model (static).
      params: its parameters.
      knowledge: one unknown column; known targets.

    Returns:
      Index of the chosen candidate `[records]`, ties to the lowest; -1 where the predictions are
      not finite.

    Raises:
      ValueError: if targets are unknown, columns are several, or records, targets, positions,
        candidates or prior do not fit.
    """
    check_parameters(model, params)
    check_one_column("infer_from_model", knowledge)
    return _infer(model, params, check_records_known(model, params, knowledge))


@functools.partial(jax.jit, static_argnames="model")
def _infer(model: Model, params: Any, knowledge: Knowledge) -> Array:
    column, base, y = knowledge.columns[0], erase(knowledge), jnp.asarray(knowledge.y)

    values = jnp.asarray(column.candidates, base.dtype)
    mean = values.mean(0) if column.prior is None else column.prior @ values
    usual = base.at[:, column.positions].set(mean)
    mask = jnp.arange(2 * len(base)) < len(base)

    def distance(value: Array) -> Array:
        filled = base.at[:, column.positions].set(value)
        outputs = model.apply(params, jnp.concatenate([usual, filled]), mask=mask)[len(base) :]
        if model.classes is None:
            return (outputs[:, 0] - y) ** 2
        if outputs.shape[1] == 1:
            outputs = jnp.concatenate([jnp.zeros_like(outputs), outputs], 1)
        label = jax.nn.one_hot(y, outputs.shape[1], dtype=outputs.dtype)
        if outputs.shape[1] == 2:  # the same order, in which no saturated candidates are tied
            return (outputs * (1 - 2 * label)).sum(1)
        return ((jax.nn.softmax(outputs) - label) ** 2).sum(1)

    distances = jax.vmap(distance)(values)
    return jnp.where(jnp.isfinite(distances).all(0), distances.argmin(0), -1)
