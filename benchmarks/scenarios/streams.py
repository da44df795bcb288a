"""Streams of randomness within one seed: `stream(key, Stream.ATTACK)`. Their numbers
never change."""

import enum

import jax


class Stream(enum.IntEnum):
    """What is drawn from a seed's key, each from a stream of its own."""

    TRAINING = 0
    REPRESENTATIVES = 0
    ATTACK = 1
    SIAMESE = 2
    PAIRS = 3
    WARMING = 4
    COINS = 5
    DECODING = 7
    IMPUTATION = 2**31


CLIENTS = 1000
"""Attacks on client c draw from stream `CLIENTS + c`; what clients draw themselves, from
stream c."""


def stream(key: jax.Array, name: Stream) -> jax.Array:
    """The key of a stream."""
    return jax.random.fold_in(key, name)


def attack_on(key: jax.Array, client: int) -> jax.Array:
    """The key of attacks on one client."""
    return jax.random.fold_in(key, CLIENTS + client)
