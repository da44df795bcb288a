"""How far the reading of a client's records has come: what is asked, what is taken, and what is
left of the gradients."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from attacks.records.acceptance import Passed, pieces
from attacks.records.averaged import summed_errors
from attacks.records.evidence import Evidence, extended
from attacks.records.gradients import looked_at
from attacks.records.isolation import Isolated
from attacks.records.refinement import Noisy, Parts, fitted_together
from attacks.records.spans import (
    MARGIN,
    blurred,
    energy,
    noise_beyond,
    rank_of,
    scales_of,
    span_of,
    told_by,
)
from jaxfl import Model
from jaxfl.domains import Count
from jaxfl.schema import Schema

SAME_NOISE = 1.5
"""Factor within which the noise beyond a rank is the same before and after records are taken."""


@struct.dataclass
class RecordSearch:
    """Settings of `reconstruct_records`.

    Attributes:
      starts: random records from which each pass descends (static).
      sweeps: how often a pass changes every attribute of each (static).
      passes: of the search at most; those in which nothing is found count double (static).
      rounds: how many of the messages a pass looks at; what it finds is held against all (static).
      programmes: linear programmes after a pass in which nothing is found, where errors alone may
        tell records apart, see `attacks.records.isolation` (static).
    """

    starts: Count = struct.field(pytree_node=False, default=128)
    sweeps: Count = struct.field(pytree_node=False, default=8)
    passes: Count = struct.field(pytree_node=False, default=24)
    rounds: Count = struct.field(pytree_node=False, default=2)
    programmes: Count = struct.field(pytree_node=False, default=400)


@dataclasses.dataclass(frozen=True)
class Task:
    """What stays the same while records are taken out.

    Attributes:
      model: the model.
      schema: of the client's table.
      params: the models received, leaves `[rounds, ...]`, float64.
      gradients: the client's, `[rounds, outputs, inputs]` of each dense layer; of clients that take
        several steps a round, their sums, of the first layer alone.
      returned: see `Evidence`.
      settings: of the search.
    """

    model: Model
    schema: Schema
    params: Any
    gradients: list[np.ndarray]
    returned: Any
    settings: RecordSearch


@dataclasses.dataclass(frozen=True)
class Reading:
    """How far it has come.

    Attributes:
      left: gradients without the records taken.
      taken: records that were certified when they were taken. One that all numbers together leave a
        listed number open of is not any more.
      opened: others that passed last.
      total: number of the client's records with their copies; 0 if unknown.
      noise: energy of the gradients' noise.
      ranks: of the layers that may be looked at; 0 where nothing is left, or nothing told.
      directions: that isolate records `[found, inputs]`, see `attacks.records.isolation`.
      blur: energy that errors which were estimated of the records taken may have left in the
        gradients; 0 where errors are known.
    """

    left: list[np.ndarray]
    taken: Passed
    opened: Passed
    total: int
    noise: float
    ranks: tuple[int, ...]
    directions: np.ndarray
    blur: float = 0.0

    @property
    def count(self) -> int:
        """Number of different records, those that are left included."""
        return len(self.taken) + max(self.ranks)

    @property
    def is_contradicted(self) -> bool:
        """Whether what is left is more than noise and tells no rank, or of more records than there
        are: then the noise was taken for less than it is, and no test that measures by it proves
        anything."""
        silent = not max(self.ranks) and energy(self.left) > MARGIN**2 * self.noise
        return silent or (self.total > 1 and self.count > self.total)


def layers_of(task: Task) -> range:
    """Those that may be looked at."""
    return range(1 if task.returned is not None else looked_at(len(task.gradients)) + 1)


def ranks_of(task: Task, left: list[np.ndarray]) -> tuple[int, ...]:
    """Ranks of what is left of the layers that may be looked at."""
    return tuple(told_by(left[p], scales_of(task.gradients[p]))[0] for p in layers_of(task))


def ranks_after(
    task: Task, reading: Reading, more: Passed, left: list[np.ndarray]
) -> tuple[int, ...]:
    """Ranks once `more` is taken. Where the noise hides where singular values end, a record less
    each, if what is beyond is the noise that there was. Errors of several steps are estimated, and
    the estimates' own errors are no record: a rank never falls by less than what is taken."""
    ranks = list(ranks_of(task, left))
    for at, (told, before) in enumerate(zip(ranks, reading.ranks, strict=True)):
        expected = max(before - len(more), 0)
        if task.returned is not None:
            ranks[at] = min(told, expected)
        if expected and not told:
            allowed = SAME_NOISE * noise_beyond(reading.left[at], before)
            ranks[at] = expected if noise_beyond(left[at], expected) <= allowed else 0
    return tuple(ranks)


def evidence_of(task: Task, reading: Reading, place: int) -> Evidence:
    """The spans of what is left. The first layer's inputs have as many dimensions as they show:
    records of categories depend on each other."""
    left, rank = reading.left, reading.ranks[place]
    stacked, whole = (np.concatenate(list(g[0])) for g in (left, task.gradients))
    values = np.linalg.svd(stacked, compute_uv=False)
    most = min(max(reading.ranks), min(stacked.shape))
    first = rank_of(values, float(np.linalg.norm(whole, 2)), most)[0] or min(rank, most)
    spans = [span_of(gradient, rank) for gradient in left[place]]
    layer = jax.tree.map(lambda *leaves: np.stack(leaves), *spans)
    total = reading.total if task.returned is None else 0
    span = span_of(stacked, first)
    # Where all its dimensions are records', it shows no noise of its own.
    span = dataclasses.replace(span, noise=max(span.noise, np.min(layer.noise)))
    span, layer = (blurred(each, reading.blur) for each in (span, layer))
    isolated = Isolated.none(stacked.shape[1], min(task.gradients[0].shape[1:]))
    return Evidence(task.params, span, layer, float(total), place, isolated, task.returned)


def taken_out(
    task: Task, reading: Reading, more: Passed, evidence: Evidence
) -> tuple[Passed, list[np.ndarray], float]:
    """All that is taken, with `more`; what is left of the gradients without it; and the energy by
    which that may be off. Where errors are known, all numbers are fitted anew together; where they
    are not, the errors are estimated anew together."""
    taken = reading.taken.and_these(more)
    before = max(reading.ranks)
    if task.returned is not None:
        return taken, *_estimated_together(task, taken, max(before - len(more), 0), evidence)
    noises = [noise_beyond(layer, before) for layer in reading.left]
    # A layer that is no wider than the rank shows no noise of its own.
    noises = [noise or max(*noises, np.finfo(float).tiny) for noise in noises]
    noisy = Noisy(task.gradients, noises, max(before - len(more), 0))
    parts = _parts(task, taken, reading.total)
    return *fitted_together(parts, task.schema, noisy, taken), 0.0


def _estimated_together(
    task: Task, taken: Passed, rest: int, evidence: Evidence
) -> tuple[list[np.ndarray], float]:
    """What is left of the first layer's gradients without all records taken, and by which energy it
    may be off. The errors of each are estimated where the others taken are projected out: no
    estimate rests on another one, and there is little left to be told apart from.

    Args:
      task: of a client that takes several steps a round.
      taken: the records.
      rest: how many are left.
      evidence: any of this task.
    """
    inputs, (whole, *_) = _inputs_of(task, taken), task.gradients
    left, blur = whole, 0.0
    for row, inputs_of_row in enumerate(inputs):
        basis = np.linalg.qr(np.delete(inputs, row, 0).T)[0]
        spans = [span_of(g - (g @ basis) @ basis.T, rest + 1) for g in whole]
        layer = jax.tree.map(lambda *leaves: np.stack(leaves), *spans)
        alone = dataclasses.replace(evidence, layer=layer)
        with jax.enable_x64(True):
            errors, unsure = summed_errors(task.model, alone, jnp.asarray(taken.x[row : row + 1]))
        left = left - np.einsum("to,i->toi", np.asarray(errors)[0], inputs_of_row)
        blur += float(np.square(np.asarray(unsure)).max() * np.square(inputs_of_row).sum())
    return [left], blur


def _inputs_of(task: Task, passed: Passed) -> np.ndarray:
    """Records as the first layer's inputs `[passed, inputs]`."""
    name = task.model.layers.names[0] if task.model.layers else ""
    with jax.enable_x64(True):
        return np.asarray(extended(task.model, name, task.params, jnp.asarray(passed.x)))


def without(
    task: Task, gradients: list[np.ndarray], passed: Passed, total: int, evidence: Evidence
) -> list[np.ndarray]:
    """Gradients without the parts of records that are found."""
    if task.returned is None:
        return _parts(task, passed, total).without(gradients, passed.x)
    inputs = _inputs_of(task, passed)
    errors = _summed(task, evidence, passed)[0] * (passed.copies / total)[:, None, None]
    return [gradients[0] - np.einsum("nto,ni->toi", errors, inputs, optimize=True)]


def _parts(task: Task, passed: Passed, total: int) -> Parts:
    """Those of records of a client that takes one step a round."""
    positions = [*task.schema.positions, *(position for _, position, _ in task.schema.counted)]
    return Parts(task.model, task.params, passed.y, passed.copies / total, tuple(positions))


def _summed(task: Task, evidence: Evidence, passed: Passed) -> tuple[np.ndarray, np.ndarray]:
    """`summed_errors` in pieces of one shape."""
    with jax.enable_x64(True):
        return pieces(lambda x: summed_errors(task.model, evidence, x), passed.x)


def blur_of(task: Task, evidence: Evidence, passed: Passed) -> float:
    """Energy by which the errors of records that are found may be off."""
    if task.returned is None:
        return 0.0
    unsure = _summed(task, evidence, passed)[1]
    return float((np.square(unsure).max(1) * (np.square(passed.x).sum(1) + 1)).sum())


def noise_energy(evidence: Evidence, gradients: list[np.ndarray]) -> float:
    """Energy of the noise of all numbers of the messages that moved, by the errors of the layers
    looked at."""
    first, others = np.square(evidence.first.noise), np.square(evidence.layer.noise).mean()
    noises = [first] + [others] * (len(gradients) - 1)
    return float(sum(n * np.count_nonzero(g) for n, g in zip(noises, gradients, strict=True)))
