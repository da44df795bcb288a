"""Nothing public, called for several at once, holds calls of LAPACK that may wait for others."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.harness.call_order import unordered
from benchmarks.harness.programs import HostError
from benchmarks.laws.calls import CallTrial
from tests.bad_input import examples

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
