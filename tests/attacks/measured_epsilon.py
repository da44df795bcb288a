"""How near a measured epsilon is to the exact one, and how often its bound exceeds it:
`python -m tests.attacks.measured_epsilon 200` prints, of so many runs of full-batch clients with
1,000 canaries (and a fifth as many with 4,000), the mean bound and estimate over the exact epsilon,
and the share of bounds above it; and of clients in batches both beside what is promised."""

import sys

import dp_accounting
import jax
import numpy as np

from attacks import measure_epsilon
from jaxfl import (
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

RECORDS, FEATURES, ROUNDS, DELTA, BATCH = 100, 50, 10, 1e-5, 20


def planted(seed, model, records, count):
    """Records, parameters and directions of a seed, and keys of the run and of what is measured."""
    keys = jax.random.split(jax.random.key(seed), 5)
    params = model.init(keys[1])
    x = jax.random.normal(keys[0], (records, features_of(params)))
    directions = canary_directions(params, keys[2], count)
    return (x, (x[:, 0] > 0).astype(int)), params, directions, keys[3], keys[4]


def features_of(params):
    return params["Dense_0"]["kernel"].shape[0]


def recipe(noise, directions, records, batch_size=None):
    rate = (batch_size or records) / records
    canaries = Canaries(1.0, noise, directions=directions, rate=rate)
    return LocalTraining(0.1, batch_size=batch_size, plugins=(canaries,))


def measured(seed, noise, count, batch_size, width):
    model = mlp(FEATURES, (width,), 2)
    records, params, directions, run_key, key = planted(seed, model, RECORDS, count)
    training = recipe(noise, directions, RECORDS, batch_size)
    federated = Federated(ROUNDS, training)
    run = simulate(model, params, stack_clients([records]), run_key, federated)
    messages = run.messages(0)
    answer = measure_epsilon(model, messages, one_client(*records), training, key, delta=DELTA)
    return float(answer.lower), float(answer.estimate)


def full_batches(trials, count, width):
    print(f"{count} canaries, full batches, {trials} runs")
    for epsilon in (1.0, 3.0, 10.0):
        noise = np.sqrt(ROUNDS) * dp_accounting.get_sigma_gaussian(epsilon, DELTA)
        every = np.asarray([measured(s, noise, count, None, width) for s in range(trials)])
        (lower, estimate), above = every.mean(0) / epsilon, (every[:, 0] > epsilon).mean()
        told = f"bound {lower:.3f}, estimate {estimate:.3f}, above {above:.1%}"
        print(f"epsilon {epsilon:4g}: {told}", flush=True)


def batches(trials):
    print(f"1000 canaries, batches of {BATCH} of {RECORDS}, {trials} runs")
    told = {"records": RECORDS, "batch_size": BATCH, "delta": DELTA}
    steps = LocalTraining(batch_size=BATCH).steps(RECORDS) * ROUNDS
    for epsilon in (1.0, 3.0, 10.0):
        noise = noise_multiplier(epsilon, steps=steps, **told)
        every = np.asarray([measured(s, noise, 1000, BATCH, 64) for s in range(trials)])
        lower, estimate = every.mean(0)
        print(f"promised {epsilon:4g}: bound {lower:.2f}, estimate {estimate:.2f}")


if __name__ == "__main__":
    TRIALS = int(sys.argv[1]) if sys.argv[1:] else 200
    full_batches(TRIALS, 1000, 64)
    full_batches(max(TRIALS // 5, 1), 4000, 200)
    batches(max(TRIALS // 10, 1))
