"""Are a table's values coded as they were in training?"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.harness.intervals import wilson_interval

NEARLY_ALL = 0.9
"""Share of people who must be named rightly under other names, so that chance is none."""


class Coding(NamedTuple):
    """Names of values under which an answer that explains the updates is right.

    Attributes:
      truth: the people's values, by the names of training `[people]`.
      renamed: what each value of the table is called in training `[values]`.
    """

    truth: np.ndarray
    renamed: np.ndarray


def other_coding(named: np.ndarray, truth: np.ndarray, count: int) -> Coding | None:
    """The one-to-one names of values by which most people are named rightly, where those of the
    table are others, and nearly all are, beyond what saying the most common value of all is.

    Args:
      named: places of the values that an attack names `[people]`.
      truth: of those in the table `[people]`.
      count: how many values there are.
    """
    table = np.zeros((count, count), int)
    np.add.at(table, (truth, named), 1)
    rows, renamed = linear_sum_assignment(-table)
    right, people = int(table[rows, renamed].sum()), len(truth)
    usual = wilson_interval(int(np.bincount(truth).max()), people).high
    if right == int(np.diag(table).sum()) or right < NEARLY_ALL * people:
        return None
    if wilson_interval(right, people).low <= usual:
        return None
    return Coding(renamed[truth], renamed)
