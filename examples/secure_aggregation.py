"""Who holds a given record, where the server sees sums of updates alone?

Twenty clients train on digits, five a round. Three of them hold one record that the server looks
for. Secure aggregation hides every single update, and who took part is known (Kerkouche 2023).
"""

# %%
import jax
import jax.numpy as jnp
import numpy as np

import jaxfl
from attacks import Property, gibbs, observe, train_detectors
from attacks.metrics import ranking
from jaxfl.datasets import load

CLIENTS, HOLDERS, RECORDS, PER_ROUND, ROUNDS = 20, 3, 10, 5, 80
key = jax.random.key(0)
data = load("digits")
order = np.random.default_rng(0).permutation(len(data))
target = data.x[order[0]], data.y[order[0]]

# %% The federation: the first three clients hold the record in place of one of their own.
rows = order[1 : 1 + CLIENTS * RECORDS].reshape(CLIENTS, RECORDS)
rows[:HOLDERS, 0] = order[0]
clients = jaxfl.stack_clients([(data.x[r], data.y[r]) for r in rows])
model = jaxfl.mlp(data.x.shape[1], (32,), 10)
training = jaxfl.LocalTraining(0.1)
federated = jaxfl.Federated(ROUNDS, training, clients_per_round=PER_ROUND)
run = jaxfl.simulate(model, model.init(key), clients, key, federated)

# %% What the server has: sums, who took part, and records of its own. It trains a detector a round.
sums = run.aggregates()
own = order[1 + CLIENTS * RECORDS :][:800]
wanted = Property(target=jax.tree.map(jnp.asarray, target), rate=HOLDERS / CLIENTS)
detectors = train_detectors(
    model, sums.received, data.x[own], data.y[own], wanted, key, training=training, records=RECORDS
)

# %% Every sum becomes one number, and all numbers together say who has the record.
observations = observe(sums, detectors)
chance = gibbs(observations, jnp.asarray([ROUNDS]), key)[0]
truth = np.arange(CLIENTS) < HOLDERS
print("probability that a client holds it:", np.round(np.asarray(chance), 2))
print("F1 at one half:", round(ranking(chance, truth, 0.5).f1, 2))
print("F1 of naming everyone:", round(2 * HOLDERS / (HOLDERS + CLIENTS), 2))
