"""Rounds whose clients' records stay on the host: only those of a round's participants come to the
device, a block of rounds at a time."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.clients import ClientData
from jaxfl.federated import Federated
from jaxfl.models import Model
from jaxfl.parallel import Devices, on_every, on_first, share_out
from jaxfl.servers import Server, ServerState
from jaxfl.simulation.rounds import (
    Outcome,
    Roll,
    Steps,
    Task,
    draw_places,
    kept_ids,
    own_plugins,
    scan_rounds,
    slots_of,
    transcript_of,
)
from jaxfl.transcript import Transcript

Array = jax.Array


def simulate_blocks(  # noqa: PLR0913 - those of `simulate`, and the static one that jit needs
    model: Model,
    kind: tuple[Any, ...],
    server: Server,
    params: Any,
    clients: ClientData,
    key: Array,
    federated: Federated,
    test: ClientData | None,
) -> Transcript:
    """All rounds in blocks of `federated.rounds_on_device`; see `jaxfl.simulate`. The records of
    the next block are gathered while the device works on one."""
    numbers, ids = np.arange(federated.rounds), np.asarray(clients.id)
    kept = kept_ids(ids, federated)
    places = np.asarray(_draw(key, ids, numbers, federated.clients_per_round))
    plugins = own_plugins(federated.plugins, len(clients.id))
    everyone = jax.tree.map(np.asarray, (clients, plugins))
    blocks = _blocks(federated)
    size = max(_kept(block, federated) for block in blocks)
    settings = server, key, federated, test, kept
    state, answers = _start(kind, federated.devices, server, params), []
    for place, block in enumerate(blocks):
        cohort = jax.tree.map(lambda a, rows=places[block]: a[rows], everyone)
        cohort = share_out(cohort, federated.devices, axis=1)
        slots = None if federated.keeps_every_round else slots_of(block, federated)
        steps = Steps(numbers[block], cohort, slots)
        state, answer = _run_block(model, kind, size, state, steps, settings)
        answers.append(answer)
        if place:  # the device is at this block, and has done with the last
            answers[place - 1] = _fetched(blocks[place - 1], answers[place - 1], federated)
    answers[-1] = _fetched(blocks[-1], answers[-1], federated)
    took_part = np.zeros((federated.rounds, len(clients.id)), bool)
    np.put_along_axis(took_part, places, True, axis=1)
    roll, state = Roll(ids, np.asarray(kept), took_part), on_first(state, federated.devices)
    return transcript_of(federated, server, state, _joined(answers, federated), roll)


_draw = jax.jit(draw_places, static_argnums=3)


def _blocks(federated: Federated) -> list[range]:
    count = federated.rounds_on_device or federated.rounds
    starts = range(0, federated.rounds, count)
    return [range(start, min(start + count, federated.rounds)) for start in starts]


def _kept(block: range, federated: Federated) -> int:
    return sum(t in block for t in federated.kept_rounds)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _start(
    kind: tuple[Any, ...], devices: Devices | None, server: Server, params: Any
) -> ServerState:
    """The first state, in arrays of its own: those of a block are given away to the next."""
    return on_every(jax.tree.map(jnp.copy, server.init(params)), devices)


@functools.partial(jax.jit, static_argnames=("model", "kind", "size"), donate_argnames="state")
def _run_block(
    model: Model,
    kind: tuple[Any, ...],
    size: int,
    state: ServerState,
    steps: Steps,
    settings: tuple[Any, ...],
) -> tuple[ServerState, Outcome]:
    server, key, federated, test, kept = settings
    task = Task(model, server, key, federated, test, kept)
    answer = scan_rounds(task, lambda cohort: cohort, state, steps, size)
    return on_every(answer, federated.devices)


def _fetched(block: range, outcome: Outcome, federated: Federated) -> Outcome:
    """A block's outcome on the host, without the store's empty places."""
    messages, evaluation = jax.tree.map(np.asarray, outcome)
    return Outcome(jax.tree.map(lambda a: a[: _kept(block, federated)], messages), evaluation)


def _joined(outcomes: list[Outcome], federated: Federated) -> Outcome:
    """That of all blocks, messages in the order in which their rounds were asked for."""
    messages, evaluation = jax.tree.map(lambda *parts: np.concatenate(parts), *outcomes)
    kept = federated.kept_rounds
    came = [t for block in _blocks(federated) for t in kept if t in block]
    order = np.asarray([came.index(t) for t in kept])
    return Outcome(jax.tree.map(lambda a: a[order], messages), evaluation)
