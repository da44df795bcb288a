"""The memory that a process holds at most."""

import numpy as np
import pytest

from benchmarks.harness.memory import forget_peak, peak_mib

MIB = 2**20


def test_the_peak_is_of_the_time_since_it_was_forgotten():
    if not forget_peak():
        pytest.skip("this system keeps the peak of a process for good")
    before = peak_mib()
    held = np.ones(200 * MIB, np.uint8)
    assert before + 180 < peak_mib() < before + 260
    del held
    assert peak_mib() > before + 180
    forget_peak()
    assert peak_mib() < before + 60
