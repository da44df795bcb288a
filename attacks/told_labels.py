"""Are the labels that an attack was told those by which models were trained?

Threat model: as of the attack that asks. A trained model names labels more often than by chance, an
untrained one about as often. One that names them far more seldom was trained by others: labels are
counted from another number, or the two of them are exchanged.
"""

import functools
import warnings
from typing import Any

import jax
import numpy as np

from attacks.fit import MisfitWarning
from jaxfl import Model, _check
from jaxfl.models import log_probabilities

Array = jax.Array
SELDOM, SHARE = 4, 0.6
"""Standard errors below chance from which on labels are said to be others; and the share of chance
below which besides: untrained models are somewhat better or worse than chance, all records
together."""


def warn_of_other_labels(
    name: str, model: Model, models: Any, x: Array, y: Array, stacklevel: int = 4
) -> bool:
    """Warn with a `MisfitWarning` if models, leaves `[models, ...]`, name the labels `[records]` of
    records far more seldom, on average, than labels that have nothing to do with theirs. Not where
    anything is traced, of a regression, or of labels that are no class numbers. Says whether it
    warned."""
    if model.classes is None or _check.is_unseen((models, x, y)):
        return False
    there = len(jax.tree.leaves(models)[0])
    if not there or np.ndim(y) != 1 or np.asarray(y).dtype.kind not in "iub":
        return False
    named = np.asarray(_named(model, models, x))
    classes, labels = range(int(named.max(initial=1)) + 1), np.asarray(y).astype(int)
    chance = sum((named == c).mean(1) * (labels == c).mean() for c in classes).mean()
    right = float((named == labels).mean())
    error = np.sqrt(chance * (1 - chance) / len(labels))
    other = right < min(chance - SELDOM * error, SHARE * chance)
    if other:
        warnings.warn(
            f"{name}: the models name the labels y of {right:.0%} of the records, and by chance it "
            f"would be {chance:.0%}. Are they other labels than those of training (exchanged, or "
            "counted from another number)?",
            MisfitWarning,
            stacklevel=stacklevel,
        )
    return bool(other)


@functools.partial(jax.jit, static_argnames="model")
def _named(model: Model, models: Any, x: Array) -> Array:
    """The class that each model names of each record `[models, records]`."""

    def one(params: Any) -> Array:
        return log_probabilities(model.apply(params, x)).argmax(-1)

    return jax.lax.map(one, models)
