"""The type of plug-ins.

A plug-in of one's own is a frozen record, registered as a pytree, that overrides one hook or more:

>>> import flax, jax, jax.numpy as jnp, jaxfl
>>> @flax.struct.dataclass
... class SignOnly(jaxfl.Plugin):
...     step: float
...     def send(self, update, key):
...         return jax.tree.map(lambda u: self.step * jnp.sign(u), update)
>>> recipe = jaxfl.LocalTraining(0.1, plugins=(SignOnly(1e-3),))

Annotated `step: jaxfl.domains.EachPositive`, a step that is not positive is refused by name.
"""

from typing import Any

import jax
import numpy as np
from flax import struct

from jaxfl import _check
from jaxfl.domains import Params, check
from jaxfl.models import Model

Array = jax.Array
HOOKS = ("recipe", "batch", "step_gradient", "send")


class Plugin:
    """What a client does beside plain training. Every hook does nothing unless it is overridden.

    Plug-ins of the recipe stand in `LocalTraining.plugins`: the server prescribed them, and attacks
    that simulate the training follow them. Plug-ins that the server did not prescribe stand in
    `Federated.plugins`. Hooks run under `jit`, `vmap` and `grad`; numbers of a plug-in are traced.
    """

    def recipe(self, training: Any) -> Any:
        """Another recipe of local training, for a `jaxfl.LocalTraining`. Its `plugins` are ignored:
        those of the original recipe run."""
        return training

    def batch(
        self, model: Model, x: Array, y: Array, mask: Array, key: Array
    ) -> tuple[Model, Array, Array]:
        """Another batch, for a model with another loss if need be.

        Args:
          model: the model (static).
          x: inputs `[batch, ...]`; rows where `mask` is False may hold anything.
          y: labels `[batch, ...]`.
          mask: boolean `[batch]`.
          key: draws what is random.
        """
        return model, x, y

    def step_gradient(
        self, model: Model, params: Params, x: Array, y: Array, mask: Array, key: Array
    ) -> Params:
        """The gradient of a step, in place of that of the batch's mean loss by `params`; arguments
        as for `batch`."""
        raise NotImplementedError

    def send(self, update: Params, key: Array) -> Params:
        """Another update to be sent, for `update`, received minus returned."""
        return update


@struct.dataclass
class PerClient(Plugin):
    """A plug-in whose numbers differ between clients; for `Federated.plugins` alone.

    Attributes:
      plugin: with a leading axis `[clients]` on its numbers, in the order of the clients' data; a
        scalar is everyone's.
    """

    plugin: Plugin


@jax.tree_util.register_pytree_node_class
class Plugins(tuple["Plugin", ...]):
    """A tuple of plug-ins whose pytree structure holds their types.

    Structures of registered dataclasses with as many numbers compare equal in jaxlib 0.10, whatever
    their types: `jit` then sometimes runs the program that it compiled for another plug-in.
    """

    def tree_flatten(self) -> tuple[tuple[Plugin, ...], tuple[Any, ...]]:
        """The plug-ins, and their types; of a `PerClient` that of its plug-in too."""
        return tuple(self), tuple((type(p), type(getattr(p, "plugin", None))) for p in self)

    @classmethod
    def tree_unflatten(cls, kinds: Any, plugins: Any) -> "Plugins":
        """As they were."""
        return cls(plugins)


class HoldsPlugins:
    """A record whose field `plugins` becomes `Plugins`."""

    def __post_init__(self) -> None:
        plugins = getattr(self, "plugins")  # noqa: B009 - a field of the record that inherits
        if type(plugins) is tuple:
            object.__setattr__(self, "plugins", Plugins(plugins))


def overriding(hook: str, plugins: tuple[Plugin, ...]) -> list[Plugin]:
    """Those plug-ins that override a hook."""
    return [p for p in plugins if getattr(type(p), hook) is not getattr(Plugin, hook)]


def check_plugins(plugins: Any, clients: int | None = None) -> None:
    """Raise `ValueError` unless plug-ins can be followed.

    Args:
      plugins: those of a recipe, or of a federation of so many clients.
      clients: number of clients; a recipe has None, and knows no `PerClient`.
    """
    if not isinstance(plugins, tuple):
        raise ValueError(f"plugins={plugins!r} must be a tuple, as (jaxfl.Upload(clip=1.0),)")
    every = tuple(p.plugin if isinstance(p, PerClient) else p for p in plugins)
    for given, plugin in zip(plugins, every, strict=True):
        _check_kind(plugin)
        if isinstance(given, PerClient):
            _check_per_client(plugin, clients)
        else:
            _check_everyones(plugin)
        check(type(plugin).__name__, plugin, type(plugin))
    if len(overriding("step_gradient", every)) > 1:
        raise ValueError(f"plugins={plugins} make gradients more than once; choose one")


def _check_kind(plugin: Any) -> None:
    if not isinstance(plugin, Plugin):
        raise ValueError(f"plugins holds {plugin!r}, which is no jaxfl.Plugin")
    name = type(plugin).__name__
    if jax.tree_util.all_leaves([plugin]):
        raise ValueError(f"plugins holds a {name}, which is no pytree; see `jaxfl.plugins`")
    if not any(overriding(hook, (plugin,)) for hook in HOOKS):
        raise ValueError(f"plugins holds a {name}, which overrides none of {', '.join(HOOKS)}")


def _check_everyones(plugin: Plugin) -> None:
    for path, value in jax.tree_util.tree_leaves_with_path(plugin):
        if np.ndim(value) == 1:
            raise ValueError(
                f"{type(plugin).__name__}{jax.tree_util.keystr(path)} has {len(value)} numbers; "
                "one for each client belongs into a jaxfl.PerClient"
            )


def _check_per_client(plugin: Plugin, clients: int | None) -> None:
    if clients is None:
        raise ValueError("plugins holds a PerClient, which belongs into Federated.plugins")
    for path, value in jax.tree_util.tree_leaves_with_path(plugin):
        if np.ndim(value):
            name = f"{type(plugin).__name__}{jax.tree_util.keystr(path)}"
            _check.shape((clients,), **{name: value})
