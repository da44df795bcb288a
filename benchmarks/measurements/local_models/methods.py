"""Methods that make local models out of messages, or answer one question without: the table.

A method is `run(seen, settings) -> answer`: a `LocalModels` stands for the clients' own models and
is measured in every way; `Values`, `Sources` and `Images` answer one question without a model. It
is given what the adversary has (`Seen`); a ceiling is given the federation itself (`Work`). One
that names sources says so in its row (`Modelling(answers="source")`): it is given the records.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from attacks import (
    GLS,
    CosMatching,
    GradientInversion,
    Knowledge,
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
from benchmarks.measurements.local_models.work import (
    First,
    FirstMessages,
    Images,
    LocalModels,
    LocalModelSettings,
    MapsOfClients,
    Modelling,
    Seen,
    Sources,
    Values,
    local_optima,
    read_each,
)
from benchmarks.scenarios.federations import trained_alone
from jaxfl import LocalTraining, Messages, one_client

Array = jax.Array


def _of_each(one: Callable[[Seen, int, Any], Any]) -> Callable[[Seen, Any], LocalModels]:
    """A method that makes one model of each client; of a fitted one its misfit is kept."""

    def run(seen: Seen, settings: Any) -> LocalModels:
        made = [one(seen, c, settings) for c in range(seen.count)]
        if not isinstance(made[0], LocalModel):
            return LocalModels(made)
        missed = [float(m.unexplained) for m in made]
        return LocalModels([m.params for m in made], missed, any(bool(m.misfit) for m in made))

    return run


def _of_messages(infer: Callable[[Messages], Any]) -> Callable[[Seen, Any], LocalModels]:
    return _of_each(lambda seen, c, settings: infer(seen.messages[c]))


def _network(seen: Seen, c: int, settings: Mapping) -> LocalModel:
    return mapping_network(seen.messages[c], seen.key_of(c), settings=settings)


def _published_network(seen: Seen, c: int, settings: MapsOfClients) -> LocalModel:
    return _network(seen, c, settings.of(c))


def _pseudo_records(seen: Seen, c: int, settings: PseudoRecords) -> LocalModel:
    settings = dataclasses.replace(settings, training=seen.training[c], local_records=seen.sizes[c])
    key = seen.key_of(c)
    return pseudo_records(seen.model, seen.messages[c], key, seen.shape, settings=settings)


def _records(seen: Seen, c: int, settings: First) -> Any:
    known, guess = seen.known[c], seen.decoded(settings).values[c]
    column, x = known.columns[0], np.array(known.x)
    named = np.asarray(column.candidates)[guess]
    x[:, np.asarray(column.positions)] = np.where(guess[:, None] < 0, np.nan, named)
    data = one_client(x, np.asarray(known.y), id=c)
    key = jax.random.fold_in(seen.key_of(c), c)  # the client's own batches are not known
    steps, fit = seen.settings.optimum_steps, seen.settings.optimum_fit
    return trained_alone(seen.model, seen.start, data, seen.training[c], key, steps, fit)


def _majority(seen: Seen, settings: None) -> Values:
    def one(known: Knowledge) -> np.ndarray:
        return np.full(len(known.x), int(np.argmax(np.asarray(known.columns[0].prior))))

    return Values([one(known) for known in seen.known])


def _cos(seen: Seen, settings: First) -> Values:
    def one(c: int) -> Reconstruction:
        virtual, messages = Virtual(training=seen.training[c]), seen.first(c, settings.messages)
        matching, key = dataclasses.replace(settings.attack, virtual=virtual), seen.key_of(c)
        return cos_matching(seen.model, messages, seen.known[c], key, settings=matching)

    return read_each(seen, one)


def _vote(seen: Seen, settings: None) -> Sources:
    vote = majority_of_rounds(seen.model, seen.returned, *seen.asked)
    return Sources([np.asarray(vote.sources)])


def _best_round(seen: Seen, settings: None) -> Sources:
    vote = majority_of_rounds(seen.model, seen.returned, *seen.asked)
    return Sources(list(np.asarray(vote.rounds)))


def _drop(seen: Seen, settings: None) -> Sources:
    return Sources([np.asarray(largest_drop(seen.model, seen.returned, *seen.asked))])


def _drop_lda(seen: Seen, settings: None) -> Sources:
    named = largest_drop(seen.model, seen.returned, *seen.asked)
    return Sources([by_discriminants(named, seen.asked[0])])


def _decode_sources(seen: Seen, settings: FirstMessages) -> Sources:
    messages = [seen.first(c, settings.messages) for c in range(seen.count)]
    training = seen.training[int(np.argmax(seen.sizes))]
    x, y = seen.asked
    key = seen.key_of(seen.count)  # of no client's own attack
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the row tells it
        decoded = decode_sources(seen.model, messages, seen.sizes, x, y, key, training=training)
    return Sources([np.asarray(decoded.sources)], decoded.fit)


def _invert_gradient(seen: Seen, settings: GradientInversion) -> Images:
    """Images out of each client's first update."""

    def one(c: int) -> Array:
        batch = min(seen.training[c].batch_size or seen.sizes[c], seen.sizes[c])
        first, key = seen.first(c, 1), seen.key_of(c)
        return invert_gradient(seen.model, first, seen.shape, batch, key, settings=settings).images

    return Images([one(c) for c in range(seen.count)])


def _refuses(measure: str, decodes: bool = False) -> Callable[[LocalModelSettings], str | None]:
    """Why a method that answers one question, or reconstructs records, cannot be used."""

    def reason(settings: LocalModelSettings) -> str | None:
        if decodes and settings.batch_norm:
            return "batch_norm=True: records are reconstructed from models that do not mix them"
        if measure not in settings.measures:
            return f"measures={','.join(settings.measures)}: it answers {measure!r} alone"
        return None

    return reason


def _answers(measure: Any, decodes: bool = False) -> dict[str, Any]:
    """Fields of a `Method` that answers one question."""
    return {"refuses": _refuses(measure, decodes), "traits": Modelling(answers=measure)}


DECODING = First(10, GLS(LocalTraining(), orders=8, passes=3, layers=1))
FILLED_DECODING = ("attack.training",)
A_TENTH = 0.1
"""Part of the step size at which other models are inverted, as in the paper."""
METHODS = (
    Method(
        "global",
        "the shared model after the last round",
        _of_each(lambda seen, c, _: seen.final),
        observes=False,
        traits=Modelling(names_sources=False, inversion_scale=A_TENTH),
    ),
    Method(
        "last",
        "the client's last returned model",
        _of_messages(last_returned),
        traits=Modelling(inversion_scale=A_TENTH),
    ),
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
        traits=Modelling(names_sources=False, uses_decoded=True),
    ),
    Method(
        "isolated",
        "what a server gets that sends the client its own model back in every round",
        _of_each(lambda seen, c, _: seen.isolate(c)),
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
        **_answers("attribute"),
        observes=False,
    ),
    Method(
        "cos",
        "cosine gradient matching (Lyu 2021, Algorithm 1)",
        _cos,
        First(5, CosMatching(steps=300)),
        filled=("attack.virtual",),
        **_answers("attribute"),
        explains=True,
    ),
    Method(
        "gls",
        "decoding whitened by the noise of batches",
        lambda seen, settings: seen.decoded(settings),
        DECODING,
        filled=FILLED_DECODING,
        **_answers("attribute", decodes=True),
        explains=True,
        simulates=True,
    ),
    Method("vote", "the client of least loss in most rounds", _vote, **_answers("source")),
    Method(
        "best_round",
        "the same in the round that scores best, an oracle's choice",
        _best_round,
        **_answers("source"),
        oracle=True,
    ),
    Method("drop", "the client whose training lowers the loss most", _drop, **_answers("source")),
    Method(
        "drop_lda",
        "linear discriminants learned from its answers",
        _drop_lda,
        **_answers("source"),
    ),
    Method(
        "decode_sources",
        "every record's weight in every message",
        _decode_sources,
        FirstMessages(20),
        **_answers("source", decodes=True),
        explains=True,
    ),
    Method(
        "invert_gradient",
        "images out of one update (gradient inversion)",
        _invert_gradient,
        GradientInversion(steps=1000),
        **_answers("samples"),
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
