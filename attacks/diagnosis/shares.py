"""How much of what a recipe leaves of the messages each cause accounts for.

Threat model: as of `attacks.diagnosis.causes`, which asks.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks.attributes.candidate_decoding.unexplained import left_along
from attacks.diagnosis.advice import BY_ARRAY
from attacks.diagnosis.numbers import Finding
from attacks.diagnosis.trials import RecipeTrial
from attacks.fixed_draws import fixed_key

LARGE = 0.6
"""Share of what is left that names a cause beside the unknown one."""
SMOOTHING_ALONE = "label smoothing, rate as told"
"""Of what is left, along label smoothing where no rate may make up for it."""
MOST_ARRAYS = 32
"""Arrays of a model whose own rates are asked for, at most."""


class Left(NamedTuple):
    """What the told recipe leaves.

    Attributes:
      length: of what is left, relative to the updates'.
      coefficients: by cause, of its directions.
    """

    length: float
    coefficients: dict[str, np.ndarray]


def shares_of(trial: RecipeTrial) -> tuple[dict[str, float], Left]:
    """Shares of what is left that causes account for, the simplest first; and what is left."""
    classes, arrays = trial.model.classes or 0, len(jax.tree.leaves(trial.messages.model_shapes))
    rate = jnp.asarray(trial.training.learning_rate, jnp.float32)
    recipe = dataclasses.replace(trial.training, learning_rate=rate)
    known = trial.model, trial.messages, trial.knowledge, trial.decoded
    left = left_along(*known, recipe, fixed_key())
    last = len(left) - 1
    groups = {"learning rate": [last - 1], "weight decay": [last]}
    groups["rate and weight decay"] = [last - 1, last]
    if classes:
        groups |= {
            "label smoothing": [last - 2, last - 1],
            "class weights": [*range(arrays + 1, arrays + classes + 1)],
        }
    alone = {SMOOTHING_ALONE: [last - 2]} if classes else {}
    if 1 < arrays <= MOST_ARRAYS:
        groups[BY_ARRAY] = [*range(1, arrays + 1)]
    solved = {
        name: np.linalg.lstsq(left[np.ix_(group, group)], left[group, 0], rcond=1e-10)[0]
        for name, group in (groups | alone).items()
    }
    total = max(left[0, 0], np.finfo(float).tiny)
    shares = {name: float(solved[name] @ left[group, 0] / total) for name, group in groups.items()}
    return shares, Left(float(np.sqrt(total / len(trial.messages))), solved)


def named(trial: RecipeTrial, cause: str, share: float, left: Left) -> Finding:
    """A cause as a finding, with its size."""
    training = trial.training
    step = float(training.learning_rate) * trial.length
    if cause == BY_ARRAY:
        return Finding(cause, f"{_rates(trial, left)}; that is {share:.1%} of what is left", share)
    rate = float(trial.decoded.learning_rate) / trial.length
    decay = left.coefficients["weight decay"][0] / step
    smoothing = smoothing_of(trial, left) if "label smoothing" in left.coefficients else 0.0
    told = {
        "learning rate": f"the rate is {rate:.4g}, not {float(training.learning_rate):.4g}",
        "weight decay": f"the model is subtracted, {decay:.3g} of it a step",
        "rate and weight decay": "another rate, and the model is subtracted",
        "label smoothing": f"{smoothing:.2g} of each loss is towards all classes alike",
        "class weights": "records count by their class",
    }
    return Finding(cause, f"{told[cause]}; that is {share:.1%} of what is left", share)


def smoothing_of(trial: RecipeTrial, left: Left) -> float:
    """How much of each loss is towards all classes alike."""
    step = float(trial.training.learning_rate) * trial.length
    return float(left.coefficients["label smoothing"][0] / step)


def is_smoothing(trial: RecipeTrial, left: Left) -> bool:
    """Whether what is towards all classes alike is a part of each loss: two classes whose labels
    are exchanged have twice the loss of it."""
    return 0 < smoothing_of(trial, left) < 1


def _rates(trial: RecipeTrial, left: Left) -> str:
    """The rate of every array of the model, in words."""
    paths = [path for path, _ in jax.tree.leaves_with_path(trial.messages.model_shapes)]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
    rates = float(trial.training.learning_rate) + left.coefficients[BY_ARRAY] / trial.length
    told = [f"{name} {rate:.3g}" for name, rate in zip(names, rates, strict=True)]
    return f"arrays have rates of their own: {', '.join(told)}"


def adds_much(name: str, share: float, shares: dict[str, float]) -> bool:
    """Whether a cause accounts for most of what is left, and, where another rate is part of it, for
    most of what that leaves."""
    if name in ("learning rate", "weight decay"):
        return share > LARGE
    rest = 1 - shares["learning rate"]
    return share > LARGE and share - shares["learning rate"] > LARGE * rest
