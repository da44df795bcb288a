"""Decoding is exact for full-batch clients, whatever the model and the coding, and finds nothing
where nothing is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import (
    GLS,
    ClosedForm,
    GaussNewton,
    Knowledge,
    MisfitWarning,
    Status,
    UncheckedWarning,
    Virtual,
    binary_column,
    candidate_records,
    closed_form,
    gauss_newton,
    gls,
    matching_objective,
)
from attacks.attributes.candidate_decoding.constraints import (
    largest_eigenvalue,
    minimize_quadratic,
    onto_simplex,
)
from attacks.attributes.candidate_decoding.normal_equations import normal_equations
from attacks.column_matching import column_objective
from attacks.metrics import majority_rate
from benchmarks.harness.intervals import accuracy_interval
from jaxfl import (
    Federated,
    LocalTraining,
    Messages,
    Model,
    cross_entropy,
    from_flax,
    linear,
    mlp,
    simulate,
    squared_error,
    stack_clients,
)
from tests.attacks.victims import KEY, ONE_HOT, SCALAR, D, N, explicit, make_victim
from tests.conftest import largest_difference


@pytest.mark.very_slow
def test_the_two_ways_to_the_normal_equations_agree():
    for hidden in ((), (16,), (16, 12)):
        model = mlp(D, hidden, 3)
        x, y, _, messages = make_victim(model, column=ONE_HOT)
        with jax.enable_x64(True):
            wide = jax.tree.map(
                lambda a: a.astype(jnp.float64) if a.dtype == jnp.float32 else a, messages
            )
            cx, cy = candidate_records(
                model, Knowledge(jnp.asarray(x, jnp.float64), jnp.asarray(y), (ONE_HOT,))
            )
            for rate, members in (
                (jnp.asarray(0.1), None),
                (None, None),
                (jnp.asarray(0.1), N // 2),
            ):
                a, b = (
                    normal_equations(m, wide, cx, cy, rate, members)
                    for m in (model, explicit(model))
                )
                for name in ("gram", "right", "square"):
                    by_layers, written_out = (np.asarray(getattr(found, name)) for found in (a, b))
                    np.testing.assert_allclose(
                        by_layers, written_out, rtol=0, atol=1e-10 * np.abs(written_out).max()
                    )


@pytest.mark.parametrize("hidden", [(128,), (64, 32)])
@pytest.mark.parametrize("column", [None, ONE_HOT, SCALAR], ids=["binary", "onehot", "scalar"])
@pytest.mark.very_slow
def test_exact_at_every_width_and_coding(hidden, column):
    model = mlp(D, hidden, 3)
    x, y, truth, messages = make_victim(model, column=column, rounds=10)
    found = closed_form(
        model, messages, Knowledge(x, y, (column or binary_column(6),)), settings=ClosedForm(0.1)
    )
    assert (np.asarray(found.values[0]) == truth).all()
    assert found.residual < 1e-6
    assert found.condition >= 1


@pytest.mark.parametrize(
    ("labels", "rate"),
    [
        (True, None),
        pytest.param(False, 0.1, marks=pytest.mark.very_slow),
        pytest.param(True, 0.1, marks=pytest.mark.very_slow),
        pytest.param(False, None, marks=pytest.mark.very_slow),
    ],
)
def test_conjugate_gradients_find_the_same(rate, labels):
    model = mlp(D, (128,), 2)
    x, y, truth, messages = make_victim(model, rounds=8)
    known = Knowledge(x, y if labels else None, (binary_column(6),))
    direct, iterated = (
        closed_form(model, messages, known, settings=ClosedForm(rate, solver=s))
        for s in ("direct", "cg")
    )
    assert (np.asarray(iterated.values[0]) == truth).all()
    assert np.allclose(direct.scores[0], iterated.scores[0], atol=0.05)
    assert direct.learning_rate == pytest.approx(float(iterated.learning_rate), rel=1e-2)


def test_conjugate_gradients_need_no_named_layers():
    model = explicit(mlp(D, (64,), 3))
    x, y, truth, messages = make_victim(model, column=ONE_HOT)
    found = closed_form(
        model, messages, Knowledge(x, y, (ONE_HOT,)), settings=ClosedForm(0.1, solver="cg")
    )
    assert (np.asarray(found.values[0]) == truth).all()


PLAIN = LocalTraining(0.1)


def test_arithmetic_is_as_wide_however_that_is_said():
    model = mlp(D, (64,), 3)
    x, y, _, messages = make_victim(model)
    known, dtypes = (
        Knowledge(x, y, (binary_column(6),)),
        (jnp.float64, "float64", np.dtype(float), "float32"),
    )
    found = [
        closed_form(model, messages, known, settings=ClosedForm(0.1), dtype=t).residual
        for t in dtypes
    ]
    assert found[0] == found[1] == found[2]
    assert found[0] != found[3]  # rounding is what is left


@pytest.mark.parametrize("attack", ["direct", "cg", "gauss_newton"])
def test_a_round_that_changed_nothing_is_left_out(attack):
    model = mlp(D, (64,), 3)
    x, y, truth, messages = make_victim(model, rounds=5)
    idle = jax.tree.map(lambda r, a: a.at[2].set(r[2]), messages.received, messages.returned)
    seen, known = (
        Messages.from_arrays(messages.received, idle),
        Knowledge(x, y, (binary_column(6),)),
    )
    if attack == "gauss_newton":
        found = gauss_newton(model, seen, known, settings=GaussNewton(0.1))
    else:
        found = closed_form(model, seen, known, settings=ClosedForm(0.1, solver=attack))
    assert found.status == 0
    assert (np.asarray(found.values[0]) == truth).all()


def test_a_negative_rate_tells_that_the_messages_are_wrong():
    model = mlp(D, (64,), 3)
    x, y, _, messages = make_victim(model)
    turned = jax.tree.map(
        lambda received, returned: 2 * received - returned, messages.received, messages.returned
    )
    messages = Messages.from_arrays(messages.received, turned)
    with pytest.warns(MisfitWarning):
        found = closed_form(model, messages, Knowledge(x, y, (binary_column(6),)))
    assert found.learning_rate < 0
    assert found.status == Status.MISFIT
    assert found.fit.misfit > 1


def test_the_largest_eigenvalue_where_equal_unknowns_say_nothing():
    a = jnp.asarray([[2.0, -1.0], [-1.0, 2.0]])
    centred = jnp.eye(5) - 1 / 5
    assert largest_eigenvalue(lambda v: a @ v, jnp.zeros(2)) == pytest.approx(3, rel=1e-3)
    assert largest_eigenvalue(lambda v: centred @ v, jnp.zeros(5)) == pytest.approx(1, rel=1e-3)


def test_unknown_rate_is_found_too():
    model = mlp(D, (64,), 3)
    x, y, truth, messages = make_victim(model, training=LocalTraining(0.37))
    found = closed_form(model, messages, Knowledge(x, y, (binary_column(6),)))
    assert (np.asarray(found.values[0]) == truth).all()
    assert found.learning_rate == pytest.approx(0.37, rel=1e-4)


def test_unknown_labels_are_found_too():
    model = mlp(D, (128,), 2)
    x, y, truth, messages = make_victim(model, rounds=8)
    known = Knowledge(x, None, (binary_column(6),))
    found = closed_form(model, messages, known, settings=ClosedForm(0.1))
    assert (np.asarray(found.values[0]) == truth).all()
    assert (np.asarray(found.labels) == y).all()


def test_any_model_of_three_functions():
    def init(key):
        a, b = jax.random.split(key)
        return {"a": 0.3 * jax.random.normal(a, (D, 40)), "b": 0.3 * jax.random.normal(b, (40, 3))}

    def apply(params, x, *, key=None, mask=None):
        return jnp.tanh(x @ params["a"]) @ params["b"]

    model = Model(init, apply, cross_entropy, 3)
    x, y, truth, messages = make_victim(model, column=ONE_HOT)
    found = closed_form(model, messages, Knowledge(x, y, (ONE_HOT,)), settings=ClosedForm(0.1))
    assert (np.asarray(found.values[0]) == truth).all()


def test_a_linear_model_needs_enough_equations():
    """Linear regression has D + 1 numbers per message: the residual is zero, the answer is not
    determined, and the condition number says so."""
    model = linear(D)
    x, y, _, messages = make_victim(model, rounds=1)
    known = Knowledge(x, y, (binary_column(6),))
    with pytest.warns(UncheckedWarning):
        found = closed_form(model, messages, known, settings=ClosedForm(0.1))
    assert found.condition > 1e8


def test_the_truth_left_in_the_records_is_not_used():
    model = mlp(D, (64,), 3)
    x, y, _, messages = make_victim(model)
    hidden = x.copy()
    hidden[:, 6] = np.nan
    a, b = (
        closed_form(model, messages, Knowledge(v, y, (binary_column(6),)), settings=ClosedForm(0.1))
        for v in (x, hidden)
    )
    assert largest_difference(a, b) == 0


def test_another_clients_messages_tell_nothing():
    model = mlp(D, (64,), 3)
    scores, majorities = [], []
    for seed in range(12):
        x, y, truth, _ = make_victim(model, seed)
        wrong = make_victim(model, seed + 100)[3]
        with pytest.warns(MisfitWarning):
            found = closed_form(
                model, wrong, Knowledge(x, y, (binary_column(6),)), settings=ClosedForm(0.1)
            )
        assert found.status == Status.MISFIT
        scores.append(float((np.asarray(found.values[0]) == truth).mean()))
        majorities.append(float(majority_rate(jnp.asarray(truth), 2)))
    assert accuracy_interval(scores, N).low <= np.mean(majorities)


def test_a_column_that_does_not_enter_the_model_fails_or_says_nothing():
    inner = mlp(D, (64,), 3)
    blind = Model(
        inner.init, lambda p, x, **rest: inner.apply(p, x.at[:, 6].set(0), **rest), cross_entropy, 3
    )
    x, y, truth, messages = make_victim(blind)
    known = Knowledge(x, y, (binary_column(6, 0.3),))
    with pytest.warns(UncheckedWarning, match="larger than what tells the values apart"):
        answer = closed_form(blind, messages, known, settings=ClosedForm(0.1))
    assert answer.fit.resolved == 0
    values = np.asarray(answer.values[0])
    assert answer.status == 1 or (values == 0).all()  # the prior's majority for everyone
    assert (values == truth).mean() <= majority_rate(jnp.asarray(truth), 2)


@pytest.mark.parametrize("records", [30, 60])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 12)])
@pytest.mark.parametrize("soft", [False, True])
def test_structured_objective_equals_the_generic_one(records, hidden, soft):
    model = mlp(D, hidden, 4)
    x = jax.random.bernoulli(KEY, 0.3, (records, D)).astype(jnp.float32)
    y = jax.random.randint(KEY, (records,), 0, 4)
    messages = simulate(
        model, model.init(KEY), stack_clients([(x, y)]), KEY, Federated(rounds=3)
    ).messages(0)
    if soft:
        y = jax.nn.softmax(jax.random.normal(KEY, (records, 4)))
    positions = jnp.array([3, 7, 11])
    erased = x.at[:, positions].set(0)
    features = jax.random.uniform(jax.random.key(9), (records, 3))

    def generic(features, y):
        return matching_objective(
            model, messages, erased.at[:, positions].set(features), y, KEY, Virtual()
        )

    which = (0, 1) if soft else (0,)
    fast = jax.value_and_grad(column_objective(model, messages, erased, positions), which)(
        features, y
    )
    slow = jax.value_and_grad(generic, which)(features, y)
    assert abs(fast[0] - slow[0]) < 1e-6
    for a, b in zip(fast[1], slow[1], strict=True):
        assert jnp.abs(a - b).max() < 1e-5 * jnp.abs(b).max()


def test_regression_and_flax_modules_have_layers():
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1, use_bias=False)(nn.tanh(nn.Dense(30)(x)))

    model = from_flax(Block(), (D,), squared_error)
    assert model.layers.names == (
        "Dense_1",
        "Dense_0",
    )  # in order of evaluation; Flax names them as they are built
    x, y, truth, messages = make_victim(model, rounds=6)
    found = closed_form(
        model, messages, Knowledge(x, y, (binary_column(6),)), settings=ClosedForm(0.1)
    )
    assert (np.asarray(found.values[0]) == truth).all()
    assert mlp(D, (8,), 3, batch_norm=True).layers is None


def test_constrained_minimum_satisfies_its_optimality_conditions():
    a = jax.random.normal(KEY, (60, 30))
    gram, right = a.T @ a, jax.random.normal(jax.random.key(5), (30,)) * 20
    bound = jnp.abs(gram).sum(1).max()
    start, project = jnp.full(30, 0.5), lambda w: onto_simplex(w[:, None])[:, 0]
    weights = minimize_quadratic(lambda w: gram @ w - right, start, project, bound, 3000)
    slope = gram @ weights - right
    assert ((weights >= 0) & (weights <= 1)).all()
    assert jnp.abs(jnp.where((weights > 1e-6) & (weights < 1 - 1e-6), slope, 0)).max() < 1e-2
    assert jnp.where(weights <= 1e-6, slope, 1).min() > -1e-2
    assert jnp.where(weights >= 1 - 1e-6, slope, -1).max() < 1e-2


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (lambda *a: gls(*a, KEY, settings=GLS(PLAIN, orders=0)), "orders=0 must be an integer"),
        (lambda *a: gls(*a, KEY, settings=GLS(PLAIN, orders=1)), "orders=1 must be at least 2"),
        (
            lambda *a: gls(*a, KEY, settings=GLS(PLAIN, spread=-1.0)),
            r"spread=-1\.0 must be at least 0",
        ),
        (
            lambda *a: gls(*a, KEY, settings=GLS(PLAIN, floor=np.inf)),
            "floor=inf must be at least 0 and finite",
        ),
        (
            lambda *a: gls(*a, KEY, settings=GLS(LocalTraining(0.0))),
            r"learning_rate=0\.0 must be positive",
        ),
        (
            lambda *a: gls(*a, KEY, settings=GLS(PLAIN), dtype="int32"),
            "dtype='int32' must be float32 or float64",
        ),
        (
            lambda *a: closed_form(*a, dtype=jnp.bfloat16),
            "dtype=.*bfloat16.* must be float32 or float64",
        ),
        (lambda *a: closed_form(*a, members=2.5), r"members=2\.5 must be an integer"),
        (
            lambda *a: closed_form(*a, members=99),
            "members=99 must lie between 1 and the number of records, 40",
        ),
        (
            lambda *a: closed_form(*a, settings=ClosedForm(ridge=-1.0)),
            r"ridge=-1\.0 must be at least 0",
        ),
        (
            lambda *a: closed_form(*a, settings=ClosedForm(0.0)),
            r"learning_rate=0\.0 must be positive",
        ),
        (
            lambda *a: closed_form(*a, settings=ClosedForm(0.1, solver="lu")),
            "solver='lu' must be one of",
        ),
        (
            lambda *a: gauss_newton(*a, settings=GaussNewton(0.1, passes=0)),
            "passes=0 must be an integer",
        ),
        (
            lambda *a: gauss_newton(*a, settings=GaussNewton(None)),
            "learning_rate=None must be positive",
        ),
        (
            lambda *a: gauss_newton(*a, settings=GaussNewton(-1.0)),
            r"learning_rate=-1\.0 must be positive",
        ),
    ],
)
def test_bad_settings(attack, message):
    model = mlp(D, (8,), 3)
    x, y, _, messages = make_victim(model)
    with pytest.raises(ValueError, match=message):
        attack(model, messages, Knowledge(x, y, (binary_column(6),)))
