"""How well an answer of least squares explains messages, and what noise is in them."""

import dataclasses

import jax
import jax.numpy as jnp

from attacks.attributes.candidate_decoding.decoded import Decoded
from attacks.attributes.candidate_decoding.linear_problem import relative_weights
from attacks.attributes.candidate_decoding.solution import Solution
from attacks.fit import ROUNDING, Fit, energies, equations, largest_square, rounding
from jaxfl import Messages

Array = jax.Array


def most_left(messages: Messages, lengths: Array, eps: Array, noise: float | Array) -> Array:
    """Energy `[rounds]` that rounding and stated noise may leave of a right answer; `lengths` as
    `gradients` of `rounding`."""
    updates = messages.pseudo_gradient
    count = sum(a.size for a in jax.tree.leaves(messages.model_shapes))
    spread = largest_square(jnp.square(jnp.asarray(noise)), jnp.asarray(count, lengths.dtype))
    return rounding(messages.received, updates, lengths, eps) + relative_weights(updates) * spread


@dataclasses.dataclass(frozen=True)
class Judge:
    """What least squares found, beside what noise may leave.

    Attributes:
      seen: the messages, as if at one rate.
      solution: the real-valued one.
      rest: its unknowns beside weights.
      rates: the client's, one or of every round.
      averaged: over how many records it takes a mean (static).
      allowed: see `most_left` `[rounds]`.
      more: by how much admissible weights leave more than the solution at least.
      listed: whether the candidates are a shortlist (static).
    """

    seen: Messages
    solution: Solution
    rest: Array
    rates: Array
    averaged: int
    allowed: Array
    more: Array
    listed: bool

    def of(self, answer: Decoded) -> tuple[Array, Fit]:
        """The squared residual of an answer, and how well it explains the messages. The truth is
        among what least squares may choose: so they leave at most what the truth leaves, `allowed`,
        and what the ridge adds."""
        solution, updates = self.solution, self.seen.pseudo_gradient
        rounded = solution.left(jnp.concatenate([answer.rounded, self.rest]))
        moved, unit = self._moved, self._unit
        each = jnp.broadcast_to(self.rates, moved.shape)
        forwards, seen = jnp.where(moved, each > 0, True).all(), moved.sum()
        inexact = ROUNDING * jnp.finfo(solution.square.dtype).eps * solution.square
        most = self._noise + unit * (solution.pull + inexact)
        # Conjugate gradients may have stopped early: what their rounded answer explains is
        # explained.
        left = jnp.minimum(solution.left(solution.unknowns), rounded)
        left = jnp.minimum(left + self.more, rounded)
        # No client has a rate below 0: the nearest that one has explains nothing.
        left = jnp.where(forwards, left, solution.square)
        misfit = jnp.where(seen > 0, left * unit / most, jnp.inf)
        told = equations(updates) > len(solution.unknowns) + self._fitted
        fit = Fit(1 - rounded * unit, 1 - self._noise, jnp.where(told, misfit, jnp.nan))
        return rounded, _of_list(fit) if self.listed else fit

    def deviation(self, rounded: Array) -> Array:
        """Of the noise in every equation: the least of what the answer leaves, what a right one
        may, and what least squares leave, for their degrees of freedom; and what the normal
        equations' arithmetic loses. Rounds count by their updates' energy, and one deviation stands
        for all."""
        solution, count = self.solution, equations(self.seen.pseudo_gradient)
        free = count - len(solution.unknowns) - self._fitted
        white = solution.left(solution.unknowns) * count / jnp.maximum(free, 1)
        left = jnp.minimum(jnp.maximum(rounded, 0), self._noise / self._unit)
        # Rounding repeats itself where unknowns are: what is left says enough where that is
        # simulated, in numbers wider than the models'.
        wide = jnp.finfo(rounded.dtype).bits == 64
        left = jnp.where(wide & (free > 0), jnp.minimum(left, white), left)
        left += jnp.finfo(rounded.dtype).eps * solution.square
        return jnp.sqrt(left / count)

    @property
    def _fitted(self) -> Array:
        """Rates of rounds that were fitted to the same equations."""
        return self._moved.sum() if self.rates.ndim else jnp.zeros((), int)

    @property
    def _moved(self) -> Array:
        return energies(self.seen.pseudo_gradient) > 0

    @property
    def _noise(self) -> Array:
        """Mean of `allowed` over the rounds that say something."""
        return jnp.where(self._moved, self.allowed, 0).sum() / self._moved.sum()

    @property
    def _unit(self) -> Array:
        """Squares of the right-hand side, in those of updates."""
        moved = self._moved
        each = jnp.broadcast_to(self.rates, moved.shape)
        mean = jnp.where(moved, jnp.abs(each), 0).sum() / moved.sum()
        return (mean / self.averaged) ** 2 / moved.sum()


def _of_list(fit: Fit) -> Fit:
    """Values that are on no list may explain what those on one do not."""
    enough = (fit.misfit <= 1) & (fit.explained >= fit.allowed)
    return dataclasses.replace(fit, misfit=jnp.where(enough, fit.misfit, jnp.nan))
