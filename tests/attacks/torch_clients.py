"""What PyTorch's own clients give away, by how they train.

`python -m tests.attacks.torch_clients 3` prints a table over so many federations, where PyTorch is
installed and `JAXFL_DATA` holds Adult. Two clients of 160 records and 20 rounds of averaging; the
server reads the first client's `sex` from its own prescription of the recipe.
"""

import copy
import dataclasses
import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn

from attacks import (
    GLS,
    AdamDecoding,
    ClosedForm,
    FitWarning,
    Knowledge,
    PartialDecoding,
    Reconstruction,
    Status,
    UnknownColumn,
    UnrolledGLS,
    closed_form,
    decode_adam,
    decode_partial,
    gls,
    gls_unrolled,
)
from jaxfl import (
    ClassWeights,
    LocalTraining,
    Model,
    label_smoothing,
    mlp,
    sgd,
)
from jaxfl.datasets import Dataset, load
from jaxfl.recordings import messages_from

RECORDS, PUBLIC, ROUNDS, WIDTH, RATE = 160, 2000, 20, 64, 0.1
SMOOTHING, WEIGHTS, DROPOUT = 0.1, (1.0, 3.0), 0.2


@dataclasses.dataclass(frozen=True)
class Client:
    """How a client trains, in PyTorch's words and in the server's.

    Attributes:
      name: of the row.
      recipe: what the server prescribed.
      optimizer: PyTorch's, of parameters.
      loss: PyTorch's.
      rate_of: the learning rate's factor by round.
      clip: largest norm of an update that is sent.
      proximal: FedProx's mu.
      dropout: whether hidden units are dropped.
      known: of how many of its records the server knows all but `sex`.
    """

    name: str
    recipe: LocalTraining
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    loss: nn.Module = dataclasses.field(default_factory=nn.CrossEntropyLoss)
    rate_of: Callable[[int], float] = lambda t: 1.0
    clip: float | None = None
    proximal: float = 0.0
    dropout: bool = False
    known: int = RECORDS


def _sgd(**settings: float) -> Callable[..., torch.optim.Optimizer]:
    return lambda parameters, lr: torch.optim.SGD(parameters, lr, **settings)


def _clients() -> list[Client]:
    full, batches = LocalTraining(RATE), LocalTraining(RATE, 2, 16)
    slow = dataclasses.replace(batches, learning_rate=0.02, optimizer=sgd(0.9, 1e-3))
    torch_heavy = _sgd(momentum=0.9, weight_decay=1e-3)
    weights = nn.CrossEntropyLoss(torch.tensor(WEIGHTS))
    smoothing = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)

    def changed(recipe: LocalTraining, **changes: Any) -> LocalTraining:
        return dataclasses.replace(recipe, **changes)

    weighted = {"plugins": (ClassWeights(WEIGHTS),)}
    return [
        Client("SGD, full batch", full),
        Client("SGD, full batch, half of the records known", full, known=RECORDS // 2),
        Client("SGD, full batch, a quarter of the records known", full, known=RECORDS // 4),
        Client("SGD, batches of 16, 2 epochs", batches),
        Client("the same, not shuffled", changed(batches, shuffle=False)),
        Client("5 full-batch epochs", changed(full, epochs=5)),
        Client("the last batch left out, batches of 48", changed(full, batch_size=48,
                                                                 drop_last=True, epochs=2)),
        Client("momentum .9 and decay 1e-3, 3 full-batch epochs",
               changed(slow, batch_size=None, epochs=3), torch_heavy),
        Client("the same, batches of 16, 2 epochs", slow, torch_heavy),
        Client("decay 1e-2, full batch", changed(full, optimizer=sgd(weight_decay=1e-2)),
               _sgd(weight_decay=1e-2)),
        Client("FedProx, mu 1, batches of 16, 2 epochs",
               changed(batches, optimizer=sgd(proximal=1.0)), proximal=1.0),
        Client("rate falls by a tenth a round, full batch", full, rate_of=lambda t: 0.9**t),
        Client("updates clipped to 0.05, full batch", full, clip=0.05),
        Client("class weights 1 and 3, full batch", changed(full, **weighted), loss=weights),
        Client("the same, batches of 16, 2 epochs", changed(batches, **weighted), loss=weights),
        Client("label smoothing .1, full batch", full, loss=smoothing),
        Client("the same, batches of 16, 2 epochs", batches, loss=smoothing),
        Client("dropout .2, full batch", full, dropout=True),
        Client("dropout .2, batches of 16, 2 epochs", batches, dropout=True),
        *_of_adam(full, batches),
    ]  # fmt: skip


def _of_adam(full: LocalTraining, batches: LocalTraining) -> list[Client]:
    changed = functools.partial(dataclasses.replace, learning_rate=1e-3, optimizer=optax.adam)
    adam, adamw = torch.optim.Adam, torch.optim.AdamW
    return [
        Client("Adam, full batch", changed(full), adam),
        Client("AdamW, full batch", changed(full, optimizer=optax.adamw), adamw),
        Client("Adam, 3 full-batch epochs", changed(full, epochs=3), adam),
        Client("Adam, batches of 16, 2 epochs", changed(batches), adam),
        Client("the same, not shuffled", changed(batches, shuffle=False), adam),
    ]


def attack_of(client: Client) -> str:
    """The attack that is for such clients."""
    if client.known < RECORDS:
        return "decode_partial"
    if client.recipe.optimizer in (optax.adam, optax.adamw):
        return "decode_adam" if client.recipe.steps(RECORDS) == 1 else "gls_unrolled"
    if (client.dropout and client.recipe.batch_size is not None) or not client.recipe.shuffle:
        return "gls_unrolled"
    if client.clip is not None or client.rate_of(1) != 1:
        return "closed_form, by_round"
    one_step = client.recipe == LocalTraining(RATE) and not client.dropout
    return "closed_form" if one_step else "gls"


def _trained(client: Client, sent: nn.Module, x: Any, y: Any, number: int) -> nn.Module:
    """One round of a client, in PyTorch."""
    model, recipe = copy.deepcopy(sent), client.recipe
    rate = float(recipe.learning_rate) * client.rate_of(number)
    optimizer = client.optimizer(model.parameters(), lr=rate)
    size = recipe.batch_size or len(x)
    for _ in range(recipe.epochs):
        order = torch.randperm(len(x)) if recipe.shuffle else torch.arange(len(x))
        for rows in order.split(size):
            if recipe.drop_last and len(rows) < size:
                continue
            optimizer.zero_grad()
            loss = client.loss(model(x[rows]), y[rows])
            pairs = zip(model.parameters(), sent.parameters(), strict=True)
            distance = sum(((p - q.detach()) ** 2).sum() for p, q in pairs)
            (loss + client.proximal / 2 * distance).backward()
            optimizer.step()
    if client.clip is not None:
        _clip(model, sent, client.clip)
    return model


def _clip(model: nn.Module, sent: nn.Module, most: float) -> None:
    with torch.no_grad():
        pairs = list(zip(model.parameters(), sent.parameters(), strict=True))
        norm = sum(((p - q) ** 2).sum() for p, q in pairs) ** 0.5
        for p, q in pairs:
            p.copy_(q + (p - q) * min(1.0, most / float(norm)))


def _state(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def _federation(client: Client, data: Dataset, rows: np.ndarray, seed: int) -> tuple[Any, Any]:
    """State dicts that the first client was sent and returned."""
    torch.manual_seed(seed)
    layers = [nn.Linear(data.x.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)]
    if client.dropout:
        layers.insert(2, nn.Dropout(DROPOUT))
    shared, sent, returned = nn.Sequential(*layers), [], []
    parts = rows.reshape(2, RECORDS)
    x, y = torch.tensor(data.x[parts], dtype=torch.float32), torch.tensor(data.y[parts]).long()
    for number in range(ROUNDS):
        models = [_trained(client, shared, x[i], y[i], number) for i in (0, 1)]
        sent.append(_state(shared))
        returned.append(_state(models[0]))
        with torch.no_grad():
            for p, *own in zip(*(m.parameters() for m in (shared, *models)), strict=True):
                p.copy_(sum(own) / 2)
    return sent, returned


def _read(
    client: Client, model: Model, messages: Any, known: Knowledge, public: tuple[Any, Any]
) -> Reconstruction:
    """By `attack_of` such clients."""
    recipe, attack = client.recipe, attack_of(client)
    if attack == "decode_partial":
        partial = PartialDecoding(RECORDS - client.known, recipe)
        return decode_partial(model, messages, known, *public, settings=partial)
    if attack == "decode_adam":
        decay = 1e-2 if recipe.optimizer is optax.adamw else 0.0
        adam = AdamDecoding(weight_decay=decay, learning_rate=float(recipe.learning_rate))
        return decode_adam(model, messages, known, settings=adam)
    if attack == "gls_unrolled":
        unrolled = UnrolledGLS(recipe)
        return gls_unrolled(model, messages, known, jax.random.key(0), settings=unrolled)
    if attack != "gls":
        settings = ClosedForm(by_round=attack != "closed_form")
        return closed_form(model, messages, known, settings=settings)
    return gls(model, messages, known, jax.random.key(0), settings=GLS(recipe))


def row(client: Client, data: Dataset, seed: int) -> tuple[float, float, str]:
    """Accuracy, the most frequent value's, and status, of one federation."""
    order = np.random.default_rng(seed).permutation(len(data))
    rows, public = order[: 2 * RECORDS], order[2 * RECORDS :][:PUBLIC]
    sent, returned = _federation(client, data, rows, seed)
    width = data.x.shape[1]
    model = mlp(width, (WIDTH,), 2, dropout=DROPOUT if client.dropout else 0.0)
    if isinstance(client.loss, nn.CrossEntropyLoss) and client.loss.label_smoothing:
        model = label_smoothing(model, SMOOTHING)
    messages = messages_from(model, sent, returned)
    own, column = rows[: client.known], data.column("sex")
    truth = data.values_of("sex")[own]
    x = np.array(data.x[own], np.float32)
    x[:, list(column.positions)] = np.nan
    unknown = UnknownColumn(jnp.asarray(column.positions), jnp.asarray(column.values))
    known = Knowledge(jnp.asarray(x), jnp.asarray(data.y[own]), (unknown,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        answer = _read(client, model, messages, known, (data.x[public], data.y[public]))
    right = float((np.asarray(answer.values[0]) == truth).mean())
    most = float(np.bincount(truth).max() / len(truth))
    return right, most, Status(int(answer.status)).name.lower()


def table(seeds: int, part: str = "") -> None:
    """Print a row for every client whose name has a part in it."""
    data = load("adult", os.environ["JAXFL_DATA"])
    for client in _clients():
        if part in client.name:
            rows = [row(client, data, seed) for seed in range(seeds)]
            right, most, status = zip(*rows, strict=True)
            each = ", ".join(f"{value:.3f}" for value in right)
            told = ", ".join(sorted(set(status)))
            attack = f"`{attack_of(client)}`"
            print(
                f"| {client.name} | {attack} | {each} | {np.mean(most):.3f} | {told} |", flush=True
            )


if __name__ == "__main__":
    table(int(sys.argv[1]), *sys.argv[2:])
