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
from typing import Any

import jax
import jax.numpy as jnp
from jax.dtypes import canonicalize_dtype

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
    nearest_of,
    needs_all,
)
from attacks.attributes.candidate_decoding.fit_of_squares import Judge, most_left
from attacks.attributes.candidate_decoding.joint import apart, joined
from attacks.attributes.candidate_decoding.linear_problem import (
    at_one_rate,
)
from attacks.attributes.candidate_decoding.normal_equations import (
    off_whole,
    precisions,
)
from attacks.attributes.candidate_decoding.read_again import Client
from attacks.attributes.candidate_decoding.shortlist import MANY, Shortlist, is_needed, shortlist
from attacks.attributes.candidate_decoding.solution import (
    MOST_DIRECT,
    ClosedForm,
    Matrix,
    Solution,
    least_squares,
    share_resolved,
)
from attacks.attributes.candidate_decoding.within_bounds import within_bounds
from attacks.attributes.knowledge import (
    Knowledge,
    answered,
    check_apart,
    check_knowledge,
    warn_of_unchanged,
)
from attacks.fit import (
    Fit,
    energies,
    model_spacing,
    precision,
    warn_of_fit,
)
from attacks.lapack import after
from attacks.precision import arithmetic, cast, floating
from jaxfl import Messages, Model
from jaxfl.domains import Count, checked

Array = jax.Array


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
      A `Decoding`. Where the rounded answer of a known rate explains less than a right one would,
      the direct least squares in float64 are solved within the weights' bounds too, of at most 16
      candidates a record and 2,000 unknowns: equations that hardly tell records apart, as of
      linear models and of few rounds, may have one such solution. `fit.resolved` is what would be
      read of simulated clients whose values are known, where some weights are unsure. Messages
      that no weights of the candidates explain to within rounding and the stated noise are a
      misfit: a status, and outside `jit` a warning (where values are listed and `jit` leaves no way
      to ask all, they are unchecked). So are those that a rate below 0 fits best. Memory of the
      direct solver grows with ((K-1) records)^2, and without dense layers also with (K-1) records x
      parameters; that of "cg" with records x K x features.

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
    eps = precision(messages).astype(dtype)
    messages, knowledge, settings = cast((messages, knowledge, settings), dtype)
    with jax.default_matmul_precision("highest"):
        (x, y), start, listed = _candidates(model, messages, knowledge, settings, members, listing)
        records, count = x.shape[:2]
        solve_for = functools.partial(least_squares, model, settings, (x, y))
        rate, rates, seen = _rates_first(solve_for, messages, settings, members, start)
        start = jnp.append(start, 0) if rate is None else start
        solution = solve_for(seen, rate, members, start)
        weights, rest = jnp.split(solution.unknowns, [records * (count - 1)])
        least_rate = 1 / rest[0] if rate is None else rate
        rates = jnp.asarray(least_rate) if rates is None else rates
        matrix, close = solution.matrix, _precisions_of(solution.matrix, listed, records, count - 1)
        absence, many = members is not None, listed is not None or count > MANY
        answer = decoded(knowledge, weights.reshape(records, -1), close, listed, absence)
        averaged = len(x) if members is None else members
        lengths = rates * len(x) / averaged * solution.lengths
        told = settings.learning_rate is not None
        more = _off_whole(weights, matrix, members, told)
        allowed = most_left(messages, lengths, eps, settings.noise)
        judge = Judge(seen, solution, rest, rates, averaged, allowed, more, listed is not None)
        (rounded, fit), bounded = judge.of(answer), jnp.zeros((), bool)
        of_rate = (
            rate is not None,
            jnp.asarray(least_rate),
            rates,
            model_spacing(messages, eps),
        )
        client = Client(model, seen, (x, y), knowledge.y, members, *of_rate)
        # Candidates of many values are so alike that wrong ones within the bounds explain as much.
        if told and solution.within and not many:
            short = (fit.explained < fit.allowed) & ~(fit.misfit > 1)
            # True of all numbers: so that the loop waits for the solution (`attacks.lapack`).
            short &= (solution.condition > 0) | ~(solution.condition > 0)
            answer, bounded = within_bounds(solution, answer, short, knowledge, absence)
            rounded, fit = judge.of(answer)
        earlier = (fit.explained, more) + ((solution.condition,) if matrix else ())
        deviation, nearest = after(judge.deviation(rounded), *earlier), nearest_of(records, close)
        at = answer.rounded, bounded, deviation, nearest, many
        fit = dataclasses.replace(fit, resolved=share_resolved(solution, client, *at))
    # 64-bit arrays are left behind: outside, most operations would refuse them or warn.
    decoding = _decoding(solution, answer, rounded, rates, fit)
    return cast(decoding, jnp.float32, jnp.int32)


def _off_whole(weights: Array, matrix: Matrix | None, members: int | None, told: bool) -> Array:
    """See `off_whole`; 0 where all records are the client's."""
    if members is None:
        return jnp.zeros(())
    counted = None if told else members
    return jnp.asarray(off_whole(weights, matrix and matrix.covariance, counted))


def _precisions_of(
    matrix: Matrix | None, listed: Shortlist | None, records: int, each: int
) -> Array | None:
    """Of the weights of a shortlist's candidates, which may be much alike; else None."""
    if listed is None or matrix is None:
        return None
    return precisions(matrix.covariance(), records, each)


def _candidates(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    settings: ClosedForm,
    members: int | None,
    listing: bool,
) -> tuple[tuple[Array, Array], Array, Shortlist | None]:
    """What every record may be, the weights at the start, and the shortlist if one is drawn up."""
    x, y = candidate_records(model, knowledge)
    start = prior_weights(model, knowledge, x.shape[1])
    if members is not None:
        x, y = (jnp.concatenate([a[:, :1], a], 1) for a in (x, y))
        start = with_absence(start, members / len(x), len(x))
    if not listing:
        return (x, y), start, None
    rate, by_round = settings.learning_rate, settings.by_round
    values = knowledge.columns[0].candidates[:, 0]
    listed = shortlist(model, messages, (x, y), values, rate, by_round, settings.ridge)
    return (listed.of(x), listed.of(y)), listed.prior(start), listed


def _rates_first(
    solve_for: Callable[..., Solution],
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


def _decoding(
    solution: Solution, decoded: Decoded, rounded: Array, rate: Array, fit: Fit
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
