"""What methods are given, and what they answer: one federation, and answers made when first asked
for."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Inversion,
    Mapping,
    Reconstruction,
    gls,
)
from attacks.fit import Fit, FitWarning
from benchmarks.harness.clock import Clock, Spent
from benchmarks.harness.experiment import Method
from benchmarks.measurements.local_models.scores import (
    explained,
    mean,
    targets,
)
from benchmarks.scenarios.federations import (
    Federation,
    FederationSettings,
    optimum,
)
from benchmarks.scenarios.imputation import imputed_in
from benchmarks.scenarios.streams import attack_on
from jaxfl import Messages

Array = jax.Array
SHOWN = 8
"""Images in a row of the report."""


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
    """

    values: list[np.ndarray]
    fit: Fit | None = None


class Sources(NamedTuple):
    """Clients named for records.

    Attributes:
      answers: clients named for records `[records]`; of several answers the best is scored.
      fit: how well they explain each client's messages, where that is judged.
    """

    answers: Sequence[np.ndarray]
    fit: Fit | None = None


class Images(NamedTuple):
    """How alike reconstructed images are to records.

    Attributes:
      likeness: to the clients' records, mean over clients.
      grey: of plain grey images.
      pictures: by caption.
    """

    likeness: float
    grey: float
    pictures: dict[str, np.ndarray]


class Work:
    """One federation, and answers of methods on it, made when first asked for."""

    def __init__(self, federation: Federation, settings: LocalModelSettings):
        """Of one federation."""
        self.federation, self.settings = federation, settings
        self.count = len(federation.messages)
        self.spent: dict[Any, Spent] = {}
        """What each answer took, however many metrics share it."""
        self._made: dict[Any, Any] = {}

    def answer(self, method: Method, attack: Any) -> Any:
        """A method's answer."""
        return self._timed((method.name, attack), lambda: method.run(self, attack))

    def attributes(self, settings: First) -> list[np.ndarray]:
        """Values of the sensitive column that `gls` reconstructs, per attacked client."""
        return self._timed(("gls", settings), lambda: gls_attributes(self, settings)).values

    @functools.cached_property
    def optima(self) -> list[Any]:
        """The clients' optimal local models."""
        return self._timed(("optimum", None), lambda: local_optima(self, None)).params

    @functools.cached_property
    def explanations(self) -> list[Array]:
        """Of the optima, which all other models are compared with."""
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

    def seen(self, c: int, count: int) -> Messages:
        """The first messages of a client."""
        return jax.tree.map(lambda a: a[:count], self.federation.messages[c])

    @functools.cached_property
    def of_others(self) -> "Work":
        """The same federation, where each attacked client's messages are the next one's: of these
        an attack that knows the client's records learns nothing of them."""
        messages = self.federation.messages
        shifted = [*messages[1:], messages[0]]
        return Work(dataclasses.replace(self.federation, messages=shifted), self.settings)

    @functools.cached_property
    def imputed(self) -> float | None:
        """How much of the sensitive columns is guessed without messages, mean over clients; None
        where there is no other client to learn it from."""
        guesses = [imputed_in(self.federation, c) for c in range(self.count)]
        return None if None in guesses else mean([g for g in guesses if g is not None])

    def key(self, c: int) -> Array:
        """Randomness of attacks on a client."""
        return attack_on(self.federation.key, c)

    @functools.cached_property
    def targets(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows whose source is asked for, and the client each was drawn from."""
        return targets(self.federation, self.settings.targets)

    @property
    def returned(self) -> Any:
        """Models the clients returned, leaves `[rounds, clients, ...]`."""
        messages = self.federation.messages
        return jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *(m.returned for m in messages))

    @property
    def asked(self) -> tuple[Array, Array]:
        """Records whose source is asked for, and their labels."""
        rows, _ = self.targets
        return jnp.asarray(self.federation.data.x[rows]), jnp.asarray(self.federation.data.y[rows])


def local_optima(work: Work, settings: None) -> LocalModels:
    """What the clients would make of their records alone."""
    steps, fit = work.settings.optimum_steps, work.settings.optimum_fit
    made = [optimum(work.federation, c, steps, fit=fit) for c in range(work.count)]
    return LocalModels(made)


def drift(settings: FederationSettings, asked: int) -> int:
    """For how many pieces of a path `gls` takes changes of records' gradients for noise: it can of
    clients without defences."""
    return asked if settings.defense == "none" else 0


def gls_attributes(work: Work, settings: First) -> Values:
    """The sensitive column that `gls` reconstructs of every attacked client."""

    def one(c: int) -> Reconstruction:
        known, _ = work.federation.knowledge(c)
        pieces = drift(work.settings, settings.attack.drift)
        training = work.federation.training[c]
        attack = dataclasses.replace(settings.attack, training=training, drift=pieces)
        model, seen = work.federation.model, work.seen(c, settings.messages)
        return gls(model, seen, known, work.key(c), settings=attack)

    return read_each(work, one)


def read_each(work: Work, attack: Callable[[int], Reconstruction]) -> Values:
    """What an attack reads of every attacked client."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the row tells it
        answers = [attack(c) for c in range(work.count)]
    fits = jax.tree.map(lambda *a: jnp.stack(a), *(answer.fit for answer in answers))
    return Values([np.asarray(answer.values[0]) for answer in answers], fits)
