"""Settings of a federated run, and what its transcript keeps."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from flax import struct

from jaxfl import _check
from jaxfl.clients import ClientData
from jaxfl.domains import Count
from jaxfl.parallel import Devices, Strategy
from jaxfl.plugins import HoldsPlugins, Plugin, check_plugins
from jaxfl.training import LocalTraining


@dataclasses.dataclass(frozen=True)
class Keep:
    """What a transcript keeps; nothing else is held in memory (static).

    Attributes:
      clients: ids of the clients whose messages are kept, or "all".
      rounds: the rounds kept (0-based), or None for all.
      sums: keep the sum of the participants' pseudo-gradients: what an adversary sees behind secure
        aggregation.
    """

    clients: Sequence[int] | Literal["all"] = "all"
    rounds: Sequence[int] | None = None
    sums: bool = False

    def __post_init__(self) -> None:
        for name in ("clients", "rounds"):
            value = getattr(self, name)
            if value is None or (name == "clients" and value == "all"):
                continue
            if isinstance(value, str) or not np.iterable(value):
                raise ValueError(f"keep.{name}={value!r} must be a sequence of integers")
            object.__setattr__(self, name, tuple(value))


@struct.dataclass
class Federated(HoldsPlugins):
    """Settings of a federated run.

    Attributes:
      rounds: communication rounds (static).
      training: what a client does in a round; its numbers are traced.
      plugins: what clients do beside the recipe, in order; `PerClient` where they differ.
      clients_per_round: participants drawn without replacement in each round, or None for all
        (static).
      strategy: how clients run (static): "vmap" at once, "map" one after the other, an integer in
        chunks of that many; None picks "map" on CPU, where batching per-client weights costs time,
        and "vmap" on accelerators. It changes nothing but speed and memory.
      devices: devices that train equal shares of a round's participants, as `tuple(jax.devices())`,
        those of other processes among them (`jax.distributed`); None: one (static). Each of them
        holds the whole transcript; where all are of this process, that of the first is returned.
      rounds_on_device: clients' records stay on the host; only those of participants come to the
        device, for so many rounds at a time. None: everyone's are on the device (static). For more
        clients than a device holds, of whom `clients_per_round` take part. Kept messages come back
        to the host, as NumPy's arrays.
      keep: what the transcript keeps (static).
    """

    rounds: Count = struct.field(pytree_node=False, default=1)
    training: LocalTraining = LocalTraining()
    plugins: tuple[Plugin, ...] = ()
    clients_per_round: Count | None = struct.field(pytree_node=False, default=None)
    strategy: Strategy | None = struct.field(pytree_node=False, default=None)
    devices: Devices | None = struct.field(pytree_node=False, default=None)
    rounds_on_device: Count | None = struct.field(pytree_node=False, default=None)
    keep: Keep = struct.field(pytree_node=False, default=Keep())

    @property
    def kept_rounds(self) -> tuple[int, ...]:
        """The rounds of which messages are kept."""
        return tuple(range(self.rounds) if self.keep.rounds is None else self.keep.rounds)

    @property
    def keeps_every_round(self) -> bool:
        """Whether all rounds are kept, in their order."""
        return self.kept_rounds == tuple(range(self.rounds))

    def check(self, clients: ClientData) -> None:
        """Raise `ValueError` on settings that these clients cannot run."""
        count = len(clients.mask)
        check_plugins((*self.training.plugins, *self.plugins), count)
        if self.clients_per_round is not None and self.clients_per_round > count:
            raise ValueError(
                f"clients_per_round={self.clients_per_round} exceeds the {count} clients"
            )
        self._check_devices(count)
        if self.keep.rounds == ():
            raise ValueError("keep.rounds=() is empty; None keeps all")
        outside = [t for t in self.keep.rounds or () if not 0 <= t < self.rounds]
        if outside:
            raise ValueError(
                f"keep.rounds={self.keep.rounds} names round {outside[0]}; rounds run from "
                f"0 to {self.rounds - 1}"
            )
        for name in ("rounds", "clients"):
            chosen = getattr(self.keep, name)
            if isinstance(chosen, tuple) and len(set(chosen)) < len(chosen):
                raise ValueError(f"keep.{name}={chosen} repeats an entry; name each once")
        if self.keep.clients != "all" and not _check.is_unseen(clients.id):
            unknown = set(self.keep.clients) - set(np.asarray(clients.id).tolist())
            if unknown:
                raise ValueError(
                    f"keep.clients={self.keep.clients} names client {unknown.pop()}, which "
                    "is not among the clients"
                )

    def _check_devices(self, count: int) -> None:
        """Raise `ValueError` on devices that cannot share this many clients, and on a host that
        brings everyone's records."""
        taken = count if self.clients_per_round is None else self.clients_per_round
        if self.rounds_on_device is not None and taken == count:
            raise ValueError(
                f"rounds_on_device={self.rounds_on_device} needs clients_per_round below the "
                f"{count} clients: with all of them, each round brings everyone's records"
            )
        if self.devices is None:
            return
        if len(set(self.devices)) < max(len(self.devices), 1):
            raise ValueError(f"devices={self.devices} must be one device or more, each named once")
        shared = {"clients": count} if self.rounds_on_device is None else {}
        for what, number in (shared | {"participants of a round": taken}).items():
            if number % len(self.devices):
                raise ValueError(
                    f"devices names {len(self.devices)} devices, which cannot share {number} "
                    f"{what} equally"
                )
