"""Which clients have a property, through secure aggregation (paper 002).

A cell's settings:
  property: "membership" (of one record in the positive clients' data), "inversion" (they send their update inverted), "ascent"
    (they climb the loss) or "free_rider" (they send nothing).
  clients, positives, per_round: number of clients, of those with the property, of participants in a round.
  records, batch_size, epochs, learning_rate: of every client's training. `clip`: largest norm of a step's gradient, 0 for any.
  factor: what a positive client of "inversion" multiplies its update by; detectors are trained for -1.
  cohorts: 1 if participants are drawn anew in every round; otherwise clients take part in fixed groups of `per_round`.
  auxiliary: records that the adversary has.
  detector: "first_order", "lda" or "logistic"; `pairs`, `gradients`: shadow updates with and without the property, and record
    gradients, per round.
  rounds: communication rounds.
  seen: rounds that the adversary has seen, or "mean": the mean of the metric over the rounds of `MEAN_OVER`.

Methods: `gibbs` (the default, named in advance) and `box`; the paper's `prolin` (by the authors' code, whose curves are
published), `prolin_paper` (by its text), `ridge` (its REG), `ols`, `baseline`; `oracle`, the best F1 of our decoders; and
`detector`, which reports the detectors themselves. Metrics: `f1` at a threshold fixed in advance, `auc`, `average_precision`,
`brier`; of detectors `separation` (of the class means, in deviations), `overlap` and `norm`. `run_s` is of a method for all
numbers of seen rounds, compilation included.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks.detectors import Detectors, Property, Training, observe, overlap, train_detectors
from attacks.disaggregation import Observations, gradient_votes, least_squares, ridge
from attacks.metrics import Ranking, ranking
from attacks.property_inference import Gibbs, Prolin, box, gibbs, prolin
from benchmarks.jobs import Cell, Job, Outcome
from jaxfl import Behavior, Federated, LocalTraining, Record, clipped_sgd, evaluate, lenet, one_client, simulate, stack_clients
from jaxfl.datasets import Dataset, load

Array = jax.Array
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


@dataclasses.dataclass(frozen=True)
class Attacked:
    """One federation behind secure aggregation, and what its detectors make of it.

    Attributes:
      observations: all that decoders use.
      detectors: the detectors.
      prop: the property, and how frequent the adversary takes it to be: as often as it is.
      positives: who has the property `[clients]`.
      weights: of the rounds `[rounds]`, 1 - OVL.
      test_accuracy: of the final model.
      seconds: of the simulation and of the detectors, compilation included.
      note: what a reader must know of the data.
    """

    observations: Observations
    detectors: Detectors
    prop: Property
    positives: np.ndarray
    weights: Array
    test_accuracy: float
    seconds: tuple[float, float]
    note: str


@functools.lru_cache(maxsize=1)
def _load(name: str, data_dir: str | None) -> Dataset:
    return load(name, data_dir)


def normalised(x: np.ndarray) -> np.ndarray:
    """Pixels as the authors' code has them."""
    return (x - 0.1307) / 0.3081 if x.shape[-1] == 1 else (x - 0.5) / 0.5


def federate(cell: Cell, data_dir: str | None, seed: int) -> Attacked:
    """Train a cell's federation, and its detectors.

    Raises:
      ValueError: if the source has too few records.
    """
    data, rng = _load(cell.dataset, data_dir), np.random.default_rng(seed)
    needed = cell["auxiliary"] + cell["clients"] * cell["records"] + TEST_RECORDS + 1
    if needed > len(data):
        raise ValueError(
            f"clients={cell['clients']} x records={cell['records']} and auxiliary={cell['auxiliary']} exceed {data.name}"
        )
    order = rng.permutation(len(data))
    auxiliary, order = order[: cell["auxiliary"]], order[cell["auxiliary"] :]
    parts = order[: cell["clients"] * cell["records"]].reshape(cell["clients"], -1).copy()
    test = order[parts.size : parts.size + TEST_RECORDS]
    positives = np.isin(np.arange(cell["clients"]), rng.permutation(cell["clients"])[: cell["positives"]])
    behavior = BEHAVIORS[cell["property"]]
    target = None
    if cell["property"] == "membership":
        owner = np.flatnonzero(positives)[0]
        parts[positives, 0] = parts[owner, 0]
        target = jnp.asarray(normalised(data.x[parts[owner, 0]])), jnp.asarray(data.y[parts[owner, 0]])
    done = Behavior(update=cell["factor"]) if cell["property"] == "inversion" else behavior
    training = LocalTraining(cell["learning_rate"], cell["epochs"], cell["batch_size"])
    if cell["clip"]:
        training = dataclasses.replace(training, optimizer=clipped_sgd(cell["clip"]))
    model = lenet("mnist" if data.x.shape[-1] == 1 else "cifar10")
    init_key, train_key, shadow_key = jax.random.split(jax.random.key(seed), 3)
    clients = stack_clients([(normalised(data.x[rows]), data.y[rows]) for rows in parts])
    began = time.perf_counter()
    federated = Federated(
        cell["rounds"],
        training,
        behavior=done.among(positives),
        clients_per_round=cell["per_round"],
        record=Record(clients=(), sums=True),
    )
    run = simulate(model, model.init(init_key), clients, train_key, federated)
    jax.block_until_ready(run.params)
    simulated = time.perf_counter() - began
    began = time.perf_counter()
    seen = run.aggregates()
    prop = Property(behavior, target, cell["positives"] / cell["clients"])
    detectors = train_detectors(
        model,
        seen.received,
        jnp.asarray(normalised(data.x[auxiliary])),
        jnp.asarray(data.y[auxiliary]),
        prop,
        shadow_key,
        training=training,
        records=cell["records"],
        settings=Training(cell["detector"], cell["pairs"], gradients=cell["gradients"]),
    )
    jax.block_until_ready(detectors)
    detected = time.perf_counter() - began
    tested = evaluate(model, run.params, one_client(normalised(data.x[test]), data.y[test]))
    weights = jnp.asarray(1 - overlap(detectors.mean, detectors.variance), jnp.float32)
    return Attacked(
        observe(seen, detectors),
        detectors,
        prop,
        positives,
        weights,
        float(tested.accuracy),
        (simulated, detected),
        data.note,
    )


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature: one federation per seed, each method once for all numbers of seen rounds."""
    for seed in dict.fromkeys(job.seed for job in jobs):
        own = [job for job in jobs if job.seed == seed]
        cell = own[0].cell
        attacked = federate(cell, data_dir, seed)
        found: dict[str, dict[int, Ranking]] = {}
        seen = sorted({t for job in own for t in _rounds(job.cell)})
        for method in dict.fromkeys(job.method for job in own):
            wanted = [job for job in own if job.method == method]
            began = time.perf_counter()
            if method == "detector":
                scores = {t: _detector(attacked, t) for t in seen}
            elif method == "oracle":
                for name in OURS:
                    if name not in found:
                        found[name] = _decode(name, attacked, seed, seen)
                scores = {t: max((found[name][t] for name in OURS), key=lambda r: r.f1)._asdict() for t in seen}
            else:
                if method not in found:
                    found[method] = _decode(method, attacked, seed, seen)
                scores = {t: r._asdict() for t, r in found[method].items()}
            shared = {
                "run_s": time.perf_counter() - began,
                "selection": "oracle" if method == "oracle" else "none",
                "test_accuracy": attacked.test_accuracy,
                "device": jax.devices()[0].device_kind,
                "dtype": "float32",
                "note": attacked.note,
                "detail": {
                    "simulation_s": round(attacked.seconds[0], 1),
                    "detectors_s": round(attacked.seconds[1], 1),
                    "correlation": round(float(attacked.detectors.correlation), 3),
                },
            }
            yield [
                Outcome(job, metric, value, **shared)
                for job in wanted
                for metric, value in _averaged([scores[t] for t in _rounds(job.cell)]).items()
            ]


def _rounds(cell: Cell) -> tuple[int, ...]:
    """Numbers of seen rounds that a cell's answer is made of."""
    if cell["seen"] != "mean":
        return (cell["seen"],)
    return tuple(round(t * cell["rounds"] / 300) for t in MEAN_OVER)


def _averaged(scores: Sequence[dict[str, float]]) -> dict[str, float | None]:
    means = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    return {name: value for name, value in means.items() if np.isfinite(value)}


def _decode(method: str, attacked: Attacked, seed: int, seen: Sequence[int]) -> dict[int, Ranking]:
    key = jax.random.fold_in(jax.random.key(seed), 7)
    rate = attacked.prop.rate
    decoders: dict[str, Callable[[Observations, Array], Array]] = {
        "gibbs": lambda o, t: gibbs(o, t, key, Gibbs(rate=rate)),
        "box": lambda o, t: box(o, t, rate),
        "prolin": lambda o, t: prolin(o, t, attacked.weights, key).p,
        "prolin_paper": lambda o, t: prolin(o, t, attacked.weights, key, Prolin("paper")).p,
        "ridge": lambda o, t: ridge(o, t, attacked.weights),
        "ols": least_squares,
        "baseline": gradient_votes,
    }
    scores = np.asarray(decoders[method](attacked.observations, jnp.asarray(seen)))
    threshold = THRESHOLDS.get(method, 0.5)
    return {t: ranking(row, attacked.positives, threshold) for t, row in zip(seen, scores, strict=True)}


def _detector(attacked: Attacked, seen: int) -> dict[str, float]:
    """Of the detector of the last seen round."""
    mean, variance = (np.asarray(a[seen - 1]) for a in (attacked.detectors.mean, attacked.detectors.variance))
    return {
        "separation": float((mean[1] - mean[0]) / np.sqrt(variance.mean())),
        "overlap": float(1 - attacked.weights[seen - 1]),
        "norm": float(jnp.linalg.norm(attacked.detectors.direction[seen - 1])),
    }
