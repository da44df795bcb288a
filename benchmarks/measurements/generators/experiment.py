"""How does one client's data look to a generator? (Song 2020, sections VII-C to VII-E; user-level
inversion)

A method here is `run(play, identity, settings) -> (images, classes asked for)`, for the victim (1)
or others (0); `Generating` is what is asked of it besides. `victim` and `others` are real images, a
yardstick. A passive attack only reads a
transcript: its shared models are those of no attack.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Inversion,
    generate,
    generator,
    invert_model,
)
from attacks.metrics import classifier_score
from benchmarks.harness.clock import Clock
from benchmarks.harness.experiment import Experiment, Method, Metric
from benchmarks.harness.jobs import Job, Outcome
from benchmarks.measurements.generators.judges import degraded
from benchmarks.measurements.generators.play import GeneratorSettings, Play, Samples
from benchmarks.scenarios.generated import (
    VICTIM,
    unworn,
)

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Generating:
    """Traits of a method.

    Attributes:
      plays: the federated training that the adversary takes part in, or only looks at.
      for_others: whether it generates others' images too, which judges should not take for the
        victim's.
      real: whose images they are, if they are real.
    """

    plays: Literal["passive_run", "active_run", "gan_run"] = "passive_run"
    for_others: bool = False
    real: Literal["victim", "others"] | None = None


def _gan(play: Play, identity: int, settings: None) -> Samples:
    make = generator(play.shape, play.world.classes, play.settings.game.width)
    params = play.gan_run.private.generator
    labels = jnp.full(play.settings.samples, play.target)
    return generate(make, params, labels, jnp.ones_like(labels), play.labels[1]), labels


def _inverted(play: Play, identity: int, settings: Inversion) -> Samples:
    params, (labels, _) = play.passive_run.params, play.labels
    inverted = invert_model(play.model(), params, play.shape, settings=settings)
    return inverted.images[labels], labels


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
    Method(
        "mgan_passive",
        "mGAN-AI that only looks (Song 2020, section V)",
        _passive(0.0),
        traits=Generating(for_others=True),
    ),
    Method(
        "mgan_adversarial_identity",
        "the same with an adversarial identity, beyond the paper",
        _passive(1.0),
        traits=Generating(for_others=True),
    ),
    Method(
        "mgan_active",
        "mGAN-AI that isolates the victim",
        _active,
        observes=False,
        traits=Generating(plays="active_run"),
    ),
    Method(
        "gan_attack",
        "a client that wants a class of the victim's (Hitaj et al. 2017)",
        _gan,
        observes=False,
        traits=Generating(plays="gan_run"),
    ),
    Method(
        "model_inversion",
        "images out of the shared model",
        _inverted,
        Inversion(steps=1000, learning_rate=0.05, start=0.0, low=-1.0, high=1.0),
        observes=False,
    ),
    Method(
        "victim",
        "the victim's real images",
        _real(others=False),
        observes=False,
        traits=Generating(real="victim"),
    ),
    Method(
        "others",
        "others' real images",
        _real(others=True),
        observes=False,
        traits=Generating(real="others"),
    ),
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
            scores = {"shared_accuracy": _shared_accuracy(play, job.how, asked)}
        else:
            scores, shown = _generated(play, job.how, job.method_settings)
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


def _shared_accuracy(play: Play, method: Method, rounds: int) -> float:
    """Accuracy of the shared model on test records after so many rounds; an attacker's own class
    counts as wrong."""
    run = getattr(play, EXPERIMENT.traits_of(method).plays)
    return float(np.asarray(run.evaluation.accuracy)[rounds - 1])


def _generated(
    play: Play, method: Method, attack: Any
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    traits = EXPERIMENT.traits_of(method)
    images, labels = method.run(play, 1, attack)
    probabilities = play.judges.classes(images)
    scores = {"victim_like": play.judges.like(images).mean()}
    if traits.real:
        like = np.full(len(images), traits.real == "victim")
        rng = np.random.default_rng(0)
        poor = degraded(np.asarray(images), np.asarray(labels), like, rng)
        scores["degraded_like"] = play.judges.like(jnp.asarray(poor)).mean()
    if play.settings.property != "glasses":  # there the victim's classes are kept from the judges
        finite = jnp.isfinite(probabilities).all(-1)
        right = jnp.where(finite, probabilities.argmax(-1) == labels, jnp.nan)
        scores["class_accuracy"] = right.mean()
        scores["classifier_score"] = classifier_score(probabilities)
    shown = {"for the victim": _grid(images)}
    if traits.for_others:
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
    traits=Generating,
)
