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
from jaxfl import ClassWeights, LocalTraining, Messages, Model

RUNS, TANGENTS, PASSES = 128, 4, 2
"""Runs, tangents and passes of `gls_unrolled`: fewer than to read a client, enough to see whether
the client is another one."""


def is_simulated(training: LocalTraining, records: int) -> bool:
    """Whether a recipe is one of these."""
    if is_linear(training.optimizer):
        return training.repeats_batches(records)
    return training.steps(records) > 1


def by_simulation(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    training: LocalTraining,
    findings: Sequence[Finding],
) -> Diagnosis:
    """Whether the recipe explains the messages; what else may be the cause is not tried. `findings`
    are what the numbers say."""
    odd = [plugin for plugin in training.plugins if not isinstance(plugin, ClassWeights)]
    if odd:
        evidence = f"no attack reads such clients with {type(odd[0]).__name__}"
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
            "number of epochs or optimiser; drawn batches; other records, model or loss"
        )
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
