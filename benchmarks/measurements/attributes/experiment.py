"""How methods are measured on victims: one simulation for all, one compiled call for each."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import Reconstruction, Status
from attacks.fit import STATES
from attacks.metrics import accuracy, majority_rate
from benchmarks.harness.engines import Compiled, run_members
from benchmarks.harness.experiment import Experiment, Method
from benchmarks.harness.jobs import Job, Outcome, Value, by_method
from benchmarks.harness.trees import join, stack, take
from benchmarks.measurements.attributes.methods import METHODS, METRICS, Reading, View
from benchmarks.measurements.attributes.uncommon import NULL_STATUS, UNCOMMON, uncommon
from benchmarks.scenarios import victims
from benchmarks.scenarios.imputation import imputed
from benchmarks.scenarios.phases import rounds_of
from benchmarks.scenarios.splits import public_rows
from benchmarks.scenarios.streams import Stream, stream
from benchmarks.scenarios.victims import Run, Victim, VictimSettings
from jaxfl import LocalTraining, Messages, Model
from jaxfl.datasets import Dataset

Array = jax.Array


MOST_PADDED = 300
"""Records of a client, at most, whose phases are filled up to one length: a loop for each takes
seconds to compile, and rounds that tell nothing as long to run as others, seconds of more."""


@dataclasses.dataclass(frozen=True)
class Attack:
    """Runs one method on a victim and its messages. Holds nothing that the method does not use, so
    that cells share compiled programs.

    Attributes:
      method: its record.
      settings: its settings.
      model: the model.
      phases: places of each phase's rounds among the messages.
      prior: whether the adversary knows the attribute's distribution.
      labels: whether it knows the labels.
    """

    method: Method
    settings: Any
    model: Model
    phases: tuple[tuple[int, ...], ...]
    prior: bool
    labels: bool

    def __call__(self, inputs: tuple[Victim, Messages | None, Any]) -> tuple[Any, ...]:
        """Accuracy, accuracy of the labels, objective, status and fit, each `[phases]`, and who is
        named of those whose value is uncommon (`uncommon`); of a guess, which is given no messages,
        `[1]`."""
        victim, messages, learned = inputs
        knowledge, key = (
            victim.knowledge(self.prior, self.labels),
            stream(victim.key, Stream.ATTACK),
        )

        def one_phase(seen: Messages | None) -> tuple[Any, ...]:
            recipe, others = victim.training, victim.others
            view = View(self.model, seen, knowledge, recipe, key, learned, others)
            answer = self.method.run(view, self.settings)
            if not isinstance(answer, Reconstruction):
                array = isinstance(answer, jax.Array)
                kind = "an array" if array else f"a {type(answer).__name__}"
                raise TypeError(f"method {self.method.name!r} gave {kind}, no Reconstruction")
            unknown = jnp.asarray(jnp.nan)
            labels = (
                unknown if answer.labels is None else accuracy(answer.labels, victim.known_labels)
            )
            values = jnp.stack(answer.values, 1)
            right = accuracy(values.reshape(-1), victim.truth.reshape(-1))
            candidates = max(len(column.candidates) for column in victim.columns)
            rare = uncommon(values, victim.truth, candidates)
            return right, labels, answer.objective, answer.status, answer.fit, rare

        if messages is None:
            return jax.tree.map(lambda a: jnp.asarray(a)[None], one_phase(None))
        drawn = getattr(getattr(self.settings, "virtual", None), "rounds_per_step", None)
        skips = EXPERIMENT.traits_of(self.method).skips and drawn is None
        padded = skips and len(victim.x) <= MOST_PADDED
        return over_phases(one_phase, messages, self.phases, padded=padded)


def over_phases(
    attack: Any, messages: Messages, phases: tuple[tuple[int, ...], ...], *, padded: bool = False
) -> Any:
    """`attack` on every phase `[phases]`; phases of equal length share one compiled loop, and all
    do if they are `padded` by rounds from which the model came back as it went, where these tell
    the attack nothing."""
    results: list[Any] = [None] * len(phases)
    lengths = {max(map(len, phases))} if padded else {len(p) for p in phases}
    for length in lengths:
        same = [i for i, p in enumerate(phases) if padded or len(p) == length]
        rows = jnp.asarray([phases[i] + phases[i][-1:] * (length - len(phases[i])) for i in same])
        present = jnp.asarray([[t < len(phases[i]) for t in range(length)] for i in same])
        answers = jax.lax.map(lambda p: attack(_still(take(messages, p[0]), p[1])), (rows, present))
        for j, i in enumerate(same):
            results[i] = take(answers, j)
    return stack(results)


def _still(messages: Messages, present: jax.Array) -> Messages:
    """Messages whose model came back as it went but in these rounds `[rounds]`."""
    back = [messages.returned, messages.received]
    returned = jax.tree.map(lambda a, b: jax.vmap(jnp.where)(present, a, b), *back)
    return dataclasses.replace(messages, returned=returned)


def phases_of(job: Job) -> tuple[str, ...]:
    """Names of the sets of rounds that a job may use; a method without an objective takes their
    union too."""
    settings, method = job.cell.settings, job.how
    if not method.observes:
        return ()
    simulated = method.simulates and settings.simulated_phases
    names = settings.simulated_phases if simulated else settings.phases
    return (*names, "+".join(names)) if not method.selects and len(names) > 1 else names


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group: one simulation for all methods, then one compiled call per method."""
    cell = jobs[0].cell
    data = victims.records_of(cell.settings, cell.dataset, data_dir)
    place_of = {job: (cell.experiment.run_of(job.cell.settings), job.seed) for job in jobs}
    places = list(dict.fromkeys(place_of.values()))
    drawn = {place: (job.cell.settings, job.seed) for job, place in place_of.items()}
    phases = tuple(dict.fromkeys(name for job in jobs for name in phases_of(job)))
    observed = any(job.how.observes for job in jobs)
    trained = victims.train(data, [drawn[place] for place in places], phases, null=observed)
    facts = [_facts(trained, data, i) for i in range(len(places))]
    for fact, place in zip(facts, places, strict=True):
        settings, seed = drawn[place]
        named = imputed(cell.dataset, data_dir, _imputing(settings), seed)
        fact["imputation"] = named
    for method, attack, wanted in by_method(jobs):
        chosen = [place for place in places if place in {place_of[job] for job in wanted}]
        rows = np.asarray([places.index(place) for place in chosen])
        names = tuple(dict.fromkeys(name for job in wanted for name in phases_of(job)))
        learned, spent = _learned(
            method, attack, wanted, [drawn[place] for place in chosen], data_dir
        )
        done, null = _measure(method, attack, cell.settings, names, trained, rows, learned)
        results = jax.tree.map(np.asarray, (done.results, null))
        shared: dict[str, Any] = {
            "compile_s": done.compile_s + spent.compile_s,
            "run_s": done.run_s + spent.run_s,
            "dtype": "float64" if method.x64 else str(trained.victims.x.dtype),
        }
        outcomes: list[Outcome] = []
        for job in wanted:
            described = facts[places.index(place_of[job])] | shared
            if method.learns:
                described |= _public_facts(attack.records, len(public_rows(data, 0)), described)
            outcomes += _outcomes(job, names, take(results, chosen.index(place_of[job])), described)
        yield outcomes


def _imputing(settings: VictimSettings) -> VictimSettings:
    """What a guess without messages depends on: cells that differ in training alone share it."""
    about = ("attribute", "records", "columns", "known", "participants", "encoding", "labels")
    return VictimSettings(**{name: getattr(settings, name) for name in about})


def _facts(trained: Run, data: Dataset, member: int) -> dict[str, Any]:
    """What all methods' outcomes of a victim have in common."""
    counts = [column.candidates.shape[1] for column in trained.victims.columns]
    truth = trained.victims.truth[member]
    rates = [majority_rate(truth[:, j], k) for j, k in enumerate(counts)]
    return {
        "majority": float(jnp.stack(rates).mean()),
        "chance": float(np.mean([1 / k for k in counts])),
        "train_accuracy": float(trained.train_accuracy[member]),
        "test_accuracy": float(trained.test_accuracy[member]),
        "note": data.note,
        "detail": {"scored_records": truth.size},
    }


def _learned(
    method: Method,
    attack: Any,
    jobs: Sequence[Job],
    drawn: Sequence[tuple[VictimSettings, int]],
    data_dir: str | None,
) -> tuple[Any, Compiled]:
    """What a method has learned on public records for every victim, and what that took."""
    if method.learns is None:
        return None, Compiled(None, 0.0, 0.0)
    seeds, name = tuple(sorted({seed for _, seed in drawn})), jobs[0].cell.dataset
    models, times = [], []
    for settings, seed in drawn:
        place = name, data_dir, settings.encoding, settings.attribute
        fitted = method.learns(*place, seeds, attack.records)
        models.append(take(fitted.results, seeds.index(seed)))
        times.append(fitted)
    stacked = stack(models)
    compiling, running = (sum(t[i] for t in times) for i in (1, 2))
    return stacked, Compiled(None, compiling, running / len(times))


def _measure(
    method: Method,
    attack: Any,
    settings: VictimSettings,
    names: tuple[str, ...],
    trained: Run,
    rows: np.ndarray,
    learned: Any,
) -> tuple[Compiled, Any]:
    """One method on some of the victims; and its results on another client's messages each, which
    a guess has none of."""
    rounds = tuple(sorted({t for name in names for t in rounds_of(name, settings.rounds)}))
    phases = tuple(tuple(map(rounds.index, rounds_of(n, settings.rounds))) for n in names)
    # Statistics and guesses are given the prior: it says what is most frequent.
    prior = settings.prior == "known" or not method.selects
    function = Attack(method, attack, trained.model, phases, prior, settings.labels == "known")
    members, messages, another = trained.seen(rows, rounds)
    if not method.simulates:
        members = dataclasses.replace(members, training=_one_step(members))
    if not method.observes:
        return run_members(function, (members, None, learned), x64=method.x64), None
    # Both in one call: devices are shared evenly, and one seed uses two of them.
    twice = (members, messages, learned), (members, another, learned)
    both = join(*twice)
    done, count = run_members(function, both, x64=method.x64), len(rows)
    own, null = (take(done.results, part) for part in (slice(count), slice(count, None)))
    return done._replace(results=own), null


def _one_step(members: Victim) -> LocalTraining:
    """One full-batch step as long as a round's steps together: cells of any batch size share a
    program."""
    training = members.training
    return LocalTraining(training.learning_rate * training.steps(members.x.shape[1]))


def _public_facts(asked: int, there: int, described: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"detail": described["detail"] | {"public_records": min(asked, there)}}
    if there < asked:
        facts["note"] = "; ".join(filter(None, (described["note"], f"only {there} public records")))
    return facts


def _outcomes(
    job: Job, names: tuple[str, ...], results: Any, shared: dict[str, Any]
) -> Iterator[Outcome]:
    """One outcome per selection among the job's own phases: the one chosen by the objective, and
    the best as the oracle's."""
    (scores, labels, objectives, status, fit, rare), null = results
    chosen_of_null = {} if null is None else _chosen(job, names, *null[:4])
    for selection, i in _chosen(job, names, scores, labels, objectives, status).items():
        detail: dict[str, Value] = dict(shared["detail"])
        if names:
            detail["rounds_used"] = names[i]
        if np.isfinite(objectives[i]):
            detail["objective"] = float(objectives[i])
        ok = status[i] != Status.FAILED
        if ok:
            detail |= {name: int(count) for name, count in zip(UNCOMMON, rare[i], strict=True)}
        facts = shared | {"selection": selection, "detail": detail}
        facts |= {"status": STATES[Status(int(status[i]))]}
        facts |= {name: _finite(getattr(fit, name)[i]) for name in ("explained", "misfit")}
        level = None
        if null is not None and null[3][chosen_of_null[selection]] != Status.FAILED:
            place = chosen_of_null[selection]
            level = _finite(null[0][place])
            facts["detail"] = detail | {NULL_STATUS: STATES[Status(int(null[3][place]))]}
        yield Outcome(job, "accuracy", float(scores[i]) if ok else None, null=level, **facts)
        if np.isfinite(labels[i]):
            yield Outcome(job, "label_accuracy", float(labels[i]), **facts | {"imputation": None})


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _chosen(
    job: Job, names: tuple[str, ...], scores: Any, labels: Any, objectives: Any, status: Any
) -> dict[str, int]:
    """Places of the phases whose answers are reported, by how they were selected."""
    allowed = [names.index(name) for name in phases_of(job)] or [0]
    usable = [i for i in allowed if status[i] != Status.FAILED] or allowed
    choices = {"none": allowed[-1]}
    if len(allowed) > 1:
        if job.how.selects:
            choices = {"objective": min(usable, key=lambda i: objectives[i])}
        choices["oracle"] = max(usable, key=lambda i: scores[i])
    return choices


EXPERIMENT = Experiment(
    "attributes",
    VictimSettings,
    METHODS,
    METRICS,
    run,
    asked=("phases", "simulated_phases"),
    traced=(
        "attribute",
        "training.learning_rate",
        "epsilon",
        "upload.clip",
        "upload.noise_multiplier",
        "upload.bits",
    ),
    structure=lambda settings: (settings.protected, settings.private),
    traits=Reading,
)
