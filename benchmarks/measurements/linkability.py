"""Which anonymous updates come from the same client? (Song 2020, section VII-B; linkability)

A method here is `run(linking, settings) -> descriptors` of the clients' updates and of the server's
own federation's, `[rounds, participants, d]` each; a trained one gives them after every epoch,
`[epochs, ...]`, and its loss `[epochs]`. It is given what the server has
(`benchmarks.scenarios.anonymous.Seen`) and what methods share, and not who sent the clients'.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Representatives,
    Representing,
    infer_all_counts,
    round_counts,
    uniform_counts,
)
from attacks.metrics import detection
from attacks.users import linkability as link
from attacks.users import siamese as networks
from benchmarks.harness.clock import Clock
from benchmarks.harness.engines import run_members
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome, by_method
from benchmarks.scenarios.anonymous import Anonymous, AnonymousSettings, Seen, Updates, draw
from benchmarks.scenarios.pictures import Represent
from benchmarks.scenarios.streams import Stream, stream
from jaxfl import Model
from jaxfl.federated import map_clients, strategy_here
from jaxfl.models import record_gradient

Array = jax.Array
Descriptors = tuple[Array, ...]
VOTES = 3
TRUNK_RATE = 0.1
"""Of a centred network's; see `attacks.users.siamese.Siamese.embedding_rate`."""


@dataclasses.dataclass(frozen=True)
class LinkSettings(AnonymousSettings):
    """Two federations, and what is asked of descriptors.

    Attributes:
      representing: how representatives are searched for.
      labels: of representatives: "bias" (inferred from the last bias), "uniform" or "known".
      siamese: of the siamese networks' training.
      epoch: after how many of its epochs a siamese network is judged.
      interval: rounds between a query and its gallery.
      references: records of the server's own at most, whose gradients `whitened` learns its metric
        from, and by which labels are inferred.
      pairs: of updates, of either federation, that are judged to be of one client or not.
    """

    representing: Representing = Representing(images=30, evaluations=200, tv_weight=1e-5)
    labels: Literal["bias", "uniform", "known"] = "bias"
    siamese: networks.Siamese = networks.Siamese(100, 64)
    epoch: int = 100
    interval: int = 1
    references: int = 1000
    pairs: int = 2000


@dataclasses.dataclass(frozen=True)
class Rule:
    """How descriptors are compared.

    Attributes:
      centred: less their round's mean; a network's layers see them so too (not in the paper).
    """

    centred: bool = False


class Linking:
    """What the server has, and what methods share, made once.

    Attributes:
      seen: of both federations.
      settings: of the attacks.
      granted: how many records of each class the sender of each update has, of both federations
        `[rounds, participants, classes]`; None unless the server is granted these.
    """

    def __init__(
        self, seen: Seen, settings: LinkSettings, granted: tuple[Array, Array] | None = None
    ) -> None:
        self.seen, self.settings, self.granted = seen, settings, granted

    @property
    def sides(self) -> tuple[Updates, Updates]:
        """The clients', and the server's own."""
        return self.seen.clients, self.seen.shadow

    @property
    def trunk(self) -> Any:
        """The shared model at the round that the siamese network begins with."""
        at = self.settings.trunk_round - self.settings.first
        return jax.tree.map(lambda a: a[at], self.seen.clients.received)

    @property
    def known(self) -> tuple[Array, Array]:
        """Some of the server's own records."""
        order = np.random.default_rng(self.settings.first).permutation(len(self.seen.y))
        rows = order[: self.settings.references]
        return jnp.asarray(self.seen.x[rows]), jnp.asarray(self.seen.y[rows])

    def gradients(self) -> Array:
        """Gradients of `known` records `[records, parameters]`, at models of all observed rounds by
        turns."""
        rounds = jnp.arange(len(self.known[1])) % self.settings.window
        return _record_gradients(self.seen.model, self.seen.clients.received, *self.known, rounds)

    def counts(self, place: int) -> Array:
        """How many representatives of each class `[rounds, participants, classes]` the server asks
        for, of the clients' side (0) or its own (1)."""
        model, images = self.seen.model, self.settings.representing.images
        received, sent = self.sides[place]
        if self.granted is not None:
            shared = functools.partial(round_counts, images=images)
            return jax.vmap(jax.vmap(shared))(self.granted[place].astype(jnp.float32))
        if self.settings.labels == "uniform":
            classes, shape = model.classes or 0, jax.tree.leaves(sent)[0].shape[:2]
            return jnp.broadcast_to(uniform_counts(images, classes), (*shape, classes))
        bias = link.last_bias(model, sent)
        return infer_all_counts(model, received, bias, *self.known, images, self.seen.virtual)

    @functools.cached_property
    def representatives(self) -> tuple[Representatives, Representatives]:
        """Of the clients' side and of the server's own, fields `[rounds, participants, ...]`. All
        begin with the same noise, which would tell the updates of one client apart otherwise."""
        seen, made = self.seen, []
        settings = dataclasses.replace(self.settings.representing, virtual=seen.virtual)
        function = Represent(seen.model, seen.shape, settings)
        for place, side in enumerate(self.sides):
            counts = self.counts(place)
            keys = jnp.broadcast_to(stream(seen.key, Stream.REPRESENTATIVES), counts.shape[:2])
            made.append(run_members(function, (*side, counts, keys)).results)
        return made[0], made[1]

    def train(
        self, samples: Descriptors, embedding: networks.Embedding, start: Any, rule: Rule
    ) -> Descriptors:
        """Descriptors of samples after each epoch of a siamese network's training, from `start`. A
        trunk that has learned already learns at `TRUNK_RATE`, if the rule is not the paper's."""
        slower = rule.centred and start is not None
        flat = tuple(s.reshape(-1, *s.shape[2:]) for s in samples)
        settings = self.settings.siamese
        trained = networks.train_siamese(
            embedding,
            flat[1],
            self.seen.senders.ravel(),
            stream(self.seen.key, Stream.SIAMESE),
            start=start,
            described=flat,
            settings=dataclasses.replace(
                settings, embedding_rate=TRUNK_RATE if slower else 1.0, centred=rule.centred
            ),
        )
        mine, other = (
            d.reshape(len(d), *sample.shape[:2], -1)
            for d, sample in zip(trained.descriptors, samples, strict=True)
        )
        return mine, other, trained.loss


def _siamese_representatives(linking: Linking, rule: Rule) -> Descriptors:
    embedding = networks.image_embedding(linking.seen.model)
    mine, other = linking.representatives
    return linking.train((mine.x, other.x), embedding, linking.trunk, rule)


def _siamese_updates(linking: Linking, rule: Rule) -> Descriptors:
    model = linking.seen.model
    heads = [link.pooled_head(model, side.pseudo_gradient) for side in linking.sides]
    mine, other = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in heads)
    return linking.train((mine, other), networks.vector_embedding(mine.shape[-1]), None, rule)


def _whitened(linking: Linking, rule: Rule) -> Descriptors:
    updates = [link.updates_as_vectors(side.pseudo_gradient) for side in linking.sides]
    whitened = link.whiten(jnp.concatenate(updates), linking.gradients())
    mine, other = jnp.split(whitened, [len(updates[0])])
    return mine, other


def _of_each(describe: Callable[[Model, Any], Array]) -> Callable[[Linking, Rule], Descriptors]:
    def run(linking: Linking, rule: Rule) -> Descriptors:
        model = linking.seen.model
        mine, other = (describe(model, side.pseudo_gradient) for side in linking.sides)
        return mine, other

    return run


def _pooled(linking: Linking, rule: Rule) -> Descriptors:
    """Descriptors of both sides' representatives by the shared model as it is."""
    embedding, trunk = networks.image_embedding(linking.seen.model), linking.trunk

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
        "whitened",
        "cosines in the metric of the server's own records' gradients",
        _whitened,
        Rule(centred=True),
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
    Metric("train_precision", "the same, in the server's own federation", True),
    Metric("tracking", "of Algorithm 2, K = 3", True),
    Metric("tracking_one_to_one", "the same, no two clients the same", True),
    Metric("matching_accuracy", "of pairs; threshold of the server's own federation", True, 0.5),
    Metric("auc", "of pairs", True, 0.5),
    Metric("matching_train_accuracy", "of the server's own pairs", True, 0.5),
)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: two federations, each method once for all that is asked of
    it. Run time holds compilation, and of what methods share the first that needs it."""
    cell, seed = jobs[0].cell, jobs[0].seed
    began = time.perf_counter()
    drawn = draw(cell.dataset, cell.settings, data_dir, seed)
    simulated = time.perf_counter() - began
    linking = Linking(drawn.seen, cell.settings, _granted(cell.settings, drawn))
    for method, rule, wanted in by_method(jobs):
        clock = Clock()
        descriptors = method.run(linking, rule)
        jax.block_until_ready(descriptors)
        shared: dict[str, Any] = {
            "test_accuracy": drawn.test_accuracy,
            **clock.read()._asdict(),
            "dtype": "float32",
            "note": drawn.data.note,
        }
        if method.explains:
            explained = float(linking.representatives[0].explained.mean())
            shared["explained"] = explained if math.isfinite(explained) else None
        mine, other, *losses = descriptors
        outcomes = []
        for job in wanted:
            settings = job.cell.settings
            detail: dict[str, Any] = {"simulation_s": round(simulated, 1)}
            at = mine, other
            for loss in losses:
                at = mine[settings.epoch - 1], other[settings.epoch - 1]
                detail["loss"] = round(float(loss[settings.epoch - 1]), 3)
                detail["loss_of_guessing"] = round(math.log(2 * settings.clients), 3)
            compared = [link.unit(each, rule.centred) for each in at]
            scores = _scores(settings, drawn, *compared)
            for metric, value in scores.items():
                known = cell.experiment.metric(metric).chance
                chance = 1 / settings.clients if known is None else known
                outcomes.append(Outcome(job, metric, value, chance=chance, detail=detail, **shared))
        yield outcomes


def _granted(settings: LinkSettings, drawn: Anonymous) -> tuple[Array, Array] | None:
    """The labels of all clients, where the server is taken to know them."""
    if settings.labels != "known":
        return None
    return drawn.clients.labels(drawn.data), drawn.shadow.labels(drawn.data)


@functools.partial(jax.jit, static_argnums=0)
def _record_gradients(model: Model, received: Any, x: Array, y: Array, rounds: Array) -> Array:
    """Gradients of single records `[records, parameters]`, each at the model of its round."""

    def one(arguments: Any) -> Array:
        record, label, t = arguments
        return record_gradient(model, jax.tree.map(lambda a: a[t], received), record, label)

    return map_clients(one, (x, y, rounds), strategy_here())


def _scores(
    settings: LinkSettings, drawn: Anonymous, mine: Array, other: Array
) -> dict[str, float]:
    senders = drawn.clients.senders
    if settings.interval > 1:
        return {"precision": float(_precision(mine, senders, settings.interval))}
    keys = jax.random.split(stream(drawn.seen.key, Stream.PAIRS))
    sides = (mine, senders), (other, drawn.shadow.senders)
    scores, tested = _all_scores(*sides, keys, settings.pairs)
    auc = detection(np.asarray(tested[0]), np.asarray(tested[1])).auc
    return {name: float(value) for name, value in scores.items()} | {"auc": auc}


@functools.partial(jax.jit, static_argnums=2)
def _precision(descriptors: Array, senders: Array, interval: int) -> Array:
    """Of queries so many rounds after their gallery. A scalar."""
    query, gallery = (
        (descriptors[rounds], senders[rounds])
        for rounds in (slice(interval, None), slice(None, -interval))
    )
    return link.link_precision(*query, *gallery)


@functools.partial(jax.jit, static_argnums=3)
def _all_scores(
    clients: tuple[Array, Array], shadow: tuple[Array, Array], keys: Array, pairs: int
) -> tuple[dict[str, Array], tuple[Array, Array]]:
    """All but the area, as one program, and similarities of pairs of the clients with their truth.

    Args:
      clients, shadow: descriptors `[rounds, participants, d]` of either federation, and who sent
        the updates `[rounds, participants]`.
      keys: draw the pairs of either `[2]`.
      pairs: of either (static).
    """
    (mine, senders), (other, sent) = clients, shadow
    flat, names = mine.reshape(-1, mine.shape[-1]), senders.ravel()
    learned = link.pair_similarities(
        other.reshape(-1, other.shape[-1]), sent.ravel(), keys[0], pairs
    )
    tested = link.pair_similarities(flat, names, keys[1], pairs)
    threshold = link.fit_threshold(*learned)
    followed, one_to_one = (
        link.follow(mine, votes=VOTES, one_to_one=alone) for alone in (False, True)
    )
    scores = {
        "precision": _precision(mine, senders, 1),
        "train_precision": _precision(other, sent, 1),
        "tracking": link.follow_precision(followed, senders),
        "tracking_one_to_one": link.follow_precision(one_to_one, senders),
        "matching_accuracy": link.matching_accuracy(*tested, threshold),
        "matching_train_accuracy": link.matching_accuracy(*learned, threshold),
    }
    return scores, tested


EXPERIMENT = Experiment(
    "linkability",
    LinkSettings,
    METHODS,
    METRICS,
    run,
    asked=("interval", "epoch"),
    batched=False,
)
