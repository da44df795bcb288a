"""Laws that every method of `benchmarks.measurements.attributes` obeys, whatever its name.

`laws_of` maps names to functions of a `Trial`; a test of an attack from outside calls the same
functions.
"""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import MisfitWarning, Status, fit_public_model
from attacks.attributes.knowledge import Knowledge, UnknownColumn
from benchmarks.harness.programs import reduced_products
from benchmarks.measurements.attributes import View
from benchmarks.scenarios.victims import VictimSettings
from jaxfl import Federated, LocalTraining, Messages, mlp, simulate, stack_clients
from tests.laws.lowering import lowers

RECORDS, FEATURES, CLASSES, ROUNDS = 48, 12, 3, 4
KEY = jax.random.key(7)
VARIANTS = (
    VictimSettings(0, RECORDS, training=LocalTraining(0.5)),
    VictimSettings(0, RECORDS, training=LocalTraining(0.2, batch_size=12)),
    VictimSettings(0, RECORDS, columns=2, training=LocalTraining(0.5)),
    VictimSettings(0, RECORDS, training=LocalTraining(1e-3, optimizer=optax.adam)),
)
"""A full-batch client, one that trains in batches, one with two unknown columns, one of Adam."""
CHANCE = 0.5 + 4 * 0.5 / np.sqrt(RECORDS)
"""What a guess of fair bits stays below, but for one case in 30,000."""


FEWER = {"steps": 100, "evaluations": 60, "orders": 24, "points": 2}
"""Most of what a method may do here, by the names of settings: laws hold whatever it spends."""


def quicker(settings):
    """Settings with smaller budgets."""
    if settings is None:
        return None
    names = {field.name for field in dataclasses.fields(settings)} & set(FEWER)
    changes = {name: min(getattr(settings, name), FEWER[name]) for name in names}
    return dataclasses.replace(settings, **changes)


def records(seed):
    """Fair bits, of which the label is no function: nothing tells a column but the messages."""
    rng = np.random.default_rng(seed)
    x = (rng.random((RECORDS, FEATURES)) < 0.5).astype(np.float32)
    return x, rng.integers(0, CLASSES, RECORDS)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One method on a client that it takes.

    Attributes:
      method: its record.
      settings: of the victim.
    """

    method: object
    settings: VictimSettings

    @classmethod
    def of(cls, method):
        """The method on the first variant that it does not refuse."""
        return cls(method, next(v for v in VARIANTS if not method.refuses(v)))

    @property
    def attack(self):
        return quicker(self.method.settings)

    @functools.cached_property
    def model(self):
        return mlp(FEATURES, (32,), CLASSES)

    @property
    def positions(self):
        return range(self.settings.columns)

    @property
    def truth(self):
        return records(0)[0][:, : self.settings.columns].astype(int)

    def messages(self, which):
        """Of the client itself, of another one of the same federation, or of the client as it would
        be if the unknown columns did not enter the model."""
        (x, y), (x_other, y_other) = records(0), records(1)
        if which == "absent":
            x = x.copy()
            x[:, list(self.positions)] = 0
        clients = stack_clients([(x, y), (x_other, y_other)])
        federated = Federated(ROUNDS, self.settings.training)
        run = simulate(self.model, self.model.init(KEY), clients, KEY, federated)
        return run.messages(1 if which == "another" else 0)

    def view(self, which="own", left_in=np.nan, key=KEY, rate=None, **changed):
        """What the method is given; in the unknown columns stands whatever is `left_in`."""
        x, y = records(0)
        x = x.copy()
        x[:, list(self.positions)] = left_in
        fair = jnp.asarray([0.5, 0.5], jnp.float32)
        bits = jnp.asarray([[0.0], [1.0]])
        columns = tuple(UnknownColumn(jnp.asarray([p]), bits, fair) for p in self.positions)
        training = self.settings.training
        if not self.method.simulates:
            training = LocalTraining(training.learning_rate * training.steps(RECORDS))
        rate = training.learning_rate if rate is None else rate
        training = dataclasses.replace(training, learning_rate=jnp.asarray(rate, jnp.float32))
        known = Knowledge(jnp.asarray(x), jnp.asarray(y), columns)
        view = View(self.model, self.messages(which), known, training, key, self.learned)
        return dataclasses.replace(view, **changed)

    @functools.cached_property
    def learned(self):
        """What a method that learns has learned, on records of nobody."""
        if self.method.learns is None:
            return None
        x, _ = records(2)
        return fit_public_model(x, x[:, 0].astype(int), jnp.asarray([0]), 2, KEY, epochs=2)

    @functools.cached_property
    def compiled(self):
        """The method under an outer `jit`: one program for all calls of a trial."""

        def run(messages, knowledge, training, key, learned):
            view = View(self.model, messages, knowledge, training, key, learned)
            return self.method.run(view, self.attack)

        return jax.jit(run)

    def answer(self, view):
        """The answer under `jit`, in the precision that the method asks for."""
        with jax.enable_x64(self.method.x64):
            arrays = view.messages, view.knowledge, view.training, view.key, view.learned
            return self.compiled(*arrays)

    def accuracy(self, answer):
        values = np.stack([np.asarray(v) for v in answer.values], 1)
        return float("nan") if (values < 0).any() else float((values == self.truth).mean())


def blind_to_another_clients_messages(trial):
    accuracy = trial.accuracy(trial.answer(trial.view("another")))
    assert accuracy < CHANCE, "it reads a client that sent nothing: the truth leaks into it"


def another_clients_messages_are_a_misfit(trial):
    """And the client's own are none, of methods that say whether they explain messages."""
    own, another = (trial.answer(trial.view(which)) for which in ("own", "another"))
    assert np.isfinite(own.fit.misfit) == trial.method.explains
    assert own.status == Status.OK
    if trial.method.explains:
        assert own.fit.misfit < 1, "the client's own messages are called a misfit"
        assert another.fit.misfit > 1, "another client's messages are called explained"
        assert another.status == Status.MISFIT


def an_absent_column_is_not_found(trial):
    accuracy = trial.accuracy(trial.answer(trial.view("absent")))
    assert accuracy < CHANCE, "a column that does not enter the model is read"


def erased_truth_changes_nothing(trial):
    truth = trial.truth.astype(np.float32)
    answers = [trial.answer(trial.view(left_in=left)) for left in (np.nan, truth, 1 - truth)]
    for other in answers[1:]:
        same = jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), answers[0], other)
        assert all(jax.tree.leaves(same)), "what stands in the unknown columns enters the answer"


def messages_that_are_not_finite_give_no_answer(trial):
    messages = trial.messages("own")
    models = messages.received, messages.returned
    broken = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), models)
    answer = trial.answer(trial.view(messages=Messages(*broken, messages.rounds)))
    assert int(answer.status) == 1, "it answers to messages that are not finite"
    assert all((np.asarray(values) == -1).all() for values in answer.values)


def messages_that_hold_no_update_give_no_answer(trial):
    messages = trial.messages("own")
    silent = Messages(messages.received, messages.received, messages.rounds)
    answer = trial.answer(trial.view(messages=silent))
    assert int(answer.status) == 1, "it explains what nobody sent"
    assert all((np.asarray(values) == -1).all() for values in answer.values)


def same_key_same_answer(trial):
    first, again = (trial.answer(trial.view()) for _ in range(2))
    for a, b in zip(first.values, again.values, strict=True):
        assert np.array_equal(a, b), "the same key gives two answers"


def outer_jit_changes_nothing(trial):
    """But for rounding, which moves an answer where two values fit alike."""
    view = trial.view()
    with jax.enable_x64(trial.method.x64):
        plain = trial.method.run(view, trial.attack)
    for a, b in zip(plain.values, trial.answer(view).values, strict=True):
        assert np.mean(np.asarray(a) == np.asarray(b)) > 0.95


def constants_of_an_outer_jit_are_no_tracers(trial):
    view = trial.view()
    with jax.enable_x64(trial.method.x64):
        answer = jax.jit(lambda: trial.method.run(view, trial.attack))()
    for a, b in zip(answer.values, trial.answer(view).values, strict=True):
        assert np.mean(np.asarray(a) == np.asarray(b)) > 0.9


def another_number_compiles_nothing(trial):
    """Called from a notebook: without an outer `jit`, with another rate of the client's. No client
    has that one, of which methods that explain messages warn."""
    compiled = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    def run(rate):
        with jax.enable_x64(trial.method.x64), warnings.catch_warnings():
            warnings.simplefilter("ignore", MisfitWarning)
            return jax.block_until_ready(trial.method.run(trial.view(rate=rate), trial.attack))

    run(0.2)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        run(0.3)
        assert not compiled
        jax.jit(lambda x: x + trial.settings.records)(0.0)
        assert compiled  # or nothing was listened to
    finally:
        jax.monitoring.clear_event_listeners()


def accelerators_run_it_as_here(trial):
    """It is lowered for them, without one, and its products are made in float32: their own default,
    TensorFloat-32, makes every message a misfit."""
    view = trial.view()
    with jax.enable_x64(trial.method.x64):
        arrays = view.messages, view.knowledge, view.training, view.key, view.learned
        traced = trial.compiled.trace(*arrays)
        assert not reduced_products(traced.jaxpr)
        lowers(traced)


def vmap_is_a_loop(trial):
    """But for rounding, which a line search magnifies: messages that differ by 1e-7 of themselves
    move as many answers."""
    views = [trial.view(), trial.view(key=jax.random.key(8))]

    def arrays(view):
        return view.messages, view.knowledge, view.training, view.key, view.learned

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(arrays, views))
    with jax.enable_x64(trial.method.x64):
        together = jax.vmap(lambda inputs: trial.compiled(*inputs))(stacked)
    for i, view in enumerate(views):
        for a, b in zip(together.values, trial.answer(view).values, strict=True):
            assert np.mean(np.asarray(a[i]) == np.asarray(b)) > 0.9


def gives_the_same_answer_with_64_bit_types_on(trial):
    answer = trial.answer(trial.view())
    with jax.enable_x64(True):
        wide = trial.method.run(trial.view(), trial.attack)
    for a, b in zip(answer.values, wide.values, strict=True):
        same = np.mean(np.asarray(a) == np.asarray(b))
        assert same > 0.9, f"64-bit types change {1 - same:.0%} of the values"


def bad_input_is_named(trial):
    view = trial.view()
    known = view.knowledge
    no_rounds = jax.tree.map(lambda a: a[:0], view.messages)
    broken = {
        "holds no rounds|must hold something": {"messages": no_rounds},
        "y": {"knowledge": dataclasses.replace(known, y=known.y[:-1])},
        "finite": {"knowledge": dataclasses.replace(known, x=known.x.at[3, 9].set(jnp.nan))},
        "columns": {"knowledge": dataclasses.replace(known, columns=())},
        "label": {"knowledge": dataclasses.replace(known, y=known.y.at[0].set(99))},
    }
    for message, changed in broken.items():
        with jax.enable_x64(trial.method.x64), pytest.raises(ValueError, match=message):
            trial.method.run(dataclasses.replace(view, **changed), trial.attack)


def a_declaration_is_kept(trial):
    """What a method takes it answers; what it refuses it gives a reason for."""
    answer = trial.answer(trial.view())
    assert len(answer.values) == trial.settings.columns
    assert all(set(np.unique(v)) <= {-1, 0, 1} for v in answer.values)
    for variant in VARIANTS:
        reason = trial.method.refuses(variant)
        assert reason is None or len(reason) > 10


OF_ALL = {
    law.__name__: law
    for law in (
        erased_truth_changes_nothing,
        same_key_same_answer,
        outer_jit_changes_nothing,
        constants_of_an_outer_jit_are_no_tracers,
        another_number_compiles_nothing,
        accelerators_run_it_as_here,
        vmap_is_a_loop,
        gives_the_same_answer_with_64_bit_types_on,
        a_declaration_is_kept,
    )
}
OF_OBSERVERS = {
    law.__name__: law
    for law in (
        blind_to_another_clients_messages,
        another_clients_messages_are_a_misfit,
        an_absent_column_is_not_found,
        messages_that_are_not_finite_give_no_answer,
        bad_input_is_named,
    )
}


OF_EXPLAINERS = {law.__name__: law for law in (messages_that_hold_no_update_give_no_answer,)}


def laws_of(method):
    """Laws that a method is bound by: those of observers, if it looks at messages at all, and those
    of what explains them."""
    laws = OF_ALL | (OF_OBSERVERS if method.observes else {})
    return laws | (OF_EXPLAINERS if method.explains else {})
