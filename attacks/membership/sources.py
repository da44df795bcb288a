"""Which client holds a record (Driouich 2023, section 2.3; Hu et al. 2021).

Threat model: a server that sees all clients' messages, and records with their labels, each of which
some client holds. Ways to tell whose it is: the model under which its loss is least; the client for
which that was so in most rounds; the client whose training lowered it most; or `decode_sources`,
which reads the weight of every record out of the messages. Answers of either can be learned from,
where clients' records are distributed apart: `by_discriminants`.
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Int, Num

from attacks.attributes.candidate_decoding.simulated_client import trains_at_random
from attacks.attributes.knowledge import float_type
from attacks.fit import Fit, precision, status_of, warn_of_fit
from attacks.membership.alike import warn_of_alike
from attacks.membership.held_out_answers import warn_of_untold_clients
from attacks.membership.shared_models import warn_of_shared_models
from attacks.membership.source_fit import Seen, judge_sources
from attacks.membership.source_weights import decoded_weights
from attacks.path import at_path_centres
from attacks.precision import arithmetic, cast
from attacks.told_labels import warn_of_other_labels
from jaxfl import LocalTraining, Messages, Model, _check
from jaxfl.domains import Count, Key, NotNegative, Params, checked
from jaxfl.models import check_labelled, check_parameters
from jaxfl.watching import on_host

Array = jax.Array
HALF = 0.5
"""Of a record's weight, between that of a client that holds it and of one that does not."""
LEVEL, PASSES = 1.5, 6
"""Factor by which the weights of a client's records may be other than they should be; and how often
a guess is simulated, of clients that take several full-batch steps, where all records are there."""


def losses(model: Model, params: Any, x: Array, y: Array) -> Array:
    """Loss of every record `[records]`. Batch statistics, where the model uses any, are those of
    these records."""
    return model.loss(model.apply(params, x), y)


@checked
def least_loss(
    model: Model, params: Params, x: Num[Array, "records ..."], y: Num[Array, "records ..."]
) -> Int[Array, "records"]:
    """The client whose model has the least loss on a record (Hu et al. 2021).

    Args:
      model: the model (static).
      params: one model per client, leaves `[clients, ...]`: last returned, reconstructed or optimal
        ones.
      x: records `[records, ...]`.
      y: their labels `[records]`.

    Returns:
      Places of the clients `[records]`, the first of several; -1 where a loss is not finite.

    Warns:
      FitWarning: if some clients have one model, as absent ones are recorded to; or the models name
        the labels far more seldom than by chance.

    Raises:
      ValueError: if the model does not take the records, there is not one label per record, or all
        clients have one model.
    """
    _check_candidates("least_loss", model, params, x, y, 1)
    return _least_loss(model, params, jnp.asarray(x), jnp.asarray(y))


@functools.partial(jax.jit, static_argnames="model")
def _least_loss(model: Model, params: Any, x: Array, y: Array) -> Array:
    return _least(jax.lax.map(lambda p: losses(model, p, x, y), params))


def _check_candidates(attack: str, model: Model, models: Any, x: Any, y: Any, axes: int) -> None:
    """Raise `ValueError` unless these are models with so many leading axes, the clients' last,
    which differ between clients and take the records. Warn where labels are not theirs, or some
    clients have one model."""
    name = "returned" if axes > 1 else "params"
    check_parameters(model, models, name, axes)
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[axes:], a.dtype), models)
    check_labelled(model, one, jnp.asarray(x), jnp.asarray(y))
    if _check.is_unseen(models):
        return
    last = models if axes == 1 else jax.tree.map(lambda a: jnp.asarray(a)[-1], models)
    warn_of_other_labels(attack, model, last, jnp.asarray(x), jnp.asarray(y), 5)
    leaves = [jnp.moveaxis(leaf, axes - 1, 0) for leaf in _leaves(models)]
    if len(leaves[0]) > 1 and all(bool((leaf == leaf[:1]).all()) for leaf in leaves):
        raise ValueError(
            f"{name} holds one model for all {len(leaves[0])} clients, which tells none of them "
            "apart; is it what they received?"
        )
    warn_of_shared_models(attack, name, models, axes)


def _leaves(tree: Any) -> list[Array]:
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def _least(scores: Array) -> Array:
    """Place of the least of `scores [clients, records]`, or -1 where one is not finite."""
    return jnp.where(jnp.isfinite(scores).all(0), scores.argmin(0), -1)


@struct.dataclass
class Vote:
    """Clients named by the majority of rounds, and round by round.

    Attributes:
      sources: the client that had the least loss in most rounds `[records]`, ties to the first
        (Driouich 2023, Appendix C.2); -1 if none ever had.
      rounds: who had it in each `[rounds, records]`, as `least_loss` says.
    """

    sources: Array
    rounds: Array


@checked
def majority_of_rounds(
    model: Model, returned: Params, x: Num[Array, "records ..."], y: Num[Array, "records ..."]
) -> Vote:
    """`least_loss` in every observed round, and the majority.

    Args:
      model: the model (static).
      returned: models the clients returned, leaves `[rounds, clients, ...]`.
      x: records `[records, ...]`.
      y: their labels `[records]`.

    Warns:
      FitWarning: as `least_loss`.

    Raises:
      ValueError: as `least_loss`.
    """
    _check_candidates("majority_of_rounds", model, returned, x, y, 2)
    return _majority_of_rounds(model, returned, jnp.asarray(x), jnp.asarray(y))


@functools.partial(jax.jit, static_argnames="model")
def _majority_of_rounds(model: Model, returned: Any, x: Array, y: Array) -> Vote:
    chosen = jax.lax.map(lambda params: _least_loss(model, params, x, y), returned)
    count = len(jax.tree.leaves(returned)[0][0])
    votes = jax.nn.one_hot(chosen, count, dtype=jnp.int32).sum(0)
    return Vote(jnp.where(votes.any(1), votes.argmax(1), -1), chosen)


@checked
def largest_drop(
    model: Model, returned: Params, x: Num[Array, "records ..."], y: Num[Array, "records ..."]
) -> Int[Array, "records"]:
    """The client whose training lowered a record's loss most, above what it lowers on average: a
    loss rule calibrated for how far clients train. All clients received the same models, so that a
    record's loss before training names nobody.

    Args:
      model: the model (static).
      returned: models the clients returned, leaves `[rounds, clients, ...]`.
      x: records `[records, ...]`.
      y: their labels `[records]`.

    Returns:
      Places of the clients `[records]`; -1 where a loss is not finite.

    Warns:
      FitWarning: as `least_loss`.

    Raises:
      ValueError: as `least_loss`.
    """
    _check_candidates("largest_drop", model, returned, x, y, 2)
    return _largest_drop(model, returned, jnp.asarray(x), jnp.asarray(y))


@functools.partial(jax.jit, static_argnames="model")
def _largest_drop(model: Model, returned: Any, x: Array, y: Array) -> Array:
    after = jax.lax.map(
        lambda models: jax.lax.map(lambda p: losses(model, p, x, y), models), returned
    ).mean(0)
    return _least(after - after.mean(1, keepdims=True))


@on_host("scikit-learn")
@checked
def by_discriminants(
    sources: Int[Array, "records"], x: Num[Array, "records ..."]
) -> Int[np.ndarray, "records"]:
    """Sources by linear discriminants learned from another attack's answers (self-training; beyond
    Driouich 2023).

    If clients' records differ in distribution, similar records correct a wrong answer. If they do
    not, the discriminants discard what the answers knew. Fisher's discriminants with a shrunk
    common covariance (Ledoit & Wolf 2004).

    Args:
      sources: places of clients as another attack names them `[records]`; -1 for none.
      x: the records `[records, ...]`, many of every client, without their labels.

    Returns:
      Places of the clients `[records]`, without an answer too, of those that are named more than
      once; or `sources`, if there are no two such clients.

    Warns:
      UncheckedWarning: if answers that are held out are told no better than by naming the most
        frequent client: records do not tell clients apart, or the answers are of other records.

    Raises:
      ValueError: if there is not one source per record, or records are not finite.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    answers, features = np.asarray(sources), np.asarray(x, np.float64).reshape(len(x), -1)
    _check.finite(x=features)
    clients, counts = np.unique(answers, return_counts=True)
    classes = clients[(clients >= 0) & (counts > 1)]
    if len(classes) < 2:
        return answers
    named = np.isin(answers, classes)
    rule = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    warn_of_untold_clients("by_discriminants", rule, features[named], answers[named])
    return rule.fit(features[named], answers[named]).predict(features)


@struct.dataclass
class Sources:
    """Clients named by decoded weights.

    Attributes:
      sources: place of the client with the largest weight `[records]`; -1 if the solution is not
        finite, or the record is nobody's: of more records than the clients hold so many at most,
        whose largest weights are below half of what a record that is held has.
      weights: decoded weights times the client's number of records `[records, clients]`, near 1 for
        its own.
      status: `attacks.Status` of each client `[clients]`: failed; a misfit, whose records or
        recipe are others; or unchecked, whose messages could contradict no answer.
      fit: how well the records explain each client's messages, fields `[clients]`.
    """

    sources: Int[Array, "records"]
    weights: Num[Array, "records clients"]
    status: Int[Array, "clients"]
    fit: Fit


@checked
def decode_sources(  # noqa: PLR0913 - what is seen, what is known, and how clients train
    model: Model,
    messages: Sequence[Messages],
    sizes: Sequence[Count],
    x: Num[Array, "records ..."],
    y: Num[Array, "records ..."],
    key: Key,
    *,
    training: LocalTraining,
    ridge: NotNegative = 1e-4,
) -> Sources:
    """Weights of all records in all clients' updates, by ridge regression on the records'
    gradients.

    A client's update is the sum of its records' gradients with equal weights; any other record has
    weight 0. All clients received the same model, so that one Gram matrix serves all. That is first
    order in the length of a client's path. Clients that take several full-batch steps are simulated
    on the records named so far, if there are as many as all hold, and what these leave is decoded
    again; the guess of the pass that leaves least of the updates counts. Beyond Driouich 2023.

    Args:
      model: the model (static), whose operations mix no records.
      messages: of every client, in the same rounds; one model for all.
      sizes: number of records of every client.
      x: records `[records, ...]`, best all that the clients hold.
      y: their labels `[records]`.
      key: draws the orders of the runs by which the answer is judged.
      training: the clients' recipe.
      ridge: relative to the Gram matrix's mean diagonal.

    Returns:
      `Sources`. Memory is that of a few `[records, records]` matrices, time grows with the cube of
      the records.

    Warns:
      UncheckedWarning: if equal records are of several clients.

    Raises:
      ValueError: if clients differ in rounds or two have the same messages, numbers do not fit,
        the records do not fit the model, the optimiser is no SGD, or batches are not drawn (which
        records share one is as unknown as whose they are).
    """
    if any(training.repeats_batches(size) for size in sizes):
        raise ValueError(
            "training.shuffle=False: decode_sources is for clients that draw their batches"
        )
    _check_together(messages, sizes)
    _check_different(messages)
    _check.plain_sgd(training.optimizer)
    x, y = jnp.asarray(x), jnp.asarray(y)
    for c, of_client in enumerate(messages):
        check_parameters(model, of_client.model_shapes, f"messages[{c}]")
    check_labelled(model, messages[0].model_shapes, x, y)
    steps = [training.steps(size) for size in sizes]
    centres = [at_path_centres(m, k).received for m, k in zip(messages, steps, strict=True)]
    with arithmetic(float_type(centres), messages, x, y, training, ridge):
        centre = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *centres)
        updates = jax.tree.map(
            lambda *leaves: jnp.stack(leaves, 1), *(m.pseudo_gradient for m in messages)
        )
        spacings = jnp.stack([precision(of_client) for of_client in messages])
        seen = Seen(messages[0].received, centre, updates, spacings)
        largest = x[: max(sizes)]
        exact = not trains_at_random(model, training, messages[0].received, largest)
        passes = PASSES if max(steps) > 1 and exact and len(x) >= sum(sizes) else 0
        decoded = decoded_weights(
            model, training, seen, tuple(sizes), (x, y), jnp.asarray(ridge), key, passes
        )
        failed, weights, levels = cast(decoded, jnp.float32)
    fit = judge_sources(model, training, seen, weights, tuple(sizes), (x, y), key)
    # Clipping and noise lower all weights; what records that are not among these add is laid upon
    # those that are.
    if not training.plugins and len(x) >= sum(sizes):
        misfit = jnp.maximum(fit.misfit, _far_from_one(levels))
        fit = Fit(fit.explained, fit.allowed, misfit)
    status = status_of(failed, fit)
    warn_of_fit("decode_sources", status, fit)
    warn_of_alike("decode_sources", x, y, weights)
    named = jnp.where(failed | _nobodys(weights, sum(sizes)), -1, weights.argmax(1))
    return Sources(named, weights, status, fit)


def _far_from_one(levels: Array) -> Array:
    """Above 1 where decoded weights are not within this factor of what a held record has: the
    client's size or rate is another."""
    return jnp.where(levels > 0, jnp.square(jnp.log(levels) / np.log(LEVEL)), jnp.inf)


def _nobodys(weights: Array, held: int) -> Array:
    """Which records no client holds `[records]`, by weights `[records, clients]` of so many that
    are held. Clipping and noise lower all weights: it is those of others that count."""
    largest = weights.max(1)
    ordered = jnp.sort(largest)[::-1]
    if held >= len(ordered):
        return jnp.zeros(len(ordered), bool)
    return (largest <= ordered[held]) & (largest < HALF * jnp.median(ordered[:held]))


def _check_together(messages: Sequence[Messages], sizes: Sequence[int]) -> None:
    """Raise `ValueError` unless all clients' messages are of the same rounds, and have a size."""
    rounds = [of_client.rounds.tolist() for of_client in messages]
    if not rounds or not rounds[0]:
        raise ValueError(
            f"messages of {len(rounds)} clients hold no rounds; give at least one of each client"
        )
    if len(messages) != len(sizes) or any(r != rounds[0] for r in rounds):
        raise ValueError(
            f"messages of {len(messages)} clients must be of the same rounds, and "
            f"sizes={list(sizes)} one each"
        )


def _check_different(messages: Sequence[Messages]) -> None:
    """Raise `ValueError` if two clients returned the same models: one was given twice, or what it
    received is taken for what it returned."""
    if _check.is_unseen(messages):
        return
    places: dict[bytes, int] = {}
    for place, of_client in enumerate(messages):
        first = places.setdefault(_digest(of_client.returned), place)
        moved = any(map(np.any, jax.tree.leaves(of_client.pseudo_gradient)))
        if first == place or not moved:
            continue
        if _digest(of_client.received) != _digest(messages[first].received):
            raise ValueError(
                f"messages[{place}] and messages[{first}] return the same models, and receive "
                "others: is what was received given as what was returned?"
            )
        raise ValueError(f"messages[{place}] are messages[{first}]; give each client once")


def _digest(models: Any) -> bytes:
    numbers = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(models))
    return hashlib.sha256(numbers).digest()
