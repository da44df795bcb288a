"""Methods run where every core is a device, as in commands; in this process there is one."""

import os
import subprocess
import sys

import pytest

from benchmarks.suites.specimens import jobs_of

JOBS = list(jobs_of("tiny"))


@pytest.mark.very_slow
@pytest.mark.parametrize("experiment", dict.fromkeys(job.cell.experiment.name for job in JOBS))
def test_every_method_ends_where_cores_are_devices(experiment):
    """LAPACK may wait for itself for ever there (jaxlib 0.10), and arrays pass between devices."""
    command = [sys.executable, "-m", "tests.benchmarks.on_cores", experiment]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    first, *told = done.stdout.splitlines()
    assert first == f"devices: {os.cpu_count()}"
    names = [job.method for job in JOBS if job.cell.experiment.name == experiment]
    assert [line.split()[1] for line in told] == names
    assert not [line for line in told if "Error" in line]
