"""A measured epsilon: that of the mechanism, never more, and nothing where there is no canary."""

import dataclasses
import warnings

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from attacks import MisfitWarning, Status, measure_epsilon
from jaxfl import (
    DPSGD,
    Canaries,
    Federated,
    LocalTraining,
    canary_directions,
    mlp,
    one_client,
    simulate,
    stack_clients,
)
from jaxfl.accounting import noise_multiplier
from tests.attacks import measured_epsilon
from tests.attacks.measured_epsilon import planted

RECORDS, FEATURES, ROUNDS, DELTA = 40, 30, 4, 1e-5
MODEL = mlp(FEATURES, (32,), 2)
COUNT = 500


def client(seed):
    """Records, parameters, directions and keys of a seed."""
    return planted(seed, MODEL, RECORDS, COUNT)


def recipe(noise, directions, batch_size=None):
    return measured_epsilon.recipe(noise, directions, RECORDS, batch_size)


def measured(seed, noise, batch_size=None, sent=None):
    """What messages of a run tell; `sent` is the recipe that is followed, where it is another."""
    records, params, directions, run_key, key = client(seed)
    training = recipe(noise, directions, batch_size)
    followed = training if sent is None else sent(training)
    federated = Federated(ROUNDS, followed)
    run = simulate(MODEL, params, stack_clients([records]), run_key, federated)
    messages = run.messages(0)
    return measure_epsilon(MODEL, messages, one_client(*records), training, key, delta=DELTA)


def exact(noise):
    """Epsilon of as many Gaussian mechanisms as there are rounds."""
    return dp_accounting.get_epsilon_gaussian(noise / np.sqrt(ROUNDS), DELTA)


@pytest.mark.very_slow
@pytest.mark.filterwarnings("ignore::attacks.MisfitWarning")  # one of a hundred right runs
@pytest.mark.parametrize("noise", [1.0, 4.0])
def test_epsilon_of_a_gaussian_mechanism(noise):
    """The mean score is the mechanism's mu; scores vary as noise does; and the bound is above
    epsilon no more often than its confidence allows."""
    answers = [measured(seed, noise) for seed in range(20)]
    scores = np.stack([a.scores for a in answers])
    mu = np.sqrt(ROUNDS) / noise
    assert abs(scores.mean() - mu) < 4 / np.sqrt(scores.size)
    assert abs(scores.std() - 1) < 0.05
    above = sum(float(a.lower) > exact(noise) for a in answers)
    assert above <= stats.binom.isf(0.01, 20, 0.05)
    assert all(0 <= a.lower <= a.estimate for a in answers)


def test_batches_tell_less_than_is_promised():
    training = LocalTraining(batch_size=8)
    steps = training.steps(RECORDS) * ROUNDS
    promised = {"records": RECORDS, "batch_size": 8, "steps": steps, "delta": DELTA}
    answer = measured(0, noise_multiplier(8.0, **promised), batch_size=8)
    assert 1.0 < answer.lower < 8.0


def test_less_noise_than_promised_is_caught():
    def half(training):
        (canaries,) = training.plugins
        halved = dataclasses.replace(canaries, noise_multiplier=canaries.noise_multiplier / 2)
        return dataclasses.replace(training, plugins=(halved,))

    with pytest.warns(
        MisfitWarning,
        match=r"noise is (0\.9\d*|1|1\.0\d*), where the recipe adds 2",
    ) as told:
        answer = measured(0, 2.0, sent=half)
    assert answer.lower > exact(2.0)
    assert answer.status == Status.MISFIT
    assert told[0].filename == __file__


@pytest.mark.slow
def test_without_canaries_nothing_is_told():
    """Of a client that has none the score is noise, whatever its records are."""
    with pytest.warns(MisfitWarning, match="a canary moves the messages by"):
        none = [
            measured(seed, 1.0, sent=lambda t: dataclasses.replace(t, plugins=(DPSGD(1.0, 1.0),)))
            for seed in range(10)
        ]
    assert all(a.status == Status.MISFIT for a in none)
    assert np.mean([a.lower for a in none]) < 0.1
    assert exact(1.0) > 5


WRONG = {
    "no privacy and no canaries": lambda t: dataclasses.replace(t, plugins=()),
    "another rate": lambda t: dataclasses.replace(t, learning_rate=0.5),
    "batches": lambda t: dataclasses.replace(t, plugins=(DPSGD(1.0, 1.0),), batch_size=8),
}


def twice_the_noise(training):
    (canaries,) = training.plugins
    noise = 2 * canaries.noise_multiplier
    return dataclasses.replace(
        training, plugins=(dataclasses.replace(canaries, noise_multiplier=noise),)
    )


@pytest.mark.parametrize(
    "wrong",
    [lambda t: dataclasses.replace(t, plugins=(DPSGD(1.0, 2.0),)), twice_the_noise],
    ids=["no canaries", "twice the noise"],
)
def test_wrong_recipes_in_batches_are_misfits(wrong):
    """Nothing told of canaries that are not there is no all-clear."""
    with pytest.warns(MisfitWarning):
        assert measured(0, 2.0, batch_size=8, sent=wrong).status == Status.MISFIT


def test_canaries_that_are_not_there_are_noticed_without_noise_too():
    with pytest.warns(MisfitWarning, match="where 2 is expected"):
        measured(0, 0.0, sent=lambda t: dataclasses.replace(t, plugins=(DPSGD(1.0, 0.0),)))


@pytest.mark.parametrize("wrong", WRONG)
def test_messages_of_another_recipe_are_misfits(wrong):
    """They would tell nothing, as if nothing leaked."""
    with pytest.warns(MisfitWarning):
        assert measured(0, 1.0, sent=WRONG[wrong]).status == Status.MISFIT


def test_right_recipes_are_no_misfits():
    """Of 10, in full batches and in batches: no more than by chance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MisfitWarning)
        answers = [measured(s, 2.0, batch_size=b) for s in range(5) for b in (None, 8)]
    assert sum(a.status == Status.MISFIT for a in answers) <= stats.binom.ppf(0.999, 10, 0.01)


def test_a_step_with_canaries():
    """It is the private one, and a gradient of norm `clip` for each canary."""
    (x, y), params, directions, _, key = client(0)
    plain = LocalTraining(plugins=(DPSGD(0.5, 0.0),)).plugins[0]
    canaries = Canaries(0.5, 0.0, directions=directions)
    mask = jnp.arange(RECORDS) < 30
    both = [p.step_gradient(MODEL, params, x, y, mask, key) for p in (canaries, plain)]
    added = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.subtract, *both))[0] * 30
    np.testing.assert_allclose(directions @ added, 0.5, atol=1e-4)
    assert jnp.linalg.norm(added) == pytest.approx(0.5 * np.sqrt(COUNT), rel=1e-3)


@pytest.mark.parametrize("noise", [0.1, 1e-2, 1e-4])
def test_little_noise(noise):
    """Beyond what SciPy's noncentral t reaches, too."""
    answer = measured(0, noise)
    assert answer.mu == pytest.approx(np.sqrt(ROUNDS) / noise, rel=0.1)
    assert 0.8 * answer.estimate < answer.lower < answer.estimate


def test_messages_that_are_not_finite_give_no_number():
    answer = measured(0, 1e38)
    assert answer.status == Status.FAILED
    assert np.isnan([answer.lower, answer.estimate, answer.mu]).all()


def test_what_cannot_be_measured_is_named():
    records, params, directions, _, key = client(0)
    run = simulate(MODEL, params, stack_clients([records]), key, Federated(1, LocalTraining()))
    told = {"model": MODEL, "messages": run.messages(0), "data": one_client(*records), "key": key}
    with pytest.raises(ValueError, match=r"training.plugins holds nothing; it must hold Canaries"):
        measure_epsilon(**told, training=LocalTraining())
    for confidence in (0.05, 0.49):  # alpha, taken for it, makes a bound above the estimate
        with pytest.raises(ValueError, match=f"confidence holds {confidence}"):
            measure_epsilon(**told, training=recipe(1.0, directions), confidence=confidence)
    with pytest.raises(ValueError, match="orthonormal"):
        measure_epsilon(**told, training=recipe(1.0, 2 * directions))
    forgotten = dataclasses.replace(recipe(1.0, directions), batch_size=8)
    with pytest.raises(ValueError, match=r"rate=1; in batches of batch_size=8 of 40 .* it is 0.2"):
        measure_epsilon(**told, training=forgotten)
    adam = dataclasses.replace(recipe(1.0, directions), optimizer=optax.adam)
    with pytest.raises(ValueError, match=r"optimizer=.* is not optax.sgd"):
        measure_epsilon(**told, training=adam)
    small = canary_directions({"w": jnp.ones(50)}, key, 20)
    federated = Federated(1, recipe(1.0, small))
    with pytest.raises(ValueError, match=r"Canaries.directions have 50 numbers"):
        simulate(MODEL, params, stack_clients([records]), key, federated)
    with pytest.raises(ValueError, match="directions have 50 numbers, and the model has"):
        measure_epsilon(**told, training=recipe(1.0, small))
    with pytest.raises(ValueError, match="count=30 must be at most half of the 50 parameters"):
        canary_directions({"w": jnp.ones(50)}, key, 30)
