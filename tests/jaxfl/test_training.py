"""Streams of random numbers within one round of a client."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import jaxfl

KEY = jax.random.key(0)
RECORDS = 4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Spelling(jaxfl.Plugin):
    """Steps that append the record's number to the only parameter, as a digit."""

    base: float

    def step_gradient(self, model, params, x, y, mask, key):
        return jax.tree.map(lambda p: p - (self.base * p + x[0, 0]), params)


def test_epochs_visit_records_in_orders_of_their_own():
    model = jaxfl.Model(
        lambda key: jnp.zeros(()),
        lambda params, x, *, key=None, mask=None: x[:, 0] * params,
        lambda outputs, y: outputs,
    )
    client = jaxfl.one_client(np.arange(RECORDS, dtype=np.float32)[:, None], np.zeros(RECORDS))
    training = jaxfl.LocalTraining(1.0, epochs=4, batch_size=1, plugins=(Spelling(RECORDS),))
    with jax.enable_x64(True):
        spelt = int(jaxfl.local_update(model, jnp.zeros(()), client, KEY, training))
    digits = np.asarray([spelt // RECORDS**k % RECORDS for k in range(4 * RECORDS)])
    epochs = digits.reshape(4, RECORDS)
    assert (np.sort(epochs, axis=1) == np.arange(RECORDS)).all()
    assert len(np.unique(epochs, axis=0)) > 1


def test_steps_drop_units_of_their_own():
    """The gradient is the mask alone: where two steps share it, it adds up to 0 or 2."""

    def apply(params, x, *, key=None, mask=None):
        return (params * jax.random.bernoulli(key, 0.5, params.shape)).sum() * jnp.ones(len(x))

    model = jaxfl.Model(lambda key: jnp.zeros(40), apply, lambda outputs, y: outputs)
    client = jaxfl.one_client(np.ones((2, 1), np.float32), np.zeros(2))
    for training in (jaxfl.LocalTraining(1.0, batch_size=1), jaxfl.LocalTraining(1.0, epochs=2)):
        moved = -jaxfl.local_update(model, jnp.zeros(40), client, KEY, training)
        assert set(np.unique(moved)) == {0.0, 1.0, 2.0}
