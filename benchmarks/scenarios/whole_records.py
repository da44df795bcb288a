"""One client's rows of a table, or those of several behind secure aggregation, and what is seen of
them; nothing of them is known."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.scenarios.sources import classified
from benchmarks.scenarios.streams import Stream, stream
from jaxfl import (
    Federated,
    Keep,
    LocalTraining,
    Messages,
    Model,
    Schema,
    Upload,
    evaluate,
    mean_loss,
    mlp,
    one_client,
    simulate,
    stack_clients,
)
from jaxfl.domains import Key, checked
from jaxfl.plugins import Plugin, overriding

Array = jax.Array
TEST_RECORDS, WARM_BATCH, WARM_RATE = 1000, 128, 1e-3
RANK = 1e-6
"""Least singular value of categories, which are zeros and ones, that counts."""


@dataclasses.dataclass(frozen=True)
class WholeRecordsSettings:
    """Whose records are read, and what is sent.

    Attributes:
      records: of the client, or of each client.
      clients: so many send; the server sees the mean of what they send, which secure aggregation
        leaves it, and reads the records of all.
      hidden: widths of the hidden layers.
      rounds: in which it sends.
      sends: "gradient" (FedSGD: one float32 gradient a round), or "model" (FedAvg: the difference
        of two float32 models).
      training: of the client.
      warm: steps of Adam on other people's records before the first round; 0: a fresh model.
      upload: what the client does to what it sends.
      half: whether what is sent is rounded to float16.
    """

    records: int
    hidden: tuple[int, ...] = (100, 100)
    rounds: int = 1
    sends: Literal["gradient", "model"] = "gradient"
    training: LocalTraining = LocalTraining(0.1)
    warm: int = 0
    upload: Upload = Upload()
    half: bool = False
    clients: int = 1

    @property
    def senders(self) -> tuple[Plugin, ...]:
        """What the client does beside its recipe."""
        return () if self.upload == Upload() else (self.upload,)


class View(NamedTuple):
    """What the adversary has, and no more.

    Attributes:
      model: the shared model.
      schema: what is public of the table.
      messages: what was seen of what was sent.
      training: the recipe that the messages follow.
      records: how many the clients have.
      public: other people's records, and their labels.
      key: what the attack draws from.
    """

    model: Model
    schema: Schema
    messages: Messages
    training: LocalTraining
    records: int
    public: tuple[np.ndarray, np.ndarray]
    key: Array


class Victim(NamedTuple):
    """A client, or several whose messages are seen as one.

    Attributes:
      view: the adversary's, of it.
      x, y: the records and labels.
      accuracy: of the model at first, on others' records.
      note: what a reader must know of the data.
    """

    view: View
    x: np.ndarray
    y: np.ndarray
    accuracy: float
    note: str

    @property
    def cancelling(self) -> int:
        """How many independent combinations of the records, with weights that sum to 0, have
        numbers alone: their categories cancel. The records' span holds each record plus any
        multiple of these, whose numbers may be those of a record too."""
        schema = self.view.schema
        numbers = [position for _, position, _ in schema.counted]
        ones = np.ones((len(self.x), 1))
        categories = np.delete(self.x.astype(float), [*numbers, *schema.positions], 1)
        rank = np.linalg.matrix_rank(np.concatenate([categories, ones], 1), tol=RANK)
        return len(self.x) - int(rank)


def draw(name: str, settings: WholeRecordsSettings, data_dir: str | None, seed: int) -> Victim:
    """The client of a seed, or several, and what is seen.

    Raises:
      ValueError: if the table has no other people's records.
    """
    data = classified(name, data_dir)
    if settings.records * settings.clients > len(data) - 2:
        each = f"records={settings.records} of clients={settings.clients}"
        raise ValueError(f"{each} leave no others of the {len(data)} of {name}")
    order = np.random.default_rng(seed).permutation(len(data))
    mine, others = np.split(order, [settings.records * settings.clients])
    test, public = np.split(others, [min(TEST_RECORDS, len(others) // 2)])
    key = jax.random.key(seed)
    model = mlp(data.x.shape[1], settings.hidden, data.classes or 0)
    x, y = data.x[mine], data.y[mine]
    start = model.init(key)
    if settings.warm:
        start = _warmed(model, start, (data.x[public], data.y[public]), key, settings.warm)
    training = stream(key, Stream.TRAINING)
    messages = _sent(model, start, (x, y), training, settings)
    recipe = settings.training if settings.sends == "model" else LocalTraining(1.0)
    others_held = data.x[public], data.y[public]
    attack_key = stream(key, Stream.ATTACK)
    view = View(model, data.schema(), messages, recipe, len(y), others_held, attack_key)
    accuracy = evaluate(model, start, one_client(data.x[test], data.y[test])).accuracy
    return Victim(view, x, y, float(accuracy), data.note)


def _warmed(
    model: Model, params: Any, records: tuple[np.ndarray, np.ndarray], key: Array, steps: int
) -> Any:
    """Trained on others' records by Adam, one batch a step."""
    x, y = map(jnp.asarray, records)
    adam = optax.adam(WARM_RATE)

    def step(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], None]:
        params, state = carry
        rows = jax.random.randint(key, (WARM_BATCH,), 0, len(x))
        slope = jax.grad(lambda p: mean_loss(model, p, x[rows], y[rows]))(params)
        updates, state = adam.update(slope, state)
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(stream(key, Stream.WARMING), steps)
    (params, _), _ = jax.jit(lambda c, k: jax.lax.scan(step, c, k))(
        (params, adam.init(params)), keys
    )
    return params


def _sent(
    model: Model,
    params: Any,
    records: tuple[np.ndarray, np.ndarray],
    key: Array,
    settings: WholeRecordsSettings,
) -> Messages:
    parts = list(zip(*(np.split(each, settings.clients) for each in records), strict=True))
    if settings.sends == "model":
        training, kept = settings.training, Keep(clients="all")
        federated = Federated(settings.rounds, training, plugins=settings.senders, keep=kept)
        run = simulate(model, params, stack_clients(parts), key, federated)
        returned = jax.tree.map(lambda a: a.mean(1), run.returned)
        return Messages(run.received, returned, jnp.arange(settings.rounds))
    rate = settings.training.learning_rate
    received: list[Any] = []
    sent: list[Any] = []
    for t in range(settings.rounds):
        round_key = jax.random.fold_in(key, t)
        # Not split for one client, whose draws are those of its published rows.
        keys = (
            round_key[None]
            if settings.clients == 1
            else jax.random.split(round_key, settings.clients)
        )
        pairs = zip(parts, keys, strict=True)
        gradients = [sent_gradient(model, params, part, each, settings) for part, each in pairs]
        gradient = jax.tree.map(lambda *g: sum(g) / len(g), *gradients)
        received, sent = [*received, params], [*sent, gradient]
        params = jax.tree.map(lambda w, g: w - rate * g, params, gradient)
    with jax.enable_x64(True):  # not `Messages.from_gradients`: a gradient may not be finite
        models, gradients = (
            jax.tree.map(lambda *a: jnp.stack([jnp.asarray(v, float) for v in a]), *trees)
            for trees in (received, sent)
        )
        returned = jax.tree.map(jnp.subtract, models, gradients)
        return Messages(models, returned, jnp.arange(settings.rounds))


@checked
def sent_gradient(
    model: Model,
    params: Any,
    records: tuple[np.ndarray, np.ndarray],
    key: Key,
    settings: WholeRecordsSettings,
) -> Any:
    """What a client of FedSGD sends in a round."""
    x, y = map(jnp.asarray, records)
    makers = overriding("step_gradient", (*settings.training.plugins, *settings.senders))
    if makers:
        whole = jnp.ones(len(x), bool)
        gradient = makers[0].step_gradient(model, params, x, y, whole, key)
    else:
        gradient = jax.grad(lambda p: mean_loss(model, p, x, y))(params)
    for plugin in overriding("send", (*settings.training.plugins, *settings.senders)):
        gradient = plugin.send(gradient, key)
    if settings.half:
        gradient = jax.tree.map(lambda g: g.astype(jnp.float16).astype(g.dtype), gradient)
    return gradient
