"""Faults put into the simulation on purpose, one at a time: each breaks a law, by name."""

import inspect
import textwrap

import jax
import pytest

from jaxfl import HonestServer, mean_loss
from jaxfl.models import zero_rows
from jaxfl.simulation import rounds
from tests.laws import test_simulation_laws as laws

FAULTS = {
    "the server steps up the gradient": (
        HonestServer.receive,
        ("received.astype(wide) - models.astype(wide)", "models.astype(wide) - received"),
        laws.test_fedavg_is_the_mean_weighted_by_records,
    ),
    "clients count alike": (
        HonestServer.receive,
        ("if self.by_size", "if not self.by_size"),
        laws.test_fedavg_is_the_mean_weighted_by_records,
    ),
    "rounds share a key": (
        rounds._keys_of_round,
        ("fold_in(key, t)", "fold_in(key, 0)"),
        laws.test_rounds_have_batch_orders_of_their_own,
    ),
    "clients share a key": (
        rounds._train,
        ("update_key = jax.random.fold_in(key, data.id)", "update_key = key"),
        laws.test_clients_have_batch_orders_of_their_own,
    ),
    "padding counts in a mean": (
        mean_loss,
        ("jnp.maximum(mask.sum(), 1)", "len(mask)"),
        laws.test_one_full_batch_step_is_the_gradient,
    ),
    "losses of padding count": (
        mean_loss,
        ("jnp.where(mask, losses, 0)", "losses"),
        laws.test_one_full_batch_step_is_the_gradient,
    ),
    "padding is not a number": (
        zero_rows,
        ("jnp.zeros((), array.dtype)", "array"),
        laws.test_padding_changes_nothing_whatever_it_holds,
    ),
}
MORE = {
    laws.test_padding_changes_nothing_whatever_it_holds: {
        "training": laws.MINIBATCH,
        "batch_norm": False,
    }
}


@pytest.fixture
def nothing_compiled():
    """Programs of before the fault would hide it, and those of the fault all others."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_a_law(fault, world, monkeypatch, nothing_compiled):
    function, (right, wrong), law = FAULTS[fault]
    law(world, **MORE.get(law, {}))
    jax.clear_caches()
    function = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(right) == 1, "the fault has no place in this function"
    made = {}
    exec(source.replace(right, wrong), dict(function.__globals__, checked=lambda f: f), made)
    monkeypatch.setattr(function, "__code__", made[function.__name__].__code__)
    with pytest.raises(AssertionError):
        law(world, **MORE.get(law, {}))
