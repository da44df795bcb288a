"""A client on made-up records that trains as it says, or otherwise, and what its server knows.

`python -m tests.attacks.wrong_recipes misfits 500` prints how often misfits are called on either,
`... diagnoses 20` what is named as the cause, `... diagnoses 20 16` told batches of 16, and
`... diagnoses 20 16 adam half` of these kinds alone.
"""

import collections
import dataclasses
import functools
import sys
import time
import warnings
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from attacks import (
    GLS,
    ClosedForm,
    FitWarning,
    Knowledge,
    Status,
    binary_column,
    closed_form,
    diagnose,
    gls,
)
from jaxfl import Federated, LocalTraining, Plugin, Upload, mlp, simulate, stack_clients

RECORDS, FEATURES, RATE = 80, 16, 0.1
FEW = 5
"""Clients between which programs are dropped."""
WRONG = (
    *("batches", "epochs", "adam", "momentum", "decay", "drop_last", "weights", "smoothing"),
    *("rate", "half", "topk", "noise", "bits"),
)
RIGHT = (
    LocalTraining(RATE, batch_size=16, epochs=2),
    LocalTraining(0.3, batch_size=20),
    LocalTraining(RATE, epochs=4),
    LocalTraining(RATE, batch_size=24, drop_last=True),
)


def records(seed):
    """Numbers and bits, of which the label is a noisy function; column 4 is a fair bit."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(RECORDS, FEATURES))
    x[:, ::2] = x[:, ::2] > 0
    score = x[:, :6].sum(1) + rng.normal(size=RECORDS)
    return x.astype(np.float32), (score > np.median(score)).astype(int)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TopK(Plugin):
    """Sends a tenth of an update, the largest numbers."""

    share: float = 0.1

    def send(self, update, key):
        flat, unravel = jax.flatten_util.ravel_pytree(update)
        least = jnp.sort(jnp.abs(flat))[-len(flat) // 10]
        return unravel(jnp.where(jnp.abs(flat) >= least, flat, 0))


class Act(nn.Module):
    """A perceptron with any activation."""

    hidden: tuple[int, ...]
    outputs: int
    act: Any

    @nn.compact
    def __call__(self, x):
        for width in self.hidden:
            x = self.act(nn.Dense(width)(x))
        return nn.Dense(self.outputs)(x)


def weighted_loss(outputs, y):
    """Class 1 counts three times."""
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, y.astype(int))
    return losses * jnp.asarray([1.0, 3.0])[y.astype(int)]


def smoothed_loss(outputs, y):
    """Labels smoothed by a tenth."""
    return optax.softmax_cross_entropy(outputs, 0.9 * jax.nn.one_hot(y, 2) + 0.05)


def decayed(learning_rate):
    return optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(learning_rate))


def with_momentum(learning_rate):
    return optax.sgd(learning_rate, momentum=0.9)


def _recipe(kind, told):
    """What the client does in place of what it was told."""
    change = functools.partial(dataclasses.replace, told)
    batches = told.batch_size or RECORDS
    return {
        "batches": lambda: change(batch_size=batches // 2),
        "epochs": lambda: change(epochs=told.epochs + 2),
        "adam": lambda: change(learning_rate=0.01, optimizer=optax.adam),
        "momentum": lambda: change(optimizer=with_momentum, epochs=told.epochs + 1),
        "decay": lambda: change(optimizer=decayed),
        "drop_last": lambda: change(batch_size=30, drop_last=True),
        "rate": lambda: change(learning_rate=2 * told.learning_rate),
    }.get(kind, lambda: told)()


def client(kind, told, seed, *, hidden=(32,), rounds=8, plugins=()):
    """Model, messages, knowledge and truth of a client that was told a recipe, and follows it or
    departs from it by `kind`."""
    x, y = records(seed)
    model = mlp(FEATURES, hidden, 2)
    losses = {"weights": weighted_loss, "smoothing": smoothed_loss}
    trained = dataclasses.replace(model, loss=losses[kind]) if kind in losses else model
    sent = {
        "topk": (TopK(),),
        "noise": (Upload(noise_multiplier=0.05),),
        "bits": (Upload(bits=8),),
    }.get(kind, plugins)
    key = jax.random.key(seed)
    federated = Federated(rounds, _recipe(kind, told), sent)
    run = simulate(trained, trained.init(key), stack_clients([(x, y)]), key, federated)
    known, truth = x.copy(), x[:, 4].astype(int)
    known[:, 4] = np.nan
    held = RECORDS // 2 if kind == "half" else RECORDS
    knowledge = Knowledge(known[:held], y[:held], (binary_column(4, 0.5),))
    return model, run.messages(0), knowledge, truth[:held]


def _status(kind, told, seed):
    """How the decoder that a recipe asks for judges a client."""
    model, messages, known, _ = client(kind, told, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        if told.steps(RECORDS) == 1:
            settings = ClosedForm(told.learning_rate)
            return closed_form(model, messages, known, settings=settings).status
        settings = GLS(told, orders=24)
        return gls(model, messages, known, jax.random.key(seed), settings=settings).status


def misfits(clients):
    """Print the rates of misfits: of so many clients that follow their recipe, and of 20 of each
    kind that do not."""
    told = (LocalTraining(RATE), *RIGHT)
    alarms = [_status("right", told[i % len(told)], 1000 + i) for i in range(clients)]
    print(f"right recipes: {sum(s == Status.MISFIT for s in alarms)} misfits of {clients}")
    for recipe in told[:2]:
        for kind in WRONG:
            found = sum(_status(kind, recipe, seed) == Status.MISFIT for seed in range(20))
            size = recipe.batch_size or "full"
            print(f"{size} batches, {kind}: {found} misfits of 20", flush=True)


def diagnoses(clients, batch_size=None, *kinds):
    """Print what `diagnose` names first of so many clients of each kind, told one full-batch step,
    or two epochs of batches, and the seconds that a client took."""
    told = dataclasses.replace(RIGHT[0], batch_size=batch_size, epochs=2 if batch_size else 1)
    for kind in kinds or ("right", *WRONG):
        causes, begun = [], time.perf_counter()
        for seed in range(clients):
            seen = client(kind, told, seed)[:3]
            causes += [diagnose(*seen, told).findings[0].cause]
            if seed % FEW == FEW - 1:
                jax.clear_caches()  # each recipe has a program, and a process bears so many
        seconds = (time.perf_counter() - begun) / clients
        print(
            f"{kind}: {dict(collections.Counter(causes).most_common())}, {seconds:.0f} s each",
            flush=True,
        )


if __name__ == "__main__":
    name, count, *rest = sys.argv[1:]
    {"misfits": misfits, "diagnoses": diagnoses}[name](int(count), *map(int, rest[:1]), *rest[1:])
