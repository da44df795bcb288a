"""From one gradient to the client's rows, and why it can be done: a picture of the two spans.

`python examples/whole_records.py spans.svg` writes the picture to that file.
"""

# %%
import sys
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

import jaxfl
from attacks import reconstruct_records
from jaxfl.datasets import load

data = load("breast_cancer")  # 30 columns, each low or high
x, y = data.x[:32], data.y[:32]
model = jaxfl.mlp(x.shape[1], (64, 64), 2)
params = model.init(jax.random.key(0))

# %% What the client sends: the gradient of its 32 records. What it tells: its records.
gradient = jax.grad(lambda p: jaxfl.mean_loss(model, p, x, y))(params)
messages = jaxfl.Messages.from_gradients(*jax.tree.map(lambda a: a[None], (params, gradient)))
recipe = jaxfl.LocalTraining(1.0)
answer = reconstruct_records(model, messages, data.schema(), recipe, jax.random.key(1))
print({name: column[0] for name, column in answer.table.items()})
theirs = {tuple(row) for row in x.tolist()}
print("certified:", int(answer.certified.sum()), "of", len(theirs), "different records")
print("of the client:", sum(tuple(row) in theirs for row in answer.x.tolist()))

# %% Why: the second layer's gradient spans what its inputs were, and its errors.
layer = np.asarray(gradient["Dense_1"]["kernel"], np.float64)  # [inputs, errors]
left, values, right = np.linalg.svd(layer)
rank = int((values > 1e-6 * values[0]).sum())


def distance(vectors: np.ndarray, span: np.ndarray) -> np.ndarray:
    """Of vectors `[records, width]` from the span of orthonormal rows, relative to their length."""
    outside = vectors - vectors @ span.T @ span
    return np.linalg.norm(outside, axis=1) / np.linalg.norm(vectors, axis=1)


def distances(records: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of what records put into the second layer, and of their errors there, from the two spans."""
    layers = [jax.tree.map(np.float64, params[f"Dense_{k}"]) for k in range(3)]
    first = np.maximum(records @ layers[0]["kernel"] + layers[0]["bias"], 0)
    second = first @ layers[1]["kernel"] + layers[1]["bias"]
    scores = np.maximum(second, 0) @ layers[2]["kernel"] + layers[2]["bias"]
    beyond = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(2)[labels]
    errors = beyond @ layers[2]["kernel"].T * (second > 0)
    return distance(first, left[:, :rank].T), distance(errors, right[:rank])


# %% The client's records lie in both spans, but for float32's rounding. Nobody else's does.
others = np.asarray([tuple(row) not in theirs for row in data.x.tolist()])
figure = Figure(figsize=(5, 3.6), layout="constrained")
axes = figure.subplots()
beside = distances(data.x[others].astype(np.float64), data.y[others])
client = distances(x.astype(np.float64), y)
axes.loglog(*beside, ".", color="0.7", label=f"{others.sum()} people who are not the client's")
axes.loglog(*client, "o", markersize=4, label=f"the client's {len(x)}")
axes.set(xlabel="second layer's inputs: distance from their span")
axes.set(ylabel="its errors: distance from their span")
axes.legend(fontsize=8)
print("farther of the two spans, of the client's at most:", f"{np.maximum(*client).max():.0e}")
print("of the others at least:", f"{np.maximum(*beside).min():.3f}")
print("apart:", bool(1000 * np.maximum(*client).max() < np.maximum(*beside).min()))
for file in (word for word in sys.argv[1:] if word.endswith(".svg")):
    figure.savefig(Path(file), metadata={"Date": None})
figure  # noqa: B018 (a notebook shows it)
