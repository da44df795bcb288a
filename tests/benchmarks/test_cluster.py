"""A sweep on two machines of a Ray cluster, one of which dies on the way."""

import importlib.util
import subprocess
import sys
import time

import pytest

from benchmarks import sweep
from benchmarks.compare import compared
from benchmarks.harness.store import Store

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the extra `cluster` is not installed"
)
ASKED = ["quick/attributes", "--seeds", "1", "--methods", "majority,closed_form"]
MACHINES = """
import ray
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
second = cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
input()
cluster.remove_node(second, allow_graceful=False)
input()
cluster.shutdown()
"""
"""Two machines as far as Ray knows; each line that it reads ends one."""


@pytest.fixture
def machines():
    """A process beside this one: Ray forks, which JAX does not bear."""
    process = subprocess.Popen(
        [sys.executable, "-c", MACHINES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        yield process
        process.communicate("\n\n", timeout=60)


@pytest.mark.very_slow
def test_a_machine_that_dies_loses_no_row(machines, tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    address = next(line for line in machines.stdout if ":" in line).split()[-1]
    command = [sys.executable, "-m", "benchmarks.sweep", *ASKED, "--out", str(there)]
    running = subprocess.Popen(
        [*command, "--engine", "ray", "--address", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    finished = 0
    while not finished and running.poll() is None:
        time.sleep(0.2)
        finished = len(Store(there).finished()) if (there / "results.sqlite").is_file() else 0
    machines.stdin.write("\n")
    machines.stdin.flush()
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors
    assert "Traceback" not in errors
    assert sweep.main([*ASKED, "--out", str(here)]) == 0
    assert 0 < finished < len(Store(here).finished())  # it died on the way
    assert not compared(there / "results.csv", here / "results.csv", 0.0).differences


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path, capsys):
    there = ["--engine", "ray", "--address", "127.0.0.1:1", "--out", str(tmp_path)]
    assert sweep.main([*ASKED, *there]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert sweep.main([*ASKED, "--address", "127.0.0.1:1", "--out", str(tmp_path)]) == 2
    assert "has no meaning for engine='local'" in capsys.readouterr().err
