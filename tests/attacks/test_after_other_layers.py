"""Dense layers after others, as after convolutions and embeddings: their spans tell as much."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import RecordSearch, count_records, lies_in_span, reconstruct_records
from jaxfl import (
    Federated,
    LocalTraining,
    Messages,
    cross_entropy,
    from_flax,
    mean_loss,
    mlp,
    simulate,
    stack_clients,
)
from jaxfl.datasets import load
from jaxfl.schema import Listed, Measured, Schema

KEY = jax.random.key(0)
IMAGES = load("digits")


class Convolutions(nn.Module):
    """Two convolutions before two dense layers; the second one may take all places of an image."""

    places: bool = False
    tied: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3))(x.reshape(-1, 8, 8, 1)))
        x = nn.relu(nn.Conv(8, (3, 3), strides=2)(x))
        if self.places:
            x = nn.Dense(8)(x)
        hidden = nn.Dense(64)
        x = nn.relu(hidden(x.reshape(len(x), -1)))
        if self.tied:
            x = x + x @ hidden.variables["params"]["kernel"][:64]
        return nn.Dense(10)(x)


def convolutional(**options):
    return from_flax(Convolutions(**options), (64,), cross_entropy)


def messages_of(model, x, y, rounds=1, key=KEY):
    federated = Federated(rounds, LocalTraining(0.1))
    run = simulate(model, model.init(key), stack_clients([(x, y)]), key, federated)
    return run.messages(client=0)


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.very_slow)])
def test_convolutions_hide_neither_how_many_images_there_are_nor_which(rounds):
    model = convolutional()
    assert model.layers is None
    assert model.tail.names == ("Dense_0", "Dense_1")
    _, first = np.unique(IMAGES.x[:300], axis=0, return_index=True)
    x, y = IMAGES.x[np.sort(first)], IMAGES.y[np.sort(first)]
    seen = messages_of(model, x[:16], y[:16], rounds)
    assert count_records(model, seen) == 16
    assert lies_in_span(model, seen, x[:16]).all()
    assert not lies_in_span(model, seen, x[16:]).any()


@pytest.mark.very_slow
def test_as_many_images_as_units_are_not_told():
    model = convolutional()
    seen = messages_of(model, IMAGES.x[:70], IMAGES.y[:70])
    assert count_records(model, seen) == 0
    assert lies_in_span(model, seen, IMAGES.x[:100]).all()


def test_messages_of_noise_tell_nothing():
    model = convolutional()
    params = model.init(KEY)
    noise = jax.tree.map(lambda a: jax.random.normal(KEY, a.shape), params)
    seen = Messages.from_gradients(*jax.tree.map(lambda a: a[None], (params, noise)))
    assert count_records(model, seen) == 0


def test_a_layer_of_several_vectors_of_an_image_is_none_of_them():
    assert convolutional(places=True).tail.names == ("Dense_1", "Dense_2")
    assert convolutional(tied=True).tail is None


@pytest.mark.slow
def test_what_does_not_hold_is_named():
    model = convolutional()
    seen = messages_of(model, IMAGES.x[:5], IMAGES.y[:5])
    schema = IMAGES.schema()
    with pytest.raises(ValueError, match="outside the dense layers"):
        reconstruct_records(model, seen, schema, LocalTraining(0.1), KEY)
    with pytest.raises(ValueError, match="does not take"):
        lies_in_span(model, seen, IMAGES.x[:5, :60])
    tied = convolutional(tied=True)
    with pytest.raises(ValueError, match="no dense layers"):
        count_records(tied, messages_of(tied, IMAGES.x[:5], IMAGES.y[:5]))
    mixing = from_flax(Centred(), (64,), cross_entropy)
    with pytest.raises(ValueError, match="depends on the others"):
        lies_in_span(mixing, messages_of(mixing, IMAGES.x[:5], IMAGES.y[:5]), IMAGES.x[:5])


class Centred(nn.Module):
    """A scale of its own for every number, less the batch's mean."""

    @nn.compact
    def __call__(self, x):
        x = (x - x.mean(0)) * self.param("scale", nn.initializers.ones, (64,))
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x)))


@pytest.mark.parametrize(
    "transformed", [nn.remat, pytest.param(nn.jit, marks=pytest.mark.very_slow)]
)
def test_layers_within_a_transformation_are_no_tail(transformed):
    class Inside(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.LayerNorm()(transformed(nn.Dense)(32)(x))
            return transformed(nn.Dense)(10)(nn.relu(x))

    model = from_flax(Inside(), (64,), cross_entropy)
    assert model.layers is None
    assert mean_loss(model, model.init(KEY), IMAGES.x[:3], IMAGES.y[:3]) > 0


@pytest.mark.very_slow
def test_records_that_left_no_trace_in_one_round_are_found_in_another():
    """At a large rate units die, and with them what some rounds say of some images."""
    model = convolutional()
    federated = Federated(8, LocalTraining(1.0))
    clients = stack_clients([(IMAGES.x[:12], IMAGES.y[:12])])
    seen = simulate(model, model.init(KEY), clients, KEY, federated).messages(client=0)
    assert lies_in_span(model, seen, IMAGES.x[:12]).all()
    assert lies_in_span(model, seen, IMAGES.x[300:400]).mean() < 0.05


class Branches(nn.Module):
    """A category's vector has a layer of its own, before what joins it to the other columns."""

    @nn.compact
    def __call__(self, x):
        category = nn.Dense(40)(nn.Embed(5, 4)(x[:, 0].astype(int)))
        joined = jnp.concatenate([nn.relu(nn.Dense(40)(x[:, 1:])), nn.relu(category)], -1)
        return nn.Dense(3)(nn.relu(nn.Dense(48)(joined)))


@pytest.mark.slow
def test_the_layer_that_tells_of_most_records_counts_them():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.integers(0, 5, (80, 1)), rng.normal(size=(80, 6))], 1)
    x, y = x.astype(np.float32), rng.integers(0, 3, 80)
    model = from_flax(Branches(), (7,), cross_entropy)
    seen = messages_of(model, x[:16], y[:16])
    assert count_records(model, seen) == 16
    assert lies_in_span(model, seen, x).tolist() == [True] * 16 + [False] * 64


CATEGORIES = 6, 12, 4


class Embedded(nn.Module):
    """A record is three categories and a number; every category has a vector."""

    @nn.compact
    def __call__(self, x):
        vectors = [nn.Embed(k, 3)(x[:, j].astype(int)) for j, k in enumerate(CATEGORIES)]
        x = jnp.concatenate([*vectors, x[:, 3:]], -1)
        for width in (48, 48):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(3)(x)


@pytest.mark.slow
def test_categories_look_like_their_rows_of_an_embedding():
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, k, 16) for k in CATEGORIES], 1)
    x = np.concatenate([codes, rng.normal(size=(16, 1))], 1).astype(np.float32)
    y = rng.integers(0, 3, 16)
    model = from_flax(Embedded(), (4,), cross_entropy)
    params = model.init(KEY)
    gradient = jax.grad(lambda p: mean_loss(model, p, x, y))(params)
    listed = tuple(
        Listed(
            (f"column {j}",),
            tuple(range(3 * j, 3 * j + 3)),
            np.asarray(params[f"Embed_{j}"]["embedding"]),
            tuple((k,) for k in range(count)),
        )
        for j, count in enumerate(CATEGORIES)
    )
    schema = Schema(10, listed, (Measured("number", 9, -5.0, 5.0),))
    dense = mlp(10, (48, 48), 3)
    leaves = [{name: tree[name] for name in model.tail.names} for tree in (params, gradient)]
    seen = Messages.from_gradients(*jax.tree.map(lambda a: a[None], leaves))
    answer = reconstruct_records(
        dense, seen, schema, LocalTraining(1.0), KEY, settings=RecordSearch(starts=64, passes=10)
    )
    assert answer.complete, answer.reason
    read = np.stack([answer.table[f"column {j}"] for j in range(3)], 1)
    order, theirs = np.lexsort(read.T), np.lexsort(codes.T)
    np.testing.assert_array_equal(read[order], codes[theirs])
    np.testing.assert_array_equal(answer.y[order], y[theirs])
    assert (
        count_records(
            model, Messages.from_gradients(*jax.tree.map(lambda a: a[None], (params, gradient)))
        )
        == 16
    )
