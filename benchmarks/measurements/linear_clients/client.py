"""One client that takes full-batch steps of least squares: what is seen of it, and the truth."""

import dataclasses
import functools
import warnings
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from attacks import (
    InferredAttribute,
    Knowledge,
    LocalOptimum,
    Moments,
    linear_parameters,
    local_optimum,
    structured_moments,
)
from benchmarks.harness.experiment import Method
from benchmarks.scenarios.federations import Federation, FederationSettings
from benchmarks.scenarios.imputation import imputed_in
from jaxfl import LocalTraining, Messages, Model


@dataclasses.dataclass(frozen=True)
class LinearSettings(FederationSettings):
    """A federation of linear clients that take one full-batch step a round, in 64 bits.

    Attributes:
      client: number of the client reported, or "mean" over the attacked ones.
      grid: sets of observed rounds {0, S, 2S, ..., R}, as "R:S", among which an attack from
        gradients chooses by its own objective (Appendix A.2).
    """

    model: Literal["linear", "mlp"] = "linear"
    hidden: tuple[int, ...] = ()
    training: LocalTraining = LocalTraining(0.01)
    client: int | str = "mean"
    grid: tuple[str, ...] = tuple(f"{r}:{s}" for r in (100, 300, 500, 1000) for s in (10, 30, 50))


class Answer(NamedTuple):
    """What a method says of one client.

    Attributes:
      values: of the attribute `[records]`; -1 if the attack failed.
      model: the linear model it looked at `[features + 1]`, if any.
      proven: what is proven of the answer, if anything.
      reason: why public columns were used beside messages; "" if they were not.
    """

    values: np.ndarray
    model: np.ndarray | None = None
    proven: InferredAttribute | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """What the adversary has of one client, and what methods share, made once.

    Attributes:
      settings: of the federation.
      model: the shared model.
      final: its parameters after the last round.
      messages: of the client.
      known: of its records.
      training: its recipe.
      key: what is random in attacks.
    """

    settings: LinearSettings
    model: Model
    final: Any
    messages: Messages
    known: Knowledge
    training: LocalTraining
    key: jax.Array

    @property
    def attribute(self) -> int:
        """Its position."""
        return int(self.known.columns[0].positions[0])

    @property
    def public(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Records with NaN for the attribute, their targets, and where the attribute is."""
        x, y = (np.asarray(a).astype(float) for a in (self.known.x, self.known.y))
        return x, y, self.attribute

    @functools.cached_property
    def moments(self) -> Moments:
        """What messages and public columns say of the records' moments."""
        return structured_moments(self.messages, *self.public, float(self.training.learning_rate))

    @functools.cached_property
    def alone(self) -> LocalOptimum:
        """The optimum out of messages alone."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return local_optimum(self.messages)

    @property
    def decoded(self) -> np.ndarray:
        """The optimum: without one that messages identify the public columns decide; the attack's
        premise has them known."""
        return self.alone.params if self.alone.identifiable else self.moments.optimum

    @property
    def global_model(self) -> np.ndarray:
        """The shared model after the last round."""
        return linear_parameters(jax.tree.map(lambda a: a[None], self.final))[0]

    @property
    def last(self) -> np.ndarray:
        """The model it returned last."""
        return linear_parameters(self.messages.returned)[-1]


class Client:
    """One client: what is seen of it, and the truth, for scoring."""

    def __init__(
        self, federation: Federation, settings: LinearSettings, c: int, heard: int | None = None
    ):
        """Client `c` of a federation; of client `heard` are the messages, where that is another."""
        self.federation, self.settings, self.c = federation, settings, c
        sender = c if heard is None else heard
        known, self.truth = federation.knowledge(c)
        self.view = View(
            settings,
            federation.model,
            federation.final,
            federation.messages[sender],
            known,
            federation.training[c],
            jax.random.fold_in(federation.key, c),
        )
        self.design, _ = self._records_of(c)
        self.optimum = np.linalg.lstsq(*self._records_of(sender), rcond=None)[0]

    def _records_of(self, c: int) -> tuple[np.ndarray, np.ndarray]:
        """Records of a client, with a column of ones; and the records' targets."""
        rows, data = self.federation.parts[c], self.federation.data
        return np.c_[data.x[rows].astype(float), np.ones(len(rows))], data.y[rows].astype(float)

    @functools.cached_property
    def of_another(self) -> "Client | None":
        """The same, with another client's messages, of which an attack learns nothing of this one;
        None if nobody else is attacked."""
        count = len(self.federation.messages)
        heard = (self.c + 1) % count
        with jax.enable_x64(True):
            return Client(self.federation, self.settings, self.c, heard) if count > 1 else None

    def answer(self, method: Method, attack: Any) -> Answer:
        """A method's answer; a ceiling is given the client itself."""
        answer: Answer = method.run(self if method.ceiling else self.view, attack)
        return answer

    @functools.cached_property
    def imputed(self) -> float | None:
        """How much of its attribute is guessed without messages."""
        return imputed_in(self.federation, self.c)

    @property
    def majority(self) -> float:
        """Rate of the more frequent value."""
        return float(max(self.truth.mean(), 1 - self.truth.mean()))
