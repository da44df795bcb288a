"""Write the recordings beside this file, by PyTorch and Flower themselves: `python write.py` where
torch 2.13, flwr 1.42 and safetensors are installed."""

import copy
import csv
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

HERE = Path(__file__).parent
CLIENTS = {"ana": 40, "ben": 60, "eve": 50}
NODES = {2**63 + 11: "ana", 2**63 + 12: "ben", 2**63 + 13: "eve"}
ROUNDS, RATE = 6, 0.1


def table() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Records of every client, made up, and written to `records.csv`."""
    rng, parts, rows = np.random.default_rng(0), {}, []
    for client, count in CLIENTS.items():
        numbers = rng.normal(size=(count, 5)).round(3)
        flags = rng.integers(0, 2, (count, 3))
        x = np.concatenate([numbers, flags], 1).astype(np.float32)
        score = numbers @ [1, -1, 0.5, 0, 0] + flags @ [0, 1, -1] + rng.normal(size=count)
        y = (score > 0).astype(int)
        parts[client] = torch.tensor(x), torch.tensor(y)
        both = zip(x, y, strict=True)
        rows += [[client, *map("{:g}".format, record), label] for record, label in both]
    with (HERE / "records.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = ["age", "income", "debt", "tenure", "visits", "owner", "smoker", "married"]
        writer.writerows([["client", *names, "default"], *rows])
    return parts


def network(*after: nn.Module, outputs: int = 2) -> nn.Module:
    """The same one whenever it is asked for, whatever is drawn beside it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 12), *(after or (nn.ReLU(),)), nn.Linear(12, outputs))


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """One full-batch step of SGD."""
    model = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), RATE)
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
    return model


def trained_in_batches(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """Two epochs of SGD in batches of 16."""
    model = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), RATE)
    records = torch.utils.data.TensorDataset(x, y)
    for _ in range(2):
        for inputs, labels in torch.utils.data.DataLoader(records, 16, shuffle=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimiser.step()
    return model


def write_torch(parts: dict[str, Any]) -> None:
    """A run of plain PyTorch: what is sent as safetensors, what comes back as `.npz`; and one
    model in every format, checkpoints among them."""
    folder, model = HERE / "pytorch", network()
    folder.mkdir(exist_ok=True)
    total = sum(CLIENTS.values())
    for t in range(ROUNDS):
        safetensors.torch.save_file(model.state_dict(), folder / f"round-{t}-sent.safetensors")
        back = {client: trained(model, *records).state_dict() for client, records in parts.items()}
        for client, state in back.items():
            if (t, client) != (2, "ben"):  # a file that nobody kept
                arrays = {name: array.numpy() for name, array in state.items()}
                np.savez(folder / f"round-{t}-client-{client}.npz", **arrays)
        weights = {client: CLIENTS[client] / total for client in back}
        mean = {n: sum(weights[c] * s[n] for c, s in back.items()) for n in model.state_dict()}
        model.load_state_dict(mean)
    formats = HERE / "formats"
    formats.mkdir(exist_ok=True)
    state = model.state_dict()
    torch.save(state, formats / "state.pt")
    torch.save({"epoch": 3, "model_state_dict": state}, formats / "checkpoint.pt")
    torch.save(model, formats / "module.pt")  # which needs code to be loaded
    safetensors.torch.save_file(state, formats / "state.safetensors")
    halves = {name: array.bfloat16() for name, array in state.items()}
    safetensors.torch.save_file(halves, formats / "bfloat16.safetensors")
    np.savez(formats / "state.npz", **{name: array.numpy() for name, array in state.items()})
    np.savez(formats / "unnamed.npz", *[array.numpy() for array in state.values()])
    x, _ = parts["ana"]
    np.savez(formats / "outputs.npz", x=x.numpy(), outputs=model(x).detach().numpy())


def write_adam(parts: dict[str, Any]) -> None:
    """A client alone, by Adam and by AdamW, whose optimiser is made anew in every round."""
    x, y = parts["ana"]
    for name in ("Adam", "AdamW"):
        folder, model = HERE / name.lower(), network()
        folder.mkdir(exist_ok=True)
        for t in range(8):
            safetensors.torch.save_file(model.state_dict(), folder / f"round-{t}-sent.safetensors")
            optimiser = getattr(torch.optim, name)(model.parameters(), lr=1e-2)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
            arrays = {key: array.numpy() for key, array in model.state_dict().items()}
            np.savez(folder / f"round-{t}-client-ana.npz", **arrays)


def write_unshuffled(parts: dict[str, Any]) -> None:
    """A client alone, whose data loader leaves records in their order, as it does unless asked."""
    x, y = parts["ana"]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 16)
    optimisers = {
        "unshuffled": lambda weights: torch.optim.SGD(weights, RATE, momentum=0.9),
        "unshuffled_adam": lambda weights: torch.optim.Adam(weights, 1e-2),
    }
    for name, made in optimisers.items():
        folder, model = HERE / name, network()
        folder.mkdir(exist_ok=True)
        for t in range(4):
            safetensors.torch.save_file(model.state_dict(), folder / f"round-{t}-sent.safetensors")
            optimiser = made(model.parameters())
            for inputs, labels in 2 * list(loader):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimiser.step()
            arrays = {key: array.numpy() for key, array in model.state_dict().items()}
            np.savez(folder / f"round-{t}-client-ana.npz", **arrays)


def write_losses(parts: dict[str, Any]) -> None:
    """A client alone that takes full-batch steps of SGD, of other networks and losses."""
    x, y = parts["ana"]

    def of_one_logit(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.float())

    clients = {
        "one_output": (network(nn.Tanh(), outputs=1), of_one_logit),
        "smoothing": (network(nn.GELU()), nn.CrossEntropyLoss(label_smoothing=0.1)),
        "weights": (network(nn.LeakyReLU()), nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]))),
        "dropout": (network(nn.ReLU(), nn.Dropout(0.2)), nn.CrossEntropyLoss()),
    }
    for name, (model, loss) in clients.items():
        folder, optimiser = HERE / name, torch.optim.SGD(model.parameters(), RATE)
        folder.mkdir(exist_ok=True)
        for t in range(ROUNDS if name != "dropout" else 4 * ROUNDS):
            safetensors.torch.save_file(model.state_dict(), folder / f"round-{t}-sent.safetensors")
            optimiser.zero_grad()
            loss(model(x), y).backward()
            optimiser.step()
            arrays = {key: array.numpy() for key, array in model.state_dict().items()}
            np.savez(folder / f"round-{t}-client-ana.npz", **arrays)


def write_cnn() -> None:
    """A convolutional network with batch normalisation, and its outputs."""
    torch.manual_seed(1)
    layers = (
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * 4 * 6, 4),
    )
    model, x = nn.Sequential(*layers).train(), torch.randn(5, 2, 6, 8)
    outputs = model(x).detach()
    safetensors.torch.save_file(model.state_dict(), HERE / "formats" / "cnn.safetensors")
    np.savez(HERE / "formats" / "cnn_outputs.npz", x=x.numpy(), outputs=outputs.numpy())


class InProcess(Grid):
    """Runs clients where the server runs: what they do in a round, and Flower's modifiers of it."""

    def __init__(self, parts: dict[str, Any], train: Any = trained, mod: Any = None) -> None:
        self.parts, self.train, self.mod = parts, train, mod

    def client(self, message: Message, context: Context) -> Message:
        x, y = self.parts[NODES[message.metadata.dst_node_id]]
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        arrays = ArrayRecord(self.train(model, x, y).state_dict())
        metrics = MetricRecord({"num-examples": len(y)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def get_node_ids(self) -> Iterable[int]:
        return list(NODES)

    def send_and_receive(self, messages: Iterable[Message], **_: Any) -> Iterable[Message]:
        for message in messages:
            if message.metadata.message_type == "train":
                node = message.metadata.dst_node_id
                context = Context(1, node, {}, RecordDict(), {})
                yield (
                    self.mod(message, context, self.client)
                    if self.mod
                    else self.client(message, context)
                )

    def set_run(self, run: Any) -> None: ...
    def run(self) -> Any: ...
    def create_message(self, *_: Any, **__: Any) -> Any: ...
    def get_nodes(self) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...


def run_flower(folder: Path, strategy: str, rounds: int, grid: Grid, **settings: Any) -> None:
    """A run of one of Flower's strategies in place of the one that the documentation shows, and the
    global model after every round as Flower's documentation saves it."""
    page = (HERE.parent.parent / "docs" / "recordings.md").read_text()
    (code,) = re.findall(r"```python flower\n(.*?)```", page, re.S)
    shown: dict[str, Any] = {}
    exec(code.replace("FedAvg", strategy), shown)
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    TaskIdentity.run_id = TaskIdentity.task_id = 1  # which Flower's engine would set
    TaskIdentity.node_id = 1
    recorder = shown["Recorder"](fraction_evaluate=0.0, min_available_nodes=3, **settings)

    def keep(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            np.savez(f"round-{server_round}-weights.npz", *arrays.to_numpy_ndarrays())

    recorder.start(grid, ArrayRecord(network().state_dict()), rounds, evaluate_fn=keep)


def write_flower(parts: dict[str, Any]) -> None:
    """Full batches and FedAvg; batches and FedAdam, of two clients a round; clients whose updates
    Flower clips, and others to which it adds noise; of batches and FedAvg the global models
    alone."""
    torch.manual_seed(1)
    everyone, some = {"min_train_nodes": 3}, {"fraction_train": 0.67, "min_train_nodes": 2}
    run_flower(HERE / "flower", "FedAvg", ROUNDS, InProcess(parts), **everyone)
    batches = InProcess(parts, trained_in_batches)
    run_flower(HERE / "flower_batches", "FedAdam", 24, batches, eta=0.03, **some)
    run_flower(HERE / "flower_checkpoints", "FedAvg", 24, batches, **everyone)
    clipped = InProcess(parts, mod=LocalDpMod(0.015, 0.0, 1.0, 1e-5))
    run_flower(HERE / "flower_clipped", "FedAvg", ROUNDS, clipped, **everyone)
    noised = InProcess(parts, mod=LocalDpMod(1.0, 1e-3, 5.0, 1e-5))
    run_flower(HERE / "flower_noised", "FedAvg", 4 * ROUNDS, noised, **everyone)
    for path in HERE.glob("flower_*/round-*.npz"):
        if path.stem.endswith("-weights") != (path.parent.name == "flower_checkpoints"):
            path.unlink()


if __name__ == "__main__":
    everyone = table()
    write_torch(everyone)
    write_adam(everyone)
    write_losses(everyone)
    write_unshuffled(everyone)
    write_cnn()
    write_flower(everyone)
