"""The path that a client's model takes during local training, as far as its message tells: a
straight line.

A client that takes K steps of plain SGD returns the received model less a sum of K gradients. To
second order in the path's length that sum is K times one gradient, taken at the path's centre.
"""

from typing import Any

import jax

from jaxfl import Messages


def on_path(received: Any, update: Any, fraction: float) -> Any:
    """The model that a client has after a fraction of its steps, if its path is straight.

    Args:
      received: the model that the client received, any pytree of arrays.
      update: received minus returned, a pytree like it.
      fraction: 0 for the received model, 1 for the returned one.
    """
    return jax.tree.map(lambda w, u: w - fraction * u, received, update)


def path_centre(received: Any, update: Any, steps: int) -> Any:
    """The centre of a local path of K steps, theta + (K - 1) / (2 K) (returned - theta); arguments
    as for `on_path`."""
    return on_path(received, update, (steps - 1) / (2 * steps))


def at_path_centres(messages: Messages, steps: int) -> Messages:
    """The same pseudo-gradients, as if their models had been received at the centres of the local
    paths of so many steps."""
    centre = path_centre(messages.received, messages.pseudo_gradient, steps)
    returned = jax.tree.map(lambda c, u: c - u, centre, messages.pseudo_gradient)
    return Messages(centre, returned, messages.rounds)
