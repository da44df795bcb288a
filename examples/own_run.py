"""What did the clients of a run of one's own give away? The run is plain arrays here.

A hospital trained a network on its patients and kept what it was sent and what it returned. Who
reads this, and knows all columns of the patients but one, reads that one too.
"""

# %%
import warnings

import jax
import numpy as np

import jaxfl
from attacks import GLS, Knowledge, Status, binary_column, closed_form, diagnose, gls
from jaxfl.datasets import load

data = load("breast_cancer")
x, y = data.x[:60].copy(), data.y[:60]
model, key = jaxfl.mlp(x.shape[1], (64,), 2), jax.random.key(0)
recipe = jaxfl.LocalTraining(0.1, batch_size=15)
clients = jaxfl.stack_clients([(x, y)])
run = jaxfl.simulate(model, model.init(key), clients, key, jaxfl.Federated(12, recipe))
received, returned = jax.tree.map(np.asarray, (run.received, run.messages(0).returned))

# %% From here on: what the run left behind. Leaves are [rounds, ...].
messages = jaxfl.Messages.from_arrays(received, returned)
SECRET = 4
truth = x[:, SECRET].copy()
x[:, SECRET] = float("nan")
known = Knowledge(x, y, (binary_column(SECRET),))

# %% The wrong attack says so, and `diagnose`, told the learning rate, says why.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    wrong = closed_form(model, messages, known)
print("closed_form:", Status(int(wrong.status)).name)
print(diagnose(model, messages, known, jaxfl.LocalTraining(0.1)))

# %% The right one, told the recipe.
answer = gls(model, messages, known, key, settings=GLS(recipe, orders=32))
print("gls:", Status(int(answer.status)).name, "explained", round(float(answer.fit.explained), 3))
print("right:", float((np.asarray(answer.values[0]) == truth).mean()))
print("most frequent value:", float(max(truth.mean(), 1 - truth.mean())))
