"""The clients that laws of attacks on attributes are tried on, and one method on one of them."""

import dataclasses
import functools
import warnings
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attacks import Knowledge, Reconstruction, SomeWrongWarning, UnknownColumn
from benchmarks.harness.experiment import Method
from benchmarks.measurements.attributes import View
from benchmarks.measurements.attributes.learning import Public
from benchmarks.scenarios.victims import VictimSettings
from jaxfl import Federated, LocalTraining, Messages, Model, mlp, simulate, stack_clients

Array = jax.Array
Whose = Literal["own", "another", "absent"]
RECORDS, FEATURES, CLASSES, ROUNDS = 48, 12, 3, 4
VARIANTS = (
    VictimSettings(0, RECORDS, training=LocalTraining(0.5)),
    VictimSettings(0, RECORDS, training=LocalTraining(0.2, batch_size=12)),
    VictimSettings(0, RECORDS, columns=2, training=LocalTraining(0.5)),
    VictimSettings(0, RECORDS, training=LocalTraining(1e-3, optimizer=optax.adam)),
    VictimSettings(0, RECORDS, known=3 * RECORDS // 4, training=LocalTraining(0.5)),
    VictimSettings(0, RECORDS, training=LocalTraining(1e-3, 1, 12, optax.adam)),
)
"""A full-batch client, one that trains in batches, one with two unknown columns, one of Adam, one
of whose records a quarter is not known, and one of Adam in batches."""
FEWER = {"steps": 100, "evaluations": 60, "orders": 24, "points": 2, "runs": 64, "tangents": 4}
"""Budgets of a method here at most, by the names of its settings: laws hold for any budget."""


def quicker(settings: Any) -> Any:
    """Settings with smaller budgets."""
    if settings is None:
        return None
    names = {field.name for field in dataclasses.fields(settings)} & set(FEWER)
    changes = {name: min(getattr(settings, name), FEWER[name]) for name in names}
    return dataclasses.replace(settings, **changes)


def records(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns of fair bits, and labels that have nothing to do with them: messages alone tell a
    column."""
    rng = np.random.default_rng(seed)
    x = (rng.random((RECORDS, FEATURES)) < 0.5).astype(np.float32)
    return x, rng.integers(0, CLASSES, RECORDS)


@dataclasses.dataclass(frozen=True)
class VictimTrial:
    """One method on a client that it takes.

    Attributes:
      method: its record.
      settings: of the victim.
    """

    method: Method
    settings: VictimSettings

    @classmethod
    def of(cls, method: Method) -> "VictimTrial":
        """The method on the first variant that it does not refuse. Raises `ValueError` if it
        refuses all."""
        for variant in VARIANTS:
            if not method.refuses(variant):
                return cls(method, variant)
        raise ValueError(f"method={method.name!r} refuses every client that laws are tried on")

    @property
    def attack(self) -> Any:
        """Its settings, as it runs."""
        return self.method.settles(quicker(self.method.settings), self.settings)

    @property
    def key(self) -> Array:
        """Key of what is random."""
        return jax.random.key(7)

    @functools.cached_property
    def model(self) -> Model:
        """The shared model."""
        return mlp(FEATURES, (32,), CLASSES)

    @property
    def positions(self) -> list[int]:
        """Positions of the unknown columns."""
        return list(range(self.settings.columns))

    @property
    def truth(self) -> np.ndarray:
        """Truth of the unknown columns `[records, columns]`."""
        return records(0)[0][: self.known, self.positions].astype(int)

    @property
    def known(self) -> int:
        """How many of the records are known."""
        return self.settings.known or RECORDS

    def messages(self, whose: Whose) -> Messages:
        """Messages of the client itself, of another one of the same federation, or of the client as
        it would be if the unknown columns did not enter the model."""
        (x, y), (x_other, y_other) = records(0), records(1)
        if whose == "absent":
            x[:, self.positions] = 0
        clients = stack_clients([(x, y), (x_other, y_other)])
        federated = Federated(ROUNDS, self.settings.training)
        run = simulate(self.model, self.model.init(self.key), clients, self.key, federated)
        return run.messages(1 if whose == "another" else 0)

    def view(
        self, whose: Whose = "own", left_in: Any = np.nan, rate: float | None = None, **changed: Any
    ) -> View:
        """What the method is given; in the unknown columns stands whatever is `left_in`."""
        x, y = records(0)
        x[: self.known, self.positions] = left_in
        fair = jnp.asarray([0.5, 0.5], jnp.float32)
        bits = jnp.asarray([[0.0], [1.0]])
        columns = tuple(UnknownColumn(jnp.asarray([p]), bits, fair) for p in self.positions)
        training = self.settings.training
        if not self.method.simulates:
            training = LocalTraining(training.learning_rate * training.steps(RECORDS))
        told = jnp.asarray(training.learning_rate if rate is None else rate, jnp.float32)
        training = dataclasses.replace(training, learning_rate=told)
        known = Knowledge(jnp.asarray(x[: self.known]), jnp.asarray(y[: self.known]), columns)
        seen, others = self.messages(whose), RECORDS - self.known
        view = View(self.model, seen, known, training, self.key, self.learned, others)
        return dataclasses.replace(view, **changed)

    @functools.cached_property
    def learned(self) -> Any:
        """What a method that learns has learned, on records of nobody."""
        if self.method.learns is None:
            return None
        x, y = (np.concatenate(each) for each in zip(*map(records, range(2, 10)), strict=True))
        values = jnp.asarray(x[:, 0].astype(int))
        learns: Any = self.method.learns
        return learns.rule(
            2, Public(jnp.asarray(x), jnp.asarray(y), values, self.key, jnp.asarray([0]))
        )

    @functools.cached_property
    def compiled(self) -> Any:
        """The method under an outer `jit`: one program for all calls of a trial."""

        def run(*arrays: Any) -> Reconstruction:
            view = View(self.model, *arrays)
            return self.run(dataclasses.replace(view, others=RECORDS - self.known))

        return jax.jit(run)

    def run(self, view: View) -> Reconstruction:
        """The answer, called as from a notebook; of so few steps it may be wrong."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SomeWrongWarning)
            answer: Reconstruction = self.method.run(view, self.attack)
        return answer

    def answer(self, view: View) -> Reconstruction:
        """The answer under `jit`, in the precision that the method asks for."""
        with jax.enable_x64(self.method.x64):
            answer: Reconstruction = self.compiled(*arrays_of(view))
            return answer

    def accuracy(self, answer: Reconstruction) -> float:
        """NaN if it failed."""
        values = np.stack([np.asarray(v) for v in answer.values], 1)
        return float("nan") if (values < 0).any() else float((values == self.truth).mean())


def arrays_of(view: View) -> tuple[Any, ...]:
    """All that a view holds but the model."""
    return view.messages, view.knowledge, view.training, view.key, view.learned
