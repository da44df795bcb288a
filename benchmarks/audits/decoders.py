"""Which attack reads a recorded client, by what its messages are and by what was told."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import optax

from attacks import (
    GLS,
    AdamDecoding,
    ClosedForm,
    Decoding,
    Knowledge,
    Reconstruction,
    Status,
    UnrolledGLS,
    closed_form,
    decode_adam,
    gls,
    gls_unrolled,
)
from attacks.attributes.candidate_decoding.simulated_client import model_of_gradients
from attacks.diagnosis.unshuffled import read_in_order
from attacks.fit import FitWarning, contradicts_nothing
from benchmarks.audits.optimizers import decay_of, is_adam
from jaxfl import LocalTraining, Messages, Model, Upload
from jaxfl.models.probe import draws_at_random

ORDERS = 64
MOST_OF_ADAM = 1_000
"""Unknowns up to which steps of Adam are looked for where nobody told of any: more take minutes."""


def decode(
    model: Model, messages: Messages, known: Knowledge, training: LocalTraining
) -> tuple[str, Reconstruction]:
    """By a method that is exact for one full-batch step, of SGD at one rate or another in every
    round, or of Adam, if the messages are of such steps, whatever was told; by one that knows the
    noise of batches and uploads, and momentum and decay, or Adam, if those are told; or whose
    batches are not drawn, whatever was told."""
    told = _told(model, messages, known, training)
    weighted = model_of_gradients(model, training, jnp.asarray(known.y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the page tells it
        answers: dict[str, Any] = {}
        for settings in (ClosedForm(), *([ClosedForm(by_round=True)] if len(messages) > 1 else [])):
            answer = closed_form(weighted, messages, known, settings=settings)
            answers.setdefault("closed_form", answer)
            if answer.status == Status.OK:
                return "closed_form", _at_told_rate(answer, weighted, messages, known, training)
        unchecked = answers["closed_form"].status == Status.UNCHECKED
        if unchecked and told == "closed_form":
            answer = answers["closed_form"]
            return "closed_form", _at_told_rate(answer, weighted, messages, known, training)
        if told == "gls":
            batches = GLS(training, orders=ORDERS)
            answers["gls"] = gls(model, messages, known, jax.random.key(0), settings=batches)
            in_order = read_in_order(model, messages, known, answers["gls"], training)
            if in_order is not None:
                return "gls_unrolled", in_order
            if _is_of_recipe(answers["gls"]):
                return "gls", answers["gls"]
        unknowns = len(known.x) * (len(known.columns[0].candidates) - 1)
        if is_adam(training.optimizer) or unknowns <= MOST_OF_ADAM:
            adam = _adam(training)
            answers["decode_adam"] = decode_adam(weighted, messages, known, settings=adam)
            if answers["decode_adam"].status == Status.OK:
                return "decode_adam", answers["decode_adam"]
        if told == "gls_unrolled":
            unrolled, key = UnrolledGLS(training), jax.random.key(0)
            return "gls_unrolled", gls_unrolled(model, messages, known, key, settings=unrolled)
    name = "gls" if "gls" in answers else "closed_form"
    return name, answers[name]


def _at_told_rate(
    answer: Decoding,
    model: Model,
    messages: Messages,
    known: Knowledge,
    training: LocalTraining,
) -> Decoding:
    """The answer, or that of the rate that was told where the one found explains too little, or
    nothing contradicts it: it is one unknown less."""
    if answer.status == Status.OK and answer.fit.explained >= answer.fit.allowed:
        return answer
    settings = ClosedForm(float(training.learning_rate))
    told = closed_form(model, messages, known, settings=settings)
    more = answer.status != Status.OK or told.fit.explained > answer.fit.explained
    return told if told.status == Status.OK and more else answer


def _is_of_recipe(answer: Reconstruction) -> bool:
    """Whether messages are of the recipe that the answer takes for granted, even if noise hides the
    values."""
    hidden = answer.status == Status.UNCHECKED and not contradicts_nothing(answer.fit)
    return bool(answer.status == Status.OK or hidden)


def _adam(training: LocalTraining) -> AdamDecoding:
    """How Adam is decoded: of AdamW its decay is told, and needs the rate."""
    decay = decay_of(training.optimizer)
    return AdamDecoding(weight_decay=decay, learning_rate=training.learning_rate if decay else None)


def _told(model: Model, messages: Messages, known: Knowledge, training: LocalTraining) -> str:
    """The method that reads clients of a model and a recipe."""
    records, random = len(known.x), draws_at_random(model, messages.model_shapes, known.x)
    if is_adam(training.optimizer):
        return "gls_unrolled" if training.steps(records) > 1 or random else "decode_adam"
    if training.repeats_batches(records):
        return "gls_unrolled"
    noised = any(isinstance(plugin, Upload) for plugin in training.plugins)
    plain = training.steps(records) == 1 and training.optimizer is optax.sgd and not noised
    return "closed_form" if plain and not random else "gls"


def as_told(
    method: str, model: Model, messages: Messages, known: Knowledge, training: LocalTraining
) -> bool:
    """Whether a client's messages, which a method reads, are of the steps that it was told. One
    step from no momentum is plain SGD's."""
    if method == "closed_form":
        steps, random = (
            training.steps(len(known.x)),
            draws_at_random(model, messages.model_shapes, known.x),
        )
        return not (is_adam(training.optimizer) or random) and steps == 1
    return method == _told(model, messages, known, training)
