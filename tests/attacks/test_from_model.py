"""Model-based inference: it reads what a model has learnt of the attribute, and nothing from one
that does not use it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import Knowledge, UnknownColumn, binary_column, infer_from_model
from jaxfl import Model, linear, logistic, mlp, squared_error

KEY = jax.random.key(0)


def records(seed=0, n=200):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)).astype(np.float32)
    x[:, 2] = rng.random(n) < 0.4
    return x


def hidden(x):
    x = x.copy()
    x[:, 2] = np.nan
    return x


def test_a_regression_that_fits_tells_the_attribute():
    x = records()
    model = linear(5)
    params = model.init(KEY)
    params["Dense_0"]["kernel"] = params["Dense_0"]["kernel"].at[2].set(1.5)
    y = model.apply(params, x)[:, 0]
    found = infer_from_model(model, params, Knowledge(hidden(x), y, (binary_column(2),)))
    assert (np.asarray(found) == x[:, 2]).all()


def test_probabilities_are_what_is_compared():
    x, y = records(), np.random.default_rng(1).integers(0, 2, 200)
    for model in (logistic(5), mlp(5, (8,), 3)):
        params = model.init(KEY)
        found = np.asarray(
            infer_from_model(model, params, Knowledge(hidden(x), y, (binary_column(2),)))
        )
        distances = []
        for value in (0, 1):
            filled = x.copy()
            filled[:, 2] = value
            outputs = np.asarray(model.apply(params, filled), np.float64)
            if outputs.shape[1] == 1:
                distances.append((1 / (1 + np.exp(-outputs[:, 0])) - y) ** 2)
            else:
                p = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
                distances.append(((p - np.eye(3)[y]) ** 2).sum(1))
        clear = np.abs(distances[0] - distances[1]) > 1e-5
        assert (found == np.argmin(distances, 0))[clear].all()
        assert clear.any()


@pytest.mark.parametrize("weight", [0.7, -0.7, 70.0])
def test_a_logistic_model_names_the_label_or_its_opposite(weight):
    """Whatever the model and the record, a positive weight makes a label of 1 likelier where the
    attribute is 1: two logistic models of one client are right equally often, or sum to one."""
    x, y = records(), np.random.default_rng(1).integers(0, 2, 200)
    model = logistic(5)
    for seed in range(3):
        params = jax.tree.map(lambda a: a * weight, model.init(jax.random.key(seed)))
        params["Dense_0"]["kernel"] = params["Dense_0"]["kernel"].at[2].set(weight)
        named = infer_from_model(model, params, Knowledge(hidden(x), y, (binary_column(2),)))
        assert (np.asarray(named) == (y if weight > 0 else 1 - y)).all()


def test_batch_statistics_do_not_cancel_the_candidate():
    """With batch norm, a value that all records share would be subtracted again: of a model in
    which the attribute weighs most, labels tell it only if statistics are those of records that
    differ in it."""
    x = records()
    model = mlp(5, (16,), 2, batch_norm=True)
    params = model.init(KEY)
    params["Dense_0"]["kernel"] = params["Dense_0"]["kernel"].at[2].multiply(8)
    params["Dense_1"]["kernel"] = jnp.stack(
        [jnp.zeros(16), jnp.sign(params["Dense_0"]["kernel"][2])], 1
    )
    params["Dense_1"]["bias"] = jnp.array([0.0, -jnp.quantile(model.apply(params, x)[:, 1], 0.6)])
    y = np.asarray(model.apply(params, x).argmax(1))
    found = np.asarray(
        infer_from_model(model, params, Knowledge(hidden(x), y, (binary_column(2, 0.4),)))
    )
    assert (found == x[:, 2]).mean() >= 0.95
    outputs = [model.apply(params, jnp.asarray(x).at[:, 2].set(value)) for value in (0, 1)]
    assert jnp.allclose(*outputs, atol=1e-4)


def test_a_model_that_does_not_use_the_attribute_names_the_first_value():
    blind = Model(
        linear(5).init,
        lambda p, x, **rest: linear(5).apply(p, x.at[:, 2].set(0), **rest),
        squared_error,
    )
    x = records()
    column = UnknownColumn(jnp.array([2]), jnp.array([[0.0], [1.0], [2.0]]))
    found = infer_from_model(blind, blind.init(KEY), Knowledge(jnp.asarray(x), x[:, 0], (column,)))
    assert (np.asarray(found) == 0).all()


def test_failure_is_data_and_bad_input_is_named():
    x, model = records(), linear(5)
    broken = jax.tree.map(lambda a: a * jnp.nan, model.init(KEY))
    assert (
        np.asarray(
            infer_from_model(model, broken, Knowledge(hidden(x), x[:, 0], (binary_column(2),)))
        )
        == -1
    ).all()
    with pytest.raises(ValueError, match="infer_from_model needs known labels"):
        infer_from_model(model, broken, Knowledge(x, None, (binary_column(2),)))
    with pytest.raises(ValueError, match="x holds"):
        infer_from_model(model, model.init(KEY), Knowledge(hidden(x), x[:, 0], (binary_column(1),)))
    with pytest.raises(ValueError, match=r"positions.*9"):
        infer_from_model(model, model.init(KEY), Knowledge(x, x[:, 0], (binary_column(9),)))
    with pytest.raises(ValueError, match="sum to 1"):
        infer_from_model(
            model,
            model.init(KEY),
            Knowledge(x, x[:, 0], (UnknownColumn([2], [[0.0], [1.0]], [3.0, 4.0]),)),
        )
    classifier = mlp(5, (8,), 3)
    with pytest.raises(ValueError, match="label 7"):
        infer_from_model(
            classifier, classifier.init(KEY), Knowledge(x, np.full(len(x), 7), (binary_column(2),))
        )
