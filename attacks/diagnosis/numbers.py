"""What is seen in the numbers of messages, whatever the model and the records.

Threat model: as of `attacks.diagnosis.causes`, which asks.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from attacks.diagnosis.advice import FROZEN, SIGNS, UNCHANGED
from jaxfl import Messages
from jaxfl.rounding import same_but_rounding

NEARLY_ALL = 0.99
"""Share of numbers that half precision holds: of float32 numbers at random it holds 1 in 8,192 or
fewer, and a server's sums may leave some that it does not."""
STILL, SMALLEST = 0.1, 0.01
"""Least share of numbers that stay among others that move, and least change relative to the
largest, of updates of which a part was sent: whole updates have hardly any that stay, and changes
of all sizes."""
SAME_LENGTH = 1e-4
"""Relative difference of clipped updates' lengths at most: float32 sums of their squares."""
SAME_SIZE = 1e-2
"""Relative difference of changes of one size at most: what rounding leaves of small ones."""
ENOUGH = 64
"""Numbers of an array that is looked at, at least: of fewer, chance decides."""
ROUNDED = 12
"""Spacings of the largest number within which differences of two models are equal: each model is
rounded, and what a step does is, some times."""
WIDE, APART = 50, 4
"""Roundings that changes go over, and that lie between two levels, at least: else rounding makes a
grid of its own."""
ALIKE = 2.4
"""Kurtosis of changes alike in size: of signs it is 1, of uniform numbers 1.8, of normal ones 3."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that the messages say.

    Attributes:
      cause: in a few words, as "weight decay".
      evidence: the numbers, in a sentence.
      share: of what was left unexplained, what the cause accounts for; 1 for what is seen in the
        numbers themselves.
    """

    cause: str
    evidence: str
    share: float


def numbers_say(messages: Messages) -> list[Finding]:
    """What is seen in the numbers of messages, whatever the model and the records."""
    updates = [np.asarray(u, np.float64) for u in jax.tree.leaves(messages.pseudo_gradient)]
    models = [np.asarray(a) for a in jax.tree.leaves((messages.received, messages.returned))]
    flat = np.concatenate([u.reshape(len(u), -1) for u in updates], 1)
    looks = [
        _unchanged(flat, models),
        _sparse(updates, flat),  # of which arrays that are never sent are a part
        _frozen(messages),
        _half(models),
        _grid(updates, models),
    ]
    of_signs = looks[-1] is not None and looks[-1].cause == SIGNS
    alike = _signs(updates)
    looks += [None if of_signs else alike, None if alike else _clipped(flat)]
    return [finding for finding in looks if finding is not None]


def _unchanged(flat: np.ndarray, models: Sequence[np.ndarray]) -> Finding | None:
    half = len(models) // 2  # those received, then those returned
    if same_but_rounding(zip(models[:half], models[half:], strict=True)):
        evidence = (
            "every model came back as it was sent, but for rounding: are those that were sent the "
            "models after the round?"
        )
        return Finding(UNCHANGED, evidence, 1.0)
    still = int((np.abs(flat).max(1) == 0).sum())
    if not still:
        return None
    evidence = f"in {still} of {len(flat)} rounds the model came back as it was sent"
    return Finding("no training", evidence, 1.0)


def _frozen(messages: Messages) -> Finding | None:
    """Arrays of the model that never change, where others do."""
    moved = {
        jax.tree_util.keystr(path, simple=True, separator="/"): bool(np.asarray(leaf).any())
        for path, leaf in jax.tree.leaves_with_path(messages.pseudo_gradient)
    }
    still = [name for name, moves in moved.items() if not moves]
    if not still or len(still) == len(moved):
        return None
    return Finding(FROZEN, f"{', '.join(still)} never changed", 1.0)


def _half(models: Sequence[np.ndarray]) -> Finding | None:
    for kind in (jnp.bfloat16, np.float16):
        wide = [a for a in models if a.dtype.itemsize > 2]
        if wide and all((a.astype(kind).astype(a.dtype) == a).mean() > NEARLY_ALL for a in wide):
            name = np.dtype(kind).name
            return Finding("half precision", f"all numbers are numbers of {name}", 1.0)
    return None


def _sparse(updates: Sequence[np.ndarray], flat: np.ndarray) -> Finding | None:
    """Where numbers stay among others that move, and none moves a little."""
    still = [_scattered(one) for u in updates if u.ndim == 3 for one in u]
    sizes = np.abs(flat)
    gaps = [s[s > 0].min() / s.max() for s in sizes if s.max() > 0]
    if not gaps or not still or np.mean(still) < STILL or np.median(gaps) < SMALLEST:
        return None
    moved = f"{float((flat != 0).mean()):.0%} of the numbers changed"
    least = f"none by less than {np.median(gaps):.2g} of the largest change"
    return Finding("sparsified", f"{moved}, {least}", 1.0)


def _scattered(matrix: np.ndarray) -> float:
    """Share of zeros among rows and columns that hold others: dead units have none."""
    there = matrix != 0
    living = there[there.any(1)][:, there.any(0)]
    return float((~living).mean()) if living.size else 0.0


def _grid(updates: Sequence[np.ndarray], models: Sequence[np.ndarray]) -> Finding | None:
    """Whether changes are multiples of one step, array by array."""
    rounding = ROUNDED * max(float(jnp.finfo(a.dtype).eps * np.abs(a).max()) for a in models)
    levels = []
    for one in (one for update in updates for one in update.reshape(len(update), -1)):
        if one.size < ENOUGH or np.ptp(one) < WIDE * rounding:
            continue
        gaps = np.diff(np.unique(one))
        step = gaps[gaps > rounding].min(initial=np.inf)
        places = np.round((one - one.min()) / step)
        if len(np.unique(places)) > one.size / 2:
            continue  # too few numbers to tell a grid from chance
        step = places @ (one - one.min()) / (places @ places)
        if step < APART * rounding or np.abs(one - one.min() - places * step).max() > rounding:
            return None
        levels.append(places.max())
    if not levels:
        return None
    if max(levels) <= 2 and _are_signs(updates):
        evidence = "changes of an array are of one size: signs (signSGD, Lion), or one bit was sent"
        return Finding(SIGNS, evidence, 1.0)
    bits = float(np.log2(max(levels) + 1))
    return Finding("quantised", f"every array holds multiples of one step, {bits:.1f} bits", 1.0)


def _are_signs(updates: Sequence[np.ndarray]) -> bool:
    """Whether the numbers of an array that move do so by one size, up or down."""
    sizes = [np.abs(one[one != 0]) for update in updates for one in update.reshape(len(update), -1)]
    return all(np.ptp(each) < SAME_SIZE * each.max() for each in sizes if each.size)


def _clipped(flat: np.ndarray) -> Finding | None:
    norms = np.linalg.norm(flat, axis=1)
    same = np.abs(norms / max(norms.max(), 1e-300) - 1) < SAME_LENGTH
    if len(norms) < 3 or same.sum() < max(3, len(norms) / 2):
        return None
    evidence = f"updates have the length {norms.max():.4g} in {same.sum()} of {len(norms)} rounds"
    return Finding("clipped", evidence, 1.0)


def _signs(updates: Sequence[np.ndarray]) -> Finding | None:
    """Whether changes are alike in size: those of Adam are about the rate times a sign, those of a
    gradient are few large ones and many small."""
    tails = []
    for update in updates:
        for one in update.reshape(len(update), -1):
            moved = one[one != 0]
            if moved.size >= ENOUGH:
                tails.append((moved**4).mean() / (moved**2).mean() ** 2)
    if not tails or np.median(tails) > ALIKE:
        return None
    evidence = f"changes are alike in size (kurtosis {np.median(tails):.2g}; gradients have more)"
    return Finding("Adam", evidence, 1.0)
