"""How detectors of a property are trained (`attacks.properties.detectors`)."""

from typing import Any

import jax
from flax import struct

from jaxfl.domains import Count, Fraction, Positive, TracedFraction

Array = jax.Array


@struct.dataclass
class FirstOrder:
    """Fisher's direction from the gradients of auxiliary records; all pairs calibrate.

    Attributes:
      gradients: auxiliary records whose gradients are used, half of all if that is fewer (static).
      averaged: trained rounds, up to its own, whose directions it averages, each of unit deviation
        (static). Models of nearby rounds are alike, the errors of their directions are not.
      shrinkage: of the covariance in closed form: the weight of what it is shrunk to, as in
        `discriminant`.
    """

    gradients: Count = struct.field(pytree_node=False, default=1000)
    averaged: Count = struct.field(pytree_node=False, default=1)
    shrinkage: TracedFraction = 0.5
    name: str = struct.field(pytree_node=False, default="first_order")


@struct.dataclass
class Lda:
    """Fisher's direction from shadow updates (linear discriminant analysis).

    Attributes:
      held_out: that fraction of the pairs calibrates (static).
      shrinkage: of the covariance in closed form, as in `discriminant`.
    """

    held_out: Fraction = struct.field(pytree_node=False, default=0.2)
    shrinkage: TracedFraction = 0.5
    name: str = struct.field(pytree_node=False, default="lda")


@struct.dataclass
class Logistic:
    """Logistic regression on shadow updates, the authors' code. Its best epoch is chosen on the
    held-out shadows.

    Attributes:
      held_out: that fraction of the pairs calibrates (static).
      epochs, batch_size: of its training (static).
      learning_rate: likewise.
    """

    held_out: Fraction = struct.field(pytree_node=False, default=0.2)
    epochs: Count = struct.field(pytree_node=False, default=50)
    batch_size: Count = struct.field(pytree_node=False, default=16)
    learning_rate: Positive = 0.01
    name: str = struct.field(pytree_node=False, default="logistic")


@struct.dataclass
class DetectorTraining:
    """How detectors are trained.

    Attributes:
      kind: what a direction is made of, and how: `FirstOrder`, `Lda` or `Logistic`.
      pairs: shadow updates with, and as many without the property, per round (static). The paper
        has 6,000 (MNIST).
      masks: dropout masks over which the target's gradient is averaged (static).
      repeated: shadow clients that are trained anew in every round, from which the correlation of a
        client's features between rounds is estimated (static).
      every: a detector is trained in every n-th round, and used until the next (static).
        Nothing looks ahead.
      followed: auxiliary records whose loss tells, to first order, how the class means move between
        those rounds (static).
      strategy: how shadows run, as in `Federated` (static).
    """

    kind: FirstOrder | Lda | Logistic = FirstOrder()
    pairs: Count = struct.field(pytree_node=False, default=60)
    masks: Count = struct.field(pytree_node=False, default=64)
    repeated: Count = struct.field(pytree_node=False, default=20)
    every: Count = struct.field(pytree_node=False, default=1)
    followed: Count = struct.field(pytree_node=False, default=1000)
    strategy: Any = struct.field(pytree_node=False, default=None)

    def calibrating(self) -> int:
        """Number of pairs that calibrate a detector."""
        if isinstance(self.kind, FirstOrder):
            return self.pairs
        return round(self.kind.held_out * self.pairs)

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        if isinstance(self.kind, FirstOrder) and self.kind.gradients < 2:
            raise ValueError(
                f"{name}.kind.gradients={self.kind.gradients} must be at least 2: they are compared"
            )
        if self.pairs < 2:
            raise ValueError(
                f"{name}.pairs={self.pairs} must be at least 2: halves of them are compared"
            )
        if isinstance(self.kind, FirstOrder):
            return
        if not 1 <= self.calibrating() < self.pairs:
            raise ValueError(
                f"held_out={self.kind.held_out} of pairs={self.pairs} leaves none to train or "
                "none to "
                "calibrate on"
            )
