"""What the spans of a client's messages tell at once, without looking for any record.

Threat model: as in `attacks.records.reconstruction`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Num

from attacks.records.gradients import check_dense, dense_gradients, features_of, looked_at
from attacks.records.spans import MARGIN, off_rows, rank_of, scales_of, span_of, told_by
from jaxfl import Messages, Model, _check
from jaxfl.domains import checked


@checked
def count_records(model: Model, messages: Messages) -> int:
    """How many different records a client has: the rank of the layer whose inputs keep it, in the
    round that tells most clearly. Whatever the client's step size is.

    Args:
      model: a classifier whose layers are dense (static).
      messages: of a client that takes one full-batch step a round.

    Returns:
      Their number; 0 if the messages do not tell: there are as many records as units, or noise
      hides them.

    Raises:
      ValueError: if the model has other layers than dense ones, or messages are of another model.
    """
    check_dense(model, messages)
    gradients = dense_gradients(model, messages)
    layer = gradients[looked_at(len(gradients))]
    count, _ = told_by(layer, scales_of(layer))
    return count


@checked
def lies_in_span(
    model: Model, messages: Messages, x: Num[np.ndarray, "records features"]
) -> Bool[np.ndarray, "records"]:
    """Whether records may be the client's, whatever their labels: by the first layer's span of
    inputs over all rounds, one projection each. Holds for any number of local steps of plain SGD.

    Args:
      model: a classifier whose layers are dense and whose first one takes the records (static).
      messages: the client's.
      x: records to judge.

    Returns:
      True for every record of the client; for others too if they are combinations of records, as
      all are of a client with more records than features, or if messages tell nothing.

    Raises:
      ValueError: as `count_records`, and if records have other features than the model takes.
    """
    check_dense(model, messages)
    first = dense_gradients(model, messages)[0]
    inputs = np.asarray(x, np.float64)
    features = features_of(model, messages)
    _check.shape((None, features), x=inputs)
    _check.finite(x=inputs)
    bias = first.shape[-1] - features
    inputs = np.concatenate([inputs, np.ones((len(inputs), bias))], 1)
    finite = [gradient for gradient in first if np.isfinite(gradient).all()]
    stacked = np.concatenate(finite or [np.zeros((1, first.shape[-1]))])
    values = np.linalg.svd(stacked, compute_uv=False)
    rank, _ = rank_of(values, values[0], min(stacked.shape) - 1)
    if not rank:
        return np.ones(len(inputs), bool)
    with jax.enable_x64(True):
        off = jax.vmap(off_rows, (None, 0))(span_of(stacked, rank), jnp.asarray(inputs))
    return np.asarray(off) <= MARGIN
