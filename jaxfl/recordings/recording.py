"""A recorded run: what was sent, what came back, as the views that attacks take."""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import _check
from jaxfl.domains import Key, check
from jaxfl.recordings.layout import Layout
from jaxfl.transcript import Aggregates, AnonymousMessages, Messages

Array = jax.Array


class RecordingWarning(UserWarning):
    """A recording is perhaps of something else than it is taken for."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """A recorded run. Models are pytrees of NumPy's arrays, as the model's parameters.

    Attributes:
      layout: which array of the first file is which parameter.
      sent: what everyone was sent, by the file's round number.
      returned: what came back, by client and by round number.
    """

    layout: Layout
    sent: Mapping[int, Any] = dataclasses.field(repr=False)
    returned: Mapping[str, Mapping[int, Any]] = dataclasses.field(repr=False)

    @property
    def clients(self) -> tuple[str, ...]:
        """Ids of the clients, as file names have them."""
        return tuple(self.returned)

    @property
    def rounds(self) -> tuple[int, ...]:
        """Numbers of the rounds, as file names have them."""
        return tuple(self.sent)

    def messages(self, client: str, rounds: Sequence[int] | None = None) -> Messages:
        """View of the server on one client.

        Args:
          client: its id.
          rounds: numbers of rounds; by default all in which it sent something.

        Raises:
          ValueError: if there is no such client, or a round is not held.
        """
        if client not in self.returned:
            raise ValueError(f"client={client!r} is not recorded; recorded: {list(self.clients)}")
        held = self.returned[client]
        chosen = list(held) if rounds is None else list(rounds)
        missing = [t for t in chosen if t not in held]
        if missing or not chosen:
            what = f"names round {missing[0]}" if missing else "is empty"
            raise ValueError(f"rounds={rounds!r} {what}; {client!r} took part in {list(held)}")
        followed = [t for t in chosen if t + 1 in self.sent]
        if len(followed) > 1 and all(_equal(held[t], self.sent[t + 1]) for t in followed):
            warnings.warn(
                f"client {client!r} returned what everyone is sent in the next round: it is the "
                "only client of its federation, or its files hold sums of all clients",
                RecordingWarning,
                stacklevel=2,
            )
        return stacked_messages([self.sent[t] for t in chosen], [held[t] for t in chosen], chosen)

    def checkpoints(self) -> Messages:
        """View of someone who sees global models alone, as published checkpoints: all clients
        together taken for one large one, which is sent a round's model and returns the next one's.

        For clients that take one full-batch step and count by their records that is exactly what a
        client of all their records would send.

        Raises:
          ValueError: if no two rounds follow each other.
        """
        followed = [t for t in self.sent if t + 1 in self.sent]
        if not followed:
            raise ValueError(f"rounds {list(self.sent)} hold no two that follow each other")
        sent = [self.sent[t] for t in followed]
        return stacked_messages(sent, [self.sent[t + 1] for t in followed], followed)

    def anonymous(
        self, key: Array, rounds: Sequence[int] | None = None
    ) -> tuple[AnonymousMessages, np.ndarray]:
        """View of a server whose clients hide who they are: senders shuffled anew in every round.

        Args:
          key: draws the orders.
          rounds: numbers of rounds in which equally many clients took part; by default all.

        Returns:
          The view, and apart from it, for scoring, the senders' ids `[rounds, participants]`.

        Raises:
          ValueError: if no client is recorded, a round is not held, or another number of clients
            took part in one.
        """
        check("key", key, Key)
        held = [t for t in self.sent if self._present(t)]
        chosen = held if rounds is None else list(rounds)
        missing = [t for t in chosen if t not in held]
        if missing or not chosen:
            what = f"names round {missing[0]}" if missing else "is empty"
            raise ValueError(f"rounds={rounds!r} {what}; clients' models are held of {held}")
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"rounds={rounds!r} names a round twice; name each once")
        counts = {t: len(self._present(t)) for t in chosen}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"rounds={rounds!r} have from {min(counts.values())} to {max(counts.values())} "
                f"participants {counts}; give rounds of equally many"
            )
        orders = [jax.random.permutation(jax.random.fold_in(key, t), counts[t]) for t in chosen]
        senders = [
            np.asarray(self._present(t))[np.asarray(order)]
            for t, order in zip(chosen, orders, strict=True)
        ]
        back = [
            _stacked([self.returned[client][t] for client in names])
            for t, names in zip(chosen, senders, strict=True)
        ]
        sent = _stacked([self.sent[t] for t in chosen])
        received, returned = _on_device((sent, _stacked(back)))
        return AnonymousMessages(received, returned, jnp.asarray(chosen)), np.stack(senders)

    def aggregates(
        self,
        participation: Mapping[int, Sequence[str]] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> tuple[Aggregates, tuple[str, ...]]:
        """View of a server behind secure aggregation: what clients changed, summed, and who took
        part.

        Where clients' models are recorded, these are summed. Where global models alone are, the
        change from one to the next is taken for the mean of the participants' changes, as it is if
        the server adopts the mean of their models.

        Args:
          participation: ids of the clients that took part, by round; by default those of which a
            model is recorded.
          weights: by which the server averages where global models are all that is recorded, such
            as numbers of records, by client; all alike by default. Attacks take sums in which
            clients count alike: where these do not, a warning says so.

        Returns:
          The view, and the clients' ids, in the order of `Aggregates.participation`.

        Raises:
          ValueError: if nothing says who took part, a participant has no model where clients'
            models are recorded, or a weight that is not positive; or if no two global models follow
            each other where they are all that is recorded.
        """
        summed = [t for t in self.sent if self.clients or t + 1 in self.sent]
        if participation is None:
            participation = {t: self._present(t) for t in summed}
        _check_participation(participation, summed)
        present = {t: tuple(participation.get(t, ())) for t in summed}
        chosen = [t for t in summed if present[t]]
        if not chosen:
            raise ValueError(
                f"participation={participation!r} names nobody in a round of which a sum is "
                f"recorded; sums are recorded of rounds {summed}"
            )
        everyone = tuple(sorted({name for t in chosen for name in present[t]}))
        if not self.clients:  # else models are summed here, and count alike
            _check_alike(everyone, weights)
        sums = _stacked([self._sum_of(t, present[t]) for t in chosen])
        received, sums = _on_device((_stacked([self.sent[t] for t in chosen]), sums))
        took_part = np.asarray([[name in present[t] for name in everyone] for t in chosen])
        most = int(took_part.sum(1).max())
        seen = Aggregates(
            received,
            sums,
            jnp.asarray(took_part),
            jnp.asarray(chosen),
            most if most < len(everyone) else None,
        )
        return seen, everyone

    def _present(self, number: int) -> tuple[str, ...]:
        """Clients of which a model is held in a round."""
        return tuple(client for client, models in self.returned.items() if number in models)

    def _sum_of(self, number: int, names: Sequence[str]) -> Any:
        """What participants of a round changed, summed (received - returned)."""
        sent = self.sent[number]
        missing = [name for name in names if name not in self._present(number)]
        if self.clients and missing:
            raise ValueError(
                f"participation names {missing[0]!r} in round {number}, of which no model of that "
                "client is held"
            )
        after = [self.returned[name][number] for name in names if self.clients]
        times = 1 if after else len(names)
        after = after or [self.sent[number + 1]]

        def summed(start: Any, *ends: Any) -> Any:
            wide = np.asarray(start, np.float64)
            total = np.sum([wide - np.asarray(end, np.float64) for end in ends], axis=0)
            return (times * total).astype(start.dtype)

        return jax.tree.map(summed, sent, *after)


def stacked_messages(sent: list[Any], back: list[Any], rounds: list[int]) -> Messages:
    """Messages of one client from its rounds' models."""
    received, returned = (jax.tree.map(lambda *a: np.stack(a), *models) for models in (sent, back))
    types = {leaf.dtype for leaf in jax.tree.leaves((received, returned))}
    with jax.enable_x64(jax.config.read("jax_enable_x64") or np.dtype(np.float64) in types):
        return Messages.from_arrays(received, returned, rounds)


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *a: np.stack(a), *trees)


def _on_device(tree: Any) -> Any:
    """Arrays of JAX, whose 64 bits stay; finite ones."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        _check.finite(**{f"models{jax.tree_util.keystr(path)}": leaf})
    wide = np.dtype(np.float64) in {leaf.dtype for leaf in jax.tree.leaves(tree)}
    with jax.enable_x64(jax.config.read("jax_enable_x64") or wide):
        return jax.tree.map(jnp.asarray, tree)


def _check_participation(participation: Mapping[int, Sequence[str]], summed: list[int]) -> None:
    """Raise `ValueError` unless every round is one of which a sum is recorded, with ids, each
    once."""
    if not isinstance(participation, Mapping):
        kind = type(participation).__name__
        raise ValueError(f"participation is a {kind}; it must be a mapping from rounds to ids")
    for number, names in participation.items():
        if isinstance(names, str) or len(set(names)) < len(names):
            raise ValueError(
                f"participation[{number!r}]={names!r} must be a sequence of ids, each named once"
            )
        if number not in summed:
            raise ValueError(
                f"participation names round {number!r}, of which no sum is recorded; recorded: "
                f"{summed}"
            )


def _check_alike(names: Sequence[str], weights: Mapping[str, float] | None) -> None:
    """Warn where clients do not count alike."""
    if weights is None:
        return
    for name in names:
        weight = weights.get(name)
        if not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
            raise ValueError(f"weights[{name!r}]={weights.get(name)!r} must be a positive number")
    least, most = (pick(weights[name] for name in names) for pick in (min, max))
    if most > least:
        warnings.warn(
            f"clients count by weights from {least:g} to {most:g}: attacks on sums take them for "
            "equal",
            RecordingWarning,
            stacklevel=3,
        )


def _equal(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)
