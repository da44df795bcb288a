"""How a function runs over many: at once, one by one or in chunks, and on several devices."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxfl import _check
from jaxfl.domains import Count

Array = jax.Array
Strategy = Literal["vmap", "map"] | Count
Devices = tuple[jax.Device, ...]
AXIS = "shares"


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


def map_on_devices(
    function: Callable[[Any, Any], Any],
    whole: Any,
    arguments: Any,
    strategy: Strategy | None,
    devices: Devices | None,
) -> Any:
    """`function(whole, argument)` over the first axis of `arguments` as `map_clients`, with equal
    shares of it for each device; on one where `devices` is None. Arrays that the function closes
    over would keep the mesh of all devices, where none can be made like them: `whole` has them."""

    def mapped(whole: Any, share: Any) -> Any:
        return map_clients(lambda argument: function(whole, argument), share, strategy)

    if devices is None:
        return mapped(whole, arguments)
    shared = shares(devices)
    # Devices share nothing, so the check for values that differ between them protects nothing.
    program = jax.shard_map(
        mapped,
        mesh=shared.mesh,
        in_specs=(PartitionSpec(), shared.spec),
        out_specs=shared.spec,
        check_vma=False,
    )
    return program(whole, arguments)


def shares(devices: Devices, axis: int = 0) -> NamedSharding:
    """Arrays of which each device holds an equal share along one axis."""
    mesh = jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def share_out(tree: Any, devices: Devices | None, axis: int = 0) -> Any:
    """Arrays in equal shares along one axis; as they are where `devices` is None, or traced.

    Where devices belong to several processes, each of these reads its own shares alone from the
    arrays that it holds.
    """
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
    if devices is None or traced:
        return tree
    wanted = shares(devices, axis)

    def placed(array: Any) -> Array:
        if isinstance(array, jax.Array):
            if array.sharding.is_equivalent_to(wanted, array.ndim):  # on a mesh of any kind
                parts = [shard.data for shard in array.addressable_shards]
                return jax.make_array_from_single_device_arrays(array.shape, wanted, parts)
            array = np.asarray(array)
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        return jax.make_array_from_callback(array.shape, wanted, lambda place: array[place])

    return jax.tree.map(placed, tree)


def on_every(tree: Any, devices: Devices | None) -> Any:
    """Within a program: arrays that every device holds whole, so that each process can read
    them."""
    return tree if devices is None else jax.lax.with_sharding_constraint(tree, _whole(devices))


def give_every(tree: Any, devices: Devices | None) -> Any:
    """Outside: the same, of arrays that lie anywhere; as they are where `devices` is None, or of
    several processes, or traced."""
    if devices is None or _check.is_unseen(tree) or not _are_here(devices):
        return tree
    return jax.device_put(tree, _whole(devices))


def on_first(tree: Any, devices: Devices | None) -> Any:
    """Copies on the first device of arrays that every device holds whole. The arrays themselves if
    devices are None or of several processes, or the arrays traced."""
    if devices is None or _check.is_unseen(tree) or not _are_here(devices):
        return tree
    return jax.device_put(tree, devices[0])


def _whole(devices: Devices) -> NamedSharding:
    return NamedSharding(shares(devices).mesh, PartitionSpec())


def _are_here(devices: Devices) -> bool:
    return all(device.process_index == jax.process_index() for device in devices)
