"""How a federation behind secure aggregation is looked at, and the decoders.

A method here is `run(view, settings) -> scores [prefixes, clients]`, a pure function, asked for
several numbers of seen rounds at once. `oracle` is the best of our decoders and `detector` reports
the detectors themselves: these two have no `run`. `Decoding` is what is asked of methods besides.
"""

import dataclasses

import jax
from flax import struct

from attacks import (
    DetectorTraining,
    FirstOrder,
    Gibbs,
    Observations,
    Prolin,
    box,
    gibbs,
    gradient_votes,
    least_squares,
    prolin,
    ridge,
)
from benchmarks.harness.experiment import Method, Metric
from benchmarks.scenarios.sums import SumsSettings

Array = jax.Array

MEAN_OVER = (50, 100, 150, 200, 250, 290)
"""Numbers of rounds, of 300, of which the paper's figures are read."""


@dataclasses.dataclass(frozen=True)
class PropertySettings(SumsSettings):
    """A federation behind secure aggregation, and how it is looked at.

    Attributes:
      detectors: how they are trained.
      seen: rounds that the adversary has seen, or "mean": the mean of the metric over the rounds of
        `MEAN_OVER`.
    """

    detectors: DetectorTraining = DetectorTraining(FirstOrder(averaged=3), every=5)
    seen: int | str = "mean"

    @property
    def prefixes(self) -> tuple[int, ...]:
        """Numbers of seen rounds that the answer is made of."""
        if self.seen != "mean":
            return (int(self.seen),)
        return tuple(round(t * self.rounds / 300) for t in MEAN_OVER)


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Traits of a method.

    Attributes:
      threshold: of scores, above which a client is said to have the property.
      best_of: methods of which it is the best in hindsight; it does not run itself.
      reports: whether it reports detectors; it does not run either.
    """

    threshold: float = 0.5
    best_of: tuple[str, ...] = ()
    reports: bool = False


@struct.dataclass
class View:
    """What a decoder is given.

    Attributes:
      observations: features of sums, round by round.
      weights: of the rounds, 1 - OVL of their detectors `[rounds]`.
      seen: numbers of seen rounds `[prefixes]`.
      key: draws what is random.
    """

    observations: Observations
    weights: Array
    seen: Array
    key: Array


def _prolin(view: View, settings: Prolin) -> Array:
    return prolin(view.observations, view.seen, view.weights, view.key, settings=settings).p


METHODS = (
    Method(
        "gibbs",
        "features integrated out, drift estimated: the default, named in advance",
        lambda view, settings: gibbs(view.observations, view.seen, view.key, settings=settings),
        Gibbs(),
    ),
    Method(
        "box",
        "the same likelihood, relaxed to a box",
        lambda view, settings: box(view.observations, view.seen),
    ),
    Method(
        "oracle",
        "the best F1 of our decoders",
        oracle=True,
        traits=Decoding(best_of=("gibbs", "box")),
    ),
    Method(
        "prolin", "the paper's, by its authors' code, whose curves are published", _prolin, Prolin()
    ),
    Method("prolin_paper", "the paper's, by its text", _prolin, Prolin("paper")),
    Method(
        "ridge",
        "the paper's REG",
        lambda view, settings: ridge(view.observations, view.seen, view.weights),
        traits=Decoding(threshold=0.0),
    ),
    Method(
        "ols",
        "least squares, then each client's mean feature",
        lambda view, settings: least_squares(view.observations, view.seen),
        traits=Decoding(threshold=0.0),
    ),
    Method(
        "baseline",
        "votes of sums in which a client took part",
        lambda view, settings: gradient_votes(view.observations, view.seen),
    ),
    Method("detector", "the detectors themselves", observes=False, traits=Decoding(reports=True)),
)
METRICS = (
    Metric("f1", "of who has the property, at a threshold fixed in advance", True),
    Metric("accuracy", "clients of whom it was told rightly", True),
    Metric("auc", "area under the curve of who has it", True, 0.5),
    Metric("average_precision", "of the ranking", True),
    Metric("brier", "squared error of probabilities", less_is_better=True),
    Metric("separation", "of a detector's class means, in deviations"),
    Metric("overlap", "of its class densities", True),
    Metric("norm", "of its direction"),
)
