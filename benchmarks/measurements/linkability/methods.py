"""Descriptors of updates, by every method, and what is measured of them.

A method here is `run(linking, rule) -> descriptors` of the clients' updates and of the server's own
federation's, `[rounds, participants, d]` each; a trained one gives them after the asked
epochs, `[asked epochs, ...]`, and its loss `[epochs]`. It is given what the server has
(`benchmarks.scenarios.anonymous.View`) and what methods share, and not who sent the clients'.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attacks import fit_filter_noise, matched_filter
from attacks.fit import FitWarning
from attacks.users import linkability as link
from attacks.users import siamese as networks
from benchmarks.harness.experiment import Method, Metric
from benchmarks.measurements.linkability.work import Descriptors, Linking, LinkSettings, Rule
from jaxfl import Model

Array = jax.Array


def _siamese_representatives(linking: Linking, rule: Rule) -> Descriptors:
    embedding = networks.image_embedding(linking.view.model)
    mine, other = linking.representatives
    return linking.train((mine.x, other.x), embedding, linking.trunk, rule)


def _siamese_updates(linking: Linking, rule: Rule) -> Descriptors:
    model = linking.view.model
    heads = [link.pooled_head(model, side.pseudo_gradient) for side in linking.sides]
    mine, other = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in heads)
    return linking.train((mine, other), networks.vector_embedding(mine.shape[-1]), None, rule)


def _matched_filter(linking: Linking, rule: Rule) -> Descriptors:
    mine, other = (link.updates_as_vectors(side.pseudo_gradient) for side in linking.sides)
    gradients = linking.gradients()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the row tells it
        noise = fit_filter_noise(other, linking.view.senders, gradients)
    known = jnp.isfinite(noise)  # else a federation has diverged
    both = jnp.concatenate([mine, other])
    filtered = matched_filter(both, gradients, jnp.where(known, noise, 0))
    filtered = jnp.where(known, filtered, jnp.nan)
    return filtered[: len(mine)], filtered[len(mine) :]


def _one_own_round(settings: LinkSettings) -> str | None:
    if settings.window > settings.shadow_every:
        return None
    return (
        f"window={settings.window} with shadow_every={settings.shadow_every}: it learns from two "
        "rounds of the server's own federation at least"
    )


def _of_each(describe: Callable[[Model, Any], Array]) -> Callable[[Linking, Rule], Descriptors]:
    def run(linking: Linking, rule: Rule) -> Descriptors:
        model = linking.view.model
        mine, other = (describe(model, side.pseudo_gradient) for side in linking.sides)
        return mine, other

    return run


def _pooled(linking: Linking, rule: Rule) -> Descriptors:
    """Descriptors of both sides' representatives by the shared model as it is."""
    embedding, trunk = networks.image_embedding(linking.view.model), linking.trunk

    def one(images: Array) -> Array:
        flat = images.reshape(-1, *images.shape[2:])
        return networks.describe(embedding, trunk, flat).reshape(*images.shape[:2], -1)

    mine, other = (one(side.x) for side in linking.representatives)
    return mine, other


def _histogram(linking: Linking, rule: Rule) -> Descriptors:
    mine, other = (linking.counts(place) for place in (0, 1))
    return jnp.where(mine < 0, jnp.nan, mine), jnp.where(other < 0, jnp.nan, other)


METHODS = (
    Method(
        "siamese_rep",
        "a siamese network on representatives, the paper's",
        _siamese_representatives,
        Rule(),
        explains=True,
    ),
    Method("siamese_update", "a siamese network on updates, its rival", _siamese_updates, Rule()),
    Method(
        "siamese_rep_centred",
        "the paper's on centred descriptors",
        _siamese_representatives,
        Rule(centred=True),
        explains=True,
    ),
    Method(
        "siamese_update_centred",
        "its rival on centred descriptors",
        _siamese_updates,
        Rule(centred=True),
    ),
    Method(
        "matched_filter",
        "cosines by a filter learned from the server's own records' gradients and federation",
        _matched_filter,
        Rule(centred=True),
        refuses=_one_own_round,
    ),
    Method(
        "update",
        "cosines of whole updates",
        _of_each(lambda model, sent: link.updates_as_vectors(sent)),
        Rule(centred=True),
    ),
    Method(
        "head",
        "cosines of the last layer's part, pooled",
        _of_each(link.pooled_head),
        Rule(centred=True),
    ),
    Method(
        "bias",
        "cosines of the last bias' part",
        _of_each(link.last_bias),
        Rule(centred=True),
    ),
    Method(
        "histogram",
        "labels inferred from the bias",
        _histogram,
        Rule(centred=True),
    ),
    Method(
        "rep",
        "the trunk of the shared model on representatives, untrained",
        _pooled,
        Rule(),
        explains=True,
    ),
    Method("rep_centred", "the same, centred", _pooled, Rule(centred=True), explains=True),
)
METRICS = (
    Metric("precision", "of the nearest update so many rounds later (rank 1)", True),
    Metric(
        "train_precision",
        "of the nearest update, in the server's own federation, of the rounds that it learns from",
        True,
    ),
    Metric("tracking", "of Algorithm 2, K = 3", True),
    Metric("tracking_one_to_one", "the same, no two clients the same", True),
    Metric("clusters", "of k-means of all rounds' updates (adjusted Rand index)", chance=0.0),
    Metric(
        "clusters_one_to_one",
        "the same, no two updates of a round in one (by chance 1 / updates)",
        chance=0.0,
    ),
    Metric("matching_accuracy", "of pairs; threshold of the server's own federation", True, 0.5),
    Metric("auc", "of pairs", True, 0.5),
    Metric("matching_train_accuracy", "of the server's own pairs", True, 0.5),
)
