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
  prior: "known" (from the training records) or "unknown".
  labels: "known" or "unknown".
  encoding: "scalar" or "onehot".
  steps, gamma, adam_rate: Adam iterations of `cos`, its temperature and step size.
  unrolled_steps, unrolled_orders: iterations of `cos_unrolled`, simulated batch orders in each.
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
METHOD_SETTINGS = (
    "steps",
    "gamma",
    "adam_rate",
    "unrolled_steps",
    "unrolled_orders",
    "evaluations",
    "gls_orders",
    "gls_passes",
)

METHODS = ("random", "majority", "public100", "public1000", "stats", "l2_lbfgs", "cos", "closed_form")
SELECTING = ("l2_lbfgs", "cos", "cos_unrolled", "closed_form", "gls")
"""Methods with an objective, by which an adversary can choose among sets of rounds."""
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
      x_test: held-out records `[test, features]`.
      y_test: their labels `[test]`.
      x_others: records of the other participants `[participants - 1, records, features]`.
      y_others: their labels `[participants - 1, records]`.
      learning_rate: of the victim's SGD.
      key: everything random in this member.
    """

    x: Array
    y: Array
    truth: Array
    column: UnknownColumn
    x_public: Array
    values_public: Array
    x_test: Array
    y_test: Array
    x_others: Array
    y_others: Array
    learning_rate: Array
    key: Array


@dataclasses.dataclass(frozen=True)
class Setting:
    """What members of a group share; static.

    Attributes:
      model: the model.
      batch_size: records per local step, or None.
      rounds: communication rounds.
      phases: sets of rounds that the attack may use.
      prior_known: whether the adversary knows the attribute's distribution.
      labels_known: whether it knows the labels.
      method: settings of the methods, by name.
    """

    model: Model
    batch_size: int | None
    rounds: int
    phases: tuple[str, ...]
    prior_known: bool
    labels_known: bool
    method: tuple[tuple[str, Any], ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """Rounds whose messages are kept: the union of the phases, and the last for evaluation."""
        return tuple(sorted({t % self.rounds for name in self.phases for t in PHASES[name]} | {self.rounds - 1}))

    def training(self, member: Member) -> LocalTraining:
        """The victim's recipe."""
        return LocalTraining(member.learning_rate, batch_size=self.batch_size)


@dataclasses.dataclass(frozen=True)
class Victim:
    """Trains a member's victim, in its federation or alone, which is what isolation makes of it (paper 000, 3.1)."""

    setting: Setting

    def __call__(self, member: Member) -> tuple[Messages, Array, Array]:
        """The victim's messages, and the accuracy of its last model on its own and on held-out records."""
        setting = self.setting
        init_key, train_key = jax.random.split(jax.random.fold_in(member.key, 0))
        x = jnp.concatenate([member.x[None], member.x_others])
        y = jnp.concatenate([member.y[None], member.y_others])
        clients = ClientData(x, y, jnp.ones(y.shape, bool), jnp.arange(len(y)))
        record = Record(clients=(0,), rounds=setting.kept)
        federated = Federated(rounds=setting.rounds, training=setting.training(member), record=record)
        transcript = simulate(setting.model, setting.model.init(init_key), clients, train_key, federated)
        messages = transcript.messages(0)
        last = jax.tree.map(lambda a: a[-1], messages.returned)
        own = evaluate(setting.model, last, one_client(member.x, member.y))
        test = evaluate(setting.model, last, one_client(member.x_test, member.y_test))
        return messages, own.accuracy, test.accuracy


@dataclasses.dataclass(frozen=True)
class Attack:
    """Runs one method on a member and its victim's messages."""

    method: str
    setting: Setting

    def __call__(self, inputs: tuple[Member, Messages]) -> tuple[Array, Array, Array]:
        """Accuracy, objective and status, each `[phases]`."""
        member, messages = inputs
        key = jax.random.fold_in(member.key, 1)
        candidates, positions = len(member.column.candidates), member.column.positions
        records = len(member.x)
        if self.method == "stats":
            return self.judge(member, messages)
        if self.method not in SELECTING:
            if self.method == "random":
                values = random_guess(key, records, candidates)
            elif self.method == "majority":
                values = majority_guess(jnp.asarray(member.column.prior), records)
            else:
                n = int(self.method.removeprefix("public"))
                public, known = member.x_public[:n], member.values_public[:n]
                values = public_model(public, known, member.x, positions, candidates, key)
            return accuracy(values, member.truth)[None], jnp.full(1, jnp.nan), jnp.zeros(1, jnp.int32)

        def one_phase(messages: Messages) -> tuple[Array, Array, Array]:
            answer = self.match(member, messages, key)
            return accuracy(answer.values[0], member.truth), answer.objective, answer.status

        return over_phases(one_phase, messages, self.setting)

    def knowledge(self, member: Member) -> Knowledge:
        """What the adversary knows of this member."""
        column = member.column if self.setting.prior_known else dataclasses.replace(member.column, prior=None)
        return Knowledge(member.x, member.y if self.setting.labels_known else None, (column,))

    def judge(self, member: Member, messages: Messages) -> tuple[Array, Array, Array]:
        """The majority of the statistics on all kept rounds, then on each phase."""
        knowledge = self.knowledge(member)

        def score(messages: Messages) -> Array:
            return accuracy(statistics(self.setting.model, messages, knowledge)[-1], member.truth)

        scores = jnp.append(score(messages), over_phases(score, messages, self.setting))
        return scores, jnp.full(len(scores), jnp.nan), jnp.zeros(len(scores), jnp.int32)

    def match(self, member: Member, messages: Messages, key: Array) -> Reconstruction:
        """One method with an objective on the messages of one phase."""
        setting, knowledge = self.setting, self.knowledge(member)
        training, chosen = setting.training(member), dict(setting.method)
        if self.method == "closed_form":
            full_step = ClosedForm(training.learning_rate)
            return closed_form(setting.model, messages, knowledge, settings=full_step).reconstruction
        if self.method == "gls":
            simulated = GLS(training, orders=chosen["gls_orders"], passes=chosen["gls_passes"])
            return gls(setting.model, messages, knowledge, key, settings=simulated)
        if self.method == "l2_lbfgs":
            rival = L2Matching(chosen["evaluations"], Virtual(training=training))
            return l2_lbfgs(setting.model, messages, knowledge, key, settings=rival)
        steps, virtual = chosen["steps"], Virtual(training=training)
        if self.method == "cos_unrolled":
            steps, virtual = chosen["unrolled_steps"], Virtual("unrolled", training, chosen["unrolled_orders"])
        settings = CosMatching(chosen["gamma"], chosen["adam_rate"], steps, virtual=virtual)
        return cos_matching(setting.model, messages, knowledge, key, settings=settings)


def over_phases(attack: Callable[[Messages], Any], messages: Messages, setting: Setting) -> Any:
    """`attack` on every phase `[phases]`; phases of equal length share one compiled loop."""
    places = [jnp.asarray([setting.kept.index(t % setting.rounds) for t in PHASES[name]]) for name in setting.phases]
    results: list[Any] = [None] * len(places)
    for length in {len(p) for p in places}:
        same = [i for i, p in enumerate(places) if len(p) == length]
        rows = jnp.stack([places[i] for i in same])
        found = jax.lax.map(lambda r: attack(jax.tree.map(lambda a: a[r], messages)), rows)
        for j, i in enumerate(same):
            results[i] = jax.tree.map(lambda a, j=j: a[j], found)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def applies(cell: Cell, method: str) -> bool:
    """Simulating the training is for victims that train in batches: with full batches it is the gradient. Differentiating
    through more than five rounds of it takes too long here."""
    if method in ("cos_unrolled", "gls"):
        few = all(len(PHASES[name]) <= 5 for name in cell["phases"].split(","))
        return cell["batch_size"] != "full" and (few or method == "gls")
    return cell["labels"] == "known" or method not in ("stats", "l2_lbfgs")


def signature(cell: Cell) -> Any:
    """Everything but the attribute and the learning rate, which are traced."""
    traced = ("attribute", "learning_rate")
    return cell.dataset, tuple((k, v) for k, v in cell.settings if k not in traced)


@functools.lru_cache(maxsize=2)
def _dataset(name: str, data_dir: str | None, encoding: str) -> Dataset:
    return load(name, data_dir, encoding="scalar" if encoding == "scalar" else "onehot")


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature: one simulation for all methods, then one compiled call per method."""
    cell = jobs[0].cell
    data = _dataset(cell.dataset, data_dir, cell["encoding"])
    places = list(dict.fromkeys((job.cell, job.seed) for job in jobs))
    members = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(_member(data, cell, seed) for cell, seed in places))
    setting = _setting(cell, data)
    messages, train, test = run_members(Victim(setting), members).results
    majority = jax.vmap(lambda truth: majority_rate(truth, members.column.candidates.shape[1]))(members.truth)
    for method in dict.fromkeys(job.method for job in jobs):
        wanted = {(job.cell, job.seed): job for job in jobs if job.method == method}
        rows = np.asarray([i for i, place in enumerate(places) if place in wanted])
        chosen = jax.tree.map(lambda a, rows=rows: a[rows], (members, messages))
        found = run_members(Attack(method, setting), chosen, x64=method in DOUBLE)
        outcomes: list[Outcome] = []
        for row, i in enumerate(rows):
            shared = {
                "majority": float(majority[i]),
                "train_accuracy": float(train[i]),
                "test_accuracy": float(test[i]),
                "chance": 1 / members.column.candidates.shape[1],
                "compile_s": found.compile_s,
                "run_s": found.run_s,
                "note": data.note,
                "device": jax.devices()[0].device_kind,
                "dtype": "float64" if method in DOUBLE else str(members.x.dtype),
            }
            if method.startswith("public"):
                asked, there = int(method.removeprefix("public")), members.x_public.shape[1]
                shared["detail"] = {"public_records": min(asked, there)}
                if there < asked:
                    shared["note"] = "; ".join(filter(None, (data.note, f"only {there} public records")))
            outcomes += _outcomes(wanted[places[i]], setting, row, found, shared)
        yield outcomes


def _setting(cell: Cell, data: Dataset) -> Setting:
    if data.classes is None:
        raise ValueError(f"dataset={cell.dataset!r} is a regression; this experiment needs classes")
    return Setting(
        model=mlp(data.x.shape[1], tuple(map(int, str(cell["hidden"]).split(","))), data.classes),
        batch_size=None if cell["batch_size"] == "full" else cell["batch_size"],
        rounds=cell["rounds"],
        phases=tuple(cell["phases"].split(",")),
        prior_known=cell["prior"] == "known",
        labels_known=cell["labels"] == "known",
        method=tuple((name, cell[name]) for name in METHOD_SETTINGS),
    )


def _member(data: Dataset, cell: Cell, seed: int) -> Member:
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
    return Member(
        x=jnp.asarray(data.x[victim]),
        y=jnp.asarray(data.y[victim]),
        truth=jnp.asarray(values[victim]),
        column=column,
        x_public=jnp.asarray(data.x[known]),
        values_public=jnp.asarray(values[known]),
        x_test=jnp.asarray(data.x[test]),
        y_test=jnp.asarray(data.y[test]),
        x_others=jnp.asarray(data.x[others]),
        y_others=jnp.asarray(data.y[others]),
        learning_rate=jnp.asarray(cell["learning_rate"], jnp.float32),
        key=jax.random.key(seed),
    )


def _outcomes(job: Job, setting: Setting, row: int, found: Compiled, shared: dict[str, Any]) -> Iterator[Outcome]:
    """One outcome per selection: the phase chosen by the objective, and the best one as the oracle's."""
    scores, objectives, status = (np.asarray(a)[row] for a in found.results)
    if job.method not in SELECTING:
        yield Outcome(job, "accuracy", float(scores[0]), **shared)
        if len(scores) > 1:  # stats: the paper shows the best phase
            best = int(np.argmax(scores))
            detail: dict[str, Value] = {"rounds_used": ("all kept", *setting.phases)[best]}
            yield Outcome(job, "accuracy", float(scores[best]), "oracle", detail=detail, **shared)
        return
    choices = {"objective": int(np.nanargmin(np.where(status == 0, objectives, np.inf)))}
    if len(setting.phases) > 1:
        choices["oracle"] = int(np.argmax(np.where(status == 0, scores, -1)))
    for selection, phase in choices.items():
        ok = status[phase] == 0
        detail = {"rounds_used": setting.phases[phase], "objective": float(objectives[phase])}
        if len(setting.phases) == 1:
            selection = "none"
        value = float(scores[phase]) if ok else None
        yield Outcome(job, "accuracy", value, selection, "ok" if ok else "diverged", detail=detail, **shared)
