"""A client whose recipe can be simulated alone: several steps of an optimiser that is not linear,
or batches that are not drawn.

Threat model: as of `attacks.diagnosis.causes`, which asks.
"""

import warnings
from collections.abc import Sequence

from attacks.attributes.candidate_decoding.unrolled import UnrolledGLS, gls_unrolled
from attacks.attributes.knowledge import Knowledge
from attacks.diagnosis.advice import UNKNOWN, advice
from attacks.diagnosis.diagnosis import Diagnosis
from attacks.diagnosis.numbers import Finding
from attacks.fit import FitWarning
from attacks.fixed_draws import fixed_key
from attacks.path import is_linear
from jaxfl import ClassWeights, LocalTraining, Messages, Model, Plugin

RUNS, TANGENTS, PASSES = 128, 4, 2
"""Runs, tangents and passes of `gls_unrolled`: fewer than to read a client, enough to see whether
the client is another one."""


def is_simulated(training: LocalTraining, records: int) -> bool:
    """Whether a recipe is one of these."""
    if is_linear(training.optimizer):
        return training.repeats_batches(records)
    in_batches = len(training.batch_sizes(records)) > 1
    return in_batches or (training.steps(records) > 1 and not _unread(training))


def _unread(training: LocalTraining) -> list[Plugin]:
    """Plug-ins of a recipe that `gls_unrolled` does not take."""
    return [plugin for plugin in training.plugins if not isinstance(plugin, ClassWeights)]


def by_simulation(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    training: LocalTraining,
    findings: Sequence[Finding],
) -> Diagnosis:
    """Whether the recipe explains the messages; what else may be the cause is not tried. `findings`
    are what the numbers say."""
    unread = _unread(training)
    if unread:
        evidence = f"no attack reads such clients with {type(unread[0]).__name__}"
        unknown = Finding("cannot be judged", evidence, 0.0)
        return Diagnosis((*findings, unknown), None, "none: the recipe cannot be simulated")
    settings = UnrolledGLS(training, runs=RUNS, tangents=TANGENTS, passes=PASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        key = fixed_key()
        fit = gls_unrolled(model, messages, knowledge, key, settings=settings).fit
    others = [finding for finding in findings if finding.cause != "Adam"]
    if fit.misfit > 1:
        evidence = (
            "this recipe, simulated, does not explain the messages: another rate, batch size, "
            "number of epochs or optimiser; other records, model or loss"
        )
        if training.repeats_batches(len(knowledge.x)):
            evidence += "; drawn batches, or records in another order"
        others = [*others, Finding(UNKNOWN, evidence, 0.5)]
    elif fit.misfit <= 1:
        others = [Finding("as told", "the recipe, simulated, explains the messages", 1.0), *others]
    else:
        evidence = (
            "there are as many unknowns as equations, or the search ended short, or the recipe is "
            "another"
        )
        others = [*others, Finding("cannot be judged", evidence, 0.0)]
    return Diagnosis(tuple(others), fit, advice(others[0].cause, training, knowledge))
