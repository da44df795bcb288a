"""How does one client's data look to a generator? (Song 2020, sections VII-C to VII-E; user-level
inversion)

A method here is `run(play, identity, settings) -> (images, classes asked for)`, for the victim (1)
or others (0). `victim` and `others` are real images, a yardstick. A passive attack only reads a
transcript: its shared models are those of no attack.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Adversarial,
    Generated,
    Inversion,
    Representing,
    Virtual,
    gan_attack,
    generate,
    generator,
    infer_all_counts,
    invert_model,
    last_bias,
    mgan_passive,
    mgan_server,
    round_counts,
)
from attacks.metrics import classifier_score
from benchmarks.harness.clock import Clock
from benchmarks.harness.engines import run_members
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome
from benchmarks.measurements.generator_judges import Judges, degraded, train_judges
from benchmarks.scenarios.generated import (
    VICTIM,
    GeneratedSettings,
    World,
    digits,
    faces,
    unworn,
)
from benchmarks.scenarios.pictures import Represent, shared_model, strides
from benchmarks.scenarios.sources import pictures
from jaxfl import (
    ClientData,
    Federated,
    Model,
    Record,
    Transcript,
    one_client,
    simulate,
    stack_clients,
)

Array = jax.Array
Samples = tuple[Array, Array]
PASSIVE = ("mgan_passive", "mgan_adversarial_identity")


@dataclasses.dataclass(frozen=True)
class GeneratorSettings(GeneratedSettings):
    """A federation, the adversary's game, and what is asked of it.

    Attributes:
      game: networks and losses of the adversary's.
      representing: how representatives are searched for.
      labels: "bias", how many of each class is inferred from the updates; "known": the server is
        granted the counts.
      round: after how many rounds the shared model is judged, or 0: judge what was generated.
      samples: images that each method generates (Song 2020, section VII-E).
      judge_steps: of the training of each classifier that judges them, at least.
    """

    game: Adversarial = Adversarial()
    representing: Representing = Representing(images=30, evaluations=100, tv_weight=1e-5)
    labels: Literal["bias", "known"] = "bias"
    round: int = 0
    samples: int = 400
    judge_steps: int = 450


class Play:
    """One federation with one seed; what methods share is made once."""

    def __init__(
        self, name: str, settings: GeneratorSettings, data_dir: str | None, seed: int
    ) -> None:
        self.data = pictures(name, data_dir, settings.side)
        self.settings, self.note = settings, self.data.note
        draw = faces if settings.property == "glasses" else digits
        self.world: World = draw(self.data, settings, seed)
        names = ("start", "train", "server", "passive", "representatives", "samples", "judges")
        keys = jax.random.split(jax.random.key(seed), 8)[: len(names)]
        self.keys = dict(zip(names, keys, strict=True))
        self._played: dict[float, Generated] = {}

    def model(self, more: int = 0) -> Model:
        """The shared classifier, with so many classes more than there are."""
        return shared_model(self.data, self.settings.widths, more)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image."""
        return self.world.parts[0][0].shape[1:]

    @property
    def auxiliary(self) -> ClientData:
        """The adversary's records."""
        return one_client(*self.world.auxiliary)

    @functools.cached_property
    def judges(self) -> Judges:
        """Independent classifiers."""
        settings = self.settings
        convolutions = strides(settings.side[0])
        return train_judges(self.world, convolutions, self.keys["judges"], settings.judge_steps)

    def simulate(self, server: Any = None, more: int = 0, everything: bool = False) -> Transcript:
        """Federated training under some server; `everything` keeps all messages."""
        model, settings = self.model(more), self.settings
        record = Record(rounds=None if everything else (0,), clients="all" if everything else ())
        federated = Federated(settings.rounds, settings.training, record=record)
        clients, test = stack_clients(self.world.parts), one_client(*self.world.test)
        start, key = model.init(self.keys["start"]), self.keys["train"]
        return simulate(model, start, clients, key, federated, server=server, test=test)

    @functools.cached_property
    def passive_run(self) -> Transcript:
        """Federated training that nobody disturbs, with all messages."""
        return self.simulate(everything=True)

    @functools.cached_property
    def active_run(self) -> Transcript:
        """The victim apart, with the server's networks."""
        server = mgan_server(
            self.model(),
            VICTIM,
            self.auxiliary,
            self.keys["server"],
            categories=self.categories,
            settings=self.settings.game,
        )
        return self.simulate(server)

    @functools.cached_property
    def gan_run(self) -> Transcript:
        """The first client that has not the victim's most frequent class attacks by it."""
        attacker = self.attacker
        server = gan_attack(
            self.model(1),
            attacker,
            self.target,
            one_client(*self.world.parts[attacker], id=attacker),
            self.settings.training,
            self.keys["server"],
            settings=self.settings.game,
        )
        return self.simulate(server, 1)

    @property
    def attacker(self) -> int:
        """The attacking client. Raises `ValueError` if all have the class that it wants."""
        parts = enumerate(self.world.parts)
        able = [c for c, (_, y) in parts if c != VICTIM and self.target not in y]
        if not able:
            raise ValueError(
                f"classes_held={self.settings.classes_held}: "
                f"no client is without the victim's class {self.target}"
            )
        return able[0]

    @property
    def target(self) -> int:
        """The class that the attacking client wants and is taken to know: the victim's most
        frequent one."""
        return int(np.bincount(self.world.parts[VICTIM][1]).argmax())

    @functools.cached_property
    def counts(self) -> Array:
        """How many representatives of each class `[rounds, clients, classes]`."""
        run, classes = self.passive_run, self.world.classes
        images = self.settings.representing.images
        if self.settings.labels == "known":
            held = [np.bincount(y, minlength=classes) for _, y in self.world.parts]
            counts = jax.vmap(lambda n: round_counts(n, images))(jnp.asarray(held, jnp.float32))
            return jnp.broadcast_to(counts, (len(run.rounds), *counts.shape))
        bias, known = last_bias(self.model(), run.pseudo_gradient), self.auxiliary
        model, virtual = self.model(), self.virtual
        return infer_all_counts(model, run.received, bias, known.x, known.y, images, virtual)

    @property
    def categories(self) -> Array:
        """How often to generate each class `[classes]`: as the victim's first message has them."""
        first = self.counts[0, VICTIM]
        return jnp.where(first < 0, jnp.nan, first / first.sum())

    @property
    def virtual(self) -> Virtual:
        """How the server predicts updates: as if all clients had as many records as
        the smallest."""
        smallest = min(len(y) for _, y in self.world.parts)
        return Virtual(training=self.settings.training, records=smallest)

    def passive(self, adversarial: float) -> Generated:
        """A passive attack, by the weight of its adversarial identity (beyond the paper)."""
        if adversarial not in self._played:
            run, images = self.passive_run, self.representatives
            game = dataclasses.replace(self.settings.game, adversarial_identity_weight=adversarial)
            self._played[adversarial] = mgan_passive(
                self.model(),
                run.messages(VICTIM),
                images[:, VICTIM],
                images[:, 1:].reshape(len(images), -1, *self.shape),
                self.auxiliary,
                self.keys["passive"],
                categories=self.categories,
                settings=game,
            )
        return self._played[adversarial]

    @functools.cached_property
    def representatives(self) -> Array:
        """Of every client in every round `[rounds, clients, images, ...]`."""
        counts, run = self.counts, self.passive_run
        settings = dataclasses.replace(self.settings.representing, virtual=self.virtual)
        keys = jax.random.split(self.keys["representatives"], counts.shape[:2])
        function = Represent(self.model(), self.shape, settings)
        inputs = run.received, run.pseudo_gradient, counts, keys
        return run_members(function, inputs).results.x

    @property
    def labels(self) -> tuple[Array, Array]:
        """Classes asked for `[samples]`, and the key of what is drawn for them."""
        label_key, key = jax.random.split(self.keys["samples"])
        shape = (self.settings.samples,)
        return jax.random.choice(label_key, self.world.classes, shape, p=self.categories), key

    def generated(self, params: Any, identity: int) -> Samples:
        """Images of a generator, both identities in one batch, as in training."""
        make = generator(self.shape, self.world.classes, self.settings.game.width)
        labels, key = self.labels
        both = jnp.repeat(jnp.asarray([1, 0]), len(labels))
        images = generate(make, params, jnp.concatenate([labels, labels]), both, key)
        return jnp.split(images, 2)[1 - identity], labels


def _gan(play: Play, identity: int, settings: None) -> Samples:
    make = generator(play.shape, play.world.classes, play.settings.game.width)
    params = play.gan_run.private.generator
    labels = jnp.full(play.settings.samples, play.target)
    return generate(make, params, labels, jnp.ones_like(labels), play.labels[1]), labels


def _inverted(play: Play, identity: int, settings: Inversion) -> Samples:
    params, (labels, _) = play.passive_run.params, play.labels
    images, _ = invert_model(play.model(), params, play.shape, settings=settings)
    return images[labels], labels


def _real(others: bool) -> Callable[[Play, int, None], Samples]:
    def run(play: Play, identity: int, settings: None) -> Samples:
        x, y = _others(play) if others else play.world.parts[VICTIM]
        rows = np.random.default_rng(0).integers(0, len(x), play.settings.samples)
        return jnp.asarray(x[rows]), jnp.asarray(y[rows])

    return run


def _others(play: Play) -> tuple[np.ndarray, np.ndarray]:
    """Real images of what is generated for others: of the other clients, or the victim's persons
    without glasses."""
    glasses = play.settings.property == "glasses"
    parts = unworn(play.world) if glasses else play.world.parts[1:]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _passive(adversarial: float) -> Callable[[Play, int, None], Samples]:
    return lambda play, identity, settings: play.generated(
        play.passive(adversarial).networks.generator, identity
    )


def _active(play: Play, identity: int, settings: None) -> Samples:
    return play.generated(play.active_run.private.state.networks.generator, identity)


def _judges_the_model(settings: GeneratorSettings) -> str | None:
    return None if settings.round else "round=0: there is nothing generated to judge"


METHODS = (
    Method("none", "no attack", refuses=_judges_the_model, observes=False),
    Method("mgan_passive", "mGAN-AI that only looks (Song 2020, section V)", _passive(0.0)),
    Method(
        "mgan_adversarial_identity",
        "the same with an adversarial identity, beyond the paper",
        _passive(1.0),
    ),
    Method("mgan_active", "mGAN-AI that isolates the victim", _active, observes=False),
    Method(
        "gan_attack",
        "a client that wants a class of the victim's (Hitaj et al. 2017)",
        _gan,
        observes=False,
    ),
    Method(
        "model_inversion",
        "images out of the shared model",
        _inverted,
        Inversion(steps=1000, learning_rate=0.05, start=0.0, low=-1.0, high=1.0),
        observes=False,
    ),
    Method("victim", "the victim's real images", _real(others=False), observes=False),
    Method("others", "others' real images", _real(others=True), observes=False),
)
METRICS = (
    Metric("victim_like", "generated for the victim and taken for the victim's", True),
    Metric("others_like", "generated for others and taken for the victim's", True),
    Metric(
        "degraded_like", "real images degraded as a judge's copies, taken for the victim's", True
    ),
    Metric("class_accuracy", "generated images of the class asked for", True),
    Metric("classifier_score", "how classifiable and how diverse images are"),
    Metric("shared_accuracy", "of the shared model on test records", True),
)


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of one group and seed: one federation, each method once. What methods share is in
    the time of the first that needs it."""
    cell, seed = jobs[0].cell, jobs[0].seed
    play = Play(cell.dataset, cell.settings, data_dir, seed)
    for job in jobs:
        clock, asked = Clock(), job.cell.settings.round
        shown: dict[str, np.ndarray] = {}
        if asked:
            scores = {"shared_accuracy": _shared_accuracy(play, job.method, asked)}
        else:
            scores, shown = _generated(play, job.how, job.attack)
        shared: dict[str, Any] = {
            **clock.read()._asdict(),
            "dtype": "float32",
            "note": play.note,
            "chance": 1 / play.world.classes if asked else None,
            # Samples are few pictures again and again: a share of them is of no independent
            # records.
            "detail": {"scored_records": len(play.world.test[1]) if asked else 0},
        }
        yield [
            Outcome(job, metric, number, images=shown if place == 0 else {}, **shared)
            for place, (metric, number) in enumerate(scores.items())
        ]


def _shared_accuracy(play: Play, method: str, rounds: int) -> float:
    """Of the shared model on test records after so many rounds; an attacker's own class counts as
    wrong."""
    disturbed = {"mgan_active": "active_run", "gan_attack": "gan_run"}
    run = getattr(play, disturbed.get(method, "passive_run"))
    return float(np.asarray(run.evaluation.accuracy)[rounds - 1])


def _generated(
    play: Play, method: Method, attack: Any
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    images, labels = method.run(play, 1, attack)
    probabilities = play.judges.classes(images)
    scores = {"victim_like": play.judges.like(images).mean()}
    if method.name in ("victim", "others"):
        like = np.full(len(images), method.name == "victim")
        rng = np.random.default_rng(0)
        poor = degraded(np.asarray(images), np.asarray(labels), like, rng)
        scores["degraded_like"] = play.judges.like(jnp.asarray(poor)).mean()
    if play.settings.property != "glasses":  # there the victim's classes are kept from the judges
        finite = jnp.isfinite(probabilities).all(-1)
        right = jnp.where(finite, probabilities.argmax(-1) == labels, jnp.nan)
        scores["class_accuracy"] = right.mean()
        scores["classifier_score"] = classifier_score(probabilities)
    shown = {"for the victim": _grid(images)}
    if method.name in PASSIVE:  # the active attack has no others
        others, _ = method.run(play, 0, attack)
        scores["others_like"] = play.judges.like(others).mean()
        shown["for others"] = _grid(others)
    return {name: float(value) for name, value in scores.items()}, shown


def _grid(images: Array, down: int = 3, across: int = 8) -> np.ndarray:
    """The first images side by side, in [0, 1]."""
    tiles = (np.asarray(images[: down * across])[..., 0] + 1) / 2
    height, width = tiles.shape[1:]
    rows = tiles.reshape(down, across, height, width).transpose(0, 2, 1, 3)
    return rows.reshape(down * height, across * width)


EXPERIMENT = Experiment(
    "generators",
    GeneratorSettings,
    METHODS,
    METRICS,
    run,
    asked=("round",),
    batched=False,
)
