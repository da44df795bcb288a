"""The p in [0, 1] that explains sums of features best: weighted least squares (beyond Kerkouche
2023).

Threat model: as in `attacks.properties.detectors`.
"""

import functools

import jax
import jax.numpy as jnp

from attacks.attributes.candidate_decoding.constraints import minimize_quadratic
from attacks.properties.law_of_sums import Quadratic, likeliest_drift, likelihood
from attacks.properties.observations import Observations, until

Array = jax.Array
ITERATIONS = 500
"""Of `box`, projected gradients."""
ROUGHLY = 200
"""Likewise, where its p is a step on the way to another answer."""
PASSES = 3
"""How often variances are computed anew from the decoded p: one pass takes them most of the way."""


@functools.partial(jax.jit, static_argnames="iterations")
def boxes(observations: Observations, seen: Array, iterations: int) -> Array:
    """`box` of what is checked."""
    with jax.default_matmul_precision("highest"):
        return jax.vmap(lambda t: box_and_quadratic(observations, t, iterations)[0])(seen)


def box_and_quadratic(
    observations: Observations, seen: Array, iterations: int
) -> tuple[Array, Quadratic]:
    """`box` after so many rounds `[]`, and the likelihood with the variances of its p."""
    observations = until(observations, seen)
    rate, drift = observations.rate, likeliest_drift(observations)
    start = jnp.full(observations.participation.shape[1], rate, observations.features.dtype)

    def again(p: Array, _: None) -> tuple[Array, None]:
        quadratic = likelihood(observations, p, drift)
        # What no round tells keeps the assumed rate.
        faint = 1e-4 * jnp.trace(quadratic.matrix) / len(p)
        matrix = quadratic.matrix + faint * jnp.eye(len(p), dtype=p.dtype)
        # No eigenvalue is larger than the largest row sum.
        largest = abs(matrix).sum(1).max() + jnp.finfo(p.dtype).tiny
        slope = lambda q: matrix @ q - quadratic.vector - faint * rate  # noqa: E731
        return minimize_quadratic(slope, p, lambda q: jnp.clip(q, 0, 1), largest, iterations), None

    p, _ = jax.lax.scan(again, start, length=PASSES)
    return p, likelihood(observations, p, drift)
