"""Laws can be broken: methods that are made to break one are told of that one, and of no other."""

import dataclasses
import functools
import itertools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Num

from attacks import Status
from attacks.attributes.knowledge import answered
from benchmarks.harness.engines import run_members
from benchmarks.harness.experiment import Method
from benchmarks.laws import BrokenLawError, attributes, calls, laws_of, rows
from benchmarks.laws.bad_input import cases
from benchmarks.laws.victim_trial import records
from benchmarks.measurements import (
    linkability,
    local_models,
    membership,
    properties,
    whole_records,
)
from benchmarks.measurements.attributes import EXPERIMENT, View
from benchmarks.measurements.attributes.methods import Reading
from benchmarks.measurements.local_models import Values
from benchmarks.measurements.whole_records import Guess
from benchmarks.scenarios import anonymous, federations, sums
from benchmarks.scenarios.streams import Stream, stream
from benchmarks.scenarios.whole_records import draw
from benchmarks.suites.specimens import specimen_of
from jaxfl.domains import Domain, checked

TRUE = membership.EXPERIMENT.method("closed_form")


def broken_by(experiment, method):
    """Names of the laws that a method breaks."""
    broken = set()
    for name, law in laws_of(experiment.with_methods(method), method.name).items():
        try:
            law()
        except BrokenLawError:
            broken.add(name)
    return broken


CALLS = itertools.count()


def with_a_state_of_its_own(inputs, settings):
    answers = TRUE.run(inputs, settings)
    return answers._replace(values=(answers.values + next(CALLS)) % 2)


def that_hides_its_failure(inputs, settings):
    answers = TRUE.run(inputs, settings)
    half = np.arange(len(answers.memberships[0].scores), dtype=float)
    guesses = [
        dataclasses.replace(m, status=Status.OK, scores=half, members=half < len(half) / 2)
        for m in answers.memberships
    ]
    return answers._replace(memberships=guesses)


def that_answers_nothing(inputs, settings):
    answers = TRUE.run(inputs, settings)
    failed = [dataclasses.replace(m, status=Status.FAILED) for m in answers.memberships]
    return answers._replace(memberships=failed)


def that_compiles_every_seed(inputs, settings):
    seed = int(jax.random.bits(inputs.everyone.key[0])) % 1000
    jax.jit(lambda x: x + seed)(0.0)
    return TRUE.run(inputs, settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "law"),
    [
        pytest.param(with_a_state_of_its_own, "same_seed_same_row", marks=pytest.mark.very_slow),
        (that_hides_its_failure, "messages_that_are_not_finite_give_no_score"),
        (that_compiles_every_seed, "another_seed_compiles_nothing"),
        (that_answers_nothing, "its_messages_give_a_score"),
    ],
)
def test_a_method_breaks_the_law_of_rows(run, law):
    method = dataclasses.replace(TRUE, name=run.__name__, run=run)
    assert broken_by(membership.EXPERIMENT, method) == {law}


@pytest.mark.slow
def test_a_method_that_looks_at_messages_is_no_guess():
    method = dataclasses.replace(TRUE, name="guess", observes=False)
    broken = broken_by(membership.EXPERIMENT, method)
    assert broken == {"messages_that_are_not_finite_give_no_score"}


def answer(view, values):
    failed = ~jnp.isfinite(jax.tree.leaves(view.messages.returned)[0]).all()
    return answered(failed, (values,), (), objective=jnp.asarray(jnp.nan), trace=jnp.zeros(0))


def that_reads_the_unknown_column(view, settings):
    known = view.knowledge
    return answer(view, (known.x[:, known.columns[0].positions[0]] > 0.5).astype(int))


def that_knows_the_truth(view, settings):
    return answer(view, jnp.asarray(records(0)[0][: len(view.knowledge.x), 0], int))


@pytest.mark.parametrize(
    ("run", "law"),
    [
        (that_reads_the_unknown_column, "erased_truth_changes_nothing"),
        (that_knows_the_truth, "blind_to_another_clients_messages"),
    ],
)
def test_a_method_breaks_the_law_of_attributes(run, law):
    laws = attributes.laws_of(Method(run.__name__, "a cheat", run))
    with pytest.raises(BrokenLawError):
        laws[law]()
    laws["same_arguments_same_answer"]()


def test_a_mean_over_rounds_that_tell_nothing_breaks_a_law():
    def averaging(view: View, settings: None):
        seen = view.messages
        changed = [(a - b).reshape(len(seen), -1) for a, b in pairs_of(seen)]
        lengths = jnp.stack([jnp.linalg.norm(c, axis=1) for c in changed]).sum(0)
        values = jnp.zeros(len(view.knowledge.x), int)
        trace = jnp.zeros(0)
        return answered(jnp.zeros((), bool), (values,), (), objective=lengths.mean(), trace=trace)

    def pairs_of(seen):
        return zip(*map(jax.tree.leaves, (seen.received, seen.returned)), strict=True)

    method = Method("averaging", "zeros", averaging, traits=Reading(skips=True))
    laws = attributes.laws_of(method)
    with pytest.raises(BrokenLawError, match="a round without an update changes objective"):
        laws["a_round_that_holds_no_update_tells_nothing"]()


def test_a_product_in_less_than_float32_breaks_a_law():
    def rounded(view: View, settings: None):
        moved = jax.tree.leaves(view.messages.returned)[0].reshape(len(view.messages), -1)
        with jax.default_matmul_precision("bfloat16"):
            product = moved @ moved.T
        return answer(view, jnp.full(len(view.knowledge.x), (product.sum() > 0).astype(int)))

    laws = attributes.laws_of(Method("rounded", "a sign", rounded))
    with pytest.raises(BrokenLawError, match="a device's precision"):
        laws["accelerators_run_it"]()


def test_a_program_that_waits_for_the_host_breaks_a_law():
    def asking(view: View, settings: None):
        moved = jax.tree.leaves(view.messages.returned)[0].sum()
        shape = jax.ShapeDtypeStruct(moved.shape, moved.dtype)
        asked = jax.pure_callback(np.sign, shape, moved, vmap_method="sequential")
        return answer(view, jnp.full(len(view.knowledge.x), (asked > 0).astype(int)))

    laws = attributes.laws_of(Method("asking", "a sign", asking))
    with pytest.raises(BrokenLawError, match="waits for the host"):
        laws["accelerators_run_it"]()


def test_bad_input_that_is_taken_breaks_a_law():
    def careless(view, settings):
        return answer(view, jnp.zeros(len(view.knowledge.x), int))

    laws = attributes.laws_of(Method("careless", "zeros", careless))
    with pytest.raises(BrokenLawError, match=r"bad .* is taken"):
        laws["bad_input_is_named"]()


def test_what_no_specimen_takes_is_named_or_gets_a_cell_of_its_own():
    shy = Method("shy", "refuses all", refuses=lambda settings: "never, as a matter of principle")
    with pytest.raises(ValueError, match="method='shy' of attributes: no specimen takes it"):
        laws_of(EXPERIMENT.with_methods(shy), "shy")
    with pytest.raises(ValueError, match="method='nobody' is unknown to attributes"):
        laws_of(EXPERIMENT, "nobody")

    wide = dataclasses.replace(
        EXPERIMENT.method("majority"),
        name="wide",
        refuses=lambda settings: None if settings.records == 30 else "it takes 30 records alone",
    )
    mine = EXPERIMENT.with_methods(wide)
    cell = specimen_of(EXPERIMENT, "majority")
    cell = dataclasses.replace(
        cell, experiment=mine, settings=dataclasses.replace(cell.settings, records=30)
    )
    assert len(laws_of(mine, "wide", cell)) == len(rows.LAWS)


def test_no_law_hides_another():
    names = [set(laws_of(EXPERIMENT, "cos")), set(attributes.laws_of(EXPERIMENT.method("cos")))]
    assert len(names[0]) == len(names[1]) + len(rows.LAWS)


@pytest.mark.slow
def test_a_membership_attack_is_told_nothing_of_the_attribute():
    def look(inputs, settings):
        assert (np.asarray(inputs.everyone.truth) == -1).all()
        assert np.isnan(np.asarray(inputs.everyone.x)).any(-1).all()
        return TRUE.run(inputs, settings)

    method = dataclasses.replace(TRUE, name="looks", run=look)
    laws = laws_of(membership.EXPERIMENT.with_methods(method), "looks")
    laws["its_messages_give_a_score"]()


def that_looks_up_the_attribute(view, settings):
    """It is not told the attribute: it draws the records again."""
    cell = specimen_of(local_models.EXPERIMENT, "majority")
    data = federations.records_of(cell.dataset, cell.settings, None)
    values, read = data.values_of(data.sensitive or 0), []
    for known in view.known:
        x = np.asarray(known.x)
        public = ~np.isnan(x).any(0)
        same = (data.x[None, :, public] == x[:, None, public]).all(-1)
        read.append(values[same.argmax(1)])
    return Values(read)


def that_looks_up_the_senders(linking, rule):
    """It is not told who sent: it draws the federations again."""
    cell = specimen_of(linkability.EXPERIMENT, "update")
    drawn = [anonymous.draw(cell.dataset, cell.settings, None, seed) for seed in range(rows.SEEDS)]
    (mine,) = [each for each in drawn if (each.view.key == linking.view.key).all()]
    return tuple(jax.nn.one_hot(side.senders, 8) for side in (mine.clients, mine.shadow))


def that_looks_up_the_records(view, settings):
    """It is given no truth: it draws the clients again."""
    cell = specimen_of(whole_records.EXPERIMENT, "public")
    drawn = [draw(cell.dataset, cell.settings, None, seed) for seed in range(rows.SEEDS)]
    (victim,) = [each for each in drawn if (each.view.key == view.key).all()]
    nothing = np.zeros((view.records, len(view.schema.measured)))
    none = np.zeros(view.records, bool)
    return Guess(victim.x, victim.y, none, [()] * view.records, nothing)


def that_looks_up_who_is_positive(view, settings):
    cell = specimen_of(properties.EXPERIMENT, "ridge")
    data = sums.records_of(cell.dataset, None)
    positives = [sums.draw(data, cell.settings, seed).positives for seed in range(rows.SEEDS)]
    keys = [stream(jax.random.key(seed), Stream.DECODING) for seed in range(rows.SEEDS)]
    mine = jnp.asarray([(view.key == key).all() for key in keys]).argmax()
    positive = jnp.stack(positives).astype(float)[mine]
    return jnp.broadcast_to(positive, (len(view.seen), len(positive)))


NUMBERS = jnp.arange(3.0)


@checked
def that_looks_at_values(x: Num[jax.Array, "records"]):
    return x * float(x.sum())


@checked
def that_knows_whether_it_is_traced(x: Num[jax.Array, "records"]):
    return x + isinstance(x, jax.core.Tracer)


@jax.custom_batching.custom_vmap
def kept(x):
    return x


@kept.def_vmap
def moved(axis_size, batched, x):
    return x + 1, True


@checked
def that_counts_its_calls(x: Num[jax.Array, "records"]):
    return x + next(CALLS)


@functools.wraps(that_looks_at_values)
def that_takes_anything(x):
    return jnp.ones(2)


@checked
def that_factors_twice(x: Num[jax.Array, "records"]):
    wide = jnp.outer(x, x) + jnp.eye(len(x))
    return jnp.linalg.cholesky(wide), jnp.linalg.eigh(wide)[0]


@pytest.mark.parametrize(
    ("attack", "law", "words"),
    [
        (that_looks_at_values, "an_outer_jit_changes_nothing", "no `on_host` says why"),
        (that_knows_whether_it_is_traced, "an_outer_jit_changes_nothing", "an outer jit changes"),
        (checked(functools.wraps(that_looks_at_values)(kept)), "vmap_is_a_loop", "vmap changes"),
        (that_factors_twice, "vmap_is_a_loop", "may wait for each other"),
        (that_counts_its_calls, "same_arguments_same_answer", "in two ways"),
        (that_takes_anything, "bad_input_is_named", "silent"),
    ],
)
def test_a_call_breaks_a_law(attack, law, words):
    laws = calls.laws_of(TRUE, lambda: [calls.CallTrial(attack, {"x": NUMBERS}, x64=False)])
    with pytest.raises(BrokenLawError, match=words):
        laws[law]()


def test_a_method_that_calls_nothing_checked_is_told():
    law = calls.laws_of(TRUE, lambda: [])["it_calls_what_is_checked"]
    with pytest.raises(BrokenLawError, match="calls no function"):
        law()


Even = Annotated[
    int, Domain("an even integer", lambda value: type(value) is int and value % 2 == 0)
]


@checked
def that_wants_an_even_number(x: Num[jax.Array, "records"], steps: Even, name: int):
    return x * jnp.where(jnp.isfinite(x).all(), 1, jnp.nan)


def test_what_is_good_is_declared_from_outside_and_a_domain_too():
    arguments = {"x": NUMBERS, "steps": 2, "name": 3}
    trial = calls.CallTrial(that_wants_an_even_number, arguments, x64=False)
    spoilt = {done for place, done, _ in cases(trial.function, arguments) if place == "steps"}
    assert {"1.5", "-1", "'junk'"} <= spoilt
    good = [("that_wants.* x", how, "any numbers will do") for how in ("another axis", "less")]
    law = "bad_input_is_named"
    with pytest.raises(BrokenLawError, match="silent"):
        calls.laws_of(TRUE, lambda: [trial])[law]()
    calls.laws_of(TRUE, lambda: [trial], good)[law]()


def test_calls_within_a_group_are_seen():
    """With values, though the group's program has none of them."""
    seen, member = calls.Calls(), {"x": jnp.stack([NUMBERS, NUMBERS + 1])}
    with calls.called(seen):
        run_members(lambda inputs: that_takes_a_row(2 * inputs["x"]), member)
    (trial,) = seen.all()
    assert trial.function is that_takes_a_row
    assert np.array_equal(trial.arguments["x"], 2 * NUMBERS)


@checked
def that_takes_a_row(x: Num[jax.Array, "records"]):
    return x + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "run", "beside"),
    [
        (local_models.EXPERIMENT, that_looks_up_the_attribute, "majority"),
        pytest.param(
            *(linkability.EXPERIMENT, that_looks_up_the_senders, "update"),
            marks=pytest.mark.very_slow,
        ),
        (whole_records.EXPERIMENT, that_looks_up_the_records, "public"),
        pytest.param(
            properties.EXPERIMENT,
            that_looks_up_who_is_positive,
            "ridge",
            marks=pytest.mark.very_slow,
        ),
    ],
)
@pytest.mark.parametrize("observes", [True, pytest.param(False, marks=pytest.mark.very_slow)])
def test_a_method_that_knows_the_truth_is_caught_by_messages_of_nobody(
    experiment, run, beside, observes
):
    method = dataclasses.replace(
        experiment.method(beside), name="cheat", run=run, observes=observes
    )
    with_cheat = experiment.with_methods(method)
    cell = dataclasses.replace(specimen_of(experiment, beside), experiment=with_cheat)
    laws = rows.laws_of(cell, "cheat", (beside, "cheat"))
    with pytest.raises(BrokenLawError, match="the truth leaks into it"):
        laws["messages_of_nobody_tell_no_more_than_a_guess"]()
