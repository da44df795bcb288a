"""Membership (Lyu 2021, section 5.2): the victim's records among as many that it never saw, one attribute unknown in all.

Settings as in `attribute_experiment`, with one phase, one unknown column, its prior and the labels known. Methods:
`mixture`, the paper's, at the last returned model, and cosine matching of the attribute on the records that rank first;
`closed_form`, membership and attribute decoded together. Metrics: `accuracy` (per record), `candidate_accuracy` (per record
and value, as the paper counts), `auc`, `tpr_at_fpr_0.01` (per record), and `attribute_accuracy` (of the records judged
members, as many as the victim has).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    ClosedForm,
    Knowledge,
    Membership,
    candidate_records,
    closed_form,
    gradient_variance,
    judge_presence,
    split_variances,
)
from attacks.metrics import detection
from benchmarks import attribute_experiment
from benchmarks.attribute_experiment import USES, Attack, Victim
from benchmarks.engines import Compiled, run_members
from benchmarks.jobs import Cell, Job, Outcome
from benchmarks.members import Member, classifier, draw, split
from benchmarks.phases import kept_rounds, rounds_of, take_rows
from jaxfl import Messages, Model
from jaxfl.datasets import Dataset

Array = jax.Array

METHODS = ("mixture", "closed_form")
FITTED = 0.9
"""Accuracy on its own records below which a victim has not fitted them."""


def signature(cell: Cell) -> Any:
    """As for the other experiments; all members share one phase."""
    return attribute_experiment.signature(cell), cell["phases"]


def applies(cell: Cell, method: str) -> bool:
    """The closed form is for clients that take one full-batch step a round."""
    return method == "mixture" or (cell["batch_size"] == "full" and cell["epochs"] == 1)


@dataclasses.dataclass(frozen=True)
class Variances:
    """Gradient variance of every candidate `[records, K]` at the last returned model."""

    model: Model

    def __call__(self, inputs: tuple[Member, Messages]) -> Array:
        """Of one member, whose records are the victim's and others."""
        member, messages = inputs
        last = jax.tree.map(lambda a: a[-1], messages.returned)
        return gradient_variance(
            self.model, last, *candidate_records(self.model, _knowledge(member))
        )


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Presence of every record `[records]` and index of its attribute `[records]`, from the messages."""

    model: Model

    def __call__(self, inputs: tuple[Member, Messages]) -> tuple[Array, Array, Array]:
        """Of one member, whose records are the victim's and as many others; and the status."""
        member, messages = inputs
        settings, half = ClosedForm(member.step), len(member.x) // 2
        found = closed_form(
            self.model, messages, _knowledge(member), members=half, settings=settings
        )
        return (
            jnp.asarray(found.presence),
            found.reconstruction.values[0],
            found.reconstruction.status,
        )


def _knowledge(member: Member) -> Knowledge:
    return Knowledge(member.x, member.y, member.columns)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature: one simulation, then both methods on its messages.

    Raises:
      ValueError: on settings that this experiment does not know.
    """
    cell = jobs[0].cell
    for name, only in {"columns": 1, "prior": "known", "labels": "known"}.items():
        if cell[name] != only:
            raise ValueError(
                f"{name}={cell[name]!r}: membership is measured with {name}={only!r} alone"
            )
    data, model = classifier(cell, data_dir)
    places = list(dict.fromkeys((job.cell, job.seed) for job in jobs))
    drawn = [(*draw(data, cell, seed), *_mixed(data, cell, seed)) for cell, seed in places]
    victims, around, (x, y, attribute), truth = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *drawn
    )
    batch_size = None if cell["batch_size"] == "full" else cell["batch_size"]
    rounds, kept = (
        rounds_of(cell["phases"], cell["rounds"]),
        kept_rounds([cell["phases"]], cell["rounds"]),
    )
    messages, train, _ = run_members(
        Victim(model, batch_size, cell["epochs"], cell["rounds"], kept), (victims, around)
    ).results
    used = take_rows(messages, (slice(None), np.asarray([kept.index(t) for t in rounds])))
    everyone, truth = dataclasses.replace(victims, x=x, y=y, truth=attribute), np.asarray(truth)
    for method in dict.fromkeys(job.method for job in jobs):
        if method == "mixture":
            found = run_members(Variances(model), (everyone, messages))
            variances = np.asarray(found.results)
            answers = [
                split_variances(v, seed=seed)
                for v, (_, seed) in zip(variances, places, strict=True)
            ]
            matched = _match(model, cell, everyone, used, answers)
            compile_s, run_s = found.compile_s + matched.compile_s, found.run_s + matched.run_s
            reconstructed = np.asarray(matched.results[0])[:, 0]
        else:
            found = run_members(Decoder(model), (everyone, used), x64=True)
            presence, values, status = map(np.asarray, found.results)
            answers = [judge_presence(p, s) for p, s in zip(presence, status, strict=True)]
            compile_s, run_s = found.compile_s, found.run_s
            right = values == np.asarray(everyone.truth)[:, :, 0]
            reconstructed = np.asarray(
                [r[_first(a)].mean() for r, a in zip(right, answers, strict=True)]
            )
        outcomes: list[Outcome] = []
        for job in (job for job in jobs if job.method == method):
            i = places.index((job.cell, job.seed))
            shared = {
                **{"train_accuracy": float(train[i]), "compile_s": compile_s, "run_s": run_s},
                **{
                    "device": jax.devices()[0].device_kind,
                    "dtype": "float32" if method == "mixture" else "float64",
                },
                **{
                    "note": "; ".join(
                        filter(None, (data.note, _unfitted(method, float(train[i]))))
                    ),
                    "chance": 0.5,
                },
            }
            if answers[i].status:
                outcomes.append(
                    Outcome(job, "accuracy", None, status="diverged", majority=0.5, **shared)
                )
                continue
            most = float(np.bincount(np.asarray(victims.truth[i, :, 0])).max() / victims.y.shape[1])
            outcomes += [
                Outcome(job, metric, value, majority=0.5, **shared)
                for metric, value in _scores(answers[i], truth[i])
            ]
            if np.isfinite(reconstructed[i]):
                outcomes.append(
                    Outcome(
                        job, "attribute_accuracy", float(reconstructed[i]), majority=most, **shared
                    )
                )
            else:
                outcomes.append(
                    Outcome(
                        job, "attribute_accuracy", None, status="diverged", majority=most, **shared
                    )
                )
        yield outcomes


def _mixed(data: Dataset, cell: Cell, seed: int) -> tuple[tuple[Array, ...], Array]:
    """The victim's records and as many held-out ones, in random order: records, labels and attribute; whether they are the
    victim's."""
    rows = split(data, cell, seed)
    if len(rows.test) < len(rows.victim):
        raise ValueError(
            f"records={cell['records']} exceeds the {len(rows.test)} held-out records of {data.name}"
        )
    both = np.concatenate([rows.victim, rows.test[: len(rows.victim)]])
    order = np.random.default_rng(seed).permutation(len(both))
    chosen = both[order]
    attribute = data.values_of(cell["attribute"])[chosen, None]
    return tuple(map(jnp.asarray, (data.x[chosen], data.y[chosen], attribute))), jnp.asarray(
        order < len(rows.victim)
    )


def _first(answer: Membership) -> np.ndarray:
    """The half of the records that rank first: the server knows how many the victim has. A failed answer ranks at will."""
    return np.sort(np.argsort(-answer.scores, kind="stable")[: len(answer.scores) // 2])


def _match(
    model: Model, cell: Cell, everyone: Member, messages: Messages, answers: Sequence[Membership]
) -> Compiled:
    """The paper's attack on the records judged members."""
    rows = jnp.asarray(np.stack([_first(a) for a in answers]))
    chosen = (
        jax.vmap(lambda a, r: a[r])(a, rows) for a in (everyone.x, everyone.y, everyone.truth)
    )
    judged = dataclasses.replace(everyone, **dict(zip(("x", "y", "truth"), chosen, strict=True)))
    phase = tuple(range(messages.rounds.shape[1]))
    attack = Attack(
        "cos",
        model,
        (phase,),
        True,
        True,
        None,
        1,
        tuple((name, cell[name]) for name in USES["cos"]),
    )
    return run_members(attack, (judged, messages))


def _scores(answer: Membership, truth: np.ndarray) -> Iterator[tuple[str, float]]:
    if answer.candidates is not None:
        yield "candidate_accuracy", float((answer.candidates == truth[:, None]).mean())
    yield "accuracy", float((answer.members == truth).mean())
    found = detection(answer.scores, truth)
    yield "auc", found.auc
    yield "tpr_at_fpr_0.01", found.tpr


def _unfitted(method: str, train_accuracy: float) -> str:
    if method != "mixture" or train_accuracy >= FITTED:
        return ""
    return "victim has not fitted its records, so that members' gradients vary like others'"
