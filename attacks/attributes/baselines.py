"""What an adversary achieves without cosine matching: guesses, models trained on public data, L2
matching (Lyu 2021, section 4.3).

Threat model: of guesses, one who knows the column's prior and sees nothing; of public models, one
who also has records of the same distribution with the column, and sees nothing; of statistics and
of gradient matching in L2 (gradient inversion, DLG), an honest-but-curious server that sees a
client's messages and knows its records but for the columns.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Int, Num

from attacks.attributes.candidate_decoding.candidates import candidate_records
from attacks.attributes.candidate_decoding.explanation import JUDGED, judge
from attacks.attributes.cosine import decode
from attacks.attributes.knowledge import (
    Knowledge,
    Reconstruction,
    check_knowledge,
    check_one_column,
    check_positions,
    erase,
    explained,
)
from attacks.matching import (
    Virtual,
    matching_objective,
    minimize_lbfgs,
    squared_distance,
)
from attacks.precision import arithmetic, in_type_here
from jaxfl import LocalTraining, Messages, Model, _check, local_update, mlp, one_client
from jaxfl.domains import Count, Key, checked
from jaxfl.models import check_parameters

Array = jax.Array


@checked
def random_guess(key: Key, records: Count, candidates: Count) -> Int[Array, "records"]:
    """`random`: a uniform guess for each record `[records]`; right with probability 1/K.

    Args:
      key: draws the guesses.
      records: how many (static).
      candidates: number of values K (static).
    """
    return jax.random.randint(key, (records,), 0, candidates, jnp.int32)


@checked
def majority_guess(prior: Num[Array, "candidates"], records: Count) -> Int[Array, "records"]:
    """`majority`: the value most frequent in the known prior `[K]`, for every
    record `[records]`."""
    _check.distribution(len(prior), prior=prior)
    return jnp.full(records, jnp.argmax(jnp.asarray(prior)))


@checked
def public_model(
    x_public: Num[Array, "public features"],
    values_public: Num[Array, "public"],
    x: Num[Array, "records features"],
    positions: Int[Array, "positions"],
    candidates: Count,
    key: Key,
    *,
    epochs: Count = 200,
) -> Int[Array, "records"]:
    """`public100`, `public1000`: an MLP from the other columns to the attribute, trained on public
    records.

    Lyu 2021 says only "attack model"; this is one hidden layer of 128, Adam with rate 1e-3, batches
    of 32.

    Args:
      x_public: public records `[public, features]`.
      values_public: index of their true value `[public]`.
      x: the victim's records `[records, features]`.
      positions: where the attribute stands `[width]`; erased in both.
      candidates: number of values K (static).
      key: initial weights and batch order.
      epochs: passes over the public records (static).

    Returns:
      Index of the inferred value for each of the victim's records `[records]`; -1 if training
      diverged.
    """
    if np.shape(x)[1] != np.shape(x_public)[1]:
        raise ValueError(
            f"x has {np.shape(x)[1]} features; x_public has {np.shape(x_public)[1]}, not as many"
        )
    return name_by_public_model(
        fit_public_model(x_public, values_public, positions, candidates, key, epochs=epochs),
        x,
        positions,
    )


@checked
def fit_public_model(
    x_public: Num[Array, "records features"],
    values_public: Num[Array, "records"],
    positions: Int[Array, "positions"],
    candidates: Count,
    key: Key,
    *,
    epochs: Count = 200,
) -> Any:
    """The parameters of `public_model`, which know nothing of a victim.

    Args:
      x_public, values_public: public records `[public, features]`, and the index of their true
        value `[public]`.
      positions: where the attribute stands `[width]`; erased.
      candidates: number of values K (static).
      key: initial weights and batch order.
      epochs: passes over the public records (static).
    """
    _check.labels(values_public, candidates, name="values_public")
    positions = check_positions("positions", positions, np.shape(x_public)[1])
    hidden = jnp.asarray(x_public).at[:, positions].set(0)
    _check.finite(x_public=hidden)
    return _fit_public_model(hidden, jnp.asarray(values_public), candidates, key, epochs)


@functools.partial(jax.jit, static_argnames=("candidates", "epochs"))
def _fit_public_model(
    x_public: Array, values_public: Array, candidates: int, key: Array, epochs: int
) -> Any:
    model = _attack_model(x_public.shape[1], candidates)
    training = LocalTraining(
        1e-3, epochs=epochs, batch_size=min(32, len(x_public)), optimizer=optax.adam
    )
    start_key, train_key = jax.random.split(key)
    return local_update(
        model, model.init(start_key), one_client(x_public, values_public), train_key, training
    )


@checked
def name_by_public_model(
    params: Any, x: Num[Array, "records features"], positions: Int[Array, "positions"]
) -> Int[Array, "records"]:
    """What `public_model` returns, from its parameters.

    Args:
      params: from `fit_public_model`.
      x: the victim's records `[records, features]`.
      positions: where the attribute stands `[width]`; erased.
    """
    candidates = jax.tree.leaves(params)[-1].shape[-1]
    model = _attack_model(np.shape(x)[1], candidates)
    check_parameters(model, params, f"params, of x of {np.shape(x)[1]} features,")
    positions = check_positions("positions", positions, np.shape(x)[1])
    outputs = model.apply(params, jnp.asarray(x).at[:, positions].set(0))
    return jnp.where(jnp.isfinite(outputs).all(), outputs.argmax(-1), -1)


def _attack_model(features: int, candidates: int) -> Model:
    return mlp(features, (128,), candidates)


@struct.dataclass
class L2Matching:
    """Settings of `l2_lbfgs`.

    Attributes:
      evaluations: budget of evaluations of objective and gradient (static).
      virtual: how a guess becomes an update; its learning rate sets the scale, which L2 needs.
    """

    evaluations: Count = struct.field(pytree_node=False, default=200)
    virtual: Virtual = Virtual()


@checked
@in_type_here
def l2_lbfgs(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    key: Key,
    *,
    settings: L2Matching | None = None,
) -> Reconstruction:
    """L2 matching by L-BFGS (DLG, Zhu et al. 2019), the rival "L2-BFGS" of Lyu 2021.

    The attribute's features are free real numbers, started at the prior's mean (at N(0, 1) where it
    is unknown), and rounded to the nearest candidate in the end. What the paper's description lacks
    and a fair rival needs is a line search. Each round's distance is divided by the squared length
    of its update, so that all rounds count alike; with one round that changes nothing.

    Args:
      model: the model that was trained (static).
      messages: the client's messages in the rounds to be used.
      knowledge: what is known of its data, labels included.
      key: draws the start if a prior is unknown, noise and batch orders.
      settings: see `L2Matching`.

    Returns:
      A `Reconstruction`.

    Raises:
      ValueError: on bad shapes, positions, priors or labels, or if labels are unknown; it names
        the argument.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    if knowledge.y is None:
        raise ValueError("y=None: l2_lbfgs needs known labels; cos_matching reconstructs them")
    settings = settings or L2Matching()
    settings.virtual.check(len(knowledge.x))
    settings = jax.tree.map(lambda a: jnp.asarray(a, knowledge.x.dtype), settings)
    with arithmetic(knowledge.x.dtype, messages, knowledge, key, settings):
        answer = _l2_lbfgs(model, messages, knowledge, key, settings)
    judge_key = jax.random.fold_in(key, JUDGED)
    fit = judge(model, messages, knowledge, answer, settings.virtual.training, judge_key)
    return explained("l2_lbfgs", messages, answer, fit)


@functools.partial(jax.jit, static_argnames="model")
def _l2_lbfgs(
    model: Model, messages: Messages, knowledge: Knowledge, key: Array, settings: L2Matching
) -> Reconstruction:
    start_key, objective_key = jax.random.split(key)
    known, labels = erase(knowledge), jnp.asarray(knowledge.y)

    def objective(free: tuple[Array, ...]) -> Array:
        x = known
        for column, features in zip(knowledge.columns, free, strict=True):
            x = x.at[:, column.positions].set(features)
        return matching_objective(
            model, messages, x, labels, objective_key, settings.virtual, squared_distance
        )

    def start(j: int) -> Array:
        column = knowledge.columns[j]
        shape = (len(known), column.candidates.shape[1])
        if column.prior is None:
            return jax.random.normal(jax.random.fold_in(start_key, j), shape, jnp.float32)
        return jnp.broadcast_to(column.prior @ column.candidates, shape)

    with jax.default_matmul_precision("highest"):
        begin = tuple(start(j) for j in range(len(knowledge.columns)))
        minimum = minimize_lbfgs(objective, begin, evaluations=settings.evaluations)
        nearest = tuple(
            -jnp.square(features[:, None] - column.candidates).sum(-1)
            for features, column in zip(minimum.variables, knowledge.columns, strict=True)
        )
        minimum = dataclasses.replace(minimum, variables={"columns": nearest})
        return decode(model, messages, knowledge, minimum, objective_key, settings.virtual)


HEURISTICS = (
    "label",
    "probability",
    "loss",
    "final_loss",
    "gradient_norm",
    "true_label_gradient",
    "majority",
)
"""The seven statistics of Lyu 2021, section 4.3, in its order."""


@checked
@in_type_here
def statistics(model: Model, messages: Messages, knowledge: Knowledge) -> Int[Array, "7 records"]:
    """Judge every candidate by the returned models, without optimisation (Lyu 2021, section 4.3).

    Per record and candidate, over the rounds' returned models, with p the class probabilities, y
    the known label and h the last layer's input: (1) correct predictions, most; (2) sum of p_y,
    largest; (3) sum of losses, least; (4) loss of the last model, least; (5) sum of |p - e_y| |h|,
    the norm of the last layer's gradient, largest (as the paper says; members have small ones); (6)
    sum of (p_y - 1) sum(h), that gradient's entries for the true label, largest; (7) the majority
    of these six. Ties go to the lowest candidate.

    Args:
      model: a classifier with `model.layers` (static).
      messages: the client's messages; only what it returned is used.
      knowledge: one unknown column, known labels.

    Returns:
      Index of the inferred value `[7, records]`, in the order of `HEURISTICS`; -1 where a model
      gives numbers that are not finite.

    Raises:
      ValueError: as `cos_matching`; and without labels, with several columns, or for a model
        without dense layers.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_one_column("statistics", knowledge)
    if model.layers is None or model.classes is None or model.classes != _outputs(model, messages):
        raise ValueError(
            "statistics needs a softmax classifier whose parameters belong to dense layers"
        )
    with arithmetic(knowledge.x.dtype, messages, knowledge):
        return _statistics(model, messages, knowledge)


def _outputs(model: Model, messages: Messages) -> int:
    layers = model.layers
    assert layers is not None
    return int(layers.parameters(messages.received, layers.names[-1])["kernel"].shape[-1])


@functools.partial(jax.jit, static_argnames="model")
def _statistics(model: Model, messages: Messages, knowledge: Knowledge) -> Array:
    layers = model.layers
    assert layers is not None
    x, y = candidate_records(model, knowledge)
    count = x.shape[1]
    flat_x, flat_y = x.reshape(-1, x.shape[-1]), y.reshape(-1)

    def one_model(params: Any) -> Array:
        outputs, inputs = layers.forward(params, flat_x, {})
        p, h = jax.nn.softmax(outputs), inputs[layers.names[-1]]
        true = jnp.take_along_axis(p, flat_y[:, None], 1)[:, 0]
        error = jnp.linalg.norm(p - jax.nn.one_hot(flat_y, p.shape[1]), axis=1)
        loss = model.loss(outputs, flat_y)
        judged = (
            p.argmax(1) == flat_y,
            true,
            -loss,
            -loss,
            error * jnp.linalg.norm(h, axis=1),
            (true - 1) * h.sum(1),
        )
        return jnp.stack([f.astype(p.dtype) for f in judged])

    every = jax.lax.map(one_model, messages.returned)  # [rounds, 6, records * K]
    scores = every.sum(0).at[3].set(every[-1, 3]).reshape(6, -1, count)
    choices = scores.argmax(2)
    votes = jax.nn.one_hot(choices, count).sum(0)
    values = jnp.concatenate([choices, votes.argmax(1)[None]])
    return jnp.where(jnp.isfinite(scores).all(), values, -1)
