"""Does an answer explain the messages? What the adversary can tell of an attack without the truth.

An attack takes a model, a recipe and known data for granted. If one of these is wrong, its answer
is one of many that explain nothing, and looks like any other. So every attack that explains
messages says how well:

- `explained`, the share of the messages' energy that its answer accounts for;
- `allowed`, the least share that a right answer accounts for: the rest is noise of the stated
  recipe (the order of records, dropout, private training) and rounding;
- `misfit`, what *no* values of the unknown columns account for, relative to the most that this
  noise leaves: above 1 the messages are not of this model, recipe or data.

The energy of messages is the sum over rounds of |u_t - v_t|^2 / |u_t|^2, for updates u_t and what
is said of them v_t. Thresholds come from the noise, so that no more than `FALSE_ALARMS` of clients
that follow the stated recipe exceed them.
"""

import dataclasses
import enum
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Num
from optax.tree import vdot

from jaxfl import Messages, _check

Array = jax.Array
FALSE_ALARMS = 0.01
"""Largest share of clients called misfits among those that follow the stated recipe."""
ROUNDING, SQUARED_ROUNDING = 64, 64
"""Relative errors of inner products of some hundred numbers, in units of the precision; and squared
errors of sums and products of so many, in units of its square."""


class Status(enum.IntEnum):
    """How an attack ended; `Reconstruction.status` holds the number."""

    OK = 0
    FAILED = 1
    MISFIT = 2
    UNCHECKED = 3


STATES = {
    Status.OK: "ok",
    Status.FAILED: "diverged",
    Status.MISFIT: "misfit",
    Status.UNCHECKED: "unchecked",
}
"""As in the column `status` of results."""
HALVES = (jnp.float16, jnp.bfloat16)
"""Numbers of 16 bits."""
ENOUGH = 8
"""Numbers other than 0 that are of 16 bits by no chance."""
REASONS = {
    Status.OK: "the answer is of finite numbers, and nothing contradicts it",
    Status.FAILED: "the attack ended with numbers that are not finite, or that mean nothing",
    Status.MISFIT: "no values of what is unknown explain these messages: the model, the client's "
    "recipe (steps, batches, learning rate, optimiser, loss, noise) or what is called known of its "
    "records is not theirs",
    Status.UNCHECKED: "the answer is of finite numbers, and nothing could contradict it: rounding "
    "and the recipe's noise may be as large as these messages, or there are as many unknowns as "
    "equations, or records are mixed (batch normalisation, mixup), or too few of the client's "
    "records are known, or the search through the client's steps ended short of these messages; "
    "the answer may be no better than a guess",
}
SOME_WRONG = (
    "nothing contradicts the recipe, but the answer explains less of the messages than a right one "
    "would: some of its values are wrong"
)
"""Of an answer that is no misfit, and explains less than is allowed."""
UNRESOLVED = (
    "noise and rounding are larger than what tells the values apart: were they drawn again, many "
    "values would be read otherwise"
)
"""Of an answer of which less than `LEAST_RESOLVED` is resolved."""
PARTLY_RESOLVED = (
    "nothing contradicts the answer, but noise and rounding hide some of the values: were they "
    "drawn again, some would be read otherwise, and explain these messages as well"
)
"""Of an answer of which less than `MOSTLY_RESOLVED` is resolved."""
LEAST_RESOLVED, MOSTLY_RESOLVED = 0.5, 0.8
"""Shares of the values that noise leaves as they are."""


class FitWarning(UserWarning):
    """What messages say against an answer, or that they cannot say it."""


class MisfitWarning(FitWarning):
    """Messages are not of the model, recipe or data that an attack was given."""


class UncheckedWarning(FitWarning):
    """Messages could not contradict an answer, or a part of it, whatever it was; or noise and
    rounding hide most of what tells it from others."""


class SomeWrongWarning(FitWarning):
    """An answer explains less of the messages than a right one would, or noise and rounding hide
    some of its values; the recipe may be right."""


@struct.dataclass
class Fit:
    """How well an answer explains messages. Scalars; NaN where nothing is said of them.

    Attributes:
      explained: share of the messages' energy that the answer accounts for, at most 1.
      allowed: the least share that a right answer accounts for, by the recipe's own noise; below
        0 where that may be larger than the messages, so that they can contradict nothing.
      misfit: energy that no values of the unknowns account for, over the most that the recipe's
        noise leaves of a right answer. Above 1 the messages are of another model, recipe or data;
        clients can be compared by it. Of `decode_partial` and `decode_sources` it may be the square
        of how far the known records' weights are from what they should be, over what is allowed,
        if that is more. NaN where there are as many unknowns as equations, so that
        everything would fit, and where a search may have ended short.
      resolved: share of the values that would be read the same if noise and rounding were drawn
        again: 1 for all, 0 for no more than by chance, every value counting alike. NaN where it is
        not asked, or rounding leaves no solution. Of several unknown columns, labels or absence a
        record's values count together. Of attacks that solve no least squares it is the most
        that rounding leaves, and NaN where chance decides who shares a batch.
    """

    explained: Num[Array, ""]
    allowed: Num[Array, ""]
    misfit: Num[Array, ""]
    resolved: Num[Array, ""] = dataclasses.field(default_factory=lambda: jnp.asarray(jnp.nan))


def no_fit() -> Fit:
    """The fit of an answer that explains no messages."""
    nothing = jnp.asarray(jnp.nan)
    return Fit(nothing, nothing, nothing)


@jax.jit
def status_of(failed: Array, fit: Fit) -> Array:
    """`Status` as an integer array, like `failed`."""
    untold = contradicts_nothing(fit) | (fit.resolved < LEAST_RESOLVED)
    unchecked = jnp.isfinite(fit.explained) & untold
    cases = {
        Status.FAILED: failed,
        Status.MISFIT: fit.misfit > 1,
        Status.UNCHECKED: unchecked,
    }
    states = [jnp.int32(state) for state in cases]
    return jnp.select(list(cases.values()), states, jnp.int32(Status.OK))


def contradicts_nothing(fit: Fit) -> Any:
    """Whether messages could contradict no answer, whatever noise hides."""
    return jnp.isnan(fit.misfit) | (fit.allowed <= 0)


def reason_of(status: Any, fit: Fit) -> str:
    """A status in words, and whether the fit says that some values are wrong."""
    state = Status(int(status))
    if state == Status.UNCHECKED and not contradicts_nothing(fit):
        return UNRESOLVED
    if state == Status.OK and fit.explained < fit.allowed:
        return SOME_WRONG
    if state == Status.OK and fit.resolved < MOSTLY_RESOLVED:
        return PARTLY_RESOLVED
    return REASONS[state]


def warn_of_fit(attack: str, status: Any, fit: Fit, stacklevel: int = 4) -> None:
    """Warn of misfits, of answers that nothing checks, of those that explain too little and of
    values that noise hides, in words, at the boundary: where values are no tracers; `stacklevel` is
    that of whoever called the attack."""
    if _check.is_unseen(status, fit):
        return
    left, allowed = 1 - np.asarray(fit.explained), 1 - np.asarray(fit.allowed)
    short = (np.asarray(status) == Status.OK) & (left > allowed)
    if short.any():
        place = np.where(short, left - allowed, -np.inf).argmax()
        words = f"{attack}: {SOME_WRONG}. It leaves {np.ravel(left)[place]:.3g} of them unexplained"
        words += f", a right one {np.ravel(allowed)[place]:.3g} at most; see the answer's `fit`"
        warnings.warn(words, SomeWrongWarning, stacklevel=stacklevel)
    _warn_of_resolution(attack, np.asarray(status), fit, short, stacklevel + 1)
    misfits = np.asarray(status) == Status.MISFIT
    if misfits.any():
        worst = float(np.nanmax(np.where(misfits, np.asarray(fit.misfit), np.nan)))
        warnings.warn(
            f"{attack}: {REASONS[Status.MISFIT]}. Its misfit is {worst:.3g}, where rounding and "
            "the recipe's noise allow 1; see the answer's `fit`, and `attacks.diagnose` for what "
            "the messages are of",
            MisfitWarning,
            stacklevel=stacklevel,
        )


def _warn_of_resolution(
    attack: str, status: np.ndarray, fit: Fit, short: np.ndarray, stacklevel: int
) -> None:
    unchecked, resolved = status == Status.UNCHECKED, np.asarray(fit.resolved)
    hidden = ~np.asarray(contradicts_nothing(fit))
    reasons = {REASONS[Status.UNCHECKED]: unchecked & ~hidden, UNRESOLVED: unchecked & hidden}
    for reason, these in reasons.items():
        if these.any():
            words = f"{attack}: {reason}; see the answer's `fit`"
            warnings.warn(words, UncheckedWarning, stacklevel=stacklevel)
    partly = (status == Status.OK) & ~short & (resolved < MOSTLY_RESOLVED)
    if partly.any():
        words = f"{attack}: {PARTLY_RESOLVED}. {resolved[partly].min():.0%} of what a guess "
        words += "leaves open is resolved; see the answer's `fit`"
        warnings.warn(words, SomeWrongWarning, stacklevel=stacklevel)


def energies(updates: Any) -> Array:
    """Squared lengths `[rounds]` of a tree with leaves `[rounds, ...]`."""
    return jax.vmap(vdot)(updates, updates)


def precision(messages: Any) -> Array:
    """The relative spacing of the numbers in which messages were recorded `[]`: of their widest
    leaf, or of 16 bits where every number that was returned is one of so few, as of uploads that
    were compressed; models that came back as they went were not."""
    sent_back = _changed(messages) if isinstance(messages, Messages) else messages
    leaves, back = (
        [a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]
        for tree in (messages, sent_back)
    )
    spacing = jnp.asarray(min(float(jnp.finfo(a.dtype).eps) for a in leaves))
    numbers = jnp.concatenate([a.reshape(-1) for a in back])
    told = jnp.count_nonzero(numbers) >= ENOUGH
    for kind in HALVES:
        short = told & (numbers.astype(kind).astype(numbers.dtype) == numbers).all()
        spacing = jnp.where(short, jnp.maximum(spacing, float(jnp.finfo(kind).eps)), spacing)
    return spacing


def _changed(messages: Messages) -> Any:
    """What was returned, or zeros in rounds from which it is what was received."""
    changed = moved(messages.pseudo_gradient)
    return jax.tree.map(lambda a: jax.vmap(jnp.multiply)(changed, a), messages.returned)


def rounding(
    received: Any, updates: Any, gradients: Array, eps: float | Array, steps: int | Array = 1
) -> Array:
    """Energy `[rounds]` that rounding may leave of a right answer, of each round relative to its
    update's.

    A returned model is rounded at every step, to the nearest of its own numbers; so are the model
    that was received, and what was sent. Each of these errors is uniform within half a spacing to
    either side. The mean of gradients loses as sums do, relative to their lengths, which may be
    far above the mean's, and in the client's own numbers: gradients in float32 may be recorded in
    float64 (`Messages.from_gradients`).

    Args:
      received: models `[rounds, ...]`.
      updates: of these `[rounds, ...]`.
      gradients: `[rounds]`, length of a step that followed the records' mean gradient *length*.
      eps: see `precision`.
      steps: of a client in a round.
    """
    # One array each: a program of operations on every leaf takes several times as long to compile.
    received, updates = (rows(tree) for tree in (received, updates))
    squares = energies(updates)
    stored = jax.vmap(_stored)(received, updates) * (2 + steps) / 12
    summed = SQUARED_ROUNDING * steps * (1 + steps) * gradients**2
    of_models, of_updates = (jnp.maximum(eps, e) for e in _narrower(received, updates))
    bound = of_models**2 * stored + of_updates**2 * summed
    return jnp.where(squares > 0, bound / jnp.where(squares > 0, squares, 1), jnp.inf)


def model_spacing(messages: Messages, eps: Array) -> Array:
    """The relative spacing of the models' numbers, of which `precision` is `eps`, or of narrower
    ones that they were before."""
    received, updates = rows(messages.received), rows(messages.pseudo_gradient)
    return jnp.maximum(eps, _narrower(received, updates)[0].astype(eps.dtype))


def rows(tree: Any) -> Array:
    """Leaves `[rounds, ...]` side by side `[rounds, numbers]`."""
    return jnp.concatenate([a.reshape(len(a), -1) for a in jax.tree.leaves(tree)], 1)


def _narrower(received: Array, updates: Array) -> tuple[Array, Array]:
    """The relative spacings of the numbers that models and updates were before they were held in
    wider ones: float32's, if all of them are such numbers; of updates but for the rounding of
    models."""
    narrow, wide = (jnp.finfo(kind).eps for kind in (jnp.float32, jnp.result_type(float)))

    def off(a: Array) -> Array:
        return jnp.abs(a - a.astype(jnp.float32).astype(a.dtype))

    returned = received - updates
    of_models = (off(received) == 0).all() & (off(returned) == 0).all()
    largest = jnp.maximum(jnp.abs(received), jnp.abs(returned))
    of_updates = (off(updates) <= 2 * wide * largest).all()
    return jnp.where(of_models, narrow, wide), jnp.where(of_updates, narrow, wide)


def _stored(received: Array, update: Array) -> Array:
    """The most of the sum of squared errors of one model's numbers, of which each has its spacing's
    square as variance; spacings are in units of the precision."""
    largest = jnp.maximum(jnp.abs(received), jnp.abs(received - update))
    variances = jnp.square(jnp.exp2(jnp.floor(jnp.log2(largest))))
    return _most_of(variances.sum(), jnp.square(variances).sum(), variances.max())


def chi_square_deviations(mean: Array, freedom: float | Array) -> Array:
    """In how many deviations the mean of so many squared normal numbers of variance 1 is more or
    less than likely: its cube root is nearly normal (Wilson and Hilferty 1931)."""
    error = 2 / (9 * freedom)
    return (jnp.cbrt(mean) - 1 + error) / jnp.sqrt(error)


def largest_square(variance: Array, count: Array) -> Array:
    """The sum of `count` squared Gaussian numbers of a variance exceeds it in at most
    `FALSE_ALARMS` of cases."""
    return _most_of(variance * count, variance**2 * count, variance)


def _most_of(total: Any, squares: Any, largest: Any) -> Array:
    """The sum of squared Gaussian numbers exceeds it in at most `FALSE_ALARMS` of cases, by the
    variances' sum, sum of squares and largest (Laurent and Massart 2000, Lemma 1)."""
    x = -jnp.log(FALSE_ALARMS)
    return total + 2 * jnp.sqrt(squares * x) + 2 * largest * x


def moved(updates: Any) -> Array:
    """Whether the model came back changed `[rounds]`, of updates with leaves `[rounds, ...]`."""
    changes = [(u != 0).reshape(len(u), -1).any(1) for u in jax.tree.leaves(updates)]
    return jnp.stack(changes).any(0)


def equations(updates: Any) -> Array:
    """Numbers that moved: those that never did say nothing."""
    return jnp.stack([jnp.count_nonzero(u) for u in jax.tree.leaves(updates)]).sum()
