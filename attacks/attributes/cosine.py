"""Attribute inference by gradient inversion: cosine matching against epoch-averaged updates (Lyu
2021, Algorithm 1).

Threat model: an honest-but-curious (or isolating) server sees a client's messages, knows its
records but for one or more columns, perhaps its labels, the possible values and perhaps their
prior. It looks for the values whose virtual updates point where the client's updates pointed.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from attacks.attributes.candidate_decoding.explanation import JUDGED, judge
from attacks.attributes.knowledge import (
    Knowledge,
    Reconstruction,
    answered,
    best_of,
    check_knowledge,
    erase,
    warn_of_unchanged,
    with_fit,
)
from attacks.column_matching import column_objective
from attacks.fit import warn_of_fit
from attacks.matching import (
    Minimum,
    Virtual,
    cosine_distance,
    matching_objective,
    minimize_adam,
)
from attacks.precision import arithmetic, cast
from jaxfl import Messages, Model
from jaxfl.domains import Count, Key, Number, Positive, checked

Array = jax.Array


@struct.dataclass
class CosMatching:
    """Settings of `cos_matching`. Numbers are traced and may be swept; the rest is static.

    Attributes:
      gamma: temperature of the softmax ("Gumbel softmax parameter" of the paper).
      learning_rate: Adam's step size, decayed to zero by a cosine.
      steps: Adam iterations (static).
      noise: add Gumbel noise to the logits, drawn afresh in each iteration (static).
      hard: use the one-hot argmax forwards and the softmax backwards, "straight-through" (static).
      virtual: how a guess becomes an update.
      distance: `distance(virtual update, observed update)`, the objective (static).
    """

    gamma: Positive = 1.0
    learning_rate: Number = 0.1
    steps: Count = struct.field(pytree_node=False, default=500)
    noise: bool = struct.field(pytree_node=False, default=False)
    hard: bool = struct.field(pytree_node=False, default=False)
    virtual: Virtual = Virtual()
    distance: Callable[[Any, Any], Array] = struct.field(pytree_node=False, default=cosine_distance)


@checked
def cos_matching(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    key: Key,
    *,
    settings: CosMatching | Sequence[CosMatching] | None = None,
) -> Reconstruction:
    """Reconstruct unknown columns from a client's messages (Lyu 2021, Algorithm 1).

    The objective is `attacks.matching.matching_objective`, by automatic differentiation. Of a dense
    network and one virtual gradient it is computed by `attacks.column_matching` instead: the same
    numbers, with what no unknown column changes computed once.

    Args:
      model: the model that was trained (static).
      messages: the client's messages in the rounds to be used.
      knowledge: what is known of its data.
      key: draws the start if a prior is unknown, noise and batch orders.
      settings: see `CosMatching`; or several, of which the one with the least objective is returned
        (the paper's grid search over gamma, without looking at the truth).

    Returns:
      A `Reconstruction`.

    Raises:
      ValueError: on bad shapes, positions, priors or labels, naming the argument.

    >>> import jax, jaxfl
    >>> from attacks import Knowledge, binary_column, cos_matching
    >>> key = jax.random.key(0)
    >>> x = jax.random.bernoulli(key, 0.5, (20, 8)).astype(float)
    >>> y = jax.random.randint(key, (20,), 0, 4)
    >>> model = jaxfl.mlp(8, (64,), 4)
    >>> clients = jaxfl.stack_clients([(x, y)])
    >>> run = jaxfl.simulate(model, model.init(key), clients, key, jaxfl.Federated(rounds=5))
    >>> known = Knowledge(x.at[:, 3].set(float("nan")), y, (binary_column(3),))
    >>> answer = cos_matching(model, run.messages(0), known, key)
    >>> float((answer.values[0] == x[:, 3]).mean())
    1.0
    """
    knowledge = check_knowledge(model, messages, knowledge)
    several = settings if isinstance(settings, Sequence) else [settings or CosMatching()]
    if not several:
        raise ValueError("settings=[] is empty; give at least one CosMatching")
    answers = [_judged(model, messages, knowledge, key, each) for each in several]
    answer = best_of(answers) if len(answers) > 1 else answers[0]
    warn_of_unchanged("cos_matching", messages)
    warn_of_fit("cos_matching", answer.status, answer.fit)
    return answer


def _judged(
    model: Model, messages: Messages, knowledge: Knowledge, key: Array, settings: CosMatching
) -> Reconstruction:
    """The answer, with how well it explains the messages."""
    settings.virtual.check(len(knowledge.x))
    recipe, seen = settings.virtual.training, messages
    messages = cast(messages, knowledge.x.dtype)
    settings = jax.tree.map(lambda a: jnp.asarray(a, knowledge.x.dtype), settings)
    with arithmetic(knowledge.x.dtype, messages, knowledge, key, settings):
        answer = _cos_matching(model, messages, knowledge, key, settings)
    judge_key = jax.random.fold_in(key, JUDGED)
    fit = judge(model, seen, knowledge, answer, recipe, judge_key, free_scale=True)
    return with_fit(messages, answer, fit)


@functools.partial(jax.jit, static_argnames="model")
def _cos_matching(
    model: Model, messages: Messages, knowledge: Knowledge, key: Array, settings: CosMatching
) -> Reconstruction:
    start_key, search_key, decode_key = jax.random.split(key, 3)

    matched = _matched(model, messages, knowledge, settings)

    def objective(logits: dict[str, Any], key: Array) -> Array:
        noise_key, virtual_key = jax.random.split(key)
        return matched(relax(logits, noise_key, settings), virtual_key)

    with jax.default_matmul_precision("highest"):
        start = start_logits(model, knowledge, start_key)
        minimum = minimize_adam(
            objective, start, search_key, steps=settings.steps, learning_rate=settings.learning_rate
        )
        return decode(
            model, messages, knowledge, minimum, decode_key, settings.virtual, settings.distance
        )


def _matched(
    model: Model, messages: Messages, knowledge: Knowledge, settings: CosMatching
) -> Callable[[dict[str, Any], Array], Array]:
    """The objective as a function of the candidates' weights: structured where the model allows it,
    else generic."""
    virtual, distance = settings.virtual, settings.distance
    structured = model.layers is not None and model.layers.takes_records
    plain = virtual.kind == "gradient" and virtual.rounds_per_step is None
    if not (structured and plain and distance is cosine_distance):
        return lambda weights, key: matching_objective(
            model, messages, *virtual_records(knowledge, weights), key, virtual, distance
        )
    positions = jnp.concatenate([column.positions for column in knowledge.columns])
    objective = column_objective(model, messages, erase(knowledge), positions)

    def matched(weights: dict[str, Any], key: Array) -> Array:
        features = [
            w @ column.candidates
            for w, column in zip(weights["columns"], knowledge.columns, strict=True)
        ]
        return objective(
            jnp.concatenate(features, 1), weights["labels"] if knowledge.y is None else knowledge.y
        )

    return matched


def start_logits(model: Model, knowledge: Knowledge, key: Array) -> dict[str, Any]:
    """Logits at the start: log of the prior where it is known, N(0, 1) otherwise (Algorithm 1,
    lines 4 to 8)."""
    records = len(knowledge.x)

    def start(key: Array, prior: Array | None, count: int) -> Array:
        if prior is None:
            return jax.random.normal(key, (records, count), knowledge.x.dtype)
        return jnp.tile(jnp.log(jnp.maximum(prior, 1e-6)), (records, 1))

    columns = tuple(
        start(jax.random.fold_in(key, j), column.prior, len(column.candidates))
        for j, column in enumerate(knowledge.columns)
    )
    if knowledge.y is not None:
        return {"columns": columns}
    classes = model.classes or 0
    return {
        "columns": columns,
        "labels": start(jax.random.fold_in(key, len(columns)), knowledge.label_prior, classes),
    }


def relax(logits: dict[str, Any], key: Array, settings: CosMatching) -> dict[str, Any]:
    """Weights of the candidates: `softmax(z / gamma)` (Algorithm 1, line 9), with the optional
    noise and rounding.

    Labels are relaxed by a plain softmax.
    """

    def weights(j: int, z: Array) -> Array:
        if settings.noise:
            z = z + jax.random.gumbel(jax.random.fold_in(key, j), z.shape, z.dtype)
        soft = jax.nn.softmax(z / settings.gamma)
        if settings.hard:
            return soft + jax.lax.stop_gradient(jax.nn.one_hot(z.argmax(-1), z.shape[-1]) - soft)
        return soft

    relaxed: dict[str, Any] = {
        "columns": tuple(weights(j, z) for j, z in enumerate(logits["columns"]))
    }
    if "labels" in logits:
        relaxed["labels"] = jax.nn.softmax(logits["labels"])
    return relaxed


def virtual_records(knowledge: Knowledge, weights: dict[str, Any]) -> tuple[Array, Array]:
    """The records that the weights of the candidates stand for (Algorithm 1, lines 10 and 11)."""
    x = erase(knowledge)
    for column, weight in zip(knowledge.columns, weights["columns"], strict=True):
        x = x.at[:, column.positions].set(weight @ column.candidates)
    return x, weights["labels"] if knowledge.y is None else knowledge.y


def decode(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    minimum: Minimum,
    key: Array,
    virtual: Virtual,
    distance: Callable[[Any, Any], Array] = cosine_distance,
) -> Reconstruction:
    """Round the best logits to one value per record (ties to the lowest index) and evaluate the
    rounded answer."""
    logits = minimum.variables
    one_hot = jax.tree.map(lambda z: jax.nn.one_hot(z.argmax(-1), z.shape[-1]), logits)
    x, y = virtual_records(knowledge, one_hot)
    full = dataclasses.replace(virtual, rounds_per_step=None)
    objective = matching_objective(model, messages, x, y, key, full, distance)
    failed = ~(jnp.isfinite(minimum.value) & jnp.isfinite(objective))
    return answered(
        failed,
        tuple(z.argmax(-1) for z in logits["columns"]),
        tuple(jax.nn.softmax(z) for z in logits["columns"]),
        logits["labels"].argmax(-1) if knowledge.y is None else None,
        objective=objective,
        trace=minimum.trace,
        gradient_norm=minimum.gradient_norm,
    )
