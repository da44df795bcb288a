"""What clients do against their adversary: to their updates, and to their training."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import DPSGD, Federated, Mixup, Upload, accounting, mean_loss, mlp, simulate
from jaxfl.plugins.defenses import mixed, private_gradient
from tests.conftest import assert_same, largest_difference

KEY = jax.random.key(4)
UPDATE = {
    "a": jax.random.normal(KEY, (50, 40)),
    "b": 0.1 * jax.random.normal(jax.random.key(5), (40,)),
}


def norm(tree):
    return float(jnp.sqrt(sum((a**2).sum() for a in jax.tree.leaves(tree))))


def test_clipping_shortens_long_updates_only():
    assert norm(Upload(clip=1.0).send(UPDATE, KEY)) == pytest.approx(1.0, rel=1e-5)
    assert largest_difference(Upload(clip=1e6).send(UPDATE, KEY), UPDATE) == 0
    direction = jnp.vdot(Upload(clip=1.0).send(UPDATE, KEY)["a"], UPDATE["a"])
    assert direction == pytest.approx(norm({"a": UPDATE["a"]}) ** 2 / norm(UPDATE), rel=1e-5)


@pytest.mark.parametrize(
    "upload", [Upload(clip=2.0, noise_multiplier=0.5), Upload(noise_multiplier=0.5)]
)
def test_noise_has_the_stated_deviation(upload):
    quiet = Upload(clip=upload.clip).send(UPDATE, KEY)
    unit = 2.0 if np.isfinite(upload.clip) else norm(UPDATE)
    noise = jax.tree.map(jnp.subtract, upload.send(UPDATE, KEY), quiet)["a"]
    assert float(noise.std()) == pytest.approx(0.5 * unit, rel=0.1)
    assert abs(float(noise.mean())) < 0.05 * unit


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_rounding_is_unbiased_and_takes_two_to_the_bits_values(bits):
    sent = jax.vmap(lambda k: Upload(bits=bits).send(UPDATE, k))(jax.random.split(KEY, 400))
    assert len(np.unique(np.round(np.asarray(sent["a"]), 5))) <= 2**bits
    largest = float(jnp.abs(UPDATE["a"]).max())
    step = 2 * largest / (2**bits - 1)
    assert jnp.abs(sent["a"] - UPDATE["a"]).max() <= step * 1.001
    assert jnp.abs(sent["a"].mean(0) - UPDATE["a"]).max() < 4.5 * step / 2 / np.sqrt(400)


@pytest.mark.slow
def test_a_run_without_effect_is_the_plain_run_and_a_noisy_one_is_not(world):
    def run(upload):
        federated = Federated(rounds=3, plugins=() if upload is None else (upload,))
        return simulate(world.model, world.params, world.clients, world.key, federated)

    plain, empty, noisy = run(None), run(Upload()), run(Upload(noise_multiplier=0.1))
    assert_same(plain.params, empty.params, "an empty plug-in changes the training")
    assert largest_difference(plain.params, noisy.params) > 1e-4
    one, other = (
        jax.tree.map(jnp.subtract, m.returned, run(None).messages(c).returned)
        for c in (0, 1)
        for m in [noisy.messages(c)]
    )
    assert largest_difference(one, other) > 1e-4  # clients draw their own noise


@pytest.mark.slow
@pytest.mark.parametrize("upload", [Upload(), Upload(noise_multiplier=0.1), Upload(clip=0.01)])
def test_gradients_pass_through_what_is_sent(world, upload):
    def loss(rate):
        federated = Federated(rounds=2, training=jaxfl.LocalTraining(rate), plugins=(upload,))
        params = simulate(world.model, world.params, world.clients, world.key, federated).params
        return sum((a**2).sum() for a in jax.tree.leaves(params))

    slope = jax.grad(loss)(0.1)
    numeric = (loss(0.101) - loss(0.099)) / 0.002
    assert slope == pytest.approx(float(numeric), rel=0.05, abs=1e-3)
    assert jnp.isfinite(
        jax.grad(lambda u: upload.send(u, KEY)["a"].sum())(jax.tree.map(jnp.zeros_like, UPDATE))[
            "a"
        ]
    ).all()


def test_the_finest_rounding_stays_within_the_largest():
    sent = jax.vmap(lambda k: Upload(bits=16).send({"a": jnp.array([1.0, 0.5, -1.0])}, k)["a"])(
        jax.random.split(KEY, 5000)
    )
    assert jnp.abs(sent).max() <= 1.0


def test_bad_numbers():
    x = jnp.zeros((3, 2))
    clients = jaxfl.stack_clients([(x, jnp.zeros(3, int))])
    model = jaxfl.mlp(2, (), 2)
    for upload, message in (
        (Upload(clip=0), "clip=0 must be positive"),
        (Upload(noise_multiplier=-1.0), r"noise_multiplier=-1\.0 must be at least 0 and finite"),
        (
            Upload(noise_multiplier=float("inf")),
            "noise_multiplier=inf must be at least 0 and finite",
        ),
        (Upload(bits=2.5), r"bits=2\.5 must be an integer from 0"),
        (Upload(bits=24), "bits=24 must be an integer from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            simulate(model, model.init(KEY), clients, KEY, Federated(plugins=(upload,)))


@pytest.fixture(scope="module")
def batch():
    """A model of dense layers, the same without their names, and a batch with padding."""
    model, rng = jaxfl.mlp(5, (8,), 3), np.random.default_rng(0)
    x = rng.normal(size=(20, 5)).astype(np.float32)
    x[15:] = np.nan
    mask = jnp.arange(20) < 15
    return (
        model,
        dataclasses.replace(model, layers=None),
        model.init(KEY),
        jnp.asarray(x),
        jnp.arange(20) % 3,
        mask,
    )


@pytest.mark.slow
def test_private_gradients_agree_with_optax(batch):
    """Norms by layers, norms by `vmap(grad)`, and optax's own aggregation; differences
    below 1e-5."""
    model, plain, params, x, y, mask = batch

    @jax.jit
    def gradients(params, clip):
        def one(x, y):
            return jax.grad(lambda p: jaxfl.mean_loss(model, p, x[None], y[None]))(params)

        every = jax.vmap(one)(x[:15], y[:15])
        aggregate = optax.contrib.differentially_private_aggregate(clip, 0.0, key=KEY)
        expected, _ = aggregate.update(every, aggregate.init(params))
        privacy = DPSGD(clip, 0.0)
        return expected, [
            private_gradient(m, params, x, y, mask, KEY, privacy) for m in (model, plain)
        ]

    for clip in (0.1, 0.7, 100.0):
        expected, found = gradients(params, clip)
        assert largest_difference(found[0], expected) < 1e-5
        assert largest_difference(found[1], expected) < 1e-5
        assert optax.tree.norm(found[0]) <= clip + 1e-6


def test_private_noise_has_the_size_it_says(batch):
    model, _, params, x, y, mask = batch
    keys = jax.random.split(KEY, 2000)
    drawn = jax.vmap(lambda k: private_gradient(model, params, x, y, mask, k, DPSGD(0.5, 3.0)))(
        keys
    )
    for leaf in jax.tree.leaves(drawn):
        assert np.allclose(leaf.std(0), 0.5 * 3 / 15, rtol=0.15)


def test_mixup_averages_neighbours_and_has_the_gradient_of_the_average_label(batch):
    model, _, params, x, y, mask = batch
    paired, mixed_x, pairs = mixed(model, x, y, mask, KEY)
    clean = np.nan_to_num(np.asarray(x))
    partners = [
        int(np.argmin(np.abs(2 * mixed_x[i] - clean[i] - clean[:15]).sum(1))) for i in range(15)
    ]
    assert sorted(partners) == list(range(15))
    assert all(p != i for i, p in enumerate(partners))
    assert (np.asarray(pairs[:15, 1]) == np.asarray(y)[partners]).all()
    soft = (jax.nn.one_hot(pairs[:, 0], 3) + jax.nn.one_hot(pairs[:, 1], 3)) / 2
    one, other = (
        jax.grad(lambda p, m=m, t=t: jaxfl.mean_loss(m, p, mixed_x, t, mask=mask))(params)
        for m, t in ((paired, pairs), (model, soft))
    )
    assert largest_difference(one, other) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [(DPSGD(0.3, 0.5),), (Mixup(),), (Mixup(), DPSGD(0.3, 0.5))],
)
def test_defended_training_ignores_padding_and_runs_in_federations(world, training):
    training = jaxfl.LocalTraining(0.1, epochs=2, batch_size=8, plugins=training)
    x, y = (a[:21] for a in world.records[0])  # batches of 8, 8 and 5
    short = jaxfl.one_client(x, y)
    longer = jaxfl.ClientData(
        jnp.pad(short.x, ((0, 11), (0, 0)), constant_values=jnp.nan),
        jnp.pad(short.y, (0, 11)),
        jnp.arange(32) < 21,
        short.id,
    )
    one, other = (
        jaxfl.local_update(world.model, world.params, d, KEY, training) for d in (short, longer)
    )
    assert largest_difference(one, other) < 1e-5
    federated = Federated(rounds=2, training=training)
    plain = Federated(rounds=2, training=jaxfl.LocalTraining(0.1, epochs=2, batch_size=8))
    runs = [
        simulate(world.model, world.params, world.clients, KEY, f).params
        for f in (federated, plain)
    ]
    assert 1e-3 < largest_difference(*runs) < 10


def test_epsilon_is_recomputed():
    """Driouich 2023's (10, 1e-5) over 1,000 rounds of batches of 512, for its clients of 1,646 and
    of 127 records."""
    for records, steps in ((1646, 4000), (127, 1000)):
        settings = {"records": records, "batch_size": 512, "steps": steps, "delta": 1e-5}
        noise = accounting.noise_multiplier(10.0, **settings)
        assert accounting.epsilon(noise, **settings) == pytest.approx(10, abs=0.01)
        assert accounting.epsilon(2 * noise, **settings) < 5
    with pytest.raises(ValueError, match=r"epsilon=0.001 is smaller than .* must be above 0.0035"):
        accounting.noise_multiplier(1e-3, records=100, batch_size=None, steps=1, delta=1e-5)
    # Without sampling the Gaussian mechanism's own conversion is at hand.
    import dp_accounting

    exact = dp_accounting.get_epsilon_gaussian(noise / np.sqrt(1000), 1e-5)
    assert exact <= 10 < 1.1 * exact
    with pytest.raises(ValueError, match="noise_multiplier=0 must be positive"):
        accounting.epsilon(0, **settings)
    for noise in (1e300, 1e-300):
        with pytest.raises(ValueError, match=r"noise_multiplier=1e.300 must be between"):
            accounting.epsilon(noise, **settings)
    with pytest.raises(ValueError, match=r"mu=1e.300 must be between"):
        accounting.gaussian_epsilon(1e300, delta=1e-5)
    assert accounting.gaussian_epsilon(1e-300, delta=1e-5) == 0
    with pytest.raises(ValueError, match="delta=2"):
        accounting.epsilon(1.0, **(settings | {"delta": 2}))


def test_a_record_is_in_no_more_mixed_gradients_than_accounted_for(batch):
    """Without one record two of a batch's averages are gone and one is new; epsilon
    counts three."""
    model, _, _, x, y, mask = batch

    def averages(mask):
        _, found, pairs = mixed(model, x, y, mask, KEY)
        rows = np.round(np.c_[np.asarray(found), np.asarray(pairs)][np.asarray(mask)], 4)
        return {tuple(row) for row in rows}

    everyone = averages(mask)
    for record in range(15):
        without = averages(mask.at[record].set(False))
        assert len(everyone - without) + len(without - everyone) == accounting.MIXED
    settings = {"records": 100, "batch_size": 20, "steps": 50, "delta": 1e-5}
    mixed_noise = accounting.noise_multiplier(4.0, **settings, mixup=True)
    assert mixed_noise == pytest.approx(3 * accounting.noise_multiplier(4.0, **settings), rel=1e-3)
    assert accounting.epsilon(mixed_noise, **settings, mixup=True) == pytest.approx(4, abs=0.02)


@pytest.mark.parametrize("batch_size", [0, -5, 2.5])
def test_a_batch_without_records_guarantees_nothing(batch_size):
    for ask in (accounting.epsilon, accounting.noise_multiplier):
        with pytest.raises(ValueError, match=f"batch_size={batch_size}"):
            ask(1.0, records=100, batch_size=batch_size, steps=10, delta=1e-5)


def test_bad_private_training(world):
    for privacy, message in (
        (DPSGD(0.0), r"clip=0\.0 must be positive"),
        (DPSGD(1.0, -1.0), r"noise_multiplier=-1\.0"),
    ):
        federated = Federated(rounds=1, training=jaxfl.LocalTraining(0.1, plugins=(privacy,)))
        with pytest.raises(ValueError, match=message):
            simulate(world.model, world.params, world.clients, KEY, federated)


def correlation(a, b):
    return abs(np.corrcoef(np.ravel(a), np.ravel(b))[0, 1])


def test_arrays_of_an_update_have_noise_and_rounding_of_their_own():
    update = {name: jnp.zeros(4000).at[0].set(1.0) for name in ("a", "b")}
    for upload in (Upload(noise_multiplier=1.0), Upload(bits=1)):
        sent = upload.send(update, KEY)
        assert np.std(sent["a"]) > 0.1
        shared = correlation(sent["a"], sent["b"])
        assert shared < 0.1, f"arrays share a key: their noise correlates by {shared:.3f}"


def test_rounding_does_not_follow_the_noise():
    update = {"a": jnp.zeros(4000).at[0].set(1.0)}
    noised = Upload(noise_multiplier=0.1).send(update, KEY)["a"]
    rounded = Upload(noise_multiplier=0.1, bits=1).send(update, KEY)["a"]
    shared = correlation(rounded - noised, noised)
    assert shared < 0.1, f"rounding and noise share a key: they correlate by {shared:.3f}"


def test_parameters_have_private_noise_of_their_own():
    model = jaxfl.mlp(20, (20, 20), 2)
    params, data = model.init(KEY), (jnp.zeros((4, 20)), jnp.zeros(4, int), jnp.ones(4, bool))
    drawn = private_gradient(model, params, *data, KEY, DPSGD(1e-3, 1e3))
    shared = correlation(drawn["Dense_0"]["kernel"], drawn["Dense_1"]["kernel"])
    assert shared < 0.2, f"parameters share a key: their noise correlates by {shared:.3f}"


@pytest.mark.parametrize(
    ("dtype", "length", "clip"),
    [(jnp.float16, 0.008, 0.002), (jnp.bfloat16, 0.008, 0.002), (jnp.float32, 1e22, 1.0)],
)
def test_norms_are_as_wide_as_they_must_be(dtype, length, clip):
    rng = np.random.default_rng(0)
    update = rng.normal(size=4000)
    update = {"w": jnp.asarray(length * update / np.linalg.norm(update), dtype)}
    sent = Upload(clip=clip).send(update, jax.random.key(0))
    assert sent["w"].dtype == dtype
    norm = np.linalg.norm(np.asarray(sent["w"], np.float64))
    np.testing.assert_allclose(norm, clip, rtol=0.02 if dtype != jnp.float32 else 1e-5)
    noised = Upload(noise_multiplier=0.1).send(update, jax.random.key(0))
    noise = np.asarray(noised["w"], np.float64) - np.asarray(update["w"], np.float64)
    np.testing.assert_allclose(noise.std(), 0.1 * length, rtol=0.05)


@pytest.mark.parametrize("layers", [True, False])
def test_private_gradients_of_long_records_in_half_precision_are_clipped_and_not_lost(layers):
    model = mlp(3, (5,), 2)
    model = model if layers else dataclasses.replace(model, layers=None)
    params = jax.tree.map(lambda a: a.astype(jnp.float16), model.init(jax.random.key(0)))
    x, y, mask = jnp.full((1, 3), 400.0, jnp.float16), jnp.zeros(1, int), jnp.ones(1, bool)
    long = jax.jit(jax.grad(lambda p: mean_loss(model, p, x, y)))(params)
    y = jnp.ones(1, int) if not any(leaf.any() for leaf in jax.tree.leaves(long)) else y
    private = private_gradient(model, params, x, y, mask, jax.random.key(0), DPSGD(1.0, 0.0))
    square = sum(np.square(np.asarray(leaf, float)).sum() for leaf in jax.tree.leaves(private))
    np.testing.assert_allclose(square**0.5, 1, rtol=1e-2)


def test_an_update_that_is_not_finite_is_not_sent_as_it_is():
    update = {"w": jnp.asarray([jnp.inf, 1.0, 2.0])}
    clipped = Upload(clip=1.0).send(update, KEY)["w"]
    np.testing.assert_array_equal(clipped, [np.nan, 0, 0])
    noised = np.asarray(Upload(noise_multiplier=0.1).send(update, KEY)["w"])
    assert not np.isin([1.0, 2.0], noised).any()
    assert Upload(clip=1.0).send({}, KEY) == {}


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_private_training_in_half_precision_takes_optimizers_with_a_state(dtype):
    model = mlp(3, (5,), 2)
    params = jax.tree.map(lambda a: a.astype(dtype), model.init(KEY))
    data = jaxfl.one_client(np.ones((6, 3), np.float32), np.zeros(6, int))
    training = jaxfl.LocalTraining(0.1, optimizer=jaxfl.sgd(0.9), plugins=(DPSGD(1.0, 0.1),))
    returned = jaxfl.local_update(model, params, data, KEY, training)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(returned))
    assert largest_difference(returned, params) > 0


def test_a_loss_that_mixes_records_is_not_private():
    """One record would move the others' clipped gradients too, or a record alone has none."""
    x, y = np.ones((6, 3), np.float32), np.arange(6) % 2
    training = jaxfl.LocalTraining(0.1, plugins=(DPSGD(1.0, 0.1),))
    plain = mlp(3, (5,), 2)
    centred = dataclasses.replace(
        plain, loss=lambda outputs, y: jaxfl.cross_entropy(outputs - outputs.mean(0), y)
    )
    for model in (centred, dataclasses.replace(centred, layers=None)):
        params = plain.init(KEY)
        with pytest.raises(ValueError, match=r"mixes the records .* or its loss does"):
            jaxfl.local_update(model, params, jaxfl.one_client(x, y), KEY, training)
    jaxfl.local_update(plain, plain.init(KEY), jaxfl.one_client(x, y), KEY, training)
