"""A null run that fails costs nothing but the null."""

import math
import warnings

import pytest

from attacks import MisfitWarning
from benchmarks.scenarios.nulls import null_of


def test_what_another_clients_messages_give_is_kept_and_misfits_are_not_said():
    def read():
        warnings.warn("not of these records", MisfitWarning, stacklevel=1)
        return 0.5

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert null_of(read) == 0.5


def test_a_null_run_that_fails_is_nan_and_says_why():
    def read():
        raise ValueError("singular")

    with pytest.warns(RuntimeWarning, match="no null: ValueError: singular"):
        assert math.isnan(null_of(read))
