"""Clusters of anonymous updates (Xu, Cohn and Ohrimenko 2023, *Fingerprint Attack*): which updates
of a whole training come from the same client.

Threat model: an honest-but-curious server that receives updates without their senders' names, and
knows how many clients there are. It needs no records, learns nothing beforehand, and clients need
not take part in every round.

The paper clusters gradients of language models. Descriptors here are anybody's: whole updates, or
any of `attacks.users.linkability`, at unit length.
"""

import math
import warnings

import numpy as np
from jaxtyping import Int, Num

from attacks.users.linkability import check_unit
from jaxfl.domains import Count, Index, checked
from jaxfl.watching import on_host

STARTS = 10
"""Starts of k-means; the best is kept. As many as scikit-learn's own random starts."""
UNNAMED = -1
MOST_PASSES = 100
"""Passes of assignments one to one, at most. They end where no assignment changes, after a few."""


@on_host("scikit-learn")
@checked
def cluster_updates(
    descriptors: Num[np.ndarray, "rounds participants d"],
    clients: Count,
    *,
    one_to_one: bool = False,
    seed: Index = 0,
) -> Int[np.ndarray, "rounds participants"]:
    """Name the sender of every update, by k-means of the descriptors of all rounds together.

    Args:
      descriptors: of unit length `[rounds, participants, d]`, in any order within a round.
      clients: how many there are, k.
      one_to_one: a client sends one update of a round at most: k-means' centres are moved on, each
        round's updates going to centres of their own with the least sum of squared distances (not
        in the paper).
      seed: of k-means' ten starts.

    Returns:
      Names `[rounds, participants]`, whose order is arbitrary; -1 if a descriptor is not finite, or
      fewer of them differ than there are clients and each is to be of another one.

    Raises:
      ValueError: if descriptors are of another length; if there are fewer updates than clients, or,
        one to one, fewer clients than participants.
    """
    check_unit(descriptors=descriptors)
    rounds, participants = descriptors.shape[:2]
    if rounds * participants < clients:
        raise ValueError(f"clients={clients}; descriptors are of {rounds * participants} updates")
    if one_to_one and participants > clients:
        raise ValueError(
            f"clients={clients} send one update of a round each; descriptors has rounds of "
            f"{participants}"
        )
    if not np.isfinite(descriptors).all():
        return np.full((rounds, participants), UNNAMED)
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    places = _coordinates(np.asarray(descriptors, np.float64).reshape(rounds * participants, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of updates that are all alike
        fitted = KMeans(clients, n_init=STARTS, random_state=seed).fit(places)
    names = fitted.labels_.reshape(rounds, participants)
    if not one_to_one:
        return names.astype(int)
    if len(np.unique(names)) < clients:
        return np.full((rounds, participants), UNNAMED)
    return _one_to_one(places.reshape(rounds, participants, -1), fitted.cluster_centers_)


def _coordinates(vectors: np.ndarray) -> np.ndarray:
    """Vectors `[n, d]` in as many coordinates as there are vectors at most, distances unchanged."""
    if vectors.shape[1] <= len(vectors):
        return vectors
    values, directions = np.linalg.eigh(vectors @ vectors.T)
    return directions * np.sqrt(np.maximum(values, 0))


def _one_to_one(places: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Names `[rounds, participants]` of places `[rounds, participants, d]`, from centres to begin
    with `[clients, d]`."""
    from scipy.optimize import linear_sum_assignment

    names = np.full(places.shape[:2], UNNAMED)
    for _ in range(MOST_PASSES):
        squared = (centres**2).sum(-1) - 2 * places @ centres.T  # less the updates' own squares
        assigned = np.stack([linear_sum_assignment(round_)[1] for round_ in squared])
        if (assigned == names).all():
            break
        names = assigned
        sent = np.arange(len(centres))[:, None] == names.reshape(-1)
        counts = sent.sum(1, keepdims=True)
        means = sent @ places.reshape(-1, places.shape[-1]) / np.maximum(counts, 1)
        centres = np.where(counts > 0, means, centres)
    return names


@on_host("scikit-learn")
@checked
def cluster_agreement(
    names: Int[np.ndarray, "rounds participants"], senders: Int[np.ndarray, "rounds participants"]
) -> float:
    """The adjusted Rand index of names and senders: 1 where updates have one name if and only if
    they have one sender, 0 by chance in the mean (1 / updates, where names are one to one in each
    round); NaN if no names were found, or there is one round, in which nothing is linked.

    Args:
      names: from `cluster_updates` or `follow` `[rounds, participants]`.
      senders: the truth, likewise.

    Raises:
      ValueError: if shapes differ.
    """
    if (np.asarray(names) == UNNAMED).any() or len(names) < 2:
        return math.nan
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(np.ravel(senders), np.ravel(names)))
