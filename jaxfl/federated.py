"""FedAvg as one compiled program: a scan over rounds, clients in parallel inside it, any server
around it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxfl import _check
from jaxfl.clients import ClientData, OneClient, check_clients, check_records_of_one
from jaxfl.defenses import DPSGD
from jaxfl.domains import Count, Key, Params, checked
from jaxfl.evaluation import evaluate
from jaxfl.models import Model, check_parameters
from jaxfl.plugins import HoldsPlugins, PerClient, Plugin, check_plugins
from jaxfl.probe import mixes_records
from jaxfl.servers import HonestServer, Server, ServerState, kind_of
from jaxfl.training import SENDING, LocalTraining, as_array, client_round, in_arrays
from jaxfl.transcript import Transcript

Array = jax.Array
Strategy = Literal["vmap", "map"] | Count


@dataclasses.dataclass(frozen=True)
class Record:
    """What a transcript keeps; nothing else is held in memory (static).

    Attributes:
      clients: ids of the clients whose messages are kept, or "all".
      rounds: the rounds kept (0-based), or None for all.
      sums: keep the sum of the participants' pseudo-gradients, all that secure aggregation shows.
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
                raise ValueError(f"record.{name}={value!r} must be a sequence of integers")
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
        and "vmap" on accelerators. It changes nothing but speed and memory. For several devices,
        place the clients' arrays sharded along their first axis.
      record: what the transcript keeps (static).
    """

    rounds: Count = struct.field(pytree_node=False, default=1)
    training: LocalTraining = LocalTraining()
    plugins: tuple[Plugin, ...] = ()
    clients_per_round: Count | None = struct.field(pytree_node=False, default=None)
    strategy: Strategy | None = struct.field(pytree_node=False, default=None)
    record: Record = struct.field(pytree_node=False, default=Record())

    def check(self, clients: ClientData) -> None:
        """Raise `ValueError` on settings that these clients cannot run."""
        count = len(clients.mask)
        check_plugins((*self.training.plugins, *self.plugins), count)
        if self.clients_per_round is not None and self.clients_per_round > count:
            raise ValueError(
                f"clients_per_round={self.clients_per_round} exceeds the {count} clients"
            )
        if self.record.rounds == ():
            raise ValueError("record.rounds=() is empty; None keeps all")
        outside = [t for t in self.record.rounds or () if not 0 <= t < self.rounds]
        if outside:
            raise ValueError(
                f"record.rounds={self.record.rounds} names round {outside[0]}; rounds run from "
                f"0 to {self.rounds - 1}"
            )
        for name in ("rounds", "clients"):
            chosen = getattr(self.record, name)
            if isinstance(chosen, tuple) and len(set(chosen)) < len(chosen):
                raise ValueError(f"record.{name}={chosen} repeats an entry; name each once")
        if self.record.clients != "all" and not _check.is_traced(clients.id):
            unknown = set(self.record.clients) - set(np.asarray(clients.id).tolist())
            if unknown:
                raise ValueError(
                    f"record.clients={self.record.clients} names client {unknown.pop()}, which "
                    "is not among the clients"
                )


@checked
def simulate(
    model: Model,
    params: Params,
    clients: ClientData,
    key: Key,
    federated: Federated,
    *,
    server: Server | None = None,
    test: OneClient | None = None,
) -> Transcript:
    """Run federated training.

    Differentiable in every traced argument; each round is a `jax.checkpoint`, so the memory of a
    gradient grows by one set of parameters per round, not by the activations. Inside
    `jax.shard_map` pass it `check_vma=False`: devices share nothing that the check would protect.

    Args:
      model: the model (static).
      params: the initial global model.
      clients: data with a leading client axis.
      key: client c draws from `fold_in(round_key, id of c)`: its stream does not depend on the
        other clients.
      federated: settings; see `Federated`.
      server: see `Server`; `HonestServer()` by default.
      test: records without client axis on which the global model is evaluated after every round.

    Returns:
      A `Transcript` with what `federated.record` asked for.

    Raises:
      ValueError: on bad shapes, values or settings, naming the argument. Values of traced arrays
        are not looked at.
    """
    server = HonestServer() if server is None else server
    if jax.tree_util.all_leaves([server]):
        kind = type(server).__name__
        raise ValueError(f"server is a {kind}, which is no pytree; see `jaxfl.servers`")
    check_parameters(model, params)
    federated.check(clients)
    check_clients(model, params, clients, federated.training.batch_size)
    _check_private(model, params, clients, (*federated.training.plugins, *federated.plugins))
    if test is not None:
        check_records_of_one(model, params, test, "test")
    if (
        server.named
        and not _check.is_traced((clients.id, server.named))
        and not np.isin(server.named, clients.id).all()
    ):
        raise ValueError(
            f"server names clients {server.named}, not all of whom are among the clients"
        )
    strategy = federated.strategy or strategy_here()
    plugins, server = jax.tree.map(as_array, (federated.plugins, server))
    federated = dataclasses.replace(
        federated, strategy=strategy, training=in_arrays(federated.training), plugins=plugins
    )
    return _simulate(model, kind_of(server), server, params, clients, key, federated, test)


def _check_private(
    model: Model, params: Any, clients: ClientData, plugins: tuple[Plugin, ...]
) -> None:
    """Raise `ValueError` if gradients of single records are to be clipped and there are none."""
    every = (p.plugin if isinstance(p, PerClient) else p for p in plugins)
    if any(isinstance(p, DPSGD) for p in every) and mixes_records(model, params, clients.x[0]):
        raise ValueError(
            "plugins holds DPSGD, but the model mixes the records of a batch (batch "
            "normalisation?): no record has a gradient of its own to be clipped"
        )


@functools.partial(jax.jit, static_argnames=("model", "kind"))
def _simulate(  # noqa: PLR0913 - those of `simulate`, and the static one that jit needs
    model: Model,
    kind: tuple[Any, ...],
    server: Server,
    params: Any,
    clients: ClientData,
    key: Array,
    federated: Federated,
    test: ClientData | None,
) -> Transcript:
    record = federated.record
    kept_ids = (
        clients.id if record.clients == "all" else jnp.asarray(record.clients, clients.id.dtype)
    )
    kept_rounds = tuple(range(federated.rounds)) if record.rounds is None else tuple(record.rounds)

    each = _of_each_client(federated.plugins, len(clients.id))

    @jax.checkpoint
    def round_(state: ServerState, t: Array) -> tuple[ServerState, Any, Any]:
        client_key, selection_key = jax.random.split(jax.random.fold_in(key, t))
        present, (cohort, plugins) = _participants(
            selection_key, (clients, each), clients.id, federated.clients_per_round
        )
        received, returned = _train(model, server, state, cohort, plugins, client_key, federated)
        sums = _sums(received, returned, server.personal) if record.sums else None
        message = (*_messages(server, state, returned, cohort.id, kept_ids), sums)
        after = server.receive(state, returned, cohort.sizes, cohort.id)
        _check.alike(f"{type(server).__name__}.receive", state, after)
        tested = None if test is None else evaluate(model, after.params, test)
        return after, message, (present, tested)

    state, messages, (participation, evaluation) = _scan_rounds(
        round_,
        server.init(params),
        federated.rounds,
        kept_rounds,
    )
    received, returned, sums = messages
    return Transcript(
        params=state.params,
        received=received,
        returned=returned,
        clients=kept_ids,
        ids=clients.id,
        participation=participation,
        sums=sums,
        evaluation=evaluation,
        rounds=kept_rounds,
        personal=server.personal,
        cohort=federated.clients_per_round,
        private=state.private,
    )


def _of_each_client(plugins: tuple[Plugin, ...], clients: int) -> tuple[Plugin | None, ...]:
    """Plug-ins that differ between clients, leaves `[clients]`; None for everyone's."""
    return tuple(
        jax.tree.map(lambda a: jnp.broadcast_to(a, (clients,)), p.plugin)
        if isinstance(p, PerClient)
        else None
        for p in plugins
    )


def _participants(key: Array, of_clients: Any, ids: Array, count: int | None) -> tuple[Array, Any]:
    """Who takes part `[clients]`, and their share of what clients have: the `count` smallest of one
    draw per client id."""
    if count is None:
        return jnp.ones(len(ids), bool), of_clients
    draws = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i), (), jnp.float32))(ids)
    places = jnp.sort(jax.lax.top_k(-draws, count)[1])
    return jnp.zeros(len(draws), bool).at[places].set(True), jax.tree.map(
        lambda a: a[places], of_clients
    )


def _train(
    model: Model,
    server: Server,
    state: ServerState,
    cohort: ClientData,
    plugins: tuple[Plugin | None, ...],
    key: Array,
    federated: Federated,
) -> tuple[Any, Any]:
    """What the participants received (`[participants, ...]` if personal, else without axis) and
    returned."""

    def client(arguments: tuple[ClientData, tuple[Plugin | None, ...]]) -> Any:
        data, own = arguments
        received = server.send(state, data.id)
        _check.alike(f"{type(server).__name__}.send", state.params, received)
        pairs = zip(own, federated.plugins, strict=True)
        chosen = tuple(everyone if mine is None else mine for mine, everyone in pairs)
        update_key = jax.random.fold_in(key, data.id)
        send_key = jax.random.fold_in(jax.random.fold_in(key, SENDING), data.id)
        training = federated.training
        returned = client_round(model, received, data, update_key, training, chosen, send_key)
        return received, returned

    received, returned = map_clients(client, (cohort, plugins), federated.strategy)
    return (received if server.personal else server.send(state, cohort.id[0])), returned


def strategy_here(accelerator: Strategy = "vmap") -> Strategy:
    """One after the other on CPU, where batched products of small matrices are slower; elsewhere as
    said."""
    return "map" if jax.default_backend() == "cpu" else accelerator


def map_clients(function: Callable[[Any], Any], arguments: Any, strategy: Strategy | None) -> Any:
    """`function` over the first axis of `arguments`: all at once ("vmap"), one by one ("map"), or
    in chunks (an integer)."""
    if strategy == "vmap":
        return jax.vmap(function)(arguments)
    return jax.lax.map(function, arguments, batch_size=None if strategy == "map" else strategy)


def _messages(
    server: Server, state: ServerState, returned: Any, ids: Array, kept: Array
) -> tuple[Any, Any]:
    """What the kept clients received and returned; an absent one returns what it would have
    received."""
    match = kept[:, None] == ids[None, :]
    place, present = match.argmax(1), match.any(1)
    sent = jax.vmap(lambda i: server.send(state, i))(kept)

    def pick(models: Array, unchanged: Array) -> Array:
        return jnp.where(present.reshape(-1, *[1] * (models.ndim - 1)), models[place], unchanged)

    received = sent if server.personal else server.send(state, ids[0])
    return received, jax.tree.map(pick, returned, sent)


def _sums(received: Any, returned: Any, personal: bool) -> Any:
    """Sum of the participants' pseudo-gradients."""
    return jax.tree.map(lambda w, v: ((w if personal else w[None]) - v).sum(0), received, returned)


def _scan_rounds(
    round_: Callable[..., Any], state: ServerState, rounds: int, kept: tuple[int, ...]
) -> tuple[Any, Any, Any]:
    """Scan over rounds, holding the messages of the kept rounds alone."""
    if kept == tuple(range(rounds)):

        def keep_all(state: ServerState, t: Array) -> tuple[ServerState, Any]:
            state, message, log = round_(state, t)
            return state, (message, log)

        state, (messages, logs) = jax.lax.scan(keep_all, state, jnp.arange(rounds))
        return state, messages, logs

    places = np.full(rounds, len(kept))  # one past the end: writes there are dropped
    places[list(kept)] = np.arange(len(kept))
    shapes = jax.eval_shape(round_, state, jnp.asarray(0))[1]
    store = jax.tree.map(lambda s: jnp.zeros((len(kept), *s.shape), s.dtype), shapes)

    def keep_some(
        carry: tuple[ServerState, Any], step: tuple[Array, Array]
    ) -> tuple[tuple[ServerState, Any], Any]:
        (state, store), (t, place) = carry, step
        state, message, log = round_(state, t)
        return (
            state,
            jax.tree.map(lambda s, m: s.at[place].set(m, mode="drop"), store, message),
        ), log

    (state, store), logs = jax.lax.scan(
        keep_some, (state, store), (jnp.arange(rounds), jnp.asarray(places))
    )
    return state, store, logs
