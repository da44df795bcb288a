"""The clients of a recorded run, as their server has them."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from jaxfl import LocalTraining, Messages, Upload
from jaxfl.datasets import Inputs
from jaxfl.recordings import Recording

EVERYONE = "all who took part, together"


@dataclasses.dataclass(frozen=True)
class Client:
    """One client, as its server has it.

    Attributes:
      name: its id.
      messages: what it was sent and returned.
      records: its own.
      others: all others of the table, clients' and nobody's, from which guesses are learned.
      table: everyone's: what values a column may have is known of all, not of the client.
      together: how many clients stand behind it, whose mean is all that is seen.
    """

    name: str
    messages: Messages
    records: Inputs
    others: Inputs
    table: Inputs
    together: int = 1

    def recipe(self, training: LocalTraining) -> LocalTraining:
        """What each client does in a round, as what is seen of it: of several the mean, weighted by
        their records. Full batches are one of all, steps that clients take side by side are nearly
        those of one in batches as large as theirs together, which are not cut from the records in
        order, and noise averages out."""
        if self.together == 1:
            return training
        named, total = self.records.clients, len(self.records.y)
        held = [named.count(name) for name in set(named)] if any(named) else [total]
        size = training.batch_size
        if size is not None:
            size = None if size >= max(held) else min(self.together * size, total)
        shares = np.asarray(held if len(held) > 1 else [1] * self.together, float)
        quieter = float(np.sqrt((shares**2).sum()) / shares.sum())
        plugins = tuple(
            dataclasses.replace(plugin, noise_multiplier=plugin.noise_multiplier * quieter)
            if isinstance(plugin, Upload)
            else plugin
            for plugin in training.plugins
        )
        return dataclasses.replace(training, batch_size=size, plugins=plugins, shuffle=True)


def clients_of(
    run: Recording,
    table: Inputs,
    only: Sequence[str] = (),
    participation: Mapping[int, Sequence[str]] | None = None,
) -> list[Client]:
    """The clients of a run whose records the table holds.

    Of global models alone those who took part are taken for one, by `participation` if it is given,
    else all clients; none are if other ones took part in another round, since no set of records is
    then behind all messages.

    Raises:
      ValueError: if a client has no records in the table, or is named more than once.
    """
    twice = [name for name in only if only.count(name) > 1]
    if twice:
        raise ValueError(f"client={twice[0]!r} is named more than once")
    if not run.clients:
        return _together(run, table, participation)
    chosen = tuple(only) or run.clients
    return [Client(n, run.messages(n), table.of(n), _without(table, {n}), table) for n in chosen]


def _together(
    run: Recording, table: Inputs, participation: Mapping[int, Sequence[str]] | None
) -> list[Client]:
    """Those who took part as one client, if the same did in every round."""
    messages, named = run.checkpoints(), frozenset(table.clients) - {""}
    present = {frozenset(names) for names in (participation or {0: tuple(named)}).values()}
    if len(present) > 1:
        return []
    if participation:  # a round in which nobody took part says nothing
        numbers = messages.rounds.tolist()
        messages = messages.select([t for t in numbers if t in participation])
    (together,) = present
    records = _of_clients(table, together) if named else table
    count = len(together) or 1
    return [Client(EVERYONE, messages, records, _without(table, together), table, count)]


def _without(table: Inputs, clients: Collection[str]) -> Inputs:
    """Records of others, and of nobody; none where the table does not say whose a record is, and
    all are the clients' own."""
    named = set(table.clients)
    return _of_clients(table, named.difference(clients) if named != {""} else ())


def _of_clients(table: Inputs, names: Collection[str]) -> Inputs:
    rows = [i for i, name in enumerate(table.clients) if name in names]
    held = tuple(table.clients[i] for i in rows)
    return dataclasses.replace(table, x=table.x[rows], y=table.y[rows], clients=held)
