"""Methods that name a binary attribute of a linear client's records: the table.

A method is `run(view, settings) -> Answer`: values of the attribute, and where it looks at a model,
that model and what is proven of the answer. It is given what the adversary has (`View`); a ceiling
is given the `Client`.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    CosMatching,
    L2Matching,
    Reconstruction,
    Virtual,
    best_of,
    cos_matching,
    infer_binary_attribute,
    infer_by_logistic,
    infer_in_box,
    l2_lbfgs,
)
from attacks.fit import FitWarning
from benchmarks.harness.experiment import Method, Metric
from benchmarks.measurements.linear_clients.client import Answer, View
from jaxfl import Messages


def _majority(view: View, settings: None) -> Answer:
    prior = np.asarray(view.known.columns[0].prior)
    return Answer(np.full(len(view.known.x), int(prior[1] > 0.5)))


def _judged(view: View, params: np.ndarray, rule: Literal["rank", "threshold"] = "rank") -> Answer:
    """The paper's rule on a model (Driouich 2022, Algorithm 3; "threshold": Driouich 2023)."""
    proven = infer_binary_attribute(*view.public, view.moments, params=params, rule=rule)
    return Answer(proven.values, params, proven)


def _by_model(
    model: Callable[[View], np.ndarray], rule: Literal["rank", "threshold"] = "rank"
) -> Callable[[View, None], Answer]:
    return lambda view, settings: _judged(view, model(view), rule)


def _decoded(rule: Literal["rank", "threshold"]) -> Callable[[View, None], Answer]:
    judged = _by_model(lambda view: view.decoded, rule)
    return lambda view, settings: judged(view, None)._replace(reason=view.alone.reason)


def _by_moments(infer: Callable[..., Any]) -> Callable[[View, None], Answer]:
    def run(view: View, settings: None) -> Answer:
        answer = infer(*view.public, view.moments)
        return Answer(getattr(answer, "values", answer))

    return run


def _from_gradients(view: View, attack: Callable[[Messages, Any, Any], Reconstruction]) -> Answer:
    """Among the grid's sets of rounds, the answer of least objective; in 32 bits."""
    held = np.asarray(view.messages.rounds).tolist()
    messages = Messages(
        _single(view.messages.received),
        _single(view.messages.returned),
        jnp.asarray(view.messages.rounds, jnp.int32),
    )
    known, answers = _single(view.known), []
    for part in view.settings.grid:
        last, step = map(int, part.split(":"))
        wanted = range(0, min(last, view.settings.rounds - 1) + 1, step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # another client's messages are
            answers.append(
                attack(messages.select([t for t in wanted if t in held]), known, view.key)
            )
    return Answer(np.asarray(best_of(answers).values[0]))


def _cos(view: View, settings: CosMatching) -> Answer:
    virtual, model = Virtual(training=view.training), view.model
    matching = dataclasses.replace(settings, virtual=virtual)
    return _from_gradients(
        view, lambda sent, known, key: cos_matching(model, sent, known, key, settings=matching)
    )


def _l2(view: View, settings: L2Matching) -> Answer:
    virtual, model = Virtual(training=view.training), view.model
    matching = dataclasses.replace(settings, virtual=virtual)
    return _from_gradients(
        view, lambda sent, known, key: l2_lbfgs(model, sent, known, key, settings=matching)
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
            run,
            x64=True,
        )
        for name, about, run in (
            ("global", "the shared model", _by_model(lambda view: view.global_model)),
            ("last", "the last returned model", _by_model(lambda view: view.last)),
            (
                "decoded",
                "the optimum out of messages, and of public columns where these do not identify it",
                _decoded("rank"),
            ),
            (
                "decoded_alone",
                "what messages alone say of the optimum",
                _by_model(lambda view: view.alone.params),
            ),
        )
    ),
    Method(
        "optimum",
        "Algorithm 3, by ranks, on the true local optimum",
        lambda client, settings: _judged(client.view, client.optimum),
        x64=True,
        ceiling=True,
    ),
    Method(
        "threshold",
        "Driouich 2023's rule on the decoded optimum",
        _decoded("threshold"),
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
