"""Bad input over the whole public surface: every argument, and every field of a record, is spoilt
in every way that its annotation makes bad, and has to be named."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Num

import attacks
import jaxfl
from attacks import metrics
from benchmarks.laws.bad_input import DATA, HARMLESS, NAMED, NO_ANSWER, SILENT, cases, outcome
from jaxfl import accounting, datasets, recordings
from jaxfl.datasets import partitions
from jaxfl.domains import checked, returned_by
from tests.bad_input.examples import GROUPS

PUBLIC = (attacks, jaxfl, datasets, recordings)
PLAIN = (metrics, partitions, accounting)

LONG = ("users", "attributes")
pytestmark = pytest.mark.filterwarnings("ignore::attacks.SomeWrongWarning")
"""Examples are of few steps."""


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, id=group.__name__, marks=[pytest.mark.slow] * (group.__name__ in LONG))
        for group in GROUPS
    ],
)
def test_bad_input_is_named(group):
    bad = []
    for function, arguments in group().items():
        for place, done, spoilt in cases(function, arguments):
            what = outcome(function, place, done, spoilt)
            is_data = what == NO_ANSWER and done in DATA
            if what not in (NAMED, HARMLESS) and not is_data:
                bad.append(f"{function.__name__} {place} [{done}] {what}")
    assert not bad, "\n".join(bad)


def public_functions():
    public = {getattr(module, name) for module in PUBLIC for name in module.__all__}
    for module in PLAIN:
        public |= {
            value
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        }
    return {f for f in public if inspect.isfunction(f)}


def test_the_whole_public_surface_has_an_example():
    functions = public_functions()
    called = {function for group in GROUPS for function in group()}
    missing = sorted(function.__name__ for function in functions - called)
    assert not missing, f"add a valid call of each of {missing} to tests/bad_input/examples.py"
    assert called <= functions
    assert all(hasattr(function, "__wrapped__") for function in functions)  # by `checked`


class Foreign:
    """An array of another library, whose types NumPy does not know."""

    dtype = "torch.float32"


def test_arrays_of_other_libraries_are_named():
    with pytest.raises(ValueError, match=r"prior=.* must be between 0 and 1"):
        attacks.binary_column(0, Foreign())
    with pytest.raises(ValueError, match="must be a tree of floating-point arrays"):
        jaxfl.evaluate(jaxfl.linear(2), {"w": Foreign()}, jaxfl.one_client([[1.0, 2]], [1.0]))


def test_a_silent_function_is_caught():
    """The check can fail: of a function that looks at nothing, nothing is named."""

    def silent(numbers: np.ndarray, steps: int):
        return np.ones(2)

    @functools.wraps(silent)
    def accepts(**arguments):
        return silent(**arguments)

    spoilt = cases(accepts, {"numbers": np.ones((2, 3)), "steps": 3})
    assert {outcome(accepts, *case) for case in spoilt} == {SILENT}


def test_results_say_their_axes():
    """And have them: `checked` looks."""
    silent = {f.__name__ for f in public_functions() if returned_by(f) in (jax.Array, np.ndarray)}
    assert not silent

    @checked
    def doubled(x: Num[jax.Array, "records features"]) -> Num[jax.Array, "records"]:
        return jnp.concatenate([x, x])[:, 0]

    with pytest.raises(ValueError, match=r"what doubled returns .*with 3 records as in x"):
        doubled(jnp.ones((3, 2)))
