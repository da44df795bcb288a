"""Linkability and solvers of Song 2020's suite, end to end on made-up pictures, and the suite's
published values."""

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


def test_every_method_is_scored_and_reads_no_names(images, monkeypatch):
    """What it makes of updates stays the same, to the bit, whoever is said to have sent them."""
    cells = [tiny("table3", TINY_LINKS, interval=k, epoch=e) for k, e in ((1, 2), (3, 1))]
    jobs = [Job(cell, method, 0) for method in linkability_experiment.METHODS for cell in cells]
    attacked = linkability_experiment.federate(cells[0], None, 0)
    attack = linkability_experiment._Attack(cells[0], attacked)
    monkeypatch.setattr(linkability_experiment, "federate", lambda *_: attacked)
    monkeypatch.setattr(linkability_experiment, "_Attack", lambda *_: attack)
    outcomes = [o for some in linkability_experiment.run(jobs, None) for o in some]
    assert all(o.chance == 0.25 for o in outcomes if o.metric == "precision")
    found = {(o.job.method, o.job.cell["interval"], o.metric): o.value for o in outcomes}
    for method in linkability_experiment.METHODS:
        assert 0 <= found[method, 3, "precision"] <= 1
        assert {"tracking", "matching_accuracy", "auc"} <= {
            m for name, k, m in found if (name, k) == (method, 1)
        }
    # Three classes a client and one full-batch step a round: nothing needs to be learned.
    assert found["update", 1, "precision"] == 1

    monkeypatch.undo()
    wrong = attacked.clients._replace(
        senders=attacked.clients.senders[:, jnp.asarray([1, 2, 3, 0])]
    )
    misled = linkability_experiment._Attack(cells[0], dataclasses.replace(attacked, clients=wrong))
    for method in linkability_experiment.METHODS:
        for one, other in zip(
            attack.descriptors(method, 2), misled.descriptors(method, 2), strict=True
        ):
            assert (one == other).all()


def test_a_siamese_network_begins_with_the_model_of_its_round(images):
    cell = tiny("table3", TINY_LINKS, trunk_round=4)
    attacked = linkability_experiment.federate(cell, None, 0)
    expected = jax.tree.map(operator.itemgetter(4 - TINY_LINKS["first"]), attacked.clients.received)
    chex.assert_trees_all_equal(linkability_experiment._Attack(cell, attacked)._shared, expected)
    for outside in (1, 8):
        with pytest.raises(ValueError, match=f"trunk_round={outside}"):
            linkability_experiment.federate(
                tiny("table3", TINY_LINKS, trunk_round=outside), None, 0
            )


def test_both_federations_are_seen_through_the_window(images):
    """Every update is what its sender's model moved by: of the clients' in the order of their
    shuffled names."""
    cell = tiny("table3", TINY_LINKS, shadow_every=2, first=1, window=4, trunk_round=2)
    attacked = linkability_experiment.federate(cell, None, 0)
    assert (np.sort(attacked.clients.senders) == np.arange(4)).all()
    assert (attacked.clients.senders != np.arange(4)).any(1).sum() > 1
    # The window ends with the training: averaging what was sent last gives the model of the end.
    last = jax.tree.map(
        lambda w, u: w[-1] - u[-1].mean(0),
        attacked.clients.received,
        attacked.clients.pseudo_gradient,
    )
    chex.assert_trees_all_close(last, attacked.clients.params, atol=1e-6)
    train = jax.jit(
        lambda params, data: local_update(
            attacked.model, params, data, jax.random.key(0), attacked.training
        )
    )
    for side, rounds in ((attacked.clients, 4), (attacked.shadow, 2)):
        assert side.senders.shape == (rounds, 4)
        data = stack_clients(
            [(attacked.data.x[part], attacked.data.y[part]) for part in side.parts]
        )
        for t, place in np.ndindex(rounds, 4):
            received = jax.tree.map(operator.itemgetter(t), side.received)
            sent = jax.tree.map(operator.itemgetter((t, place)), side.pseudo_gradient)
            returned = train(
                received, jax.tree.map(operator.itemgetter(side.senders[t, place]), data)
            )
            chex.assert_trees_all_close(
                jax.tree.map(jnp.subtract, received, returned), sent, atol=1e-6
            )


def test_solvers_are_timed_on_the_same_update(images):
    cell = tiny("solvers", {"images": 6, "widths": "2,2,4,4", "steps": 3, "evaluations": 8})
    jobs = [Job(cell, method, 0) for method in representatives_experiment.METHODS]
    found = {
        (o.job.method, o.metric): o.value
        for some in representatives_experiment.run(jobs, None)
        for o in some
    }
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
