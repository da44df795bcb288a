"""Models of other libraries: Flax NNX, Equinox and Haiku (a linen module has `jaxfl.from_flax`).

A model is three functions: `init(key)` makes parameters, any pytree; `apply(params, x)` gives
outputs for a batch; `loss(outputs, y)` gives one number per record. Attacks need no more. Where the
library tells them which layers are dense, they form no gradients and are faster.
"""

# %%
import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxfl
from attacks import Knowledge, binary_column, closed_form
from jaxfl.datasets import load

FEATURES, CLASSES, HIDDEN = 30, 2, 32


# %% Flax NNX: a module is split into its graph and its state.
class Perceptron(nnx.Module):
    """One hidden layer."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(FEATURES, HIDDEN, rngs=rngs)
        self.outputs = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, x):
        """Outputs of a batch."""
        return self.outputs(nnx.relu(self.hidden(x)))


def of_nnx():
    """The module as a model; its parameters are nested dictionaries."""
    graph, state = nnx.split(Perceptron(nnx.Rngs(0)))

    def init(key):
        return nnx.to_pure_dict(nnx.state(Perceptron(nnx.Rngs(key))))

    def apply(params, x, *, key=None, mask=None):
        nnx.replace_by_pure_dict(filled := jax.tree.map(lambda a: a, state), params)
        return nnx.merge(graph, filled)(x)

    return jaxfl.Model(init, apply, jaxfl.cross_entropy, CLASSES)


# %% Equinox: a module is partitioned into arrays and all else, and takes one record.
def of_equinox():
    """The module as a model; its parameters are a module with arrays alone."""

    def make(key):
        return eqx.nn.MLP(FEATURES, CLASSES, HIDDEN, depth=1, key=key)

    _, rest = eqx.partition(make(jax.random.key(0)), eqx.is_inexact_array)

    def init(key):
        return eqx.filter(make(key), eqx.is_inexact_array)

    def apply(params, x, *, key=None, mask=None):
        return jax.vmap(eqx.combine(params, rest))(x)

    return jaxfl.Model(init, apply, jaxfl.cross_entropy, CLASSES)


# %% Haiku: a function is transformed into two.
def of_haiku():
    """The network as a model."""
    network = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([HIDDEN, CLASSES])(x)))

    def init(key):
        return network.init(key, jnp.zeros((1, FEATURES)))

    def apply(params, x, *, key=None, mask=None):
        return network.apply(params, x)

    return jaxfl.Model(init, apply, jaxfl.cross_entropy, CLASSES)


# %% A client of each, and what its server reads: a column of yes and no. Records that are alike but
# for that column could be exchanged, so that each is taken once.
data = load("breast_cancer")
SECRET, key = 4, jax.random.key(0)
_, rows = np.unique(np.delete(data.x[:60], SECRET, 1), axis=0, return_index=True)
x, y = np.array(data.x[rows], np.float32), data.y[rows]
clients = jaxfl.stack_clients([(x, y)])
known = x.copy()
known[:, SECRET] = float("nan")
knowledge = Knowledge(known, y, (binary_column(SECRET),))
for name, model in {"NNX": of_nnx(), "Equinox": of_equinox(), "Haiku": of_haiku()}.items():
    federated = jaxfl.Federated(20, jaxfl.LocalTraining(0.5))
    run = jaxfl.simulate(model, model.init(key), clients, key, federated)
    answer = closed_form(model, run.messages(0), knowledge)
    right = float((np.asarray(answer.values[0]) == x[:, SECRET]).mean())
    print(f"{name}: {right:.3f} of the column, explained {float(answer.fit.explained):.6f}")
