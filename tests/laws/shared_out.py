"""One federation on one device and shared out over several: run by `test_devices.py`, in processes
that have several. `python -m tests.laws.shared_out [ADDRESS RANK]`: alone, or as one of two."""

import dataclasses
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxfl import (
    Behavior,
    ClientData,
    Federated,
    Keep,
    LocalTraining,
    Model,
    PerClient,
    Transcript,
    Upload,
    mlp,
    sgd,
    simulate,
    stack_clients,
)

TRAINING = LocalTraining(0.1, epochs=2, batch_size=8)
# An optimiser with a state makes arrays like the models on every device.
MOMENTUM = dataclasses.replace(TRAINING, optimizer=sgd(0.9))
DIFFERENT = (PerClient(Behavior(update=np.r_[np.ones(7), -1.0])), Upload(clip=1.0))
PLAIN = {
    "everyone": Federated(3, TRAINING),
    "at once": Federated(3, TRAINING, strategy="vmap"),
    "drawn": Federated(3, MOMENTUM, clients_per_round=4),
    "unlike": Federated(3, TRAINING, DIFFERENT, keep=Keep((1, 6), rounds=(2, 0), sums=True)),
}
BETWEEN = "drawn", "unlike"
"""What two processes run."""
RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""By how much models may differ that are equal but for rounding, as in `tests.conftest`: three
rounds of some steps."""
SLOPES = 1e-4
"""By how much, relative, their slopes along the step size may: sums over all steps of terms that
are larger than what is left of them."""


def federation() -> tuple[Model, Any, ClientData]:
    """A model, what it starts from, and eight clients of 5 to 20 records."""
    rng = np.random.default_rng(0)
    sizes = [20, 5, 12, 20, 9, 16, 7, 11]
    records = [(rng.normal(size=(n, 6)), rng.integers(0, 3, n)) for n in sizes]
    model = mlp(6, (8,), 3)
    return model, model.init(jax.random.key(0)), stack_clients(records, on_host=True)


def run(federated: Federated, rate: Any = 0.1) -> Transcript:
    """One run of the federation."""
    training = dataclasses.replace(federated.training, learning_rate=rate)
    federated = dataclasses.replace(federated, training=training)
    return simulate(*federation(), jax.random.key(1), federated)


def length(federated: Federated, rate: Any) -> Any:
    """Of the last model, as a function of the clients' step size."""
    return sum((leaf**2).sum() for leaf in jax.tree.leaves(run(federated, rate).params))


def same(one: Any, other: Any) -> None:
    """Raise `AssertionError` unless two trees hold the same numbers, but for rounding."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=RELATIVE, atol=ABSOLUTE)


def seen(transcript: Transcript) -> Any:
    """All that a transcript has, and what views make of it."""
    views = [transcript.messages(1, (2,))] if transcript.participation[2, 1] else []
    return (*dataclasses.astuple(dataclasses.replace(transcript, private=())), views)


def main(arguments: list[str]) -> None:
    """Compare, on 2 and 4 devices of this process, or on the 4 of both."""
    if arguments:
        jax.distributed.initialize(arguments[0], 2, int(arguments[1]))
    assert len(jax.devices()) == 4
    assert len(jax.local_devices()) == (2 if arguments else 4)
    for name in BETWEEN if arguments else PLAIN:
        alone = PLAIN[name]
        expected = seen(run(alone))
        for count in [4] if arguments else [2, 4]:
            devices = tuple(jax.devices()[:count])
            shared = dataclasses.replace(alone, devices=devices)
            same(expected, seen(run(shared)))
            if alone.clients_per_round:
                held = run(dataclasses.replace(shared, rounds_on_device=2))
                same(expected, seen(held))
                assert all(isinstance(a, np.ndarray) for a in jax.tree.leaves(held.returned))
        print(f"{name}: the same", flush=True)
    slope = jax.grad(length, argnums=1)
    expected = slope(PLAIN["everyone"], 0.1)
    shared = dataclasses.replace(PLAIN["everyone"], devices=tuple(jax.devices()))
    np.testing.assert_allclose(slope(shared, 0.1), expected, rtol=SLOPES)
    print("slope: the same", flush=True)
    placed = held_already(tuple(jax.devices()))
    model, params, _ = federation()
    again = simulate(model, params, placed, jax.random.key(1), shared)
    same(seen(run(PLAIN["everyone"])), seen(again))
    print("held already: the same", flush=True)
    if not arguments:
        of_one_process()


def held_already(devices: tuple[jax.Device, ...]) -> ClientData:
    """Clients of whom each process gives those of its own devices, on a mesh of the caller's."""
    mesh = jax.make_mesh((len(devices),), ("mine",), devices=devices)
    shares = NamedSharding(mesh, PartitionSpec("mine"))
    own = len(devices) // jax.process_count()
    clients = federation()[2]
    each = len(clients.id) // len(devices) * own
    mine = slice(jax.process_index() * each, (jax.process_index() + 1) * each)
    return jax.tree.map(
        lambda a: jax.make_array_from_process_local_data(shares, a[mine], a.shape), clients
    )


def of_one_process() -> None:
    """What goes on from a run on other devices; and simulations of victims that are shared out."""
    devices, everyone = tuple(jax.devices()), PLAIN["everyone"]
    model, params, clients = federation()

    def on(start: Any, shared: tuple[jax.Device, ...] | None, **more: Any) -> Transcript:
        federated = dataclasses.replace(everyone, devices=shared, **more)
        return simulate(model, start, clients, jax.random.key(2), federated)

    first, last = on(params, devices), on(params, None)
    few = {"clients_per_round": 4, "rounds_on_device": 2}
    for where in (devices[:2], devices, None):
        same(on(first.params, where), on(last.params, None))
        same(on(first.params, where, **few), on(last.params, None, clients_per_round=4))
    print("gone on: the same", flush=True)
    mesh = jax.make_mesh((4,), ("victims",), axis_types=(AxisType.Auto,))
    slopes = jax.vmap(jax.grad(lambda rate: length(everyone, rate)))
    rates, spec = np.linspace(0.05, 0.4, 8, dtype=np.float32), PartitionSpec("victims")
    apart = jax.shard_map(slopes, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    np.testing.assert_allclose(jax.jit(apart)(rates), slopes(rates), rtol=SLOPES, atol=ABSOLUTE)
    print("victims: the same", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
