"""How detectors of a property are trained (`attacks.properties.detectors`)."""

import dataclasses
from typing import Any, Literal

import jax

from jaxfl import _check

Array = jax.Array
Kind = Literal["first_order", "lda", "logistic"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DetectorTraining:
    """How detectors are trained.

    Attributes:
      kind: see `attacks.properties.detectors` (static).
      pairs: shadow updates with, and as many without the property, per round (static). `logistic`
        and `lda` train on all but `held_out` of them, which calibrate; for `first_order` all
        calibrate. The paper has 6,000 (MNIST).
      held_out: that fraction (static).
      gradients: auxiliary records whose gradients `first_order` uses, half of all if that is fewer
        (static).
      masks: dropout masks over which it averages the target's gradient (static).
      averaged: trained rounds, up to its own, whose directions it averages, each of unit deviation
        (static). Models of nearby rounds are alike, the errors of their directions are not.
      shrinkage: of the covariance in closed form: the weight of what it is shrunk to, as in
        `discriminant`.
      epochs, batch_size: of `logistic` (static); the authors' code. Its best epoch is chosen on the
        held-out shadows.
      learning_rate: of `logistic`.
      repeated: shadow clients that are trained anew in every round, from which the correlation of a
        client's features between rounds is estimated (static).
      every: a detector is trained for every so-manieth round, and used until the next (static).
        Nothing looks ahead.
      followed: auxiliary records whose loss tells, to first order, how the class means move between
        those rounds (static).
      strategy: how shadows run, as in `Federated` (static).
    """

    kind: Kind = dataclasses.field(default="first_order", metadata={"static": True})
    pairs: int = dataclasses.field(default=60, metadata={"static": True})
    held_out: float = dataclasses.field(default=0.2, metadata={"static": True})
    gradients: int = dataclasses.field(default=1000, metadata={"static": True})
    masks: int = dataclasses.field(default=64, metadata={"static": True})
    averaged: int = dataclasses.field(default=1, metadata={"static": True})
    shrinkage: float | Array = 0.5
    epochs: int = dataclasses.field(default=50, metadata={"static": True})
    batch_size: int = dataclasses.field(default=16, metadata={"static": True})
    learning_rate: float | Array = 0.01
    repeated: int = dataclasses.field(default=20, metadata={"static": True})
    every: int = dataclasses.field(default=1, metadata={"static": True})
    followed: int = dataclasses.field(default=1000, metadata={"static": True})
    strategy: Any = dataclasses.field(default=None, metadata={"static": True})

    def calibrating(self) -> int:
        """Number of pairs that calibrate a detector."""
        return self.pairs if self.kind == "first_order" else round(self.held_out * self.pairs)

    def check(self) -> None:
        """Raise `ValueError` on settings that make no sense."""
        _check.one_of(("first_order", "lda", "logistic"), kind=self.kind)
        _check.fraction(held_out=self.held_out, shrinkage=self.shrinkage)
        counts = (
            "pairs",
            "gradients",
            "masks",
            "averaged",
            "epochs",
            "batch_size",
            "repeated",
            "every",
            "followed",
        )
        _check.positive_integer(**{name: getattr(self, name) for name in counts})
        for name in ("pairs", "gradients"):
            if getattr(self, name) < 2:
                raise ValueError(
                    f"{name}={getattr(self, name)} must be at least 2: halves of them are compared"
                )
        if self.kind != "first_order" and not 1 <= self.calibrating() < self.pairs:
            raise ValueError(
                f"held_out={self.held_out} of pairs={self.pairs} leaves none to train or none "
                "to calibrate on"
            )
