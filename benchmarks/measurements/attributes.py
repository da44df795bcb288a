"""What is an attribute of each of a victim's records? (Lyu 2021; attribute inference)

A method here is `run(view, settings) -> Reconstruction`, a pure function. A guess looks at no
messages; a method that `learns` gets what it learned on public records as `view.learned`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    GLS,
    ClosedForm,
    CosMatching,
    GaussNewton,
    Knowledge,
    L2Matching,
    Reconstruction,
    Virtual,
    closed_form,
    cos_matching,
    fit_public_model,
    gauss_newton,
    gls,
    l2_lbfgs,
    majority_guess,
    name_by_public_model,
    random_guess,
    statistics,
)
from attacks.attributes.knowledge import answered
from attacks.metrics import accuracy, majority_rate
from benchmarks.harness.engines import Compiled, once, run_members
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome, Value
from benchmarks.scenarios import victims
from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.streams import Stream, stream
from benchmarks.scenarios.victims import Run, Victim, VictimSettings, public_rows, rounds_of, take
from jaxfl import LocalTraining, Messages, Model
from jaxfl.datasets import Dataset

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
    """

    model: Model
    messages: Messages
    knowledge: Knowledge
    training: LocalTraining
    key: Array
    learned: Any = None


@dataclasses.dataclass(frozen=True)
class PublicRecords:
    """How many public records an adversary has that knows the attribute of these."""

    records: int


def _guess(values: Sequence[Array]) -> Reconstruction:
    unknown = jnp.asarray(jnp.nan)
    return answered(jnp.asarray(False), tuple(values), (), objective=unknown, trace=jnp.zeros(0))


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
    return closed_form(view.model, view.messages, view.knowledge, settings=settings).reconstruction


def _gauss_newton(view: View, settings: GaussNewton) -> Reconstruction:
    settings = dataclasses.replace(settings, learning_rate=view.training.learning_rate)
    return gauss_newton(view.model, view.messages, view.knowledge, settings=settings)


def _gls(view: View, settings: GLS) -> Reconstruction:
    settings = dataclasses.replace(settings, training=view.training)
    return gls(view.model, view.messages, view.knowledge, view.key, settings=settings)


def _one_column(settings: VictimSettings) -> str | None:
    if settings.columns > 1:
        return f"columns={settings.columns}: it reads one unknown column"
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


def _gls_declines(settings: VictimSettings) -> str | None:
    return _several_steps(settings) or _one_column_known_labels(settings)


@once
def _learn(
    name: str,
    data_dir: str | None,
    encoding: str,
    attribute: int,
    seeds: tuple[int, ...],
    count: int,
) -> Compiled:
    """Public models by seed: they do not depend on the victim, so all cells share them."""
    data = classified(name, data_dir, encoding=encoding)
    column, values = data.column(attribute), data.values_of(attribute)
    rows = np.stack([public_rows(data, seed)[:count] for seed in seeds])
    keys = jnp.stack([stream(jax.random.key(seed), Stream.ATTACK) for seed in seeds])
    fit = Fit(column.positions, len(column.values))
    return run_members(fit, (jnp.asarray(data.x[rows]), jnp.asarray(values[rows]), keys))


@dataclasses.dataclass(frozen=True)
class Fit:
    """Fits a model on public records.

    Attributes:
      positions: where the attribute stands.
      values: how many it has.
    """

    positions: tuple[int, ...]
    values: int

    def __call__(self, inputs: tuple[Array, Array, Array]) -> Any:
        """Its parameters, from public records, their attribute and a key."""
        public, known, key = inputs
        return fit_public_model(public, known, jnp.asarray(self.positions), self.values, key)


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
            learns=_learn,
        )
        for count in (100, 1000)
    ),
    Method(
        "stats",
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
    ),
    Method(
        "cos",
        "cosine gradient matching (Lyu 2021, Algorithm 1)",
        _cos,
        CosMatching(steps=300),
        filled=("virtual.training",),
        selects=True,
    ),
    Method(
        "closed_form",
        "decoding by least squares, exact for one full-batch step a round",
        _closed_form,
        ClosedForm(),
        filled=("learning_rate",),
        refuses=_one_column,
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
    ),
    Method(
        "gls",
        "decoding whitened by the noise of batches, for any SGD client",
        _gls,
        GLS(LocalTraining(), orders=256, points=8, passes=3),
        filled=("training",),
        refuses=_gls_declines,
        selects=True,
        simulates=True,
    ),
)
METRICS = (
    Metric("accuracy", "records whose value was named exactly", proportion=True),
    Metric("label_accuracy", "records whose label was named, where labels are unknown", True),
)


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

    def __call__(self, inputs: tuple[Victim, Messages, Any]) -> tuple[Array, Array, Array, Array]:
        """Accuracy, accuracy of the labels, objective and status, each `[phases]`."""
        victim, messages, learned = inputs
        knowledge, key = (
            victim.knowledge(self.prior, self.labels),
            stream(victim.key, Stream.ATTACK),
        )

        def one_phase(seen: Messages) -> tuple[Array, Array, Array, Array]:
            view = View(self.model, seen, knowledge, victim.training, key, learned)
            answer = self.method.run(view, self.settings)  # type: ignore[misc]
            unknown = jnp.asarray(jnp.nan)
            labels = unknown if answer.labels is None else accuracy(answer.labels, victim.y)
            values = jnp.stack(answer.values, 1).reshape(-1)
            right = accuracy(values, victim.truth.reshape(-1))
            return right, labels, answer.objective, answer.status

        return over_phases(one_phase, messages, self.phases)


def over_phases(attack: Any, messages: Messages, phases: tuple[tuple[int, ...], ...]) -> Any:
    """`attack` on every phase `[phases]`; phases of equal length share one compiled loop."""
    results: list[Any] = [None] * len(phases)
    for length in {len(p) for p in phases}:
        same = [i for i, p in enumerate(phases) if len(p) == length]
        rows = jnp.asarray([phases[i] for i in same])
        answers = jax.lax.map(lambda r: attack(take(messages, r)), rows)
        for j, i in enumerate(same):
            results[i] = take(answers, j)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


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
    trained = victims.train(data, [drawn[place] for place in places], phases)
    facts = [_facts(trained, data, i) for i in range(len(places))]
    for method, attack in dict.fromkeys((job.how, job.attack) for job in jobs):
        wanted = [job for job in jobs if (job.how, job.attack) == (method, attack)]
        chosen = [place for place in places if place in {place_of[job] for job in wanted}]
        rows = np.asarray([places.index(place) for place in chosen])
        names = tuple(dict.fromkeys(name for job in wanted for name in phases_of(job)))
        learned, spent = _learned(
            method, attack, wanted, [drawn[place] for place in chosen], data_dir
        )
        done = _measure(method, attack, cell.settings, names, trained, rows, learned)
        results = jax.tree.map(np.asarray, done.results)
        shared: dict[str, Any] = {
            "compile_s": done.compile_s + spent.compile_s,
            "run_s": done.run_s + spent.run_s,
            "dtype": "float64" if method.x64 else str(trained.victims.x.dtype),
        }
        outcomes: list[Outcome] = []
        for job in wanted:
            own = facts[places.index(place_of[job])] | shared
            if method.learns:
                own |= _public_facts(attack.records, len(public_rows(data, 0)), own)
            outcomes += _outcomes(job, names, take(results, chosen.index(place_of[job])), own)
        yield outcomes


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
        "device": jax.devices()[0].device_kind,
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
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
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
) -> Compiled:
    """One method on some of the victims."""
    rounds = tuple(sorted({t for name in names for t in rounds_of(name, settings.rounds)}))
    rounds = rounds or (trained.kept[0],)  # a guess does not look at it
    phases = tuple(tuple(map(rounds.index, rounds_of(n, settings.rounds))) for n in names) or (
        (0,),
    )
    # Statistics and guesses are given the prior: it says what is most frequent.
    prior = settings.prior == "known" or not method.selects
    function = Attack(method, attack, trained.model, phases, prior, settings.labels == "known")
    members, messages = trained.seen(rows, rounds)
    if not method.simulates:
        members = dataclasses.replace(members, training=_one_step(members))
    return run_members(function, (members, messages, learned), x64=method.x64)


def _one_step(members: Victim) -> LocalTraining:
    """One full-batch step as long as a round's steps together: cells of any batch size share a
    program."""
    training = members.training
    return LocalTraining(training.learning_rate * training.steps(members.x.shape[1]))


def _public_facts(asked: int, there: int, own: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"detail": own["detail"] | {"public_records": min(asked, there)}}
    if there < asked:
        facts["note"] = "; ".join(filter(None, (own["note"], f"only {there} public records")))
    return facts


def _outcomes(
    job: Job, names: tuple[str, ...], results: Any, shared: dict[str, Any]
) -> Iterator[Outcome]:
    """One outcome per selection among the job's own phases: the one chosen by the objective, and
    the best as the oracle's."""
    scores, labels, objectives, status = results
    own = [names.index(name) for name in phases_of(job)] or [0]
    usable = [i for i in own if status[i] == 0] or own
    choices = {"none": own[-1]}
    if len(own) > 1:
        if job.how.selects:
            choices = {"objective": min(usable, key=lambda i: objectives[i])}
        choices["oracle"] = max(usable, key=lambda i: scores[i])
    for selection, i in choices.items():
        detail: dict[str, Value] = dict(shared["detail"])
        if names:
            detail["rounds_used"] = names[i]
        if np.isfinite(objectives[i]):
            detail["objective"] = float(objectives[i])
        ok = status[i] == 0
        state = "ok" if ok else "diverged"
        facts = shared | {"selection": selection, "status": state, "detail": detail}
        yield Outcome(job, "accuracy", float(scores[i]) if ok else None, **facts)
        if np.isfinite(labels[i]):
            yield Outcome(job, "label_accuracy", float(labels[i]), **facts)


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
        "upload.clip",
        "upload.noise_multiplier",
        "upload.bits",
    ),
    structure=lambda settings: settings.protected,
)
