"""The experiment of Driouich 2022: a binary attribute of linear least-squares clients, from models and from moments.

Settings are those of `benchmarks.federations` with `model="linear"`, full batches and 64-bit arithmetic, and
  client: number of the client reported, or "mean" over the attacked ones.
  grid: sets of observed rounds {0, S, 2S, ..., R} among which `cos` and `l2_lbfgs` choose by their own objective (Appendix
    A.2), as "R:S" joined by "+".
  cos_steps, evaluations: Adam iterations of `cos`, budget of `l2_lbfgs`.

Methods: `majority`; `l2_lbfgs` and `cos` from gradients; Algorithm 3, by ranks, on the model that is `global`, `last`
(returned), `decoded` (from messages alone where these identify it, else from public columns too), `decoded_alone` (from
messages alone: as near as they vouch for), or the true `optimum`; `threshold`, the decoded one by Driouich 2023's rule; and
what the moments tell without any model, `moments_box` and `moments_logistic`. Moments come from the messages and the public
columns.
Metrics: `attribute_accuracy`; `bound`, which it provably keeps; `ratio`, MSE / theta_s^2 (Figure 3); `optimum_error`, of a
model's predictions, relative to the optimum's, so that its square goes with the loss above the optimum's;
`heterogeneity`, mean relative distance of the true optimum from the other clients' (Figure 2).
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    CosMatching,
    InferredAttribute,
    L2Matching,
    Moments,
    Virtual,
    cos_matching,
    infer_binary_attribute,
    infer_by_logistic,
    infer_in_box,
    l2_lbfgs,
    linear_parameters,
    local_optimum,
    structured_moments,
)
from benchmarks.federations import Federation, federate
from benchmarks.jobs import Cell, Job, Outcome
from benchmarks.local_model_scores import accuracy_of, equivalent_count
from jaxfl import Messages

Score = dict[str, float]
METHODS = (
    *(
        "majority",
        "l2_lbfgs",
        "cos",
        "global",
        "last",
        "decoded",
        "decoded_alone",
        "optimum",
        "threshold",
    ),
    *("moments_box", "moments_logistic"),
)


def measured(cell: Cell) -> Any:
    """What is run for a cell, whatever its table and the client it reports."""
    return cell.dataset, tuple(pair for pair in cell.settings if pair[0] != "client")


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature and seed: one federation, every attacked client once per method."""
    cell, seed = jobs[0].cell, jobs[0].seed
    with jax.enable_x64(True):
        federation = federate(cell, data_dir, seed)
    clients = [_Client(federation, c) for c in range(len(federation.messages))]
    for method in dict.fromkeys(job.method for job in jobs):
        began = time.perf_counter()
        scores = [_score(method, client, cell, clients) for client in clients]
        shared = {
            "run_s": (time.perf_counter() - began) / len(clients),
            "device": jax.devices()[0].device_kind,
            "dtype": "float32" if method in ("cos", "l2_lbfgs") else "float64",
            "note": "; ".join(
                filter(
                    None, (federation.data.note, _reasons(clients) if method == "decoded" else "")
                )
            ),
            "chance": 0.5,
        }
        yield [
            outcome
            for job in jobs
            if job.method == method
            for outcome in _outcomes(job, scores, clients, shared)
        ]


class _Client:
    """One client: what is public of it, its moments, and the truth, for scoring."""

    def __init__(self, federation: Federation, c: int):
        self.federation, self.c = federation, c
        self.known, self.truth = federation.knowledge(c)
        self.messages: Messages = federation.messages[c]
        column = federation.data.column(federation.data.sensitive or 0)
        self.attribute = column.positions[0]
        rows = federation.parts[c]
        self.x, self.y = (
            federation.data.x[rows].astype(float),
            federation.data.y[rows].astype(float),
        )
        self.public = self.x.copy()
        self.public[:, self.attribute] = np.nan
        self.moments: Moments = structured_moments(
            self.messages,
            self.public,
            self.y,
            self.attribute,
            float(federation.training[c].learning_rate),
        )
        design = np.c_[self.x, np.ones(len(self.x))]
        self.optimum = np.linalg.lstsq(design, self.y, rcond=None)[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            generic = local_optimum(self.messages)
        self.reason, self.decoded_alone = generic.reason, generic.params
        # Without an identified optimum the public columns decide; they are known by the attack's premise.
        self.decoded = generic.params if generic.identifiable else self.moments.optimum

    @property
    def majority(self) -> float:
        """Rate of the more frequent value."""
        return float(max(self.truth.mean(), 1 - self.truth.mean()))


def _reasons(clients: Sequence[_Client]) -> str:
    """Of how many clients messages alone do not tell the optimum, and why of the first."""
    found = [client.reason for client in clients if client.reason]
    return (
        f"public columns used for {len(found)} of {len(clients)} clients: from messages alone {found[0]}"
        if found
        else ""
    )


def _score(method: str, client: _Client, cell: Cell, clients: Sequence[_Client]) -> Score:
    found = _infer(method, client, cell)
    if isinstance(found, np.ndarray):
        return {"attribute_accuracy": accuracy_of(found, client.truth)}
    scores = {"attribute_accuracy": accuracy_of(found.values, client.truth)}
    if not method.startswith(
        "moments"
    ):  # of whose answers nothing is proven; any other's that tells no bound is a failed row
        scores["bound"] = float(np.maximum(found.bound, 0.0))
        weight = _model(method, client)[client.attribute]
        scores["ratio"] = found.mse / max(float(weight) ** 2, 1e-24)
    if method in ("global", "last", "decoded", "decoded_alone", "threshold"):
        design = np.c_[client.x, np.ones(len(client.x))]
        # Where columns depend on each other the optimum is a set: predictions are compared.
        gap = design @ (_model(method, client) - client.optimum)
        scores["optimum_error"] = float(
            np.linalg.norm(gap) / np.linalg.norm(design @ client.optimum)
        )
    if method == "optimum":
        others = [other.optimum for other in clients if other is not client]
        gaps = [np.linalg.norm(client.optimum - other) / np.linalg.norm(other) for other in others]
        scores["heterogeneity"] = float(np.mean(gaps)) if gaps else 0.0
    return scores


def _model(method: str, client: _Client) -> np.ndarray:
    """The linear model that a method looks at."""
    if method == "global":
        return linear_parameters(jax.tree.map(lambda a: a[None], client.federation.final))[0]
    if method == "last":
        return linear_parameters(client.messages.returned)[-1]
    if method == "decoded_alone":
        return client.decoded_alone
    return client.optimum if method == "optimum" else client.decoded


def _infer(method: str, client: _Client, cell: Cell) -> InferredAttribute | np.ndarray:
    public = client.public, client.y, client.attribute, client.moments
    if method == "majority":
        return np.full(len(client.truth), int(client.known.columns[0].prior[1] > 0.5))  # type: ignore[index]
    if method in ("cos", "l2_lbfgs"):
        return _from_gradients(method, client, cell)
    if method == "moments_logistic":
        return infer_by_logistic(*public)
    if method == "moments_box":
        return infer_in_box(*public)
    return infer_binary_attribute(
        *public,
        params=_model(method, client),
        rule="threshold" if method == "threshold" else "rank",
    )


def _from_gradients(method: str, client: _Client, cell: Cell) -> np.ndarray:
    """Among the grid's sets of rounds, the answer of least objective."""
    held = np.asarray(client.messages.rounds).tolist()
    virtual = Virtual(training=client.federation.training[client.c])
    messages = Messages(
        _single(client.messages.received),
        _single(client.messages.returned),
        jnp.asarray(client.messages.rounds, jnp.int32),
    )
    known = _single(client.known)
    key = jax.random.fold_in(client.federation.key, client.c)
    answers = []
    for part in str(cell["grid"]).split("+"):
        last, step = map(int, part.split(":"))
        seen = messages.select(
            [t for t in range(0, min(last, cell["rounds"] - 1) + 1, step) if t in held]
        )
        if method == "cos":
            settings = CosMatching(steps=cell["cos_steps"], virtual=virtual)
            answers.append(
                cos_matching(client.federation.model, seen, known, key, settings=settings)
            )
        else:
            rival = L2Matching(cell["evaluations"], virtual)
            answers.append(l2_lbfgs(client.federation.model, seen, known, key, settings=rival))
    best = min(answers, key=lambda answer: float(answer.objective))
    return np.asarray(best.values[0])


def _single(tree: Any) -> Any:
    """In 32 bits."""

    def cast(a: Any) -> jax.Array:
        return jnp.asarray(a, jnp.float32 if jnp.issubdtype(a.dtype, jnp.floating) else jnp.int32)

    return jax.tree.map(cast, tree)


def _outcomes(
    job: Job, scores: Sequence[Score], clients: Sequence[_Client], shared: dict[str, Any]
) -> Iterator[Outcome]:
    wanted = job.cell["client"]
    chosen = range(len(clients)) if wanted == "mean" else [int(wanted)]
    for metric in scores[chosen[0]]:
        value = float(np.mean([scores[c][metric] for c in chosen]))
        majority = (
            float(np.mean([clients[c].majority for c in chosen]))
            if metric == "attribute_accuracy"
            else None
        )
        detail = {"scored_records": equivalent_count([len(clients[c].truth) for c in chosen])}
        yield Outcome(job, metric, value, majority=majority, detail=detail, **shared)
