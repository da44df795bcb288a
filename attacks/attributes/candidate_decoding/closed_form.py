"""Decoding: a message as a weighted sum of candidate records' gradients, solved by least squares.

Threat model: an honest-but-curious server sees the messages of a client that takes one full-batch
step a round (FedSGD), and knows its records but for one column or a few, perhaps its labels, and
the possible values of these columns. Priors are not needed.

The gradient of a client's mean loss is a sum over its records, and each term depends on that
record's own unknown alone. Instead of the gradient *at the expected value* (Lyu 2021, Eq. 2 and 3)
take the *expected gradient* over the K candidate values, with weights s_nk, sum_k s_nk = 1:

    u / (rate N^-1)  =  sum_n sum_k s_nk g_n(v_k)
                     =  sum_n g_n(v_0) + sum_n sum_{k>0} s_nk [g_n(v_k) - g_n(v_0)].

This is linear in s and exact where it matters, at the vertices (each record has one value). Over
all rounds it is one least-squares problem in (K-1)N unknowns: no temperature, step size, start,
prior or iterations; any K and any coding. It needs at least as many independent equations (rounds x
parameters) as unknowns, and a client that takes one full-batch step per round.

The normal equations need inner products of gradient differences only. Where all parameters belong
to dense layers, a record's gradient is a sum of outer products, input a times error d, and with
Delta for differences between candidates

    <a1 d1' - a0 d0', b1 e1' - b0 e0'> = (a0.b0 + 1)(Dd.De) + (a0.Db)(Dd.e1)
                                         + (Da.b0)(d1.De) + (Da.Db)(d1.e1)

per layer (+ 1 for the bias), so no gradient is ever formed. Other models go through `vmap(grad)`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.dtypes import canonicalize_dtype
from optax.tree import vdot

from attacks.attributes.candidate_decoding.candidates import (
    candidate_records,
    prior_weights,
    with_absence,
)
from attacks.attributes.candidate_decoding.decoded import (
    Decoded,
    Decoding,
    decoded,
    judged_by_all,
    needs_all,
)
from attacks.attributes.candidate_decoding.factored_gradients import mean_lengths
from attacks.attributes.candidate_decoding.joint import apart, joined
from attacks.attributes.candidate_decoding.linear_problem import (
    at_one_rate,
    linear_problem,
    relative_weights,
    solve_iteratively,
)
from attacks.attributes.candidate_decoding.normal_equations import (
    normal_equations,
    off_whole,
    precisions,
    solve,
    squared_residual,
)
from attacks.attributes.candidate_decoding.shortlist import is_needed, shortlist
from attacks.attributes.knowledge import (
    Knowledge,
    answered,
    check_apart,
    check_knowledge,
    warn_of_unchanged,
)
from attacks.fit import (
    ROUNDING,
    Fit,
    energies,
    equations,
    largest_square,
    precision,
    rounding,
    warn_of_fit,
)
from attacks.precision import arithmetic, cast, floating
from jaxfl import Messages, Model
from jaxfl.domains import Count, NotNegative, Positive, checked

Array = jax.Array

MOST_DIRECT = 8_000
"""Unknowns up to which the normal equations are formed; their matrix takes 512 MB there in float64,
and several are held."""


@struct.dataclass
class ClosedForm:
    """Settings of `closed_form`.

    Attributes:
      learning_rate: the client's step size, or None if unknown: then it is one more unknown of the
        least squares.
      by_round: the rate is unknown and another in every round, as where clients clip their updates
        or their server plans a schedule (static).
      ridge: added to the normal equations, relative to their diagonal ("direct") or to their size
        along the right-hand side ("cg"); pulls towards the prior.
      solver: "direct" (Cholesky), or "cg" (conjugate gradients on products with the gradients'
        Jacobian, which is never formed, for many unknowns); None: "direct" up to 8,000 unknowns
        (static).
      iterations: at most, of "cg" (static).
      noise: standard deviation of what the client's recipe adds to every number of an update, in
        the update's units, known where the server prescribed it. It changes no answer, but what is
        called a misfit.
    """

    learning_rate: Positive | None = None
    by_round: bool = struct.field(pytree_node=False, default=False)
    ridge: NotNegative = 1e-12
    solver: Literal["direct", "cg"] | None = struct.field(pytree_node=False, default=None)
    iterations: Count = struct.field(pytree_node=False, default=500)
    noise: NotNegative = 0.0


@checked
def closed_form(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    *,
    members: Count | None = None,
    settings: ClosedForm | None = None,
    dtype: Any = jnp.float64,
) -> Decoding:
    """Reconstruct unknown columns, and labels if they are unknown too, from a full-batch client's
    messages.

    Args:
      model: the model that was trained (static). Gram identities are used where `model.layers` is
        there.
      messages: the client's messages in the rounds to be used; one full-batch SGD step per round.
      knowledge: what is known. Unknown labels make every (value, label) pair a candidate; of
        several unknown columns every combination of values is one, 64 at most. Of more than 16
        values of one feature a shortlist is drawn up first, if labels are known, all records are
        the client's and the solver is direct; `values` are then those nearest by the weights'
        covariance, which need not have the largest `scores`.
      members: how many of the records are the client's (static), or None if all are. If given,
        being absent is one more candidate of every record, with a gradient of zero.
      settings: see `ClosedForm`.
      dtype: of the arithmetic (static). Normal equations square the condition number, so messages
        recorded in float32 are decoded in float64, which is switched on for the call. Inside an
        outer `jit` that runs without 64-bit types, float32 is used.

    Returns:
      A `Decoding`. Messages that no weights of the candidates explain to within rounding and the
      stated noise are a misfit: a status, and outside `jit` a warning (where values are
      listed and `jit` leaves no way to ask all, they are unchecked). So are those that a rate below
      0 fits best. Memory of the direct solver grows with ((K-1) records)^2, and without dense
      layers also with (K-1) records x parameters; that of "cg" with records x K x features.

    Raises:
      ValueError: as `cos_matching`; if unknown columns have more than 64 values together; if
        `members` is not in [1, records]; if settings are out of range or do not go together; if the
        model mixes records.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    columns, knowledge = knowledge.columns, joined("closed_form", knowledge)
    check_apart("closed_form", model, messages, knowledge)
    if members is not None and members > len(knowledge.x):
        raise ValueError(
            f"members={members!r} must lie between 1 and the number of records, {len(knowledge.x)}"
        )
    settings, dtype = settings or ClosedForm(), floating(dtype)
    if settings.by_round and (members is not None or settings.learning_rate is not None):
        raise ValueError(
            f"by_round=True does not go with {members=} and {settings.learning_rate=}; leave both"
        )
    listing = members is None and settings.solver != "cg"
    listing = listing and is_needed(model, knowledge, MOST_DIRECT)
    with arithmetic(dtype, messages, knowledge, settings):
        call = model, messages, knowledge, settings, members, canonicalize_dtype(dtype)
        decoding = _closed_form(*call, listing)
        if listing and needs_all(decoding, knowledge, MOST_DIRECT):
            decoding = judged_by_all(decoding, _closed_form(*call, False))
    warn_of_unchanged("closed_form", messages)
    warn_of_fit("closed_form", decoding.status, decoding.fit)
    return apart(decoding, columns)


@functools.partial(jax.jit, static_argnames=("model", "members", "dtype", "listing"))
def _closed_form(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    settings: ClosedForm,
    members: int | None,
    dtype: Any,
    listing: bool,
) -> Decoding:
    eps = precision(messages)
    messages, knowledge, settings = cast((messages, knowledge, settings), dtype)
    x, y = candidate_records(model, knowledge)
    start = prior_weights(model, knowledge, x.shape[1])
    if members is not None:
        x, y = (jnp.concatenate([a[:, :1], a], 1) for a in (x, y))
        start = with_absence(start, members / len(x), len(x))
    listed = None
    with jax.default_matmul_precision("highest"):
        if listing:
            rate, by_round = settings.learning_rate, settings.by_round
            values = knowledge.columns[0].candidates[:, 0]
            listed = shortlist(model, messages, (x, y), values, rate, by_round, settings.ridge)
            x, y, start = listed.of(x), listed.of(y), listed.prior(start)
        records, count = x.shape[:2]
        solve_for = functools.partial(_least_squares, model, settings, (x, y))
        rate, rates, seen = _rates_first(solve_for, messages, settings, members, start)
        start = jnp.append(start, 0) if rate is None else start
        solution = solve_for(seen, rate, members, start)
        weights, rest = jnp.split(solution.unknowns, [records * (count - 1)])
        if rates is None:
            rates = jnp.asarray(1 / rest[0] if rate is None else rate)
        close = None
        if listed is not None and solution.covariance is not None:
            close = precisions(solution.covariance(), records, count - 1)
        each = weights.reshape(records, -1)
        answer = decoded(knowledge, each, close, listed, members is not None)
        rounded = solution.left(jnp.concatenate([answer.rounded, rest]))
        averaged = len(x) if members is None else members
        allowed = _allowed(
            messages, rates * len(x) / averaged * solution.lengths, eps, settings.noise
        )
        counted = members if settings.learning_rate is None else None
        more = 0.0 if members is None else off_whole(weights, solution.covariance, counted)
        fit = _fit(seen, solution, rounded, rates, averaged, allowed, more)
        if listed is not None:  # values that are on no list may explain what these do not
            enough = (fit.misfit <= 1) & (fit.explained >= fit.allowed)
            fit = dataclasses.replace(fit, misfit=jnp.where(enough, fit.misfit, jnp.nan))
    # 64-bit arrays are left behind: outside, most operations would refuse them or warn.
    decoding = _decoding(solution, answer, rounded, rates, fit)
    return cast(decoding, jnp.float32, jnp.int32)


def _rates_first(
    solve_for: Callable[..., "_Solution"],
    messages: Messages,
    settings: ClosedForm,
    members: int | None,
    start: Array,
) -> tuple[Any, Array | None, Messages]:
    """The rate that least squares for the weights is given, or None if that is one more unknown of
    it; the rates of all rounds, if they differ; and the messages as if at the one rate."""
    if settings.by_round:
        both = solve_for(messages, None, None, jnp.append(start, jnp.zeros(len(messages))))
        moved = energies(messages.pseudo_gradient) > 0
        rates = jnp.where(moved, 1 / both.unknowns[len(start) :], 0)
        rate = jnp.abs(rates).sum() / moved.sum()
        return rate, rates, at_one_rate(messages, jnp.where(moved, rates / rate, 1))
    if settings.learning_rate is not None or members is None:
        return settings.learning_rate, None, messages
    # Weights and rate enter as their product: its sum over records tells the rate, since members
    # are counted.
    product = solve_for(messages, jnp.ones_like(start, shape=()), members, start)
    return product.unknowns.sum() / members, None, messages


class _Solution(NamedTuple):
    """Least squares in units of the candidates' gradients, summed.

    Attributes:
      unknowns: the ridge solution.
      condition: condition number of the normal equations, or NaN.
      left: squared residual as a function of the unknowns.
      square: of the right-hand side.
      pull: by how much the ridge may have raised the squared residual.
      lengths: mean length of the gradients of one candidate of every record `[rounds]`.
      covariance: of the unknowns, see there; None where no matrix is formed.
    """

    unknowns: Array
    condition: Array
    left: Callable[[Array], Array]
    square: Array
    pull: Array
    lengths: Array
    covariance: Callable[[], Array] | None = None


def _least_squares(
    model: Model,
    settings: ClosedForm,
    candidates: tuple[Array, Array],
    messages: Messages,
    rate: float | Array | None,
    members: int | None,
    start: Array,
) -> _Solution:
    by_round = settings.by_round and rate is None
    if settings.solver == "direct" or (settings.solver is None and len(start) <= MOST_DIRECT):
        system = normal_equations(model, messages, *candidates, rate, members, by_round)
        solved = solve(system, start, settings.ridge)
        moved = jnp.maximum(jnp.abs(solved.unknowns - start), 1)
        pull = settings.ridge * jnp.vdot(jnp.diag(system.gram), moved**2)
        left = functools.partial(squared_residual, system)
        estimate = solved.unknowns, solved.condition
        return _Solution(*estimate, left, system.square, pull, system.lengths, solved.covariance)
    problem = linear_problem(model, messages, *candidates, rate, members, by_round)
    unknowns, level = solve_iteratively(problem, start, settings.ridge, settings.iterations)
    pull = level * jnp.vdot(*[jnp.maximum(jnp.abs(unknowns - start), 1)] * 2)
    square = vdot(problem.target, problem.target)
    x, y = candidates
    lengths = mean_lengths(model, messages.received, x[:, -1], y[:, -1])
    condition = jnp.asarray(jnp.nan)
    return _Solution(unknowns, condition, problem.squared_residual, square, pull, lengths)


def _allowed(messages: Messages, lengths: Array, eps: Array, noise: float | Array) -> Array:
    """Energy `[rounds]` that rounding and stated noise may leave of a right answer; `lengths` as
    `gradients` of `rounding`."""
    updates = messages.pseudo_gradient
    count = sum(a.size for a in jax.tree.leaves(messages.model_shapes))
    spread = largest_square(jnp.square(jnp.asarray(noise)), jnp.asarray(count, lengths.dtype))
    return rounding(messages.received, updates, lengths, eps) + relative_weights(updates) * spread


def _fit(
    messages: Messages,
    solution: _Solution,
    rounded: Array,
    rates: Array,
    averaged: int,
    allowed: Array,
    more: float | Array,
) -> Fit:
    """How well the answer explains the messages. The truth is among what least squares may choose:
    so they leave at most what the truth leaves, `allowed`, and what the ridge adds.

    Args:
      messages: the client's, as if at one rate.
      solution: the real-valued one.
      rounded: squared residual of the answer.
      rates: the client's, one or of every round.
      averaged: over how many records it takes a mean.
      allowed: see `_allowed` `[rounds]`.
      more: by how much admissible weights leave more than the solution at least.
    """
    updates = messages.pseudo_gradient
    moved = energies(updates) > 0
    each = jnp.broadcast_to(rates, moved.shape)
    forwards, seen = jnp.where(moved, each > 0, True).all(), moved.sum()
    # Of the right-hand side, in that of updates.
    unit = (jnp.where(moved, jnp.abs(each), 0).sum() / seen / averaged) ** 2 / seen
    noise = jnp.where(moved, allowed, 0).sum() / seen
    most = noise + unit * solution.pull + _inexact(solution) * unit
    # Conjugate gradients may have stopped early: what their rounded answer explains is explained.
    left = jnp.minimum(solution.left(solution.unknowns), rounded)
    left = jnp.minimum(left + more, rounded)
    # No client has a rate below 0: the nearest that one has explains nothing.
    left = jnp.where(forwards, left, solution.square)
    misfit = jnp.where(seen > 0, left * unit / most, jnp.inf)
    fitted = rates.size if rates.ndim else 0  # rates of rounds, to the same equations
    told = equations(updates) > len(solution.unknowns) + fitted
    return Fit(1 - rounded * unit, 1 - noise, jnp.where(told, misfit, jnp.nan))


def _inexact(solution: _Solution) -> Array:
    """What the arithmetic may have lost of a squared residual."""
    return ROUNDING * jnp.finfo(solution.square.dtype).eps * solution.square


def _decoding(
    solution: "_Solution", decoded: Decoded, rounded: Array, rate: Array, fit: Fit
) -> Decoding:
    """All that is said of an answer whose squared residual is `rounded`."""
    # A right-hand side of zero means that no model came back changed.
    numbers = jnp.concatenate([solution.unknowns, rounded[None], jnp.ravel(rate)])
    reconstruction = answered(
        ~(jnp.isfinite(numbers).all() & (solution.square > 0)),
        (decoded.values,),
        (decoded.scores,),
        decoded.labels,
        objective=rounded / solution.square,
        trace=jnp.zeros(0),
        fit=fit,
    )
    residual = solution.left(solution.unknowns) / solution.square
    answer = {f.name: getattr(reconstruction, f.name) for f in dataclasses.fields(reconstruction)}
    return Decoding(
        **answer,
        condition=solution.condition,
        residual=residual,
        learning_rate=rate,
        presence=decoded.presence,
    )
