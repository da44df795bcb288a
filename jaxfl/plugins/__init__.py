"""What a client does beside plain local training: one type for defences and misbehaviour.

`plugin` has the type; `defenses`, `behaviors`, `class_weights` and `canaries` have plug-ins. All
that is public stands in `jaxfl` too.
"""

from jaxfl.plugins.plugin import (
    HoldsPlugins,
    PerClient,
    Plugin,
    Plugins,
    check_plugins,
    overriding,
)

__all__ = ["HoldsPlugins", "PerClient", "Plugin", "Plugins", "check_plugins", "overriding"]
