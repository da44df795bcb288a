"""Least squares whitened by the noise of an update, from inner products alone."""

import jax
import jax.numpy as jnp

from attacks.attributes.candidate_decoding.order_noise import OrderNoise
from attacks.lapack import after

Array = jax.Array


def heights(gram: Array, right: Array, prior: Array, *weights: Array) -> list[Array]:
    """The quadratic's values above its unconstrained minimum, relative to that of the prior's mean
    (or, where that is rounding alone, to what it may round to)."""
    best = jnp.linalg.solve(after(gram, *weights), right)

    def above(w: Array) -> Array:
        return (w - best) @ gram @ (w - best)

    rounding = jnp.finfo(gram.dtype).eps * (best @ gram @ best) + jnp.finfo(gram.dtype).tiny
    return [above(w) / jnp.maximum(above(prior), rounding) for w in weights]


def whitened(noise: OrderNoise, gram: Array, along: Array, least: Array) -> tuple[Array, Array]:
    """`J S^-1 J'` and `J S^-1 r` by Woodbury, for S the noise's rows squared and at least `least`
    of the identity: from products of the candidates' gradients `[records, K, records, K]` and with
    the residual r `[records, K]`."""
    records, count = along.shape

    def difference(a: Array) -> Array:
        return (a[:, 1:] - a[:, :1]).reshape(records * (count - 1), *a.shape[2:])

    floor, factor = _positive(noise.inner, least)
    rows = jnp.concatenate([difference(noise.candidates).T, noise.residual[:, None]], 1)
    white = jax.scipy.linalg.solve_triangular(factor, rows, lower=True)
    explained = white[:, :-1].T @ white
    both = difference(difference(gram).reshape(-1, records, count).transpose(1, 2, 0)).T
    return (both - explained[:, :-1]) / floor, (difference(along) - explained[:, -1]) / floor


def _positive(inner: Array, floor: Array) -> tuple[Array, Array]:
    """A floor and the Cholesky factor of `inner + floor I`: the smallest of floor, 4 floor, 16
    floor,
    ... at which the factorisation succeeds, since inner products are rounded."""
    eye, most = jnp.eye(len(inner), dtype=inner.dtype), jnp.trace(inner)

    def factorised(floor: Array) -> tuple[Array, Array]:
        return floor, jnp.linalg.cholesky(inner + floor * eye)

    def fails(factor: tuple[Array, Array]) -> Array:
        return (factor[0] < most) & ~jnp.isfinite(factor[1]).all()

    return jax.lax.while_loop(fails, lambda factor: factorised(4 * factor[0]), factorised(floor))
