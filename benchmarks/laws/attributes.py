"""Laws of attacks on attributes: what methods of `benchmarks.measurements.attributes` answer when
they are called on a client's messages."""

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attacks import (
    FitWarning,
    Knowledge,
    Reconstruction,
    Status,
    UnknownColumn,
)
from benchmarks.harness.experiment import Method
from benchmarks.harness.programs import host_calls, reduced_products
from benchmarks.harness.trees import stack
from benchmarks.laws.law import BrokenLawError, Law, require
from benchmarks.laws.programs import compilations, lower, never_waits
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
ALIKE = 0.95
"""Share of values that answers agree on, at least, which are equal but for rounding: where two
values fit alike rounding decides, and a line search magnifies it."""
CHANCE = 0.5 + 4 * 0.5 / np.sqrt(RECORDS)
"""What a guess of fair bits stays below, but for one case in 30,000."""
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
        return learns.rule((0,), 2, Public(jnp.asarray(x), jnp.asarray(y), values, self.key))

    @functools.cached_property
    def compiled(self) -> Any:
        """The method under an outer `jit`: one program for all calls of a trial."""

        def run(*arrays: Any) -> Reconstruction:
            view = View(self.model, *arrays)
            return self.run(dataclasses.replace(view, others=RECORDS - self.known))

        return jax.jit(run)

    def run(self, view: View) -> Reconstruction:
        """The answer, called as from a notebook."""
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


def agree(answer: Reconstruction, other: Reconstruction) -> float:
    """How many values are the same in the column where fewest are."""
    pairs = zip(answer.values, other.values, strict=True)
    return min(float(np.mean(np.asarray(a) == np.asarray(b))) for a, b in pairs)


def blind_to_another_clients_messages(trial: VictimTrial) -> None:
    """To which no truth belongs."""
    accuracy = trial.accuracy(trial.answer(trial.view("another")))
    require(accuracy < CHANCE, "it reads a client that sent nothing: the truth leaks into it")


def another_clients_messages_are_a_misfit(trial: VictimTrial) -> None:
    """And the client's own are none, of methods that say whether they explain messages."""
    own, another = (trial.answer(trial.view(whose)) for whose in ("own", "another"))
    told = bool(np.isfinite(own.fit.misfit))
    require(told == trial.method.explains, f"explains={trial.method.explains}, misfit told: {told}")
    require(own.status == Status.OK, "the client's own messages are no success")
    if trial.method.explains:
        require(own.fit.misfit < 1, "the client's own messages are called a misfit")
        require(another.fit.misfit > 1, "another client's messages are called explained")
        require(another.status == Status.MISFIT, "another client's messages have no misfit")


def an_absent_column_is_not_found(trial: VictimTrial) -> None:
    """A column that does not enter the model tells nothing of itself."""
    accuracy = trial.accuracy(trial.answer(trial.view("absent")))
    require(accuracy < CHANCE, "a column that does not enter the model is read")


def erased_truth_changes_nothing(trial: VictimTrial) -> None:
    """To the last bit."""
    truth = trial.truth.astype(np.float32)
    first, *others = (trial.answer(trial.view(left_in=left)) for left in (np.nan, truth, 1 - truth))
    for other in others:
        same = jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), first, other)
        require(all(jax.tree.leaves(same)), "what stands in the unknown columns enters the answer")


def _fails(answer: Reconstruction, why: str) -> None:
    require(int(answer.status) == Status.FAILED, why)
    require(all((np.asarray(v) == -1).all() for v in answer.values), f"{why}: it names values")


def messages_that_are_not_finite_give_no_answer(trial: VictimTrial) -> None:
    """A failed status, and -1 for every value."""
    messages = trial.messages("own")
    models = messages.received, messages.returned
    received, returned = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), models)
    view = trial.view(messages=Messages(received, returned, messages.rounds))
    _fails(trial.answer(view), "it answers to messages that are not finite")


def messages_that_hold_no_update_give_no_answer(trial: VictimTrial) -> None:
    """Likewise: nothing is explained."""
    messages = trial.messages("own")
    silent = Messages(messages.received, messages.received, messages.rounds)
    _fails(trial.answer(trial.view(messages=silent)), "it explains what nobody sent")


def same_arguments_same_answer(trial: VictimTrial) -> None:
    """To the last bit."""
    first, again = (trial.answer(trial.view()) for _ in range(2))
    require(agree(first, again) == 1, "the same arguments give two answers")


def an_outer_jit_changes_nothing(trial: VictimTrial) -> None:
    """But for rounding; see `ALIKE`."""
    view = trial.view()
    with jax.enable_x64(trial.method.x64):
        plain = trial.run(view)
    require(agree(plain, trial.answer(view)) > ALIKE, "an outer jit changes the answer")


def constants_of_an_outer_jit_are_no_tracers(trial: VictimTrial) -> None:
    """What an outer `jit` closes over may be looked at."""
    view = trial.view()
    with jax.enable_x64(trial.method.x64):
        answer = jax.jit(lambda: trial.run(view))()
    require(agree(answer, trial.answer(view)) > ALIKE, "constants of a jit change the answer")


def another_number_compiles_nothing(trial: VictimTrial) -> None:
    """Called from a notebook: without an outer `jit`, and told another rate. That is not the
    client's, so that methods that explain messages warn."""

    def run(rate: float) -> None:
        with jax.enable_x64(trial.method.x64), warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            jax.block_until_ready(trial.run(trial.view(rate=rate)))

    run(0.2)
    with compilations() as compiled:
        run(0.3)
        require(not compiled, f"another learning rate compiles {compiled}")
        jax.jit(lambda x: x + trial.settings.records)(0.0)
        require(compiled, "nothing was listened to")


def accelerators_run_it(trial: VictimTrial) -> None:
    """It is lowered for them, without one, waits for no host, and its products are made in float32:
    their own default, TensorFloat-32, makes every message a misfit."""
    with jax.enable_x64(trial.method.x64):
        traced = trial.compiled.trace(*arrays_of(trial.view()))
        reduced = reduced_products(traced.jaxpr)
        require(not reduced, f"it leaves to a device's precision: {reduced[:1]}")
        waits = host_calls(traced.jaxpr)
        require(not waits, f"it waits for the host: {waits[:1]}")
        lower(traced)


def vmap_is_a_loop(trial: VictimTrial) -> None:
    """But for rounding; see `ALIKE`."""
    views = [trial.view(), trial.view(key=jax.random.key(8))]
    stacked = stack(map(arrays_of, views))
    several = jax.jit(jax.vmap(lambda inputs: trial.compiled(*inputs)))
    with jax.enable_x64(trial.method.x64):
        never_waits(several.trace(stacked))
        together = several(stacked)
    for i, view in enumerate(views):
        each = jax.tree.map(lambda a, i=i: a[i], together)
        require(agree(each, trial.answer(view)) > ALIKE, "vmap over victims is no loop over them")


def answers_with_64_bit_types_on(trial: VictimTrial) -> None:
    """But for rounding."""
    answer = trial.answer(trial.view())
    with jax.enable_x64(True):
        wide = trial.run(trial.view())
    require(agree(answer, wide) > ALIKE, "64-bit types change the answer")


def bad_input_is_named(trial: VictimTrial) -> None:
    """By argument."""
    view = trial.view()
    known, y = view.knowledge, jnp.asarray(view.knowledge.y)
    no_rounds = jax.tree.map(lambda a: a[:0], view.messages)
    broken: dict[str, Any] = {
        "holds no rounds|must hold something": {"messages": no_rounds},
        "y": {"knowledge": dataclasses.replace(known, y=y[:-1])},
        "finite": {"knowledge": dataclasses.replace(known, x=known.x.at[3, 9].set(jnp.nan))},
        "columns": {"knowledge": dataclasses.replace(known, columns=())},
        "label": {"knowledge": dataclasses.replace(known, y=y.at[0].set(99))},
    }
    for words, changed in broken.items():
        try:
            with jax.enable_x64(trial.method.x64):
                trial.run(dataclasses.replace(view, **changed))
        except ValueError as error:
            require(re.search(words, str(error)), f"{error} says nothing of {words!r}")
        else:
            raise BrokenLawError(f"bad {next(iter(changed))} is taken: nothing says {words!r}")


def a_declaration_is_kept(trial: VictimTrial) -> None:
    """What a method takes it answers; what it refuses it gives a reason for."""
    answer = trial.answer(trial.view())
    require(len(answer.values) == trial.settings.columns, "it does not answer for every column")
    named = set(np.unique(np.concatenate([np.asarray(v) for v in answer.values])).tolist())
    require(named <= {-1, 0, 1}, f"it names values {named} of a column of two")
    reasons = [trial.method.refuses(variant) for variant in VARIANTS]
    require(all(r is None or len(r) > 10 for r in reasons), "it refuses without a reason")


Check = Callable[[VictimTrial], None]
OF_ALL: tuple[Check, ...] = (
    erased_truth_changes_nothing,
    same_arguments_same_answer,
    an_outer_jit_changes_nothing,
    constants_of_an_outer_jit_are_no_tracers,
    another_number_compiles_nothing,
    accelerators_run_it,
    vmap_is_a_loop,
    answers_with_64_bit_types_on,
    a_declaration_is_kept,
)
OF_OBSERVERS: tuple[Check, ...] = (
    blind_to_another_clients_messages,
    another_clients_messages_are_a_misfit,
    an_absent_column_is_not_found,
    messages_that_are_not_finite_give_no_answer,
    bad_input_is_named,
)
OF_EXPLAINERS: tuple[Check, ...] = (messages_that_hold_no_update_give_no_answer,)


def laws_of(method: Method) -> dict[str, Law]:
    """Laws that a method is bound by: those of observers, if it looks at messages at all, and those
    of what explains them."""
    trial = _trial_of(method)
    checks = OF_ALL + (OF_OBSERVERS if method.observes else ())
    checks += OF_EXPLAINERS if method.explains else ()
    return {
        check.__name__: Law(check.__name__, method.name, functools.partial(check, trial))
        for check in checks
    }


def takes(method: Method) -> bool:
    """Whether a method takes one of the clients that these laws are tried on."""
    return any(not method.refuses(variant) for variant in VARIANTS)


@functools.lru_cache(maxsize=4)
def _trial_of(method: Method) -> VictimTrial:
    return VictimTrial.of(method)
