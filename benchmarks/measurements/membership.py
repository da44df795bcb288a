"""Which records are the victim's, of as many that it never saw, one attribute unknown in all? (Lyu
2021, section 5.2; membership inference)

A method here is `run(inputs, settings) -> Answers` for all victims of a group. It is told half the
number of records, which is how many the victim has, and nothing of the attribute. The attribute is
scored on the records judged members. `Judging` is what is asked of a method besides.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    ClosedForm,
    CosMatching,
    Membership,
    Status,
    Virtual,
    candidate_records,
    closed_form,
    cos_matching,
    gradient_variance,
    judge_presence,
    split_variances,
)
from attacks.fit import STATES
from attacks.metrics import accuracy, detection
from benchmarks.harness.engines import Compiled, run_members
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome, by_method
from benchmarks.harness.trees import stack, take
from benchmarks.scenarios import victims
from benchmarks.scenarios.phases import rounds_of
from benchmarks.scenarios.splits import split
from benchmarks.scenarios.streams import Stream, stream
from benchmarks.scenarios.victims import Victim, VictimSettings
from jaxfl import LocalTraining, Messages, Model
from jaxfl.datasets import Dataset

Array = jax.Array

FITTED = 0.9
"""Accuracy on its own records below which a victim has not fitted them."""


@dataclasses.dataclass(frozen=True)
class Judging:
    """Traits of a method.

    Attributes:
      of_fitted: whether it needs a victim that has fitted its records.
    """

    of_fitted: bool = False


class Answers(NamedTuple):
    """Answers about every victim of a group.

    Attributes:
      memberships: who is judged a member.
      values: the attribute of the records judged members, in their order `[victims, records]`; -1
        if the attack failed.
      spent: what it took.
    """

    memberships: list[Membership]
    values: np.ndarray
    spent: Compiled


class Inputs(NamedTuple):
    """What methods are given.

    Attributes:
      model: the model that was trained.
      everyone: the victims, each with its records among as many others; of the attribute nothing
        is there.
      messages: the victims', in the rounds to be used.
      last: the models that the victims returned last.
    """

    model: Model
    everyone: Victim
    messages: Messages
    last: Any


@dataclasses.dataclass(frozen=True)
class Variances:
    """Gradient variance of every candidate `[records, K]` at the last returned model."""

    model: Model

    def __call__(self, inputs: tuple[Victim, Any]) -> Array:
        """Variances for one victim, among whose records are as many others."""
        victim, last = inputs
        known = candidate_records(self.model, victim.knowledge())
        return gradient_variance(self.model, last, *known)


@dataclasses.dataclass(frozen=True)
class Match:
    """The attribute of the records judged members `[records]`, by the paper's attack."""

    model: Model
    settings: CosMatching

    def __call__(self, inputs: tuple[Victim, Messages]) -> Array:
        """Attribute of one victim's records, which are those judged the victim's own."""
        victim, messages = inputs
        virtual = Virtual(training=LocalTraining(victim.training.learning_rate))
        settings = dataclasses.replace(self.settings, virtual=virtual)
        key = stream(victim.key, Stream.ATTACK)
        answer = cos_matching(self.model, messages, victim.knowledge(), key, settings=settings)
        return answer.values[0]


@dataclasses.dataclass(frozen=True)
class Decode:
    """Presence of every record `[records]` and index of its attribute `[records]`, from the
    messages."""

    model: Model
    settings: ClosedForm

    def __call__(self, inputs: tuple[Victim, Messages]) -> tuple[Array, Array, Array]:
        """Presence, attribute and status for one victim, among whose records are as many others."""
        victim, messages = inputs
        training, half = victim.training, len(victim.x) // 2
        step = training.learning_rate * training.steps(half)
        settings = dataclasses.replace(self.settings, learning_rate=step)
        known = victim.knowledge()
        decoded = closed_form(self.model, messages, known, members=half, settings=settings)
        return jnp.asarray(decoded.presence), decoded.values[0], decoded.status


def _mixture(inputs: Inputs, settings: CosMatching) -> Answers:
    varied = run_members(Variances(inputs.model), (inputs.everyone, inputs.last))
    draw = functools.partial(jax.random.bits, dtype=jnp.uint32)  # with 64-bit types on, too
    seeds = np.asarray(jax.vmap(draw)(inputs.everyone.key))
    pairs = zip(np.asarray(varied.results), seeds, strict=True)
    judged = [split_variances(v, seed=int(seed)) for v, seed in pairs]
    rows = jnp.asarray(np.stack([_first(answer) for answer in judged]))
    everyone = inputs.everyone
    chosen = {
        name: jax.vmap(lambda a, r: a[r])(getattr(everyone, name), rows) for name in ("x", "y")
    }
    judged_own = dataclasses.replace(everyone, **chosen)
    matched = run_members(Match(inputs.model, settings), (judged_own, inputs.messages))
    spent = Compiled(None, varied.compile_s + matched.compile_s, varied.run_s + matched.run_s)
    return Answers(judged, np.asarray(matched.results), spent)


def _closed_form(inputs: Inputs, settings: ClosedForm) -> Answers:
    done = run_members(Decode(inputs.model, settings), (inputs.everyone, inputs.messages), x64=True)
    presence, values, status = map(np.asarray, done.results)
    judged = [judge_presence(p, s) for p, s in zip(presence, status, strict=True)]
    named = [v[_first(answer)] for v, answer in zip(values, judged, strict=True)]
    return Answers(judged, np.stack(named), done)


def _full_batch(settings: VictimSettings) -> str | None:
    if settings.training.batch_size is None and settings.training.epochs == 1:
        return _refuses(settings)
    return "the closed form is for clients that take one full-batch step a round"


def _refuses(settings: VictimSettings) -> str | None:
    for name, only in {"columns": 1, "prior": "known", "labels": "known"}.items():
        if getattr(settings, name) != only:
            return f"{name}={getattr(settings, name)!r}: membership is measured with {only!r} alone"
    return None


METHODS = (
    Method(
        "mixture",
        "a mixture of two on gradients' variances, then `cos` (Lyu 2021, section 3.3)",
        _mixture,
        CosMatching(steps=300),
        filled=("virtual",),
        refuses=_refuses,
        traits=Judging(of_fitted=True),
    ),
    Method(
        "closed_form",
        "membership and attribute decoded together",
        _closed_form,
        ClosedForm(),
        filled=("learning_rate",),
        refuses=_full_batch,
        x64=True,
    ),
)
METRICS = (
    Metric("accuracy", "records whose membership was told", True, 0.5),
    Metric("candidate_accuracy", "(record, value) pairs told, as the paper counts", True, 0.5),
    Metric("auc", "area under the curve of membership", True, 0.5),
    Metric(
        "tpr_at_fpr_0.01", "members found where 1 % of the others are taken for members", True, 0.01
    ),
    Metric("attribute_accuracy", "attribute of the records judged members", True),
)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group: one simulation, then all methods on its messages."""
    cell = jobs[0].cell
    settings = cell.settings
    data = victims.records_of(settings, cell.dataset, data_dir)
    places = list(dict.fromkeys((job.cell, job.seed) for job in jobs))
    drawn = [(c.settings, seed) for c, seed in places]
    trained = victims.train(data, drawn, settings.phases)
    mixed = [_mixed(data, s, seed) for s, seed in drawn]
    (x, y, attribute), truth = stack(mixed)
    rounds = tuple(
        sorted({t for name in settings.phases for t in rounds_of(name, settings.rounds)})
    )
    chosen, messages, _ = trained.seen(np.arange(len(places)), rounds)
    everyone = dataclasses.replace(chosen, x=x, y=y, truth=jnp.full_like(attribute, -1))
    last = take(trained.messages.returned, (slice(None), -1))
    for method, attack, wanted in by_method(jobs):
        inputs = Inputs(trained.model, everyone, messages, last)
        answers: Answers = method.run(inputs, attack)
        outcomes: list[Outcome] = []
        for job in wanted:
            i = places.index((job.cell, job.seed))
            facts: dict[str, Any] = {
                "train_accuracy": float(trained.train_accuracy[i]),
                "compile_s": answers.spent.compile_s,
                "run_s": answers.spent.run_s,
                "dtype": "float64" if method.x64 else "float32",
                "note": _note(data, method, trained.train_accuracy[i]),
                "detail": {"scored_records": settings.records},
            }
            values = np.asarray(chosen.truth[i, :, 0])
            known = data.column(job.cell.settings.attribute).values
            levels = {
                "majority": float(np.bincount(values).max() / len(values)),
                "chance": 1 / len(known),
            }
            known_of = np.asarray(truth[i]), np.asarray(attribute[i, :, 0])
            outcomes += _outcomes(job, answers, i, known_of, levels, facts)
        yield outcomes


def _mixed(data: Dataset, settings: VictimSettings, seed: int) -> tuple[tuple[Array, ...], Array]:
    """The victim's records and as many held-out ones, in random order: records with NaN for the
    attribute, labels and attribute; whether they are the victim's."""
    rows = split(data, settings.records, settings.participants, seed)
    if len(rows.test) < len(rows.victim):
        raise ValueError(
            f"records={settings.records} exceeds the {len(rows.test)} held-out records of "
            f"{data.name}"
        )
    both = np.concatenate([rows.victim, rows.test[: len(rows.victim)]])
    order = np.random.default_rng(seed).permutation(len(both))
    chosen = both[order]
    attribute = data.values_of(settings.attribute)[chosen, None]
    x = data.x[chosen]
    x[:, list(data.column(settings.attribute).positions)] = np.nan
    drawn = tuple(map(jnp.asarray, (x, data.y[chosen], attribute)))
    return drawn, jnp.asarray(order < len(rows.victim))


def _first(answer: Membership) -> np.ndarray:
    """The half of the records that rank first: the server knows how many the victim has. A failed
    answer ranks at will."""
    return np.sort(np.argsort(-answer.scores, kind="stable")[: len(answer.scores) // 2])


def _note(data: Dataset, method: Method, train_accuracy: float) -> str:
    unfitted = EXPERIMENT.traits_of(method).of_fitted and train_accuracy < FITTED
    text = "victim has not fitted its records, so that members' gradients vary like others'"
    return "; ".join(filter(None, (data.note, text if unfitted else "")))


def _outcomes(
    job: Job,
    answers: Answers,
    i: int,
    known: tuple[np.ndarray, np.ndarray],
    levels: dict[str, Any],
    facts: dict[str, Any],
) -> Iterator[Outcome]:
    """All metrics; `known`: whose the records are, and their attribute; `levels`: majority and
    chance of the attribute."""
    answer, (truth, attribute) = answers.memberships[i], known
    if answer.status == Status.FAILED:
        yield Outcome(job, "accuracy", None, status="diverged", majority=0.5, **facts)
        return
    ranked = detection(answer.scores, truth)
    scores = {"accuracy": (answer.members == truth).mean(), "auc": ranked.auc}
    scores["tpr_at_fpr_0.01"] = ranked.tpr
    if answer.candidates is not None:
        scores = {"candidate_accuracy": (answer.candidates == truth[:, None]).mean()} | scores
    facts |= {"status": STATES[Status(answer.status)]}
    for metric, value in scores.items():
        guess = job.cell.experiment.metric(metric).chance
        yield Outcome(job, metric, float(value), majority=guess, **facts)
    reconstructed = float(accuracy(answers.values[i], attribute[_first(answer)]))
    yield Outcome(job, "attribute_accuracy", reconstructed, **levels, **facts)


EXPERIMENT = Experiment(
    "membership",
    VictimSettings,
    METHODS,
    METRICS,
    run,
    traced=(
        "attribute",
        "training.learning_rate",
        "epsilon",
        "upload.clip",
        "upload.noise_multiplier",
        "upload.bits",
    ),
    structure=lambda settings: (settings.protected, settings.private),
    traits=Judging,
)
