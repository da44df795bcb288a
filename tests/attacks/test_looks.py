"""A few wrong values of a client of several steps are no misfit: some values do explain it."""

import types

import jax
import jax.numpy as jnp
import pytest

from attacks import Knowledge, binary_column
from attacks.attributes.candidate_decoding.explanation import judge
from attacks.attributes.knowledge import check_records_known
from jaxfl import LocalTraining
from tests.attacks.test_cosine import KEY, hidden, make_victim

TRAINING = LocalTraining(0.05, epochs=5)


@pytest.mark.parametrize("free_scale", [False, True])
@pytest.mark.slow
def test_wrong_values_are_told_from_a_wrong_recipe(free_scale):
    """Of two wrong values more than 10,000 times what rounding allows is left at first."""
    model, x, y, messages = make_victim(0, TRAINING, rounds=5)
    known = Knowledge(hidden(x), y, (binary_column(6, 0.4),))
    known = check_records_known(model, messages.model_shapes, known)
    values = jnp.asarray(x[:, 6], int).at[:2].set(1 - jnp.asarray(x[:2, 6], int))
    scores = 0.2 + 0.6 * jax.nn.one_hot(values, 2)
    answer = types.SimpleNamespace(values=(values,), scores=(scores,), labels=None)

    def misfit(training):
        fit = judge(model, messages, known, answer, training, KEY, free_scale=free_scale)
        return float(fit.misfit)

    assert misfit(TRAINING) < 1
    assert misfit(LocalTraining(0.05, epochs=2)) > 1000
