"""`simulate`: checks what it is given, and runs the rounds where the clients' records are."""

import dataclasses

import jax
import numpy as np

from jaxfl import _check
from jaxfl.clients import ClientData, OneClient, check_clients, check_records_of_one
from jaxfl.domains import Key, Params, checked
from jaxfl.federated import Federated
from jaxfl.models import Model, check_parameters
from jaxfl.parallel import give_every, on_first, share_out, strategy_here
from jaxfl.servers import HonestServer, Server, kind_of
from jaxfl.simulation.host_held import simulate_blocks
from jaxfl.simulation.rounds import simulate_rounds
from jaxfl.training import as_array, in_arrays
from jaxfl.transcript import Transcript


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
    gradient grows by one set of parameters per round, not by the activations. When you call this
    inside `jax.shard_map`, give `check_vma=False` to `shard_map`, since devices share nothing that
    the check would protect, and leave `federated.devices` out.

    Args:
      model: the model (static).
      params: the initial global model.
      clients: data with a leading client axis; NumPy's arrays stay on the host where
        `federated.rounds_on_device` says so. With `federated.devices` of several processes, each
        holds them all, or gives arrays that lie on these devices in equal shares of their first
        axis already.
      key: client c draws from `fold_in(round_key, id of c)`: its stream does not depend on the
        other clients.
      federated: settings; see `Federated`.
      server: see `Server`; `HonestServer()` by default.
      test: records without client axis on which the global model is evaluated after every round.

    Returns:
      A `Transcript` with what `federated.keep` asked for.

    Raises:
      ValueError: on bad shapes, values or settings, naming the argument. Values of traced arrays,
        and of arrays on another process's devices, are not looked at.
    """
    server = HonestServer() if server is None else server
    if jax.tree_util.all_leaves([server]):
        name = type(server).__name__
        raise ValueError(f"server is a {name}, which is no pytree; see `jaxfl.servers`")
    check_parameters(model, params)
    _check.finite_parameters("params", params)
    federated.check(clients)
    check_clients(model, params, clients, federated.training.batch_size)
    if test is not None:
        check_records_of_one(model, params, test, "test")
    if (
        server.named
        and not _check.is_unseen((clients.id, server.named))
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
    kind, devices = kind_of(server), federated.devices
    # A transcript of an earlier run, or what the caller put somewhere, may lie on other devices.
    params, key, server, federated, test = give_every(
        (params, key, server, federated, test), devices
    )
    if federated.rounds_on_device is not None:
        if _check.is_unseen((params, clients, key, server, federated, test)):
            raise ValueError(
                f"rounds_on_device={federated.rounds_on_device} takes records from the host "
                "between programs: call simulate outside `jit`, `vmap` and `grad`, with arrays "
                "that this process holds whole"
            )
        return simulate_blocks(model, kind, server, params, clients, key, federated, test)
    clients = share_out(clients, devices)
    run = simulate_rounds(model, kind, server, params, clients, key, federated, test)
    return on_first(run, devices)
