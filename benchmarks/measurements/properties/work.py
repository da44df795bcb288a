"""A group's federations with their detectors, and what decoders and sums say of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Detectors,
    DetectorTraining,
    Observations,
    Property,
    box,
    observe,
    surprise,
    train_detectors,
)
from attacks.properties.detector_laws import overlap
from benchmarks.harness.engines import Compiled, run_members
from benchmarks.harness.experiment import Method
from benchmarks.harness.trees import stack
from benchmarks.measurements.properties.methods import PropertySettings, View
from benchmarks.scenarios import sums
from benchmarks.scenarios.streams import Stream, stream
from jaxfl import LocalTraining, Model

Array = jax.Array


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


@jax.jit
def _surprises(observations: Observations, seen: Array) -> Array:
    """By the answer that explains sums best `[seeds, prefixes]`."""
    return jax.vmap(lambda sums: surprise(sums, seen, box(sums, seen)))(observations)


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
        view = View(observations, weights, jnp.asarray(self.seen), key)
        return self.method.run(view, self.settings)


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


def train(
    settings: PropertySettings, name: str, seeds: Sequence[int], data_dir: str | None
) -> Trained:
    """Simulate a group's federations and train their detectors."""
    data = sums.records_of(name, data_dir)
    model, training = sums.model_of(data, settings), settings.recipe()
    members = [sums.draw(data, settings, seed) for seed in seeds]
    drawn = stack(members)
    held = drawn.x, drawn.y, drawn.behavior, drawn.x_test, drawn.y_test, drawn.key
    trained = run_members(
        sums.Train(model, training, settings.rounds, settings.clients_per_round), held
    )
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


def decoded(trained: Trained, seen: tuple[int, ...], method: Method, attack: Any) -> Compiled:
    """A method's scores `[seeds, prefixes, clients]`."""
    # Two CPU devices that take singular values of a batch at once wait for each other for good
    # (jaxlib 0.10).
    with jax.default_device(jax.local_devices()[0]):
        return run_members(Decode(method, attack, seen), trained.inputs)


def surprises(trained: Trained, seen: tuple[int, ...]) -> list[dict[int, float]]:
    """How far sums are from what explains them best, by seed and number of seen rounds."""
    observations, *_ = trained.inputs
    with jax.default_device(jax.local_devices()[0]):  # as in `decoded`
        far = np.asarray(_surprises(observations, np.asarray(seen)))
    return [dict(zip(seen, map(float, row), strict=True)) for row in far]
