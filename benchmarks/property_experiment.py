"""Which clients have a property, through secure aggregation (Kerkouche 2023).

A cell's settings:
  property: "membership" (of one record in the positive clients' data), "inversion" (they send their update inverted), "ascent"
    (they climb the loss) or "free_rider" (they send nothing).
  clients, positives, per_round: number of clients, of those with the property, of participants in a round.
  records, batch_size, epochs, learning_rate: of every client's training. `clip`: largest norm of a step's gradient, 0 for any.
  factor: what a positive client of "inversion" multiplies its update by; detectors are trained for -1.
  auxiliary: records that the adversary has; half of them make directions, the others calibrate.
  detector: "first_order", "lda" or "logistic"; `pairs`, `gradients`: shadow updates with and without the property, and record
    gradients, per detector; every: rounds that share one; averaged: directions, up to its own, that one is the mean of.
  rounds: communication rounds.
  seen: rounds that the adversary has seen, or "mean": the mean of the metric over the rounds of `MEAN_OVER`.

Methods: `gibbs` (the default, named in advance) and `box`; the paper's `prolin` (by the authors' code, whose curves are
published), `prolin_paper` (by its text), `ridge` (its REG), `ols`, `baseline`; `oracle`, the best F1 of our decoders; and
`detector`, which reports the detectors themselves. Metrics: `f1` at a threshold fixed in advance, `auc`, `average_precision`,
`brier`; of detectors `separation` (of the class means, in deviations), `overlap` and `norm`. `run_s` is of a method, one seed
and all numbers of seen rounds.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Detectors,
    DetectorTraining,
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
from attacks.properties.detectors import overlap
from benchmarks.engines import Compiled, once, run_members
from benchmarks.jobs import Cell, Job, Outcome
from jaxfl import (
    Aggregates,
    Behavior,
    ClientData,
    Federated,
    LocalTraining,
    Model,
    Record,
    clipped_sgd,
    evaluate,
    lenet,
    one_client,
    simulate,
)
from jaxfl.datasets import Dataset, load

Array = jax.Array
Scores = dict[str, float]
"""By metric."""
OURS = ("gibbs", "box")
METHODS = (*OURS, "oracle", "prolin", "prolin_paper", "ridge", "ols", "baseline", "detector")
THRESHOLDS = {"ols": 0.0, "ridge": 0.0}
"""Of scores above which a client is said to have the property, where it is not 1/2."""
MEAN_OVER = (50, 100, 150, 200, 250, 290)
BEHAVIORS = {
    "membership": Behavior(),
    "inversion": Behavior(update=-1.0),
    "ascent": Behavior(gradient=-1.0),
    "free_rider": Behavior(update=0.0),
}
TEST_RECORDS = 1000


def measured(cell: Cell) -> Any:
    """What is run for a cell: all that it says but how many rounds are seen."""
    return cell.dataset, tuple(pair for pair in cell.settings if pair[0] != "seen")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Member:
    """One seed's federation. Leaves get a leading axis `[seeds]` in a group.

    Attributes:
      x: the clients' records `[clients, records, ...]`.
      y: their labels `[clients, records]`.
      positives: who has the property `[clients]`.
      behavior: what each of the clients does `[clients]`.
      prop: what is asked of a client, and how frequent the adversary takes it to be: as frequent as it is.
      x_auxiliary: the adversary's records `[auxiliary, ...]`.
      y_auxiliary: their labels `[auxiliary]`.
      x_test: held-out records `[test, ...]`.
      y_test: their labels `[test]`.
      key: everything random in this member.
    """

    x: Array
    y: Array
    positives: Array
    behavior: Behavior
    prop: Property
    x_auxiliary: Array
    y_auxiliary: Array
    x_test: Array
    y_test: Array
    key: Array


@once
def _load(name: str, data_dir: str | None) -> Dataset:
    return load(name, data_dir)


def normalised(x: np.ndarray) -> np.ndarray:
    """Pixels as the authors' code has them."""
    return (x - 0.1307) / 0.3081 if x.shape[-1] == 1 else (x - 0.5) / 0.5


def draw(data: Dataset, cell: Cell, seed: int) -> Member:
    """A cell's member for a seed.

    Raises:
      ValueError: if the source has too few records.
    """
    rng = np.random.default_rng(seed)
    needed = cell["auxiliary"] + cell["clients"] * cell["records"] + TEST_RECORDS + 1
    if needed > len(data):
        raise ValueError(
            f"clients={cell['clients']} x records={cell['records']} and auxiliary={cell['auxiliary']} exceed {data.name}"
        )
    order = rng.permutation(len(data))
    auxiliary, order = order[: cell["auxiliary"]], order[cell["auxiliary"] :]
    parts = order[: cell["clients"] * cell["records"]].reshape(cell["clients"], -1).copy()
    test = order[parts.size : parts.size + TEST_RECORDS]
    positives = np.isin(
        np.arange(cell["clients"]), rng.permutation(cell["clients"])[: cell["positives"]]
    )
    target = None
    if cell["property"] == "membership":
        shared = parts[np.flatnonzero(positives)[0], 0]
        parts[positives, 0] = shared
        target = jnp.asarray(normalised(data.x[shared])), jnp.asarray(data.y[shared])

    def held(rows: np.ndarray) -> tuple[Array, Array]:
        return jnp.asarray(normalised(data.x[rows])), jnp.asarray(data.y[rows])

    theirs, behavior = positives.mean(), BEHAVIORS[cell["property"]]
    prop = jax.tree.map(jnp.asarray, Property(behavior, target, theirs))
    done = (
        dataclasses.replace(behavior, update=cell["factor"])
        if cell["property"] == "inversion"
        else behavior
    )
    x, y = held(parts)
    key = jax.random.key(seed)
    return Member(
        x,
        y,
        jnp.asarray(positives),
        done.among(positives),
        prop,
        *held(auxiliary),
        *held(test),
        key,
    )


@dataclasses.dataclass(frozen=True)
class Train:
    """Trains a member's federation behind secure aggregation. Cells that differ in data or behaviour alone share a program: it
    takes no more of a member than it needs."""

    model: Model
    training: LocalTraining
    rounds: int
    per_round: int

    def __call__(
        self, inputs: tuple[Array, Array, Behavior, Array, Array, Array]
    ) -> tuple[Aggregates, Array]:
        """All that the server sees, and the accuracy of the final model on held-out records; from a member's `x`, `y`,
        `behavior`, `x_test`, `y_test` and `key`."""
        x, y, behavior, x_test, y_test, key = inputs
        federated = Federated(
            self.rounds,
            self.training,
            behavior=behavior,
            clients_per_round=self.per_round,
            record=Record(clients=(), sums=True),
        )
        init_key, train_key, _ = jax.random.split(key, 3)
        clients = ClientData(x, y, jnp.ones(y.shape, bool), jnp.arange(len(y)))
        run = simulate(self.model, self.model.init(init_key), clients, train_key, federated)
        return run.aggregates(), evaluate(
            self.model, run.params, one_client(x_test, y_test)
        ).accuracy


@dataclasses.dataclass(frozen=True)
class Detect:
    """Trains the detectors of a member's rounds, likewise."""

    model: Model
    training: LocalTraining
    records: int
    settings: DetectorTraining

    def __call__(self, inputs: tuple[Any, Array, Array, Property, Array]) -> Detectors:
        """Of the models of all rounds, and a member's `x_auxiliary`, `y_auxiliary`, `prop` and `key`."""
        received, x, y, prop, key = inputs
        return train_detectors(
            self.model,
            received,
            x,
            y,
            prop,
            jax.random.split(key, 3)[2],
            training=self.training,
            records=self.records,
            settings=self.settings,
        )


def recipe(cell: Cell) -> LocalTraining:
    """What honest clients do in a round."""
    training = LocalTraining(cell["learning_rate"], cell["epochs"], cell["batch_size"])
    return (
        dataclasses.replace(training, optimizer=clipped_sgd(cell["clip"]))
        if cell["clip"]
        else training
    )


_observe = jax.jit(jax.vmap(observe))


@dataclasses.dataclass(frozen=True)
class Decode:
    """One method for several numbers of seen rounds.

    Attributes:
      method: its name.
      seen: the numbers of seen rounds.
    """

    method: str
    seen: tuple[int, ...]

    def __call__(self, inputs: tuple[Observations, Array, Array]) -> Array:
        """Scores `[prefixes, clients]`, from what was observed, the rounds' weights 1 - OVL, and the member's key."""
        observations, weights, key = inputs
        seen, key = jnp.asarray(self.seen), jax.random.fold_in(key, 7)
        decoders: dict[str, Callable[[], Array]] = {
            "gibbs": lambda: gibbs(observations, seen, key),
            "box": lambda: box(observations, seen),
            "prolin": lambda: prolin(observations, seen, weights, key).p,
            "prolin_paper": lambda: prolin(observations, seen, weights, key, Prolin("paper")).p,
            "ridge": lambda: ridge(observations, seen, weights),
            "ols": lambda: least_squares(observations, seen),
            "baseline": lambda: gradient_votes(observations, seen),
        }
        return decoders[self.method]()


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature: all seeds in one batch, each method once for all numbers of seen rounds."""
    cell, seeds = jobs[0].cell, list(dict.fromkeys(job.seed for job in jobs))
    data = _load(cell.dataset, data_dir)
    model = lenet("mnist" if data.x.shape[-1] == 1 else "cifar10")
    members = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(draw(data, cell, seed) for seed in seeds)
    )
    m, training = members, recipe(cell)
    trained = run_members(
        Train(model, training, cell["rounds"], cell["per_round"]),
        (m.x, m.y, m.behavior, m.x_test, m.y_test, m.key),
    )
    aggregates, test_accuracy = trained.results
    names = ("pairs", "gradients", "averaged", "every")
    settings = DetectorTraining(cell["detector"], **{name: cell[name] for name in names})
    detected = run_members(
        Detect(model, training, cell["records"], settings),
        (aggregates.received, m.x_auxiliary, m.y_auxiliary, m.prop, m.key),
    )
    detectors, observations = detected.results, _observe(aggregates, detected.results)
    laws = zip(np.asarray(detectors.mean), np.asarray(detectors.variance), strict=True)
    overlaps = np.stack([overlap(mean, variance) for mean, variance in laws])
    inputs = observations, jnp.asarray(1 - overlaps, jnp.float32), members.key
    seen = tuple(sorted({t for job in jobs for t in _rounds(job.cell)}))
    found: dict[str, tuple[list[dict[int, Scores]], Compiled | None]] = {}

    def decode(method: str) -> tuple[list[dict[int, Scores]], Compiled | None]:
        if method not in found:
            # Two CPU devices that take singular values of a batch at once wait for each other for good (jaxlib 0.10).
            with jax.default_device(jax.local_devices()[0]):
                done = run_members(Decode(method, seen), inputs)
            found[method] = (
                _ranked(method, np.asarray(done.results), np.asarray(members.positives), seen),
                done,
            )
        return found[method]

    for method in dict.fromkeys(job.method for job in jobs):
        wanted = [job for job in jobs if job.method == method]
        done = None
        if method == "detector":
            scores = [
                {t: _detector(detectors, overlaps, s, t) for t in seen} for s in range(len(seeds))
            ]
        elif method == "oracle":
            ours = [decode(name)[0] for name in OURS]
            scores = [
                {t: max((o[s][t] for o in ours), key=lambda r: r["f1"]) for t in seen}
                for s in range(len(seeds))
            ]
        else:
            scores, done = decode(method)
        yield [
            Outcome(
                job,
                metric,
                value,
                selection="oracle" if method == "oracle" else "none",
                test_accuracy=float(test_accuracy[s]),
                compile_s=done and done.compile_s,
                run_s=done and done.run_s,
                device=jax.devices()[0].device_kind,
                dtype="float32",
                note=data.note,
                detail={
                    "simulation_s": round(trained.run_s, 1),
                    "detectors_s": round(detected.run_s, 1),
                    "correlation": round(float(detectors.correlation[s, -1]), 3),
                },
            )
            for job in wanted
            for s in [seeds.index(job.seed)]
            for metric, value in _averaged([scores[s][t] for t in _rounds(job.cell)]).items()
        ]


def _rounds(cell: Cell) -> tuple[int, ...]:
    """Numbers of seen rounds that a cell's answer is made of."""
    if cell["seen"] != "mean":
        return (cell["seen"],)
    return tuple(round(t * cell["rounds"] / 300) for t in MEAN_OVER)


def _averaged(scores: Sequence[Scores]) -> Scores:
    """Mean over numbers of seen rounds; without the Brier score of what is no probability."""
    means = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    return {name: value for name, value in means.items() if name != "brier" or np.isfinite(value)}


def _ranked(
    method: str, scores: np.ndarray, positives: np.ndarray, seen: Sequence[int]
) -> list[dict[int, Scores]]:
    """How well scores `[seeds, prefixes, clients]` rank, by seed and number of seen rounds."""
    threshold = THRESHOLDS.get(method, 0.5)
    return [
        {t: ranking(row, truth, threshold)._asdict() for t, row in zip(seen, rows, strict=True)}
        for rows, truth in zip(scores, positives, strict=True)
    ]


def _detector(detectors: Detectors, overlaps: np.ndarray, s: int, seen: int) -> Scores:
    """Of a seed's detector of the last seen round."""
    mean, variance = (np.asarray(a[s, seen - 1]) for a in (detectors.mean, detectors.variance))
    return {
        "separation": float((mean[1] - mean[0]) / np.sqrt(variance.mean())),
        "overlap": float(overlaps[s, seen - 1]),
        "norm": float(jnp.linalg.norm(detectors.direction[s, seen - 1])),
    }
