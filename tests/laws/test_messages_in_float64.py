"""Messages recorded in float64, as those of gradients are, are read by every attack, whether or not
JAX's 64-bit types are on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attacks
import jaxfl
from tests.attacks.test_cosine import hidden, make_victim
from tests.bad_input.examples import GROUPS

LONG = {"attributes", "users"}
"""Groups of attacks whose programs take longest to compile."""


def wide(value):
    """Messages in float64; what is none as it is."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, jaxfl.Messages) for v in value):
        return type(value)(map(wide, value))
    if not isinstance(value, jaxfl.Messages):
        return value
    with jax.enable_x64(True):
        models = (
            jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), tree)
            for tree in (value.received, value.returned)
        )
        return jaxfl.Messages(*models, value.rounds)


@pytest.mark.filterwarnings("ignore::attacks.FitWarning")
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(g, id=g.__name__, marks=[pytest.mark.very_slow] * (g.__name__ in LONG))
        for g in GROUPS
    ],
)
@pytest.mark.slow
def test_every_attack_reads_them(group):
    """Without a warning of types, nor a crash."""
    for function, arguments in group().items():
        given = {name: wide(value) for name, value in arguments.items()}
        if any(given[name] is not value for name, value in arguments.items()):
            assert function(**given) is not None, function.__name__


@pytest.mark.slow
def test_models_in_float32_held_in_float64_are_no_misfits():
    model, x, y, messages = make_victim()
    known = attacks.Knowledge(hidden(x), y, (attacks.binary_column(6, 0.4),))
    settings = attacks.GLS(jaxfl.LocalTraining(0.1), orders=4)
    for answer in (
        attacks.closed_form(model, wide(messages), known),
        attacks.gls(model, wide(messages), known, jax.random.key(0), settings=settings),
    ):
        assert answer.status == attacks.Status.OK


@pytest.mark.slow
def test_gradients_in_float32_are_no_misfits():
    """They are held in float64, in which rounding would be far less."""
    model, rng = jaxfl.mlp(6, (8,), 2), np.random.default_rng(0)
    x = rng.normal(size=(10, 6)).astype(np.float32)
    x[:, 0] = x[:, 0] > 0
    y = (x[:, 1] > 0).astype(int)
    models = [model.init(jax.random.key(i)) for i in range(12)]
    sent = [jax.grad(lambda w: jaxfl.mean_loss(model, w, x, y))(params) for params in models]
    received, sent = (jax.tree.map(lambda *a: jnp.stack(a), *trees) for trees in (models, sent))
    messages = jaxfl.Messages.from_gradients(received, sent)
    known = attacks.Knowledge(x, y, (attacks.binary_column(0, 0.5),))
    recipe, key = jaxfl.LocalTraining(1.0), jax.random.key(1)
    answer = attacks.gls(model, messages, known, key, settings=attacks.GLS(recipe, orders=16))
    assert answer.status == attacks.Status.OK
    np.testing.assert_array_equal(answer.values[0], x[:, 0])
    sources = attacks.decode_sources(model, [messages], [10], x, y, key, training=recipe)
    assert (sources.status == attacks.Status.OK).all()
    (finding,) = attacks.diagnose(model, messages, known, recipe).findings
    assert finding.cause == "as told"
    doubled = jax.tree.map(lambda g: 1.01 * g, sent)
    other = jaxfl.Messages.from_gradients(received, doubled)
    with pytest.warns(attacks.MisfitWarning):
        wrong = attacks.gls(model, other, known, key, settings=attacks.GLS(recipe, orders=16))
    assert wrong.status == attacks.Status.MISFIT
