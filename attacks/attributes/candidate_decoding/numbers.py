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

How far numbers are off is told by the attack itself: it reads the messages of a simulated client,
in which half of the records, drawn at random, have numbers drawn between the bounds, and the others
those that it found. The drawn ones are unlike what an attack falls back on where messages tell it
nothing.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.dtypes import canonicalize_dtype
from jaxtyping import Num

from attacks.attributes.candidate_decoding.candidates import with_first
from attacks.attributes.candidate_decoding.constraints import interior_point
from attacks.attributes.candidate_decoding.gls import check_gls
from attacks.attributes.candidate_decoding.gls_round import GLS, Client, Round, round_quadratic
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
    check_apart,
    check_knowledge,
    check_one_column,
    warn_of_unchanged,
)
from attacks.fit import REASONS, SOME_WRONG, Fit, Status, status_of, warn_of_fit
from attacks.lapack import after
from attacks.path import check_linear
from attacks.precision import arithmetic, cast
from jaxfl import LocalTraining, Messages, Model
from jaxfl.domains import Count, Key, checked

Array = jax.Array
NODES, FEWEST, MOST_UNKNOWNS = 9, 3, 2_400
"""Nodes on a window, as many as unknowns allow, which are records x (nodes - 1)."""
LAST = 8_000
"""Unknowns that are refused: their matrix takes half a gigabyte, and is factorised in every
step."""
CLOSING, EDGE = 0.7, 0.05
"""How much of a window the next pass looks at, and what share on either side is its edge."""
INTERIOR = 20
"""Steps of each least squares, whose answer need not be exact but for the last ones."""
SLACK = 1e-9
"""Added to the normal equations relative to their diagonal: nodes of a narrow window are alike."""


@struct.dataclass
class NumberDecoding:
    """Settings of `decode_numbers`.

    Attributes:
      training: the client's recipe, as `GLS.training`.
      orders: simulated runs per round and pass, as `GLS.orders` (static); two of a client that does
        nothing at random.
      nodes: candidates on a window (static), half as many in the later passes; by default nine, or
        as many as keep the unknowns within 2,400, three at least. Fewer end more often at numbers
        that are far off.
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
        numbers drawn between the bounds, of half of a simulated client's records; more where more
        of the messages is left unexplained than of that client's.
      trace: mean width of the windows of each pass `[passes]`.
      status: see `attacks.Status`.
      fit: how well the values explain the messages.
    """

    values: Num[Array, "records"]
    error: Num[Array, ""]
    trace: Num[Array, "passes"]
    status: Num[Array, ""]
    fit: Fit

    @property
    def reason(self) -> str:
        """The status in words, and whether the fit says that some values are wrong."""
        status = Status(int(self.status))
        short = bool(self.fit.explained < self.fit.allowed)
        return SOME_WRONG if status == Status.OK and short else REASONS[status]


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
      key: draws simulated batch orders.
      settings: see `NumberDecoding`.

    Returns:
      `DecodedNumbers`. Arithmetic is in float64, which is switched on for the call; inside an outer
      `jit` that runs without 64-bit types, in float32. Results are float32. The misfit is what no
      values on a grid across the bounds explain.

    Raises:
      ValueError: as `gls`; if labels are unknown, another number of columns than one is, the column
        has more than one feature, or records x (nodes - 1) exceeds 8,000.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_apart("decode_numbers", model, messages, knowledge)
    check_one_column("decode_numbers", knowledge)
    check_linear(settings.training.optimizer, messages.model_shapes)
    at_random = trains_at_random(model, settings.training, messages.received, knowledge.x)
    least_squares = GLS(settings.training, orders=settings.orders if at_random else 2)
    check_gls(least_squares, model, knowledge)
    nodes = _nodes(settings, knowledge)
    looked = nodes, settings.passes
    with arithmetic(np.dtype(np.float64), messages, knowledge, key, least_squares):
        seen = model, messages, knowledge, key, least_squares
        values, widths = _decode(*seen, *looked)
        trial = tried_client(*seen[:4], settings.training, values)
        again, _ = _decode(model, trial.messages, knowledge, trial.key, least_squares, *looked)
        error = jnp.sqrt(jnp.square(again - trial.numbers).mean(where=trial.drawn))
        # What is left grows with the square of errors, beside what the recipe leaves of both.
        told = settings.training, trial.key
        left = left_unexplained(model, messages, knowledge, values, *told)
        of_trial = left_unexplained(model, trial.messages, knowledge, again, *told)
        error *= jnp.sqrt(jnp.maximum(left / of_trial, 1))
        lower, upper = bounds(knowledge)
        error = jnp.minimum(error, upper - lower)
        values, error, widths = cast((values, error, widths), jnp.float32)
    failed = ~(jnp.isfinite(values).all() & jnp.isfinite(error)) | messages.unchanged
    decoded = after(values, error)
    fit = fit_of_numbers(model, messages, knowledge, decoded, settings.training, key)
    status = status_of(failed, fit)
    warn_of_unchanged("decode_numbers", messages)
    warn_of_fit("decode_numbers", status, fit)
    return DecodedNumbers(jnp.where(failed, jnp.nan, values), error, widths, status, fit)


def _nodes(settings: NumberDecoding, knowledge: Knowledge) -> int:
    """How many candidates stand on a window."""
    positions = knowledge.columns[0].positions
    if len(positions) > 1:
        raise ValueError(
            f"columns[0].positions has {len(positions)} features; a number is one feature"
        )
    records = len(knowledge.x)
    nodes = settings.nodes or int(np.clip(MOST_UNKNOWNS // records + 1, FEWEST, NODES))
    if nodes < 2 or records * (nodes - 1) > LAST:
        raise ValueError(
            f"nodes={nodes} of {records} records make {records * (nodes - 1)} unknowns; there must "
            f"be two nodes at least, and {LAST} unknowns at most"
        )
    return nodes


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
    dtype = canonicalize_dtype(jnp.float64)
    messages, knowledge, settings = cast((messages, knowledge, settings), dtype)
    lower, upper = bounds(knowledge)
    rounds = Round(messages.received, messages.pseudo_gradient)

    def one_pass(
        count: int, windows: tuple[Array, Array], key: Array
    ) -> tuple[tuple[Array, Array], Array]:
        guess, width = windows
        low = jnp.clip(guess - width / 2, lower, upper - width)
        places = jnp.linspace(0, 1, count, dtype=dtype)
        x = with_numbers(knowledge, low[:, None] + width[:, None] * places)
        known = model, x, jnp.asarray(knowledge.y), settings
        exact = with_numbers(knowledge, guess[:, None])
        # On wide windows errors of the mean between nodes are like those of the gradients.
        client = Client(*known) if count == nodes else _Windows(*known, exact)
        at = _weights(client, rounds, (guess - low) / width, key) @ places
        inside = at * (1 - at) > EDGE * (1 - EDGE)
        bounded = ((at < 0.5) & (low <= lower)) | ((at > 0.5) & (low + width >= upper))
        closer = jnp.where(inside | bounded, CLOSING * width, width)
        return (low + at * width, closer), width.mean()

    start = jnp.full(len(knowledge.x), (lower + upper) / 2, dtype)
    windows = start, jnp.full_like(start, upper - lower)
    wide, narrow = jnp.split(jax.random.split(key, passes), [passes // 2])
    with jax.default_matmul_precision("highest"):
        windows, first = jax.lax.scan(functools.partial(one_pass, nodes), windows, wide)
        fewer = functools.partial(one_pass, nodes // 2 + 1)
        (values, _), last = jax.lax.scan(fewer, windows, narrow)
    return values, jnp.concatenate([first, last])


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
    right = right + gram @ scores[:, 1:].reshape(-1)
    gram = gram + jnp.diag(SLACK * jnp.diag(gram) + jnp.finfo(gram.dtype).tiny)
    weights = interior_point(gram, right, records, INTERIOR)
    return with_first(weights.reshape(records, -1))
