"""Methods that name an attribute of each of a victim's records: the table, and how each is called.

A method is `run(view, settings) -> Reconstruction`, a pure function. A guess looks at no messages;
a method that `learns` gets what it learned on public records as `view.learned`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from attacks import (
    GLS,
    AdamDecoding,
    ClosedForm,
    CosMatching,
    GaussNewton,
    Knowledge,
    L2Matching,
    PartialDecoding,
    Reconstruction,
    UnrolledGLS,
    Virtual,
    closed_form,
    cos_matching,
    decode_adam,
    decode_partial,
    gauss_newton,
    gls,
    gls_unrolled,
    l2_lbfgs,
    majority_guess,
    name_by_public_model,
    random_guess,
    statistics,
)
from attacks.attributes.knowledge import answered
from attacks.path import is_linear
from benchmarks.harness.experiment import Method, Metric
from benchmarks.measurements.attributes.learning import Learns, as_they_are, fitted
from benchmarks.scenarios.victims import VictimSettings
from jaxfl import LocalTraining, Model

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class View:
    """All that a method may look at.

    Attributes:
      model: the model that was trained (static).
      messages: the victim's, in the rounds to be used; a guess has None.
      knowledge: what is known of its records.
      training: its recipe if the method simulates it; else one full-batch step of the same length.
      key: draws what is random in the attack.
      learned: what the method learned on public records.
      others: how many of its records are not known (static).
    """

    model: Model
    messages: Any
    knowledge: Knowledge
    training: LocalTraining
    key: Array
    learned: Any = None
    others: int = 0


@dataclasses.dataclass(frozen=True)
class PublicRecords:
    """How many public records an adversary has, of which it knows all."""

    records: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a method reads messages.

    Attributes:
      skips: whether rounds from which the model came back as it went tell it nothing, so that a
        short set of rounds may be filled up with such.
    """

    skips: bool = False


def _guess(values: Sequence[Array]) -> Reconstruction:
    unknown, failed = jnp.asarray(jnp.nan), jnp.stack([(v < 0).any() for v in values]).any()
    return answered(failed, tuple(values), (), objective=unknown, trace=jnp.zeros(0))


def _random(view: View, settings: None) -> Reconstruction:
    known = view.knowledge
    keys = jax.random.split(view.key, len(known.columns))
    pairs = zip(keys, known.columns, strict=True)
    return _guess([random_guess(k, len(known.x), len(c.candidates)) for k, c in pairs])


def _majority(view: View, settings: None) -> Reconstruction:
    known = view.knowledge
    return _guess([majority_guess(jnp.asarray(c.prior), len(known.x)) for c in known.columns])


def _public(view: View, settings: PublicRecords) -> Reconstruction:
    known = view.knowledge
    return _guess([name_by_public_model(view.learned, known.x, known.columns[0].positions)])


def _statistics(view: View, settings: None) -> Reconstruction:
    return _guess([statistics(view.model, view.messages, view.knowledge)[-1]])


def _cos(view: View, settings: CosMatching) -> Reconstruction:
    virtual = dataclasses.replace(settings.virtual, training=view.training)
    sampled = virtual.rounds_per_step
    if sampled is not None and sampled >= len(view.messages):
        virtual = dataclasses.replace(virtual, rounds_per_step=None)
    matching = dataclasses.replace(settings, virtual=virtual)
    return cos_matching(view.model, view.messages, view.knowledge, view.key, settings=matching)


def _l2(view: View, settings: L2Matching) -> Reconstruction:
    virtual = dataclasses.replace(settings.virtual, training=view.training)
    matching = dataclasses.replace(settings, virtual=virtual)
    return l2_lbfgs(view.model, view.messages, view.knowledge, view.key, settings=matching)


def _closed_form(view: View, settings: ClosedForm) -> Reconstruction:
    settings = dataclasses.replace(settings, learning_rate=view.training.learning_rate)
    return closed_form(view.model, view.messages, view.knowledge, settings=settings)


def _gauss_newton(view: View, settings: GaussNewton) -> Reconstruction:
    settings = dataclasses.replace(settings, learning_rate=view.training.learning_rate)
    return gauss_newton(view.model, view.messages, view.knowledge, settings=settings)


def _adam(view: View, settings: AdamDecoding) -> Reconstruction:
    return decode_adam(view.model, view.messages, view.knowledge, settings=settings)


def _partial(view: View, settings: PublicRecords) -> Reconstruction:
    x_public, y_public = view.learned
    partly = PartialDecoding(view.others, view.training)
    return decode_partial(
        view.model, view.messages, view.knowledge, x_public, y_public, settings=partly
    )


def _gls(view: View, settings: GLS) -> Reconstruction:
    settings = dataclasses.replace(settings, training=view.training)
    return gls(view.model, view.messages, view.knowledge, view.key, settings=settings)


def _unrolled(view: View, settings: UnrolledGLS) -> Reconstruction:
    settings = dataclasses.replace(settings, training=view.training)
    return gls_unrolled(view.model, view.messages, view.knowledge, view.key, settings=settings)


def _one_column(settings: VictimSettings) -> str | None:
    if settings.columns > 1:
        return f"columns={settings.columns}: it is measured on one unknown column alone"
    return None


def _known_labels(settings: VictimSettings) -> str | None:
    return "labels='unknown': it needs labels" if settings.labels == "unknown" else None


def _one_column_known_labels(settings: VictimSettings) -> str | None:
    return _one_column(settings) or _known_labels(settings)


def _several_columns(settings: VictimSettings) -> str | None:
    if settings.columns == 1:
        return "columns=1: `closed_form` is exact there"
    return _known_labels(settings)


def _several_steps(settings: VictimSettings) -> str | None:
    return None if settings.several_steps else "one step a round: its training is one gradient"


def _adam_refuses(settings: VictimSettings) -> str | None:
    if settings.training.optimizer is not optax.adam:
        return "training.optimizer='sgd': it reads steps of Adam"
    if settings.several_steps or settings.private:
        return "several steps, or private ones: it reads one full-batch step a round"
    return _one_column_known_labels(settings)


def _partial_refuses(settings: VictimSettings) -> str | None:
    if settings.known in (None, settings.records):
        return f"known={settings.known}: where all records are known, `closed_form` is exact"
    if settings.training.optimizer is not optax.sgd or settings.private:
        return "training.optimizer or epsilon: it reads plain SGD that is not private"
    if settings.several_steps or settings.training.drop_last:
        return "several steps, or records left out: it reads one full-batch step a round"
    return _one_column_known_labels(settings)


def _unrolled_refuses(settings: VictimSettings) -> str | None:
    if settings.private or settings.training.mixup:
        return "epsilon or mixup: it knows neither noise nor pairs of records"
    if settings.training.shuffle and is_linear(settings.training.optimizer):
        return "training.optimizer: where it is linear in gradients, `gls` does the same faster"
    if settings.training.steps(settings.records) == 1:
        return "one step a round: `closed_form` and `decode_adam` are exact there"
    return _one_column(settings)


def _gls_settles(attack: GLS, settings: VictimSettings) -> GLS:
    """Only plain SGD has a path to take points on."""
    plain = settings.training.optimizer is optax.sgd
    return attack if plain else dataclasses.replace(attack, points=1)


def _gls_refuses(settings: VictimSettings) -> str | None:
    training = settings.training
    if training.repeats_batches(settings.records):
        return "training.shuffle: batches that are not drawn leave no noise to whiten by"
    if not is_linear(training.optimizer):
        return "training.optimizer is not linear in gradients, as SGD is with momentum or without"
    plain = training.optimizer is optax.sgd and not settings.private
    exact = _several_steps(settings) if plain else None
    labels = _known_labels(settings) if training.mixup else None
    return exact or labels or _one_column(settings)


METHODS = (
    Method("random", "a blind guess", _random, observes=False),
    Method("majority", "the most frequent value, for every record", _majority, observes=False),
    *(
        Method(
            f"public{count}",
            f"a model from the other columns, trained on {count} public records",
            _public,
            PublicRecords(count),
            refuses=_one_column,
            observes=False,
            learns=Learns(fitted),
        )
        for count in (100, 1000)
    ),
    Method(
        "statistics",
        "the value under which records look most fitted (Lyu 2021, section 4.3)",
        _statistics,
        refuses=_one_column_known_labels,
    ),
    Method(
        "l2_lbfgs",
        "gradient matching in L2 by L-BFGS (DLG)",
        _l2,
        L2Matching(),
        filled=("virtual.training",),
        refuses=_known_labels,
        selects=True,
        explains=True,
        traits=Reading(skips=True),
    ),
    Method(
        "cos",
        "cosine gradient matching (Lyu 2021, Algorithm 1)",
        _cos,
        CosMatching(steps=300),
        filled=("virtual.training",),
        selects=True,
        explains=True,
        traits=Reading(skips=True),
    ),
    Method(
        "closed_form",
        "decoding by least squares, exact for one full-batch step a round",
        _closed_form,
        ClosedForm(),
        filled=("learning_rate",),
        refuses=_one_column,
        selects=True,
        explains=True,
        x64=True,
        traits=Reading(skips=True),
    ),
    Method(
        "decode_partial",
        "decoding of the records that are known, among others, by public ones like these",
        _partial,
        PublicRecords(1000),
        refuses=_partial_refuses,
        learns=Learns(as_they_are),
        selects=True,
        explains=True,
        x64=True,
    ),
    Method(
        "decode_adam",
        "decoding of a client that takes one full-batch step of Adam a round",
        _adam,
        AdamDecoding(),
        refuses=_adam_refuses,
        explains=True,
        selects=True,
        x64=True,
    ),
    Method(
        "cos_unrolled",
        "cosine matching of the client's simulated training",
        _cos,
        CosMatching(steps=300, virtual=Virtual("unrolled", orders=2, rounds_per_step=5)),
        filled=("virtual.training",),
        refuses=_several_steps,
        selects=True,
        explains=True,
        simulates=True,
    ),
    Method(
        "gauss_newton",
        "decoding of several columns of a full-batch client",
        _gauss_newton,
        GaussNewton(learning_rate=0.1),
        filled=("learning_rate",),
        refuses=_several_columns,
        selects=True,
        explains=True,
        traits=Reading(skips=True),
    ),
    Method(
        "gls",
        "decoding whitened by the noise of batches, for any client of SGD or with momentum",
        _gls,
        GLS(LocalTraining(), orders=256, points=8, passes=3),
        filled=("training",),
        settles=_gls_settles,
        refuses=_gls_refuses,
        selects=True,
        explains=True,
        simulates=True,
    ),
    Method(
        "gls_unrolled",
        "the same through the client's simulated training, of an optimiser that is not linear",
        _unrolled,
        UnrolledGLS(LocalTraining()),
        filled=("training",),
        refuses=_unrolled_refuses,
        selects=True,
        explains=True,
        simulates=True,
        x64=True,
    ),
)
METRICS = (
    Metric("accuracy", "records whose value was named exactly", proportion=True),
    Metric("label_accuracy", "records whose label was named, where labels are unknown", True),
)
