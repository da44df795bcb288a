"""Streams of randomness within one key: `stream(key, Stream.ATTACK)`. Their numbers never
change."""

import enum

import jax


@enum.unique
class Stream(enum.IntEnum):
    """What is drawn from a seed's key, each from a stream of its own."""

    TRAINING = 0
    ATTACK = 1
    WARMING = 4
    COINS = 5
    DECODING = 7
    IMPUTATION = 2**31


@enum.unique
class ServerStream(enum.IntEnum):
    """What is drawn from the key of a server that links updates, each from a stream of its own.
    Numbers may equal those of `Stream`: the keys differ."""

    REPRESENTATIVES = 0
    SIAMESE = 2
    PAIRS = 3


CLIENTS = 1000
"""Attacks on client c draw from stream `CLIENTS + c`; what clients draw themselves, from
stream c."""


def stream(key: jax.Array, name: Stream | ServerStream) -> jax.Array:
    """The key of a stream."""
    return jax.random.fold_in(key, name)


def attack_on(key: jax.Array, client: int) -> jax.Array:
    """The key of attacks on one client."""
    return jax.random.fold_in(key, CLIENTS + client)
