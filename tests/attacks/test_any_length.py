"""Updates of any length: what is told by their direction alone says whether it explains them."""

import dataclasses

import numpy as np
import pytest

from attacks import Knowledge, MisfitWarning, Status, binary_column, cos_matching
from jaxfl import LocalTraining
from tests.attacks.test_cosine import FAST, KEY, hidden, make_victim


@pytest.mark.parametrize("rate", [1.0, 3.0])
def test_updates_of_any_length_are_no_misfits(rate):
    """Without being told the rate; those of other labels are."""
    model, x, y, messages = make_victim(training=LocalTraining(rate), rounds=8)
    known = Knowledge(hidden(x), y, (binary_column(6, 0.4),))
    assert cos_matching(model, messages, known, KEY, settings=FAST).status == Status.OK
    wrong = dataclasses.replace(known, y=np.roll(y, 1))
    with pytest.warns(MisfitWarning) as told:
        assert cos_matching(model, messages, wrong, KEY, settings=FAST).status == Status.MISFIT
    assert told[0].filename == __file__
