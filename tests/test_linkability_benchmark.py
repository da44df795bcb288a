"""Linkability and solvers of paper 003's suite, end to end on made-up pictures, and the suite's published values."""

import dataclasses
import operator

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import linkability_experiment, representatives_experiment
from benchmarks.jobs import Job
from benchmarks.suites import song2020
from benchmarks.suites.grids import published_rows
from jaxfl import stack_clients
from jaxfl.federated import local_update
from tests.users import TINY_LINKS, pictures, tiny


@pytest.fixture
def images(monkeypatch):
    data = pictures(14)
    for module in (linkability_experiment, representatives_experiment):
        monkeypatch.setattr(module, "load_images", lambda name, data_dir, side: data)
    monkeypatch.setattr(linkability_experiment, "REFERENCES", 40)
    monkeypatch.setattr(linkability_experiment, "PAIRS", 50)
    monkeypatch.setattr(representatives_experiment, "BEFORE", 100)


def scores(jobs):
    outcomes = [o for some in linkability_experiment.run(jobs, None) for o in some]
    assert all(o.chance == 0.25 for o in outcomes if o.metric == "precision")
    return {(o.job.method, o.job.cell["interval"], o.metric): o.value for o in outcomes}


def test_every_method_links_at_every_interval_and_none_by_wrong_names(images, monkeypatch):
    cells = [tiny("table3", TINY_LINKS, interval=k, epoch=e) for k, e in ((1, 2), (3, 1))]
    jobs = [Job(cell, method, 0) for method in linkability_experiment.METHODS for cell in cells]
    attacked = linkability_experiment.federate(cells[0], None, 0)
    monkeypatch.setattr(linkability_experiment, "federate", lambda *_: attacked)
    found = scores(jobs)
    for method in linkability_experiment.METHODS:
        assert 0 <= found[method, 3, "precision"] <= 1
        assert {"tracking", "matching_accuracy", "auc"} <= {m for name, k, m in found if (name, k) == (method, 1)}
    # Three classes a client and one full-batch step a round: nothing needs to be learned.
    assert found["update", 1, "precision"] == 1

    rng = np.random.default_rng(0)
    wrong = attacked.clients.senders[
        np.arange(TINY_LINKS["window"])[:, None], rng.permuted(np.tile(np.arange(4), (6, 1)), axis=1)
    ]
    attacked = dataclasses.replace(attacked, clients=attacked.clients._replace(senders=wrong))
    blind = scores([job for job in jobs if job.cell["interval"] == 1])
    assert all(blind[method, 1, "precision"] < 0.6 for method in linkability_experiment.METHODS)


def test_both_federations_are_seen_through_the_window(images):
    """Every update is what its sender's model moved by: of the clients' in the order of their shuffled names."""
    attacked = linkability_experiment.federate(tiny("table3", TINY_LINKS, shadow_every=2, first=1, window=4), None, 0)
    train = jax.jit(lambda params, data: local_update(attacked.model, params, data, jax.random.key(0), attacked.training))
    for side, rounds in ((attacked.clients, 4), (attacked.shadow, 2)):
        assert side.senders.shape == (rounds, 4)
        data = stack_clients([(attacked.data.x[part], attacked.data.y[part]) for part in side.parts])
        for t, place in np.ndindex(rounds, 4):
            received = jax.tree.map(operator.itemgetter(t), side.received)
            sent = jax.tree.map(operator.itemgetter((t, place)), side.pseudo_gradient)
            returned = train(received, jax.tree.map(operator.itemgetter(side.senders[t, place]), data))
            chex.assert_trees_all_close(jax.tree.map(jnp.subtract, received, returned), sent, atol=1e-6)


def test_solvers_are_timed_on_the_same_update(images):
    cell = tiny("solvers", {"images": 6, "widths": "2,2,4,4", "steps": 3, "evaluations": 8})
    jobs = [Job(cell, method, 0) for method in representatives_experiment.METHODS]
    found = {(o.job.method, o.metric): o.value for some in representatives_experiment.run(jobs, None) for o in some}
    for method in representatives_experiment.METHODS:
        assert 0 < found[method, "objective"] < 1.5
        assert -1 <= found[method, "class_mean_correlation"] <= 1


def test_records_that_are_not_there_are_named(images):
    with pytest.raises(ValueError, match="records=900"):
        linkability_experiment.federate(tiny("table3", TINY_LINKS, records=900), None, 0)


def test_every_published_value_belongs_to_a_cell():
    used = {
        (t.name, cell.dataset, method, row["metric"])
        for t in song2020.TABLES
        for cell in t.cells("paper", None)
        for method in t.methods
        for row in published_rows("song2020")
        if song2020.published(cell, method, row["metric"]) is not None
    }
    assert len(used) == len(published_rows("song2020"))
