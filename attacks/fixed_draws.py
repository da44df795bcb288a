"""Draws that are part of an algorithm: which records are held out, which orders are simulated to
judge an answer. They come from one fixed seed, so that equal arguments have equal answers and the
caller needs no key."""

import jax

SEED = 0


def fixed_key() -> jax.Array:
    """The key of `SEED`."""
    return jax.random.key(SEED)
