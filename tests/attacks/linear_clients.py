"""Linear clients and their messages, for tests of what these tell."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import Federated, LocalTraining, Messages, linear, simulate, stack_clients


def trained(d, rounds, epochs=1, participants=5, dtype=jnp.float64, records=100, batch_size=None):
    """Client 0's records and messages among ten clients of linear regression with a binary first
    column."""
    with jax.enable_x64(dtype == jnp.float64):
        rng = np.random.default_rng(d)
        data = []
        for _ in range(10):
            x = rng.normal(size=(records, d))
            x[:, 0] = rng.random(records) < 0.4
            data.append((x, x @ rng.normal(size=d) + 0.3 * rng.normal(size=records)))
        model, key = linear(d), jax.random.key(0)
        params = jax.tree.map(lambda a: a.astype(dtype), model.init(key))
        training = LocalTraining(0.01, epochs, batch_size)
        federated = Federated(rounds=rounds, training=training, clients_per_round=participants)
        messages = simulate(model, params, stack_clients(data), key, federated).messages(0)
        return (*data[0], jax.tree.map(np.asarray, messages))


def optimum_of(x, y):
    return np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]


def as_messages(received, returned):
    def tree(rows):
        return {"Dense_0": {"kernel": rows[:, :-1, None], "bias": rows[:, -1:]}}

    return Messages(tree(received), tree(returned), np.arange(len(received)))
