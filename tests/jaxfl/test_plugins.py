"""Plug-ins of clients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jaxfl
from jaxfl import DPSGD, Federated, Mixup, Upload, simulate
from tests.conftest import largest_difference

KEY = jax.random.key(4)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TopK(jaxfl.Plugin):
    """Sparsification as a user would write it: the largest numbers are sent, the others are not."""

    share: float

    def send(self, update, key):
        flat, restore = ravel_pytree(update)
        least = jnp.quantile(jnp.abs(flat), 1 - self.share)
        return restore(jnp.where(jnp.abs(flat) >= least, flat, 0))


def test_a_plug_in_of_ones_own_needs_no_file_of_the_library(world):
    def sent(*plugins, **recipe):
        training = jaxfl.LocalTraining(0.1, **recipe)
        federated = Federated(rounds=2, training=training, plugins=plugins)
        run = simulate(world.model, world.params, world.clients, world.key, federated)
        return ravel_pytree(jax.tree.map(lambda a: a[0, 0], run.pseudo_gradient))[0]

    whole, tenth = sent(), sent(TopK(0.1))
    count = int((tenth != 0).sum())
    assert abs(count - 0.1 * len(whole)) <= 1
    assert set(np.argsort(-np.abs(whole))[:count]) == set(np.flatnonzero(tenth))
    assert np.allclose(tenth[tenth != 0], whole[tenth != 0], atol=1e-6)
    # In the recipe it does the same; twice the negative is once; per client only where it is said.
    assert (sent(plugins=(TopK(0.1),)) == tenth).all()
    inverted = jaxfl.Behavior(update=-1.0)
    assert np.allclose(sent(inverted, inverted), whole, atol=1e-6)
    assert np.allclose(sent(inverted.of(jnp.asarray([True, False, False]))), -whole, atol=1e-6)
    assert np.allclose(sent(inverted.of(jnp.asarray([False, True, True]))), whole, atol=1e-6)


@pytest.mark.parametrize("plugin", [DPSGD(0.1, 1.0), Mixup(), jaxfl.Behavior(gradient=-1.0)])
def test_a_plug_in_does_the_same_in_the_recipe_and_beside_it(world, plugin):
    def params(recipe=(), beside=()):
        training = jaxfl.LocalTraining(0.1, batch_size=8, plugins=recipe)
        federated = Federated(rounds=2, training=training, plugins=beside)
        return simulate(world.model, world.params, world.clients, world.key, federated).params

    assert largest_difference(params((plugin,)), params((), (plugin,))) == 0
    assert largest_difference(params((plugin,)), params()) > 1e-4


def test_structures_tell_plug_ins_apart():
    """`jit` keys its programs by structure: what is not told apart may run another's program."""
    kinds = [DPSGD(1.0, 1.0), jaxfl.Behavior(1.0, 1.0), TopK(1.0), Noise(1.0), Mixup()]
    every = [*kinds, *(jaxfl.PerClient(kind) for kind in kinds)]
    for holder in (jaxfl.LocalTraining, Federated):
        structures = [jax.tree.structure(holder(plugins=(plugin,))) for plugin in every]
        for place, structure in enumerate(structures):
            assert [other == structure for other in structures].index(True) == place
            assert structures.count(structure) == 1
        again = jax.tree.map(lambda a: a, holder(plugins=tuple(kinds)))
        assert jax.tree.structure(again) == jax.tree.structure(holder(plugins=tuple(kinds)))
        assert again.plugins == tuple(kinds)


@dataclasses.dataclass(frozen=True)
class Naked(jaxfl.Plugin):
    """Not registered as a pytree."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Noise(jaxfl.Plugin):
    """Sends nothing but noise."""

    factor: float

    def send(self, update, key):
        leaves, structure = jax.tree.flatten(update)
        keys = jax.random.split(key, len(leaves))
        drawn = [
            self.factor * jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(
            structure, [0 * a + d for a, d in zip(leaves, drawn, strict=True)]
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MoreNoise(Noise):
    """The same beside what came before."""

    def send(self, update, key):
        return jax.tree.map(jnp.add, update, super().send(update, key))


def test_noise_is_drawn_anew_for_every_round_client_and_plug_in(world):
    def sent(*plugins):
        federated = Federated(rounds=2, plugins=plugins)
        run = simulate(world.model, world.params, world.clients, world.key, federated)
        rows = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), run.pseudo_gradient)
        return np.asarray(jax.vmap(lambda tree: ravel_pytree(tree)[0])(rows))

    one = sent(Noise(1.0))
    assert abs(np.corrcoef(one) - np.eye(len(one))).max() < 0.3  # [rounds x clients]
    assert 0.9 < one.std() < 1.1
    both = sent(Noise(1.0), MoreNoise(-1.0))
    assert 1.3 < both.std() < 1.5  # independent: sqrt(2), where one stream would cancel
    assert (sent(Noise(1.0)) == one).all()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Misspelt(jaxfl.Plugin):
    """Does nothing, for want of a letter."""

    factor: float

    def sent(self, update, key):
        return update


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scalar(jaxfl.Plugin):
    """Sends numbers where arrays are due."""

    factor: float

    def send(self, update, key):
        return jax.tree.map(lambda u: self.factor, update)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Short(jaxfl.Plugin):
    """Answers with too little."""

    factor: float

    def batch(self, model, x, y, mask, key):
        return x, y


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Flat(jaxfl.Plugin):
    """Gradients of another shape."""

    factor: float

    def step_gradient(self, model, params, x, y, mask, key):
        return jnp.zeros(3)


def test_plug_ins_that_cannot_be_are_named(world):
    def run(**changed):
        federated = Federated(training=jaxfl.LocalTraining(0.1, **changed))
        simulate(world.model, world.params, world.clients, world.key, federated)

    for plugins, message in (
        ((Naked(),), "a Naked, which is no pytree"),
        ((Misspelt(1.0),), "a Misspelt, which overrides none of recipe, batch"),
        ((Scalar(1.0),), r"Scalar\.send gave shapes"),
        ((Short(1.0),), r"Short\.batch gave no tuple"),
        ((Flat(1.0),), r"Flat\.step_gradient gave shapes"),
        (Upload(), "must be a tuple"),
        ((0.1,), r"plugins\[0\]=0\.1 must be a Plugin"),
        ((jaxfl.PerClient(Upload()),), "belongs into Federated.plugins"),
        ((DPSGD(), DPSGD()), "make gradients more than once"),
    ):
        with pytest.raises(ValueError, match=message):
            run(plugins=plugins)
    many = np.ones(len(world.clients.id) + 1)
    for plugin, message in (
        ("clip", r"plugins.0.(\.plugin)?='clip' must be a Plugin"),
        (jaxfl.PerClient("clip"), r"plugins.0.(\.plugin)?='clip' must be a Plugin"),
        (jaxfl.PerClient(Naked()), "a Naked, which is no pytree"),
        (jaxfl.PerClient(Misspelt(1.0)), "a Misspelt, which overrides none of recipe, batch"),
        (jaxfl.PerClient(jaxfl.PerClient(Upload())), "a PerClient, which overrides none of"),
        (jaxfl.PerClient(Scalar({"of": many})), r"factor=\{'of'.*must be one number"),
    ):
        federated = Federated(plugins=(plugin,))
        with pytest.raises(ValueError, match=message):
            simulate(world.model, world.params, world.clients, world.key, federated)
