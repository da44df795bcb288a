"""Do records tell whose they are, by answers that were held out?

Threat model: as of the attack that asks.
"""

import warnings
from typing import Any

import numpy as np

from attacks.fit import UncheckedWarning

FOLDS, FEWEST = 3, 10
"""Parts in which answers are held out; and of how many answers a client's are looked at."""
ERRORS = 2
"""Standard errors by which held-out answers must be told better than by the most frequent one."""


def warn_of_untold_clients(name: str, rule: Any, x: np.ndarray, answers: np.ndarray) -> None:
    """Warn if a rule of scikit-learn that learns from some answers `[records]` tells the others no
    better from records `x [records, features]` than the most frequent client is named."""
    from sklearn.model_selection import cross_val_score

    clients, counts = np.unique(answers, return_counts=True)
    several = np.isin(answers, clients[counts >= FEWEST])
    if (counts >= FEWEST).sum() < 2:
        return
    x, answers = x[several], answers[several]
    told = float(cross_val_score(rule, x, answers, cv=FOLDS).mean())
    usual = float(counts.max() / len(answers))
    if told <= usual + ERRORS * np.sqrt(usual * (1 - usual) / len(answers)):
        warnings.warn(
            f"{name}: records tell {told:.0%} of answers that are held out, and the most "
            f"frequent client is named in {usual:.0%}: records do not tell these clients apart "
            "(are they those of the answers, in that order?), so that answers are lost",
            UncheckedWarning,
            stacklevel=4,
        )
