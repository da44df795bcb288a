"""How often `decode_sources` calls a misfit: `python -m tests.attacks.wrong_sources 40`."""

import sys
import warnings

import jax
import numpy as np
import optax

from attacks import FitWarning, Status, decode_sources
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients

SIZES, FULL, BATCHES = (40, 30, 50), LocalTraining(0.05), LocalTraining(0.05, batch_size=16)
EPOCHS, LONG = LocalTraining(0.05, batch_size=16, epochs=3), LocalTraining(0.3, epochs=5)


def heavy(rate):
    return optax.sgd(rate, momentum=0.9)


def decayed(rate):
    return optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(rate))


CASES = {
    "right, full batch": (FULL, FULL, 1.0),
    "right, batches of 16": (BATCHES, BATCHES, 1.0),
    "right, three epochs": (EPOCHS, EPOCHS, 1.0),
    "right, five long steps": (LONG, LONG, 1.0),
    "five long steps told, four": (LONG, LocalTraining(0.3, epochs=4), 1.0),
    "full batch told, batches": (FULL, BATCHES, 1.0),
    "batches told, three epochs": (BATCHES, EPOCHS, 1.0),
    "batches told, momentum": (BATCHES, LocalTraining(0.05, 1, 16, heavy), 1.0),
    "full batch told, weight decay": (FULL, LocalTraining(0.05, optimizer=decayed), 1.0),
    "full batch told, Adam": (FULL, LocalTraining(0.005, optimizer=optax.adam), 1.0),
    "full batch, half of the records known": (FULL, FULL, 0.5),
    "batches, half of the records known": (BATCHES, BATCHES, 0.5),
}
"""By name: the recipe told, the one that clients follow, and the share of records known."""


def one(told, true, known, seed):
    """Share of records whose client is named, and the clients' statuses."""
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    rule, records = rng.normal(size=(20, 3)), []
    for n in SIZES:
        x = rng.normal(size=(n, 20)).astype(np.float32)
        records.append((x, (x @ rule + rng.normal(size=(n, 3))).argmax(1)))
    model, federated = mlp(20, (64,), 3), Federated(10, true)
    run = simulate(model, model.init(key), stack_clients(records), key, federated)
    x, y = (np.concatenate(part) for part in zip(*records, strict=True))
    kept = np.sort(rng.permutation(len(x))[: int(known * len(x))])
    truth = np.repeat(np.arange(3), SIZES)[kept]
    seen = [run.messages(c) for c in range(3)]
    found = decode_sources(model, seen, SIZES, x[kept], y[kept], key, training=told)
    return float((np.asarray(found.sources) == truth).mean()), np.asarray(found.status)


def main(federations):
    """Print the table."""
    warnings.simplefilter("ignore", FitWarning)
    for name, case in CASES.items():
        results = [one(*case, 500 + seed) for seed in range(federations)]
        named = np.mean([share for share, _ in results])
        misfits = sum(int((status == Status.MISFIT).sum()) for _, status in results)
        clients = 3 * federations
        print(f"{name}: {named:.3f} named, {misfits} of {clients} clients misfits", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
