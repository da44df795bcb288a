"""Local model reconstruction (Driouich 2023): exact where the theory is, better than the last model
where it can be."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import (
    Mapping,
    PseudoRecords,
    affine_optimum,
    extrapolated,
    last_returned,
    mapping_network,
    pseudo_records,
)
from attacks.local_models.reconstruction import CHANCE, by_chance
from attacks.path import at_path_centres
from jaxfl import (
    DPSGD,
    Federated,
    LocalTraining,
    Messages,
    Mixup,
    linear,
    logistic,
    mean_loss,
    mlp,
    simulate,
    stack_clients,
)
from tests.conftest import largest_difference

KEY = jax.random.key(0)
TRAINING = LocalTraining(0.1, batch_size=20)


@pytest.fixture(scope="module")
def heterogeneous():
    """Three clients whose labels follow different rules, seen in forty rounds."""
    rng = np.random.default_rng(0)
    records = []
    for _ in range(3):
        x = rng.normal(size=(60, 6)).astype(np.float32)
        records.append((x, (x @ rng.normal(size=(6, 3))).argmax(1)))
    model = mlp(6, (16,), 3)
    run = simulate(
        model, model.init(KEY), stack_clients(records), KEY, Federated(rounds=40, training=TRAINING)
    )
    return model, records, [run.messages(c) for c in range(3)]


def loss(model, params, records):
    return float(mean_loss(model, params, *map(jnp.asarray, records)))


def test_the_affine_map_is_exact_for_least_squares():
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        data = [(rng.normal(size=(50, 5)), rng.normal(size=50)) for _ in range(6)]
        model = linear(5)
        params = jax.tree.map(lambda a: a.astype(jnp.float64), model.init(KEY))
        federated = Federated(rounds=60, training=LocalTraining(0.05), clients_per_round=3)
        messages = simulate(model, params, stack_clients(data), KEY, federated).messages(0)
        found = affine_optimum(messages, ridge=1e-13)["Dense_0"]
        truth = np.linalg.lstsq(np.c_[data[0][0], np.ones(50)], data[0][1], rcond=None)[0]
        assert np.allclose(np.r_[found["kernel"][:, 0], found["bias"]], truth, atol=1e-5)


def test_extrapolation_goes_where_the_client_pulled(heterogeneous):
    model, records, messages = heterogeneous
    assert (
        largest_difference(extrapolated(messages[0], factor=0.0), last_returned(messages[0])) == 0
    )
    assert loss(model, extrapolated(messages[0], factor=3.0), records[0]) < loss(
        model, last_returned(messages[0]), records[0]
    )


@pytest.mark.parametrize("virtual", ["gradient", "unrolled"])
def test_pseudo_records_come_nearer_to_the_client_than_its_last_model(heterogeneous, virtual):
    model, records, messages = heterogeneous
    for own, seen in list(zip(records, messages, strict=True))[: 3 if virtual == "gradient" else 1]:
        settings = PseudoRecords(
            TRAINING, local_records=60, records=32, steps=300, finish=300, virtual=virtual
        )
        found = pseudo_records(model, seen, KEY, (6,), settings=settings)
        assert not found.kept_last
        assert found.unexplained < 0.3
        assert loss(model, found.params, own) < 0.8 * loss(model, last_returned(seen), own)
        other = records[(next(c for c in range(3) if records[c] is own) + 1) % 3]
        assert loss(model, found.params, other) > loss(model, last_returned(seen), other)


def test_training_on_made_up_records_ends_where_their_gradient_may_be_error(heterogeneous):
    model, _, messages = heterogeneous
    settings = PseudoRecords(TRAINING, local_records=60, records=32, steps=300)
    few, many, more = (
        pseudo_records(
            model, messages[0], KEY, (6,), settings=dataclasses.replace(settings, finish=finish)
        ).params
        for finish in (5, 20_000, 40_000)
    )
    assert largest_difference(many, more) == 0
    assert largest_difference(few, many) > 0.01
    outside = jax.jit(lambda s: pseudo_records(model, messages[0], KEY, (6,), settings=s).params)
    assert largest_difference(outside(dataclasses.replace(settings, finish=5)), few) < 1e-5
    adam = dataclasses.replace(TRAINING, optimizer=optax.adam)
    with pytest.raises(
        ValueError,
        match=r"record_shape=\(7,\) has records of shape \(7,\), which the model does not take",
    ):
        pseudo_records(model, messages[0], KEY, (7,), settings=settings)
    wrong = {
        "finish=0": {"finish": 0},
        "is not optax.sgd": {"training": adam},
    }
    for message, changed in wrong.items():
        with pytest.raises(ValueError, match=message):
            pseudo_records(
                model, messages[0], KEY, (6,), settings=dataclasses.replace(settings, **changed)
            )


def test_updates_without_a_client_behind_them_leave_the_last_model(heterogeneous):
    model, _, messages = heterogeneous
    noise = jax.tree.map(lambda a: a + jax.random.normal(KEY, a.shape), messages[0].received)
    settings = PseudoRecords(TRAINING, local_records=60, records=32, steps=100, finish=50)
    blind = Messages(messages[0].received, noise, messages[0].rounds)
    found = pseudo_records(model, blind, KEY, (6,), settings=settings)
    assert found.kept_last
    assert largest_difference(found.params, last_returned(blind)) == 0


def test_chance_of_what_is_explained():
    """Finite, and small where a map explains what chance does not: of updates along one direction,
    of equal ones, of tiny ones."""
    direction, sizes = jax.random.normal(KEY, (50,)), 0.8 ** jnp.arange(12.0)[:, None]
    for updates in (sizes * direction, jnp.tile(direction, (12, 1)), 1e-20 * sizes * direction):
        assert by_chance(jnp.asarray(1e-4), updates, 1) < CHANCE
        assert by_chance(jnp.asarray(1.0), updates, 1) == 1
        assert by_chance(jnp.asarray(0.999), updates, 1) > CHANCE  # far less than the mean does
    noise = jax.random.normal(KEY, (12, 50))
    assert by_chance(jnp.asarray(0.9), noise, 2) > CHANCE
    assert by_chance(jnp.asarray(0.3), noise, 2) < CHANCE


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "scaling"), [(10, "normalised"), (30, "literal")])
def test_a_map_of_noise_is_a_misfit_though_its_best_iterate_explains_some(rounds, scaling):
    """The iterate of least held-out error is below that of no map in a good part of clients."""
    model = mlp(6, (8,), 3)
    settings = Mapping(fit_steps=100, search_steps=5, scaling=scaling)

    @jax.jit
    def of_noise(key):
        def noise(leaf, stream):
            leaf_key = jax.random.fold_in(jax.random.fold_in(key, leaf.size), stream)
            return 0.3 * jax.random.normal(leaf_key, (rounds, *leaf.shape))

        received = jax.tree.map(lambda leaf: leaf + noise(leaf, 0), model.init(key))
        returned = jax.tree.map(lambda leaf: leaf + noise(leaf[0], 1), received)
        messages = Messages(received, returned, jnp.arange(rounds))
        reconstructed = mapping_network(messages, key, settings=settings)
        return reconstructed.unexplained, reconstructed.misfit

    unexplained, misfit = jax.lax.map(of_noise, jax.random.split(KEY, 100))
    assert (unexplained < 1).sum() >= 3
    assert (~misfit).sum() <= 1


@pytest.mark.parametrize("scaling", ["literal", "normalised"])
def test_the_published_network_runs_and_says_how_little_it_explains(heterogeneous, scaling):
    _, _, messages = heterogeneous
    settings = Mapping((16, 16), 3000, 3e-4, 50, scaling=scaling, held_out=0.2)
    reconstructed = mapping_network(messages[0], KEY, settings=settings)
    shapes = jax.tree.map(jnp.shape, last_returned(messages[0]))
    assert jax.tree.map(jnp.shape, reconstructed.params) == shapes
    assert reconstructed.unexplained < 0.7
    assert not reconstructed.misfit


def test_a_map_that_is_not_fitted_or_dead_is_a_misfit(heterogeneous):
    _, _, messages = heterogeneous

    def fitted(steps, rate):
        settings = Mapping((16, 16), steps, rate, 50, scaling="literal")
        return mapping_network(messages[0], KEY, settings=settings)

    early = fitted(5, 1e-3)
    assert early.unexplained > 1
    assert early.misfit
    # All its units are off around the last model, but it explains the mean of held-out updates.
    dead = fitted(200, 1.0)
    assert dead.unexplained < 1
    assert dead.kept_last
    assert dead.misfit
    assert largest_difference(dead.params, last_returned(messages[0])) == 0


def test_a_network_without_hidden_layers_is_the_affine_map():
    """Least squares, where the affine map is exact: the search ends at the optimum that it leads
    to, from the last model."""
    rng = np.random.default_rng(2)
    data = [
        (rng.normal(size=(50, 4)).astype(np.float32), rng.normal(size=50).astype(np.float32))
        for _ in range(6)
    ]
    model = linear(4)
    federated = Federated(rounds=60, training=LocalTraining(0.1), clients_per_round=3)
    messages = simulate(model, model.init(KEY), stack_clients(data), KEY, federated).messages(0)
    settings = Mapping((), fit_steps=4000, fit_rate=0.03, search_steps=4000, search_rate=0.03)
    found = mapping_network(messages, KEY, settings=settings)
    assert not found.kept_last
    truth = np.linalg.lstsq(np.c_[data[0][0], np.ones(50)], data[0][1], rcond=None)[0]
    last, params = last_returned(messages)["Dense_0"], found.params["Dense_0"]
    error, before = (
        np.linalg.norm(np.r_[p["kernel"][:, 0], p["bias"]] - truth) for p in (params, last)
    )
    assert error < 0.02 * before


def test_defences_of_the_recipe_are_not_those_of_made_up_records(heterogeneous):
    model, _, messages = heterogeneous
    settings = PseudoRecords(TRAINING, local_records=60, records=16, steps=50, finish=50)
    defended = dataclasses.replace(TRAINING, plugins=(Mixup(), DPSGD(0.1, 5.0)))
    plain = pseudo_records(model, messages[0], KEY, (6,), settings=settings)
    same = pseudo_records(
        model, messages[0], KEY, (6,), settings=dataclasses.replace(settings, training=defended)
    )
    assert not plain.kept_last  # else nothing would be compared
    assert largest_difference(plain.params, same.params) == 0


def test_pseudo_records_of_a_model_with_one_logit():
    rng = np.random.default_rng(3)
    records = []
    for _ in range(2):
        x = rng.normal(size=(40, 5)).astype(np.float32)
        records.append((x, (x @ rng.normal(size=5) > 0).astype(int)))
    model = logistic(5)
    run = simulate(
        model, model.init(KEY), stack_clients(records), KEY, Federated(30, LocalTraining(0.3))
    )
    settings = PseudoRecords(
        LocalTraining(0.3), local_records=40, records=32, steps=400, finish=300
    )
    for c in range(2):
        found = pseudo_records(model, run.messages(c), KEY, (5,), settings=settings)
        assert found.unexplained < 0.3
        assert loss(model, found.params, records[c]) < loss(
            model, last_returned(run.messages(c)), records[c]
        )


def test_a_client_with_one_step_has_its_centre_where_it_began(heterogeneous):
    _, _, messages = heterogeneous
    assert largest_difference(at_path_centres(messages[0], 1).received, messages[0].received) == 0
    middle = at_path_centres(messages[0], 10**6)
    half = jax.tree.map(lambda a, b: (a + b) / 2, messages[0].received, messages[0].returned)
    assert largest_difference(middle.received, half) < 1e-5
    assert largest_difference(middle.pseudo_gradient, messages[0].pseudo_gradient) < 1e-6


def test_bad_input(heterogeneous):
    model, _, messages = heterogeneous
    few = jax.tree.map(lambda a: a[:5], messages[0])
    with pytest.raises(ValueError, match="holds 5 rounds"):
        mapping_network(few, KEY)
    with pytest.raises(ValueError, match="holds 5 rounds"):
        pseudo_records(model, few, KEY, (6,))
    for held_out in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"held_out={held_out} must be between"):
            mapping_network(messages[0], KEY, settings=Mapping(held_out=held_out))
        with pytest.raises(ValueError, match=f"held_out={held_out} must be between"):
            pseudo_records(model, messages[0], KEY, (6,), settings=PseudoRecords(held_out=held_out))
    with pytest.raises(ValueError, match=r"held_out=0\.999 leaves none of \d+ rounds to fit"):
        mapping_network(messages[0], KEY, settings=Mapping(held_out=0.999))
    with pytest.raises(ValueError, match="scaling='raw'"):
        mapping_network(messages[0], KEY, settings=Mapping(scaling="raw"))
    with pytest.raises(ValueError, match="ridge=-1"):
        affine_optimum(messages[0], ridge=-1)
