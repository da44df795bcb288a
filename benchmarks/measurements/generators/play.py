"""One federation of pictures with one seed, and what attacks on it share."""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    Adversarial,
    Generated,
    Representing,
    Virtual,
    gan_attack,
    generate,
    generator,
    infer_all_counts,
    last_bias,
    mgan_passive,
    mgan_server,
    round_counts,
)
from benchmarks.harness.engines import run_members
from benchmarks.measurements.generators.judges import Judges, train_judges
from benchmarks.scenarios.generated import (
    VICTIM,
    GeneratedSettings,
    World,
    digits,
    faces,
)
from benchmarks.scenarios.pictures import Represent, shared_model, strides
from benchmarks.scenarios.sources import pictures
from jaxfl import (
    ClientData,
    Federated,
    Keep,
    Model,
    Transcript,
    one_client,
    simulate,
    stack_clients,
)

Array = jax.Array
Samples = tuple[Array, Array]


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
        """Shape of an image."""
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
        keep = Keep(rounds=None if everything else (0,), clients="all" if everything else ())
        federated = Federated(settings.rounds, settings.training, keep=keep)
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
        """Representatives of every client in every round `[rounds, clients, images, ...]`."""
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
