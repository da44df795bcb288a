"""What a federated run leaves behind, and the views of it that adversaries get."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Bool, Int, Num

from jaxfl import _check
from jaxfl._view_programs import difference, of_rounds, shuffled
from jaxfl.domains import MOST_INDEX, Count, Index, Key, check
from jaxfl.evaluation import Evaluation
from jaxfl.files import read_tree, write_tree

Array = jax.Array


@struct.dataclass
class Messages:
    """Messages of one client, as its server (or an eavesdropper) sees them.

    Attributes:
      received: models the client received, a pytree with leaves `[rounds, ...]`.
      returned: models it returned, likewise.
      rounds: their 0-based round numbers `[rounds]`, integers.
    """

    received: Any
    returned: Any
    rounds: Int[Array, "rounds"]

    @property
    def pseudo_gradient(self) -> Any:
        """`received - returned`, positive along the gradient: for one full-batch SGD step, learning
        rate x gradient."""
        return difference(self.received, self.returned)

    @property
    def unchanged(self) -> Array:
        """Whether no model came back changed, a boolean scalar."""
        changed = jax.tree.map(lambda w, v: (w != v).any(), self.received, self.returned)
        return ~jnp.stack(jax.tree.leaves(changed)).any()

    @property
    def model_shapes(self) -> Any:
        """Shapes and types of one received model, without the axis of rounds."""
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), self.received)

    def __len__(self) -> int:
        return len(self.rounds)

    def select(self, rounds: Sequence[int]) -> "Messages":
        """The messages of these (0-based) rounds. Raises `ValueError` if one of them is
        not held, or there is no list of them."""
        if np.ndim(rounds) != 1:
            raise ValueError(f"rounds={rounds!r} must be a sequence of round numbers")
        rounds = np.asarray(rounds).tolist()
        held = np.asarray(self.rounds).tolist()
        missing = [t for t in rounds if t not in held]
        if missing:
            raise ValueError(
                f"rounds={tuple(rounds)} names round {missing[0]}, which is not held; held: {held}"
            )
        if len(set(rounds)) < len(rounds):
            raise ValueError(f"rounds={tuple(rounds)} names a round twice; name each once")
        if not len(rounds):
            raise ValueError(f"rounds={tuple(rounds)} is empty; name at least one of {held}")
        places = jnp.asarray([held.index(t) for t in rounds])
        return jax.tree.map(lambda a: a[places], self)

    @staticmethod
    def from_arrays(
        received: Any, returned: Any, rounds: Sequence[int] | None = None
    ) -> "Messages":
        """Messages recorded outside: pytrees of equal structure with leaves `[rounds, ...]`, named
        and shaped as the model's parameters. JAX's arrays keep their precision, or get that of the
        same array in the other argument if it is wider; NumPy's in 64 bits do where JAX's 64-bit
        types are on.

        Raises:
          ValueError: if structures or shapes differ, a value is no number, quantised or not finite,
            or round numbers are not distinct integers from 0 to 2^31 - 1.
        """
        received = _check.as_models("received", received)
        returned = _check.as_models("returned", returned)
        count = len(jnp.atleast_1d((*jax.tree.leaves(received), 0)[0]))
        numbers = np.arange(count) if rounds is None else np.asarray(rounds)
        _check.shape((count,), rounds=numbers)
        whole = np.issubdtype(numbers.dtype, np.integer)
        within = whole and (numbers >= 0).all() and (numbers < MOST_INDEX).all()
        if not within or len(set(numbers.tolist())) < count:
            raise ValueError(
                f"rounds={numbers.tolist()} must be distinct integers from 0 to 2^31 - 1, one for "
                f"each of the {count} rounds"
            )
        _check.of_rounds("", numbers, received=received, returned=returned)
        for name, tree in (("received", received), ("returned", returned)):
            for path, leaf in jax.tree.leaves_with_path(tree):
                _check.finite(**{f"{name}{jax.tree_util.keystr(path)}": leaf})
        received, returned = _check.of_one_type(received, returned)
        return Messages(received, returned, jnp.asarray(numbers))

    @staticmethod
    def from_gradients(
        received: Any, gradients: Any, rounds: Sequence[int] | None = None
    ) -> "Messages":
        """Messages of a client that sends gradients (FedSGD), as if it had taken steps of rate 1:
        in float64, so that nothing of a gradient is lost.

        Args:
          received: models the client received, a pytree with leaves `[rounds, ...]`.
          gradients: what it sent, likewise.
          rounds: as for `from_arrays`.

        Raises:
          ValueError: as `from_arrays`.
        """
        with jax.enable_x64(True):
            models, sent = (
                jax.tree.map(lambda a: np.asarray(a, np.float64), _check.as_models(name, tree))
                for name, tree in (("received", received), ("gradients", gradients))
            )
        _check.alike("gradients", models, sent)
        with jax.enable_x64(True):
            returned = jax.tree.map(np.subtract, models, sent)
            return Messages.from_arrays(models, returned, rounds)

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`. Values may be NaN: a client may diverge."""
        _check.of_rounds(f"{name}.", self.rounds, received=self.received, returned=self.returned)

    def save(self, path: str | Path) -> None:
        """Write an `.npz` file with one array per leaf, named by its path
        ("received/Dense_0/kernel"), and `rounds`."""
        write_tree(
            path, {"received": self.received, "returned": self.returned, "rounds": self.rounds}
        )

    @staticmethod
    def load(path: str | Path) -> "Messages":
        """Read what `save` wrote; parameters come back as nested dictionaries. Raises `ValueError`
        if parts are missing."""
        tree = read_tree(path)
        if set(tree) != {"received", "returned", "rounds"}:
            raise ValueError(
                f"path={str(path)!r} holds {sorted(tree)}; messages need received, returned and "
                "rounds"
            )
        return Messages.from_arrays(**tree)


@struct.dataclass
class AnonymousMessages:
    """Messages whose senders were shuffled anew in every round.

    Attributes:
      received: what everyone received, leaves `[rounds, ...]`.
      returned: what came back, leaves `[rounds, participants, ...]`, in random order.
      rounds: 0-based round numbers `[rounds]`.
    """

    received: Any
    returned: Any
    rounds: Int[Array, "rounds"]

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        one_sender = jax.tree.map(lambda a: a[:, 0], self.returned)
        _check.of_rounds(f"{name}.", self.rounds, received=self.received, returned=one_sender)

    @property
    def pseudo_gradient(self) -> Any:
        """`received - returned`, leaves `[rounds, participants, ...]`, positive along
        the gradient."""
        return difference(self.received, self.returned, of_many=True)


@struct.dataclass
class Aggregates:
    """What secure aggregation shows.

    Attributes:
      received: what everyone received, leaves `[rounds, ...]`.
      pseudo_gradient: sum over the round's participants of `received - returned`, leaves `[rounds,
        ...]`.
      participation: true, or 1, where a client took part `[rounds, clients]`.
      rounds: 0-based round numbers `[rounds]`.
      clients_per_round: no round has more participants; None if that is not known, or one had all
        (static).
    """

    received: Any
    pseudo_gradient: Any
    participation: Num[Array, "rounds clients"]
    rounds: Int[Array, "rounds"]
    clients_per_round: Count | None = struct.field(pytree_node=False, default=None)

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`."""
        sums = {"received": self.received, "pseudo_gradient": self.pseudo_gradient}
        _check.of_rounds(f"{name}.", self.rounds, **sums)


@struct.dataclass
class Transcript:
    """Everything that `simulate` was asked to keep. Attacks are given views of it, never the
    transcript.

    Attributes:
      params: the global model after the last round.
      received: models sent in the kept rounds, leaves `[rounds, ...]`, or `[rounds, kept clients,
        ...]` if `personal`.
      returned: models returned, leaves `[rounds, kept clients, ...]`; an absent client's equals
        what it would have received.
      clients: ids of the kept clients.
      ids: ids of all clients.
      participation: who took part, `[all rounds, clients]`, boolean.
      sums: sums of pseudo-gradients, leaves `[rounds, ...]`, or None if not kept.
      evaluation: of the global model after each round, fields `[all rounds]`, or None.
      rounds: the kept rounds, 0-based (static).
      personal: whether clients may have received different models (static).
      clients_per_round: participants per round, None if all took part (static).
      private: what the server remembers besides the global model; empty for an honest one. Not
        saved.
    """

    params: Any
    received: Any
    returned: Any
    clients: Int[Array, "kept"]
    ids: Int[Array, "clients"]
    participation: Bool[Array, "rounds clients"]
    sums: Any
    evaluation: Evaluation | None
    rounds: tuple[int, ...] = struct.field(pytree_node=False)
    personal: bool = struct.field(pytree_node=False)
    clients_per_round: int | None = struct.field(pytree_node=False)
    private: Any = ()

    @property
    def pseudo_gradient(self) -> Any:
        """`received - returned` of the kept clients, leaves `[rounds, kept clients, ...]`."""
        return difference(self.received, self.returned, of_many=not self.personal)

    def messages(self, client: int, rounds: Sequence[int] | None = None) -> Messages:
        """View of an honest-but-curious server or an eavesdropper on one client's channel.

        Args:
          client: the client's id.
          rounds: 0-based rounds; by default all kept ones. Rounds in which the client was absent
            are left out.

        Raises:
          ValueError: if the client or a round was not kept, or the client took part in none of
            them.
        """
        check("client", client, Index)
        place = self._place(client)
        wanted = self.rounds if rounds is None else tuple(rounds)
        if len(set(wanted)) < len(wanted):
            raise ValueError(f"rounds={wanted} names a round twice; name each once")
        if _check.is_unseen(self.participation) and self.clients_per_round is not None:
            raise ValueError(
                f"messages(client={client}) of clients that are drawn ({self.clients_per_round} a "
                "round) has as many rounds as the client was drawn for: call it outside `jit` and "
                "`vmap`"
            )
        if not wanted:
            raise ValueError(f"rounds={wanted} is empty; kept: {self.rounds}")
        missing = [t for t in wanted if t not in self.rounds]
        if missing:
            raise ValueError(
                f"rounds={wanted} names round {missing[0]}, which the transcript did not keep; "
                f"kept: {self.rounds}"
            )
        if self.clients_per_round is not None:
            present = np.asarray(self.participation)[:, np.asarray(self.ids).tolist().index(client)]
            wanted = tuple(t for t in wanted if present[t])
            if not wanted:
                raise ValueError(f"client={client} took part in none of the rounds asked for")
        rows = jnp.asarray(np.asarray([self.rounds.index(t) for t in wanted]))
        returned = of_rounds(self.returned, rows, place)
        received = of_rounds(self.received, rows, place if self.personal else None)
        return Messages(received, returned, jnp.asarray(np.asarray(wanted)))

    def anonymous(self, key: Array) -> tuple[AnonymousMessages, Array]:
        """View of a server whose clients hide their identity: senders shuffled per round.

        Returns:
          The view, and apart from it the truth for scoring: the senders' ids `[rounds,
            participants]`.

        Raises:
          ValueError: if not every client's messages were kept, or the server sent personal models
            (which name them).
        """
        check("key", key, Key)
        self._need_everyone("anonymous")
        if self.personal:
            raise ValueError(
                "anonymous() needs a server that sends everyone the same model; personal "
                "models name the sender"
            )
        rounds = jnp.asarray(np.asarray(self.rounds))
        who = self.clients, self.ids, self.participation
        models, senders = shuffled(key, self.returned, rounds, who, self.clients_per_round)
        return AnonymousMessages(self.received, models, rounds), senders

    def aggregates(self) -> Aggregates:
        """View of a server behind secure aggregation: sums of pseudo-gradients and who took part,
        nothing else.

        Raises:
          ValueError: if neither the sums nor every client's messages were kept, or the server sent
            personal models.
        """
        if self.personal:
            raise ValueError("aggregates() needs a server that sends everyone the same model")
        sums = self.sums
        if sums is None:
            self._need_everyone("aggregates")
            sums = jax.tree.map(lambda u: u.sum(1), self.pseudo_gradient)
        rows = np.asarray(self.rounds)
        participation = of_rounds(self.participation, rows, None)
        return Aggregates(
            self.received, sums, participation, jnp.asarray(rows), self.clients_per_round
        )

    def save(self, path: str | Path) -> None:
        """Write an `.npz` file with one array per leaf, of all but `private`."""
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "private"
        }
        fields["rounds"] = np.asarray(self.rounds)
        evaluation = fields.pop("evaluation")
        if evaluation is not None:
            fields["evaluation"] = {"loss": evaluation.loss, "accuracy": evaluation.accuracy}
        write_tree(path, {name: value for name, value in fields.items() if value is not None})

    @staticmethod
    def load(path: str | Path) -> "Transcript":
        """Read what `save` wrote; parameters come back as nested dictionaries. Raises `ValueError`
        if parts are missing."""
        tree = read_tree(path)
        optional = {"sums", "evaluation", "clients_per_round", "private"}
        missing = {f.name for f in dataclasses.fields(Transcript)} - optional - set(tree)
        if missing:
            raise ValueError(
                f"path={str(path)!r} lacks {sorted(missing)}; it is not a saved transcript"
            )
        unknown = set(tree) - {f.name for f in dataclasses.fields(Transcript)}
        if unknown:
            raise ValueError(
                f"path={str(path)!r} holds {sorted(unknown)}, which no transcript has: it was "
                "saved by another version"
            )
        evaluation, clients_per_round = (
            tree.pop("evaluation", None),
            tree.pop("clients_per_round", None),
        )
        return Transcript(
            **{"sums": None}
            | tree
            | {
                "rounds": tuple(tree["rounds"].tolist()),
                "personal": bool(tree["personal"]),
                "clients_per_round": None if clients_per_round is None else int(clients_per_round),
                "evaluation": None if evaluation is None else Evaluation(**evaluation),
            }
        )

    def _place(self, client: int) -> Any:
        if _check.is_unseen(self.clients):
            return jnp.argmax(self.clients == client)
        kept = np.asarray(self.clients).tolist()
        if client not in kept:
            raise ValueError(f"client={client!r} was not kept; kept: {kept}")
        return kept.index(client)

    def _need_everyone(self, view: str) -> None:
        if len(self.clients) != len(self.ids):
            raise ValueError(
                f"{view}() needs Keep(clients='all'); this transcript kept "
                f"{len(self.clients)} of {len(self.ids)} clients"
            )
