"""Are a table's values coded as they were in training?"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.harness.intervals import wilson_interval

RIGHT, FEWEST = 0.9, 5
"""Share of people who must be named rightly under other names; and people of a value, below whom it
keeps its own."""


class Coding(NamedTuple):
    """Names of values under which an answer that explains the updates is right.

    Attributes:
      truth: the people's values, by the names of training `[people]`.
      renamed: what each value of the table is called in training `[values]`.
    """

    truth: np.ndarray
    renamed: np.ndarray


def other_coding(named: np.ndarray, truth: np.ndarray, count: int) -> Coding | None:
    """Names under which nearly all people are named rightly, where the table's own clearly fail:
    beyond chance, in this and in saying the most common value of all.

    Args:
      named: places of the values that an attack names `[people]`.
      truth: of those in the table `[people]`.
      count: how many values there are.
    """
    table = np.zeros((count, count), int)
    np.add.at(table, (truth, named), 1)
    values, assigned = linear_sum_assignment(-table)
    renamed = np.where(table[values, assigned] >= FEWEST, assigned, values)
    people, recoded = len(truth), renamed[truth]
    under_others, under_own, usual = (
        wilson_interval(int(right), people)
        for right in ((named == recoded).sum(), (named == truth).sum(), np.bincount(recoded).max())
    )
    fails = under_own.high < under_others.low and usual.high < under_others.low
    return Coding(recoded, renamed) if fails and under_others.mean >= RIGHT else None
