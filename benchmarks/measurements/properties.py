"""Which clients have a property, seen through secure aggregation? (Kerkouche 2023; property
inference)

A method here is `run(sight, settings) -> scores [prefixes, clients]`, a pure function, asked for
several numbers of seen rounds at once. `oracle` is the best of our decoders and `detector` reports
the detectors themselves: these two have no `run`. `Decoding` is what is asked of methods besides.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from attacks import (
    Detectors,
    DetectorTraining,
    FirstOrder,
    Gibbs,
    Observations,
    Prolin,
    Property,
    box,
    gibbs,
    gradient_votes,
    least_squares,
    observe,
    prolin,
    ridge,
    train_detectors,
)
from attacks.metrics import ranking
from attacks.properties.detector_laws import overlap
from benchmarks.harness.engines import Compiled, run_members
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome, by_method
from benchmarks.harness.trees import stack
from benchmarks.scenarios import sums
from benchmarks.scenarios.streams import Stream, stream
from benchmarks.scenarios.sums import SumsSettings
from jaxfl import LocalTraining, Model

Array = jax.Array
Scores = dict[str, float]
"""By metric."""
MEAN_OVER = (50, 100, 150, 200, 250, 290)


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
class Sight:
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


@dataclasses.dataclass(frozen=True)
class Detect:
    """Trains the detectors of a federation's rounds."""

    model: Model
    training: LocalTraining
    records: int
    settings: DetectorTraining

    def __call__(self, inputs: tuple[Any, Array, Array, Property, Array]) -> Detectors:
        """Detectors from all rounds' models, `x_auxiliary`, `y_auxiliary`, `prop` and `key`."""
        received, x, y, prop, key = inputs
        return train_detectors(
            self.model,
            received,
            x,
            y,
            prop,
            sums.detector_key(key),
            training=self.training,
            records=self.records,
            settings=self.settings,
        )


_observe = jax.jit(jax.vmap(observe))


@dataclasses.dataclass(frozen=True)
class Decode:
    """One method for several numbers of seen rounds."""

    method: Method
    settings: Any
    seen: tuple[int, ...]

    def __call__(self, inputs: tuple[Observations, Array, Array]) -> Array:
        """Scores `[prefixes, clients]`, from what was observed, the rounds' weights and a key."""
        observations, weights, key = inputs
        key = stream(key, Stream.DECODING)
        sight = Sight(observations, weights, jnp.asarray(self.seen), key)
        return self.method.run(sight, self.settings)


def _prolin(sight: Sight, settings: Prolin) -> Array:
    return prolin(sight.observations, sight.seen, sight.weights, sight.key, settings=settings).p


METHODS = (
    Method(
        "gibbs",
        "features integrated out, drift estimated: the default, named in advance",
        lambda sight, settings: gibbs(sight.observations, sight.seen, sight.key, settings=settings),
        Gibbs(),
    ),
    Method(
        "box",
        "the same likelihood, relaxed to a box",
        lambda sight, settings: box(sight.observations, sight.seen),
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
        lambda sight, settings: ridge(sight.observations, sight.seen, sight.weights),
        traits=Decoding(threshold=0.0),
    ),
    Method(
        "ols",
        "least squares, then each client's mean feature",
        lambda sight, settings: least_squares(sight.observations, sight.seen),
        traits=Decoding(threshold=0.0),
    ),
    Method(
        "baseline",
        "votes of sums in which a client took part",
        lambda sight, settings: gradient_votes(sight.observations, sight.seen),
    ),
    Method("detector", "the detectors themselves", observes=False, traits=Decoding(reports=True)),
)
METRICS = (
    Metric("f1", "of who has the property, at a threshold fixed in advance", True),
    Metric("accuracy", "clients of whom it was told rightly", True),
    Metric("auc", "area under the curve of who has it", True, 0.5),
    Metric("average_precision", "of the ranking", True),
    Metric("brier", "squared error of probabilities"),
    Metric("separation", "of a detector's class means, in deviations"),
    Metric("overlap", "of its class densities", True),
    Metric("norm", "of its direction"),
)


class Trained(NamedTuple):
    """Federations of a group with their detectors.

    Attributes:
      drawn: the federations.
      detectors: of all rounds.
      overlaps: of their class densities `[seeds, rounds]`.
      inputs: of `Decode`.
      test_accuracy: of the shared models `[seeds]`.
      note: what a reader must know of the data.
      detail: how long both took.
    """

    drawn: sums.Drawn
    detectors: Detectors
    overlaps: np.ndarray
    inputs: tuple[Observations, Array, Array]
    test_accuracy: np.ndarray
    note: str
    detail: dict[str, float]


def _train(
    settings: PropertySettings, name: str, seeds: Sequence[int], data_dir: str | None
) -> Trained:
    data = sums.records_of(name, data_dir)
    model, training = sums.model_of(data, settings), settings.recipe()
    members = [sums.draw(data, settings, seed) for seed in seeds]
    drawn = stack(members)
    held = drawn.x, drawn.y, drawn.behavior, drawn.x_test, drawn.y_test, drawn.key
    trained = run_members(sums.Train(model, training, settings.rounds, settings.per_round), held)
    aggregates, test_accuracy = trained.results
    detected = run_members(
        Detect(model, training, settings.records, settings.detectors),
        (aggregates.received, drawn.x_auxiliary, drawn.y_auxiliary, drawn.prop, drawn.key),
    )
    detectors, observations = detected.results, _observe(aggregates, detected.results)
    laws = zip(np.asarray(detectors.mean), np.asarray(detectors.variance), strict=True)
    overlaps = np.stack([overlap(mean, variance) for mean, variance in laws])
    weights = jnp.asarray(1 - overlaps, jnp.float32)
    detail = {
        "simulation_s": round(trained.run_s, 1),
        "detectors_s": round(detected.run_s, 1),
    }
    inputs = observations, weights, drawn.key
    return Trained(drawn, detectors, overlaps, inputs, np.asarray(test_accuracy), data.note, detail)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group: all seeds in one batch, each method once for all numbers of seen
    rounds."""
    cell, seeds = jobs[0].cell, list(dict.fromkeys(job.seed for job in jobs))
    trained = _train(cell.settings, cell.dataset, seeds, data_dir)
    seen = tuple(sorted({t for job in jobs for t in job.cell.settings.prefixes}))
    decode = functools.cache(functools.partial(_decode, trained, seen))
    for method, attack, wanted in by_method(jobs):
        done, traits = None, EXPERIMENT.traits_of(method)
        if traits.reports:
            scores = [{t: _detector(trained, s, t) for t in seen} for s in range(len(seeds))]
        elif traits.best_of:
            methods, given = map(cell.experiment.method, traits.best_of), dict(cell.method_settings)
            ours = [decode(m, given.get(m.name, m.settings))[0] for m in methods]
            scores = [
                {t: max((o[s][t] for o in ours), key=lambda r: r["f1"]) for t in seen}
                for s in range(len(seeds))
            ]
        else:
            scores, done = decode(method, attack)
        shared: dict[str, Any] = {
            "selection": "oracle" if method.oracle else "none",
            "compile_s": done and done.compile_s,
            "run_s": done and done.run_s,
            "dtype": "float32",
            "note": trained.note,
        }
        outcomes = []
        for job in wanted:
            s = seeds.index(job.seed)
            correlation = round(float(trained.detectors.correlation[s, -1]), 3)
            facts = shared | {
                "test_accuracy": float(trained.test_accuracy[s]),
                "detail": trained.detail | {"correlation": correlation} | _shares(trained, s),
            }
            averaged = _averaged([scores[s][t] for t in job.cell.settings.prefixes])
            usual = _usual(np.asarray(trained.drawn.positives[s]))
            outcomes += [
                Outcome(job, metric, value, majority=usual.get(metric), **facts)
                for metric, value in averaged.items()
            ]
        yield outcomes


def _shares(trained: Trained, s: int) -> dict[str, float]:
    """How many of the records have the attribute, where that is the property."""
    prevalence = trained.drawn.prop.prevalence
    if prevalence is None:
        return {}
    shares = {"without": prevalence.without, "with": prevalence.with_property}
    return {f"share_{name}": float(np.asarray(share)[s]) for name, share in shares.items()}


def _usual(positives: np.ndarray) -> Scores:
    """What saying the same of all clients scores."""
    return {"accuracy": float(max(positives.mean(), 1 - positives.mean()))}


def _decode(
    trained: Trained, seen: tuple[int, ...], method: Method, attack: Any
) -> tuple[list[dict[int, Scores]], Compiled]:
    """How well a method ranks, by seed and number of seen rounds; and what it took."""
    # Two CPU devices that take singular values of a batch at once wait for each other for good
    # (jaxlib 0.10).
    with jax.default_device(jax.local_devices()[0]):
        done = run_members(Decode(method, attack, seen), trained.inputs)
    positives, threshold = (
        np.asarray(trained.drawn.positives),
        EXPERIMENT.traits_of(method).threshold,
    )
    return _ranked(np.asarray(done.results), positives, seen, threshold), done


def _averaged(scores: Sequence[Scores]) -> Scores:
    """Mean over numbers of seen rounds; without the Brier score of what is no probability."""
    means = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    return {name: v for name, v in means.items() if name != "brier" or np.isfinite(v)}


def _ranked(
    scores: np.ndarray, positives: np.ndarray, seen: Sequence[int], threshold: float
) -> list[dict[int, Scores]]:
    """How well scores `[seeds, prefixes, clients]` rank, by seed and number of seen rounds."""
    return [
        {t: vars(ranking(row, truth, threshold)) for t, row in zip(seen, rows, strict=True)}
        for rows, truth in zip(scores, positives, strict=True)
    ]


def _detector(trained: Trained, s: int, seen: int) -> Scores:
    """Scores of a seed's detector of the last seen round."""
    detectors = trained.detectors
    mean, variance = (np.asarray(a[s, seen - 1]) for a in (detectors.mean, detectors.variance))
    return {
        "separation": float((mean[1] - mean[0]) / np.sqrt(variance.mean())),
        "overlap": float(trained.overlaps[s, seen - 1]),
        "norm": float(jnp.linalg.norm(detectors.direction[s, seen - 1])),
    }


EXPERIMENT = Experiment(
    "properties",
    PropertySettings,
    METHODS,
    METRICS,
    run,
    asked=("seen",),
    traits=Decoding,
)
