"""Laws of attacks on attributes: what methods of `benchmarks.measurements.attributes` answer when
they are called on a client's messages."""

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import FitWarning, Reconstruction, Status
from benchmarks.harness.experiment import Method
from benchmarks.harness.programs import host_calls, reduced_products
from benchmarks.harness.trees import stack
from benchmarks.laws.law import BrokenLawError, Law, require
from benchmarks.laws.programs import compilations, lower, never_waits
from benchmarks.laws.victim_trial import RECORDS, VARIANTS, VictimTrial, arrays_of
from benchmarks.measurements.attributes import EXPERIMENT
from jaxfl import Messages

Array = jax.Array
ALIKE = 0.95
"""Share of values that answers agree on, at least, which are equal but for rounding: where two
values fit alike rounding decides, and a line search magnifies it."""
CHANCE = 0.5 + 4 * 0.5 / np.sqrt(RECORDS)
"""What a guess of fair bits stays below, but for one case in 30,000."""


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


def a_round_that_holds_no_update_tells_nothing(trial: VictimTrial) -> None:
    """Answer and fit are those that the other rounds give, but for rounding."""
    every = trial.messages("own")
    last = jnp.arange(len(every)) < len(every) - 1
    pairs = every.returned, every.received
    returned = jax.tree.map(lambda a, b: jax.vmap(jnp.where)(last, a, b), *pairs)
    views = (
        trial.view(messages=dataclasses.replace(every, returned=returned)),
        trial.view(messages=jax.tree.map(lambda a: a[:-1], every)),
    )
    answer, same = map(trial.answer, views)
    require(agree(answer, same) > ALIKE, "a round without an update changes the answer")
    for name, a, b in (
        ("what is left", 1 - answer.fit.explained, 1 - same.fit.explained),
        ("what may be left", 1 - answer.fit.allowed, 1 - same.fit.allowed),
        ("misfit", answer.fit.misfit, same.fit.misfit),
        ("objective", answer.objective, same.objective),
    ):
        # A mean over a round more is a quarter off.
        close = np.allclose(np.asarray(a), np.asarray(b), rtol=0.2, atol=1e-6, equal_nan=True)
        require(close, f"a round without an update changes {name}: {a}, {b}")


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
OF_SKIPPERS: tuple[Check, ...] = (a_round_that_holds_no_update_tells_nothing,)


def laws_of(method: Method) -> dict[str, Law]:
    """Laws that a method is bound by: those of observers, if it looks at messages at all, those of
    what explains them, and of what rounds without an update tell nothing."""
    trial = _trial_of(method)
    checks = OF_ALL + (OF_OBSERVERS if method.observes else ())
    checks += OF_EXPLAINERS if method.explains else ()
    checks += OF_SKIPPERS if EXPERIMENT.traits_of(method).skips else ()
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
