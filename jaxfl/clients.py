"""The data of clients: stacked arrays with a mask, so that ragged clients run in one compiled
program."""

from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxfl import _check
from jaxfl.domains import MOST_INDEX, Domain, Index, checked
from jaxfl.models import Model, check_parameters, check_records

Array = jax.Array


@struct.dataclass
class ClientData:
    """Records of one client, or of several with a leading axis on every field.

    Attributes:
      x: inputs `[clients, records, ...]`.
      y: labels `[clients, records, ...]`, integers for classification.
      mask: `[clients, records]`, False for padding. Padding rows may hold anything, NaN included.
      id: `[clients]` integers. A client's randomness is derived from its id, so its results do not
        depend on its place in the arrays nor on who runs beside it.
    """

    x: Array
    y: Array
    mask: Array
    id: Array

    def check_whole(self, name: str) -> None:
        """See `jaxfl.domains.Whole`. With client axis or without."""
        _check_lengths(name, self)
        _check.shape(np.shape(self.mask)[:-1], **{f"{name}.id": self.id})

    @property
    def sizes(self) -> Array:
        """Number of records per client `[clients]` (padding not counted)."""
        return self.mask.sum(-1)

    def client(self, index: int) -> "ClientData":
        """The client at place `index`, without the leading axis."""
        return jax.tree.map(lambda a: a[index], self)

    def take(self, indices: Any) -> "ClientData":
        """The clients at the places `indices`, an integer array `[n]` (may be traced)."""
        return jax.tree.map(lambda a: a[indices], self)


@checked
def one_client(x: Any, y: Any, id: Index = 0) -> ClientData:
    """`ClientData` without client axis from arrays.

    Args:
      x: inputs `[records, ...]`.
      y: labels `[records, ...]`.
      id: an integer of at least 0 and below 2^31, from which the randomness of the client is
        derived.

    Raises:
      ValueError: if the lengths differ, there is no record, an input is not finite, or the id is
        out of range.
    """
    if not _check.is_unseen(id) and not 0 <= int(id) < MOST_INDEX:
        raise ValueError(f"id={int(id)} must be an integer of at least 0 and below {MOST_INDEX}")
    x, y = jnp.asarray(_features(x)), jnp.asarray(_numbers("y", y))
    _check_records("x", "y", x, y)
    return ClientData(x, y, jnp.ones(len(x), bool), jnp.asarray(id))


@checked
def stack_clients(
    records: Sequence[tuple[Any, Any]], ids: Sequence[int] | None = None, *, on_host: bool = False
) -> ClientData:
    """Stack clients of any sizes, padding with zeros to the largest.

    Args:
      records: one `(x [records, ...], y [records, ...])` per client.
      ids: one integer of at least 0 per client, distinct; by default 0, 1, 2, ...
      on_host: leave the arrays on the host, as NumPy's: for more clients than a device holds (see
        `Federated.rounds_on_device`).

    Returns:
      `ClientData` with a leading client axis.

    Raises:
      ValueError: if there is no client, a client is empty, lengths or record shapes differ, an
        input is not finite, or ids repeat.
    """
    if not records:
        raise ValueError("records=[] has no client; give at least one (x, y) pair")
    ids = range(len(records)) if ids is None else ids
    if len(ids) != len(records):
        raise ValueError(
            f"ids={list(ids)} must be {len(records)} distinct integers, one per client"
        )
    _check_ids(ids=ids)
    pairs = [
        (np.asarray(_features(x)), np.asarray(_numbers(f"records[{c}][1]", y)))
        for c, (x, y) in enumerate(records)
    ]
    for c, (x, y) in enumerate(pairs):
        _check_records(f"records[{c}][0]", f"records[{c}][1]", x, y)
        for place, kind in ((0, "records"), (1, "labels")):
            given, first = pairs[c][place].shape[1:], pairs[0][place].shape[1:]
            if given != first:
                raise ValueError(
                    f"records[{c}][{place}] has {kind} of shape {given}; client 0 has {first}"
                )
    longest = max(len(x) for x, _ in pairs)

    def stacked(arrays: list[np.ndarray]) -> Any:
        padded = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), jnp.result_type(*arrays))
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
        return padded

    masks: Any = np.asarray([np.arange(longest) < len(x) for x, _ in pairs])
    numbers: Any = np.asarray(list(ids), np.int32)
    columns = stacked([x for x, _ in pairs]), stacked([y for _, y in pairs])
    clients = ClientData(*columns, masks, numbers)
    return clients if on_host else jax.tree.map(jnp.asarray, clients)


def _features(x: Any) -> Any:
    """Inputs as floats: integers would silently lose the relaxed values that attacks write.

    Raises:
      ValueError: if they are no numbers.
    """
    if not isinstance(x, jax.core.Tracer) and np.asarray(x).dtype.kind in "USOMm":
        raise ValueError(f"x holds {np.asarray(x).dtype} values; records must be numbers")
    return (
        x
        if isinstance(x, jax.core.Tracer) or jnp.issubdtype(np.asarray(x).dtype, jnp.floating)
        else np.asarray(x, np.float32)
    )


def _numbers(name: str, y: Any) -> Any:
    """Labels as they are, unless they are no numbers."""
    if not isinstance(y, jax.core.Tracer) and np.asarray(y).dtype.kind in "USOMm":
        raise ValueError(
            f"{name} holds {np.asarray(y).dtype} values; number the classes from 0, as "
            "np.unique(y, return_inverse=True) does"
        )
    return y


def _check_records(x_name: str, y_name: str, x: Any, y: Any) -> None:
    if x.ndim < 1 or len(x) == 0:
        raise ValueError(
            f"{x_name} has shape {x.shape}, no records; a client needs at least one (drop empty "
            "clients)"
        )
    if y.ndim < 1 or len(y) != len(x):
        raise ValueError(
            f"{y_name} has shape {y.shape}; it needs one label for each of the {len(x)} records "
            f"of {x_name}"
        )
    if not _check.is_unseen(x):
        with np.errstate(over="ignore"):  # as JAX holds it
            x = np.asarray(x).astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
    _check.finite(**{x_name: x})


def _check_ids(**named: Any) -> None:
    """Clients' streams of random numbers go by their ids, which JAX holds in 32 bits."""
    for name, ids in named.items():
        values = np.asarray(ids)
        if (
            not np.issubdtype(values.dtype, np.integer)
            or (values < 0).any()
            or len(set(values.tolist())) < len(values)
        ):
            raise ValueError(f"{name}={values.tolist()} must be distinct integers of at least 0")
        if (values >= MOST_INDEX).any():
            raise ValueError(
                f"{name} holds {values.max()}; ids must lie below {MOST_INDEX}. Number the clients "
                "0, 1, 2, ... and keep their own names beside"
            )


def check_clients(model: Model, params: Any, clients: ClientData, batch_size: int | None) -> None:
    """Raise `ValueError` on clients that cannot be trained: shapes that the model does not take,
    empty clients, values that are not finite, labels outside the classes, or a batch larger than
    the largest client. Traced values pass unseen."""
    count = np.shape(clients.mask)
    if len(count) != 2:
        raise ValueError(
            f"clients.mask has shape {count}; it must be [clients, records] (see stack_clients)"
        )
    _check_lengths("clients", clients)
    _check.shape(count[:1], **{"clients.id": clients.id})
    # Not by indexing, which arrays on a mesh of the caller's may refuse.
    shapes = [
        jax.ShapeDtypeStruct(np.shape(a)[1:], jnp.result_type(a)) for a in (clients.x, clients.y)
    ]
    check_records(model, params, *shapes, x_name="clients.x", y_name="clients.y")
    if not _check.is_unseen(clients.id):
        _check_ids(**{"clients.id": clients.id})
    if _check.is_unseen(clients):
        return
    sizes = np.asarray(clients.mask).sum(-1)  # on the host, under an outer `jit` too
    if (sizes == 0).any():
        raise ValueError(
            f"clients.mask leaves client {int(np.argmin(sizes))} without records; drop empty "
            "clients"
        )
    if batch_size is not None and batch_size > sizes.max():
        raise ValueError(
            f"batch_size={batch_size} is larger than every client (largest: {sizes.max()} "
            f"records); {sizes.max()} or, in Python, batch_size=None is a full batch"
        )
    _check_values("clients", model, clients)


def check_records_of_one(model: Model, params: Any, data: ClientData, name: str) -> None:
    """Raise `ValueError` unless parameters are a model's and it takes the records, which have no
    client axis. Traced values pass unseen."""
    check_parameters(model, params)
    names = {"x_name": f"{name}.x", "y_name": f"{name}.y"}
    check_records(model, params, jnp.asarray(data.x), jnp.asarray(data.y), **names)
    _check_values(name, model, data)


OneClient = Annotated[
    ClientData,
    Domain(
        "one client's records, without client axis (see one_client)",
        lambda data: isinstance(data, ClientData) and np.ndim(data.mask) == 1,
    ),
]


def _check_lengths(name: str, data: ClientData) -> None:
    count = np.shape(data.mask)
    if not count or not count[-1]:
        raise ValueError(f"{name}.mask has shape {count}; it needs at least one record")
    for field in ("x", "y"):
        shape = np.shape(getattr(data, field))
        if shape[: len(count)] != count:
            raise ValueError(
                f"{name}.{field} has shape {shape}; it must begin with {count}, as mask does"
            )
    if not jnp.issubdtype(jnp.result_type(data.mask), jnp.bool_):
        raise ValueError(f"{name}.mask is of {jnp.result_type(data.mask)}; it must be boolean")


def _check_values(name: str, model: Model, data: ClientData) -> None:
    _check.finite(where=data.mask, **{f"{name}.x": data.x})
    soft = np.ndim(data.y) == np.ndim(data.mask) + 1
    if model.classes is not None and np.ndim(data.y) == np.ndim(data.mask):
        _check.labels(data.y, model.classes, where=data.mask, name=f"{name}.y")
    elif model.classes is not None and soft and np.shape(data.y)[-1] == model.classes:
        _check.probabilities(data.y, where=data.mask, name=f"{name}.y")
    else:
        _check.finite(where=data.mask, **{f"{name}.y": data.y})
