"""The experiment of paper 000: a victim trains, its messages are attacked for one attribute, the guesses are scored.

A cell's settings:
  attribute: 0-based number of the unknown attribute.
  records: |D_v|, records of the victim.
  batch_size: records per local step; "full" for all.
  hidden: widths of the hidden layers, "128" or "1024,256".
  participants: clients in the federation; 1 is an isolated victim. Each holds as many records as the victim.
  learning_rate: of the clients' SGD.
  rounds: communication rounds, one local epoch each.
  phases: comma-separated sets of rounds the attack may use (see `PHASES`).
  simulated_phases: the same for methods that simulate the training, or "as phases".
  prior: "known" (from the training records) or "unknown".
  labels: "known" or "unknown".
  encoding: "scalar" or "onehot".
  steps, gamma, adam_rate: Adam iterations of `cos`, its temperature and step size.
  unrolled_steps, unrolled_orders, unrolled_rounds: iterations of `cos_unrolled`, simulated batch orders in each, and
    rounds drawn at random for each if the phase has more.
  evaluations: budget of `l2_lbfgs`.
  gls_orders, gls_passes: simulated runs per round of `gls`, and its repetitions.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks.attribute_baselines import L2Matching, l2_lbfgs, majority_guess, public_model, random_guess, statistics
from attacks.attribute_reconstruction import CosMatching, Knowledge, Reconstruction, UnknownColumn, cos_matching
from attacks.candidate_decoding import GLS, ClosedForm, closed_form, gls
from attacks.gradient_matching import Virtual
from attacks.metrics import accuracy, majority_rate
from benchmarks.engines import Compiled, run_members
from benchmarks.jobs import Cell, Job, Outcome, Value
from jaxfl import ClientData, Federated, LocalTraining, Messages, Model, Record, evaluate, mlp, one_client, simulate
from jaxfl.datasets import Dataset, load

Array = jax.Array

PHASES = {
    "pre1": (0,),
    "pre2": (0, 1),
    "pre5": (0, 1, 2, 3, 4),
    "gap10": (9, 19, 29, 39, 49),
    "last5": (-5, -4, -3, -2, -1),
    "first20": tuple(range(20)),
    "first50": tuple(range(50)),
}
"""Sets of rounds (paper 000, section 4.2, and two of our own), 0-based; negative ones count from the last."""

PUBLIC_FRACTION, TRAIN_FRACTION, MOST_PUBLIC = 0.1, 0.8, 1000
TEST_RECORDS = 500
USES = {
    "cos": ("steps", "gamma", "adam_rate"),
    "cos_unrolled": ("unrolled_steps", "unrolled_orders", "unrolled_rounds", "gamma", "adam_rate"),
    "l2_lbfgs": ("evaluations",),
    "gls": ("gls_orders", "gls_passes"),
}
"""Settings of each method. Cells that differ in others share its compiled program."""

METHODS = ("random", "majority", "public100", "public1000", "stats", "l2_lbfgs", "cos", "closed_form")
SELECTING = ("l2_lbfgs", "cos", "cos_unrolled", "closed_form", "gls")
"""Methods with an objective, by which an adversary can choose among sets of rounds."""
SIMULATED = ("cos_unrolled", "gls")
"""Methods that simulate the client's training; the others take its update for one gradient."""
DOUBLE = ("closed_form",)
"""Methods that compute in float64 on the float32 messages."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Member:
    """One victim, one attribute, one seed. Leaves get a leading axis `[members]` in a group.

    Attributes:
      x: the victim's records `[records, features]`.
      y: its labels `[records]`.
      truth: index of the attribute's true value `[records]`; for scoring only.
      column: the attribute; its prior is always there, the experiment hides it if unknown.
      x_public: public records `[public, features]`.
      values_public: their attribute `[public]`.
      learning_rate: of the victim's SGD.
      key: everything random in this member.
    """

    x: Array
    y: Array
    truth: Array
    column: UnknownColumn
    x_public: Array
    values_public: Array
    learning_rate: Array
    key: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What else the training and its evaluation need.

    Attributes:
      x_test: held-out records `[test, features]`.
      y_test: their labels `[test]`.
      x_others: records of the other participants `[participants - 1, records, features]`.
      y_others: their labels `[participants - 1, records]`.
    """

    x_test: Array
    y_test: Array
    x_others: Array
    y_others: Array


@dataclasses.dataclass(frozen=True)
class Victim:
    """Trains a member's victim, in its federation or alone, which is what isolation makes of it (paper 000, 3.1).

    Attributes:
      model: the model.
      batch_size: records per local step, or None for all.
      rounds: communication rounds.
      kept: the rounds whose messages are kept, the last one among them.
    """

    model: Model
    batch_size: int | None
    rounds: int
    kept: tuple[int, ...]

    def __call__(self, inputs: tuple[Member, Surroundings]) -> tuple[Messages, Array, Array]:
        """The victim's messages, and the accuracy of its last model on its own and on held-out records."""
        member, around = inputs
        init_key, train_key = jax.random.split(jax.random.fold_in(member.key, 0))
        x = jnp.concatenate([member.x[None], around.x_others])
        y = jnp.concatenate([member.y[None], around.y_others])
        clients = ClientData(x, y, jnp.ones(y.shape, bool), jnp.arange(len(y)))
        training = LocalTraining(member.learning_rate, batch_size=self.batch_size)
        federated = Federated(rounds=self.rounds, training=training, record=Record(clients=(0,), rounds=self.kept))
        transcript = simulate(self.model, self.model.init(init_key), clients, train_key, federated)
        messages = transcript.messages(0)
        last = jax.tree.map(lambda a: a[-1], messages.returned)
        own = evaluate(self.model, last, one_client(member.x, member.y))
        test = evaluate(self.model, last, one_client(around.x_test, around.y_test))
        return messages, own.accuracy, test.accuracy


@dataclasses.dataclass(frozen=True)
class Guess:
    """A method that needs no messages."""

    method: str

    def __call__(self, member: Member) -> Array:
        """Its accuracy."""
        key = jax.random.fold_in(member.key, 1)
        records, candidates = len(member.x), len(member.column.candidates)
        if self.method == "random":
            values = random_guess(key, records, candidates)
        elif self.method == "majority":
            values = majority_guess(jnp.asarray(member.column.prior), records)
        else:
            n = int(self.method.removeprefix("public"))
            public, known = member.x_public[:n], member.values_public[:n]
            values = public_model(public, known, member.x, member.column.positions, candidates, key)
        return accuracy(values, member.truth)


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
      batch_size: of the training that the method simulates, if it does.
      chosen: the settings the method uses, by name.
    """

    method: str
    model: Model
    phases: tuple[tuple[int, ...], ...]
    prior_known: bool
    labels_known: bool
    batch_size: int | None
    chosen: tuple[tuple[str, Any], ...]

    def __call__(self, inputs: tuple[Member, Messages]) -> tuple[Array, Array, Array, Array]:
        """Accuracy, accuracy of the labels, objective and status, each `[phases]`."""
        member, messages = inputs
        key = jax.random.fold_in(member.key, 1)
        unknown = jnp.asarray(jnp.nan)

        def one_phase(messages: Messages) -> tuple[Array, Array, Array, Array]:
            if self.method == "stats":
                values = statistics(self.model, messages, self.knowledge(member))[-1]
                return accuracy(values, member.truth), unknown, unknown, jnp.asarray(0)
            answer = self.match(member, messages, key)
            labels = unknown if answer.labels is None else accuracy(answer.labels, member.y)
            return accuracy(answer.values[0], member.truth), labels, answer.objective, answer.status

        return over_phases(one_phase, messages, self.phases)

    def knowledge(self, member: Member) -> Knowledge:
        """What the adversary knows of this member."""
        column = member.column if self.prior_known else dataclasses.replace(member.column, prior=None)
        return Knowledge(member.x, member.y if self.labels_known else None, (column,))

    def match(self, member: Member, messages: Messages, key: Array) -> Reconstruction:
        """One method with an objective on the messages of one phase."""
        model, knowledge, chosen = self.model, self.knowledge(member), dict(self.chosen)
        training = LocalTraining(member.learning_rate, batch_size=self.batch_size)
        if self.method == "closed_form":
            return closed_form(model, messages, knowledge, settings=ClosedForm(training.learning_rate)).reconstruction
        if self.method == "gls":
            simulated = GLS(training, orders=chosen["gls_orders"], passes=chosen["gls_passes"])
            return gls(model, messages, knowledge, key, settings=simulated)
        if self.method == "l2_lbfgs":
            rival = L2Matching(chosen["evaluations"], Virtual(training=training))
            return l2_lbfgs(model, messages, knowledge, key, settings=rival)
        if self.method == "cos_unrolled":
            sampled = chosen["unrolled_rounds"] if chosen["unrolled_rounds"] < len(messages) else None
            virtual = Virtual("unrolled", training, chosen["unrolled_orders"], sampled)
            settings = CosMatching(chosen["gamma"], chosen["adam_rate"], chosen["unrolled_steps"], virtual=virtual)
        else:
            settings = CosMatching(chosen["gamma"], chosen["adam_rate"], chosen["steps"], virtual=Virtual(training=training))
        return cos_matching(model, messages, knowledge, key, settings=settings)


def over_phases(attack: Callable[[Messages], Any], messages: Messages, phases: tuple[tuple[int, ...], ...]) -> Any:
    """`attack` on every phase `[phases]`; phases of equal length share one compiled loop."""
    results: list[Any] = [None] * len(phases)
    for length in {len(p) for p in phases}:
        same = [i for i, p in enumerate(phases) if len(p) == length]
        rows = jnp.asarray([phases[i] for i in same])
        found = jax.lax.map(lambda r: attack(jax.tree.map(lambda a: a[r], messages)), rows)
        for j, i in enumerate(same):
            results[i] = jax.tree.map(lambda a, j=j: a[j], found)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def applies(cell: Cell, method: str) -> bool:
    """Simulating the training is for victims that train in batches: with full batches it is the gradient."""
    if method in SIMULATED:
        return cell["batch_size"] != "full"
    return cell["labels"] == "known" or method not in ("stats", "l2_lbfgs")


def phases_of(job: Job) -> tuple[str, ...]:
    """Names of the sets of rounds that a job may use; `stats` takes their union too."""
    cell = job.cell
    simulated = job.method in SIMULATED and cell["simulated_phases"] != "as phases"
    names = tuple(cell["simulated_phases" if simulated else "phases"].split(","))
    return (*names, "+".join(names)) if job.method == "stats" and len(names) > 1 else names


def rounds_of(name: str, rounds: int) -> tuple[int, ...]:
    """The rounds of a phase, or of several joined by "+", counted from 0."""
    return tuple(sorted({t % rounds for part in name.split("+") for t in PHASES[part]}))


def measured(cell: Cell) -> Any:
    """What is run for a cell. Cells that differ in their tables or phases only are measured together."""
    return cell.dataset, tuple((k, v) for k, v in cell.settings if k not in ("phases", "simulated_phases"))


def signature(cell: Cell) -> Any:
    """Everything but the attribute and the learning rate, which are traced, and the phases, which are united."""
    dataset, settings = measured(cell)
    return dataset, tuple((k, v) for k, v in settings if k not in ("attribute", "learning_rate"))


@functools.lru_cache(maxsize=2)
def _dataset(name: str, data_dir: str | None, encoding: str) -> Dataset:
    return load(name, data_dir, encoding="scalar" if encoding == "scalar" else "onehot")


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature: one simulation for all methods, then one compiled call per method."""
    cell = jobs[0].cell
    data = _dataset(cell.dataset, data_dir, cell["encoding"])
    if data.classes is None:
        raise ValueError(f"dataset={cell.dataset!r} is a regression; this experiment needs classes")
    model = mlp(data.x.shape[1], tuple(map(int, str(cell["hidden"]).split(","))), data.classes)
    place_of = {job: (measured(job.cell), job.seed) for job in jobs}
    cells = {place: job.cell for job, place in place_of.items()}
    drawn = [_member(data, cell, seed) for (_, seed), cell in cells.items()]
    members, around = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
    batch_size = None if cell["batch_size"] == "full" else cell["batch_size"]
    kept = _kept([name for job in jobs for name in phases_of(job)], cell["rounds"])
    messages, train, test = run_members(Victim(model, batch_size, cell["rounds"], kept), (members, around)).results
    candidates = members.column.candidates.shape[1]
    majority = jax.vmap(lambda truth: majority_rate(truth, candidates))(members.truth)
    facts = {
        place: {
            **{"majority": float(majority[i]), "train_accuracy": float(train[i]), "test_accuracy": float(test[i])},
            **{"chance": 1 / candidates, "note": data.note, "device": jax.devices()[0].device_kind},
        }
        for i, place in enumerate(cells)
    }
    for method in dict.fromkeys(job.method for job in jobs):
        wanted = [job for job in jobs if job.method == method]
        chosen = [place for place in cells if place in {place_of[job] for job in wanted}]
        rows = np.asarray([list(cells).index(place) for place in chosen])
        names = tuple(dict.fromkeys(name for job in wanted for name in phases_of(job)))
        found = _measure(method, cell, model, batch_size, names, kept, _rows((members, messages), rows))
        results = jax.tree.map(np.asarray, found.results)
        shared: dict[str, Any] = {"compile_s": found.compile_s, "run_s": found.run_s}
        shared["dtype"] = "float64" if method in DOUBLE else str(members.x.dtype)
        outcomes: list[Outcome] = []
        for job in wanted:
            own = facts[place_of[job]] | shared
            if method.startswith("public"):
                own |= _public_facts(method, members.x_public.shape[1], data.note)
            outcomes += _outcomes(job, names, _rows(results, chosen.index(place_of[job])), own)
        yield outcomes


def _rows(tree: Any, rows: Any) -> Any:
    return jax.tree.map(lambda a: a[rows], tree)


def _kept(phases: Sequence[str], rounds: int) -> tuple[int, ...]:
    """Rounds of the phases, and the last for evaluation."""
    return tuple(sorted({t for name in phases for t in rounds_of(name, rounds)} | {rounds - 1}))


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
    rounds = _kept(names, cell["rounds"])
    phases = tuple(tuple(map(rounds.index, rounds_of(name, cell["rounds"]))) for name in names)
    attack = Attack(
        method=method,
        model=model,
        phases=phases,
        prior_known=cell["prior"] == "known" or method == "stats",
        labels_known=cell["labels"] == "known",
        batch_size=batch_size if method in SIMULATED else None,
        chosen=tuple((name, cell[name]) for name in USES.get(method, ())),
    )
    members, messages = chosen
    needed = _rows(messages, (slice(None), np.asarray([kept.index(t) for t in rounds])))
    return run_members(attack, (members, needed), x64=method in DOUBLE)


def _public_facts(method: str, there: int, note: str) -> dict[str, Any]:
    asked = int(method.removeprefix("public"))
    facts: dict[str, Any] = {"detail": {"public_records": min(asked, there)}}
    return facts | ({"note": "; ".join(filter(None, (note, f"only {there} public records")))} if there < asked else {})


def _member(data: Dataset, cell: Cell, seed: int) -> tuple[Member, Surroundings]:
    """A seed's split: public records (10 %, at least 1,000 if there are enough), then training and test 8:2 (section 4.1)."""
    order = np.random.default_rng(seed).permutation(len(data))
    public = min(max(round(PUBLIC_FRACTION * len(data)), MOST_PUBLIC), len(data) // 3)
    train = public + round(TRAIN_FRACTION * (len(data) - public))
    records, participants = cell["records"], cell["participants"]
    if records * participants > train - public:
        raise ValueError(
            f"records={records} x participants={participants} exceeds {train - public} training records of {data.name}"
        )
    held = order[public : public + records * participants].reshape(participants, records)
    victim, others, training, test = held[0], held[1:], order[public:train], order[train : train + TEST_RECORDS]
    attribute = data.column(cell["attribute"])
    values = data.values_of(cell["attribute"])
    known = order[: min(public, MOST_PUBLIC)]
    column = UnknownColumn(
        jnp.asarray(attribute.positions),
        jnp.asarray(attribute.values),
        jnp.asarray(data.prior(cell["attribute"], training), jnp.float32),
    )
    member = Member(
        x=jnp.asarray(data.x[victim]),
        y=jnp.asarray(data.y[victim]),
        truth=jnp.asarray(values[victim]),
        column=column,
        x_public=jnp.asarray(data.x[known]),
        values_public=jnp.asarray(values[known]),
        learning_rate=jnp.asarray(cell["learning_rate"], jnp.float32),
        key=jax.random.key(seed),
    )
    return member, Surroundings(*map(jnp.asarray, (data.x[test], data.y[test], data.x[others], data.y[others])))


def _outcomes(job: Job, names: tuple[str, ...], found: Any, shared: dict[str, Any]) -> Iterator[Outcome]:
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
        chosen = ("none", own[-1]) if job.method == "stats" else ("objective", min(usable, key=lambda i: objectives[i]))
        choices = dict([chosen, ("oracle", max(usable, key=lambda i: scores[i]))])
    for selection, i in choices.items():
        ok = status[i] == 0
        state = "ok" if ok else "diverged"
        detail: dict[str, Value] = {"rounds_used": names[i]}
        if np.isfinite(objectives[i]):
            detail["objective"] = float(objectives[i])
        yield Outcome(job, "accuracy", float(scores[i]) if ok else None, selection, state, detail=detail, **shared)
        if np.isfinite(labels[i]):
            yield Outcome(job, "label_accuracy", float(labels[i]), selection, state, detail=detail, **shared)
