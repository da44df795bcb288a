"""Clusters of anonymous updates: steady clients are told apart, also where few take part in a
round; names at random are worth 0; what cannot be named is not named."""

import numpy as np
import pytest

from attacks import cluster_agreement, cluster_updates, unit
from attacks.users.clusters import _coordinates


def sent(rng, rounds, participants, clients, noise, width=8):
    """Descriptors of steady clients, some of whom take part in each round, and who sent each."""
    places = rng.normal(size=(clients, width))
    senders = np.stack([rng.permutation(clients)[:participants] for _ in range(rounds)])
    samples = places[senders] + noise * rng.normal(size=(rounds, participants, width))
    return np.asarray(unit(samples.astype(np.float32))), senders


@pytest.mark.parametrize("one_to_one", [False, True])
@pytest.mark.parametrize("participants", [6, 2])
def test_steady_clients_have_clusters_of_their_own(participants, one_to_one):
    descriptors, senders = sent(np.random.default_rng(0), 30, participants, 6, 0.05)
    names = cluster_updates(descriptors, 6, one_to_one=one_to_one)
    assert cluster_agreement(names, senders) == 1


@pytest.mark.parametrize("one_to_one", [False, True])
def test_noise_is_worth_nothing(one_to_one):
    descriptors, senders = sent(np.random.default_rng(1), 60, 6, 6, 100.0)
    names = cluster_updates(descriptors, 6, one_to_one=one_to_one)
    assert abs(cluster_agreement(names, senders)) < 0.05


def test_one_to_one_names_no_two_updates_of_a_round_alike_and_is_right_more_often():
    descriptors, senders = sent(np.random.default_rng(2), 20, 6, 6, 0.7)
    free, bound = (cluster_updates(descriptors, 6, one_to_one=one) for one in (False, True))
    assert (np.sort(bound, 1) == np.arange(6)).all()
    assert (np.sort(free, 1) != np.arange(6)).any()
    assert cluster_agreement(bound, senders) > cluster_agreement(free, senders) + 0.1


def test_the_order_within_a_round_and_a_rotation_of_all_descriptors_change_no_cluster():
    rng = np.random.default_rng(3)
    descriptors, senders = sent(rng, 12, 4, 4, 0.1, width=60)
    order = np.argsort(rng.random((12, 4)), 1)
    turned = descriptors @ np.linalg.qr(rng.normal(size=(60, 60)))[0].astype(np.float32)
    names = cluster_updates(descriptors, 4)
    assert cluster_agreement(cluster_updates(turned, 4), names) == 1
    moved = cluster_updates(np.take_along_axis(descriptors, order[..., None], 1), 4)
    assert cluster_agreement(moved, np.take_along_axis(senders, order, 1)) == 1


def test_fewer_coordinates_keep_all_distances():
    vectors = np.random.default_rng(4).normal(size=(20, 500))
    short = _coordinates(vectors)
    assert short.shape == (20, 20)
    apart = [np.linalg.norm(each[:, None] - each, axis=-1) for each in (vectors, short)]
    np.testing.assert_allclose(*apart, atol=1e-6)


def test_agreement_is_that_of_pairs():
    """Hubert and Arabie 1985, by its definition over all pairs of updates."""
    rng = np.random.default_rng(5)
    names, senders = rng.integers(0, 3, (2, 5, 4))
    first, second = np.triu_indices(20, 1)
    alike, same = (each.ravel()[first] == each.ravel()[second] for each in (names, senders))
    together = (alike & same).sum()
    chance = alike.sum() * same.sum() / len(first)
    expected = (together - chance) / ((alike.sum() + same.sum()) / 2 - chance)
    assert cluster_agreement(names, senders) == pytest.approx(expected)


def test_one_round_links_nothing_and_updates_that_are_alike_are_one_cluster():
    descriptors, senders = sent(np.random.default_rng(8), 1, 4, 4, 0.1)
    assert np.isnan(cluster_agreement(cluster_updates(descriptors, 4), senders))
    alike = np.full((3, 4, 4), 0.5, np.float32)
    assert (cluster_updates(alike, 4) == 0).all()
    assert (cluster_updates(alike, 4, one_to_one=True) == -1).all()


def test_names_one_to_one_agree_by_chance_as_the_docstring_says():
    rng = np.random.default_rng(9)
    senders = np.tile(np.arange(4), (3, 1))
    drawn = [[rng.permutation(4) for _ in range(3)] for _ in range(3000)]
    mean = np.mean([cluster_agreement(np.asarray(names), senders) for names in drawn])
    assert abs(mean - 1 / 12) < 0.015


def test_descriptors_that_are_not_finite_are_not_named():
    descriptors, senders = sent(np.random.default_rng(6), 5, 4, 4, 0.1)
    descriptors = descriptors.copy()
    descriptors[2, 1, 0] = np.nan
    names = cluster_updates(descriptors, 4)
    assert (names == -1).all()
    assert np.isnan(cluster_agreement(names, senders))


def test_clients_that_cannot_have_sent_these_updates_are_refused():
    descriptors, _ = sent(np.random.default_rng(7), 3, 2, 4, 0.1)
    with pytest.raises(ValueError, match="clients=7; descriptors are of 6 updates"):
        cluster_updates(descriptors, 7)
    with pytest.raises(ValueError, match=r"clients=1 send one .* rounds of 2"):
        cluster_updates(descriptors, 1, one_to_one=True)
