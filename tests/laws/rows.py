"""Laws of rows, which bind every method of an experiment: no method is named here.

A test file of an experiment calls them on a small cell, whose programs its other tests use too.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from benchmarks.harness import engines
from benchmarks.harness.jobs import group
from benchmarks.harness.programs import HostError, watched
from benchmarks.harness.runner import run_safely
from benchmarks.measurements import generators
from benchmarks.scenarios import anonymous, federations, sums, victims, whole_records
from benchmarks.speed.timings import ON_HOST
from jaxfl import simulate
from tests.benchmarks.cells import all_methods, outcomes_of
from tests.laws.lowering import lowers


@functools.wraps(simulate)
def spoilt(*arguments, **options):
    """A simulation whose recorded messages are not finite."""
    run = simulate(*arguments, **options)
    broken = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), (run.returned, run.sums))
    return dataclasses.replace(run, returned=broken[0], sums=broken[1])


def not_a_number(model, params, *arguments):
    """A gradient that is not finite."""
    return jax.tree.map(lambda w: jnp.full_like(w, jnp.nan), params)


def values(jobs):
    return {(o.job.method, o.metric, o.selection): (o.value, o.status) for o in outcomes_of(jobs)}


def runs_on_accelerators_as_here(program):
    """It is lowered for CUDA and for TPU, without either, and no product of float32 numbers is left
    to a device's own precision; what runs on the host is said, and why."""
    try:
        traced = program.traced
    except HostError:
        assert program.name in ON_HOST, f"{program.name} runs on the host"
        return
    with jax.enable_x64(program.x64):
        lowers(traced)
    assert not program.reduced(), program.name


def a_row_depends_on_its_seed_and_not_on_who_runs_beside_it(cell, monkeypatch, methods=None):
    """The same seed gives the same row, and another compiles nothing; every program is an
    accelerator's too."""
    jobs, calls = all_methods(cell, methods), []
    with watched(calls, repeats=0):
        together = values(jobs)
    for program in dict.fromkeys(call.program for call in calls):
        runs_on_accelerators_as_here(program)
    assert {method for method, _, _ in together} == {job.method for job in jobs}
    alone = values(jobs[::-1][: len(jobs) // 2 or 1])
    assert alone == {place: together[place] for place in alone}
    compiled = []

    def listen(event, seconds, **facts):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(facts.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(listen)
    another = values([dataclasses.replace(job, seed=1) for job in jobs])
    jax.monitoring.unregister_event_duration_listener(listen)
    assert set(another) == set(together)
    assert not compiled, f"another seed compiles {compiled}"


def messages_that_are_not_finite_give_no_score(cell, monkeypatch, methods=None):
    """But for methods that look at none."""
    for module in (anonymous, federations, sums, victims, whole_records, generators):
        monkeypatch.setattr(module, "simulate", spoilt)
    monkeypatch.setattr(whole_records, "sent_gradient", not_a_number)
    engines._compile.cache_clear()
    jobs = all_methods(cell, methods)
    (together,) = group(jobs)
    outcomes = [o for some in run_safely(together, None) for o in some]
    engines._compile.cache_clear()
    scored = {(o.job.method, o.metric) for o in outcomes if o.status == "ok"}
    blind = {job.method for job in jobs if not job.how.observes}
    assert {method for method, _ in scored} == blind, scored


LAWS = (
    a_row_depends_on_its_seed_and_not_on_who_runs_beside_it,
    messages_that_are_not_finite_give_no_score,
)
