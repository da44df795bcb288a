"""Decoding a numeric column of which nothing is known but bounds, by candidates on windows that
close in on each record's number.

Threat model: as of `attacks.attributes.candidate_decoding.gls`, with one unknown column that holds
numbers, known labels, and bounds of these numbers in place of possible values.

A record's gradient is no linear function of its number, so that least squares on derivatives ends
far from the truth. The least squares of `gls` is linear in the *weights* of candidates, wherever
these lie: on a window of every record stand so many nodes, and their mean by weight is the next
guess. Between nodes the gradient is taken to be linear, which matters less the narrower a window
is. Each window closes in on its guess, but for those whose guess is at an edge and may lie beyond
it.

The attack tells how far its numbers are off. It also reads the messages of a simulated client: half
of that client's records, drawn at random, have numbers drawn between the bounds, and the other half
have the numbers that were found. Drawn numbers are unlike those on which the attack falls back
where messages tell nothing. Where the client's messages are explained less well than the simulated
client's, the error is taken to be larger: what is left unexplained grows with the error's square.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.dtypes import canonicalize_dtype
from jaxtyping import Int, Num

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.constraints import interior_point
from attacks.attributes.candidate_decoding.gls import check_gls
from attacks.attributes.candidate_decoding.gls_round import (
    GLS,
    Client,
    Round,
    round_quadratic,
    rounds_of,
)
from attacks.attributes.candidate_decoding.simulated_client import Guess, trains_at_random
from attacks.attributes.candidate_decoding.simulated_numbers import (
    bounds,
    fit_of_numbers,
    left_unexplained,
    tried_client,
    with_numbers,
)
from attacks.attributes.knowledge import (
    Knowledge,
    UnknownColumn,
    check_apart,
    check_knowledge,
    check_one_column,
    warn_of_unchanged,
)
from attacks.fit import Fit, precision, reason_of, status_of, warn_of_fit
from attacks.lapack import after
from attacks.path import check_linear
from attacks.precision import arithmetic, cast
from jaxfl import LocalTraining, Messages, Model, _check
from jaxfl.domains import Count, Key, checked

Array = jax.Array
NODES, FEWEST, USUAL_UNKNOWNS = 41, 3, 2_000
"""Nodes on a window that is as wide as the bounds, at most, as many as unknowns allow, which are
records x (nodes - 1)."""
NARROWER, NARROWEST = 9, 5
"""Nodes, at most, on windows after a quarter of the passes, and after half of them."""
LARGEST = 8_000
"""The most unknowns: their matrix takes half a gigabyte, of which several are held, and one of two
candidates' gradients four times as much."""
CLOSING, EDGE = 0.7, 0.05
"""How much of a window the next pass looks at, and what share on either side is its edge."""
INTERIOR = 20
"""Steps of each least squares, whose answer need not be exact but for the last ones."""
MORE, MOST_LEFT = 10, 1e-4
"""Times what is left of a simulated client: what is allowed to be left, and that at most, so that a
search which ends short of both clients does not allow itself that."""
SLACK = 1e-9
"""Pull towards the guess, relative to the normal equations' diagonal: nodes of a narrow window are
alike."""


@struct.dataclass
class NumberDecoding:
    """Settings of `decode_numbers`.

    Attributes:
      training: the client's recipe, as `GLS.training`.
      orders: simulated runs per round and pass, as `GLS.orders` (static); two of a client that does
        nothing at random.
      nodes: candidates on a window (static), in a first quarter of the passes; then nine and, in
        the later half, five at most. By default nine, or as many as keep the unknowns within 2,000,
        three at least. Of a client that does nothing at random a second attempt is made with up to
        41: between few nodes a gradient has bends, and with many there may be too few equations.
        What explains the messages better counts. A number that is given makes one attempt.
      passes: how often windows close in (static).
    """

    training: LocalTraining
    _: dataclasses.KW_ONLY
    orders: Count = struct.field(pytree_node=False, default=32)
    nodes: Count | None = struct.field(pytree_node=False, default=None)
    passes: Count = struct.field(pytree_node=False, default=16)


@struct.dataclass
class DecodedNumbers:
    """The answer of `decode_numbers`.

    Attributes:
      values: each record's number `[records]`, in the feature's units; NaN where the attack failed.
      error: root mean square error to be expected, in the same units: that of the same attack on
        numbers drawn evenly between the bounds, of half of a simulated client's records; more where
        more of the messages is left unexplained than of that client's. NaN where the attack failed.
      trace: mean width of the windows of each pass `[passes]`.
      status: see `attacks.Status`.
      fit: how well the values explain the messages.
    """

    values: Num[Array, "records"]
    error: Num[Array, ""]
    trace: Num[Array, "passes"]
    status: Int[Array, ""]
    fit: Fit

    @property
    def reason(self) -> str:
        """The status in words, and whether the fit says that some values are wrong."""
        return reason_of(self.status, self.fit)


@checked
def decode_numbers(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    key: Key,
    *,
    settings: NumberDecoding,
) -> DecodedNumbers:
    """Reconstruct a numeric column from the messages of a client with any local training whose
    optimiser is linear.

    Args:
      model: as of `gls`.
      messages: the client's; the more rounds the better.
      knowledge: known labels, and one unknown column of one feature. The least and the largest of
        its candidates are bounds of its numbers; what lies between says nothing, nor its prior.
      key: draws simulated batch orders, and the numbers of simulated clients.
      settings: see `NumberDecoding`.

    Returns:
      `DecodedNumbers`. Arithmetic is in float64, which is switched on for the call; inside an outer
      `jit` that runs without 64-bit types, in float32, in which narrow windows tell little. Results
      are float32. The misfit is what a grid across the bounds leaves, over what it leaves of
      clients with these numbers, or with any if that is more. At least ten times what the attack
      leaves of a simulated client is allowed, but no more than a ten-thousandth on that account.

    Raises:
      ValueError: as `gls`; if labels are unknown, another number of columns than one is, the column
        has another number of features than one, its bounds are the same in float32, or records x
        (nodes - 1) exceeds 8,000.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_apart("decode_numbers", model, messages, knowledge)
    check_one_column("decode_numbers", knowledge)
    check_linear(settings.training.optimizer, messages.model_shapes)
    at_random = trains_at_random(model, settings.training, messages.received, knowledge.x)
    least_squares = GLS(settings.training, orders=settings.orders if at_random else 2)
    check_gls(least_squares, model, knowledge)
    _check_column(knowledge.columns[0])
    counts = _counts(settings, len(knowledge.x), at_random)
    with arithmetic(np.dtype(np.float64), messages, knowledge, key, least_squares):
        looked = model, knowledge, least_squares, counts, settings.passes
        values, widths, left = _closest(messages, key, *looked)
        trial = tried_client(model, messages, knowledge, key, settings.training, values)
        again, _, of_trial = _closest(trial.messages, trial.key, *looked)
        error = jnp.sqrt(jnp.square(again - trial.numbers).mean(where=trial.drawn))
        # What is left grows with the square of errors, beside what the recipe leaves of both.
        error *= jnp.sqrt(jnp.maximum(left / of_trial, 1))
        lower, upper = bounds(knowledge)
        error = jnp.minimum(error, upper - lower)
        values, error, widths, of_trial = cast((values, error, widths, of_trial), jnp.float32)
    failed = ~(jnp.isfinite(values).all() & jnp.isfinite(error)) | messages.unchanged
    decoded = after(values, error)
    fit = fit_of_numbers(model, messages, knowledge, decoded, settings.training, key)
    # Numbers are never exact: what is left is compared with what errors of the expected size leave.
    usual = 1 - jnp.minimum(MORE * of_trial, MOST_LEFT)
    fit = dataclasses.replace(fit, allowed=jnp.minimum(fit.allowed, usual))
    status = status_of(failed, fit)
    warn_of_unchanged("decode_numbers", messages)
    warn_of_fit("decode_numbers", status, fit)
    values, error = (jnp.where(failed, jnp.nan, a) for a in (values, error))
    return DecodedNumbers(values, error, widths, status, fit)


def _counts(settings: NumberDecoding, records: int, at_random: bool) -> tuple[int, ...]:
    """How many candidates stand on a window, in one attempt or another."""
    most = int(np.clip(USUAL_UNKNOWNS // records + 1, FEWEST, NODES))
    few = min(most, NARROWER)
    usual = (few,) if at_random or few == most else (few, most)
    counts = usual if settings.nodes is None else (settings.nodes,)
    nodes = counts[-1]
    if nodes < 2 or records * (nodes - 1) > LARGEST:
        raise ValueError(
            f"nodes={settings.nodes}: {nodes} of {records} records make {records * (nodes - 1)} "
            f"unknowns; {LARGEST} can be told at most, and two nodes are the least"
        )
    return counts


def _closest(
    messages: Messages,
    key: Array,
    model: Model,
    knowledge: Knowledge,
    settings: GLS,
    counts: Sequence[int],
    passes: int,
) -> tuple[Array, Array, Array]:
    """Of attempts with so many nodes each, the numbers `[records]` that leave the least of the
    messages, the mean widths of windows, and how much they leave."""
    attempt_key, left_key = jax.random.split(key)

    def attempt(nodes: int) -> tuple[Array, Array, Array]:
        seen = model, messages, knowledge
        values, widths = _decode(*seen, attempt_key, settings, nodes, passes)
        return values, widths, left_unexplained(*seen, values, settings.training, left_key)

    best, *others = map(attempt, counts)
    for other in others:
        better = (other[2] < best[2]) | jnp.isnan(best[2])
        best = jax.tree.map(functools.partial(jnp.where, better), other, best)
    return best


def _check_column(column: UnknownColumn) -> None:
    """Raise `ValueError` unless it is one feature, with two bounds."""
    if len(column.positions) != 1:
        raise ValueError(
            f"columns[0].positions has {len(column.positions)} features; a number is one feature"
        )
    ends = column.candidates
    if not _check.is_unseen(ends) and np.ptp(np.asarray(ends, np.float32)) == 0:
        raise ValueError(
            f"columns[0].candidates={np.ravel(ends).tolist()} are one number in float32, no bounds"
        )


@functools.partial(jax.jit, static_argnames=("model", "nodes", "passes"))
def _decode(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    key: Array,
    settings: GLS,
    nodes: int,
    passes: int,
) -> tuple[Array, Array]:
    """Numbers `[records]`, and the mean width of the windows of every pass."""
    dtype, spacing = canonicalize_dtype(jnp.float64), precision(messages)
    messages, knowledge, settings = cast((messages, knowledge, settings), dtype)
    lower, upper = bounds(knowledge)
    rounds = rounds_of(messages, spacing, settings.training, len(knowledge.x))

    def one_pass(
        count: int, narrow: bool, windows: tuple[Array, Array], key: Array
    ) -> tuple[tuple[Array, Array], Array]:
        guess, width = windows
        low = jnp.clip(guess - width / 2, lower, upper - width)
        places = jnp.linspace(0, 1, count, dtype=dtype)
        x = with_numbers(knowledge, low[:, None] + width[:, None] * places)
        known = model, x, jnp.asarray(knowledge.y), settings
        exact = with_numbers(knowledge, guess[:, None])
        # On wide windows errors of the mean between nodes are like those of the gradients.
        client = _Windows(*known, exact) if narrow else Client(*known)
        at = _weights(client, rounds, (guess - low) / width, key) @ places
        inside = at * (1 - at) > EDGE * (1 - EDGE)
        bounded = ((at < 0.5) & (low <= lower)) | ((at > 0.5) & (low >= upper - width))
        closer = jnp.where(inside | bounded, CLOSING * width, width)
        return (low + at * width, closer), width.mean()

    start = jnp.full(len(knowledge.x), (lower + upper) / 2, dtype)
    windows = start, jnp.full_like(start, upper - lower)
    half = (passes + 1) // 2
    keys = jnp.split(jax.random.split(key, passes), [(half + 1) // 2, half])
    counts, widths = (nodes, min(nodes, NARROWER), min(nodes, NARROWEST)), []
    with jax.default_matmul_precision("highest"):
        for count, some, narrow in zip(counts, keys, (False, False, True), strict=True):
            closing = functools.partial(one_pass, count, narrow)
            windows, mean_widths = jax.lax.scan(closing, windows, some)
            widths.append(mean_widths)
    return windows[0], jnp.concatenate(widths)


@struct.dataclass
class _Windows(Client):
    """A client's windows, and its records at the guess `[records, 1, features]`, on which it is
    simulated."""

    exact: Array

    def guess(self, scores: Array, seen: Round) -> Guess:
        client = Client(self.model, self.exact, self.labels, self.settings)
        return client.guess(jnp.ones(self.exact.shape[:2], scores.dtype), seen)


def _weights(client: Client, rounds: Round, at: Array, key: Array) -> Array:
    """Weights of every record's nodes `[records, nodes]`, by least squares linearised at guesses
    that stand so far along their windows `[records]`."""
    records, count = client.x.shape[:2]
    apart = jnp.abs(at[:, None] * (count - 1) - jnp.arange(count))
    scores = jnp.maximum(1 - apart, 0)

    def add(total: tuple[Array, Array], one: tuple[Round, Array]) -> tuple[Any, None]:
        seen, t = one
        quadratic = round_quadratic(client, seen, scores, jax.random.fold_in(key, t))
        return jax.tree.map(jnp.add, total, quadratic), None

    unknowns = records * (count - 1)
    zero = jnp.zeros((unknowns, unknowns)), jnp.zeros(unknowns)
    numbers = jnp.arange(len(jax.tree.leaves(rounds)[0]))
    (gram, right), _ = jax.lax.scan(add, zero, (rounds, numbers))
    at_guess = scores[:, 1:].reshape(-1)
    right = right + gram @ at_guess
    eps = jnp.finfo(gram.dtype)
    slack = max(SLACK, 8 * float(eps.eps)) * jnp.diag(gram) + eps.tiny
    gram, right = gram + jnp.diag(slack), right + slack * at_guess
    weights = interior_point(gram, right, records, INTERIOR)
    return with_first(weights.reshape(records, -1))
