"""How much of the epsilon that an accountant promises do a client's messages show?

A method here is `run(view, settings) -> MeasuredEpsilon`: it is given what an auditor has
(`benchmarks.scenarios.canaries.View`). `promised` is the accountant's epsilon, which is no
measurement.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from attacks import MeasuredEpsilon, Status, measure_epsilon
from attacks.fit import STATES
from benchmarks.harness.clock import Clock
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome
from benchmarks.scenarios.canaries import CanarySettings, View, draw


def _measured(view: View, settings: None) -> MeasuredEpsilon:
    return measure_epsilon(
        view.model, view.messages, view.data, view.training, view.key, delta=view.delta
    )


def _promised(view: View, settings: None) -> MeasuredEpsilon:
    epsilon, unknown = jnp.asarray(view.promised), jnp.asarray(np.nan)
    return MeasuredEpsilon(unknown, epsilon, unknown, jnp.zeros(0), jnp.asarray(Status.OK))


METHODS = (
    Method("promised", "the accountant's epsilon, an upper bound", _promised, observes=False),
    Method("canaries", "likelihood ratios of canaries in random directions", _measured),
)
METRICS = (
    Metric("epsilon", "of the mean score, without allowance for chance"),
    Metric("epsilon_bound", "exceeded at 95 % confidence; 0 if nothing is shown"),
)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: one client, each method once."""
    cell, seed = jobs[0].cell, jobs[0].seed
    audited = draw(cell.dataset, cell.settings, data_dir, seed)
    for job in jobs:
        clock = Clock()
        answer: MeasuredEpsilon = job.how.run(audited.view, job.method_settings)
        spent = clock.read()
        if answer.status == Status.FAILED:
            yield [Outcome(job, m.name, None, status="failed") for m in METRICS]
            continue
        shared: dict[str, Any] = {
            **spent._asdict(),
            "dtype": "float32",
            "status": STATES[Status(int(answer.status))],
            "note": audited.note,
            "detail": {"canaries": len(answer.scores)},
        }
        values = {"epsilon": float(answer.estimate), "epsilon_bound": float(answer.lower)}
        yield [Outcome(job, name, v, **shared) for name, v in values.items() if np.isfinite(v)]


EXPERIMENT = Experiment("canaries", CanarySettings, METHODS, METRICS, run, batched=False)
