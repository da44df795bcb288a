"""Linkability: the metric, Algorithm 2, pairs and thresholds, and a siamese network that learns
only what there is to learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks.fit import MisfitWarning, UncheckedWarning
from attacks.users import linkability as link
from attacks.users import siamese
from jaxfl import mlp

ints = functools.partial(jnp.zeros, dtype=int)


def walk(rng, rounds, clients, width, noise):
    """Descriptors of clients that stay where they are but for noise, shuffled; and who
    sent each."""
    places = rng.normal(size=(clients, width))
    senders = np.stack([rng.permutation(clients) for _ in range(rounds)])
    samples = places[senders] + noise * rng.normal(size=(rounds, clients, width))
    return link.unit(jnp.asarray(samples, jnp.float32)), jnp.asarray(senders)


def test_steady_clients_are_followed_and_noise_is_not():
    rng = np.random.default_rng(0)
    steady, senders = walk(rng, 12, 6, 8, 0.1)
    blind = link.unit(jnp.asarray(rng.normal(size=(60, 6, 8)), jnp.float32))
    shuffled = jnp.asarray(np.stack([rng.permutation(6) for _ in range(60)]))
    for one_to_one in (False, True):
        names = link.follow(steady, one_to_one=one_to_one)
        assert names.shape == senders.shape
        assert link.follow_precision(names, senders) == 1
        chance = link.follow_precision(link.follow(blind, one_to_one=one_to_one), shuffled)
        assert abs(chance - 1 / 6) < 0.1
    matched = np.asarray(link.follow(blind, one_to_one=True))
    assert (np.sort(matched, 1) == np.arange(6)).all()


def test_votes_outweigh_one_bad_round():
    """One round in which a client sends something unlike itself: its last descriptor misleads, its
    queue does not."""
    a, b, odd = jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 1.0]), jnp.asarray([-0.8, -0.6])
    rounds = jnp.stack([jnp.stack(pair) for pair in ((a, b), (a, b), (a, odd), (a, b))])
    assert link.follow(rounds, votes=3)[-1].tolist() == [0, 1]
    assert link.follow(rounds, votes=1)[-1].tolist() == [0, 0]


def test_descriptors_that_are_not_finite_link_nobody():
    rng = np.random.default_rng(1)
    samples, senders = walk(rng, 5, 4, 3, 1.0)
    broken = samples.at[2, 1].set(jnp.nan)
    assert (link.follow(broken) == -1).all()
    assert np.isnan(link.follow_precision(link.follow(broken), senders))
    assert np.isnan(link.link_precision(broken[1:], senders[1:], broken[:-1], senders[:-1]))
    pairs = link.pair_similarities(broken.reshape(-1, 3), senders.ravel(), jax.random.key(0), 200)
    assert np.isnan(link.matching_accuracy(*pairs, -0.5))


def test_a_round_is_judged_by_what_was_there_before_it():
    """The order of a round's samples changes their names alone."""
    rng = np.random.default_rng(1)
    samples, _ = walk(rng, 5, 4, 3, 1.0)
    order = jnp.asarray([2, 0, 3, 1])
    moved = samples.at[3].set(samples[3][order])
    assert (link.follow(moved)[3] == link.follow(samples)[3][order]).all()
    assert (link.follow(moved)[4] == link.follow(samples)[4]).all()


def test_precision_counts_the_nearest():
    rng = np.random.default_rng(2)
    samples, senders = walk(rng, 9, 5, 6, 0.05)
    assert link.link_precision(samples[2:], senders[2:], samples[:-2], senders[:-2]) == 1
    wrong = (senders[2:] + 1) % 5
    assert link.link_precision(samples[2:], wrong, samples[:-2], senders[:-2]) == 0


def test_pairs_are_of_one_client_and_of_two_by_turns():
    identities = jnp.asarray([0, 0, 0, 1, 1, 1, 2, 2, 2])
    first = jnp.arange(9)
    second = siamese.partners(jax.random.key(0), identities, first)
    assert ((identities[first] == identities[second]) == (jnp.arange(9) % 2 == 0)).all()
    assert (first != second).all()
    alone = jnp.asarray([0, 0, 1])
    with pytest.raises(ValueError, match="identities names 2 clients, and 1 for 1 of the samples"):
        link.pair_similarities(jnp.eye(3), alone, jax.random.key(0), 4)


def test_similarities_that_tell_nothing_apart_are_said_to():
    rng = np.random.default_rng(0)
    same = jnp.asarray(np.arange(400) % 3 == 0)
    alike = jnp.asarray(rng.normal(size=400) + 2 * np.asarray(same))
    link.fit_threshold(alike, same)  # warnings are errors
    with pytest.warns(MisfitWarning, match="are similarities distances"):
        link.fit_threshold(-alike, same)
    with pytest.warns(UncheckedWarning, match="no more alike than others"):
        link.fit_threshold(alike, jnp.asarray(rng.permutation(np.asarray(same))))


def test_no_threshold_is_better_than_the_fitted_one():
    rng = np.random.default_rng(4)
    same = np.arange(200) % 2 == 0
    similarities = (rng.normal(size=200) + same).astype(np.float32)
    threshold = link.fit_threshold(jnp.asarray(similarities), jnp.asarray(same))
    found = link.matching_accuracy(jnp.asarray(similarities), jnp.asarray(same), threshold)
    best = max(((similarities > t) == same).mean() for t in similarities)
    assert found == pytest.approx(best)
    broken = link.fit_threshold(jnp.asarray(similarities).at[3].set(jnp.nan), jnp.asarray(same))
    assert jnp.isnan(broken)
    assert jnp.isnan(link.matching_accuracy(jnp.asarray(similarities), jnp.asarray(same), broken))


@pytest.mark.parametrize("seed", range(20))
def test_equal_similarities_are_judged_alike(seed):
    rng = np.random.default_rng(seed)
    similarities, same = (
        -rng.integers(0, 4, 30).astype(np.float32),
        rng.random(30) < 0.2 + 0.6 * (seed % 2),
    )
    threshold = link.fit_threshold(jnp.asarray(similarities), jnp.asarray(same))
    found = link.matching_accuracy(jnp.asarray(similarities), jnp.asarray(same), threshold)
    best = max(((similarities > t) == same).mean() for t in (-np.inf, *similarities))
    assert found == pytest.approx(best)


@pytest.mark.parametrize("centred", [False, True])
def test_a_siamese_network_finds_what_tells_clients_apart(centred):
    """The client stands in the small entries, noise in the large ones. With names at random there
    is nothing to learn."""
    rng = np.random.default_rng(5)
    scale = np.concatenate([np.full(4, 0.3), np.full(12, 1.0)])

    def federation(clients):
        places = np.concatenate([rng.normal(size=(clients, 4)), np.zeros((clients, 12))], 1)
        noise = np.concatenate([np.full(4, 0.1), np.full(12, 1.0)]) * rng.normal(
            size=(20, clients, 16)
        )
        return jnp.asarray((places + noise) * scale, jnp.float32)

    shadow, real = federation(10), federation(10)
    senders = jnp.broadcast_to(jnp.arange(10), (20, 10))
    embedding = siamese.vector_embedding(16, 32)
    settings = siamese.Siamese(60, 20, 0.02, centred=centred)

    samples = shadow.reshape(-1, 16)

    def precision(identities):
        found = siamese.train_siamese(
            embedding, samples, identities, jax.random.key(0), described=samples, settings=settings
        )
        assert found.descriptors.shape == (60, 200, 32)
        assert np.allclose(
            found.descriptors[-1, 7], embedding.apply(found.params, samples[7]), atol=1e-5
        )
        describe = jax.vmap(jax.vmap(lambda s: embedding.apply(found.params, s)))
        mine = link.unit(describe(real), centred)
        return float(
            link.link_precision(mine[1:], senders[1:], mine[:-1], senders[:-1])
        ), found.loss

    learned, loss = precision(senders.ravel())
    raw = link.unit(real, centred)
    untrained = float(link.link_precision(raw[1:], senders[1:], raw[:-1], senders[:-1]))
    assert loss[-1] < loss[0]
    assert learned > untrained + 0.2
    blind, _ = precision(jnp.asarray(rng.permutation(np.asarray(senders).ravel())))
    assert blind < learned - 0.2


def test_lengths_are_nothing_to_compare_and_centring_is_asked_for():
    rng = np.random.default_rng(3)
    raw = jnp.asarray(rng.normal(size=(4, 5, 6)) + 2, jnp.float32)
    for centred in (False, True):
        here = link.unit(raw, centred)
        assert np.allclose(jnp.linalg.norm(here, axis=-1), 1, atol=1e-6)
        assert np.allclose(link.unit(3 * raw, centred), here, atol=1e-6)
    assert np.allclose(link.unit(raw), raw / jnp.linalg.norm(raw, axis=-1, keepdims=True))
    moved = raw + jnp.arange(4.0)[:, None, None]
    assert np.allclose(link.unit(moved, centred=True), link.unit(raw, centred=True), atol=1e-5)
    assert not np.allclose(link.unit(moved), link.unit(raw), atol=0.1)


def test_descriptors_are_kept_of_the_asked_epochs_alone():
    rng, settings = np.random.default_rng(5), siamese.Siamese(4, 6)
    samples, identities = jnp.asarray(rng.normal(size=(12, 5)), jnp.float32), jnp.arange(12) % 3
    embedding = siamese.vector_embedding(5, 6)

    def trained(after):
        return siamese.train_siamese(
            embedding,
            samples,
            identities,
            jax.random.key(0),
            described=samples,
            described_after=after,
            settings=settings,
        )

    every, some = trained(None), trained([4, 2])
    assert every.descriptors.shape == (4, 12, 6)
    assert np.allclose(some.descriptors, every.descriptors[jnp.asarray([3, 1])], atol=1e-6)
    assert np.allclose(some.loss, every.loss, atol=1e-6)
    with pytest.raises(ValueError, match=r"described_after=\[5\] names epoch 5"):
        trained([5])


def test_shift_and_scale_of_descriptors_are_nothing_to_learn():
    """Neither to the loss before the first step, nor to the layers where the embedding stays as it
    is."""
    rng = np.random.default_rng(7)
    samples, identities = jnp.asarray(rng.normal(size=(12, 5)), jnp.float32), jnp.arange(12) % 3
    plain = siamese.vector_embedding(5, 6)
    moved = plain._replace(apply=lambda params, sample: 0.01 * plain.apply(params, sample) + 3)
    still = siamese.Siamese(20, 4, 0.02, embedding_rate=0.0, centred=True)
    one, other = (
        siamese.train_siamese(e, samples, identities, jax.random.key(0), settings=still)
        for e in (plain, moved)
    )
    assert np.allclose(one.loss, other.loss, rtol=1e-3)
    assert one.loss[-1] < one.loss[0]
    again = siamese.train_siamese(
        plain, samples, identities, jax.random.key(0), start=one.params, settings=still
    )
    assert all(
        (a == b).all()
        for a, b in zip(jax.tree.leaves(again.params), jax.tree.leaves(one.params), strict=True)
    )


def test_bad_input_is_named():
    samples = jnp.ones((4, 3))
    embedding = siamese.vector_embedding(3)
    with pytest.raises(ValueError, match="identities has shape"):
        siamese.train_siamese(embedding, samples, jnp.zeros(3, int), jax.random.key(0))
    with pytest.raises(ValueError, match="identities names 1 clients"):
        siamese.train_siamese(embedding, samples, jnp.zeros(4, int), jax.random.key(0))
    with pytest.raises(ValueError, match="identities holds the label -1"):
        siamese.train_siamese(embedding, samples, jnp.array([0, 1, -1, 0]), jax.random.key(0))
    with pytest.raises(ValueError, match="descriptors has shape"):
        link.follow(jnp.zeros((4, 3)))
    with pytest.raises(ValueError, match="votes=0"):
        link.follow(jnp.ones((2, 2, 3)), votes=0)
    plain = mlp(3, (4,), 2)
    with pytest.raises(ValueError, match="trunk"):
        link.last_bias(plain, plain.init(jax.random.key(0)))


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (
            lambda: link.link_precision(
                jnp.zeros((2, 3, 4)), ints((2, 3)), jnp.zeros((2, 5, 4)), ints((2, 4))
            ),
            r"gallery_senders has shape \(2, 4\)",
        ),
        (lambda: link.matching_accuracy(jnp.zeros(4), jnp.zeros(3, bool), 0.0), "same has shape"),
        (
            lambda: link.pair_similarities(
                jnp.zeros((3, 2)), jnp.zeros(4, int), jax.random.key(0), 5
            ),
            "3 samples as in descriptors",
        ),
        (lambda: link.follow_precision(ints((3, 2)), ints((3, 3))), "senders has"),
    ],
)
def test_shapes_that_do_not_go_together_are_named(score, message):
    with pytest.raises(ValueError, match=message):
        score()


def test_descriptors_of_other_lengths_are_refused():
    """Distances between them go by their lengths."""
    raw = jax.random.normal(jax.random.key(0), (3, 4, 5))
    with pytest.raises(ValueError, match="descriptors holds a descriptor of length"):
        link.follow(raw)
    senders = jnp.tile(jnp.arange(4), (3, 1))
    with pytest.raises(ValueError, match="galleries holds"):
        link.link_precision(link.unit(raw), senders, raw, senders)
    with pytest.raises(ValueError, match="descriptors holds a descriptor of length"):
        link.pair_similarities(raw[0], jnp.asarray([0, 0, 1, 1]), jax.random.key(0), 8)
    nothing = link.unit(raw).at[1, 2].set(0.0)
    assert link.follow(nothing).shape == (3, 4)


def test_updates_are_not_linked_to_themselves():
    samples, senders = walk(np.random.default_rng(2), 4, 5, 6, 0.05)
    order = jnp.asarray([3, 1, 4, 0, 2])
    for gallery in (samples, samples[:, order]):
        with pytest.raises(ValueError, match="galleries of all 4 rounds hold all of the queries"):
            link.link_precision(samples, senders, gallery, senders)
    one_round = samples.at[1:].set(samples[:-1])
    assert link.link_precision(samples, senders, one_round, senders) >= 0.25


def test_who_is_followed_takes_part_in_every_round():
    names = jnp.tile(jnp.arange(3), (4, 1))
    assert link.follow_precision(names, names + 5) == 1
    for senders in (names.at[2, 0].set(7), names.at[:, 0].set(1)):
        with pytest.raises(ValueError, match=r"senders\[\d\] names the clients"):
            link.follow_precision(names, senders)
