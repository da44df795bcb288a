"""Membership inference (MIA) by the variance of gradients (Lyu 2021, section 3.3), where one column
of the records is unknown.

Threat model: an honest-but-curious server that sees a client's messages and holds records with
their labels, of which some are the client's. The last layer's gradient varies little on records
that the model has fitted, so the attack needs a client that has fitted its records.
"""

import dataclasses
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Num

from attacks.attributes.candidate_decoding.candidates import candidate_records
from attacks.attributes.knowledge import Knowledge, check_knowledge, check_one_column
from attacks.fit import MisfitWarning, Status, UncheckedWarning
from attacks.precision import in_type_here
from attacks.told_labels import warn_of_other_labels
from jaxfl import Messages, Model, _check
from jaxfl.domains import Index, Params, checked
from jaxfl.models import check_labelled, check_parameters, inputs_and_errors
from jaxfl.watching import on_host

Array = jax.Array


FEWEST = 30
"""Records of which two groups can be told from one: noise of fewer falls into two."""
WARNED = {
    Status.MISFIT: (
        MisfitWarning,
        "the records' gradients vary as one group: the model has not fitted the client's records "
        "apart from others, and who is called a member is a guess",
    ),
    Status.UNCHECKED: (
        UncheckedWarning,
        f"of fewer than {FEWEST} records noise, too, falls into two groups: nothing says that "
        "those are members and others",
    ),
}


@dataclasses.dataclass(frozen=True)
class Membership:
    """The answer of a membership attack. Host arrays.

    Attributes:
      members: whether each record is judged a member `[records]`.
      scores: the more, the likelier a member `[records]`.
      candidates: whether each record with each value of the unknown column is judged a member
        `[records, K]`, the unit in which the paper counts; None if records are judged as a whole.
      status: see `attacks.Status`; 1 if the attack ended with numbers that are not finite: then
        scores are NaN and nobody is a member; 2 if what the attack assumes does not hold; 3 if that
        cannot be told.
    """

    members: np.ndarray
    scores: np.ndarray
    candidates: np.ndarray | None = None
    status: int = 0


@checked
@in_type_here
def variance_mixture(
    model: Model, messages: Messages, knowledge: Knowledge, *, seed: Index = 0
) -> Membership:
    """Split candidates into members and others by a mixture of two Gaussians (Lyu 2021, section
    3.3).

    The mixture is fitted to log10 of the gradients' variance at the last returned model; members
    are the component of the lower mean. The paper leaves scale and model open. Records are judged
    by a second mixture, on the mean over candidates. Where a single Gaussian has the lower Bayesian
    information criterion the records are no two groups: the client has not fitted its own, and the
    answer is a misfit. Of fewer than `FEWEST` records that cannot be told. Two groups need not be
    members and others: variances that are skewed fall into two as well.

    Args:
      model: the model; its last layer must be a dense layer that it names.
      messages: the client's messages; the last one is used.
      knowledge: records that may or may not be the client's, labels known, one unknown column.
      seed: of the mixture's five starts.

    Warns:
      MisfitWarning: if the records are no two groups, or the model names the labels far
        more seldom than by chance.
      UncheckedWarning: if they are fewer than `FEWEST`.

    Raises:
      ValueError: as `cos_matching`; if labels are unknown, columns are several, there is a single
        record, or the model names no dense layers.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_one_column("variance_mixture", knowledge)
    if len(knowledge.x) < 2:
        raise ValueError("x has 1 record; a mixture of two needs at least 2")
    last = jax.tree.map(lambda a: a[-1], messages.returned)
    x, y = candidate_records(model, knowledge)
    one = jax.tree.map(lambda a: jnp.asarray(a)[None], last)
    others = warn_of_other_labels("variance_mixture", model, one, x[:, 0], y[:, 0])
    variance = gradient_variance(model, last, x, y)
    answer = split_variances(np.asarray(variance), seed=seed)
    if others and answer.status in (Status.OK, Status.UNCHECKED):
        return dataclasses.replace(answer, status=Status.MISFIT)
    if answer.status in WARNED:
        warning, words = WARNED[Status(answer.status)]
        warnings.warn(f"variance_mixture: {words}", warning, stacklevel=3)
    return answer


@on_host("scikit-learn")
@checked
def split_variances(
    variance: Num[np.ndarray, "records candidates"], *, seed: Index = 0
) -> Membership:
    """The mixture's part of `variance_mixture`, on variances `[records, K]`. Fails where they are
    not finite or alike; a misfit where one Gaussian describes them as well as two, else unchecked
    if they are fewer than `FEWEST`. Raises `ValueError` if one is negative."""
    variance = np.asarray(variance)
    nobody = Membership(
        np.zeros(len(variance), bool),
        np.full(len(variance), np.nan),
        np.zeros(variance.shape, bool),
        Status.FAILED,
    )
    if not np.isfinite(variance).all():
        return nobody
    _check.at_least(0, variance=variance)
    # A variance of 0 has a logarithm too, far below those of float32's rounding.
    logarithm = np.log10(np.asarray(variance, np.float64) + 1e-12)
    score = -logarithm.mean(1)
    candidates, _ = _lower_component(logarithm.reshape(-1), seed)
    members, are_two = _lower_component(-score, seed)
    if members.all() or not members.any():  # variances that are alike are no two groups
        return nobody
    status = Status.MISFIT
    if are_two:
        status = Status.OK if len(score) >= FEWEST else Status.UNCHECKED
    return Membership(members, score, candidates.reshape(variance.shape), status)


def _lower_component(values: np.ndarray, seed: int) -> tuple[np.ndarray, bool]:
    """Whether each value `[n]` is of the mixture's component of the lower mean; and whether two
    Gaussians describe the values better than one, by the Bayesian information criterion."""
    from sklearn.mixture import GaussianMixture

    column = values[:, None]
    mixture = GaussianMixture(2, n_init=5, random_state=seed).fit(column)
    are_two = mixture.bic(column) < GaussianMixture(1).fit(column).bic(column)
    return mixture.predict(column) == mixture.means_[:, 0].argmin(), bool(are_two)


@checked
def gradient_variance(
    model: Model,
    params: Params,
    x: Num[Array, "records candidates features"],
    y: Num[Array, "records candidates"],
) -> Num[Array, "records candidates"]:
    """Variance over the entries of each candidate's own gradient by the last layer's kernel
    `[records, K]`.

    With h the layer's input and e the derivative of the loss by its output, the gradient is h e',
    so nothing is differentiated but the loss: var = |h|^2 |e|^2 / n - (sum h sum e / n)^2 over its
    n entries.

    Args:
      model: a model that names its dense layers (static).
      params: where gradients are taken.
      x: candidates `[records, K, features]`.
      y: labels `[records, K]`.

    Raises:
      ValueError: if the model names no dense layers.
    """
    if model.layers is None:
        raise ValueError(
            "model.layers is None; the variance of the last layer's gradient needs a model "
            "that names its layers"
        )
    check_parameters(model, params)
    x, y = jnp.asarray(x), jnp.asarray(y)
    check_labelled(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
    return _gradient_variance(model, params, x, y)


@functools.partial(jax.jit, static_argnames="model")
def _gradient_variance(model: Model, params: Any, x: Array, y: Array) -> Array:
    inputs, errors = inputs_and_errors(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
    name = model.layers.names[-1]  # type: ignore[union-attr]
    h, e = inputs[name], errors[name]
    entries = h.shape[1] * e.shape[1]
    mean = h.sum(1) * e.sum(1) / entries
    variance = (h**2).sum(1) * (e**2).sum(1) / entries - mean**2
    return jnp.maximum(variance, 0).reshape(y.shape)
