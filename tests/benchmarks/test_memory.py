"""The memory that a process holds at most."""

import numpy as np
import pytest

from benchmarks.harness import engines, estimates
from benchmarks.harness.jobs import Job, group
from benchmarks.harness.memory import Meter, forget_peak, peak_mib
from tests.benchmarks.cells import cell_of

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


def test_a_meter_tells_what_is_needed_from_what_is_kept():
    if not forget_peak():
        pytest.skip("this system keeps the peak of a process for good")
    kept = []
    meter = Meter()
    held = np.ones(200 * MIB, np.uint8)
    del held
    kept.append(np.ones(100 * MIB, np.uint8))
    read = meter.read(2)
    assert 180 < read["added_mib"] < 260
    assert 45 < read["kept_mib"] < 80
    assert read["peak_mib"] >= read["added_mib"]


def test_peaks_grow_by_what_is_kept_until_programs_are_forgotten(tmp_path, monkeypatch):
    place = {"suite": "quick", "table": "attributes", "size": "small", "device": ""}
    costs = {"majority": (10, 5, 0), "random": (300, 200, engines.MOST_MAPPINGS + 1)}
    names = estimates.Memory._fields
    lines = [
        place | {"method": name, "seconds": 1} | dict(zip(names, cost, strict=True))
        for name, cost in costs.items()
    ]
    unknown = place | {"method": "cos", "seconds": 1}
    estimates.write([*lines, unknown], tmp_path / "seconds.csv")
    monkeypatch.setattr(estimates, "PATH", tmp_path / "seconds.csv")
    estimates._measured.cache_clear()
    cell = cell_of("quick/attributes", dataset="breast_cancer")
    jobs = {name: Job(cell, name, 0) for name in [*costs, "cos"]}
    alone = {name: group([job])[0] for name, job in jobs.items()}
    order = [alone[name] for name in ("majority", "random", "majority", "majority", "cos")]
    assert estimates.peaks(order, 400.0) == [410, 705, 605, 415, None]
    both = group([jobs["majority"], Job(cell, "majority", 1), jobs["random"]])
    assert estimates.peaks(both, 400.0) == [705]  # a second seed adds no program
    estimates._measured.cache_clear()
