"""Labels that are not those of training, and clients that were not there, are said to be."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import (
    Knowledge,
    Prevalence,
    Property,
    Virtual,
    binary_column,
    infer_all_counts,
    last_bias,
    least_loss,
    majority_of_rounds,
    train_detectors,
    variance_mixture,
)
from attacks.fit import FitWarning, MisfitWarning, Status
from attacks.told_labels import warn_of_other_labels
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients, trunk_cnn
from jaxfl.datasets import load

KEY, CLIENTS, RECORDS, FEATURES = jax.random.key(0), 4, 40, 8
OTHER = "they other labels than those of training"


@pytest.fixture(scope="module")
def run():
    """Two of four clients a round, who learn their records by heart."""
    rng = np.random.default_rng(0)
    rule = rng.normal(size=FEATURES)
    records = []
    for _ in range(CLIENTS):
        x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
        records.append((x, ((x @ rule + rng.normal(size=RECORDS)) > 0).astype(int)))
    model = mlp(FEATURES, (64,), 2)
    federated = Federated(4, LocalTraining(0.5, epochs=60), clients_per_round=2)
    federation = simulate(model, model.init(KEY), stack_clients(records), KEY, federated)
    x, y = (np.concatenate(part) for part in zip(*records, strict=True))
    return model, federation, x, y


def there(federation, row):
    """Models of those who took part in a round."""
    present = np.flatnonzero(np.asarray(federation.participation)[row])
    return jax.tree.map(lambda a: a[row, present], federation.returned)


def test_other_labels_are_said_and_those_of_training_are_not(run):
    model, federation, x, y = run
    models = there(federation, -1)
    least_loss(model, models, x, y)  # warnings are errors
    with pytest.warns(MisfitWarning, match=f"least_loss.*{OTHER}"):
        least_loss(model, models, x, 1 - y)
    shuffled = np.random.default_rng(1).permutation(y)
    assert not warn_of_other_labels("", model, models, x, shuffled)


def test_a_model_that_says_one_class_of_all_contradicts_no_labels(run):
    """Though it is right of few: that has nothing to do with how labels are counted."""
    model, federation, x, _ = run
    constant = jax.tree.map(jnp.zeros_like, there(federation, -1))
    rare = (np.arange(len(x)) % 10 > 0).astype(int)  # it names class 0
    assert not warn_of_other_labels("", model, constant, x, rare)


def test_absent_clients_are_said_to_have_one_model(run):
    model, federation, x, y = run
    with pytest.warns(FitWarning, match=r"majority_of_rounds.*one model for 2 clients.*absent"):
        majority_of_rounds(model, federation.returned, x, y)
    last = jax.tree.map(lambda a: a[-1], federation.returned)
    with pytest.warns(FitWarning, match=r"least_loss.*one model for 2 clients"):
        least_loss(model, last, x, y)


def test_members_by_other_labels_are_a_misfit(run):
    model, federation, x, y = run
    client = int(np.flatnonzero(np.asarray(federation.participation)[-1])[0])
    messages = federation.messages(client)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        right, other = (
            variance_mixture(model, messages, Knowledge(x, labels, (binary_column(3),)))
            for labels in (y, 1 - y)
        )
    assert other.status == Status.MISFIT != right.status


@pytest.mark.slow
def test_detectors_of_other_labels_are_said_to_be(run):
    model, federation, x, y = run
    prop = Property(rate=0.5, prevalence=Prevalence(x[:, 0] > 0, 0.2, 0.8))
    told = {"training": LocalTraining(0.1), "records": 20}
    train_detectors(model, federation.received, x, y, prop, KEY, **told)  # warnings are errors
    with pytest.warns(MisfitWarning, match=f"train_detectors.*{OTHER}"):
        train_detectors(model, federation.received, x, 1 - y, prop, KEY, **told)


@pytest.mark.slow
def test_counts_of_updates_with_the_other_sign_are_said_to_be():
    digits = load("digits")
    x, y = digits.x.reshape(-1, 8, 8, 1).astype(np.float32), np.asarray(digits.y)
    rows, pool = np.flatnonzero(np.isin(y, (1, 5)))[:40], np.arange(900, 1500)
    model, training = trunk_cnn((8, 8, 1), 10), LocalTraining(0.05)
    clients = stack_clients([(x[rows], y[rows]), (x[pool[:40]], y[pool[:40]])])
    federation = simulate(model, model.init(KEY), clients, KEY, Federated(3, training))
    bias = last_bias(model, federation.pseudo_gradient)
    asked = x[pool], y[pool], 40, Virtual(training=training)
    counts = infer_all_counts(model, federation.received, bias, *asked)  # warnings are errors
    off = np.abs(np.asarray(counts)[0, 0] - np.bincount(y[rows], minlength=10)).sum()
    assert off <= 8
    with pytest.warns(FitWarning, match="infer_all_counts.*fewer than none"):
        infer_all_counts(model, federation.received, -bias, *asked)


def test_models_that_share_sums_and_differ_are_different_clients():
    """Gradients of logistic regression sum to zero over classes: so do all clients' kernels."""
    rng, model = np.random.default_rng(2), mlp(FEATURES, (), 2)
    params = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=(4, *a.shape))), model.init(KEY))
    params = jax.tree.map(lambda a: a - a.mean(-1, keepdims=True), params)
    params = jax.tree.map(lambda a: jnp.stack([a[0], a[0][..., ::-1]]), params)
    x = rng.normal(size=(30, FEATURES)).astype(np.float32)
    least_loss(model, params, x, rng.integers(0, 2, 30))  # warnings are errors


@pytest.mark.parametrize("records", [100, 5_000])
def test_untrained_models_contradict_no_labels(records):
    """They are somewhat better or worse than chance, which many records tell apart from it."""
    rng, model = np.random.default_rng(3), mlp(FEATURES, (64,), 2)
    x = rng.normal(size=(records, FEATURES)).astype(np.float32)
    for seed in range(30):
        one = jax.tree.map(lambda a: a[None], model.init(jax.random.key(seed)))
        assert not warn_of_other_labels("", model, one, x, (x[:, 0] > 0).astype(int))
