"""What arrays and models mean is checked, not assumed."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import Knowledge, binary_column, closed_form
from benchmarks.harness.settings import flatten
from jaxfl import (
    DPSGD,
    Federated,
    HonestServer,
    LocalTraining,
    Messages,
    binary_cross_entropy,
    clipped_sgd,
    cross_entropy,
    from_flax,
    linear,
    local_update,
    mlp,
    one_client,
    simulate,
    squared_error,
    stack_clients,
)
from jaxfl.models.probe import mixes_records
from jaxfl.servers import ServerState

KEY = jax.random.key(0)
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)
MODEL, PLAIN = mlp(6, (8,), 3), LocalTraining(0.1)


def run(x=X, y=Y, model=MODEL, training=PLAIN, rounds=2, **server):
    clients = stack_clients([(x, y)])
    return simulate(model, model.init(KEY), clients, KEY, Federated(rounds, training), **server)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y[:, None], r"shape \(40, 1\), taken for probabilities of 3 classes"),
        (2 * np.eye(3)[Y], "rows must be non-negative and sum to 1"),
        (np.eye(3)[Y] - 0.5, "taken for class probabilities"),
        (Y.astype(str), "number the classes from 0"),
        (Y + 9, "labels must be integers in 0..2"),
    ],
)
def test_labels_that_mean_nothing_are_named(y, message):
    with pytest.raises(ValueError, match=message):
        run(y=y)


def test_class_probabilities_are_labels():
    hard, soft = run(), run(y=np.eye(3, dtype=np.float32)[Y])
    for a, b in zip(jax.tree.leaves(hard.returned), jax.tree.leaves(soft.returned), strict=True):
        assert np.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("loss", [cross_entropy, binary_cross_entropy, squared_error])
def test_losses_broadcast_no_labels(loss):
    outputs = jnp.zeros((5, 3 if loss is cross_entropy else 1))
    for y in (jnp.zeros((5, 1)), jnp.zeros(())):
        with pytest.raises(ValueError, match="y has shape"):
            loss(outputs, y)


def test_the_mean_of_models_holds_half_precision():
    """A count of 40,000 records, or of 70,000, is no number in float16."""
    for sizes in ((40_000, 40_000), (70_000,)):
        for dtype in (jnp.float16, jnp.bfloat16):
            params = {"w": jnp.asarray([0.1, 300.0, -2.0], dtype)}
            returned = {"w": jnp.stack([params["w"]] * len(sizes))}
            state = ServerState(params, HonestServer().init(params).optimizer)
            after = HonestServer().receive(state, returned, jnp.asarray(sizes), jnp.arange(2))
            assert (after.params["w"] == params["w"]).all()


def test_half_precision_and_separators_survive_a_file(tmp_path):
    tree = {"a/b%": {"w": jnp.ones((2, 3), jnp.bfloat16)}, "a": {"b%": {"w": jnp.ones((2, 3))}}}
    saved = Messages.from_arrays(tree, jax.tree.map(lambda a: a / 3, tree))
    saved.save(tmp_path / "m.npz")
    loaded = Messages.load(tmp_path / "m.npz")
    assert jax.tree.structure(loaded.returned) == jax.tree.structure(saved.returned)
    pairs = zip(jax.tree.leaves(loaded.returned), jax.tree.leaves(saved.returned), strict=True)
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert (a == b).all()


@pytest.mark.parametrize("rounds", [[0.5, 1], [1, 1], [-1, 0], [np.nan, 1], ["a", "b"]])
def test_round_numbers_are_distinct_integers(rounds):
    arrays = {"w": np.ones((2, 3))}
    with pytest.raises(ValueError, match="distinct integers from 0"):
        Messages.from_arrays(arrays, arrays, rounds=rounds)
    with pytest.raises(ValueError, match="names a round twice"):
        Messages.from_arrays(arrays, arrays).select([0, 0])


def test_gradients_in_64_bits_keep_them():
    rng = np.random.default_rng(0)
    received, sent = ({"w": rng.normal(size=(2, 9))} for _ in range(2))
    messages = Messages.from_gradients(received, sent)
    with jax.enable_x64(True):
        gap = np.asarray(messages.received["w"]) - np.asarray(messages.returned["w"]) - sent["w"]
    assert np.abs(gap).max() < 1e-15
    with pytest.raises(ValueError, match=r"gradients\['w'\] holds no numbers"):
        Messages.from_gradients(received, {"w": np.full((2, 9), "q")})


def test_rounds_are_selected_by_any_sequence_of_numbers():
    model = jnp.zeros((4, 3))
    messages = Messages.from_arrays({"w": model}, {"w": model + 1})
    for rounds in (range(2), [0, 1], np.arange(2), jnp.arange(2)):
        assert messages.select(rounds).rounds.tolist() == [0, 1]
    with pytest.raises(ValueError, match="rounds=3 must be a sequence of round numbers"):
        messages.select(3)
    with pytest.raises(ValueError, match=r"from 0 to 2\^31 - 1"):
        Messages.from_arrays({"w": model}, {"w": model}, [2**40, 1, 2, 3])


@pytest.mark.parametrize("number", [2**40, np.uint64(2**40), np.int64(2**31), -1])
def test_an_id_that_does_not_fit_is_named(number):
    with pytest.raises(ValueError, match=rf"id.*{number}"):
        one_client(X, Y, number)


@pytest.mark.parametrize("ids", [[2**40, 1], np.array([2**63 + 5, 7], np.uint64), ["a", "b"]])
def test_ids_that_do_not_fit_are_named(ids):
    with pytest.raises(ValueError, match="ids"):
        stack_clients([(X, Y), (X, Y)], ids=ids)


@pytest.mark.parametrize("key", [0, None, jax.random.split(KEY, 2)])
def test_a_key_is_a_key(key):
    with pytest.raises(ValueError, match=r"must be one key, as jax\.random\.key"):
        simulate(MODEL, MODEL.init(KEY), stack_clients([(X, Y)]), key, Federated())


def test_parameters_are_floating():
    whole = jax.tree.map(lambda a: a.astype(int), MODEL.init(KEY))
    for params, message in ((whole, "is of int32"), ({}, "has no arrays")):
        with pytest.raises(ValueError, match=message):
            simulate(MODEL, params, stack_clients([(X, Y)]), KEY, Federated())
    for make in (lambda: mlp(8, 16, 2), lambda: linear(-1)):
        with pytest.raises(ValueError, match=r"hidden=16 must be a tuple|features=-1"):
            make()


def test_messages_of_another_tree_are_named():
    seen = run().messages(0)
    known = Knowledge(X, Y, (binary_column(2),))

    def changed(change):
        arrays = [jax.tree.map(lambda a: a, t) for t in (seen.received, seen.returned)]
        return Messages.from_arrays(*map(change, arrays))

    def turned(tree):
        first = tree["Dense_0"]
        return {**tree, "Dense_0": {**first, "kernel": first["kernel"].swapaxes(1, 2)}}

    for change, message in (
        (lambda t: {**t, "steps": jnp.ones(2)}, r"\['steps'\] is none of the model's"),
        (lambda t: {"Dense_0": t["Dense_0"]}, r"\['Dense_1'\]\['bias'\] is missing"),
        (turned, r"has shape \(8, 6\), the model's has \(6, 8\); transpose it"),
    ):
        with pytest.raises(ValueError, match=message):
            closed_form(MODEL, changed(change), known)


class Reused(nn.Module):
    """Uses one kernel twice, once by hand."""

    @nn.compact
    def __call__(self, x):
        first = nn.Dense(6)
        hidden = nn.relu(first(x)) @ first.variables["params"]["kernel"].T
        return nn.Dense(3)(hidden)


class Normalised(nn.Module):
    """Batch normalisation by running averages in evaluation, or never."""

    running: bool

    @nn.compact
    def __call__(self, x, train=False):
        average = self.running and not train
        return nn.Dense(3)(nn.BatchNorm(use_running_average=average)(nn.Dense(8)(x)))


class Dropped(nn.Module):
    """Dropout whose switch has Flax's own name."""

    @nn.compact
    def __call__(self, x, deterministic=True):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=deterministic)(nn.Dense(8)(x)))


def test_layers_are_named_only_where_their_gradients_are_the_models():
    assert from_flax(Reused(), (6,), cross_entropy, 3).layers is None
    assert MODEL.layers is not None


def test_equal_modules_are_one_model():
    """Or every wrapping would compile all programs anew."""
    again = [from_flax(Dropped(), (6,), cross_entropy, 3) for _ in range(2)]
    assert again[0] is again[1]
    assert from_flax(Dropped(), (7,), cross_entropy, 3) is not again[0]


def test_running_averages_are_refused():
    with pytest.raises(ValueError, match="reads running averages in evaluation"):
        from_flax(Normalised(True), (6,), cross_entropy, 3)
    model = from_flax(Normalised(False), (6,), cross_entropy, 3)
    assert mixes_records(model, model.init(KEY), jnp.asarray(X))
    assert not mixes_records(MODEL, MODEL.init(KEY), jnp.asarray(X))


def test_dropout_goes_by_any_usual_name():
    model = from_flax(Dropped(), (6,), cross_entropy, 3)
    params = model.init(KEY)
    assert model.layers is None
    assert (model.apply(params, X) == model.apply(params, X)).all()
    assert not (model.apply(params, X, key=KEY) == model.apply(params, X)).all()


def test_private_training_needs_gradients_of_single_records():
    model = mlp(6, (8,), 3, batch_norm=True)
    with pytest.raises(ValueError, match="no record has a gradient of its own"):
        run(model=model, training=LocalTraining(plugins=(DPSGD(),)))


def private_noise(records, drop_last=False):
    """Standard deviation of what noise alone adds to an update of one epoch in batches of 16."""
    x, y = X[:1].repeat(records, 0), Y[:1].repeat(records)
    plugins = (DPSGD(clip=1e-3, noise_multiplier=1e3),)  # gradients are nothing beside the noise
    training = LocalTraining(1.0, batch_size=16, plugins=plugins, drop_last=drop_last)
    params = MODEL.init(KEY)

    @jax.jit
    def update(key):
        after = local_update(MODEL, params, one_client(x, y), key, training)
        return jnp.concatenate(
            [(a - b).reshape(-1) for a, b in zip(*map(jax.tree.leaves, (params, after)))]  # noqa: B905
        )

    return float(jax.vmap(update)(jax.random.split(KEY, 40)).std())


def test_noise_of_private_training_is_that_of_nominal_batches():
    """Of a last batch of one record too: sigma clip / 16 a step, as accounted for."""
    for records, steps in ((32, 2), (33, 3)):
        assert private_noise(records) == pytest.approx(steps**0.5 / 16, rel=0.03)
    assert private_noise(33, drop_last=True) == pytest.approx(2**0.5 / 16, rel=0.03)


def test_the_last_batch_may_be_left_out():
    """Then a client's steps are fewer, whatever its padding, and a small one takes its one."""
    training = LocalTraining(0.1, batch_size=16, drop_last=True)
    assert [training.steps(n) for n in (9, 16, 40, 48)] == [1, 1, 2, 3]
    params = MODEL.init(KEY)
    whole = dataclasses.replace(training, batch_size=None, drop_last=False)
    small = one_client(X[:9], Y[:9])
    a, b = (local_update(MODEL, params, small, KEY, t) for t in (training, whole))
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.allclose(left, right, atol=1e-6)
    padded = stack_clients([(X[:35], Y[:35]), (X, Y)]).client(0)
    a, b = (
        local_update(MODEL, params, d, KEY, training) for d in (one_client(X[:35], Y[:35]), padded)
    )
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.allclose(left, right, atol=1e-6)


def test_settings_tell_functions_apart():
    """By names that hold their numbers; a lambda has none."""
    flat = [flatten(LocalTraining(optimizer=clipped_sgd(c))) for c in (1e-4, 10.0)]
    assert flat[0] != flat[1]
    with pytest.raises(ValueError, match="has no name that tells it from others"):
        flatten(LocalTraining(optimizer=lambda rate: clipped_sgd(1.0)(rate)))


def test_messages_of_drawn_clients_are_named_under_jit():
    clients = stack_clients([(X, Y), (X, Y)])

    def seen(key):
        federated = Federated(2, clients_per_round=1)
        return simulate(MODEL, MODEL.init(KEY), clients, key, federated).messages(0).rounds

    with pytest.raises(ValueError, match="call it outside"):
        jax.jit(seen)(KEY)


def test_local_training_checks_its_labels_and_settings():
    params = MODEL.init(KEY)
    with pytest.raises(ValueError, match=r"data\.y holds the label"):
        local_update(MODEL, params, one_client(X, Y + 9), KEY, PLAIN)
    with pytest.raises(ValueError, match="epochs=0"):
        local_update(MODEL, params, one_client(X, Y), KEY, LocalTraining(epochs=0))
    with pytest.raises(ValueError, match=r"server\.optimizer=3 must be a hashable function"):
        simulate(MODEL, params, stack_clients([(X, Y)]), KEY, Federated(1), server=HonestServer(3))
    with pytest.raises(ValueError, match="position=True must be an integer"):
        binary_column(True)


def test_a_last_batch_of_one_record_costs_private_training_nothing():
    """Its noise was that of a batch of one before."""
    rng = np.random.default_rng(1)

    def accuracy(records):
        x = rng.normal(size=(records, 6)).astype(np.float32)
        y, model = (x[:, 0] > 0).astype(int), mlp(6, (16,), 2)
        recipe = LocalTraining(0.2, batch_size=64, plugins=(DPSGD(1.0, 0.5),))
        clients, federated = stack_clients([(x, y)]), Federated(20, recipe)
        test = one_client(x, y)
        run = simulate(model, model.init(KEY), clients, KEY, federated, test=test)
        return float(run.evaluation.accuracy[-1])

    assert abs(accuracy(256) - accuracy(257)) < 0.05


def test_models_that_give_no_numbers_at_random_parameters_are_taken_for_unmixed():
    model = dataclasses.replace(MODEL, apply=lambda p, x, **rest: jnp.log(-jnp.abs(x[:, :3])))
    assert not mixes_records(model, MODEL.init(KEY), jnp.asarray(X))


def test_views_name_their_bad_arguments():
    run = simulate(MODEL, MODEL.init(KEY), stack_clients([(X, Y), (X, Y)]), KEY, Federated(3))
    with pytest.raises(ValueError, match=r"rounds=\(1, 1\) names a round twice"):
        run.messages(0, rounds=(1, 1))
    for client in (True, 1.0, "0"):
        with pytest.raises(ValueError, match="client="):
            run.messages(client)
    assert len(run.messages(np.int64(1))) == 3
    with pytest.raises(ValueError, match="key=3 must be one key"):
        run.anonymous(3)


@pytest.mark.parametrize(
    "optimizer",
    [optax.adam(0.1), lambda rate: rate, lambda: optax.sgd(0.1), optax.lbfgs, optax.polyak_sgd],
    ids=["made", "of_another_kind", "without_rate", "with_line_search", "with_losses"],
)
def test_an_optimizer_is_a_function_from_a_rate(optimizer):
    must = r"optimizer=.* must be a hashable function from a learning rate .* not optax.adam\(0.1\)"
    with pytest.raises(ValueError, match=must):
        run(training=LocalTraining(0.1, optimizer=optimizer))
    with pytest.raises(ValueError, match=must):
        run(server=HonestServer(optimizer))


def test_models_that_are_not_finite_and_records_that_jax_cannot_hold_are_refused():
    broken = jax.tree.map(lambda a: a * jnp.nan, MODEL.init(KEY))
    with pytest.raises(ValueError, match=r"params\['Dense_0'\]\['bias'\] holds values that"):
        simulate(MODEL, broken, stack_clients([(X, Y)]), KEY, Federated(1))
    with pytest.raises(ValueError, match=r"records\[0\]\[0\] holds 240 values that are not finite"):
        stack_clients([(np.full((40, 6), 1e300), Y)])


def test_a_missing_axis_of_rounds_is_named():
    params = MODEL.init(KEY)
    with pytest.raises(ValueError, match=r"begin with an axis of rounds, here 8 .* leaf\[None\]"):
        Messages.from_arrays(params, params)


def test_a_module_is_no_model_and_the_mend_is_named():
    with pytest.raises(ValueError, match=r"must be a Model, as jaxfl\.mlp makes, or jaxfl\.from"):
        simulate(nn.Dense(3), {}, stack_clients([(X, Y)]), KEY, Federated(1))
