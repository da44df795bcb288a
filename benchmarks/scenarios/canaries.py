"""One client that trains privately, with canaries beside its records, and what an auditor has of
it."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.streams import Stream, stream
from benchmarks.scenarios.victims import CLIP, DELTA, check_drawn
from jaxfl import (
    Canaries,
    ClientData,
    Federated,
    LocalTraining,
    Messages,
    Model,
    canary_directions,
    mlp,
    one_client,
    simulate,
    stack_clients,
)
from jaxfl.accounting import noise_multiplier

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class CanarySettings:
    """Who trains, and how private it is.

    Attributes:
      records: of the client.
      canaries: how many; no more than half the parameters are planted.
      hidden: widths of the hidden layers.
      rounds: communication rounds, all of which are seen.
      training: of the client.
      epsilon: that its accountant promises for the whole training, at delta = 1e-5, by DP-SGD with
        gradients clipped to 1.
    """

    records: int
    canaries: int = 1000
    hidden: tuple[int, ...] = (64,)
    rounds: int = 20
    training: LocalTraining = LocalTraining(0.1)
    epsilon: float = 10.0


class View(NamedTuple):
    """What an auditor has: all that differential privacy grants an adversary.

    Attributes:
      model: the shared model.
      messages: the client's, of all rounds.
      data: its records.
      training: its recipe, canaries among its plug-ins.
      promised: epsilon by its accountant.
      delta: of both epsilons.
      key: what is random in the audit.
    """

    model: Model
    messages: Messages
    data: ClientData
    training: LocalTraining
    promised: float
    delta: float
    key: Array


class Audited(NamedTuple):
    """A client with canaries.

    Attributes:
      view: its auditor's.
      note: what a reader must know of the data.
    """

    view: View
    note: str


def draw(name: str, settings: CanarySettings, data_dir: str | None, seed: int) -> Audited:
    """The client of a seed, and what is seen.

    Raises:
      ValueError: if the table has too few records.
    """
    data = classified(name, data_dir)
    if settings.records > len(data):
        raise ValueError(f"records={settings.records} exceeds the {len(data)} of {name}")
    rows = np.random.default_rng(seed).permutation(len(data))[: settings.records]
    start_key, canary_key, training_key = jax.random.split(jax.random.key(seed), 3)
    model = mlp(data.x.shape[1], settings.hidden, data.classes or 0)
    start = model.init(start_key)
    most = sum(leaf.size for leaf in jax.tree.leaves(start)) // 2
    directions = canary_directions(start, canary_key, min(settings.canaries, most))
    training = _recipe(settings, directions)
    x, y = data.x[rows], data.y[rows]
    federated = Federated(settings.rounds, training)
    run = simulate(model, start, stack_clients([(x, y)]), training_key, federated)
    key = stream(training_key, Stream.ATTACK)
    told = (settings.epsilon, DELTA, key)
    return Audited(View(model, run.messages(0), one_client(x, y), training, *told), data.note)


def _recipe(settings: CanarySettings, directions: Array) -> LocalTraining:
    training, records = settings.training, settings.records
    check_drawn(training, records)
    batch = min(training.batch_size or records, records)
    steps = training.steps(records) * settings.rounds
    noise = _noise(settings.epsilon, records, training.batch_size, steps)
    canaries = Canaries(CLIP, noise, directions=directions, rate=batch / records)
    return dataclasses.replace(training, plugins=(*training.plugins, canaries))


@functools.lru_cache(maxsize=256)
def _noise(epsilon: float, records: int, batch_size: int | None, steps: int) -> float:
    return noise_multiplier(
        epsilon, records=records, batch_size=batch_size, steps=steps, delta=DELTA
    )
