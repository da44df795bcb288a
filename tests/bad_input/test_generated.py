"""Bad input over the whole public surface: every argument, and every field of a record, is spoilt in
every way that its annotation makes bad, and has to be named."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import attacks
import jaxfl
from attacks import metrics
from jaxfl import accounting, datasets
from jaxfl.datasets import partitions
from tests.bad_input.examples import GROUPS
from tests.bad_input.generator import cases
from tests.bad_input.outcomes import HARMLESS, NAMED, NO_ANSWER, outcome

SEEN = set()
NOT_FINITE = ("NaN", "infinity", "a leaf of NaN")
PUBLIC = (attacks, jaxfl, datasets)
PLAIN = (metrics, partitions, accounting)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_bad_input_is_named(group):
    bad = []
    for function, arguments in group().items():
        for place, done, spoilt in cases(function, arguments, SEEN):
            what = outcome(function, place, done, spoilt)
            is_data = what == NO_ANSWER and done in NOT_FINITE
            if what not in (NAMED, HARMLESS) and not is_data:
                bad.append(f"{function.__name__} {place} [{done}] {what}")
    assert not bad, "\n".join(bad)


def test_the_whole_public_surface_has_an_example():
    public = {getattr(module, name) for module in PUBLIC for name in module.__all__}
    for module in PLAIN:
        public |= {
            value
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        }
    functions = {f for f in public if inspect.isfunction(f)}
    assert functions == {function for group in GROUPS for function in group()}
    assert all(hasattr(function, "__wrapped__") for function in functions)  # by `checked`


def test_a_silent_function_is_caught():
    """The check can fail: of a function that looks at nothing, nothing is named."""

    def accepts(x: np.ndarray, steps: int):
        return jnp.ones(2)

    spoilt = {"x": np.ones((2, 3)), "steps": 3}
    accepts.__wrapped__ = accepts
    outcomes = {outcome(accepts, p, d, s) for p, d, s in cases(accepts, spoilt)}
    assert outcomes <= {"silent", HARMLESS}
