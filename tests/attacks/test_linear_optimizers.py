"""Clients that train with momentum, weight decay or a proximal term: every gradient still enters an
update with a weight that is known, and decoding reads them as it reads plain SGD."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import GLS, Knowledge, MisfitWarning, Status, binary_column, gls
from attacks.attributes.candidate_decoding.order_noise import (
    batch_weights,
    noise_variance,
    place_covariance,
)
from attacks.path import is_linear, local_path
from jaxfl import (
    DPSGD,
    ClassWeights,
    Federated,
    LocalTraining,
    Model,
    clipped_sgd,
    local_update,
    mlp,
    one_client,
    sgd,
    simulate,
    stack_clients,
)
from tests.attacks.victims import KEY
from tests.attacks.wrong_recipes import RECORDS, client, decayed, with_momentum
from tests.conftest import largest_difference

ORDERS = 4000


def nesterov(learning_rate):
    return optax.sgd(learning_rate, 0.8, nesterov=True)


def falling(learning_rate):
    """Half the step size after every step."""
    return optax.sgd(lambda step: learning_rate * 0.5**step)


HEAVY_AND_DECAYED = sgd(0.9, 1e-3)
OPTIMIZERS = (
    optax.sgd,
    with_momentum,
    nesterov,
    decayed,
    HEAVY_AND_DECAYED,
    sgd(proximal=2.0),
    falling,
)
RECIPES = (
    {"batch_size": 4, "epochs": 2},
    {"batch_size": 3, "drop_last": True},
)


def constant(records):
    """A model whose gradient at a record is that record, wherever it is taken."""
    return Model(
        lambda key: {"w": jnp.zeros(records)},
        lambda p, x, **rest: x @ p["w"],
        lambda outputs, y: outputs,
        None,
    )


def drawn_weights(training, records):
    """With what weight each of `records` entered an update of the client's own training, over
    random orders `[ORDERS, records]`."""
    model, data = constant(records), one_client(np.eye(records), np.zeros(records))
    start = model.init(KEY)

    @jax.jit
    @jax.vmap
    def run(key):
        return -local_update(model, start, data, key, training)["w"] / training.learning_rate

    return np.asarray(run(jax.random.split(KEY, ORDERS)))


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.__name__)
def test_a_records_weight_under_any_linear_optimizer(optimizer, recipe):
    """Mean and variance over orders, as the client's own training has them."""
    training = LocalTraining(0.3, optimizer=optimizer, **recipe)
    drawn = drawn_weights(training, 11)
    mean, variance = map(float, batch_weights(training, 11))
    spread = drawn.std(0).max()
    assert np.allclose(drawn.mean(0), mean, rtol=1e-4, atol=4 * spread / ORDERS**0.5)
    assert np.allclose(drawn.var(0).mean(), variance, rtol=0.03, atol=1e-9)
    assert drawn.sum(1).mean() == pytest.approx(float(mean) * 11, rel=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.__name__)
def test_the_path_of_a_client_whose_gradients_are_all_alike(optimizer):
    """Places are those of the models that it goes through."""
    ends = []
    for steps in range(1, 6):
        training = LocalTraining(0.3, optimizer=optimizer, epochs=steps)
        run = local_update(
            constant(2), {"w": jnp.zeros(2)}, one_client(np.ones((2, 2)), [0, 0]), KEY, training
        )
        ends.append(float(run["w"][0]))
    path = local_path(LocalTraining(0.3, optimizer=optimizer, epochs=5), 2)
    assert np.allclose(path.places[1:], np.asarray(ends[:-1]) / ends[-1], rtol=1e-5)
    assert float(path.total) == pytest.approx(-ends[-1] / 0.3, rel=1e-5)
    assert 0 < float(path.centre) < float(path.places[-1])


def test_plain_sgd_has_equal_steps():
    path = local_path(LocalTraining(0.1, epochs=4), 7)
    assert np.array_equal(path.weights, np.ones(4))
    assert float(path.centre) == pytest.approx(3 / 8)


def test_the_weights_of_an_optimizer_are_the_same_under_jit_and_at_any_rate():
    training = LocalTraining(0.1, 2, 3, with_momentum)

    @jax.jit
    def weights(rate):
        return local_path(dataclasses.replace(training, learning_rate=rate), 9).weights

    assert np.allclose(weights(0.1), local_path(training, 9).weights, rtol=1e-5)
    assert np.allclose(weights(2.0), weights(0.1), rtol=1e-5)


def test_momentum_lengthens_the_noise_of_private_training():
    """A step's noise is repeated by the steps after it."""
    training = LocalTraining(0.5, 2, 4, with_momentum, (DPSGD(1e-6, 1e6),))
    model, records = constant(10), 10
    data = one_client(np.eye(records), np.zeros(records))
    start = model.init(KEY)
    run = jax.jit(jax.vmap(lambda key: local_update(model, start, data, key, training)["w"]))
    drawn = run(jax.random.split(KEY, 400)) / training.learning_rate
    assert float((drawn**2).mean()) == pytest.approx(
        float(noise_variance(training, records)), rel=0.05
    )


def test_the_variance_of_a_weighted_place():
    """As drawn, for a client with momentum: the place is counted from the weighted centre."""
    training, records = LocalTraining(0.3, 2, 3, with_momentum), 9
    path = local_path(training, records)
    weights, places = (np.asarray(a).reshape(2, 3) for a in path)
    batch = np.random.default_rng(0).integers(0, 3, (2, 100_000))
    each = [weights[e][batch[e]] * (places[e][batch[e]] - float(path.centre)) / 3 for e in (0, 1)]
    drawn = sum(each) / float(path.places[-1])
    assert drawn.var() == pytest.approx(float(place_covariance(training, records)[0, 0]), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "recipe"),
    [
        pytest.param(
            *(0.02, {"batch_size": 16, "optimizer": with_momentum}),
            marks=pytest.mark.very_slow,
        ),
        pytest.param(
            *(0.05, {"batch_size": 16, "epochs": 2, "optimizer": HEAVY_AND_DECAYED}),
            marks=pytest.mark.very_slow,
        ),
        pytest.param(
            *(0.1, {"batch_size": 16, "epochs": 2, "optimizer": decayed}),
            marks=pytest.mark.very_slow,
        ),
        pytest.param(
            *(0.1, {"batch_size": 16, "epochs": 2, "optimizer": sgd(proximal=1.0)}),
            marks=pytest.mark.very_slow,
        ),
        pytest.param(
            *(0.1, {"batch_size": 24, "epochs": 2, "drop_last": True}),
            marks=pytest.mark.very_slow,
        ),
        (0.05, {"epochs": 3, "optimizer": HEAVY_AND_DECAYED}),
        pytest.param(0.1, {"optimizer": decayed}, marks=pytest.mark.very_slow),
    ],
)
def test_gls_reads_clients_of_linear_optimizers(rate, recipe):
    training = LocalTraining(rate, **recipe)
    for seed in range(2):
        model, messages, known, truth = client("right", training, seed, rounds=20)
        answer = gls(model, messages, known, KEY, settings=GLS(training))
        assert (np.asarray(answer.values[0]) == truth).mean() > 0.97
        assert answer.status == Status.OK


@pytest.mark.very_slow
def test_momentum_that_is_forgotten_or_another_clients_is_a_misfit():
    training = LocalTraining(0.02, 2, 16, with_momentum)
    model, messages, known, truth = client("right", training, 0, rounds=20)
    other, _, _, _ = client("right", training, 1, rounds=20)[1:], None, None, None
    plain = dataclasses.replace(training, optimizer=optax.sgd)
    with pytest.warns(MisfitWarning):
        assert gls(model, messages, known, KEY, settings=GLS(plain)).status == Status.MISFIT
    with pytest.warns(MisfitWarning):
        answer = gls(model, other[0], known, KEY, settings=GLS(training))
    assert answer.status == Status.MISFIT
    assert (np.asarray(answer.values[0]) == truth).mean() < 0.7


def labels_unknown(x, y):
    return Knowledge(x, None, (binary_column(4, 0.5),))


def two_columns(x, y):
    return Knowledge(x, y, (binary_column(4, 0.5), binary_column(6, 0.5)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "knows", [labels_unknown, pytest.param(two_columns, marks=pytest.mark.very_slow)]
)
def test_gls_reads_labels_and_several_columns_too(knows):
    training, model = LocalTraining(0.1, 2, 16), mlp(16, (32,), 2)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, 16)).astype(np.float32)
    x[:, ::2] = x[:, ::2] > 0
    y = (x[:, :6].sum(1) + rng.normal(size=RECORDS) > 1).astype(int)
    run = simulate(model, model.init(KEY), stack_clients([(x, y)]), KEY, Federated(20, training))
    known = knows(x, y)
    answer = gls(model, run.messages(0), known, KEY, settings=GLS(training))
    for column, values in zip(known.columns, answer.values, strict=True):
        place = int(column.positions[0])
        assert (np.asarray(values) == x[:, place]).mean() > 0.97
    if answer.labels is not None:
        assert (np.asarray(answer.labels) == y).mean() > 0.97
    assert [s.shape for s in answer.scores] == [(RECORDS, 2)] * len(known.columns)
    assert answer.status == Status.OK


def frozen_biases(learning_rate):
    def biases(params):
        return jax.tree.map(lambda p: jnp.ndim(p) < 2, params)

    return optax.chain(optax.sgd(learning_rate), optax.masked(optax.set_to_zero(), biases))


def slow_kernels(learning_rate):
    def kernels(params):
        return jax.tree.map(lambda p: jnp.ndim(p) > 1, params)

    return optax.chain(optax.sgd(learning_rate), optax.masked(optax.scale(0.1), kernels))


def kernels_decay(learning_rate):
    def kernels(params):
        return jax.tree.map(lambda p: jnp.ndim(p) > 1, params)

    return optax.chain(optax.add_decayed_weights(1e-3, kernels), optax.sgd(learning_rate, 0.9))


def decay_by_name(learning_rate):
    mask = {"Dense_9": {"bias": False, "kernel": True}}
    return optax.chain(optax.add_decayed_weights(1e-3, mask), optax.sgd(learning_rate))


def seldom(learning_rate):
    return optax.MultiSteps(optax.adam(learning_rate), 4).gradient_transformation()


def clipped_values(learning_rate):
    return optax.chain(optax.sgd(learning_rate), optax.clip(0.01))


def adaptively_clipped(learning_rate):
    return optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(learning_rate))


NOT_LINEAR = (
    *(optax.adam, optax.adamw, optax.lion, optax.lars, optax.rmsprop, optax.fromage),
    *(clipped_sgd(1e-3), clipped_sgd(1.0), clipped_sgd(100.0), clipped_values),
    *(adaptively_clipped, seldom, frozen_biases, slow_kernels, decay_by_name),
)


@pytest.mark.parametrize("optimizer", NOT_LINEAR, ids=lambda o: o.__name__)
def test_optimizers_without_weights_are_known_and_refused(optimizer):
    """Their clients' paths are taken to be straight where an answer is judged."""
    assert not is_linear(optimizer)
    assert np.array_equal(local_path(LocalTraining(0.1, 4, None, optimizer), 5).weights, np.ones(4))
    model, messages, known, _ = client("right", LocalTraining(0.1), 0, rounds=2)
    with pytest.raises(ValueError, match="is not linear in gradients"):
        gls(model, messages, known, KEY, settings=GLS(LocalTraining(0.1, 2, 16, optimizer)))


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, kernels_decay], ids=lambda o: o.__name__)
def test_optimizers_with_weights_are_known(optimizer):
    assert is_linear(optimizer)
    assert is_linear(optimizer, mlp(6, (4, 3), 2).init(KEY))


def test_equal_optimizers_are_one():
    """So that they compile once."""
    assert sgd(0.9) is sgd(momentum=0.9)
    assert sgd(0.9) is sgd(0.9, 0.0)
    assert sgd() is optax.sgd


def test_what_is_not_linear_or_goes_not_together_is_refused():
    model, messages, known, _ = client("right", LocalTraining(0.1), 0, rounds=2)
    for training, more, message in (
        (LocalTraining(0.1, optimizer=optax.adam), {}, "is not linear in gradients"),
        (LocalTraining(0.1, 2, 16, with_momentum), {"points": 2}, "points=2 does not go with"),
    ):
        with pytest.raises(ValueError, match=message):
            gls(model, messages, known, KEY, settings=GLS(training, **more))
    many = Knowledge(known.x, known.y, tuple(binary_column(i) for i in range(0, 16, 2)))
    with pytest.raises(ValueError, match="256 values together; gls takes 64"):
        gls(model, messages, many, KEY, settings=GLS(LocalTraining(0.1, 2)))


WEIGHTS = ClassWeights((1.0, 3.0))


def test_class_weights_are_those_of_a_weighted_mean():
    """One step, by the formula; of equal weights it is the plain mean."""
    model, rng = mlp(4, (5,), 2), np.random.default_rng(0)
    x, y = rng.normal(size=(9, 4)).astype(np.float32), rng.integers(0, 2, 9)
    params = model.init(KEY)
    weights = jnp.asarray([1.0, 3.0])[y]

    def loss(params):
        return (weights * model.loss(model.apply(params, x), y)).sum() / weights.sum()

    expected = jax.tree.map(lambda p, g: p - 0.5 * g, params, jax.grad(loss)(params))
    for plugins, wanted in (
        ((WEIGHTS,), expected),
        ((ClassWeights((2.0, 2.0)),), local_update(model, params, one_client(x, y), KEY,
                                                   LocalTraining(0.5))),
    ):  # fmt: skip
        training = LocalTraining(0.5, plugins=plugins)
        returned = local_update(model, params, one_client(x, y), KEY, training)
        assert largest_difference(returned, wanted) < 1e-6


def test_class_weights_that_do_not_fit_are_refused():
    model, messages, known, _ = client("right", LocalTraining(0.1), 0, rounds=2)
    data = one_client(known.x[:, 5:], known.y)
    three = LocalTraining(0.1, plugins=(ClassWeights((1.0, 2.0, 3.0)),))
    with pytest.raises(ValueError, match="weights has 3 entries; the model has 2"):
        local_update(mlp(11, (4,), 2), mlp(11, (4,), 2).init(KEY), data, KEY, three)
    unknown = Knowledge(known.x, None, known.columns)
    training = LocalTraining(0.1, 2, plugins=(WEIGHTS,))
    with pytest.raises(ValueError, match="y=None does not go with Mixup or ClassWeights"):
        gls(model, messages, unknown, KEY, settings=GLS(training))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, pytest.param(16, marks=pytest.mark.very_slow)])
def test_gls_reads_clients_that_weight_classes(batch_size):
    """And says so where the weights are forgotten."""
    training = LocalTraining(0.1, 2, batch_size, plugins=(WEIGHTS,))
    for seed in range(2):
        model, messages, known, truth = client("right", training, seed, rounds=20)
        answer = gls(model, messages, known, KEY, settings=GLS(training))
        assert (np.asarray(answer.values[0]) == truth).mean() > 0.97
        assert answer.status == Status.OK
    with pytest.warns(MisfitWarning):
        gls(model, messages, known, KEY, settings=GLS(training.without()))


@pytest.mark.parametrize("wide", [False, True])
def test_an_optimizer_is_linear_inside_a_jit_as_outside(wide):
    """It is looked at once: what is said first is said ever after."""

    @jax.jit
    def asked(number):
        return number, is_linear(sgd(0.9, 0.002 if wide else 0.001))

    with jax.enable_x64(wide):
        assert asked(jnp.ones(()))[1]
