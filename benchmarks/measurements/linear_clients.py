"""What is a binary attribute of a linear client's records? (Driouich 2022; attribute inference)

A method here is `run(client, settings) -> Answer`: values of the attribute, and where it looks at a
model, that model and what is proven of the answer.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    CosMatching,
    InferredAttribute,
    L2Matching,
    LocalOptimum,
    Moments,
    Reconstruction,
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
from attacks.fit import FitWarning
from benchmarks.harness.clock import Clock
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.intervals import equivalent_count
from benchmarks.harness.jobs import Job, Outcome, by_method
from benchmarks.scenarios.federations import Federation, FederationSettings, federate
from benchmarks.scenarios.imputation import imputed_in
from benchmarks.scenarios.nulls import null_of
from jaxfl import LocalTraining, Messages


@dataclasses.dataclass(frozen=True)
class LinearSettings(FederationSettings):
    """A federation of linear clients that take one full-batch step a round, in 64 bits.

    Attributes:
      client: number of the client reported, or "mean" over the attacked ones.
      grid: sets of observed rounds {0, S, 2S, ..., R}, as "R:S", among which an attack from
        gradients chooses by its own objective (Appendix A.2).
    """

    model: Literal["linear", "mlp"] = "linear"
    hidden: tuple[int, ...] = ()
    training: LocalTraining = LocalTraining(0.01)
    client: int | str = "mean"
    grid: tuple[str, ...] = tuple(f"{r}:{s}" for r in (100, 300, 500, 1000) for s in (10, 30, 50))


class Answer(NamedTuple):
    """What a method says of one client.

    Attributes:
      values: of the attribute `[records]`; -1 if the attack failed.
      model: the linear model it looked at `[features + 1]`, if any.
      proven: what is proven of the answer, if anything.
    """

    values: np.ndarray
    model: np.ndarray | None = None
    proven: InferredAttribute | None = None


class Client:
    """One client: what is public of it, its moments, and the truth, for scoring."""

    def __init__(
        self, federation: Federation, settings: LinearSettings, c: int, heard: int | None = None
    ):
        """Client `c` of a federation; of client `heard` are the messages, where that is another."""
        self.federation, self.settings, self.c = federation, settings, c
        self.known, self.truth = federation.knowledge(c)
        self.messages: Messages = federation.messages[c if heard is None else heard]
        column = federation.data.column(federation.data.sensitive or 0)
        self.attribute = column.positions[0]
        rows = federation.parts[c]
        self.x, self.y = (
            federation.data.x[rows].astype(float),
            federation.data.y[rows].astype(float),
        )
        self.public = self.x.copy()
        self.public[:, self.attribute] = np.nan
        self.design = np.c_[self.x, np.ones(len(self.x))]
        self.optimum = self._optimum_of(c if heard is None else heard)

    def _optimum_of(self, c: int) -> np.ndarray:
        rows, data = self.federation.parts[c], self.federation.data
        design = np.c_[data.x[rows].astype(float), np.ones(len(rows))]
        return np.linalg.lstsq(design, data.y[rows].astype(float), rcond=None)[0]

    @functools.cached_property
    def moments(self) -> Moments:
        """What messages and public columns say of the records' moments."""
        rate = float(self.federation.training[self.c].learning_rate)
        known = self.public, self.y, self.attribute, rate
        return structured_moments(self.messages, *known)

    @functools.cached_property
    def alone(self) -> LocalOptimum:
        """The optimum out of messages alone."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return local_optimum(self.messages)

    @property
    def decoded(self) -> np.ndarray:
        """The optimum: without one that messages identify the public columns decide; the attack's
        premise has them known."""
        return self.alone.params if self.alone.identifiable else self.moments.optimum

    @functools.cached_property
    def of_another(self) -> "Client | None":
        """The same, with another client's messages, of which an attack learns nothing of this one;
        None if nobody else is attacked."""
        count = len(self.federation.messages)
        heard = (self.c + 1) % count
        return Client(self.federation, self.settings, self.c, heard) if count > 1 else None

    @functools.cached_property
    def imputed(self) -> float | None:
        """How much of its attribute is guessed without messages."""
        return imputed_in(self.federation, self.c)

    @property
    def majority(self) -> float:
        """Rate of the more frequent value."""
        return float(max(self.truth.mean(), 1 - self.truth.mean()))

    @property
    def global_model(self) -> np.ndarray:
        """The shared model after the last round."""
        return linear_parameters(jax.tree.map(lambda a: a[None], self.federation.final))[0]

    @property
    def last(self) -> np.ndarray:
        """The model it returned last."""
        return linear_parameters(self.messages.returned)[-1]


def _majority(client: Client, settings: None) -> Answer:
    prior = client.known.columns[0].prior
    return Answer(np.full(len(client.truth), int(prior[1] > 0.5)))  # type: ignore[index]


def _by_model(
    model: Callable[[Client], np.ndarray], rule: Literal["rank", "threshold"] = "rank"
) -> Callable[[Client, None], Answer]:
    """The paper's rule on a model (Driouich 2022, Algorithm 3; "threshold": Driouich 2023)."""

    def run(client: Client, settings: None) -> Answer:
        params, public = model(client), (client.public, client.y, client.attribute, client.moments)
        proven = infer_binary_attribute(*public, params=params, rule=rule)
        return Answer(proven.values, params, proven)

    return run


def _by_moments(infer: Callable[..., Any]) -> Callable[[Client, None], Answer]:
    def run(client: Client, settings: None) -> Answer:
        answer = infer(client.public, client.y, client.attribute, client.moments)
        return Answer(getattr(answer, "values", answer))

    return run


def _from_gradients(
    client: Client, attack: Callable[[Messages, Any, Any], Reconstruction]
) -> Answer:
    """Among the grid's sets of rounds, the answer of least objective; in 32 bits."""
    held = np.asarray(client.messages.rounds).tolist()
    messages = Messages(
        _single(client.messages.received),
        _single(client.messages.returned),
        jnp.asarray(client.messages.rounds, jnp.int32),
    )
    known, key = _single(client.known), jax.random.fold_in(client.federation.key, client.c)
    answers = []
    for part in client.settings.grid:
        last, step = map(int, part.split(":"))
        seen = range(0, min(last, client.settings.rounds - 1) + 1, step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # another client's messages are
            answers.append(attack(messages.select([t for t in seen if t in held]), known, key))
    best = min(answers, key=lambda answer: float(answer.objective))
    return Answer(np.asarray(best.values[0]))


def _cos(client: Client, settings: CosMatching) -> Answer:
    virtual = Virtual(training=client.federation.training[client.c])
    matching, model = dataclasses.replace(settings, virtual=virtual), client.federation.model
    return _from_gradients(
        client, lambda seen, known, key: cos_matching(model, seen, known, key, settings=matching)
    )


def _l2(client: Client, settings: L2Matching) -> Answer:
    virtual = Virtual(training=client.federation.training[client.c])
    matching, model = dataclasses.replace(settings, virtual=virtual), client.federation.model
    return _from_gradients(
        client, lambda seen, known, key: l2_lbfgs(model, seen, known, key, settings=matching)
    )


def _single(tree: Any) -> Any:
    """In 32 bits."""

    def cast(a: Any) -> jax.Array:
        floating = jnp.issubdtype(a.dtype, jnp.floating)
        return jnp.asarray(a, jnp.float32 if floating else jnp.int32)

    return jax.tree.map(cast, tree)


METHODS = (
    Method(
        "majority", "the most frequent value, for every record", _majority, observes=False, x64=True
    ),
    Method(
        "l2_lbfgs",
        "gradient matching in L2 by L-BFGS (DLG)",
        _l2,
        L2Matching(300),
        filled=("virtual",),
        selects=True,
    ),
    Method(
        "cos",
        "cosine gradient matching (Lyu 2021, Algorithm 1)",
        _cos,
        CosMatching(steps=300),
        filled=("virtual",),
        selects=True,
    ),
    *(
        Method(
            name,
            f"Algorithm 3, by ranks, on {about}",
            _by_model(model),
            x64=True,
            ceiling=name == "optimum",
        )
        for name, about, model in (
            ("global", "the shared model", lambda client: client.global_model),
            ("last", "the last returned model", lambda client: client.last),
            (
                "decoded",
                "the optimum out of messages, and of public columns where these do not identify it",
                lambda client: client.decoded,
            ),
            (
                "decoded_alone",
                "what messages alone say of the optimum",
                lambda client: client.alone.params,
            ),
            ("optimum", "the true local optimum", lambda client: client.optimum),
        )
    ),
    Method(
        "threshold",
        "Driouich 2023's rule on the decoded optimum",
        _by_model(lambda client: client.decoded, "threshold"),
        x64=True,
    ),
    Method("moments_box", "what moments tell, in a box", _by_moments(infer_in_box), x64=True),
    Method(
        "moments_logistic",
        "what moments tell, by a logistic",
        _by_moments(infer_by_logistic),
        x64=True,
    ),
)
METRICS = (
    Metric("attribute_accuracy", "records whose attribute was named", True, 0.5),
    Metric("bound", "accuracy that is provably reached", True),
    Metric("ratio", "MSE / theta_s^2 (Figure 3)"),
    Metric(
        "optimum_error",
        "of a model's predictions, relative to the optimum's; its square goes with the loss",
    ),
    Metric(
        "heterogeneity", "mean relative distance of the true optimum from other clients' (Figure 2)"
    ),
)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: one federation, every attacked client once per method. What
    methods share is in the time of the first that needs it."""
    cell, seed = jobs[0].cell, jobs[0].seed
    with jax.enable_x64(True):
        federation = federate(cell.dataset, cell.settings, data_dir, seed)
    clients = [Client(federation, cell.settings, c) for c in range(len(federation.messages))]
    for method, attack, wanted in by_method(jobs):
        clock = Clock()
        scores = [_scores(method, attack, client, clients) for client in clients]
        spent = clock.read()
        if method.observes:
            nulls = [_null(method, attack, client) for client in clients]
            scores = [each | null for each, null in zip(scores, nulls, strict=True)]
        reasons = _reasons(clients) if method.name == "decoded" else ""
        shared: dict[str, Any] = {
            "run_s": spent.run_s / len(clients),
            "compile_s": spent.compile_s,
            "dtype": "float64" if method.x64 else "float32",
            "note": "; ".join(filter(None, (federation.data.note, reasons))),
        }
        yield [outcome for job in wanted for outcome in _outcomes(job, scores, clients, shared)]


def _reasons(clients: Sequence[Client]) -> str:
    """Of how many clients messages alone do not tell the optimum, and why of the first."""
    untold = [client.alone.reason for client in clients if client.alone.reason]
    if not untold:
        return ""
    of = f"{len(untold)} of {len(clients)} clients"
    return f"public columns used for {of}: from messages alone {untold[0]}"


def _scores(
    method: Method, attack: Any, client: Client, clients: Sequence[Client]
) -> dict[str, float]:
    answer: Answer = method.run(client, attack)
    scores = {"attribute_accuracy": _right(answer, client)}
    if answer.proven is None or answer.model is None:
        return scores
    scores["bound"] = float(np.maximum(answer.proven.bound, 0.0))
    weight = float(answer.model[client.attribute])
    scores["ratio"] = answer.proven.mse / max(weight**2, 1e-24)
    if method.name != "optimum":
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
    return {"null": null_of(lambda: _right(method.run(another, attack), client))}


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
