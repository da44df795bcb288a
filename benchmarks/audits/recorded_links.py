"""Which updates of a recorded run come from one client, where they come without names.

The server is granted the clients' recipe, how many records they hold and, where the table has them,
records of nobody (rows that name no client), on which it runs a federation of its own."""

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import fit_filter_noise, matched_filter
from attacks.fit import FitWarning
from attacks.precision import cast
from attacks.users.linkability import unit, updates_as_vectors
from benchmarks.audits.questions import fitting
from benchmarks.audits.recorded_clients import Client
from benchmarks.measurements.linkability.work import record_gradients
from jaxfl import Federated, Keep, LocalTraining, Model, simulate, stack_clients
from jaxfl.datasets import Inputs

Array = jax.Array
FEWEST_RECORDS, MOST_ROUNDS, REFERENCES = 5, 20, 1_000
"""Records of each client of the server's own federation, below which there is none; its rounds, and
the records by whose gradients a filter is made, at most."""


class Link(NamedTuple):
    """Two rounds, one after the other.

    Attributes:
      earlier, later: their numbers.
      gallery: who took part in the earlier one.
      queries: who of these took part in the later one.
    """

    earlier: int
    later: int
    gallery: tuple[str, ...]
    queries: tuple[str, ...]


class Linked(NamedTuple):
    """How often the update that is most alike is of the same client.

    Attributes:
      method: by which updates are compared.
      hits, trials: of each client that took part in two rounds, one after the other.
      chance: share of hits of a draw among an earlier round's updates.
    """

    method: str
    hits: Mapping[str, int]
    trials: Mapping[str, int]
    chance: float


def links_of(clients: Sequence[Client]) -> list[Link]:
    """Pairs of rounds, one after the other, in each of which two clients or more took part, and one
    in both."""
    present: dict[int, list[str]] = {}
    for client in clients:
        for number in client.messages.rounds.tolist():
            present.setdefault(number, []).append(client.name)
    told = sorted(number for number, names in present.items() if len(names) > 1)
    links = []
    for earlier, later in itertools.pairwise(told):
        again = tuple(name for name in present[later] if name in present[earlier])
        links.append(Link(earlier, later, tuple(present[earlier]), again))
    return [link for link in links if link.queries]


def linked(
    model: Model, clients: Sequence[Client], training: LocalTraining, nobody: Inputs
) -> Linked:
    """Link the updates of each pair of rounds.

    Args:
      model: which clients train.
      clients: two or more.
      training: what they do in a round.
      nobody: the server's own records; with too few of them updates are compared as they are.
    """
    links = links_of(clients)
    vectors = _vectors(clients)
    learned = _filter(model, clients, training, nobody)
    described = {
        number: _described(of_round, learned) for number, of_round in _by_round(vectors).items()
    }
    hits, trials = ({name: 0 for link in links for name in link.queries} for _ in range(2))
    for link in links:
        gallery = np.stack([described[link.earlier][name] for name in link.gallery])
        for name in link.queries:
            nearest = int((gallery @ described[link.later][name]).argmax())
            hits[name] += link.gallery[nearest] == name
            trials[name] += 1
    chances = [1 / len(link.gallery) for link in links for _ in link.queries]
    method = "update" if learned is None else "matched_filter"
    return Linked(method, hits, trials, float(np.mean(chances)))


def _vectors(clients: Sequence[Client]) -> dict[tuple[int, str], np.ndarray]:
    """Every update, by its round and sender."""
    vectors: dict[tuple[int, str], np.ndarray] = {}
    for client in clients:
        alone = jax.tree.map(lambda a: a[:, None], client.messages.pseudo_gradient)
        each = np.asarray(updates_as_vectors(alone))[:, 0]
        numbers = client.messages.rounds.tolist()
        vectors |= {(t, client.name): v for t, v in zip(numbers, each, strict=True)}
    return vectors


def _by_round(vectors: Mapping[tuple[int, str], np.ndarray]) -> dict[int, dict[str, np.ndarray]]:
    rounds: dict[int, dict[str, np.ndarray]] = {}
    for (number, name), vector in vectors.items():
        rounds.setdefault(number, {})[name] = vector
    return rounds


def _described(
    of_round: Mapping[str, np.ndarray], learned: Callable[[Array], Array] | None
) -> dict[str, np.ndarray]:
    """Descriptors of unit length, less their round's mean, of a round's updates by sender."""
    raw = jnp.asarray(np.stack(list(of_round.values())))
    filtered = raw if learned is None else learned(raw)
    return dict(zip(of_round, np.asarray(unit(filtered[None], centred=True)[0]), strict=True))


def _filter(
    model: Model, clients: Sequence[Client], training: LocalTraining, nobody: Inputs
) -> Callable[[Array], Array] | None:
    """The filter that the server learns from its own records and federation, or None from too few
    records."""
    each = int(np.median([len(client.records.y) for client in clients]))
    each = min(each, len(nobody.y) // len(clients))
    if each < FEWEST_RECORDS:
        return None
    (seen, *_) = sorted((c.messages for c in clients), key=lambda m: -len(m.rounds))
    received, rounds = cast(seen.received, jnp.float32), len(seen.rounds)
    order = np.random.default_rng(0).permutation(len(nobody.y))
    parts = order[: each * len(clients)].reshape(len(clients), each)
    run = simulate(
        model,
        jax.tree.map(lambda a: a[0], received),
        stack_clients([(nobody.x[part], nobody.y[part]) for part in parts]),
        jax.random.key(0),
        Federated(min(rounds, MOST_ROUNDS), fitting(training, each), keep=Keep()),
    )
    sent = updates_as_vectors(run.pseudo_gradient)
    references = order[:REFERENCES]
    at = jnp.arange(len(references)) % rounds
    x, y = jnp.asarray(nobody.x[references]), jnp.asarray(nobody.y[references])
    gradients = record_gradients(model, received, x, y, at)
    senders = jnp.broadcast_to(run.clients, sent.shape[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the share of hits tells it
        noise = fit_filter_noise(sent, senders, gradients)
    if not bool(jnp.isfinite(noise)):
        return None
    return lambda vectors: matched_filter(vectors, gradients, noise)
