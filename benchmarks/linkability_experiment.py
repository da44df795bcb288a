"""Which anonymous updates come from the same client (Song 2020, section VII-B).

A cell's settings:
  split: "classes" (three random classes a client, in equal parts), "iid", or "persons" (for faces: a few persons' images in
    full, and one of every other person).
  disjoint: whether the server's own federation knows other classes than the clients'.
  clients, records: of either federation; records of each client where the split does not fix their number.
  batch_size: "full" or records per local step; one local epoch. learning_rate: of the clients' SGD.
  widths: of the shared model's convolutions, "32,64,128,256"; side: pixels down and across, "28,28".
  first, window: updates of so many rounds from this (0-based) one on are linked. trunk_round: the siamese network on
    representatives begins with the shared model of this round, one of these.
  shadow_every: every so-manieth round of the window is learned from, in the server's own federation.
  images, evaluations, tv_weight: of representatives. labels: "bias" (inferred from the last bias), "uniform" or "known".
  siamese_epochs, siamese_batch: of the siamese networks. epoch: after how many of these a network is judged.
  interval: rounds between a query and its gallery.

Methods: `siamese_rep` (the paper's), `siamese_update` (what it compares with); without training `rep` (the shared model's trunk
on representatives), `update`, `head`, `bias` (cosines of the whole update, of the pooled last layer's, of the last bias'),
`histogram` (of labels inferred from the bias); and `whitened` (cosines of whole updates, in the metric of the server's own
records' gradients). Metrics: `precision` at an interval; `tracking`, by Algorithm 2 with K = 3, `tracking_one_to_one`;
`matching_accuracy` with the threshold fitted on the server's own federation, its `auc`, and `matching_train_accuracy`. `run_s`
holds compilation, and of what methods share, such as representatives, the first that needs it.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Representing,
    Virtual,
    infer_all_counts,
    labels_of,
    represent,
    round_counts,
    uniform_counts,
)
from attacks.metrics import detection
from attacks.users import linkability as link
from benchmarks.engines import once, run_members
from benchmarks.jobs import Cell, Job, Outcome
from jaxfl import (
    Federated,
    LocalTraining,
    Model,
    Record,
    evaluate,
    one_client,
    simulate,
    stack_clients,
    trunk_cnn,
)
from jaxfl.datasets import Dataset, load
from jaxfl.federated import map_clients, strategy_here
from jaxfl.models import record_gradient

Array = jax.Array
METHODS = (
    "siamese_rep",
    "siamese_update",
    "whitened",
    "update",
    "head",
    "bias",
    "histogram",
    "rep",
)
VOTES = 3
PAIRS = 2000
TRUNK_RATE = 0.1
"""See `attacks.users.linkability.Siamese.embedding_rate`."""
REFERENCES = 1000
"""Gradients of single records that `whitened` learns its metric from."""
TEST_RECORDS = 1000
ASKED = ("interval", "epoch")


def measured(cell: Cell) -> Any:
    """What is run for a cell: all that it says but what is asked of it."""
    return cell.dataset, tuple(pair for pair in cell.settings if pair[0] not in ASKED)


@once
def load_images(name: str, data_dir: str | None, side: str) -> Dataset:
    """A source at so many pixels down and across, in [-1, 1]."""
    shape = tuple(map(int, side.split(",")))
    data = load(name, data_dir)
    data = data if data.x.shape[1:3] == shape else load(name, data_dir, size=shape)
    return dataclasses.replace(data, x=2 * data.x - 1)


def strides(side: int) -> tuple[int, int, int, int]:
    """Of the shared model's convolutions, for images of so many pixels down (Song 2020, Tables I and II)."""
    return (2, 1, 2, 1) if side <= 28 else (2, 2, 2, 1)


class Side(NamedTuple):
    """One of the two federations: the clients', or the server's own.

    Attributes:
      params: the shared model at the end.
      received: the shared models of the observed rounds, leaves `[rounds, ...]`.
      pseudo_gradient: shuffled or not, leaves `[rounds, participants, ...]`.
      senders: who sent each `[rounds, participants]`.
      parts: row numbers of each client.
    """

    params: Any
    received: Any
    pseudo_gradient: Any
    senders: Array
    parts: list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Attacked:
    """Both federations of a cell.

    Attributes:
      data: pixels in [-1, 1].
      model: the shared model.
      training: every client's recipe.
      clients, shadow: the two sides.
      key: what is random in attacks.
      test_accuracy: of the shared model, on records of nobody; None if there are none.
    """

    data: Dataset
    model: Model
    training: LocalTraining
    clients: Side
    shadow: Side
    key: Array
    test_accuracy: float | None

    @property
    def virtual(self) -> Virtual:
        """How the server predicts updates: as if all clients had as many records as the smallest."""
        return Virtual(training=self.training, records=min(map(len, self.clients.parts)))


def federate(cell: Cell, data_dir: str | None, seed: int) -> Attacked:
    """Train a cell's two federations, both from the model that the server sent out first (Song 2020, section V-F). Raises
    `ValueError` if the source has too few records, or `trunk_round` is none of the window's."""
    if not 0 <= cell["trunk_round"] - cell["first"] < cell["window"]:
        raise ValueError(
            f"trunk_round={cell['trunk_round']} must be one of window={cell['window']} rounds from {cell['first']} on"
        )
    data = load_images(cell.dataset, data_dir, cell["side"])
    rng = np.random.default_rng(seed)
    own, other = _divide(rng, data, cell)
    widths = tuple(map(int, cell["widths"].split(",")))
    model = trunk_cnn(
        data.x.shape[1:], data.classes or 0, widths=widths, strides=strides(data.x.shape[1])
    )
    training = LocalTraining(
        cell["learning_rate"], 1, None if cell["batch_size"] == "full" else cell["batch_size"]
    )
    keys = jax.random.split(jax.random.key(seed), 6)
    clients = _side(cell, data, own, model, training, keys[0], keys[1], anonymous=keys[2])
    shadow = _side(cell, data, other, model, training, keys[0], keys[4], anonymous=None)
    test = np.setdiff1d(own, np.concatenate(clients.parts))[:TEST_RECORDS]
    accuracy = None
    if len(test):
        accuracy = float(
            evaluate(model, clients.params, one_client(data.x[test], data.y[test])).accuracy
        )
    return Attacked(data, model, training, clients, shadow, keys[5], accuracy)


def _divide(rng: np.random.Generator, data: Dataset, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the clients' federation and of the server's own."""
    order = rng.permutation(len(data))
    if not cell["disjoint"]:
        own, other = np.array_split(order, 2)
        return own, other
    classes = rng.permutation(data.classes or 0)
    mine = np.isin(data.y[order], classes[: len(classes) // 2])
    return order[mine], order[~mine]


def _parts(
    rng: np.random.Generator, y: np.ndarray, rows: np.ndarray, cell: Cell
) -> list[np.ndarray]:
    """Row numbers of every client, among `rows`."""
    labels, count = y[rows], cell["records"]
    classes = np.unique(labels)
    parts = []
    taken = np.zeros(len(rows), bool)
    for _ in range(cell["clients"]):
        if cell["split"] == "iid":
            chosen = rng.permutation(np.flatnonzero(~taken))[:count]
        elif cell["split"] == "classes":
            held = rng.permutation(classes)[:3]
            sizes = [count // 3 + (k < count % 3) for k in range(3)]
            pools = [rng.permutation(np.flatnonzero((labels == c) & ~taken)) for c in held]
            chosen = np.concatenate([pool[:size] for pool, size in zip(pools, sizes, strict=True)])
        else:
            whole = rng.permutation(classes)[: max(len(classes) // 10, 1)]
            some = [
                rng.permutation(np.flatnonzero(labels == c))[: None if c in whole else 1]
                for c in classes
            ]
            chosen = np.concatenate(some)
        if cell["split"] != "persons":
            taken[chosen] = True
            if len(chosen) < count:
                raise ValueError(
                    f"records={count} for each of clients={cell['clients']} exceed the source"
                )
        parts.append(rows[chosen])
    return parts


def _side(
    cell: Cell,
    data: Dataset,
    rows: np.ndarray,
    model: Model,
    training: LocalTraining,
    init_key: Array,
    train_key: Array,
    anonymous: Array | None,
) -> Side:
    """A federation: the clients', seen through the window and shuffled by the key `anonymous`; or the server's own."""
    seed = int(jax.random.randint(train_key, (), 0, 2**31 - 1))
    parts = _parts(np.random.default_rng(seed), data.y, rows, cell)
    kept = tuple(range(cell["first"], cell["first"] + cell["window"]))
    federated = Federated(cell["first"] + cell["window"], training, record=Record(rounds=kept))
    clients = stack_clients([(data.x[part], data.y[part]) for part in parts])
    run = simulate(model, model.init(init_key), clients, train_key, federated)
    if anonymous is not None:
        seen, senders = run.anonymous(anonymous)
        return Side(run.params, run.received, seen.pseudo_gradient, senders, parts)
    received, sent = jax.tree.map(
        lambda a: a[:: cell["shadow_every"]], (run.received, run.pseudo_gradient)
    )
    return Side(
        run.params,
        received,
        sent,
        jnp.broadcast_to(run.clients, jax.tree.leaves(sent)[0].shape[:2]),
        parts,
    )


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature and seed: two federations, each method once for all that is asked of it."""
    cell, seed = jobs[0].cell, jobs[0].seed
    began = time.perf_counter()
    attacked = federate(cell, data_dir, seed)
    simulated = time.perf_counter() - began
    attack = _Attack(cell, attacked)
    for method in dict.fromkeys(job.method for job in jobs):
        wanted = [job for job in jobs if job.method == method]
        began = time.perf_counter()
        descriptors = {
            epoch: attack.descriptors(method, epoch)
            for epoch in {job.cell["epoch"] for job in wanted}
        }
        jax.block_until_ready(descriptors)
        seconds = time.perf_counter() - began
        shared = {
            "chance": 1 / cell["clients"],
            "test_accuracy": attacked.test_accuracy,
            "run_s": seconds,
            "device": jax.devices()[0].device_kind,
            "dtype": "float32",
            "note": attacked.data.note,
            # Pairs share their samples: accuracies over them are no proportions of independent ones.
            "detail": {"simulation_s": round(simulated, 1), "scored_records": 0},
        }
        outcomes = []
        for job in wanted:
            found = _scores(job.cell, attacked, *descriptors[job.cell["epoch"]])
            for metric, value in found.items():
                chance = shared | (
                    {"chance": 0.5} if metric.startswith(("matching", "auc")) else {}
                )
                outcomes.append(Outcome(job, metric, value, **chance))
        yield outcomes


class _Attack:
    """Descriptors of both sides `[rounds, participants, d]` by method; what methods share is made once."""

    def __init__(self, cell: Cell, attacked: Attacked) -> None:
        self.cell, self.attacked = cell, attacked
        self._trained: dict[str, tuple[Array, Array]] = {}

    def descriptors(self, method: str, epoch: int) -> tuple[Array, Array]:
        """Of the clients' side and of the server's own."""
        attacked = self.attacked
        both = attacked.clients, attacked.shadow
        if method == "update":
            mine, theirs = (link.updates_as_vectors(side.pseudo_gradient) for side in both)
        elif method == "head":
            mine, theirs = (link.pooled_head(attacked.model, side.pseudo_gradient) for side in both)
        elif method == "bias":
            mine, theirs = (link.last_bias(attacked.model, side.pseudo_gradient) for side in both)
        elif method == "histogram":
            mine, theirs = (self._counts(side).astype(jnp.float32) for side in both)
        elif method == "whitened":
            updates = [link.updates_as_vectors(side.pseudo_gradient) for side in both]
            whitened = link.whiten(jnp.concatenate(updates), self._gradients())
            mine, theirs = jnp.split(whitened, [len(updates[0])])
        elif method == "rep":
            mine, theirs = self._pooled
        else:
            if method not in self._trained:
                self._trained[method] = self._train(method)
            mine, theirs = (found[epoch - 1] for found in self._trained[method])
        return link.unit(mine), link.unit(theirs)

    @property
    def _shared(self) -> Any:
        """The shared model at the round that the siamese network begins with."""
        return jax.tree.map(
            lambda a: a[self.cell["trunk_round"] - self.cell["first"]],
            self.attacked.clients.received,
        )

    def _known(self, count: int) -> tuple[Array, Array]:
        """Some of the server's own records."""
        rows = np.concatenate(self.attacked.shadow.parts)
        rows = np.random.default_rng(self.cell["first"]).permutation(rows)[:count]
        return jnp.asarray(self.attacked.data.x[rows]), jnp.asarray(self.attacked.data.y[rows])

    def _gradients(self) -> Array:
        """Gradients of at most `REFERENCES` records `[records, parameters]`, at models of all observed rounds by turns."""
        model, received = self.attacked.model, self.attacked.clients.received
        x, y = self._known(REFERENCES)
        return _record_gradients(model, received, x, y, jnp.arange(len(x)) % self.cell["window"])

    def _counts(self, side: Side) -> Array:
        """How many representatives of each class `[rounds, participants, classes]` the server asks for."""
        attacked, images = self.attacked, self.cell["images"]
        classes, (rounds, participants) = attacked.model.classes or 0, side.senders.shape
        if self.cell["labels"] == "uniform":
            return jnp.broadcast_to(
                uniform_counts(images, classes), (rounds, participants, classes)
            )
        if self.cell["labels"] == "known":
            held = jnp.stack(
                [
                    jnp.bincount(jnp.asarray(attacked.data.y[part]), length=classes)
                    for part in side.parts
                ]
            )
            return jax.vmap(lambda n: round_counts(n.astype(jnp.float32), images))(held)[
                side.senders
            ]
        x, y = self._known(REFERENCES)
        bias = link.last_bias(attacked.model, side.pseudo_gradient)
        return infer_all_counts(attacked.model, side.received, bias, x, y, images, attacked.virtual)

    @functools.cached_property
    def _representatives(self) -> tuple[Array, Array]:
        """Of the clients' side and of the server's own `[rounds, participants, images, ...]`. All begin with the same noise,
        which would tell the updates of one client apart otherwise."""
        cell, attacked = self.cell, self.attacked
        settings = Representing(
            images=cell["images"],
            tv_weight=cell["tv_weight"],
            evaluations=cell["evaluations"],
            virtual=attacked.virtual,
        )
        found = []
        function = Represent(attacked.model, attacked.data.x.shape[1:], settings)
        for side in (attacked.clients, attacked.shadow):
            counts = self._counts(side)
            keys = jnp.broadcast_to(jax.random.fold_in(attacked.key, 0), counts.shape[:2])
            found.append(
                run_members(function, (side.received, side.pseudo_gradient, counts, keys)).results
            )
        return found[0], found[1]

    @property
    def _pooled(self) -> tuple[Array, Array]:
        """Descriptors of both sides' representatives by the shared model as it is."""
        embedding = link.image_embedding(self.attacked.model)
        mine, theirs = (
            link.describe(embedding, self._shared, images.reshape(-1, *images.shape[2:])).reshape(
                *images.shape[:2], -1
            )
            for images in self._representatives
        )
        return mine, theirs

    def _train(self, method: str) -> tuple[Array, Array]:
        """Descriptors of both sides `[epochs, rounds, participants, d]` after each epoch of the siamese network's training."""
        cell, attacked = self.cell, self.attacked
        if method == "siamese_rep":
            embedding, start, rate = link.image_embedding(attacked.model), self._shared, TRUNK_RATE
            mine, theirs = self._representatives
        else:
            mine, theirs = (
                link.pooled_head(attacked.model, s.pseudo_gradient)
                for s in (attacked.clients, attacked.shadow)
            )
            mine, theirs = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (mine, theirs))
            embedding, start, rate = link.vector_embedding(mine.shape[-1]), None, 1.0
        flat = tuple(samples.reshape(-1, *samples.shape[2:]) for samples in (mine, theirs))
        found = link.train_siamese(
            embedding,
            flat[1],
            attacked.shadow.senders.ravel(),
            jax.random.fold_in(attacked.key, 2),
            start=start,
            described=flat,
            settings=link.Siamese(
                cell["siamese_epochs"], cell["siamese_batch"], embedding_rate=rate
            ),
        )
        first, second = (
            d.reshape(len(d), *side.senders.shape, -1)
            for d, side in zip(found.descriptors, (attacked.clients, attacked.shadow), strict=True)
        )
        return first, second


@functools.partial(jax.jit, static_argnums=0)
def _record_gradients(model: Model, received: Any, x: Array, y: Array, rounds: Array) -> Array:
    """Gradients of single records `[records, parameters]`, each at the model of its round."""

    def one(arguments: Any) -> Array:
        record, label, t = arguments
        return record_gradient(model, jax.tree.map(lambda a: a[t], received), record, label)

    return map_clients(one, (x, y, rounds), strategy_here())


@dataclasses.dataclass(frozen=True)
class Represent:
    """Representatives of all participants of one round."""

    model: Model
    shape: tuple[int, ...]
    settings: Representing

    def __call__(self, member: Any) -> Array:
        """Images `[participants, images, ...]` of a round: its model, updates, counts of classes and keys."""
        received, gradients, counts, keys = member

        def one(arguments: Any) -> Array:
            observed, n, key = arguments
            y = labels_of(n, self.settings.images)
            return represent(self.model, received, observed, y, key, self.shape, self.settings).x

        return map_clients(one, (gradients, counts, keys), strategy_here())


def _scores(cell: Cell, attacked: Attacked, mine: Array, theirs: Array) -> dict[str, float]:
    senders, interval = attacked.clients.senders, cell["interval"]
    scores = {
        "precision": link.link_precision(
            mine[interval:], senders[interval:], mine[:-interval], senders[:-interval]
        )
    }
    if interval == 1:
        keys = jax.random.split(jax.random.fold_in(attacked.key, 3))
        flat, names = mine.reshape(-1, mine.shape[-1]), senders.ravel()
        own, own_names = theirs.reshape(-1, theirs.shape[-1]), attacked.shadow.senders.ravel()
        learned = link.pair_similarities(own, own_names, keys[0], PAIRS)
        tested = link.pair_similarities(flat, names, keys[1], PAIRS)
        threshold = link.fit_threshold(*learned)
        scores |= {
            "tracking": link.follow_precision(link.follow(mine, votes=VOTES), senders),
            "tracking_one_to_one": link.follow_precision(
                link.follow(mine, votes=VOTES, one_to_one=True), senders
            ),
            "matching_accuracy": link.matching_accuracy(*tested, threshold),
            "auc": jnp.asarray(detection(np.asarray(tested[0]), np.asarray(tested[1])).auc),
            "matching_train_accuracy": link.matching_accuracy(*learned, threshold),
        }
    return {name: float(value) for name, value in scores.items()}
