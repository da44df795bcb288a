"""What a client's messages say of the client: how it trains, and what it does to what it sends.

Threat model: that of an honest-but-curious server whose attack was told that no answer explains the
messages (`attacks.fit`). It looks at the numbers themselves, and tries what most often is wrong.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize

from attacks.attributes.candidate_decoding.closed_form import ClosedForm, closed_form
from attacks.attributes.knowledge import Knowledge, check_knowledge
from attacks.diagnosis.advice import BY_ROUND, DRAWN, IN_ORDER, NO_STEP, UNCHANGED, UNKNOWN, advice
from attacks.diagnosis.diagnosis import Diagnosis
from attacks.diagnosis.exchanged import exchanged
from attacks.diagnosis.numbers import Finding, numbers_say
from attacks.diagnosis.shares import (
    SMOOTHING_ALONE,
    Left,
    adds_much,
    is_smoothing,
    named,
    shares_of,
)
from attacks.diagnosis.simulated import by_simulation, is_simulated
from attacks.diagnosis.steps import Otherwise, means, moved, recipes, shown
from attacks.diagnosis.structure import Structure, activations, layouts
from attacks.diagnosis.trials import RecipeTrial, decoded
from attacks.diagnosis.unshuffled import read_in_order
from attacks.fit import Fit, FitWarning, Status
from attacks.path import at_place
from jaxfl import LocalTraining, Messages, Model
from jaxfl.domains import checked
from jaxfl.models import check_parameters
from jaxfl.plugins import overriding

Array = jax.Array
COMPLETE = 3
"""Misfit that a cause may leave to be called the one."""
NEARLY, FAR_BETTER = 0.99, 20
"""Share of what is left that names a cause all the same, where the rate alone leaves so many times
as much: values that were read wrongly blur what is left."""
SIMILAR, NOWHERE = 0.4, 0.02
"""Share of what is left that points along the gradient after several steps; and along any direction
that was tried, if it is noise."""
NEWTON = 4
"""Steps to the size of a cause."""
ONE_NUMBER = {"weight decay": "decay", "label smoothing": "smoothing"}
"""Causes that one number describes."""
NEARBY, OFF, TRIES = 30, 1.3, 8
"""Misfit up to which the number is looked for near what least squares say; how many times as large
it may be, or as small; and how often it is tried."""
ALIKE_NOISE = 2
"""Energies of noise that are not told apart: batches of half the size, or twice the rate."""
REDUCED = 0.03
"""Part of an update's length that products whose factors keep ten bits may leave: .0085 on an H200,
.004 to .014 emulated."""


@checked
def diagnose(
    model: Model,
    messages: Messages,
    knowledge: Knowledge | None = None,
    training: LocalTraining | None = None,
) -> Diagnosis:
    """What a client's messages say of the client.

    Every recipe that is tried is compiled: if you diagnose many clients in one process, call
    `jax.clear_caches` now and then. What it draws comes from a fixed key (`attacks.fixed_draws`).

    Args:
      model: the model.
      messages: the client's.
      knowledge: what is known of its records, or None: then only the numbers themselves are looked
        at.
      training: the recipe that the client was told, or None for one full-batch step of any rate. A
        number of steps can be told only of a known rate: give `LocalTraining(rate)` at least.

    Returns:
      A `Diagnosis`, whose findings are the likeliest first.

    Raises:
      ValueError: as `closed_form`, of the model, messages and knowledge.
    """
    check_parameters(model, messages.model_shapes, "messages")
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(messages)):
        diverged = Finding("diverged", "the messages hold NaN or infinity", 1.0)
        return Diagnosis((diverged,), None, "none: no attack reads a model that diverged")
    findings = numbers_say(messages)
    if any(finding.cause == UNCHANGED for finding in findings):
        return Diagnosis(tuple(findings), None, advice(UNCHANGED, LocalTraining(), None))
    if knowledge is None:
        return Diagnosis(tuple(findings), None, "give `knowledge` to try recipes")
    knowledge = check_knowledge(model, messages, knowledge)
    told = training
    if training is not None and is_simulated(training, len(knowledge.x)):
        simulated = by_simulation(model, messages, knowledge, training, findings)
        misfit = simulated.fit is not None and bool(simulated.fit.misfit > 1)
        if training.shuffle or not misfit:
            return simulated
        return _if_drawn(model, messages, knowledge, training)
    if training is None:
        training = LocalTraining(float(decoded(model, messages, knowledge).learning_rate))
    trial = RecipeTrial(model, messages, knowledge, training)
    findings, fit = _judged(trial, findings, told is not None)
    return Diagnosis(tuple(findings), fit, advice(findings[0].cause, training, knowledge))


def _judged(trial: RecipeTrial, findings: list[Finding], told: bool) -> tuple[list[Finding], Fit]:
    """What accounts for the messages of a client whose rate was told or not, the likeliest first,
    and the recipe's fit; `findings` are what the numbers say."""
    fit = trial.fit()
    # The sizes of changes are a hint; what explains the messages exactly is none.
    hints = [finding for finding in findings if finding.cause == "Adam"]
    certain = [finding for finding in findings if finding not in hints]
    known = trial.model, trial.messages, trial.knowledge, trial.decoded
    in_order = read_in_order(*known, trial.training)
    if in_order is not None:
        evidence = "the same batches in every pass, as the records stand, explain the messages"
        findings, fit = [Finding(IN_ORDER, evidence, 1.0), *certain], in_order.fit
    elif fit.misfit > 1:
        causes = _causes(trial, fit, surprised=not findings)
        causes = [_of_no_rate(f) if not told and f.cause == UNKNOWN else f for f in causes]
        exact = bool(causes) and causes[0].share > NEARLY
        # An optimiser that nothing here tries is hint enough of what is not found.
        causes = [f for f in causes if not (hints and f.cause == UNKNOWN)]
        findings = [*certain, *causes, *hints] if exact else [*certain, *hints, *causes]
    elif fit.misfit <= 1 and fit.allowed > 0:
        findings = [Finding("as told", "the recipe explains the messages", 1.0), *certain]
    else:
        evidence = (
            "rounding and noise may be as large as the messages"
            if fit.allowed <= 0
            else "there are as many unknowns as equations, or records or labels are mixed"
        )
        findings += [Finding("cannot be judged", evidence, 0.0)]
    return findings, fit


def _if_drawn(
    model: Model, messages: Messages, knowledge: Knowledge, training: LocalTraining
) -> Diagnosis:
    """Of a client that was told not to shuffle, if it does."""
    drawn = diagnose(model, messages, knowledge, dataclasses.replace(training, shuffle=True))
    if drawn.findings[0].cause != "as told":
        return drawn
    finding = Finding(DRAWN, "batches that are drawn explain the messages", 1.0)
    return Diagnosis((finding, *drawn.findings[1:]), drawn.fit, advice(DRAWN, training, knowledge))


def _causes(trial: RecipeTrial, fit: Fit, surprised: bool) -> list[Finding]:
    """What accounts for what is left, the likeliest first. Other structures of the model
    are tried where the numbers themselves say nothing (`surprised`): that takes a minute, as other
    recipes do."""
    shares, left = shares_of(trial)
    if "label smoothing" in shares and not is_smoothing(trial, left):
        del shares["label smoothing"]
    one_step = trial.training.steps(len(trial.knowledge.x)) == 1
    whole = _of_one_step(trial, fit, shares, left) if one_step else None
    whole = whole or (exchanged(trial) if surprised else None)
    if whole is not None:
        return [whole]
    steps = float(trial.decoded.learning_rate) / float(trial.training.learning_rate)
    if one_step and shares["learning rate"] > SIMILAR and steps > 1:
        path = (
            f"updates point about where one full-batch gradient does, as far as {steps:.3g} steps "
            f"of rate {float(trial.training.learning_rate):g} go"
        )
        unknown = f"{path}: batches, epochs or momentum"
        several = Finding("several steps", unknown, shares["learning rate"])
        return _explaining(_recipes(trial, steps, path)) or [several]
    if max(shares.values()) < NOWHERE:
        return [_noise(left.length)]
    tried = [] if one_step else [_otherwise(trial, steps)]
    tried += [_structures(trial)] if surprised else []
    for candidates in tried:
        explaining = _explaining(candidates)
        if explaining:
            return explaining
    # After several steps a share tells less: the order of records and the path blur it.
    large = [(name, s) for name, s in shares.items() if one_step and adds_much(name, s, shares)]
    evidence = "what is left is of nothing that was tried: other records, model, loss or optimiser"
    unknown_cause = Finding(UNKNOWN, evidence, 0.5)
    partial = [named(trial, name, share, left) for name, share in large]
    return sorted([*partial, unknown_cause], key=lambda finding: -finding.share)


def _of_one_step(
    trial: RecipeTrial, fit: Fit, shares: dict[str, float], left: Left
) -> Finding | None:
    """What accounts for all that one full-batch step leaves, but for values that were read
    wrongly."""
    misfit, rate = float(fit.misfit), shares["learning rate"]
    for name, share in shares.items():
        better = name != "learning rate" and 1 - share < (1 - rate) / FAR_BETTER
        if misfit * (1 - share) < COMPLETE or (share > NEARLY and better):
            return named(trial, name, share, left)
    return _by_round(trial)


def _by_round(trial: RecipeTrial) -> Finding | None:
    """One full-batch step, whose rate is another in every round."""
    settings = ClosedForm(by_round=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        answer = closed_form(trial.model, trial.messages, trial.knowledge, settings=settings)
    if answer.status != Status.OK:
        return None
    rates = np.asarray(answer.learning_rate)
    least, most = rates[rates > 0].min(), rates.max()
    evidence = (
        f"one full-batch step of rates between {least:.3g} and {most:.3g} explains the messages: "
        "updates are clipped, or the rate follows a schedule"
    )
    return Finding(BY_ROUND, evidence, 1.0)


def _of_no_rate(unknown: Finding) -> Finding:
    """What cannot be told where nobody told the rate."""
    evidence = (
        "one full-batch step of no rate explains the messages: several steps (batches, epochs, "
        "momentum), or other records, model or loss"
    )
    return Finding(NO_STEP, evidence, unknown.share)


def _noise(level: float) -> Finding:
    evidence = f"what is left has no direction; it is {level:.2g} of the updates' length"
    if level < REDUCED:
        evidence += ". Products in TensorFloat-32, accelerators' default, leave as much"
    return Finding("noise", evidence, 1.0)


class _Candidate(NamedTuple):
    """A recipe that may be the client's.

    Attributes:
      finding: what it is called.
      trial: of it.
    """

    finding: Finding
    trial: RecipeTrial


def _explaining(candidates: Iterable[_Candidate]) -> list[Finding]:
    """Findings that explain the messages: of candidates in order of their noise, the first that the
    messages do not contradict, and those that cannot be told from it by their noise. As many epochs
    of the batches that were told come first, another rate last. Where none explains them, the
    nearest of those that exchange a step's gradient, if it leaves less than `COMPLETE`."""
    fitting: dict[str, tuple[Finding, float]] = {}
    nearly: list[tuple[float, Finding]] = []
    for finding, trial in candidates:
        if fitting and finding.cause not in ("epochs", "learning rate"):
            continue
        fit = trial.fit()
        misfit, noise = float(fit.misfit), 1 - float(fit.allowed)
        least = min((noise for _, noise in fitting.values()), default=np.inf)
        if misfit <= 1 and noise <= ALIKE_NOISE * least:
            fitting.setdefault(finding.cause, (finding, noise))
        elif misfit < COMPLETE and any(isinstance(p, Otherwise) for p in trial.training.plugins):
            nearly.append((misfit, finding))  # values that were read wrongly blur it
    order = sorted(fitting, key=lambda cause: (cause != "epochs", cause == "learning rate"))
    best = [finding for _, finding in sorted(nearly, key=lambda pair: pair[0])[:1]]
    return [fitting[cause][0] for cause in order] or best


def _recipes(trial: RecipeTrial, steps: float, path: str) -> Iterator[_Candidate]:
    """Recipes of several steps."""
    for cause, name, recipe in recipes(trial.training, len(trial.knowledge.x), steps):
        evidence = f"{path}; {name} would explain them" if path else f"{name} explains the messages"
        yield _Candidate(Finding(cause, evidence, 1.0), dataclasses.replace(trial, training=recipe))


def _variants(trial: RecipeTrial) -> Iterator[_Candidate]:
    """The recipe as told, with weight decay or another loss, as much of it as what is left says: by
    Newton's method, since the client's path changes with it."""
    classes, training = trial.model.classes, trial.training
    if classes is None or overriding("step_gradient", training.plugins):
        return
    step = float(training.learning_rate) * trial.length
    for cause in ("weight decay", "label smoothing", "class weights"):
        plugin = Otherwise(0.0, 0.0, (1.0,) * classes)
        for _ in range(NEWTON):
            varied = _with_plugin(trial, plugin)
            alone = SMOOTHING_ALONE if cause == "label smoothing" else cause
            more = shares_of(varied)[1].coefficients[alone] / step
            if not np.isfinite(more).all():
                break
            plugin = moved(plugin, cause, more.tolist())
        if means(plugin, cause):
            plugin = _nearest(trial, plugin, cause)
            evidence = f"{cause} {shown(plugin, cause)} explains the messages"
            yield _Candidate(Finding(cause, evidence, 1.0), _with_plugin(trial, plugin))


def _nearest(trial: RecipeTrial, plugin: Otherwise, cause: str) -> Otherwise:
    """The number near this one with which a cause explains the messages best. Where values were
    read wrongly, least squares are some per cent off, and noise may be less than that."""
    if cause not in ONE_NUMBER or not 1 < float(_with_plugin(trial, plugin).fit().misfit) < NEARBY:
        return plugin
    field = ONE_NUMBER[cause]
    size = float(getattr(plugin, field))

    def sized(times: float) -> dict[str, Any]:
        return {field: times * size}

    def misfit(times: float) -> float:
        varied = dataclasses.replace(plugin, **sized(times))
        return float(np.log(_with_plugin(trial, varied).fit().misfit))

    best = scipy.optimize.minimize_scalar(
        misfit, bounds=(1 / OFF, OFF), method="bounded", options={"maxiter": TRIES}
    )
    return dataclasses.replace(plugin, **sized(float(best.x)))


def _with_plugin(trial: RecipeTrial, plugin: Otherwise) -> RecipeTrial:
    training = dataclasses.replace(trial.training, plugins=(*trial.training.plugins, plugin))
    return dataclasses.replace(trial, training=training)


def _otherwise(trial: RecipeTrial, steps: float) -> Iterator[_Candidate]:
    """What may differ from several steps as told, in the order of its noise."""
    every = list(_recipes(trial, steps, ""))
    yield from _of_another_rate(trial, steps)
    yield from (each for each in every if each.trial.training.batch_size is None)
    yield from _variants(trial)
    yield from _leaving_less(trial, layouts(trial.model, trial.messages))
    yield from (each for each in every if each.trial.training.batch_size is not None)


def _of_another_rate(trial: RecipeTrial, steps: float) -> Iterator[_Candidate]:
    """Several full-batch steps as told at another rate, by Newton's method: the path, and how far
    it leads, change with it."""
    if trial.training.batch_size is not None:
        return
    rate = float(trial.training.learning_rate) * steps / trial.length
    for _ in range(NEWTON):
        faster = dataclasses.replace(trial.training, learning_rate=rate)
        varied = dataclasses.replace(trial, training=faster)
        rate += float(shares_of(varied)[1].coefficients["learning rate"][0]) / trial.length
        if not 0 < rate < np.inf:
            return
    faster = dataclasses.replace(trial.training, learning_rate=rate)
    told = Finding("learning rate", f"the rate {rate:.4g} explains the messages", 1.0)
    yield _Candidate(told, dataclasses.replace(trial, training=faster))


def _structures(trial: RecipeTrial) -> Iterator[_Candidate]:
    yield from _leaving_less(trial, layouts(trial.model, trial.messages))
    yield from _leaving_less(trial, activations(trial.model, trial.messages))


def _leaving_less(trial: RecipeTrial, structures: Iterable[Structure]) -> Iterator[_Candidate]:
    """Structures that leave less of three rounds than the one that was told."""

    def residual(model: Model, messages: Messages) -> float:
        seen = messages.select(np.asarray(messages.rounds)[:3].tolist())
        return float(decoded(model, at_place(seen, trial.path.centre), trial.knowledge).residual)

    plain = residual(trial.model, trial.messages)
    for cause, name, model, messages in structures:
        left = residual(model, messages)
        if left < NEARLY * plain:
            evidence = f"{name} leaves {left:.2g} in place of {plain:.2g}"
            varied = dataclasses.replace(trial, model=model, messages=messages)
            yield _Candidate(Finding(cause, evidence, 1 - left / plain), varied)
