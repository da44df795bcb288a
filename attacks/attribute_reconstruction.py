"""Attribute reconstruction by cosine matching against epoch-averaged updates (Lyu 2021, Algorithm 1).

Threat model: an honest-but-curious (or isolating) server sees a client's messages, knows its records but for one or more
columns, perhaps its labels, the possible values and perhaps their prior. It looks for the values whose virtual updates
point where the client's updates pointed.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks.gradient_matching import Minimum, Virtual, check_virtual, column_objective, matching_objective, minimize_adam
from jaxfl import Messages, Model, _check
from jaxfl.models import check_records

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class UnknownColumn:
    """A categorical attribute that the adversary does not know.

    Attributes:
      positions: `[width]` integers, where the attribute stands in a record of features.
      candidates: `[K, width]`, what each of its K values looks like there: `[[0.], [1.]]` for a binary column, the K
        numbers of a scalar coding, the identity for one-hot. With candidates `V`, the relaxed attribute is
        `softmax(z / gamma) @ V` (Lyu 2021, Eq. 2).
      prior: `[K]`, its known distribution, or None if unknown.
    """

    positions: Array
    candidates: Array
    prior: Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Knowledge:
    """What the adversary knows of the client's data.

    Attributes:
      x: records `[records, features]`. The unknown columns may hold anything: they are erased before the attack.
      y: integer labels `[records]`, or None if unknown (then they are reconstructed too).
      columns: the unknown columns.
      label_prior: `[classes]`, known distribution of unknown labels, or None.
    """

    x: Array
    y: Array | None
    columns: tuple[UnknownColumn, ...]
    label_prior: Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CosMatching:
    """Settings of `cos_matching`. Numbers are traced and may be swept; the rest is static.

    Attributes:
      gamma: temperature of the softmax ("Gumbel softmax parameter" of the paper).
      learning_rate: Adam's step size, decayed to zero by a cosine.
      steps: Adam iterations (static).
      noise: add Gumbel noise to the logits, drawn afresh in each iteration (static).
      hard: use the one-hot argmax forwards and the softmax backwards, "straight-through" (static).
      virtual: how a guess becomes an update.
    """

    gamma: float | Array = 1.0
    learning_rate: float | Array = 0.1
    steps: int = dataclasses.field(default=500, metadata={"static": True})
    noise: bool = dataclasses.field(default=False, metadata={"static": True})
    hard: bool = dataclasses.field(default=False, metadata={"static": True})
    virtual: Virtual = Virtual()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """The answer of an attribute attack.

    Attributes:
      values: per unknown column, the index of the chosen candidate `[records]`; -1 where the attack failed.
      scores: per unknown column, the weight of each candidate `[records, K]`.
      labels: reconstructed labels `[records]`, or None if they were known.
      objective: distance of the *decoded* answer's virtual update from what was seen, mean over rounds: known to the
        adversary, comparable between settings and sets of rounds.
      trace: relaxed objective per iteration.
      gradient_norm: per iteration.
      status: 0 if the attack ended with finite numbers, 1 otherwise.
    """

    values: tuple[Array, ...]
    scores: tuple[Array, ...]
    labels: Array | None
    objective: Array
    trace: Array
    gradient_norm: Array
    status: Array


def cos_matching(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    key: Array,
    *,
    settings: CosMatching | Sequence[CosMatching] | None = None,
) -> Reconstruction:
    """Reconstruct unknown columns from a client's messages (Lyu 2021, Algorithm 1).

    Args:
      model: the model that was trained (static).
      messages: the client's messages in the rounds to be used.
      knowledge: what is known of its data.
      key: draws the start if a prior is unknown, noise and batch orders.
      settings: see `CosMatching`; or several, of which the one with the least objective is returned (the paper's grid
        search over gamma, without looking at the truth).

    Returns:
      A `Reconstruction`.

    Raises:
      ValueError: on bad shapes, positions, priors or labels, naming the argument.

    >>> import jax, jaxfl
    >>> key = jax.random.key(0)
    >>> x = jax.random.bernoulli(key, 0.5, (20, 8)).astype(float)
    >>> y = (x[:, 0] + x[:, 1] > 1).astype(int)
    >>> model = jaxfl.mlp(8, (32,), 2)
    >>> clients = jaxfl.stack_clients([(x, y)])
    >>> run = jaxfl.simulate(model, model.init(key), clients, key, jaxfl.Federated(rounds=5))
    >>> known = Knowledge(x.at[:, 3].set(float("nan")), y, (binary_column(3),))
    >>> answer = cos_matching(model, run.messages(0), known, key)
    >>> float((answer.values[0] == x[:, 3]).mean())
    1.0
    """
    knowledge = check_knowledge(model, messages, knowledge)
    if isinstance(settings, Sequence):
        if not settings:
            raise ValueError("settings=[] is empty; give at least one CosMatching")
        return best_of([cos_matching(model, messages, knowledge, key, settings=s) for s in settings])
    settings = settings or CosMatching()
    _check.positive_integer(steps=settings.steps)
    _check.number(learning_rate=settings.learning_rate)
    _check.positive(gamma=settings.gamma)
    check_virtual(settings.virtual, len(knowledge.x))
    settings = jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(float)), settings)
    return _cos_matching(model, messages, knowledge, key, settings)


@functools.partial(jax.jit, static_argnames="model")
def _cos_matching(model: Model, messages: Messages, knowledge: Knowledge, key: Array, settings: CosMatching) -> Reconstruction:
    start_key, search_key, decode_key = jax.random.split(key, 3)

    matched = _matched(model, messages, knowledge, settings.virtual)

    def objective(logits: dict[str, Any], key: Array) -> Array:
        noise_key, virtual_key = jax.random.split(key)
        return matched(relax(logits, noise_key, settings), virtual_key)

    with jax.default_matmul_precision("highest"):
        start = start_logits(model, knowledge, start_key)
        found = minimize_adam(objective, start, search_key, steps=settings.steps, learning_rate=settings.learning_rate)
        return decode(model, messages, knowledge, found, decode_key, settings.virtual)


def _matched(
    model: Model, messages: Messages, knowledge: Knowledge, virtual: Virtual
) -> Callable[[dict[str, Any], Array], Array]:
    """The objective as a function of the candidates' weights: structured where the model allows it, else generic."""
    structured = model.layers is not None and model.layers.takes_records
    if not structured or virtual.kind != "gradient" or virtual.rounds_per_step is not None:
        return lambda weights, key: matching_objective(model, messages, *virtual_records(knowledge, weights), key, virtual)
    positions = jnp.concatenate([column.positions for column in knowledge.columns])
    objective = column_objective(model, messages, erase(knowledge), positions)

    def matched(weights: dict[str, Any], key: Array) -> Array:
        features = [w @ column.candidates for w, column in zip(weights["columns"], knowledge.columns, strict=True)]
        return objective(jnp.concatenate(features, 1), weights["labels"] if knowledge.y is None else knowledge.y)

    return matched


def start_logits(model: Model, knowledge: Knowledge, key: Array) -> dict[str, Any]:
    """Logits at the start: log of the prior where it is known, N(0, 1) otherwise (Algorithm 1, lines 4 to 8)."""
    records = len(knowledge.x)

    def start(key: Array, prior: Array | None, count: int) -> Array:
        if prior is None:
            return jax.random.normal(key, (records, count))
        return jnp.tile(jnp.log(jnp.maximum(prior, 1e-6)), (records, 1))

    columns = tuple(
        start(jax.random.fold_in(key, j), column.prior, len(column.candidates)) for j, column in enumerate(knowledge.columns)
    )
    if knowledge.y is not None:
        return {"columns": columns}
    classes = model.classes or 0
    return {"columns": columns, "labels": start(jax.random.fold_in(key, len(columns)), knowledge.label_prior, classes)}


def relax(logits: dict[str, Any], key: Array, settings: CosMatching) -> dict[str, Any]:
    """Weights of the candidates: `softmax(z / gamma)` (Algorithm 1, line 9), with the optional noise and rounding.

    Labels are relaxed by a plain softmax.
    """

    def weights(j: int, z: Array) -> Array:
        if settings.noise:
            z = z + jax.random.gumbel(jax.random.fold_in(key, j), z.shape)
        soft = jax.nn.softmax(z / settings.gamma)
        if settings.hard:
            return soft + jax.lax.stop_gradient(jax.nn.one_hot(z.argmax(-1), z.shape[-1]) - soft)
        return soft

    relaxed: dict[str, Any] = {"columns": tuple(weights(j, z) for j, z in enumerate(logits["columns"]))}
    if "labels" in logits:
        relaxed["labels"] = jax.nn.softmax(logits["labels"])
    return relaxed


def virtual_records(knowledge: Knowledge, weights: dict[str, Any]) -> tuple[Array, Array]:
    """The records that the weights of the candidates stand for (Algorithm 1, lines 10 and 11)."""
    x = erase(knowledge)
    for column, weight in zip(knowledge.columns, weights["columns"], strict=True):
        x = x.at[:, column.positions].set(weight @ column.candidates)
    return x, weights["labels"] if knowledge.y is None else knowledge.y


def erase(knowledge: Knowledge) -> Array:
    """Records with zeros in the unknown columns, so that no truth left there can reach an attack."""
    x = knowledge.x
    for column in knowledge.columns:
        x = x.at[:, column.positions].set(0)
    return x


def decode(
    model: Model, messages: Messages, knowledge: Knowledge, found: Minimum, key: Array, virtual: Virtual
) -> Reconstruction:
    """Round the best logits to one value per record (ties to the lowest index) and evaluate the rounded answer."""
    logits = found.variables
    one_hot = jax.tree.map(lambda z: jax.nn.one_hot(z.argmax(-1), z.shape[-1]), logits)
    x, y = virtual_records(knowledge, one_hot)
    full = dataclasses.replace(virtual, rounds_per_step=None)
    objective = matching_objective(model, messages, x, y, key, full)
    failed = ~(jnp.isfinite(found.value) & jnp.isfinite(objective))
    values = tuple(jnp.where(failed, -1, z.argmax(-1)) for z in logits["columns"])
    return Reconstruction(
        values=values,
        scores=tuple(jax.nn.softmax(z) for z in logits["columns"]),
        labels=jnp.where(failed, -1, logits["labels"].argmax(-1)) if knowledge.y is None else None,
        objective=jnp.where(failed, jnp.inf, objective),
        trace=found.trace,
        gradient_norm=found.gradient_norm,
        status=failed.astype(jnp.int32),
    )


def best_of(answers: Sequence[Reconstruction]) -> Reconstruction:
    """The answer with the least objective: a choice the adversary can make. Safe under `jit`.

    Traces of different lengths are padded with NaN.
    """
    if not answers:
        raise ValueError("answers=[] is empty; give at least one reconstruction")
    longest = max(len(a.trace) for a in answers)

    def pad(a: Reconstruction) -> Reconstruction:
        trace, norm = (jnp.pad(v, (0, longest - len(v)), constant_values=jnp.nan) for v in (a.trace, a.gradient_norm))
        return dataclasses.replace(a, trace=trace, gradient_norm=norm)

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(pad, answers))
    return jax.tree.map(lambda a: a[stacked.objective.argmin()], stacked)


def binary_column(position: int, prior: float | None = None) -> UnknownColumn:
    """An unknown column of zeros and ones; `prior` is the known fraction of ones, or None."""
    if not isinstance(position, int | np.integer):
        raise ValueError(f"position={position!r} must be an integer")
    distribution = None if prior is None else jnp.asarray([1 - prior, prior])
    return UnknownColumn(jnp.asarray([position]), jnp.asarray([[0.0], [1.0]]), distribution)


def check_knowledge(model: Model, messages: Messages, knowledge: Knowledge) -> Knowledge:
    """Knowledge as arrays. Raises `ValueError` on what an attack cannot use, naming the argument."""
    if len(messages) == 0:
        raise ValueError("messages holds no rounds; give at least one")
    return check_records_known(model, messages.model_shapes, knowledge)


def check_one_column(attack: str, knowledge: Knowledge, labels: bool = True) -> None:
    """Raise `ValueError` unless one column is unknown and labels are known (if `labels` are needed)."""
    if labels and knowledge.y is None:
        raise ValueError(f"y=None: {attack} needs known labels")
    if len(knowledge.columns) != 1:
        raise ValueError(f"columns has {len(knowledge.columns)} entries; {attack} takes one unknown column")


def check_records_known(model: Model, params: Any, knowledge: Knowledge) -> Knowledge:
    """As `check_knowledge`, whatever is seen of the records' training. `params` may be shapes."""
    x = jnp.asarray(knowledge.x, jnp.result_type(float))
    _check.shape((None, None), x=x)
    if len(x) == 0:
        raise ValueError("x has no records")
    if not knowledge.columns:
        raise ValueError("columns=() names no unknown column; give at least one")
    columns = tuple(_check_column(f"columns[{j}]", column, x.shape[1]) for j, column in enumerate(knowledge.columns))
    taken = [int(p) for c in columns if not _check.is_traced(c.positions) for p in c.positions]
    if len(set(taken)) < len(taken):
        raise ValueError(f"columns name positions {taken}, some of them twice; every feature belongs to one column")
    knowledge = dataclasses.replace(knowledge, x=x, columns=columns)
    _check.finite(x=erase(knowledge))
    if knowledge.y is None:
        if model.classes is None:
            raise ValueError("y=None needs a classifier; labels of a regression cannot be enumerated")
        check_records(
            model, params, x, jax.ShapeDtypeStruct((len(x), model.classes), x.dtype), y_name="y=None, as probabilities,"
        )
        if knowledge.label_prior is not None:
            _check.distribution(model.classes, label_prior=knowledge.label_prior)
            knowledge = dataclasses.replace(knowledge, label_prior=jnp.asarray(knowledge.label_prior))
        return knowledge
    y = jnp.asarray(knowledge.y)
    _check.shape((len(x),), y=y)
    check_records(model, params, x, y)
    if model.classes is None:
        _check.finite(y=y)
    else:
        _check.labels(y, model.classes)
        y = y.astype(jnp.int32)
    return dataclasses.replace(knowledge, y=y)


def check_positions(name: str, positions: Any, features: int) -> Array:
    """Positions as an array. Raises `ValueError` unless all are features: JAX would pass over those that are not."""
    found = jnp.asarray(positions)
    if not jnp.issubdtype(found.dtype, jnp.integer):
        raise ValueError(f"{name}={positions} must be integers")
    _check.shape((None,), **{name: found})
    outside = [] if _check.is_traced(found) else [int(p) for p in found if not 0 <= p < features]
    if outside:
        raise ValueError(f"{name}={found.tolist()} names feature {outside[0]}; features run from 0 to {features - 1}")
    return found


def _check_column(name: str, column: UnknownColumn, features: int) -> UnknownColumn:
    positions = check_positions(f"{name}.positions", column.positions, features)
    candidates = jnp.asarray(column.candidates, jnp.result_type(float))
    _check.shape((None, len(positions)), **{f"{name}.candidates": candidates})
    if len(candidates) < 2:
        raise ValueError(f"{name}.candidates has {len(candidates)} values; an unknown column needs at least 2")
    _check.finite(**{f"{name}.candidates": candidates})
    if column.prior is not None:
        _check.distribution(len(candidates), **{f"{name}.prior": column.prior})
    prior = None if column.prior is None else jnp.asarray(column.prior, jnp.result_type(float))
    return UnknownColumn(positions, candidates, prior)


__all__ = [
    "CosMatching",
    "Knowledge",
    "Reconstruction",
    "UnknownColumn",
    "best_of",
    "binary_column",
    "cos_matching",
]
