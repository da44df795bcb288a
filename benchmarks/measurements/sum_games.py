"""How well does secure aggregation hide on which of two data sets a client trained? (Ngo et al.
2024; membership inference, MIA)

A method here is `run(view, settings) -> SumsTold` of all rounds: it is given what a server has
(`benchmarks.scenarios.sum_games.View`), and not which data set is the participant's.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from scipy import stats

from attacks import Status, SumsTold, SumTest, distinguish_in_sums
from benchmarks.harness.clock import Clock
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome
from benchmarks.scenarios.sum_games import SumGamesSettings, View, draw
from jaxfl.accounting import gaussian_epsilon

DELTA, CONFIDENCE = 1e-5, 0.95


def _told(view: View, settings: SumTest) -> SumsTold:
    return distinguish_in_sums(
        *(view.model, view.aggregates, view.candidates, view.others, view.key),
        training=view.training,
        settings=settings,
    )


METHODS = (
    Method(
        "likelihood_ratio",
        "likelihoods of both, the others' updates being noise of their covariance",
        _told,
        SumTest(),
    ),
    Method(
        "projection",
        "the same, as if the others' numbers varied alike and independently",
        _told,
        SumTest(ridge=1e6),
    ),
)
METRICS = (
    Metric("distinguished", "rounds in which the right data set is the likelier", True, 0.5),
    Metric("distance", "of both, in deviations of the sum's noise: mu, the median round's"),
    Metric("epsilon_if_normal", "of a Gaussian mechanism of that mu, at delta = 1e-5; no bound"),
    Metric("epsilon_shown", "exceeded at 95 % confidence, if rounds are independent"),
)


def shown(right: int, rounds: int) -> float:
    """Epsilon that is exceeded, at 95 % confidence, if so many rounds are told rightly (as Ngo et
    al. 2024; the interval is Clopper and Pearson's). The two inequalities of
    differential privacy, added, say of the mean error `p` of both sides that
    `p >= (1 - delta) / (1 + e^epsilon)`.

    It is taken for granted that rounds are independent. A participant has taken part before, so
    that what bounds it is what all rounds so far show together.
    """
    wrong = rounds - right
    most = float(stats.beta.ppf(CONFIDENCE, wrong + 1, right)) if right else 1.0
    return max(0.0, math.log(max((1 - DELTA - most) / most, 1e-300)))


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: one federation, each method once."""
    cell, seed = jobs[0].cell, jobs[0].seed
    games = draw(cell.dataset, cell.settings, data_dir, seed)
    for job in jobs:
        clock = Clock()
        told = jax.block_until_ready(job.how.run(games.view, job.method_settings))
        shared: dict[str, Any] = {
            **clock.read()._asdict(),
            "dtype": "float32",
            "note": games.note,
        }
        states = np.asarray(told.status)
        misfits = int((states == Status.MISFIT).sum())
        shared["detail"] = {"scored_records": len(states), "misfit_rounds": misfits}
        if (states == Status.FAILED).any():
            yield [Outcome(job, m.name, None, status="failed") for m in METRICS]
            continue
        if misfits > len(states) / 2:
            shared["status"] = "misfit"
        right = (np.asarray(told.log_ratio) > 0) == games.second
        mu = float(np.median(told.mu))
        values = {
            "distinguished": float(right.mean()),
            "distance": mu,
            "epsilon_if_normal": gaussian_epsilon(mu, delta=DELTA),
            "epsilon_shown": shown(int(right.sum()), len(right)),
        }
        yield [
            Outcome(job, name, v, chance=EXPERIMENT.metric(name).chance, **shared)
            for name, v in values.items()
        ]


EXPERIMENT = Experiment("sum_games", SumGamesSettings, METHODS, METRICS, run, batched=False)
