"""How detectors of a property are trained (`attacks.properties.detectors`)."""

from typing import Any

import jax
from flax import struct

from jaxfl import _check

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

    gradients: int = struct.field(pytree_node=False, default=1000)
    averaged: int = struct.field(pytree_node=False, default=1)
    shrinkage: float | Array = 0.5
    name: str = struct.field(pytree_node=False, default="first_order")

    def check(self) -> None:
        """Raise `ValueError` on settings that make no sense."""
        _check.positive_integer(gradients=self.gradients, averaged=self.averaged)
        _check.fraction(shrinkage=self.shrinkage)
        if self.gradients < 2:
            raise ValueError(f"gradients={self.gradients} must be at least 2: they are compared")


@struct.dataclass
class Lda:
    """Fisher's direction from shadow updates (linear discriminant analysis).

    Attributes:
      held_out: that fraction of the pairs calibrates (static).
      shrinkage: of the covariance in closed form, as in `discriminant`.
    """

    held_out: float = struct.field(pytree_node=False, default=0.2)
    shrinkage: float | Array = 0.5
    name: str = struct.field(pytree_node=False, default="lda")

    def check(self) -> None:
        """Raise `ValueError` on settings that make no sense."""
        _check.fraction(held_out=self.held_out, shrinkage=self.shrinkage)


@struct.dataclass
class Logistic:
    """Logistic regression on shadow updates, the authors' code. Its best epoch is chosen on the
    held-out shadows.

    Attributes:
      held_out: that fraction of the pairs calibrates (static).
      epochs, batch_size: of its training (static).
      learning_rate: likewise.
    """

    held_out: float = struct.field(pytree_node=False, default=0.2)
    epochs: int = struct.field(pytree_node=False, default=50)
    batch_size: int = struct.field(pytree_node=False, default=16)
    learning_rate: float | Array = 0.01
    name: str = struct.field(pytree_node=False, default="logistic")

    def check(self) -> None:
        """Raise `ValueError` on settings that make no sense."""
        _check.fraction(held_out=self.held_out)
        _check.positive_integer(epochs=self.epochs, batch_size=self.batch_size)


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
      every: a detector is trained for every so-manieth round, and used until the next (static).
        Nothing looks ahead.
      followed: auxiliary records whose loss tells, to first order, how the class means move between
        those rounds (static).
      strategy: how shadows run, as in `Federated` (static).
    """

    kind: FirstOrder | Lda | Logistic = FirstOrder()
    pairs: int = struct.field(pytree_node=False, default=60)
    masks: int = struct.field(pytree_node=False, default=64)
    repeated: int = struct.field(pytree_node=False, default=20)
    every: int = struct.field(pytree_node=False, default=1)
    followed: int = struct.field(pytree_node=False, default=1000)
    strategy: Any = struct.field(pytree_node=False, default=None)

    def calibrating(self) -> int:
        """Number of pairs that calibrate a detector."""
        if isinstance(self.kind, FirstOrder):
            return self.pairs
        return round(self.kind.held_out * self.pairs)

    def check(self) -> None:
        """Raise `ValueError` on settings that make no sense."""
        if not isinstance(self.kind, FirstOrder | Lda | Logistic):
            raise ValueError(f"kind={self.kind!r} must be a FirstOrder, Lda or Logistic")
        self.kind.check()
        counts = ("pairs", "masks", "repeated", "every", "followed")
        _check.positive_integer(**{name: getattr(self, name) for name in counts})
        if self.pairs < 2:
            raise ValueError(f"pairs={self.pairs} must be at least 2: halves of them are compared")
        if isinstance(self.kind, FirstOrder):
            return
        if not 1 <= self.calibrating() < self.pairs:
            raise ValueError(
                f"held_out={self.kind.held_out} of pairs={self.pairs} leaves none to train or "
                "none to "
                "calibrate on"
            )
