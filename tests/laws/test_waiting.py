"""Nothing public, called for several at once, holds calls of LAPACK that may wait for others."""

import sys

import jax
import jax.numpy as jnp
import pytest

from benchmarks.harness.call_order import unordered
from benchmarks.harness.programs import HostError
from benchmarks.laws.calls import CallTrial
from tests.bad_input import examples

# Examples are of short arrays in 32 bits; what attacks say of that is tried elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
HERE = {examples.properties, examples.local_models}
"""Groups that factor matrices in JAX, but for attributes: `vmap_is_a_loop` looks at those."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=() if group in HERE else pytest.mark.very_slow)
        for group in examples.GROUPS
    ],
    ids=lambda group: group.__name__,
)
def test_calls_of_several_have_an_order(group):
    looked_at = 0
    for function, arguments in group().items():
        program, arrays = CallTrial(function, arguments, x64=False).program
        if not arrays:
            continue
        try:
            program.traced  # noqa: B018 - it is tried
        except HostError:
            continue
        several = jax.jit(jax.vmap(program.function)).trace(*[jnp.stack([a, a]) for a in arrays])
        waiting = unordered(program.traced.jaxpr) + unordered(several.jaxpr)
        assert not waiting, f"{function.__name__}: {waiting[:2]}"
        looked_at += 1
    assert looked_at or group not in HERE


def on_host(group):
    """Calls of a group that are no program of their own."""
    for function, arguments in group().items():
        try:
            CallTrial(function, arguments, x64=False).program[0].traced  # noqa: B018 - it is tried
        except HostError:
            yield function, arguments


@pytest.mark.slow
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=() if group is examples.whole_records else pytest.mark.very_slow)
        for group in examples.GROUPS
    ],
    ids=lambda group: group.__name__,
)
def test_programs_that_the_host_runs_have_an_order(group, monkeypatch):
    """Every compiled function of `attacks` that such a call runs, on what it runs it on."""
    waiting = {}

    def looking(name, compiled):
        def run(*arguments, **named):
            leaves = jax.tree.leaves((arguments, named))
            if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                waiting[name] = unordered(compiled.trace(*arguments, **named).jaxpr)
            return compiled(*arguments, **named)

        return run

    calls = list(on_host(group))
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] == "attacks"]
    for module in modules:
        for name, value in list(vars(module).items()):
            if hasattr(value, "trace") and hasattr(value, "lower"):
                monkeypatch.setattr(module, name, looking(f"{module.__name__}.{name}", value))
    for function, arguments in calls:
        function(**arguments)
    assert waiting or group is not examples.whole_records
    assert not any(waiting.values()), {name: pairs[:1] for name, pairs in waiting.items() if pairs}
