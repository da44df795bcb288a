"""What methods are given, and what they answer: `View`, which is what the adversary has of one
federation; and `Work`, which has the federation itself, and answers made when first asked for."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import Inversion, Knowledge, Mapping, Reconstruction, gls
from attacks.fit import Fit, FitWarning
from benchmarks.harness.clock import Clock, Spent
from benchmarks.harness.experiment import Method
from benchmarks.harness.trees import stack
from benchmarks.measurements.local_models.scores import explained, mean, targets
from benchmarks.scenarios.federations import (
    Federation,
    FederationSettings,
    isolated,
    optimum,
)
from benchmarks.scenarios.imputation import imputed_in
from benchmarks.scenarios.streams import attack_on
from jaxfl import LocalTraining, Messages, Model

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class LocalModelSettings(FederationSettings):
    """A federation, and what is measured of the attacked clients.

    Attributes:
      measures: "zest", "attribute", "source", "samples", or several.
      optimum_steps: steps from the common start that make the local optimum, at most.
      optimum_fit: how well it fits its client's records when its training ends: accuracy, or the
        mean absolute percentage error of a regression; None for all steps, by SGD.
      zest_records, zest_masks: reference records of a client, and masks for each.
      targets: records per client whose source is asked for; 0 for all.
      inversion: of a model into images.
    """

    measures: tuple[str, ...] = ("zest",)
    optimum_steps: int = 4000
    optimum_fit: float | None = None
    zest_records: int = 32
    zest_masks: int = 300
    targets: int = 100
    inversion: Inversion = Inversion(5000, 1e-3)


@dataclasses.dataclass(frozen=True)
class First:
    """An attack on a client's first messages.

    Attributes:
      messages: so many.
      attack: its settings.
    """

    messages: int
    attack: Any


@dataclasses.dataclass(frozen=True)
class FirstMessages:
    """How many of a client's messages are used, from the first."""

    messages: int


@dataclasses.dataclass(frozen=True)
class MapsOfClients:
    """A `Mapping` of models and updates as they are for each client, as Driouich 2023 prints them
    (Tables 5 to 8). A federation of more clients takes them in turn.

    Attributes:
      widths: of both hidden layers, for each client.
      fit_rates: step sizes of Eq. 7.
      search_steps: of Eq. 8.
      search_rates: their step sizes.
      fit_steps: of Eq. 7, everyone's. The paper prints none; of so many that which explains
        held-out updates best is taken.
    """

    widths: tuple[int, ...]
    fit_rates: tuple[float, ...]
    search_steps: tuple[int, ...]
    search_rates: tuple[float, ...]
    fit_steps: int

    def of(self, c: int) -> Mapping:
        """The settings of client `c`'s."""
        width = self.widths[c % len(self.widths)]
        return Mapping(
            hidden=(width, width),
            fit_steps=self.fit_steps,
            fit_rate=self.fit_rates[c % len(self.fit_rates)],
            search_steps=self.search_steps[c % len(self.search_steps)],
            search_rate=self.search_rates[c % len(self.search_rates)],
            scaling="literal",
        )


@dataclasses.dataclass(frozen=True)
class Modelling:
    """Traits of a method.

    Attributes:
      names_sources: whether records' sources are read out of its models. One model for all names
        none, and who knows all public columns of every client's records knows the sources.
      inversion_scale: by which the step size of inversion is multiplied for its models.
      uses_decoded: whether it starts from what `gls` reconstructs, which is timed apart.
      answers: the question that it answers, if it is one alone.
    """

    names_sources: bool = True
    inversion_scale: float = 1.0
    uses_decoded: bool = False
    answers: Literal["attribute", "source", "samples"] | None = None


class LocalModels(NamedTuple):
    """Models that stand for the attacked clients' own.

    Attributes:
      params: one model per attacked client.
      unexplained: what a fitted map misses of held-out updates' energy, per client, where one is
        fitted.
      misfit: whether any of them says nothing that the client's last model does not.
    """

    params: list[Any]
    unexplained: list[float] | None = None
    misfit: bool = False


class Values(NamedTuple):
    """Values of the sensitive column.

    Attributes:
      values: of the sensitive column, per attacked client.
      fit: how well they explain each client's messages, where that is judged.
      dtype: in which they were computed.
    """

    values: list[np.ndarray]
    fit: Fit | None = None
    dtype: str = "float32"


class Sources(NamedTuple):
    """Clients named for records.

    Attributes:
      answers: clients named for records `[records]`; of several answers the best is scored.
      fit: how well they explain each client's messages, where that is judged.
    """

    answers: Sequence[np.ndarray]
    fit: Fit | None = None


class Images(NamedTuple):
    """Reconstructed images.

    Attributes:
      images: in [0, 1], per attacked client `[images, height, width, channels]`.
    """

    images: list[Array]


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """What an adversary has of the attacked clients, and no more.

    Attributes:
      settings: of the federation, and of what is measured.
      model: the shared model.
      start: its parameters before the first round.
      final: the same after the last one.
      shape: of a record.
      messages: of each attacked client, in the observed rounds.
      known: of each one's records, if the table has columns; nothing where their sources are asked
        for.
      training: each one's recipe.
      sizes: how many records each one has.
      asked: whole records whose source is asked for, in random order, and their labels; nothing
        where their attribute is.
      isolate: from a client's place to the model that it returns last if the server sends it its
        own model back in every round, as an active adversary may.
      key: what is random in attacks.
    """

    settings: LocalModelSettings
    model: Model
    start: Any
    final: Any
    shape: tuple[int, ...]
    messages: list[Messages]
    known: list[Knowledge]
    training: list[LocalTraining]
    sizes: list[int]
    asked: tuple[Array, ...]
    isolate: Callable[[int], Any]
    key: Array

    @property
    def count(self) -> int:
        """How many clients are attacked."""
        return len(self.messages)

    def first(self, c: int, count: int) -> Messages:
        """The first messages of a client."""
        return jax.tree.map(lambda a: a[:count], self.messages[c])

    def key_of(self, c: int) -> Array:
        """Randomness of attacks on a client."""
        return attack_on(self.key, c)

    @property
    def returned(self) -> Any:
        """Models the clients returned, leaves `[rounds, clients, ...]`."""
        return jax.tree.map(
            lambda *leaves: jnp.stack(leaves, 1), *(m.returned for m in self.messages)
        )

    @functools.cached_property
    def _decoded(self) -> "dict[First, Values]":
        return {}

    def decoded(self, settings: First) -> Values:
        """The sensitive column that `gls` reconstructs of every attacked client, made once."""
        if settings not in self._decoded:
            self._decoded[settings] = gls_attributes(self, settings)
        return self._decoded[settings]


class Work:
    """One federation, and answers of methods on it, made when first asked for."""

    def __init__(self, federation: Federation, settings: LocalModelSettings):
        """Work on one federation."""
        self.federation, self.settings = federation, settings
        self.count = len(federation.messages)
        self.spent: dict[Any, Spent] = {}
        """What each answer took, however many metrics share it."""
        self._made: dict[Any, Any] = {}

    def answer(self, method: Method, attack: Any) -> Any:
        """A method's answer; a ceiling is given the federation itself."""
        of_sources = method.traits is not None and method.traits.answers == "source"
        view = self.view_of_sources if of_sources else self.view
        given = self if method.ceiling else view
        return self._timed((method.name, attack), lambda: method.run(given, attack))

    def decoded(self, settings: First) -> None:
        """Have `View.decoded` made, timed as the answer of `gls`."""
        self._timed(("gls", settings), lambda: self.view.decoded(settings))

    @functools.cached_property
    def view_of_sources(self) -> View:
        """What an adversary has that asks whose records are."""
        return dataclasses.replace(self.view, known=[], asked=self.asked)

    @functools.cached_property
    def asked(self) -> tuple[Array, Array]:
        """Records whose source is asked for, and their labels."""
        (rows, _), data = self.targets, self.federation.data
        return jnp.asarray(data.x[rows]), jnp.asarray(data.y[rows])

    @functools.cached_property
    def view(self) -> View:
        """What the other adversaries have."""
        federation, data = self.federation, self.federation.data
        known = [federation.knowledge(c)[0] for c in range(self.count)] if data.columns else []
        rounds = self.settings.rounds
        return View(
            self.settings,
            federation.model,
            federation.start,
            federation.final,
            data.x.shape[1:],
            federation.messages,
            known,
            federation.training[: self.count],
            [len(rows) for rows in federation.parts[: self.count]],
            (),
            lambda c: isolated(federation, c, rounds),
            federation.key,
        )

    @functools.cached_property
    def of_others(self) -> View:
        """The same, where each attacked client's messages are the next one's: of these an attack
        that knows the client's records learns nothing of them."""
        messages = self.federation.messages
        return dataclasses.replace(self.view, messages=[*messages[1:], messages[0]])

    @functools.cached_property
    def optima(self) -> list[Any]:
        """The clients' optimal local models."""
        return self._timed(("optimum", None), lambda: local_optima(self, None)).params

    @functools.cached_property
    def explanations(self) -> list[Array]:
        """Explanations of the optima, which those of all other models are compared with."""
        return [self.explained(c, params) for c, params in enumerate(self.optima)]

    def explained(self, c: int, params: Any) -> Array:
        """A model's explanations around records of a client."""
        settings = self.settings
        return explained(self.federation, c, params, settings.zest_records, settings.zest_masks)

    def _timed(self, place: Any, make: Callable[[], Any]) -> Any:
        if place not in self._made:
            clock = Clock()
            self._made[place] = jax.block_until_ready(make())
            self.spent[place] = clock.read()
        return self._made[place]

    @functools.cached_property
    def imputed(self) -> float | None:
        """How much of the sensitive columns is guessed without messages, mean over clients; None
        where there is no other client to learn it from."""
        guesses = [imputed_in(self.federation, c) for c in range(self.count)]
        return None if None in guesses else mean([g for g in guesses if g is not None])

    @functools.cached_property
    def targets(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows whose source is asked for, and the client each was drawn from."""
        return targets(self.federation, self.settings.targets)


def local_optima(work: Work, settings: None) -> LocalModels:
    """What the clients would make of their records alone."""
    steps, fit = work.settings.optimum_steps, work.settings.optimum_fit
    return LocalModels([optimum(work.federation, c, steps, fit) for c in range(work.count)])


def gls_attributes(view: View, settings: First) -> Values:
    """The sensitive column that `gls` reconstructs of every attacked client. Of clients without
    defences it can take changes of records' gradients for noise, in 64 bits."""
    pieces = settings.attack.drift if view.settings.defense == "none" else 0

    def one(c: int) -> Reconstruction:
        attack = dataclasses.replace(settings.attack, training=view.training[c], drift=pieces)
        messages = view.first(c, settings.messages)
        return gls(view.model, messages, view.known[c], view.key_of(c), settings=attack)

    return read_each(view, one)._replace(dtype="float64" if pieces else "float32")


def read_each(view: View, attack: Callable[[int], Reconstruction]) -> Values:
    """What an attack reads of every attacked client."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the row tells it
        answers = [attack(c) for c in range(view.count)]
    fits = stack(answer.fit for answer in answers)
    return Values([np.asarray(answer.values[0]) for answer in answers], fits)
