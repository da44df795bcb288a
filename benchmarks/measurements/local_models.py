"""What would a client's own model be, and what do models and messages give away? (Driouich 2023;
local model reconstruction, attribute inference, source inference, sample reconstruction)

A method here is `run(work, settings) -> answer`: a `LocalModels` stands for the clients' own models
and is measured in every way; `Values`, `Sources` and `Images` answer one question without a model.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    GLS,
    CosMatching,
    GradientInversion,
    Inversion,
    LocalModel,
    Mapping,
    PseudoRecords,
    Virtual,
    affine_optimum,
    by_discriminants,
    cos_matching,
    decode_sources,
    extrapolated,
    gls,
    infer_from_model,
    invert_gradient,
    invert_model,
    largest_drop,
    last_returned,
    least_loss,
    majority_of_rounds,
    mapping_network,
    pseudo_records,
)
from attacks.metrics import zest_similarity
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.intervals import equivalent_count
from benchmarks.harness.jobs import Job, Outcome, Value
from benchmarks.measurements.local_model_scores import (
    Score,
    accuracy_of,
    explained,
    fit,
    likeness,
    majority_of,
    matched_likeness,
    mean,
    source_scores,
    strips,
    targets,
)
from benchmarks.scenarios.federations import (
    Federation,
    FederationSettings,
    epsilon_of,
    federate,
    isolated,
    optimum,
)
from benchmarks.scenarios.streams import attack_on
from jaxfl import LocalTraining, Messages

Array = jax.Array
SHOWN = 8
"""Images in a row of the report."""


@dataclasses.dataclass(frozen=True)
class LocalModelSettings(FederationSettings):
    """A federation, and what is measured of the attacked clients.

    Attributes:
      measures: "zest", "attribute", "source", "samples", or several.
      optimum_steps: SGD steps from the common start that make the local optimum.
      zest_records, zest_masks: reference records of a client, and masks for each.
      targets: records per client whose source is asked for; 0 for all.
      inversion: of a model into images.
    """

    measures: tuple[str, ...] = ("zest",)
    optimum_steps: int = 4000
    zest_records: int = 32
    zest_masks: int = 300
    targets: int = 100
    inversion: Inversion = Inversion(5000, 1e-3)


@dataclasses.dataclass(frozen=True)
class First:
    """An attack on a client's first messages.

    Attributes:
      messages: so many.
      attack: its settings.
    """

    messages: int
    attack: Any


@dataclasses.dataclass(frozen=True)
class FirstMessages:
    """How many of a client's messages are used, from the first."""

    messages: int


class LocalModels(NamedTuple):
    """Attributes:
    params: one model per attacked client.
    unexplained: what a fitted map misses of held-out updates' energy, per client, where one is
    fitted.
    """

    params: list[Any]
    unexplained: list[float] | None = None


class Values(NamedTuple):
    """Attributes:
    values: of the sensitive column, per attacked client.
    """

    values: list[np.ndarray]


class Sources(NamedTuple):
    """Attributes:
    answers: clients named for records `[records]`; of several answers the best is scored.
    """

    answers: Sequence[np.ndarray]


class Images(NamedTuple):
    """Attributes:
    likeness: to the clients' records, mean over clients.
    grey: of plain grey images.
    pictures: by caption.
    """

    likeness: float
    grey: float
    pictures: dict[str, np.ndarray]


class Work:
    """One federation, and answers of methods on it, made when first asked for."""

    def __init__(self, federation: Federation, settings: LocalModelSettings):
        """Of one federation."""
        self.federation, self.settings = federation, settings
        self.count = len(federation.messages)
        self.seconds: dict[Any, float] = {}
        """What each answer took, compilation included, however many metrics share it."""
        self._made: dict[Any, Any] = {}

    def answer(self, method: Method, attack: Any) -> Any:
        """A method's answer."""
        return self._timed((method.name, attack), lambda: method.run(self, attack))  # type: ignore[misc]

    def attributes(self, settings: First) -> list[np.ndarray]:
        """Values of the sensitive column that `gls` reconstructs, per attacked client."""
        return self._timed(("gls", settings), lambda: _gls(self, settings)).values

    @functools.cached_property
    def optima(self) -> list[Any]:
        """The clients' optimal local models."""
        return self._timed(("optimum", None), lambda: _optimum(self, None)).params

    @functools.cached_property
    def explanations(self) -> list[Array]:
        """Of the optima, which all other models are compared with."""
        return [self.explained(c, params) for c, params in enumerate(self.optima)]

    def explained(self, c: int, params: Any) -> Array:
        """A model's explanations around records of a client."""
        settings = self.settings
        return explained(self.federation, c, params, settings.zest_records, settings.zest_masks)

    def _timed(self, place: Any, make: Callable[[], Any]) -> Any:
        if place not in self._made:
            began = time.perf_counter()
            self._made[place] = jax.block_until_ready(make())
            self.seconds[place] = time.perf_counter() - began
        return self._made[place]

    def seen(self, c: int, count: int) -> Messages:
        """The first messages of a client."""
        return jax.tree.map(lambda a: a[:count], self.federation.messages[c])

    def key(self, c: int) -> Array:
        """Randomness of attacks on a client."""
        return attack_on(self.federation.key, c)

    @functools.cached_property
    def targets(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows whose source is asked for, and the client each was drawn from."""
        return targets(self.federation, self.settings.targets)

    @property
    def returned(self) -> Any:
        """Models the clients returned, leaves `[rounds, clients, ...]`."""
        messages = self.federation.messages
        return jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *(m.returned for m in messages))

    @property
    def asked(self) -> tuple[Array, Array]:
        """Records whose source is asked for, and their labels."""
        rows, _ = self.targets
        return jnp.asarray(self.federation.data.x[rows]), jnp.asarray(self.federation.data.y[rows])


def _of_each(one: Callable[[Work, int, Any], Any]) -> Callable[[Work, Any], LocalModels]:
    """A method that makes one model of each client; of a fitted one its misfit is kept."""

    def run(work: Work, settings: Any) -> LocalModels:
        made = [one(work, c, settings) for c in range(work.count)]
        if not isinstance(made[0], LocalModel):
            return LocalModels(made)
        return LocalModels([m.params for m in made], [float(m.unexplained) for m in made])

    return run


def _of_messages(infer: Callable[[Messages], Any]) -> Callable[[Work, Any], LocalModels]:
    return _of_each(lambda work, c, settings: infer(work.federation.messages[c]))


def _network(work: Work, c: int, settings: Mapping) -> LocalModel:
    return mapping_network(work.federation.messages[c], work.key(c), settings=settings)


def _pseudo_records(work: Work, c: int, settings: PseudoRecords) -> LocalModel:
    federation = work.federation
    training, local = federation.training[c], len(federation.parts[c])
    settings = dataclasses.replace(settings, training=training, local_records=local)
    model, messages, shape = federation.model, federation.messages[c], federation.data.x.shape[1:]
    return pseudo_records(model, messages, work.key(c), shape, settings=settings)


def _records(work: Work, c: int, settings: First) -> Any:
    federation = work.federation
    column = federation.data.column(federation.data.sensitive or 0)
    x, guess = federation.data.x[federation.parts[c]].copy(), work.attributes(settings)[c]
    x[:, list(column.positions)] = np.where(guess[:, None] < 0, np.nan, column.values[guess])
    other = dataclasses.replace(federation, key=work.key(c))  # batch orders are not known
    return optimum(other, c, work.settings.optimum_steps, x)


def _optimum(work: Work, settings: None) -> LocalModels:
    steps = work.settings.optimum_steps
    return LocalModels([optimum(work.federation, c, steps) for c in range(work.count)])


def _majority(work: Work, settings: None) -> Values:
    def one(c: int) -> np.ndarray:
        known, truth = work.federation.knowledge(c)
        return np.full(len(truth), int(np.argmax(np.asarray(known.columns[0].prior))))

    return Values([one(c) for c in range(work.count)])


def _cos(work: Work, settings: First) -> Values:
    def one(c: int) -> np.ndarray:
        known, _ = work.federation.knowledge(c)
        virtual = Virtual(training=work.federation.training[c])
        matching = dataclasses.replace(settings.attack, virtual=virtual)
        model, seen = work.federation.model, work.seen(c, settings.messages)
        return np.asarray(
            cos_matching(model, seen, known, work.key(c), settings=matching).values[0]
        )

    return Values([one(c) for c in range(work.count)])


def drift(settings: FederationSettings, asked: int) -> int:
    """For how many pieces of a path `gls` takes changes of records' gradients for noise: it can of
    clients without defences."""
    return asked if settings.defense == "none" else 0


def _gls(work: Work, settings: First) -> Values:
    def one(c: int) -> np.ndarray:
        known, _ = work.federation.knowledge(c)
        pieces = drift(work.settings, settings.attack.drift)
        training = work.federation.training[c]
        attack = dataclasses.replace(settings.attack, training=training, drift=pieces)
        model, seen = work.federation.model, work.seen(c, settings.messages)
        return np.asarray(gls(model, seen, known, work.key(c), settings=attack).values[0])

    return Values([one(c) for c in range(work.count)])


def _vote(work: Work, settings: None) -> Sources:
    vote = majority_of_rounds(work.federation.model, work.returned, *work.asked)
    return Sources([np.asarray(vote.sources)])


def _best_round(work: Work, settings: None) -> Sources:
    vote = majority_of_rounds(work.federation.model, work.returned, *work.asked)
    return Sources(list(np.asarray(vote.rounds)))


def _drop(work: Work, settings: None) -> Sources:
    return Sources([np.asarray(largest_drop(work.federation.model, work.returned, *work.asked))])


def _drop_lda(work: Work, settings: None) -> Sources:
    named = largest_drop(work.federation.model, work.returned, *work.asked)
    return Sources([by_discriminants(named, work.asked[0])])


def _decode_sources(work: Work, settings: FirstMessages) -> Sources:
    federation = work.federation
    sizes = [len(p) for p in federation.parts[: work.count]]
    seen = [work.seen(c, settings.messages) for c in range(work.count)]
    training = federation.training[int(np.argmax(sizes))]
    x, y = work.asked
    decoded = decode_sources(federation.model, seen, sizes, x, y, training=training)
    return Sources([np.asarray(decoded.sources)])


def _invert_gradient(work: Work, settings: GradientInversion) -> Images:
    """Images out of one update, each matched with one of the client's records; and grey ones."""
    federation, scores, greys = work.federation, [], []
    shape, pictures = federation.data.x.shape[1:], {}
    for c in range(work.count):
        records = jnp.asarray(federation.data.x[federation.parts[c]])
        batch = min(int(work.settings.training.batch_size or len(records)), len(records))
        seen = work.seen(c, 1)
        images, _ = invert_gradient(
            federation.model, seen, shape, batch, work.key(c), settings=settings
        )
        score, places = matched_likeness(images, records)
        scores.append(score)
        greys.append(matched_likeness(jnp.full_like(images, 0.5), records)[0])
        if c == 0:
            caption = (
                "images out of the first update of client 0, "
                "and below each the record it is matched with"
            )
            matched = np.asarray(records)[places[:SHOWN]]
            pictures = {caption: strips(np.asarray(images)[:SHOWN], matched)}
    return Images(mean(scores), mean(greys), pictures)


def _declines(measure: str, decodes: bool = False) -> Callable[[LocalModelSettings], str | None]:
    """Why a method that answers one question, or reconstructs records, cannot be used."""

    def reason(settings: LocalModelSettings) -> str | None:
        if decodes and settings.batch_norm:
            return "batch_norm=True: records are reconstructed from models that do not mix them"
        if measure not in settings.measures:
            return f"measures={','.join(settings.measures)}: it answers {measure!r} alone"
        return None

    return reason


DECODING = First(10, GLS(LocalTraining(), orders=8, passes=3, layers=1))
FILLED_DECODING = ("attack.training",)
METHODS = (
    Method(
        "global",
        "the shared model after the last round",
        _of_each(lambda work, c, _: work.federation.final),
    ),
    Method("last", "the client's last returned model", _of_messages(last_returned)),
    Method(
        "extrapolated", "beyond it, as far as the client last pulled", _of_messages(extrapolated)
    ),
    Method("affine", "the zero of an affine map of messages", _of_messages(affine_optimum)),
    Method(
        "network_literal",
        "the zero of a network fitted to messages, as published (Driouich 2023, Algorithm 2)",
        _of_each(_network),
        Mapping(fit_steps=200, search_steps=1000, scaling="literal"),
    ),
    Method(
        "network",
        "the same, with normalised inputs and outputs",
        _of_each(_network),
        Mapping(fit_steps=200, search_steps=1000, scaling="normalised"),
    ),
    Method(
        "pseudo_records",
        "training on made-up records whose gradients explain the messages",
        _of_each(_pseudo_records),
        PseudoRecords(LocalTraining(), local_records=1, records=128, steps=800, finish=4000),
        filled=("training", "local_records"),
    ),
    Method(
        "records",
        "training on records whose sensitive column `gls` reconstructs; public columns known",
        _of_each(_records),
        DECODING,
        filled=FILLED_DECODING,
        refuses=_declines("attribute", decodes=True),
        simulates=True,
    ),
    Method(
        "isolated",
        "what a server gets that sends the client its own model back in every round",
        _of_each(lambda work, c, _: isolated(work.federation, c, work.settings.rounds)),
    ),
    Method("optimum", "the optimal local model, the ceiling", _optimum),
    Method(
        "majority",
        "the most frequent value, for every record",
        _majority,
        refuses=_declines("attribute"),
        observes=False,
    ),
    Method(
        "cos",
        "cosine gradient matching (Lyu 2021, Algorithm 1)",
        _cos,
        First(5, CosMatching(steps=300)),
        filled=("attack.virtual",),
        refuses=_declines("attribute"),
    ),
    Method(
        "gls",
        "decoding whitened by the noise of batches",
        _gls,
        DECODING,
        filled=FILLED_DECODING,
        refuses=_declines("attribute", decodes=True),
        simulates=True,
    ),
    Method("vote", "the client of least loss in most rounds", _vote, refuses=_declines("source")),
    Method(
        "best_round",
        "the same in the round that scores best, an oracle's choice",
        _best_round,
        refuses=_declines("source"),
    ),
    Method(
        "drop", "the client whose training lowers the loss most", _drop, refuses=_declines("source")
    ),
    Method(
        "drop_lda",
        "linear discriminants learned from its answers",
        _drop_lda,
        refuses=_declines("source"),
    ),
    Method(
        "decode_sources",
        "every record's weight in every message",
        _decode_sources,
        FirstMessages(20),
        refuses=_declines("source", decodes=True),
    ),
    Method(
        "invert_gradient",
        "images out of one update (gradient inversion)",
        _invert_gradient,
        GradientInversion(steps=1000),
        refuses=_declines("samples"),
    ),
)
METRICS = (
    Metric("zest", "similarity of explanations to the optimum's"),
    Metric("train_loss", "on the client's records"),
    Metric("train_accuracy", "on the client's records", proportion=True),
    Metric("mape", "mean absolute error on the client's records, relative to the targets"),
    Metric("attribute_accuracy", "records whose sensitive column was named", True, 0.5),
    Metric(
        "source_accuracy", "records for which a client that holds them was named, balanced", True
    ),
    Metric(
        "strict_source_accuracy",
        "the client that a record was drawn from was named, balanced",
        True,
    ),
    Metric("ssim", "likeness of reconstructed images; chance is that of plain grey"),
)
MEASURE = {
    "zest": "zest",
    "attribute_accuracy": "attribute",
    "source_accuracy": "source",
    "strict_source_accuracy": "source",
    "ssim": "samples",
}
"""The measure that a metric belongs to; others are always given."""


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: one federation, from which all methods work."""
    cell, seed = jobs[0].cell, jobs[0].seed
    federation = federate(cell.dataset, cell.settings, data_dir, seed)
    work = Work(federation, cell.settings)
    for method, attack in dict.fromkeys((job.how, job.attack) for job in jobs):
        wanted = [job for job in jobs if (job.how, job.attack) == (method, attack)]
        asked = {name for job in wanted for name in job.cell.settings.measures}
        if method.name == "records":  # made from what `gls` reconstructs, which is timed apart
            work.attributes(attack)
        began = time.perf_counter()
        answer = work.answer(method, attack)
        scores, pictures = _scores(method, answer, work, asked)
        spent = work.seconds.get((method.name, attack), time.perf_counter() - began)
        sixty_four = isinstance(attack, First) and drift(
            cell.settings, getattr(attack.attack, "drift", 0)
        )
        shared = {
            "run_s": spent / work.count,
            "selection": "oracle" if method.name == "best_round" else "none",
            "device": jax.devices()[0].device_kind,
            "dtype": "float64" if sixty_four else "float32",
            "note": federation.data.note,
            "images": pictures,
        }
        detail: dict[str, Value] = {"simulation_s": round(federation.seconds, 1), **_spent(work)}
        if isinstance(answer, LocalModels) and answer.unexplained is not None:
            detail["unexplained"] = round(mean(answer.unexplained), 3)
        yield [
            Outcome(
                job,
                metric,
                value,
                majority=majority,
                chance=chance,
                detail=detail | _scored(metric, work),
                **shared,
            )
            for job in wanted
            for metric, (value, majority, chance) in scores.items()
            if metric not in MEASURE or MEASURE[metric] in job.cell.settings.measures
        ]


def _scored(metric: str, work: Work) -> dict[str, Value]:
    """How many records a mean of proportions is worth."""
    limit = work.settings.targets or None if MEASURE.get(metric) == "source" else None
    sizes = [len(rows[:limit]) for rows in work.federation.parts[: work.count]]
    return {"scored_records": equivalent_count(sizes)}


def _spent(work: Work) -> dict[str, Value]:
    """Epsilon of the clients with most and with fewest records, where training is private."""
    federation = work.federation
    if federation.training[0].privacy is None:
        return {}
    sizes = [len(rows) for rows in federation.parts]
    places = {"most": sizes.index(max(sizes)), "fewest": sizes.index(min(sizes))}
    rounds = work.settings.rounds
    return {
        f"epsilon_of_{name}_records": round(epsilon_of(federation, rounds, place), 3)
        for name, place in places.items()
    }


def _scores(
    method: Method, answer: Any, work: Work, asked: set[str]
) -> tuple[dict[str, Score], dict[str, np.ndarray]]:
    """Value, majority and chance by metric, and pictures."""
    federation = work.federation
    if isinstance(answer, LocalModels):
        return _of_models(method, answer.params, work, asked)
    if isinstance(answer, Images):
        return {"ssim": (answer.likeness, None, answer.grey)}, answer.pictures
    if isinstance(answer, Sources):
        return dict(source_scores(answer.answers, *work.targets, federation)), {}
    truths = [federation.knowledge(c)[1] for c in range(work.count)]
    right = [accuracy_of(*pair) for pair in zip(answer.values, truths, strict=True)]
    return {"attribute_accuracy": (mean(right), mean([majority_of(t) for t in truths]), None)}, {}


def _of_models(
    method: Method, params: list[Any], work: Work, asked: set[str]
) -> tuple[dict[str, Score], dict[str, np.ndarray]]:
    federation, count = work.federation, work.count
    scores = dict(fit(federation, params))
    pictures: dict[str, np.ndarray] = {}
    if "zest" in asked:
        theirs = [work.explained(c, params[c]) for c in range(count)]
        pairs = zip(theirs, work.explanations, strict=True)
        scores["zest"] = mean([float(zest_similarity(*pair)) for pair in pairs]), None, None
    if "attribute" in asked:
        right, majorities = [], []
        for c in range(count):
            known, truth = federation.knowledge(c)
            values = np.asarray(infer_from_model(federation.model, params[c], known))
            right.append(accuracy_of(values, truth))
            majorities.append(majority_of(truth))
        scores["attribute_accuracy"] = mean(right), mean(majorities), None
    if "source" in asked and method.name != "global":  # one model names no source
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
        named = np.asarray(least_loss(federation.model, stacked, *work.asked))
        scores |= dict(source_scores([named], *work.targets, federation))
    if "samples" in asked:
        scores["ssim"], pictures = _inverted(method, params, work)
    return scores, pictures


def _inverted(method: Method, params: list[Any], work: Work) -> tuple[Score, dict[str, np.ndarray]]:
    """Likeness of images out of models; of `global` and `last` at a tenth of the others' step size,
    as in the paper. Chance is that of plain grey, with which inversion begins."""
    federation, inversion = work.federation, work.settings.inversion
    if method.name in ("global", "last"):
        inversion = dataclasses.replace(inversion, learning_rate=inversion.learning_rate / 10)
    scores, greys, pictures = [], [], {}
    for c in range(work.count):
        key = work.key(c) if work.settings.batch_norm else None
        shape = federation.data.x.shape[1:]
        images, _ = invert_model(federation.model, params[c], shape, key, settings=inversion)
        scores.append(likeness(federation, c, images))
        greys.append(likeness(federation, c, jnp.full_like(images, inversion.start)))
        if c == 0:
            rows = federation.parts[c]
            x, y = federation.data.x[rows], federation.data.y[rows]
            shown = np.unique(y)[:SHOWN]
            firsts = np.stack([x[np.flatnonzero(y == k)[0]] for k in shown])
            caption = (
                "a record of each class, and what the model of "
                f"client 0 ({method.name}) takes for the class"
            )
            pictures = {caption: strips(firsts, np.asarray(images)[shown])}
    return (mean(scores), None, mean(greys)), pictures


EXPERIMENT = Experiment(
    "local_models", LocalModelSettings, METHODS, METRICS, run, asked=("measures",), batched=False
)
