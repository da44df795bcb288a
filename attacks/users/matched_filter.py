"""A matched filter for anonymous updates: descriptors in which those of one client are most alike
and those of two least, whether batches or differential privacy are the noise. Beyond the papers.

Threat model: as `attacks.users.linkability`: an honest-but-curious server that has records like the
clients', and a federated learning of its own whose senders it knows.

An update is a client's mean and what chance adds to it. With C the covariance of single records'
gradients, means of clients that draw their records alike differ by `a C`; batches add `C`, since
they give records other weights; differential privacy adds `s I`. (All up to one factor.) Two
updates u and v have the log-likelihood ratio of one client against two `a u^T (C + s I)^-1 C (C + s
I)^-1 v`, to first order in a. That is the product of their images by the filter `C^(1/2) (C + s
I)^-1`: without noise it whitens, and with much it keeps the directions in which clients differ.
Cosines of images are such products, each update counting alike.
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Num

from attacks.fit import UncheckedWarning
from attacks.fixed_draws import fixed_key
from jaxfl import _check
from jaxfl.domains import NotNegative, Positive, checked

Array = jax.Array
NOISES = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
"""Among which `fit_filter_noise` chooses: from a filter that whitens to one that all but ignores
C's part of the noise."""
EXCHANGED = 19
"""Orders in which each round's senders are exchanged, none of which may separate as well."""
NEGLIGIBLE = 1e-6
"""Part of the largest eigenvalue, below which an eigenvalue is rounding."""


@checked
def matched_filter(
    vectors: Num[Array, "... parameters"],
    gradients: Num[Array, "records parameters"],
    noise: NotNegative,
    ridge: Positive = 0.01,
) -> Num[Array, "... parameters"]:
    """Updates by the filter `C^(1/2) (C + s I)^-1 (1 + s)`. Where gradients are all alike, C is 0,
    and updates keep their directions.

    Args:
      vectors: whole updates `[..., parameters]`.
      gradients: of the adversary's own records, at models of the same training `[records,
        parameters]`; C is their covariance.
      noise: s, in units of the mean of C's eigenvalues that are not 0; see `fit_filter_noise`.
      ridge: what is added to C's eigenvalues, in the same units, since few records show few of its
        directions.

    Raises:
      ValueError: if shapes do not go together, or there is one gradient.
    """
    _check_gradients(gradients)
    with jax.default_matmul_precision("highest"):
        return _matched_filter(_floating(vectors), _floating(gradients), noise, ridge)


@checked
def fit_filter_noise(
    vectors: Num[Array, "rounds participants parameters"],
    senders: Int[Array, "rounds participants"],
    gradients: Num[Array, "records parameters"],
    ridge: Positive = 0.01,
) -> Num[Array, ""]:
    """The noise with which a matched filter tells senders apart best, of a federation whose senders
    are known: one of `NOISES`, a scalar; NaN if an input is not finite. It is the clients' noise if
    that federation trains as they do, in batches as large and as privately.

    Similarities are of two updates of different rounds, less their rounds' means
    (`unit(..., centred=True)`). Those of one client and those of two have means that are to lie
    farthest apart, in units of their standard deviations. Of two or three clients, or rounds, there
    are too few similarities to choose well by.

    Args:
      vectors: the updates `[rounds, participants, parameters]`.
      senders: who sent each `[rounds, participants]`.
      gradients, ridge: as those of `matched_filter`.

    Warns:
      UncheckedWarning: if one of `EXCHANGED` orders in which each round's senders are exchanged
        separates as well: updates do not tell these senders apart, and the noise chosen says
        nothing.

    Raises:
      ValueError: if shapes do not go together, a round has one participant or a client twice, no
        client took part in two rounds, all updates are of one client, or there is one gradient.
    """
    _check.at_least(0, senders=senders)
    _check_gradients(gradients)
    if senders.shape[1] < 2:
        raise ValueError(
            "senders has 1 participant a round; updates less their round's mean need at least 2"
        )
    if not _check.is_unseen(senders):
        _check_senders(np.asarray(senders))
    with jax.default_matmul_precision("highest"):
        arrays = _of_size_one(_floating(vectors)), jnp.asarray(senders), _floating(gradients)
        noise, separated = _fit_filter_noise(*arrays, ridge)
    _warn_of_exchanged(separated)
    return noise


def _warn_of_exchanged(separated: Array) -> None:
    """Warn where the senders, the first, are told apart no better than exchanged ones."""
    if not _check.is_unseen(separated) and separated[0] <= separated[1:].max():
        warnings.warn(
            f"fit_filter_noise: one of {EXCHANGED} orders of exchanged senders separates the "
            "updates as well: are senders those of these updates, in their order? If so, nothing "
            "here tells which noise is best",
            UncheckedWarning,
            stacklevel=4,
        )


def _check_senders(senders: np.ndarray) -> None:
    clients = np.unique(senders)
    rounds = (senders[..., None] == clients).any(1).sum(0)
    if len(clients) < 2 or rounds.max() < 2:
        raise ValueError(
            f"senders names {len(clients)} clients, each in {rounds.max()} of {len(senders)} "
            "rounds at most; a filter is learned from two clients, of whom one is in two rounds"
        )
    for number, round_ in enumerate(senders):
        named, counts = np.unique(round_, return_counts=True)
        if counts.max() > 1:
            raise ValueError(
                f"senders[{number}] names client {named[counts.argmax()]} {counts.max()} times; "
                "each sends one update of a round"
            )


def _check_gradients(gradients: Array) -> None:
    if len(gradients) < 2:
        raise ValueError(f"gradients is of {len(gradients)} records; a covariance needs at least 2")


def _floating(values: Array) -> Array:
    return jnp.asarray(values, jnp.result_type(values, jnp.float32))


def _of_size_one(values: Array) -> Array:
    """Squares of tiny or huge numbers are lost; of both arguments the scale tells nothing."""
    largest = jnp.abs(values).max()
    return values / jnp.where(largest > 0, largest, 1)


class _Spread(NamedTuple):
    """C, by its eigenvalues that are not negligible; others are 0, and so are their directions.

    Attributes:
      directions: `[records, parameters]`, of unit length.
      values: `[records]`.
      mean: of those that can be other than 0; a scalar.
    """

    directions: Array
    values: Array
    mean: Array


def _spread(gradients: Array) -> _Spread:
    gradients = _of_size_one(gradients)
    centred = (gradients - gradients.mean(0)) / jnp.sqrt(len(gradients))
    values, left = jnp.linalg.eigh(centred @ centred.T)
    rounding = 100 * jnp.finfo(values.dtype).eps ** 2 * (gradients**2).sum(1).mean()
    kept = values > jnp.maximum(NEGLIGIBLE * values.max(), rounding)
    values = jnp.where(kept, values, 0)
    scales = jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, values, 1)), 0)
    mean = values.sum() / min(len(gradients) - 1, gradients.shape[1])
    mean = jnp.maximum(mean, jnp.finfo(values.dtype).tiny)  # of gradients that are all alike
    return _Spread((left * scales).T @ centred, values, mean)


def _weights(values: Array, spread: _Spread, noise: Array, ridge: Array) -> Array:
    """Weights of directions with these eigenvalues of C."""
    raised = values / spread.mean + ridge
    return jnp.sqrt(raised) * (1 + noise) / (raised + noise)


def _split(vectors: Array, spread: _Spread) -> tuple[Array, Array]:
    """Coefficients in C's directions `[..., records]`, and the rest `[..., parameters]`."""
    inside = vectors @ spread.directions.T
    return inside, vectors - inside @ spread.directions


@jax.jit
def _matched_filter(vectors: Array, gradients: Array, noise: Array, ridge: Array) -> Array:
    spread = _spread(gradients)
    inside, outside = _split(vectors, spread)
    weights = _weights(spread.values, spread, noise, ridge)
    return (inside * weights) @ spread.directions + outside * _weights(
        jnp.zeros(()), spread, noise, ridge
    )


def _pairs(senders: Array) -> tuple[Array, Array]:
    """Which pairs of updates of different rounds are of one client, and of two `[n, n]`."""
    rounds = jnp.broadcast_to(jnp.arange(len(senders))[:, None], senders.shape).ravel()
    apart = rounds[:, None] != rounds
    same = senders.ravel()[:, None] == senders.ravel()
    return same & apart, ~same & apart


@jax.jit
def _fit_filter_noise(
    vectors: Array, senders: Array, gradients: Array, ridge: Array
) -> tuple[Array, Array]:
    """The noise; and how far apart senders are at best, and exchanged ones `[1 + EXCHANGED]`."""
    spread = _spread(gradients)
    centred = vectors - vectors.mean(1, keepdims=True)
    inside, outside = _split(centred.reshape(senders.size, -1), spread)
    products = outside @ outside.T
    least = 1 / _pairs(senders)[0].sum()  # variances of few similarities may be 0
    keys = jax.random.split(fixed_key(), EXCHANGED)
    exchanged = jax.vmap(
        lambda key: jax.random.permutation(key, senders, axis=1, independent=True)
    )(keys)

    def separations(noise: Array) -> Array:
        weights = _weights(spread.values, spread, noise, ridge) ** 2
        alone = _weights(jnp.zeros(()), spread, noise, ridge) ** 2
        all_products = (inside * weights) @ inside.T + alone * products
        lengths = jnp.sqrt(jnp.maximum(jnp.diag(all_products), jnp.finfo(vectors.dtype).tiny))
        cosines = all_products / lengths[:, None] / lengths

        def of(senders: Array) -> Array:
            (same, same_variance), (other, other_variance) = (
                _moments(cosines, pairs) for pairs in _pairs(senders)
            )
            return (same - other) / jnp.sqrt((same_variance + other_variance) / 2 + least)

        return jax.lax.map(of, jnp.concatenate([senders[None], exchanged]))

    noises = jnp.asarray(NOISES, vectors.dtype)
    separated = jax.lax.map(separations, noises)
    finite = jnp.isfinite(vectors).all() & jnp.isfinite(gradients).all()
    best = jnp.where(finite, noises[jnp.nanargmax(separated[:, 0])], jnp.nan)
    return best, jnp.where(finite, jnp.nanmax(separated, axis=0), jnp.nan)


def _moments(values: Array, chosen: Array) -> tuple[Array, Array]:
    """Mean and variance of the chosen values."""
    mean = values.mean(where=chosen)
    return mean, ((values - mean) ** 2).mean(where=chosen)
