"""What an experiment is: its settings, its methods, its metrics, and how it runs.

A contributor enters an attack into the benchmark by one `Method` in a measurement's table; the
sweep, `--list`, the report, the estimates and the law tests read the same record.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.harness.settings import flatten

PLACE = {"suite", "table", "size", "dataset", "method", "seed"}
"""What says where a row stands: two jobs that differ in one of these only are two."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """What is measured.

    Attributes:
      name: as in the column `metric`.
      about: what it says, one line.
      proportion: whether it lies between 0 and 1: then intervals do too, and are Wilson's where all
        seeds agree and an outcome says of how many records it is (`scored_records`).
      chance: what a blind guess reaches, where that does not depend on the data.
      less_is_better: whether it is an error: then the best guess has the least.
    """

    name: str
    about: str
    proportion: bool = False
    chance: float | None = None
    less_is_better: bool = False


def no_run(*arguments: Any) -> Any:
    """The run of a method that its experiment makes out of others' answers."""
    raise TypeError("this method has no run of its own")


def as_given(settings: Any, experiment: Any) -> Any:
    """Settings of a method that go with all of its experiment's."""
    return settings


def refuses_nothing(settings: Any) -> None:
    """The declaration of a method that no setting of its experiment stops."""


def no_structure(settings: Any) -> None:
    """The structure of an experiment whose programs are one, whatever its traced settings."""


@dataclasses.dataclass(frozen=True)
class Method:
    """One method of an experiment.

    Attributes:
      name: as in the column `method`.
      about: what it does, one line.
      run: the attack; what it is called with is the experiment's to say. Methods are equal if they
        run the same function: a changed attack is compiled anew.
      settings: the attack's own frozen record, with the values that hold where a cell says nothing
        else; or None.
      filled: names of those of its settings that the experiment fills in from the run, such as the
        client's recipe: a cell does not set them.
      settles: from its settings and the experiment's to those that it runs with, and that its rows
        say, where not all go together.
      refuses: from an experiment's settings to why the method cannot be used there, or None if it
        can.
      observes: whether it looks at recorded messages at all; a guess does not, nor an attack on the
        shared model, nor one that takes part in the training.
      selects: whether it has an objective, by which an adversary can choose among sets of rounds.
      learns: from (data, attribute, seed) to what it learns on public records before it attacks, or
        None; how it is called is the experiment's to say.
      explains: whether its answer says how well it explains the messages (`attacks.Fit`).
      oracle: whether it chooses by the score, which no adversary can.
      ceiling: whether it has what no adversary has, such as the client's records: what others are
        held against.
      simulates: whether it simulates the client's training.
      x64: whether it computes in 64 bits.
      traits: what its experiment alone asks of it, in the experiment's own frozen record; None for
        what most of its methods have.
    """

    name: str
    about: str
    run: Callable[..., Any] = no_run
    settings: Any = None
    filled: tuple[str, ...] = ()
    settles: Callable[[Any, Any], Any] = as_given
    refuses: Callable[[Any], str | None] = refuses_nothing
    observes: bool = True
    selects: bool = False
    learns: Callable[..., Any] | None = None
    explains: bool = False
    oracle: bool = False
    ceiling: bool = False
    simulates: bool = False
    x64: bool = False
    traits: Any = None


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One question with all methods that answer it. Experiments of equal name and methods are
    equal.

    Attributes:
      name: of the measurement.
      settings: the type of its settings, a frozen record.
      methods: its methods, baselines among them.
      metrics: all that it measures.
      run: `run(jobs, data_dir)` runs jobs of one group and yields outcomes as they come.
      asked: flat names of settings that change what is asked of a run, not the run.
      traced: flat names of settings in which members of one compiled program may differ.
      structure: from settings to what else members must have in common, such as whether there is
        noise at all.
      batched: whether `run` takes all seeds as one batch, on all devices. If not, each seed is a
        group of its own.
      alone: whether nothing may run beside it: it measures time.
      traits: the type of its methods' traits, a frozen record whose fields all have defaults; None
        if there are none.
    """

    name: str
    settings: type = dataclasses.field(compare=False)
    methods: tuple[Method, ...]
    metrics: tuple[Metric, ...] = dataclasses.field(compare=False)
    run: Callable[..., Iterator[Any]] = dataclasses.field(compare=False)
    asked: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    traced: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    structure: Callable[[Any], Any] = dataclasses.field(default=no_structure, compare=False)
    batched: bool = dataclasses.field(default=True, compare=False)
    alone: bool = dataclasses.field(default=False, compare=False)
    traits: type | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        for kind, named in (("method", self.methods), ("metric", self.metrics)):
            names = [each.name for each in named]
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"experiment {self.name}: {kind} {min(twice)!r} is there twice")
        taken = {field.name for field in dataclasses.fields(self.settings)} & PLACE
        if taken:
            raise ValueError(
                f"experiment {self.name}: a setting is called {min(taken)!r}, which says where a "
                "row stands"
            )
        for method in self.methods:
            if method.traits is not None and type(method.traits) is not self.traits:
                wanted = self.traits.__name__ if self.traits else "None"
                raise ValueError(
                    f"experiment {self.name}: method {method.name!r} has "
                    f"traits={method.traits!r}; they must be {wanted}"
                )

    def method(self, name: str) -> Method:
        """A method by name. Raises `ValueError` if there is none."""
        return _by_name(self.methods, name, f"method={name!r} is unknown to {self.name}")

    def metric(self, name: str) -> Metric:
        """A metric by name. Raises `ValueError` if there is none."""
        return _by_name(self.metrics, name, f"metric={name!r} is unknown to {self.name}")

    def traits_of(self, method: Method) -> Any:
        """A method's traits: its own, or those of most methods."""
        return method.traits if method.traits or self.traits is None else self.traits()

    def with_methods(self, *methods: Method) -> "Experiment":
        """This experiment with more methods: how an attack from outside enters a sweep."""
        return dataclasses.replace(self, methods=self.methods + methods)

    def run_of(self, settings: Any) -> tuple[tuple[str, Any], ...]:
        """What tells one run from another: all settings but what is asked of it."""
        return _without(settings, self.asked)

    def program_of(self, settings: Any) -> Any:
        """What must be equal for runs to share one compiled program."""
        return _without(settings, self.asked + self.traced), self.structure(settings)


def _by_name(named: Iterable[Any], name: str, complaint: str) -> Any:
    for each in named:
        if each.name == name:
            return each
    raise ValueError(f"{complaint}; choose from {', '.join(each.name for each in named)}")


def _without(settings: Any, names: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in flatten(settings).items() if name not in names)
