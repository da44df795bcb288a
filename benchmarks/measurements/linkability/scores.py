"""How well descriptors of updates link clients (Song 2020, section VII-B): few programs, since an
accelerator compiles longer than it computes here."""

import functools

import jax
import numpy as np

from attacks import cluster_agreement, cluster_updates
from attacks.metrics import detection
from attacks.users import linkability as link
from benchmarks.scenarios.anonymous import Anonymous
from benchmarks.scenarios.streams import ServerStream, stream

Array = jax.Array
VOTES = 3
"""Descriptors of a client that are kept, and vote on which update is its next."""


def linked(
    drawn: Anonymous, mine: Array, other: Array, *, interval: int, pairs: int
) -> dict[str, float]:
    """What descriptors link, by metric.

    Args:
      drawn: both federations.
      mine, other: descriptors at unit length `[rounds, participants, d]`, of the clients' updates
        and of the server's own federation's.
      interval: rounds between a query and its gallery; beyond 1 there is precision alone.
      pairs: of updates, of either federation, that are judged to be of one client or not.
    """
    senders = drawn.clients.senders
    if interval > 1:
        return {"precision": float(_precision(mine, senders, interval))}
    keys = jax.random.split(stream(drawn.view.key, ServerStream.PAIRS))
    sides = (mine, senders), (other, drawn.shadow.senders)
    scores, tested = _all_scores(*sides, keys, pairs)
    auc = detection(np.asarray(tested[0]), np.asarray(tested[1])).auc
    return {
        **{name: float(value) for name, value in scores.items()},
        **{"auc": auc},
        **_clusters(np.asarray(mine), np.asarray(senders)),
    }


def _clusters(descriptors: np.ndarray, senders: np.ndarray) -> dict[str, float]:
    """How well all rounds' descriptors `[rounds, participants, d]` fall into clusters of one
    sender (Xu 2023), where as many clients as a round's participants sent them."""
    names = {
        "clusters": cluster_updates(descriptors, descriptors.shape[1]),
        "clusters_one_to_one": cluster_updates(descriptors, descriptors.shape[1], one_to_one=True),
    }
    return {name: cluster_agreement(named, senders) for name, named in names.items()}


@functools.partial(jax.jit, static_argnums=2)
def _precision(descriptors: Array, senders: Array, interval: int) -> Array:
    """Precision of queries so many rounds after their gallery. A scalar."""
    query, gallery = (
        (descriptors[rounds], senders[rounds])
        for rounds in (slice(interval, None), slice(None, -interval))
    )
    return link.link_precision(*query, *gallery)


@functools.partial(jax.jit, static_argnums=3)
def _all_scores(
    clients: tuple[Array, Array], shadow: tuple[Array, Array], keys: Array, pairs: int
) -> tuple[dict[str, Array], tuple[Array, Array]]:
    """All but the area, as one program, and similarities of pairs of the clients with their truth.

    Args:
      clients, shadow: descriptors `[rounds, participants, d]` of either federation, and who sent
        the updates `[rounds, participants]`.
      keys: draw the pairs of either `[2]`.
      pairs: of either (static).
    """
    (mine, senders), (other, sent) = clients, shadow
    flat, names = mine.reshape(-1, mine.shape[-1]), senders.ravel()
    learned = link.pair_similarities(
        other.reshape(-1, other.shape[-1]), sent.ravel(), keys[0], pairs
    )
    tested = link.pair_similarities(flat, names, keys[1], pairs)
    threshold = link.fit_threshold(*learned)
    followed, one_to_one = (
        link.follow(mine, votes=VOTES, one_to_one=alone) for alone in (False, True)
    )
    scores = {
        "precision": _precision(mine, senders, 1),
        "train_precision": _precision(other, sent, 1),
        "tracking": link.follow_precision(followed, senders),
        "tracking_one_to_one": link.follow_precision(one_to_one, senders),
        "matching_accuracy": link.matching_accuracy(*tested, threshold),
        "matching_train_accuracy": link.matching_accuracy(*learned, threshold),
    }
    return scores, tested
