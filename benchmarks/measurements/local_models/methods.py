"""Methods that make local models out of messages, or answer one question without: the table.

A method is `run(work, settings) -> answer`: a `LocalModels` stands for the clients' own models and
is measured in every way; `Values`, `Sources` and `Images` answer one question without a model.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from attacks import (
    GLS,
    CosMatching,
    GradientInversion,
    LocalModel,
    Mapping,
    PseudoRecords,
    Reconstruction,
    Virtual,
    affine_optimum,
    by_discriminants,
    cos_matching,
    decode_sources,
    extrapolated,
    invert_gradient,
    largest_drop,
    last_returned,
    majority_of_rounds,
    mapping_network,
    pseudo_records,
)
from attacks.fit import FitWarning
from benchmarks.harness.experiment import Method, Metric
from benchmarks.measurements.local_models.scores import (
    matched_likeness,
    mean,
    strips,
)
from benchmarks.measurements.local_models.work import (
    SHOWN,
    First,
    FirstMessages,
    Images,
    LocalModels,
    LocalModelSettings,
    MapsOfClients,
    Sources,
    Values,
    Work,
    gls_attributes,
    local_optima,
    read_each,
)
from benchmarks.scenarios.federations import (
    isolated,
    optimum,
)
from jaxfl import LocalTraining, Messages


def _of_each(one: Callable[[Work, int, Any], Any]) -> Callable[[Work, Any], LocalModels]:
    """A method that makes one model of each client; of a fitted one its misfit is kept."""

    def run(work: Work, settings: Any) -> LocalModels:
        made = [one(work, c, settings) for c in range(work.count)]
        if not isinstance(made[0], LocalModel):
            return LocalModels(made)
        missed = [float(m.unexplained) for m in made]
        return LocalModels([m.params for m in made], missed, any(bool(m.misfit) for m in made))

    return run


def _of_messages(infer: Callable[[Messages], Any]) -> Callable[[Work, Any], LocalModels]:
    return _of_each(lambda work, c, settings: infer(work.federation.messages[c]))


def _network(work: Work, c: int, settings: Mapping) -> LocalModel:
    return mapping_network(work.federation.messages[c], work.key(c), settings=settings)


def _published_network(work: Work, c: int, settings: MapsOfClients) -> LocalModel:
    return _network(work, c, settings.of(c))


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
    return optimum(other, c, work.settings.optimum_steps, x, work.settings.optimum_fit)


def _majority(work: Work, settings: None) -> Values:
    def one(c: int) -> np.ndarray:
        known, truth = work.federation.knowledge(c)
        return np.full(len(truth), int(np.argmax(np.asarray(known.columns[0].prior))))

    return Values([one(c) for c in range(work.count)])


def _cos(work: Work, settings: First) -> Values:
    def one(c: int) -> Reconstruction:
        known, _ = work.federation.knowledge(c)
        virtual = Virtual(training=work.federation.training[c])
        matching = dataclasses.replace(settings.attack, virtual=virtual)
        model, seen = work.federation.model, work.seen(c, settings.messages)
        return cos_matching(model, seen, known, work.key(c), settings=matching)

    return read_each(work, one)


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
    key = work.key(work.count)  # of no client's own attack
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the row tells it
        decoded = decode_sources(federation.model, seen, sizes, x, y, key, training=training)
    return Sources([np.asarray(decoded.sources)], decoded.fit)


def _invert_gradient(work: Work, settings: GradientInversion) -> Images:
    """Images out of one update, each matched with one of the client's records; and grey ones."""
    federation, scores, greys = work.federation, [], []
    shape, pictures = federation.data.x.shape[1:], {}
    for c in range(work.count):
        records = jnp.asarray(federation.data.x[federation.parts[c]])
        batch = min(int(work.settings.training.batch_size or len(records)), len(records))
        seen = work.seen(c, 1)
        images = invert_gradient(
            federation.model, seen, shape, batch, work.key(c), settings=settings
        ).images
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


def _refuses(measure: str, decodes: bool = False) -> Callable[[LocalModelSettings], str | None]:
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
        observes=False,
    ),
    Method("last", "the client's last returned model", _of_messages(last_returned)),
    Method(
        "extrapolated", "beyond it, as far as the client last pulled", _of_messages(extrapolated)
    ),
    Method("affine", "the zero of an affine map of messages", _of_messages(affine_optimum)),
    Method(
        "network_literal",
        "the zero of a network fitted to messages, as published (Driouich 2023, Algorithm 2)",
        _of_each(_published_network),
        MapsOfClients((32,), (1e-4,), (1000,), (1e-2,), fit_steps=3000),
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
        refuses=_refuses("attribute", decodes=True),
        simulates=True,
    ),
    Method(
        "isolated",
        "what a server gets that sends the client its own model back in every round",
        _of_each(lambda work, c, _: isolated(work.federation, c, work.settings.rounds)),
    ),
    Method(
        "optimum",
        "the optimal local model, the ceiling",
        local_optima,
        observes=False,
        ceiling=True,
    ),
    Method(
        "majority",
        "the most frequent value, for every record",
        _majority,
        refuses=_refuses("attribute"),
        observes=False,
    ),
    Method(
        "cos",
        "cosine gradient matching (Lyu 2021, Algorithm 1)",
        _cos,
        First(5, CosMatching(steps=300)),
        filled=("attack.virtual",),
        refuses=_refuses("attribute"),
    ),
    Method(
        "gls",
        "decoding whitened by the noise of batches",
        gls_attributes,
        DECODING,
        filled=FILLED_DECODING,
        refuses=_refuses("attribute", decodes=True),
        simulates=True,
    ),
    Method("vote", "the client of least loss in most rounds", _vote, refuses=_refuses("source")),
    Method(
        "best_round",
        "the same in the round that scores best, an oracle's choice",
        _best_round,
        refuses=_refuses("source"),
        oracle=True,
    ),
    Method(
        "drop", "the client whose training lowers the loss most", _drop, refuses=_refuses("source")
    ),
    Method(
        "drop_lda",
        "linear discriminants learned from its answers",
        _drop_lda,
        refuses=_refuses("source"),
    ),
    Method(
        "decode_sources",
        "every record's weight in every message",
        _decode_sources,
        FirstMessages(20),
        refuses=_refuses("source", decodes=True),
        explains=True,
    ),
    Method(
        "invert_gradient",
        "images out of one update (gradient inversion)",
        _invert_gradient,
        GradientInversion(steps=1000),
        refuses=_refuses("samples"),
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
TELL_NO_SOURCE = ("global", "records")
"""Methods whose models are not asked for records' sources: one model names none, and who knows all
public columns of every client's records knows the sources."""
MEASURE = {
    "zest": "zest",
    "attribute_accuracy": "attribute",
    "source_accuracy": "source",
    "strict_source_accuracy": "source",
    "ssim": "samples",
}
"""The measure that a metric belongs to; others are always given."""
