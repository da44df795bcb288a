"""Clients of many kinds that do as they say: how often is their answer called a misfit?

`python -m tests.attacks.right_recipes 20` prints for each kind, of so many clients, how many are
called misfits and what share of the values is read; `... 20 gls` of the kinds whose name has "gls".
"""

import dataclasses
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxfl
from attacks import (
    GLS,
    AdamDecoding,
    ClosedForm,
    FitWarning,
    Knowledge,
    PartialDecoding,
    Status,
    UnknownColumn,
    closed_form,
    cos_matching,
    decode_adam,
    decode_partial,
    gls,
)
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients
from tests.attacks.wrong_recipes import FEATURES, RATE, decayed, with_momentum

STEP = LocalTraining(RATE)
BATCHES = LocalTraining(RATE, batch_size=16, epochs=2)
NOISE = jaxfl.Upload(1e6, 1e-9)
ADAM = LocalTraining(0.01, optimizer=optax.adam)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A client, what it is told to do and does, and what its server does not know.

    Attributes:
      training: its recipe.
      hidden, activation, outputs, smoothing: of the network and its loss.
      records: how many it has.
      values: how many an unknown column may have.
      columns: how many are unknown.
      known: share of the records that the server knows.
      bits: in which models travel.
      rounds: that are seen.
    """

    training: LocalTraining = STEP
    hidden: tuple[int, ...] = (32,)
    activation: str = "relu"
    outputs: int = 2
    smoothing: float = 0.0
    records: int = 80
    values: int = 2
    columns: int = 1
    known: float = 1.0
    bits: int = 32
    rounds: int = 8

    @property
    def model(self) -> jaxfl.Model:
        """Its network with its loss."""
        model = mlp(FEATURES, self.hidden, self.outputs, activation=self.activation)
        return jaxfl.label_smoothing(model, self.smoothing) if self.smoothing else model


def by_closed_form(kind, model, messages, known, key):
    return closed_form(model, messages, known, settings=ClosedForm(kind.training.learning_rate))


def by_gls(kind, model, messages, known, key):
    return gls(model, messages, known, key, settings=GLS(kind.training, orders=24))


def by_adam(kind, model, messages, known, key):
    return decode_adam(model, messages, known, settings=AdamDecoding())


def by_cosines(kind, model, messages, known, key):
    return cos_matching(model, messages, known, key)


def by_partial(kind, model, messages, known, key):
    others = kind.records - len(known.x)
    settings = PartialDecoding(others, kind.training)
    return decode_partial(model, messages, known, *records(kind, 1), settings=settings)


KINDS: dict[str, tuple[Callable[..., Any], Kind]] = {
    "closed_form": (by_closed_form, Kind()),
    "closed_form, logistic regression": (by_closed_form, Kind(hidden=())),
    "closed_form, two hidden layers": (by_closed_form, Kind(hidden=(64, 32))),
    "closed_form, tanh": (by_closed_form, Kind(activation="tanh")),
    "closed_form, gelu, smoothed labels": (by_closed_form, Kind(activation="gelu", smoothing=0.1)),
    "closed_form, one output": (by_closed_form, Kind(outputs=1)),
    "closed_form, 20 records": (by_closed_form, Kind(records=20)),
    "closed_form, 300 records": (by_closed_form, Kind(records=300)),
    "closed_form, five values": (by_closed_form, Kind(values=5)),
    "closed_form, two columns": (by_closed_form, Kind(columns=2)),
    "closed_form, 16 bits": (by_closed_form, Kind(bits=16)),
    "closed_form, rate 2": (by_closed_form, Kind(dataclasses.replace(STEP, learning_rate=2.0))),
    "cos_matching": (by_cosines, Kind()),
    "decode_adam": (by_adam, Kind(ADAM)),
    "decode_adam, five values, tanh": (by_adam, Kind(ADAM, activation="tanh", values=5)),
    "decode_partial, half known": (by_partial, Kind(known=0.5)),
    "gls": (by_gls, Kind(BATCHES)),
    "gls, logistic regression": (by_gls, Kind(BATCHES, hidden=())),
    "gls, two hidden layers": (by_gls, Kind(BATCHES, hidden=(64, 32))),
    "gls, tanh, one output": (by_gls, Kind(BATCHES, activation="tanh", outputs=1)),
    "gls, 20 records": (by_gls, Kind(dataclasses.replace(BATCHES, batch_size=5), records=20)),
    "gls, 300 records": (by_gls, Kind(dataclasses.replace(BATCHES, batch_size=50), records=300)),
    "gls, five values": (by_gls, Kind(BATCHES, values=5)),
    "gls, two columns": (by_gls, Kind(BATCHES, columns=2)),
    "gls, momentum": (by_gls, Kind(dataclasses.replace(BATCHES, optimizer=with_momentum))),
    "gls, weight decay": (by_gls, Kind(dataclasses.replace(BATCHES, optimizer=decayed))),
    "gls, last batch left out": (by_gls, Kind(LocalTraining(RATE, batch_size=24, drop_last=True))),
    "gls, noise on what is sent": (by_gls, Kind(dataclasses.replace(BATCHES, plugins=(NOISE,)))),
    "gls, 30 full-batch steps": (by_gls, Kind(LocalTraining(RATE, epochs=30))),
}
"""By what it is called, which attack reads it and what it is."""


def records(kind, seed):
    """Numbers and bits, of which the label is a noisy function; columns 4 and 6 are unknown."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(kind.records, FEATURES))
    x[:, ::2] = x[:, ::2] > 0
    x[:, 4] = rng.integers(0, kind.values, kind.records) / (kind.values - 1)
    score = x[:, :6].sum(1) + rng.normal(size=kind.records)
    return x.astype(np.float32), (score > np.median(score)).astype(int)


def client(kind, seed):
    """Model, messages, knowledge and truth (`[columns, records]`) of a client of a kind."""
    x, y = records(kind, 1000 + seed)
    key = jax.random.key(seed)
    params = kind.model.init(key)
    if kind.bits == 16:
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), params)
    federated = Federated(kind.rounds, kind.training)
    run = simulate(kind.model, params, stack_clients([(x, y)]), key, federated)
    held = round(kind.known * kind.records)
    positions = (4, 6)[: kind.columns]
    candidates = jnp.linspace(0, 1, kind.values)[:, None]
    columns = tuple(UnknownColumn(jnp.asarray([p]), candidates) for p in positions)
    truth = np.stack([np.rint(x[:held, p] * (kind.values - 1)).astype(int) for p in positions])
    known = x[:held].copy()
    known[:, positions] = np.nan
    return kind.model, run.messages(0), Knowledge(known, y[:held], columns), truth


def quietly(attack, *arguments, **named):
    """An attack's answer, without a word on how well it explains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return attack(*arguments, **named)


def answered(name, seed):
    """The status of a client's answer, and the share of the values that it names."""
    attack, kind = KINDS[name]
    *seen, truth = client(kind, seed)
    answer = quietly(attack, kind, *seen, jax.random.key(seed))
    named = [np.asarray(values) == true for values, true in zip(answer.values, truth, strict=True)]
    return Status(int(answer.status)), float(np.mean(named))


def main(clients, part=""):
    """Print each kind, and how many are called misfits in all."""
    misfits = asked = 0
    for name in (name for name in KINDS if part in name):
        begun = time.perf_counter()
        statuses, shares = zip(*(answered(name, seed) for seed in range(clients)), strict=True)
        counts = {str(s.name): statuses.count(s) for s in Status if s in statuses}
        seconds = (time.perf_counter() - begun) / clients
        print(f"{name}: {counts}, {np.mean(shares):.3f} named, {seconds:.1f} s each", flush=True)
        misfits, asked = misfits + counts.get("MISFIT", 0), asked + clients
        jax.clear_caches()  # each kind has programs of its own, and a process bears so many
    print(f"misfits: {misfits} of {asked}")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
