"""Laws of where a simulation runs: devices, processes, and the host that holds what they do not."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxfl import Federated, HonestServer, Keep, LocalTraining, mlp, simulate, stack_clients
from jaxfl.simulation.host_held import _run_block
from tests.conftest import assert_same
from tests.laws import shared_out


def started(arguments: list[str], devices: int) -> subprocess.Popen[str]:
    """`tests.laws.shared_out`, in a process of so many devices."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.laws.shared_out", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def answered(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return printed


IMPORTED = """
import importlib, pathlib, jax
for package in ("jaxfl", "attacks", "benchmarks"):
    for file in sorted(pathlib.Path(package).rglob("*.py")):
        if "laws" not in file.parts:  # which are tests
            importlib.import_module(".".join(file.with_suffix("").parts))
jax.distributed.initialize("localhost:{port}", 1, 0)
print(jax.process_count())
"""


ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def test_imports_start_no_backend():
    """JAX refuses to join processes after that."""
    code = IMPORTED.format(port=free_port())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"]


ALWAYS = "slope", "held already"


def told(printed: list[str]) -> list[str]:
    """What was the same."""
    return [line.partition(":")[0] for line in printed if line.endswith(": the same")]


@pytest.mark.slow
def test_two_and_four_devices_equal_one():
    printed = answered(started([], 4)).splitlines()
    assert told(printed) == [*shared_out.PLAIN, *ALWAYS, "gone on", "victims"]


@pytest.mark.very_slow
def test_two_processes_equal_one():
    address = f"localhost:{free_port()}"
    processes = [started([address, str(rank)], 2) for rank in (0, 1)]
    try:
        for process in processes:
            printed = answered(process).splitlines()
            assert told(printed) == [*shared_out.BETWEEN, *ALWAYS]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("rounds", [None, (3, 0), (4,)])
@pytest.mark.parametrize("block", [1, 2, 5, 9])
def test_records_on_the_host_change_nothing(world, block, rounds):
    keep = Keep(rounds=rounds, sums=True)
    plain = Federated(
        5, LocalTraining(0.1, batch_size=8), clients_per_round=2, strategy="map", keep=keep
    )
    server = HonestServer(learning_rate=0.5)
    arguments = world.model, world.params, world.clients, world.key
    test = world.clients.client(0)
    expected = simulate(*arguments, plain, server=server, test=test)
    held = simulate(*arguments, plain.replace(rounds_on_device=block), server=server, test=test)
    shared_out.same(held, expected)
    assert held.rounds == expected.rounds
    assert np.isfinite(jax.tree.leaves(world.params)[0]).all(), "the first model was given away"


@pytest.mark.slow
def test_a_device_holds_the_records_of_a_block_alone(monkeypatch):
    """A hundred thousand clients of 20 records, 96 MB, of whom 50 take part in each of 12 rounds:
    4 rounds' records are 192 kB."""
    rng, sizes = np.random.default_rng(0), []
    x, y = rng.normal(size=(100_000, 20, 12)).astype(np.float32), rng.integers(0, 3, (100_000, 20))
    clients = stack_clients(list(zip(x, y, strict=True)), on_host=True)
    assert isinstance(clients.x, np.ndarray)

    def watched(*arguments):
        sizes.append(sum(leaf.nbytes for leaf in jax.tree.leaves(arguments[4].cohort)))
        return _run_block(*arguments)

    monkeypatch.setattr("jaxfl.simulation.host_held._run_block", watched)
    model, key = mlp(12, (8,), 3), jax.random.key(0)
    federated = Federated(
        12,
        LocalTraining(0.1),
        clients_per_round=50,
        rounds_on_device=4,
        keep=Keep(clients=(), sums=True),
    )
    run = simulate(model, model.init(key), clients, key, federated)
    one = 20 * (12 + 1) * 4 + 20 + 4  # records, labels, mask, id
    assert sizes == [4 * 50 * one] * 3
    assert run.participation.sum(1).tolist() == [50] * 12
    assert (run.participation.any(0)).sum() > 550, "rounds draw the same clients"
    alone = clients.take(np.flatnonzero(run.participation[0]))
    first = simulate(model, model.init(key), alone, key, Federated(1, LocalTraining(0.1)))
    sums = jax.tree.map(lambda u: u[0], run.sums)
    assert_same(sums, jax.tree.map(lambda u: u[0].sum(0), first.pseudo_gradient), "other clients")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": ()}, r"devices=\(\) must be one device or more"),
        ({"devices": "twice"}, "must be one device or more, each named once"),
        ({"rounds_on_device": 2}, "rounds_on_device=2 needs clients_per_round below the 3 clients"),
        (
            {"rounds_on_device": 2, "clients_per_round": 3},
            "rounds_on_device=2 needs clients_per_round below the 3 clients",
        ),
    ],
)
def test_places_that_cannot_be(world, settings, message):
    if settings.get("devices") == "twice":
        settings = {"devices": tuple(jax.devices()[:1] * 2)}
    with pytest.raises(ValueError, match=message):
        simulate(world.model, world.params, world.clients, world.key, Federated(2, **settings))


def test_records_on_the_host_do_not_enter_a_program(world):
    federated = Federated(2, clients_per_round=2, rounds_on_device=1)

    @jax.jit
    def end(params):
        return simulate(world.model, params, world.clients, world.key, federated).params

    with pytest.raises(ValueError, match="rounds_on_device=1 takes records from the host"):
        end(world.params)
