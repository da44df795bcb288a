"""What the server has of two federations, what is asked of descriptors, and what methods share."""

import dataclasses
import functools
from collections.abc import Sequence
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
from attacks.users import linkability as link
from attacks.users import siamese as networks
from benchmarks.harness.engines import run_members
from benchmarks.scenarios.anonymous import AnonymousSettings, Updates, View
from benchmarks.scenarios.pictures import Represent
from benchmarks.scenarios.streams import ServerStream, stream
from jaxfl import Model
from jaxfl.models import record_gradient
from jaxfl.parallel import map_clients, strategy_here

Array = jax.Array
Descriptors = tuple[Array, ...]
TRUNK_RATE = 0.1
"""Rate of a centred network's trunk; see `attacks.users.siamese.Siamese.embedding_rate`."""


@dataclasses.dataclass(frozen=True)
class LinkSettings(AnonymousSettings):
    """Two federations, and what is asked of descriptors.

    Attributes:
      representing: how representatives are searched for.
      labels: of representatives: "bias" (inferred from the last bias), "uniform" or "known".
      siamese: of the siamese networks' training.
      epoch: after how many of its epochs a siamese network is judged.
      interval: rounds between a query and its gallery.
      references: records of the server's own at most, by whose gradients `matched_filter` knows how
        updates vary, and by which labels are inferred.
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
      view: the server's, of both federations.
      settings: of the attacks.
      epochs: after which a siamese network is judged.
      granted: how many records of each class the sender of each update has, of both federations
        `[rounds, participants, classes]`; None unless the server is granted these.
    """

    def __init__(
        self,
        view: View,
        settings: LinkSettings,
        epochs: Sequence[int],
        granted: tuple[Array, Array] | None = None,
    ) -> None:
        self.view, self.settings, self.granted = view, settings, granted
        self.epochs = tuple(epochs)

    @property
    def sides(self) -> tuple[Updates, Updates]:
        """The clients', and the server's own."""
        return self.view.clients, self.view.shadow

    @property
    def trunk(self) -> Any:
        """The shared model at the round that the siamese network begins with."""
        at = self.settings.trunk_round - self.settings.first
        return jax.tree.map(lambda a: a[at], self.view.clients.received)

    @property
    def known(self) -> tuple[Array, Array]:
        """Some of the server's own records."""
        order = np.random.default_rng(self.settings.first).permutation(len(self.view.y))
        rows = order[: self.settings.references]
        return jnp.asarray(self.view.x[rows]), jnp.asarray(self.view.y[rows])

    def gradients(self) -> Array:
        """Gradients of `known` records `[records, parameters]`, at models of all observed rounds by
        turns."""
        rounds = jnp.arange(len(self.known[1])) % self.settings.window
        return record_gradients(self.view.model, self.view.clients.received, *self.known, rounds)

    def counts(self, place: int) -> Array:
        """How many representatives of each class `[rounds, participants, classes]` the server asks
        for, of the clients' side (0) or its own (1)."""
        model, images = self.view.model, self.settings.representing.images
        received, sent = self.sides[place]
        if self.granted is not None:
            shared = functools.partial(round_counts, images=images)
            return jax.vmap(jax.vmap(shared))(self.granted[place].astype(jnp.float32))
        if self.settings.labels == "uniform":
            classes, shape = model.classes or 0, jax.tree.leaves(sent)[0].shape[:2]
            return jnp.broadcast_to(uniform_counts(images, classes), (*shape, classes))
        bias = link.last_bias(model, sent)
        return infer_all_counts(model, received, bias, *self.known, images, self.view.virtual)

    @functools.cached_property
    def representatives(self) -> tuple[Representatives, Representatives]:
        """Representatives of the clients' side and of the server's own, fields
        `[rounds, participants, ...]`. All begin with the same noise: different noise would tell the
        updates of one client apart."""
        view, made = self.view, []
        settings = dataclasses.replace(self.settings.representing, virtual=view.virtual)
        function = Represent(view.model, view.shape, settings)
        for place, side in enumerate(self.sides):
            counts = self.counts(place)
            keys = jnp.broadcast_to(
                stream(view.key, ServerStream.REPRESENTATIVES), counts.shape[:2]
            )
            made.append(run_members(function, (*side, counts, keys)).results)
        return made[0], made[1]

    def train(
        self, samples: Descriptors, embedding: networks.Embedding, start: Any, rule: Rule
    ) -> Descriptors:
        """Descriptors of samples after the asked epochs of a siamese network's training, from
        `start`. A trunk that has learned already learns at `TRUNK_RATE`, if the rule is not the
        paper's."""
        slower = rule.centred and start is not None
        flat = tuple(s.reshape(-1, *s.shape[2:]) for s in samples)
        settings = self.settings.siamese
        trained = networks.train_siamese(
            embedding,
            flat[1],
            self.view.senders.ravel(),
            stream(self.view.key, ServerStream.SIAMESE),
            start=start,
            described=flat,
            described_after=self.epochs,
            settings=dataclasses.replace(
                settings, embedding_rate=TRUNK_RATE if slower else 1.0, centred=rule.centred
            ),
        )
        mine, other = (
            d.reshape(len(d), *sample.shape[:2], -1)
            for d, sample in zip(trained.descriptors, samples, strict=True)
        )
        return mine, other, trained.loss


@functools.partial(jax.jit, static_argnums=0)
def record_gradients(model: Model, received: Any, x: Array, y: Array, rounds: Array) -> Array:
    """Gradients of single records `[records, parameters]`, each at the model of its round."""

    def one(arguments: Any) -> Array:
        record, label, t = arguments
        return record_gradient(model, jax.tree.map(lambda a: a[t], received), record, label)

    return map_clients(one, (x, y, rounds), strategy_here())
