"""The experiment of Lyu 2021: a victim trains, its messages are attacked for one attribute, the guesses are scored.

A cell's settings:
  attribute: 0-based number of the unknown attribute.
  columns: unknown attributes; the first is `attribute`, the others are drawn by the seed.
  records: |D_v|, records of the victim.
  batch_size: records per local step; "full" for all.
  epochs: local epochs per round.
  hidden: widths of the hidden layers, "128" or "1024,256".
  participants: clients in the federation; 1 is an isolated victim. Each holds as many records as the victim.
  learning_rate: of the clients' SGD.
  rounds: communication rounds.
  noise_multiplier, bits: what clients do to their updates (see `jaxfl.Upload`).
  phases: comma-separated sets of rounds the attack may use (see `benchmarks.phases`).
  simulated_phases: the same for methods that simulate the training, or "same".
  prior: "known" (from the training records; of the labels too, if they are unknown) or "unknown".
  labels: "known" or "unknown".
  encoding: "scalar" or "onehot".
  steps, gamma, adam_rate: Adam iterations of `cos`, its temperature and step size.
  unrolled_steps, unrolled_orders, unrolled_rounds: iterations of `cos_unrolled`, simulated batch orders in each, and
    rounds drawn at random for each if the phase has more.
  evaluations: budget of `l2_lbfgs`.
  gls_orders, gls_points, gls_passes: simulated runs per round of `gls`, points of its paths, and its repetitions.
"""

import dataclasses
import functools
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
from attacks.metrics import accuracy, majority_rate
from benchmarks.engines import Compiled, once, run_members
from benchmarks.jobs import Cell, Job, Outcome, Value
from benchmarks.members import (
    Member,
    Surroundings,
    classifier,
    dataset,
    draw,
    labelled_data,
    protected,
    public_rows,
    split,
)
from benchmarks.phases import kept_rounds, over_phases, rounds_of, take_rows
from jaxfl import (
    ClientData,
    Federated,
    LocalTraining,
    Messages,
    Model,
    Record,
    evaluate,
    one_client,
    simulate,
)

Array = jax.Array

USES = {
    "cos": ("steps", "gamma", "adam_rate"),
    "cos_unrolled": ("unrolled_steps", "unrolled_orders", "unrolled_rounds", "gamma", "adam_rate"),
    "l2_lbfgs": ("evaluations",),
    "gls": ("gls_orders", "gls_passes", "gls_points"),
}
"""Settings of each method. Cells that differ in others share its compiled program."""

METHODS = (
    "random",
    "majority",
    "public100",
    "public1000",
    "stats",
    "l2_lbfgs",
    "cos",
    "closed_form",
)
SELECTING = ("l2_lbfgs", "cos", "cos_unrolled", "closed_form", "gauss_newton", "gls")
"""Methods with an objective, by which an adversary can choose among sets of rounds."""
SIMULATED = ("cos_unrolled", "gls")
"""Methods that simulate the client's training; the others take its update for one gradient."""
TRACED = ("attribute", "learning_rate", "noise_multiplier", "bits")
"""Settings in which members of a group may differ."""
DOUBLE = ("closed_form",)
"""Methods that compute in float64 on the float32 messages."""


@dataclasses.dataclass(frozen=True)
class Victim:
    """Trains a member's victim, in its federation or alone, which is what isolation makes of it (Lyu 2021, 3.1).

    Attributes:
      model: the model.
      batch_size: records per local step, or None for all.
      epochs: local epochs.
      rounds: communication rounds.
      kept: the rounds whose messages are kept, the last one among them.
    """

    model: Model
    batch_size: int | None
    epochs: int
    rounds: int
    kept: tuple[int, ...]

    def __call__(self, inputs: tuple[Member, Surroundings]) -> tuple[Messages, Array, Array]:
        """The victim's messages, and the accuracy of its last model on its own and on held-out records."""
        member, around = inputs
        init_key, train_key = jax.random.split(jax.random.fold_in(member.key, 0))
        x = jnp.concatenate([member.x[None], around.x_others])
        y = jnp.concatenate([member.y[None], around.y_others])
        clients = ClientData(x, y, jnp.ones(y.shape, bool), jnp.arange(len(y)))
        training = LocalTraining(member.learning_rate, self.epochs, self.batch_size)
        record = Record(clients=(0,), rounds=self.kept)
        federated = Federated(
            rounds=self.rounds, training=training, upload=member.upload, record=record
        )
        transcript = simulate(self.model, self.model.init(init_key), clients, train_key, federated)
        messages = transcript.messages(0)
        last = jax.tree.map(lambda a: a[-1], messages.returned)
        own = evaluate(self.model, last, one_client(member.x, member.y))
        test = evaluate(self.model, last, one_client(around.x_test, around.y_test))
        return messages, own.accuracy, test.accuracy


@dataclasses.dataclass(frozen=True)
class Guess:
    """`random` or `majority`."""

    method: str

    def __call__(self, member: Member) -> Array:
        """Its accuracy."""
        keys = jax.random.split(jax.random.fold_in(member.key, 1), len(member.columns))
        if self.method == "random":
            guesses = [
                random_guess(k, len(member.x), len(c.candidates))
                for k, c in zip(keys, member.columns, strict=True)
            ]
        else:
            guesses = [majority_guess(jnp.asarray(c.prior), len(member.x)) for c in member.columns]
        return accuracy(jnp.stack(guesses, 1).reshape(-1), member.truth.reshape(-1))


@dataclasses.dataclass(frozen=True)
class PublicModel:
    """A model trained on public records.

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


@dataclasses.dataclass(frozen=True)
class Attack:
    """Runs one method on a member and its victim's messages. Holds nothing that the method does not use, so that cells
    share compiled programs.

    Attributes:
      method: its name.
      model: the model.
      phases: places of each phase's rounds among the messages.
      prior_known: whether the adversary knows the attribute's distribution.
      labels_known: whether it knows the labels.
      batch_size, epochs: of the training that the method simulates, if it does.
      chosen: the settings the method uses, by name.
    """

    method: str
    model: Model
    phases: tuple[tuple[int, ...], ...]
    prior_known: bool
    labels_known: bool
    batch_size: int | None
    epochs: int
    chosen: tuple[tuple[str, Any], ...]

    def __call__(self, inputs: tuple[Member, Messages]) -> tuple[Array, Array, Array, Array]:
        """Accuracy, accuracy of the labels, objective and status, each `[phases]`."""
        member, messages = inputs
        key = jax.random.fold_in(member.key, 1)
        unknown = jnp.asarray(jnp.nan)

        def one_phase(messages: Messages) -> tuple[Array, Array, Array, Array]:
            if self.method == "stats":
                values = statistics(self.model, messages, self.knowledge(member))[-1]
                return accuracy(values, member.truth[:, 0]), unknown, unknown, jnp.asarray(0)
            answer = self.match(member, messages, key)
            labels = unknown if answer.labels is None else accuracy(answer.labels, member.y)
            right = accuracy(jnp.stack(answer.values, 1).reshape(-1), member.truth.reshape(-1))
            return right, labels, answer.objective, answer.status

        return over_phases(one_phase, messages, self.phases)

    def knowledge(self, member: Member) -> Knowledge:
        """What the adversary knows of this member."""
        columns = member.columns
        if not self.prior_known:
            columns = tuple(dataclasses.replace(column, prior=None) for column in columns)
        if self.labels_known:
            return Knowledge(member.x, member.y, columns)
        return Knowledge(member.x, None, columns, member.label_prior if self.prior_known else None)

    def match(self, member: Member, messages: Messages, key: Array) -> Reconstruction:
        """One method with an objective on the messages of one phase."""
        model, knowledge, chosen = self.model, self.knowledge(member), dict(self.chosen)
        training = LocalTraining(member.learning_rate, self.epochs, self.batch_size)
        if self.method == "closed_form":
            return closed_form(
                model, messages, knowledge, settings=ClosedForm(member.step)
            ).reconstruction
        if self.method == "gauss_newton":
            return gauss_newton(model, messages, knowledge, settings=GaussNewton(member.step))
        if self.method == "gls":
            simulated = GLS(
                training,
                orders=chosen["gls_orders"],
                points=chosen["gls_points"],
                passes=chosen["gls_passes"],
            )
            return gls(model, messages, knowledge, key, settings=simulated)
        if self.method == "l2_lbfgs":
            rival = L2Matching(chosen["evaluations"], Virtual(training=LocalTraining(member.step)))
            return l2_lbfgs(model, messages, knowledge, key, settings=rival)
        if self.method == "cos_unrolled":
            sampled = (
                chosen["unrolled_rounds"] if chosen["unrolled_rounds"] < len(messages) else None
            )
            virtual = Virtual("unrolled", training, chosen["unrolled_orders"], sampled)
            settings = CosMatching(
                chosen["gamma"], chosen["adam_rate"], chosen["unrolled_steps"], virtual=virtual
            )
        else:
            settings = CosMatching(
                chosen["gamma"],
                chosen["adam_rate"],
                chosen["steps"],
                virtual=Virtual(training=training),
            )
        return cos_matching(model, messages, knowledge, key, settings=settings)


def applies(cell: Cell, method: str) -> bool:
    """Simulating the training is for victims that take several steps a round: with one it is the gradient. The closed form
    is for one unknown column, the Gauss-Newton method for several."""
    if method in SIMULATED:
        several_steps = cell["batch_size"] != "full" or cell["epochs"] > 1
        return several_steps and (
            method != "gls" or (cell["columns"] == 1 and cell["labels"] == "known")
        )
    if cell["columns"] > 1:
        return method in ("random", "majority", "cos", "l2_lbfgs", "gauss_newton")
    return method != "gauss_newton" and (
        cell["labels"] == "known" or method not in ("stats", "l2_lbfgs")
    )


def phases_of(job: Job) -> tuple[str, ...]:
    """Names of the sets of rounds that a job may use; `stats` takes their union too."""
    cell = job.cell
    simulated = job.method in SIMULATED and cell["simulated_phases"] != "same"
    names = tuple(cell["simulated_phases" if simulated else "phases"].split(","))
    return (*names, "+".join(names)) if job.method == "stats" and len(names) > 1 else names


def measured(cell: Cell) -> Any:
    """What is run for a cell. Cells that differ in their tables or phases only are measured together."""
    return cell.dataset, tuple(
        (k, v) for k, v in cell.settings if k not in ("phases", "simulated_phases")
    )


def signature(cell: Cell) -> Any:
    """Everything but what is traced, and the phases, which are united."""
    dataset, settings = measured(cell)
    return dataset, protected(cell), tuple((k, v) for k, v in settings if k not in TRACED)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature: one simulation for all methods, then one compiled call per method."""
    cell = jobs[0].cell
    data, model = classifier(cell, data_dir)
    place_of = {job: (measured(job.cell), job.seed) for job in jobs}
    cells = {place: job.cell for job, place in place_of.items()}
    drawn = [draw(data, cell, seed) for (_, seed), cell in cells.items()]
    members, around = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
    batch_size = None if cell["batch_size"] == "full" else cell["batch_size"]
    kept = kept_rounds([name for job in jobs for name in phases_of(job)], cell["rounds"])
    messages, train, test = run_members(
        Victim(model, batch_size, cell["epochs"], cell["rounds"], kept), (members, around)
    ).results
    candidates = [column.candidates.shape[1] for column in members.columns]
    rates = [
        jax.vmap(functools.partial(majority_rate, candidates=k))(members.truth[:, :, j])
        for j, k in enumerate(candidates)
    ]
    majority = jnp.stack(rates).mean(0)
    facts = {
        place: {
            **{
                "majority": float(majority[i]),
                "train_accuracy": float(train[i]),
                "test_accuracy": float(test[i]),
            },
            **{
                "chance": float(np.mean([1 / k for k in candidates])),
                "note": data.note,
                "device": jax.devices()[0].device_kind,
            },
        }
        for i, place in enumerate(cells)
    }
    for method in dict.fromkeys(job.method for job in jobs):
        wanted = [job for job in jobs if job.method == method]
        chosen = [place for place in cells if place in {place_of[job] for job in wanted}]
        rows = np.asarray([list(cells).index(place) for place in chosen])
        names = tuple(dict.fromkeys(name for job in wanted for name in phases_of(job)))
        if method.startswith("public"):
            found = _guess_from_public(
                method, data_dir, [(cells[place], place[1]) for place in chosen]
            )
        else:
            found = _measure(
                method, cell, model, batch_size, names, kept, take_rows((members, messages), rows)
            )
        results = jax.tree.map(np.asarray, found.results)
        shared: dict[str, Any] = {"compile_s": found.compile_s, "run_s": found.run_s}
        shared["dtype"] = "float64" if method in DOUBLE else str(members.x.dtype)
        outcomes: list[Outcome] = []
        for job in wanted:
            own = facts[place_of[job]] | shared
            if method.startswith("public"):
                own |= _public_facts(method, len(public_rows(data, 0)), data.note)
            outcomes += _outcomes(job, names, take_rows(results, chosen.index(place_of[job])), own)
        yield outcomes


def _measure(
    method: str,
    cell: Cell,
    model: Model,
    batch_size: int | None,
    names: tuple[str, ...],
    kept: tuple[int, ...],
    chosen: tuple[Member, Messages],
) -> Compiled:
    """One method on the members of a group."""
    if method not in (*SELECTING, "stats"):
        return run_members(Guess(method), chosen[0])
    rounds = kept_rounds(names, cell["rounds"])
    phases = tuple(tuple(map(rounds.index, rounds_of(name, cell["rounds"]))) for name in names)
    attack = Attack(
        method=method,
        model=model,
        phases=phases,
        prior_known=cell["prior"] == "known" or method == "stats",
        labels_known=cell["labels"] == "known",
        batch_size=batch_size if method in SIMULATED else None,
        epochs=cell["epochs"] if method in SIMULATED else 1,
        chosen=tuple((name, cell[name]) for name in USES.get(method, ())),
    )
    members, messages = chosen
    needed = take_rows(messages, (slice(None), np.asarray([kept.index(t) for t in rounds])))
    return run_members(attack, (members, needed), x64=method in DOUBLE)


def _guess_from_public(
    method: str, data_dir: str | None, places: Sequence[tuple[Cell, int]]
) -> Compiled:
    """Accuracy of a public model on the victims of some cells and seeds."""
    seeds = tuple(sorted({seed for _, seed in places}))
    scores, times = [], []
    for cell, seed in places:
        data = labelled_data(cell, data_dir)
        column = data.column(cell["attribute"])
        fitted = _public_models(
            cell.dataset, data_dir, cell["encoding"], cell["attribute"], seeds, method
        )
        victim = split(data, cell, seed).victim
        params = jax.tree.map(lambda a, seed=seed: a[seeds.index(seed)], fitted.results)
        guesses = name_by_public_model(params, data.x[victim], jnp.asarray(column.positions))
        scores.append((np.asarray(guesses) == data.values_of(cell["attribute"])[victim]).mean())
        times.append(fitted)
    return Compiled(
        np.asarray(scores),
        sum(t.compile_s for t in times),
        sum(t.run_s for t in times) / len(times),
    )


@once
def _public_models(
    name: str,
    data_dir: str | None,
    encoding: str,
    attribute: int,
    seeds: tuple[int, ...],
    method: str,
) -> Compiled:
    """Public models by seed: they do not depend on the victim, so that all cells share them (and report their times)."""
    data = dataset(name, data_dir, encoding)
    column, values = data.column(attribute), data.values_of(attribute)
    known = [public_rows(data, seed)[: int(method.removeprefix("public"))] for seed in seeds]
    keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), 1) for seed in seeds])
    rows = np.stack(known)
    inputs = jnp.asarray(data.x[rows]), jnp.asarray(values[rows]), keys
    return run_members(PublicModel(column.positions, len(column.values)), inputs)


def _public_facts(method: str, there: int, note: str) -> dict[str, Any]:
    asked = int(method.removeprefix("public"))
    facts: dict[str, Any] = {"detail": {"public_records": min(asked, there)}}
    return facts | (
        {"note": "; ".join(filter(None, (note, f"only {there} public records")))}
        if there < asked
        else {}
    )


def _outcomes(
    job: Job, names: tuple[str, ...], found: Any, shared: dict[str, Any]
) -> Iterator[Outcome]:
    """One outcome per selection among the job's own phases: the one chosen by the objective, and the best as the oracle's."""
    if job.method not in (*SELECTING, "stats"):
        yield Outcome(job, "accuracy", float(found), **shared)
        return
    scores, labels, objectives, status = found
    own = [names.index(name) for name in phases_of(job)]
    usable = [i for i in own if status[i] == 0] or own
    if len(own) == 1:
        choices = {"none": own[0]}
    else:
        chosen = (
            ("none", own[-1])
            if job.method == "stats"
            else ("objective", min(usable, key=lambda i: objectives[i]))
        )
        choices = dict([chosen, ("oracle", max(usable, key=lambda i: scores[i]))])
    for selection, i in choices.items():
        ok = status[i] == 0
        state = "ok" if ok else "diverged"
        detail: dict[str, Value] = {"rounds_used": names[i]}
        if np.isfinite(objectives[i]):
            detail["objective"] = float(objectives[i])
        yield Outcome(
            job,
            "accuracy",
            float(scores[i]) if ok else None,
            selection,
            state,
            detail=detail,
            **shared,
        )
        if np.isfinite(labels[i]):
            yield Outcome(
                job, "label_accuracy", float(labels[i]), selection, state, detail=detail, **shared
            )
