"""What an adversary knows of a client's records, which columns it does not, and the answer of an
attack on these.

Every attribute attack (attribute inference, AIA) takes `Knowledge` and gives a `Reconstruction`;
the checks of both stand here.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Int, Num

from attacks.fit import (
    Fit,
    MisfitWarning,
    Status,
    no_fit,
    reason_of,
    status_of,
    warn_of_fit,
)
from jaxfl import Messages, Model, _check
from jaxfl.domains import MOST_INDEX, Index, Probability, check, checked
from jaxfl.models import check_parameters, check_records
from jaxfl.models.probe import mixes_records

Array = jax.Array


@struct.dataclass
class UnknownColumn:
    """A categorical attribute that the adversary does not know.

    Attributes:
      positions: `[width]` integers, where the attribute stands in a record of features.
      candidates: `[K, width]`, what each of its K values looks like there: `[[0.], [1.]]` for a
        binary column, the K numbers of a scalar coding, the identity for one-hot. With candidates
        `V`, the relaxed attribute is `softmax(z / gamma) @ V` (Lyu 2021, Eq. 2).
      prior: `[K]`, its known distribution, or None if unknown.
    """

    positions: Int[Array, "positions"]
    candidates: Num[Array, "candidates positions"]
    prior: Num[Array, "candidates"] | None = None

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        if len(self.candidates) < 2:
            raise ValueError(
                f"{name}.candidates has {len(self.candidates)} values; an unknown column needs at "
                "least 2"
            )
        _check.finite(**{f"{name}.candidates": self.candidates})
        if not _check.is_unseen(self.candidates):
            different, first = np.unique(np.asarray(self.candidates), axis=0, return_index=True)
            if len(different) < len(self.candidates):
                repeated = min(set(range(len(self.candidates))) - set(first.tolist()))
                value = np.asarray(self.candidates)[repeated].tolist()
                raise ValueError(f"{name}.candidates[{repeated}]={value} is there more than once")
        if self.prior is not None:
            _check.distribution(len(self.candidates), **{f"{name}.prior": self.prior})


@struct.dataclass
class Knowledge:
    """What the adversary knows of the client's data.

    Attributes:
      x: records `[records, features]`. The unknown columns may hold anything: they are erased
        before the attack.
      y: integer labels `[records]`, or None if unknown (then they are reconstructed too).
      columns: the unknown columns.
      label_prior: `[classes]`, known distribution of unknown labels, or None.
    """

    x: Num[Array, "records features"]
    y: Num[Array, "records"] | None
    columns: tuple[UnknownColumn, ...]
    label_prior: Num[Array, "classes"] | None = None

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`. Traced values pass unseen."""
        if not self.columns:
            raise ValueError(f"{name}.columns=() names no unknown column; give at least one")
        taken: list[int] = []
        for j, column in enumerate(self.columns):
            place = f"{name}.columns[{j}].positions"
            check_positions(place, column.positions, np.shape(self.x)[1])
            taken += (
                [] if _check.is_unseen(column.positions) else np.ravel(column.positions).tolist()
            )
        if len(set(taken)) < len(taken):
            raise ValueError(
                f"{name}.columns name positions {taken}, some of them twice; every feature belongs "
                "to one column"
            )
        if not _check.is_unseen(self.x):
            left = np.array(self.x)
            left[:, taken] = 0
            _check.finite(**{f"{name}.x": left})


@struct.dataclass
class Reconstruction:
    """The answer of an attribute attack.

    Attributes:
      values: per unknown column, the index of the chosen candidate `[records]`; -1 where the attack
        failed.
      scores: per unknown column, the weight of each candidate `[records, K]`.
      labels: reconstructed labels `[records]`, or None if they were known.
      objective: distance of the *decoded* answer's virtual update from what was seen, mean over
        rounds: known to the adversary, comparable between settings and sets of rounds.
      trace: relaxed objective per iteration.
      gradient_norm: per iteration.
      status: see `attacks.Status`: 0 if nothing speaks against the answer, 1 if the attack failed,
        2 if no answer explains the messages, 3 if these could contradict none, or others explain
        them as well: then values are the attack's guess all the same.
      fit: how well the answer explains the messages.
    """

    values: tuple[Int[Array, "records"], ...]
    scores: tuple[Num[Array, "records candidates"], ...]
    labels: Int[Array, "records"] | None
    objective: Num[Array, ""]
    trace: Num[Array, "iterations"]
    gradient_norm: Num[Array, "iterations"]
    status: Int[Array, ""]
    fit: Fit

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        for j, (values, scores) in enumerate(zip(self.values, self.scores, strict=True)):
            if np.shape(values) != np.shape(scores)[:1]:
                raise ValueError(
                    f"{name}.values[{j}] has shape {np.shape(values)}; {name}.scores[{j}] has "
                    f"{np.shape(scores)}"
                )
            if _check.is_unseen(values):
                continue
            largest = np.asarray(values).max()  # on the host, under an outer `jit` too
            if largest >= np.shape(scores)[1]:
                raise ValueError(
                    f"{name}.values[{j}] holds {largest}; {name}.scores[{j}] has "
                    f"{np.shape(scores)[1]} candidates"
                )

    @property
    def reason(self) -> str:
        """The status in words, and whether the fit says that some values are wrong."""
        return reason_of(self.status, self.fit)


def answered(  # noqa: PLR0913 - the fields of its result
    failed: Array,
    values: tuple[Array, ...],
    scores: tuple[Array, ...],
    labels: Array | None = None,
    *,
    objective: Array,
    trace: Array,
    gradient_norm: Array | None = None,
    fit: Fit | None = None,
) -> Reconstruction:
    """A `Reconstruction`, of which nothing looks like an answer where the attack failed.

    Args:
      failed: whether it did, a boolean scalar: then values and labels are -1, the objective is
        infinite, the status 1.
      values, scores, labels, objective, trace, gradient_norm: see `Reconstruction`. Norms are NaN
        where the attack has none.
      fit: see `Reconstruction`; None if the attack explains no messages.
    """
    fit = no_fit() if fit is None else fit
    return Reconstruction(
        values=tuple(jnp.where(failed, -1, v) for v in values),
        scores=scores,
        labels=None if labels is None else jnp.where(failed, -1, labels),
        objective=jnp.where(failed, jnp.inf, objective),
        trace=trace,
        gradient_norm=jnp.full_like(trace, jnp.nan) if gradient_norm is None else gradient_norm,
        status=status_of(failed, fit),
        fit=fit,
    )


def explained(attack: str, messages: Messages, answer: Reconstruction, fit: Fit) -> Reconstruction:
    """An answer with its fit, and a warning where that is a misfit, or there was nothing to
    explain."""
    answer = with_fit(messages, answer, fit)
    warn_of_unchanged(attack, messages, stacklevel=5)
    warn_of_fit(attack, answer.status, fit, stacklevel=5)
    return answer


def warn_of_unchanged(attack: str, messages: Messages, stacklevel: int = 4) -> None:
    """Warn, where values are no tracers, if no model came back changed; `stacklevel` is that of
    whoever called the attack."""
    if _check.is_unseen(messages):
        return
    with jax.ensure_compile_time_eval():  # constants, perhaps under an outer `jit`
        unchanged = bool(messages.unchanged)
    if unchanged:
        warnings.warn(
            f"{attack}: no returned model differs from the one received, so that there is nothing "
            "to explain: the client did not train, or the models after a round were given for "
            "those before it",
            MisfitWarning,
            stacklevel=stacklevel,
        )


def with_fit(messages: Messages, answer: Reconstruction, fit: Fit) -> Reconstruction:
    """An answer with its fit. Where no model came back changed there is nothing to explain: then
    the attack failed."""
    failed = (answer.status == Status.FAILED) | messages.unchanged
    status = status_of(failed, fit)
    return dataclasses.replace(
        answer,
        values=tuple(jnp.where(failed, -1, v) for v in answer.values),
        labels=None if answer.labels is None else jnp.where(failed, -1, answer.labels),
        objective=jnp.where(failed, jnp.inf, answer.objective),
        status=status,
        fit=fit,
    )


@checked
def best_of(answers: Sequence[Reconstruction]) -> Reconstruction:
    """The answer with the least objective, of those that have one: a choice the adversary can make.
    Safe under `jit`.

    Traces of different lengths are padded with NaN.
    """
    if not answers:
        raise ValueError("answers=[] is empty; give at least one reconstruction")
    longest = max(len(a.trace) for a in answers)

    def pad(a: Reconstruction) -> Reconstruction:
        trace, norm = (
            jnp.pad(v, (0, longest - len(v)), constant_values=jnp.nan)
            for v in (a.trace, a.gradient_norm)
        )
        return dataclasses.replace(a, trace=trace, gradient_norm=norm)

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(pad, answers))
    return jax.tree.map(lambda a: a[jnp.nanargmin(stacked.objective)], stacked)


@checked
def binary_column(position: Index, prior: Probability | None = None) -> UnknownColumn:
    """An unknown column of zeros and ones; `prior` is the known fraction of ones, or None."""
    distribution = None if prior is None else jnp.asarray([1 - prior, prior])
    if position >= MOST_INDEX:
        raise ValueError(f"position={position} is no place of a feature; it must be below 2^31")
    return UnknownColumn(jnp.asarray([position]), jnp.asarray([[0.0], [1.0]]), distribution)


def erase(knowledge: Knowledge) -> Array:
    """Records with zeros in the unknown columns, so that no truth left there can reach
    an attack."""
    x = jnp.asarray(knowledge.x)
    for column in knowledge.columns:
        x = x.at[:, column.positions].set(0)
    return x


def check_knowledge(model: Model, messages: Messages, knowledge: Knowledge) -> Knowledge:
    """Knowledge as arrays. Raises `ValueError` on what an attack cannot use, naming
    the argument."""
    if len(messages) == 0:
        raise ValueError("messages holds no rounds; give at least one")
    check_parameters(model, messages.model_shapes, "messages")
    return check_records_known(model, messages.model_shapes, knowledge)


def check_apart(attack: str, model: Model, messages: Messages, knowledge: Knowledge) -> None:
    """Raise `ValueError` if the model mixes records, so that a gradient is no sum over these."""
    if mixes_records(model, messages.model_shapes, knowledge.x):
        raise ValueError(
            f"model mixes the records of a batch (batch normalisation?), so that {attack} has no "
            "sum of single records' gradients to decode; cos_matching takes such models"
        )


def check_one_column(attack: str, knowledge: Knowledge, labels: bool = True) -> None:
    """Raise `ValueError` unless one column is unknown and labels are known (if `labels` are
    needed)."""
    if labels and knowledge.y is None:
        raise ValueError(f"y=None: {attack} needs known labels")
    if len(knowledge.columns) != 1:
        raise ValueError(
            f"columns has {len(knowledge.columns)} entries; {attack} takes one unknown column"
        )


def float_type(params: Any) -> Any:
    """The one floating-point type that an attack computes in: that of the models it is given, or of
    their shapes, float32 at least, whether or not 64-bit types are switched on."""
    return np.result_type(np.float32, *(a.dtype for a in jax.tree.leaves(params)))


def check_records_known(model: Model, params: Any, knowledge: Knowledge) -> Knowledge:
    """As `check_knowledge`, whatever is seen of the records' training. `params` may be shapes."""
    check("knowledge", knowledge, Knowledge)  # for attacks of one's own, which nothing has checked
    dtype = float_type(params) if jax.config.read("jax_enable_x64") else np.float32
    columns = tuple(
        jax.tree.map(lambda a: jnp.asarray(a, dtype), column).replace(
            positions=jnp.asarray(column.positions, jnp.int32)
        )
        for column in knowledge.columns
    )
    x = jnp.asarray(knowledge.x, dtype)
    knowledge = dataclasses.replace(knowledge, x=x, columns=columns)
    return _check_labels(model, params, knowledge)


def _check_labels(model: Model, params: Any, knowledge: Knowledge) -> Knowledge:
    """Labels as arrays, or what stands for unknown ones."""
    x, dtype = knowledge.x, knowledge.x.dtype
    if knowledge.y is None:
        if model.classes is None:
            raise ValueError(
                "y=None needs a classifier; labels of a regression cannot be enumerated"
            )
        check_records(
            model,
            params,
            x,
            jax.ShapeDtypeStruct((len(x), model.classes), x.dtype),
            y_name="y=None, as probabilities,",
        )
        if knowledge.label_prior is not None:
            _check.distribution(model.classes, label_prior=knowledge.label_prior)
            knowledge = dataclasses.replace(
                knowledge, label_prior=jnp.asarray(knowledge.label_prior, dtype)
            )
        return knowledge
    y = jnp.asarray(knowledge.y)
    y = y.astype(dtype) if jnp.issubdtype(y.dtype, jnp.floating) else y
    check_records(model, params, x, y)
    if model.classes is None:
        _check.finite(y=y)
    else:
        _check.labels(y, model.classes)
        y = y.astype(jnp.int32)
    return dataclasses.replace(knowledge, y=y)


def check_positions(name: str, positions: Any, features: int) -> Array:
    """Positions as an array. Raises `ValueError` unless all are features: JAX would pass over those
    that are not."""
    if _check.is_unseen(positions):
        _check.shape((None,), **{name: positions})
        return jnp.asarray(positions, jnp.int32)
    places = np.asarray(positions)  # on the host, under an outer `jit` too
    if not np.issubdtype(places.dtype, np.integer):
        raise ValueError(f"{name}={positions} must be integers")
    _check.shape((None,), **{name: places})
    outside = [p for p in places.tolist() if not 0 <= p < features]
    if outside:
        raise ValueError(
            f"{name}={places.tolist()} names feature {outside[0]}; features run from 0 to "
            f"{features - 1}"
        )
    return jnp.asarray(places, jnp.int32)
