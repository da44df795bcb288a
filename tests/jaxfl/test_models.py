"""The papers' networks, and convolutions as products of matrices beside JAX's own."""

import inspect
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from flax import struct
from jax import Array

import jaxfl
from jaxfl import (
    DPSGD,
    LocalTraining,
    Model,
    cross_entropy,
    evaluate,
    from_flax,
    local_update,
    mean_loss,
    one_client,
    trunk_cnn,
)
from jaxfl.models.convolutions import convolve, convolve_transposed
from jaxfl.plugins.defenses import private_gradient
from tests.conftest import largest_difference

NUMBERS = ("NHWC", "HWIO", "NHWC")


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [(5, 1, "VALID"), (3, 2, "SAME"), (3, 1, "SAME"), (2, 3, "VALID")],
)
def test_convolutions_are_jaxs(size, stride, padding):
    x, kernel = (
        jax.random.normal(jax.random.key(i), s)
        for i, s in enumerate(((3, 9, 8, 2), (size, size, 2, 4)))
    )
    expected = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=NUMBERS
    )
    ours = jax.jit(convolve, static_argnums=(2, 3))(x, kernel, stride, padding)
    assert ours == pytest.approx(np.asarray(expected), abs=1e-4)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_transposed_convolutions_are_jaxs(size, stride, padding):
    for height in (2, 4):
        x, kernel = (
            jax.random.normal(jax.random.key(i), s)
            for i, s in enumerate(((3, height, 5, 2), (size, size, 2, 4)))
        )
        expected = jax.lax.conv_transpose(
            x, kernel, (stride, stride), padding, dimension_numbers=NUMBERS
        )
        transposed = jax.jit(convolve_transposed, static_argnums=(2, 3))
        ours = transposed(x, kernel, stride, padding)
        assert ours == pytest.approx(np.asarray(expected), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("relu", lambda z: np.maximum(z, 0)),
        ("tanh", np.tanh),
        ("sigmoid", scipy.special.expit),
        ("gelu", lambda z: z * scipy.stats.norm.cdf(z)),
        ("gelu_tanh", lambda z: z / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))),
        ("silu", lambda z: z * scipy.special.expit(z)),
        ("elu", lambda z: np.where(z > 0, z, np.expm1(z))),
        ("leaky_relu", lambda z: np.where(z > 0, z, 0.01 * z)),
    ],
)
def test_activations_are_those_of_pytorch(name, formula):
    """By the formulas of its documentation, with its default numbers."""
    model = jaxfl.mlp(4, (6,), 3, activation=name)
    assert model.layers is not None
    params, x = model.init(jax.random.key(0)), 2 * jax.random.normal(jax.random.key(1), (9, 4))
    first, last = params["Dense_0"], params["Dense_1"]
    hidden = formula(np.asarray(x @ first["kernel"] + first["bias"], np.float64))
    expected = hidden @ last["kernel"] + last["bias"]
    assert model.apply(params, x) == pytest.approx(np.asarray(expected), abs=1e-5)


def test_hidden_units_are_dropped_in_training_alone():
    share, model = 0.25, jaxfl.mlp(4, (2000,), 1, dropout=0.25)
    params, x = model.init(jax.random.key(0)), jnp.ones((1, 4))
    plain = jaxfl.mlp(4, (2000,), 1)
    assert (model.apply(params, x) == plain.apply(params, x)).all()
    assert model.layers is None  # their gradients are those of other outer products in training

    def gradient(model, key):
        return jax.grad(lambda p: model.apply(p, x, key=key).sum())(params)["Dense_1"]["kernel"]

    of_all = gradient(plain, None)
    seen = jnp.stack([gradient(model, jax.random.key(i)) for i in range(20)])
    active = of_all > 0
    assert (seen[:, active] == 0).mean() == pytest.approx(share, abs=0.02)
    assert jnp.unique(jnp.round(seen[:, active] / of_all[active], 4)).tolist() == pytest.approx(
        [0, 1 / (1 - share)], abs=1e-3
    )
    with pytest.raises(ValueError, match=r"dropout=0.25 does not go with batch_norm=True"):
        jaxfl.mlp(4, (3,), 2, dropout=0.25, batch_norm=True)


def test_one_output_is_a_logit_of_the_second_of_two_classes():
    one, two = jaxfl.mlp(4, (6,), 1), jaxfl.mlp(4, (6,), 2)
    assert one.classes == two.classes == 2
    params, x, y = one.init(jax.random.key(0)), jnp.ones((2, 4)), jnp.asarray([0, 1])
    logits = one.apply(params, x)
    assert jaxfl.logistic(4) is jaxfl.mlp(4, (), 1)
    expected = two.loss(jnp.concatenate([jnp.zeros_like(logits), logits], 1), y)
    assert one.loss(logits, y) == pytest.approx(np.asarray(expected), rel=1e-5)


@pytest.mark.parametrize("outputs", [1, 4])
def test_smoothed_labels_are_those_of_pytorch(outputs):
    """By the formula of `torch.nn.CrossEntropyLoss`: onehot (1 - share) + share / classes."""
    model = jaxfl.mlp(3, (5,), outputs)
    classes, share = model.classes, 0.3
    smoothed, y = jaxfl.label_smoothing(model, share), jnp.arange(6) % classes
    assert jaxfl.label_smoothing(model, share) is smoothed
    logits = jax.random.normal(jax.random.key(0), (6, outputs))
    soft = (1 - share) * np.eye(classes)[np.asarray(y)] + share / classes
    whole = logits if outputs > 1 else jnp.concatenate([jnp.zeros_like(logits), logits], 1)
    expected = -(soft * np.asarray(jax.nn.log_softmax(whole))).sum(1)
    assert smoothed.loss(logits, y) == pytest.approx(expected, rel=1e-5)
    assert smoothed.loss(logits, jnp.asarray(np.eye(classes)[np.asarray(y)])) == pytest.approx(
        expected, rel=1e-5
    )
    with pytest.raises(ValueError, match=r"share=0.3 smooths labels of classes; the model has"):
        jaxfl.label_smoothing(jaxfl.linear(3), share)


@pytest.mark.slow
def test_the_trunk_of_paper_003():
    model = trunk_cnn((28, 28, 1), 10)
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert params["head"]["kernel"].shape == (12_544, 10)
    faces = trunk_cnn((64, 64, 1), 40, strides=(2, 2, 2, 1))
    assert jax.eval_shape(faces.init, jax.random.key(0))["head"]["kernel"].shape == (
        8 * 8 * 256,
        40,
    )
    small = trunk_cnn((28, 28, 1), 10, widths=(2, 2, 2, 3))
    params, x = small.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (2, 28, 28, 1))
    features = small.trunk.features(params, x)
    assert features.shape == (2, 7, 7, small.trunk.channels)
    head = params[small.trunk.head]
    assert jnp.allclose(
        small.apply(params, x), features.reshape(2, -1) @ head["kernel"] + head["bias"], atol=1e-5
    )


class Twice(nn.Module):
    """A dense layer used twice."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(4)
        return nn.Dense(2)(layer(nn.relu(layer(x))))


class Sequence(nn.Module):
    """A dense layer on every place of a sequence."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(3)(x)).reshape(len(x), -1))


@pytest.mark.slow
@pytest.mark.parametrize(("module", "shape"), [(Twice(), (4,)), (Sequence(), (5, 4))])
def test_layers_whose_gradients_are_no_outer_products_are_not_named(module, shape):
    """Norms of single records' gradients then come from the gradients themselves."""
    model = from_flax(module, shape, cross_entropy, classes=2)
    assert model.layers is None
    params = model.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (6, *shape))
    y, mask = jnp.array([0, 1, 0, 1, 1, 0]), jnp.ones(6, bool)

    @jax.jit
    def both(params):
        private = private_gradient(model, params, x, y, mask, jax.random.key(2), DPSGD(100.0, 0.0))
        return private, jax.grad(lambda p: mean_loss(model, p, x, y))(params)

    found, plain = both(params)
    assert largest_difference(found, plain) < 1e-6


def test_parameters_may_be_a_module_of_another_library():
    """A record whose own fields are none of ours: they are not looked into."""

    @struct.dataclass
    class Layer:
        kernel: Array
        activation: Callable[[Array], Array] = struct.field(pytree_node=False, default=None)

    def init(key):
        return Layer(jax.random.normal(key, (4, 2)))

    def apply(params, x, *, key=None, mask=None):
        return x @ params.kernel

    model = Model(init, apply, cross_entropy, 2)
    params, x, y = init(jax.random.key(0)), jnp.ones((3, 4)), jnp.zeros(3, int)
    data, training = one_client(x, y), LocalTraining(0.5)
    returned = local_update(model, params, data, jax.random.key(1), training)
    gradient = jax.grad(lambda p: mean_loss(model, p, x, y))(params)
    assert largest_difference(returned.kernel, params.kernel - 0.5 * gradient.kernel) < 1e-6


def test_a_module_that_is_one_dense_layer_is_a_model():
    model = from_flax(nn.Dense(2), (4,), cross_entropy, 2)
    params = model.init(jax.random.key(0))
    assert set(model.layers.parameters(params, *model.layers.names)) == {"kernel", "bias"}


class Switched(nn.Module):
    """Whose switches have no defaults."""

    @nn.compact
    def __call__(self, x, train, mask):
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(x))


def test_a_module_whose_switches_have_no_defaults_is_wrapped():
    model = from_flax(Switched(), (3,), cross_entropy, 2)
    params, x = model.init(jax.random.key(0)), jnp.ones((4, 3))
    np.testing.assert_array_equal(model.apply(params, x), model.apply(params, x))
    dropped = model.apply(params, x, key=jax.random.key(1))
    assert not np.array_equal(dropped, model.apply(params, x))
    assert model.layers is None


@pytest.mark.parametrize("name", ["is_train", "eval", "evaluation", "inference", "deterministic"])
def test_a_switch_of_any_usual_name_is_set(name):
    def call(module, x, **switch):
        on = switch.get(name, default)
        off = on if name != "is_train" else not on
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=off)(x))

    default = name != "is_train"
    places = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", "x")]
    switch = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
    call.__signature__ = inspect.Signature([*places, switch])
    module = type("Named", (nn.Module,), {"__call__": nn.compact(call)})
    model = from_flax(module(), (3,), cross_entropy, 2)
    params, x = model.init(jax.random.key(0)), jnp.ones((4, 3))
    dropped = model.apply(params, x, key=jax.random.key(1))
    assert not np.array_equal(dropped, model.apply(params, x))


def test_labels_that_are_shares_of_classes_are_scored_by_the_largest():
    model, shares = logistic_of_three(), np.eye(3)[[0, 1, 2, 1]] * 0.7 + 0.1
    params, x = model.init(jax.random.key(0)), np.random.default_rng(0).normal(size=(4, 2))
    soft = evaluate(model, params, one_client(x, shares.astype(np.float32)))
    hard = evaluate(model, params, one_client(x, shares.argmax(1)))
    nobody = one_client(x, shares.argmax(1)).replace(mask=np.zeros(len(x), bool))
    assert np.isnan(evaluate(model, params, nobody).loss)
    assert np.isnan(evaluate(model, params, nobody).accuracy)
    assert soft.accuracy == hard.accuracy


def logistic_of_three():
    return from_flax(nn.Dense(3), (2,), cross_entropy, 3)


def test_a_modules_outputs_say_how_many_classes_there_are():
    """Labels outside them would train in silence: one-hot codes of none."""
    outputs = nn.Dense(3)
    model = jaxfl.from_flax(outputs, (4,), jaxfl.cross_entropy)
    assert model.classes == 3
    assert jaxfl.from_flax(nn.Dense(1), (4,), jaxfl.binary_cross_entropy).classes == 2
    assert jaxfl.from_flax(nn.Dense(1), (4,), jaxfl.squared_error).classes is None
    with pytest.raises(ValueError, match="loss=cross_entropy is of two outputs or more"):
        jaxfl.from_flax(nn.Dense(1), (4,), jaxfl.cross_entropy)
    clients = jaxfl.stack_clients([(np.ones((2, 4), np.float32), np.asarray([1, 3]))])
    params, key = model.init(jax.random.key(0)), jax.random.key(1)
    with pytest.raises(ValueError, match=r"holds the label 3; labels must be integers in 0\.\.2"):
        jaxfl.simulate(model, params, clients, key, jaxfl.Federated(1, jaxfl.LocalTraining(0.1)))
