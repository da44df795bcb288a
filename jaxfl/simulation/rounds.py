"""Rounds of federated averaging as one compiled program: a scan over rounds, clients in parallel
inside it, any server around it."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import _check
from jaxfl.clients import ClientData
from jaxfl.evaluation import evaluate
from jaxfl.federated import Federated
from jaxfl.models import Model
from jaxfl.parallel import map_on_devices, on_every
from jaxfl.plugins import PerClient, Plugin
from jaxfl.servers import Server, ServerState
from jaxfl.training import SENDING, client_round
from jaxfl.transcript import Transcript

Array = jax.Array
Cohort = tuple[ClientData, tuple[Plugin | None, ...]]
"""Participants' records, and their own plug-ins."""


class Task(NamedTuple):
    """What is the same in every round.

    Attributes:
      model: the model.
      server: the server.
      key: of the whole run.
      federated: settings.
      test: records to evaluate on, or None.
      kept: ids of the clients whose messages are kept `[kept]`.
    """

    model: Model
    server: Server
    key: Array
    federated: Federated
    test: ClientData | None
    kept: Array


class Steps(NamedTuple):
    """What differs between rounds, leaves `[rounds, ...]`.

    Attributes:
      number: of the round, 0-based (NumPy's before the program).
      cohort: the participants, or what `bring` makes them from; None where everyone takes part.
      slot: where the store of kept messages has this round's, or None if all are kept. One past the
        end: nowhere.
    """

    number: Array | np.ndarray
    cohort: Any
    slot: Array | np.ndarray | None


class RoundMessages(NamedTuple):
    """What is kept of a round's messages, or of several rounds' `[rounds, ...]`.

    Attributes:
      received: parameters that the kept clients received; `[kept, ...]` if they are personal.
      returned: those that they returned `[kept, ...]`.
      sums: of the participants' pseudo-gradients, or None where they are not kept.
    """

    received: Any
    returned: Any
    sums: Any


class Outcome(NamedTuple):
    """What a round leaves beside the server's state, or several rounds `[rounds, ...]`.

    Attributes:
      messages: what is kept of them.
      evaluation: of the model after the round, or None where nothing is evaluated.
    """

    messages: RoundMessages
    evaluation: Any


class Roll(NamedTuple):
    """Who there is.

    Attributes:
      ids: of all clients `[clients]`.
      kept: ids of those whose messages are kept `[kept]`.
      participation: who took part `[rounds, clients]`.
    """

    ids: Any
    kept: Any
    participation: Any


@functools.partial(jax.jit, static_argnames=("model", "kind"))
def simulate_rounds(  # noqa: PLR0913 - those of `simulate`, and the static one that jit needs
    model: Model,
    kind: tuple[Any, ...],
    server: Server,
    params: Any,
    clients: ClientData,
    key: Array,
    federated: Federated,
    test: ClientData | None,
) -> Transcript:
    """All rounds, with everyone's records on the device; see `jaxfl.simulate`."""
    numbers, count = jnp.arange(federated.rounds), len(clients.id)
    places = draw_places(key, clients.id, numbers, federated.clients_per_round)
    everyone = clients, own_plugins(federated.plugins, count)

    def bring(places: Array | None) -> Cohort:
        return everyone if places is None else jax.tree.map(lambda a: a[places], everyone)

    kept, everything = kept_ids(clients.id, federated), range(federated.rounds)
    slots = None if federated.keeps_every_round else jnp.asarray(slots_of(everything, federated))
    task = Task(model, server, key, federated, test, kept)
    steps, size = Steps(numbers, places, slots), len(federated.kept_rounds)
    state, outcomes = scan_rounds(task, bring, server.init(params), steps, size)
    roll = Roll(clients.id, kept, present(places, federated.rounds, count))
    return on_every(transcript_of(federated, server, state, outcomes, roll), federated.devices)


def kept_ids(ids: Any, federated: Federated) -> Any:
    """Ids of the clients whose messages are kept `[kept]`."""
    chosen = federated.keep.clients
    return ids if chosen == "all" else jnp.asarray(chosen, ids.dtype)


def slots_of(rounds: range, federated: Federated) -> np.ndarray:
    """Place of each of these rounds among those of them that are kept `[rounds]`; past the end of
    all that are kept: none."""
    kept = federated.kept_rounds
    order = {t: place for place, t in enumerate(t for t in kept if t in rounds)}
    return np.asarray([order.get(t, len(kept)) for t in rounds])


def transcript_of(
    federated: Federated,
    server: Server,
    state: ServerState,
    outcomes: Outcome,
    roll: Roll,
) -> Transcript:
    """A transcript of all rounds' outcomes, and of the state after the last."""
    messages = outcomes.messages
    return Transcript(
        params=state.params,
        received=messages.received,
        returned=messages.returned,
        clients=roll.kept,
        ids=roll.ids,
        participation=roll.participation,
        sums=messages.sums,
        evaluation=outcomes.evaluation,
        rounds=federated.kept_rounds,
        personal=server.personal,
        clients_per_round=federated.clients_per_round,
        private=state.private,
    )


def own_plugins(plugins: tuple[Plugin, ...], clients: int) -> tuple[Plugin | None, ...]:
    """Plug-ins that differ between clients, leaves `[clients]`; None for everyone's."""
    return tuple(
        jax.tree.map(lambda a: jnp.broadcast_to(a, (clients,)), p.plugin)
        if isinstance(p, PerClient)
        else None
        for p in plugins
    )


def draw_places(key: Array, ids: Array, rounds: Array, count: int | None) -> Array | None:
    """Places of the participants `[rounds, participants]`, ascending: the `count` smallest of one
    draw per client id and round. None: everyone takes part."""
    if count is None:
        return None

    def one_round(t: Array) -> Array:
        drawn = _keys_of_round(key, t)[1]
        draws = jax.vmap(
            lambda i: jax.random.uniform(jax.random.fold_in(drawn, i), (), jnp.float32)
        )(ids)
        return jnp.sort(jax.lax.top_k(-draws, count)[1])

    return jax.lax.map(one_round, rounds)


def present(places: Array | None, rounds: int, clients: int) -> Array:
    """Who took part, `[rounds, clients]`; everyone where `places` is None."""
    if places is None:
        return jnp.ones((rounds, clients), bool)
    return jax.vmap(lambda row: jnp.zeros(clients, bool).at[row].set(True))(places)


def _keys_of_round(key: Array, t: Array) -> tuple[Array, Array]:
    """The key that clients draw from, and the one that draws the clients."""
    clients, drawn = jax.random.split(jax.random.fold_in(key, t))
    return clients, drawn


def scan_rounds(
    task: Task, bring: Callable[[Any], Cohort], state: ServerState, steps: Steps, size: int
) -> tuple[ServerState, Outcome]:
    """The server's state after some rounds, messages of those kept (`size` of them), evaluations of
    each."""

    @jax.checkpoint
    def round_(state: ServerState, t: Array, cohort: Any) -> tuple[ServerState, Outcome]:
        return _round(task, state, t, bring(cohort))

    if steps.slot is None:

        def keep_all(state: ServerState, step: Steps) -> tuple[ServerState, Outcome]:
            return round_(state, step.number, step.cohort)

        return jax.lax.scan(keep_all, state, steps)

    first = jax.tree.map(lambda a: a[0], steps)
    shapes = jax.eval_shape(round_, state, first.number, first.cohort)[1].messages
    store = jax.tree.map(lambda s: jnp.zeros((size, *s.shape), s.dtype), shapes)

    def keep_some(carry: tuple[ServerState, Any], step: Steps) -> tuple[Any, Any]:
        state, store = carry
        state, outcome = round_(state, step.number, step.cohort)
        store = jax.tree.map(
            lambda s, m: s.at[step.slot].set(m, mode="drop"), store, outcome.messages
        )
        return (state, store), outcome.evaluation

    (state, store), evaluation = jax.lax.scan(keep_some, (state, store), steps)
    return state, Outcome(store, evaluation)


def _round(task: Task, state: ServerState, t: Array, cohort: Cohort) -> tuple[ServerState, Outcome]:
    """The state after one round, what is kept of it, and how well the model then does."""
    server, clients = task.server, cohort[0]
    received, returned = _train(task, state, cohort, _keys_of_round(task.key, t)[0])
    sums = _sums(received, returned, server.personal) if task.federated.keep.sums else None
    messages = RoundMessages(*_messages(server, state, returned, clients.id, task.kept), sums)
    after = server.receive(state, returned, clients.sizes, clients.id)
    _check.alike(f"{type(server).__name__}.receive", state, after)
    tested = None if task.test is None else evaluate(task.model, after.params, task.test)
    return after, Outcome(messages, tested)


def _train(task: Task, state: ServerState, cohort: Cohort, key: Array) -> tuple[Any, Any]:
    """What the participants received (`[participants, ...]` if personal, else without axis) and
    returned."""
    federated, server = task.federated, task.server

    def client(whole: Any, arguments: Cohort) -> Any:
        server, state, key, training, everyones = whole
        data, plugins = arguments
        received = server.send(state, data.id)
        _check.alike(f"{type(server).__name__}.send", state.params, received)
        pairs = zip(plugins, everyones, strict=True)
        chosen = tuple(everyone if mine is None else mine for mine, everyone in pairs)
        update_key = jax.random.fold_in(key, data.id)
        send_key = jax.random.fold_in(jax.random.fold_in(key, SENDING), data.id)
        returned = client_round(task.model, received, data, update_key, training, chosen, send_key)
        return received, returned

    whole = server, state, key, federated.training, federated.plugins
    received, returned = map_on_devices(
        client, whole, cohort, federated.strategy, federated.devices
    )
    return (received if server.personal else server.send(state, cohort[0].id[0])), returned


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
