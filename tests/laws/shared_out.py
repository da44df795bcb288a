"""One federation on one device and shared out over several: run by `test_devices.py`, in processes
that have several. `python -m tests.laws.shared_out [ADDRESS RANK]`: alone, or as one of two."""

import dataclasses
import sys
from typing import Any

import jax
import numpy as np

from jaxfl import (
    Behavior,
    ClientData,
    Federated,
    LocalTraining,
    Model,
    PerClient,
    Record,
    Transcript,
    Upload,
    mlp,
    simulate,
    stack_clients,
)

TRAINING = LocalTraining(0.1, epochs=2, batch_size=8)
DIFFERENT = (PerClient(Behavior(update=np.r_[np.ones(7), -1.0])), Upload(clip=1.0))
PLAIN = {
    "everyone": Federated(3, TRAINING),
    "at once": Federated(3, TRAINING, strategy="vmap"),
    "drawn": Federated(3, TRAINING, clients_per_round=4),
    "unlike": Federated(3, TRAINING, DIFFERENT, record=Record((1, 6), rounds=(2, 0), sums=True)),
}
TOLERANCE = 1e-6


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
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=TOLERANCE)


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
    for name, alone in PLAIN.items():
        expected = seen(run(alone))
        for count in [4] if arguments else [2, 4]:
            devices = tuple(jax.devices()[:count])
            shared = dataclasses.replace(alone, devices=devices)
            same(expected, seen(run(shared)))
            if alone.clients_per_round:
                same(expected, seen(run(dataclasses.replace(shared, rounds_on_device=2))))
        print(f"{name}: the same", flush=True)
    slope = jax.grad(length, argnums=1)
    expected = slope(PLAIN["everyone"], 0.1)
    shared = dataclasses.replace(PLAIN["everyone"], devices=tuple(jax.devices()))
    np.testing.assert_allclose(slope(shared, 0.1), expected, rtol=1e-4)
    print("slope: the same", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
