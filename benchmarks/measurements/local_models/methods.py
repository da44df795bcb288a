"""Methods that make local models out of messages, or answer one question without: the table.

A method is `run(view, settings) -> answer`: a `LocalModels` stands for the clients' own models and
is measured in every way; `Values`, `Sources` and `Images` answer one question without a model. It
is given what the adversary has (`View`); a ceiling is given the federation itself (`Work`). One
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
    Sources,
    Values,
    View,
    local_optima,
    read_each,
)
from benchmarks.scenarios.federations import trained_alone
from jaxfl import LocalTraining, Messages, one_client

Array = jax.Array


def _of_each(one: Callable[[View, int, Any], Any]) -> Callable[[View, Any], LocalModels]:
    """A method that makes one model of each client; of a fitted one its misfit is kept."""

    def run(view: View, settings: Any) -> LocalModels:
        made = [one(view, c, settings) for c in range(view.count)]
        if not isinstance(made[0], LocalModel):
            return LocalModels(made)
        missed = [float(m.unexplained) for m in made]
        return LocalModels([m.params for m in made], missed, any(bool(m.misfit) for m in made))

    return run


def _of_messages(infer: Callable[[Messages], Any]) -> Callable[[View, Any], LocalModels]:
    return _of_each(lambda view, c, settings: infer(view.messages[c]))


def _network(view: View, c: int, settings: Mapping) -> LocalModel:
    return mapping_network(view.messages[c], view.key_of(c), settings=settings)


def _published_network(view: View, c: int, settings: MapsOfClients) -> LocalModel:
    return _network(view, c, settings.of(c))


def _pseudo_records(view: View, c: int, settings: PseudoRecords) -> LocalModel:
    settings = dataclasses.replace(settings, training=view.training[c], local_records=view.sizes[c])
    key = view.key_of(c)
    return pseudo_records(view.model, view.messages[c], key, view.shape, settings=settings)


def _records(view: View, c: int, settings: First) -> Any:
    known, guess = view.known[c], view.decoded(settings).values[c]
    column, x = known.columns[0], np.array(known.x)
    named = np.asarray(column.candidates)[guess]
    x[:, np.asarray(column.positions)] = np.where(guess[:, None] < 0, np.nan, named)
    data = one_client(x, np.asarray(known.y), id=c)
    key = jax.random.fold_in(view.key_of(c), c)  # the client's own batches are not known
    steps, fit = view.settings.optimum_steps, view.settings.optimum_fit
    return trained_alone(view.model, view.start, data, view.training[c], key, steps, fit)


def _majority(view: View, settings: None) -> Values:
    def one(known: Knowledge) -> np.ndarray:
        return np.full(len(known.x), int(np.argmax(np.asarray(known.columns[0].prior))))

    return Values([one(known) for known in view.known])


def _cos(view: View, settings: First) -> Values:
    def one(c: int) -> Reconstruction:
        virtual, messages = Virtual(training=view.training[c]), view.first(c, settings.messages)
        matching, key = dataclasses.replace(settings.attack, virtual=virtual), view.key_of(c)
        return cos_matching(view.model, messages, view.known[c], key, settings=matching)

    return read_each(view, one)


def _vote(view: View, settings: None) -> Sources:
    vote = majority_of_rounds(view.model, view.returned, *view.asked)
    return Sources([np.asarray(vote.sources)])


def _best_round(view: View, settings: None) -> Sources:
    vote = majority_of_rounds(view.model, view.returned, *view.asked)
    return Sources(list(np.asarray(vote.rounds)))


def _drop(view: View, settings: None) -> Sources:
    return Sources([np.asarray(largest_drop(view.model, view.returned, *view.asked))])


def _drop_lda(view: View, settings: None) -> Sources:
    named = largest_drop(view.model, view.returned, *view.asked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # its score tells whether answers are lost
        return Sources([by_discriminants(named, view.asked[0])])


def _decode_sources(view: View, settings: FirstMessages) -> Sources:
    messages = [view.first(c, settings.messages) for c in range(view.count)]
    training = view.training[int(np.argmax(view.sizes))]
    x, y = view.asked
    key = view.key_of(view.count)  # of no client's own attack
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the row tells it
        decoded = decode_sources(view.model, messages, view.sizes, x, y, key, training=training)
    return Sources([np.asarray(decoded.sources)], decoded.fit)


def _invert_gradient(view: View, settings: GradientInversion) -> Images:
    """Images out of each client's first update."""

    def one(c: int) -> Array:
        batch = min(view.training[c].batch_size or view.sizes[c], view.sizes[c])
        first, key = view.first(c, 1), view.key_of(c)
        return invert_gradient(view.model, first, view.shape, batch, key, settings=settings).images

    return Images([one(c) for c in range(view.count)])


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
        _of_each(lambda view, c, _: view.final),
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
        _of_each(lambda view, c, _: view.isolate(c)),
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
        lambda view, settings: view.decoded(settings),
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
    Metric(
        "mape",
        "mean absolute error on the client's records, relative to the targets",
        less_is_better=True,
    ),
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
