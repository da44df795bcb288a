"""How answers are scored: one federation, every attacked client once per method."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.harness.clock import Clock
from benchmarks.harness.experiment import Experiment, Method
from benchmarks.harness.intervals import equivalent_count
from benchmarks.harness.jobs import Job, Outcome, by_method
from benchmarks.measurements.linear_clients.client import Answer, Client, LinearSettings
from benchmarks.measurements.linear_clients.methods import METHODS, METRICS
from benchmarks.scenarios.federations import federate
from benchmarks.scenarios.nulls import null_of


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: one federation, every attacked client once per method. What
    methods share is in the time of the first that needs it."""
    cell, seed = jobs[0].cell, jobs[0].seed
    with jax.enable_x64(True):
        federation = federate(cell.dataset, cell.settings, data_dir, seed)
        clients = [Client(federation, cell.settings, c) for c in range(len(federation.messages))]
    for method, attack, wanted in by_method(jobs):
        clock = Clock()
        answers = [client.answer(method, attack) for client in clients]
        pairs = zip(answers, clients, strict=True)
        scores = [_scores(method, answer, client, clients) for answer, client in pairs]
        spent = clock.read()
        if method.observes:
            nulls = [_null(method, attack, client) for client in clients]
            scores = [each | null for each, null in zip(scores, nulls, strict=True)]
        shared: dict[str, Any] = {
            "run_s": spent.run_s / len(clients),
            "compile_s": spent.compile_s,
            "dtype": "float64" if method.x64 else "float32",
            "note": "; ".join(filter(None, (federation.data.note, _reasons(answers)))),
        }
        yield [outcome for job in wanted for outcome in _outcomes(job, scores, clients, shared)]


def _reasons(answers: Sequence[Answer]) -> str:
    """Note of how many clients have an optimum that messages alone did not tell, and why of the
    first."""
    untold = [answer.reason for answer in answers if answer.reason]
    if not untold:
        return ""
    of = f"{len(untold)} of {len(answers)} clients"
    return f"public columns used for {of}: from messages alone {untold[0]}"


def _scores(
    method: Method, answer: Answer, client: Client, clients: Sequence[Client]
) -> dict[str, float]:
    scores = {"attribute_accuracy": _right(answer, client)}
    if answer.proven is None or answer.model is None:
        return scores
    scores["bound"] = float(np.maximum(answer.proven.bound, 0.0))
    weight = float(answer.model[client.view.attribute])
    scores["ratio"] = answer.proven.mse / max(weight**2, 1e-24)
    if not method.ceiling:
        # Where columns depend on each other the optimum is a set: predictions are compared.
        gap = client.design @ (answer.model - client.optimum)
        whole = np.linalg.norm(client.design @ client.optimum)
        scores["optimum_error"] = float(np.linalg.norm(gap) / whole)
        return scores
    others = [other.optimum for other in clients if other is not client]
    gaps = [np.linalg.norm(client.optimum - other) / np.linalg.norm(other) for other in others]
    scores["heterogeneity"] = float(np.mean(gaps)) if gaps else 0.0
    return scores


def _null(method: Method, attack: Any, client: Client) -> dict[str, float]:
    """What the same attack reads of a client out of another's messages."""
    another = client.of_another
    if another is None:
        return {}
    return {"null": null_of(lambda: _right(another.answer(method, attack), client))}


def _right(answer: Answer, client: Client) -> float:
    failed = (np.asarray(answer.values) < 0).any()
    return np.nan if failed else float((answer.values == client.truth).mean())


def _outcomes(
    job: Job, scores: Sequence[dict[str, float]], clients: Sequence[Client], shared: dict[str, Any]
) -> Iterator[Outcome]:
    wanted = job.cell.settings.client
    chosen = range(len(clients)) if wanted == "mean" else [int(wanted)]
    scored = {"scored_records": equivalent_count([len(clients[c].truth) for c in chosen])}
    means = {m: float(np.mean([scores[c][m] for c in chosen])) for m in scores[chosen[0]]}
    null = means.pop("null", math.nan)
    for metric, value in means.items():
        guesses: dict[str, Any] = {}
        if metric == "attribute_accuracy":
            imputed = [g for c in chosen if (g := clients[c].imputed) is not None]
            guesses["majority"] = float(np.mean([clients[c].majority for c in chosen]))
            guesses["imputation"] = float(np.mean(imputed)) if imputed else None
            guesses["null"] = null if math.isfinite(null) else None
        yield Outcome(job, metric, value, detail=scored, **guesses, **shared)


EXPERIMENT = Experiment(
    "linear_clients", LinearSettings, METHODS, METRICS, run, asked=("client",), batched=False
)
